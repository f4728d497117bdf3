"""Rankings made into one: places count, scores do not."""

import pytest

from metamcp_worker.search.index import EXTRA_WEIGHT, RANK_OFFSET, RANKED_MAX, Ranking, fuse


def test_a_share_is_the_weight_by_the_place() -> None:
    assert fuse([Ranking(["a", "b"], 1.0)]) == {
        "a": 1 / (RANK_OFFSET + 1),
        "b": 1 / (RANK_OFFSET + 2),
    }


def test_what_both_have_comes_before_what_one_has() -> None:
    shares = fuse([Ranking(["a", "b", "c"], 1.0), Ranking(["x", "b"])])
    assert max(shares, key=shares.__getitem__) == "b"
    assert shares["x"] == pytest.approx(EXTRA_WEIGHT / (RANK_OFFSET + 1))


def test_a_lighter_ranking_does_not_outvote_the_other() -> None:
    shares = fuse([Ranking(["a", "b"], 1.0), Ranking(["b", "x"])])
    assert sorted(shares, key=shares.__getitem__, reverse=True) == ["b", "a", "x"]
    shares = fuse([Ranking(["a"], 1.0), Ranking(["x"])])
    assert shares["a"] > shares["x"]


def test_what_is_twice_in_a_ranking_has_its_better_place() -> None:
    assert fuse([Ranking(["a", "b", "a"], 1.0)]) == fuse([Ranking(["a", "b"], 1.0)])


def test_nothing_makes_nothing() -> None:
    assert fuse([]) == {}
    assert fuse([Ranking[str]([])]) == {}


def test_of_a_long_ranking_only_the_beginning_counts() -> None:
    assert len(fuse([Ranking(range(10 * RANKED_MAX))])) == RANKED_MAX
