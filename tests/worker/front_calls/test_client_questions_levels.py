"""Severities of log messages, with values."""

import pytest

from metamcp_worker.front_calls.client_questions import LEVELS, passes
from metamcp_worker.ipc import codec


def log(level: object) -> bytes:
    return codec.dump({"level": level, "data": "x"})


def test_a_message_passes_if_it_is_at_least_as_severe_as_wanted() -> None:
    for rank, wanted in enumerate(LEVELS):
        assert [passes(wanted, log(level)) for level in LEVELS] == [
            other >= rank for other in range(len(LEVELS))
        ]


def test_without_a_wish_everything_passes() -> None:
    assert all(passes("", log(level)) for level in LEVELS)
    assert passes("", b"anything")


@pytest.mark.parametrize("params", [log("loud"), log(1), b"{}", b"[]"])
def test_a_message_of_no_known_severity_passes(params: bytes) -> None:
    assert passes("emergency", params)
