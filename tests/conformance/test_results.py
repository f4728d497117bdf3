"""How two runs of the suite are compared."""

from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.cells import LEGACY, MODERN, Behind, Direct, chosen, every
from tests.conformance.results import Score, better, read, score, totals, worse, written

names = st.sampled_from(["ping", "caching", "tools-list"])
scores = st.dictionaries(
    names,
    st.builds(
        Score,
        st.integers(0, 9),
        st.lists(st.sampled_from("abc"), max_size=3).map(lambda ids: tuple(sorted(ids))),
    ),
)


def test_failures_and_warnings_are_lost_and_what_was_skipped_is_not() -> None:
    kinds = ("SUCCESS", "SUCCESS", "FAILURE", "WARNING", "SKIPPED", "INFO")
    checks = [{"id": f"c{at}", "status": kind} for at, kind in enumerate(kinds)]
    assert score(checks) == Score(2, ("c2", "c3"))


def test_totals_count_checks_and_clean_scenarios() -> None:
    assert totals({"ping": Score(2), "caching": Score(7, ("ttl",))}) == (9, 1, 1)


def test_a_new_loss_is_worse_even_if_another_check_is_won() -> None:
    before, now = {"caching": Score(7, ("ttl",))}, {"caching": Score(7, ("scope",))}
    assert "scope" in worse(now, before)["caching"]
    assert better(now, before) == []


def test_fewer_passed_checks_and_a_scenario_that_did_not_run_are_worse() -> None:
    before = {"ping": Score(2), "caching": Score(8)}
    assert set(worse({"ping": Score(1)}, before)) == {"ping", "caching"}


def test_a_check_lost_twice_instead_of_once_is_worse() -> None:
    assert worse({"ping": Score(1, ("a", "a"))}, {"ping": Score(1, ("a",))})


def test_more_passed_checks_and_fewer_losses_are_better() -> None:
    before = {"ping": Score(2), "caching": Score(7, ("ttl",))}
    assert better({"ping": Score(2), "caching": Score(8)}, before) == ["caching"]
    assert better(before, before) == []


@given(scores, scores)
def test_what_is_written_is_read_again(found: dict[str, Score], like: dict[str, Score]) -> None:
    known = {name: one for name, one in like.items() if name in found}
    assert read(written(found, known), known) == found


@given(scores)
def test_a_run_is_neither_worse_nor_better_than_itself(found: dict[str, Score]) -> None:
    assert worse(found, found) == {}
    assert better(found, found) == []


def test_names_of_cells_are_unique_and_patterns_choose_among_them() -> None:
    cells = every()
    assert len({cell.name for cell in cells}) == len(cells)
    assert chosen([f"{LEGACY}/direct"]) == [Direct(LEGACY)]
    assert chosen([]) == cells


def test_a_cell_knows_whether_client_and_server_speak_the_same_era() -> None:
    assert Behind(MODERN, "modern", "stdio", "bare").same_era
    assert not Behind(MODERN, "legacy", "stdio", "bare").same_era
    assert Behind(LEGACY, "legacy", "http", "aggregate").name == f"{LEGACY}/legacy/http/aggregate"
