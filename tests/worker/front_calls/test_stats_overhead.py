"""The gateway's own time: measured in one call of many, without a word between the others."""

import pytest

from metamcp_worker.ipc import figures
from metamcp_worker.ipc.figures import SAMPLED_OF_CALLS, WorkerCallTimes
from metamcp_worker.ipc.frames import Notice, Result
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import answer_of
from tests.worker.front.offers import offer, tool

ASKED = request("tools/call", b'{"name":"a__t"}')


def counts(front: Front) -> dict[str, int]:
    return {stage: sum(one.buckets) for stage, one in front.calls.overhead.figures().items()}


def armed(front: Front) -> bool:
    """Is the next call one that is timed?"""
    return front.calls.overhead.armed


@pytest.mark.promise("M85")
async def test_one_call_of_many_is_timed_in_each_part_of_the_gateway() -> None:
    async with opened_front(a=offer("t")) as front:
        overhead = front.calls.overhead
        for number in range(1, SAMPLED_OF_CALLS - 1):
            assert armed(front) is False, number
            await front.answered("a", ASKED, b"{}")
        assert armed(front), "the next one is"
        overhead.on_request()
        call = front.calls.start(front.view, ASKED, None)
        assert not armed(front)
        sent = await front.peers["a"].call()
        assert sent.id & figures.MASK == figures.MASK
        timed = figures.pack(WorkerCallTimes(sent.id, 0.0, 0.002))
        front.peers["a"].write(Notice(figures.NOTICE, timed))
        front.peers["a"].write(Result(sent.id, b"{}"))
        await answer_of(call)
        await front.answered("a", ASKED, b"{}")  # some turns of the loop
        assert counts(front) == dict.fromkeys(counts(front), 0), "no time was told"
        await _sampled(front, WorkerCallTimes(2 * SAMPLED_OF_CALLS - 1, 0.000001, 0.002))
        found = overhead.figures()
        assert found["worker"].seconds == 0.002
        assert found["pipe"].seconds > 0
        assert found["front"].seconds > 0


async def _sampled(front: Front, timed: WorkerCallTimes) -> None:
    """Calls until the next one that is timed, of which its worker says this."""
    while not front.calls.overhead.armed:
        await front.answered("a", ASKED, b"{}")
    call = front.calls.start(front.view, ASKED, None)
    sent = await front.peers["a"].call()
    assert sent.id == timed.id
    front.peers["a"].write(Notice(figures.NOTICE, figures.pack(timed)))
    front.peers["a"].write(Result(sent.id, b"{}"))
    await answer_of(call)
    await front.answered("a", ASKED, b"{}")  # some turns of the loop
    assert all(one == 1 for one in counts(front).values())


async def test_a_notice_that_means_no_call_changes_nothing() -> None:
    async with opened_front(a=offer("t")) as front:
        for body in (b"", b"{}", figures.pack(WorkerCallTimes(31, 1.0, 1.0))):
            front.peers["a"].write(Notice(figures.NOTICE, body))
        await front.answered("a", ASKED, b"{}")
        assert not any(counts(front).values())


async def test_a_call_that_was_sent_once_more_says_nothing_about_the_gateway() -> None:
    async with opened_front(a=offer(tool("t", annotations={"readOnlyHint": True}))) as front:
        front.retry({"a": "read-only"})
        while not armed(front):
            await front.answered("a", ASKED, b"{}")
        call = front.calls.start(front.view, ASKED, None)
        first = front.peers["a"]
        sent = await first.call()
        second = await front.attach("a", 2)
        first.close()
        assert (await second.call()).id == sent.id
        second.write(
            Notice(figures.NOTICE, figures.pack(WorkerCallTimes(sent.id, 0.000001, 0.002)))
        )
        second.write(Result(sent.id, b"{}"))
        await answer_of(call)
        await front.answered("a", ASKED, b"{}")  # some turns of the loop
        assert not any(counts(front).values())
