"""Decisions after an attempt: what was interrupted, and what has failed."""

import pytest
from msgspec import Raw, json

from metamcp_worker.engine.workflow_run import StepOutcome, count_interruptions, of_call, of_code
from metamcp_worker.ipc.engine_runs import HostDone, Trouble

pytestmark = pytest.mark.promise("M52")


def test_what_a_process_of_the_gateway_took_along_was_interrupted_and_counts_in_a_row() -> None:
    lost = of_call(HostDone(call=1, trouble="unavailable", error="gone", lost=True))
    assert (lost.lost, lost.down, count_interruptions(0, lost)) == (True, True, 1)
    assert count_interruptions(4, lost) == 5
    assert count_interruptions(4, StepOutcome({}, "error", "no")) == 0


def test_a_server_that_is_not_back_yet_counts_only_after_an_interruption() -> None:
    absent = HostDone(call=1, trouble="unavailable", error="not available", repeatable=True)
    assert count_interruptions(0, of_call(absent)) == 0
    assert count_interruptions(1, of_call(absent)) == 2
    crashed = HostDone(call=1, trouble="unavailable", error="it crashed")
    assert count_interruptions(1, of_call(crashed)) == 0, "nobody knows what the second one did"


@pytest.mark.parametrize(
    ("trouble", "down"), [("unavailable", True), ("timeout", False), ("error", False)]
)
def test_only_what_went_down_may_be_the_end_of_the_gateway(trouble: Trouble, down: bool) -> None:
    for read in (of_call, of_code):
        assert read(HostDone(call=1, trouble=trouble, error="x")).down is down


@pytest.mark.parametrize(("failure", "down"), [("crashed", True), ("error", False)])
def test_a_sandbox_that_crashed_may_have_ended_with_the_gateway(failure: str, down: bool) -> None:
    result = Raw(json.encode({"failure": failure, "message": "it ended"}))
    outcome = of_code(HostDone(call=1, result=result))
    assert (outcome.trouble, outcome.down, outcome.lost) == ("error", down, False)
