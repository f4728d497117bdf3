"""What the journal keeps of orders that were refused."""

from metamcp_supervisor.backoff import MINUTE_S, EntryRateLimiter
from metamcp_supervisor.control.access import NAME_CHARACTERS_MAX, PER_MINUTE_MAX, reason, sentence


def test_so_many_a_minute_are_kept_and_the_others_are_counted() -> None:
    refusals = EntryRateLimiter(PER_MINUTE_MAX)
    kept = [refusals.take(5.0) for _ in range(PER_MINUTE_MAX + 7)]
    assert kept == [0] * PER_MINUTE_MAX + [None] * 7
    assert refusals.take(5.0 + MINUTE_S - 1) is None
    assert refusals.take(5.0 + MINUTE_S) == 8
    assert refusals.take(5.0 + MINUTE_S) == 0


def test_the_sentence_says_who_wanted_what_and_why_not() -> None:
    assert (
        sentence("stop", ["git"], "process 7", "it ends")
        == "'stop git' asked by process 7: it ends"
    )
    long = sentence("stop", ["x" * 999, *"abcdef"], "process 7", "no", left_out=3)
    assert long == (
        f"'stop {'x' * NAME_CHARACTERS_MAX} a b c and 3 more' asked by process 7: no; 3 more before"
        " it are not shown"
    )


def test_a_name_out_of_nowhere_stays_on_its_line() -> None:
    assert sentence("stop", ["a\x1b[2J\nb"], "process 7", "no").startswith("'stop a?[2J?b' asked")


def test_the_first_problem_of_a_configuration_is_told() -> None:
    assert reason("invalid", ()) == "invalid"
    assert reason("invalid", ("line 3",)) == "invalid: line 3"
    assert reason("invalid", ("line 3", "line 9")) == "invalid: line 3 (and 1 more)"
