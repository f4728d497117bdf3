"""The calls in flight, as fronts and workers report them on request.

Owns: the choice of processes to ask, the time limit for answers, and merging the answers. Never:
the calls of a front (the front reports them), the fields of a call
(`metamcp_worker.ipc.figures`), printing.

The front knows the client of a call, the worker knows whether the call was already sent to the
server: both are asked at once, and a call that the worker has not sent yet is `queued`.
"""

import asyncio
from collections.abc import Collection, Sequence

from metamcp_supervisor.fronts.front import FrontProcess, Questions, Shown
from metamcp_supervisor.servers.entry import ServerEntry
from metamcp_supervisor.verbs import CallsUnderWay, InFlight
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import CallUnderWay, ShowCalls

CALLS_SHOWN_MAX = 500
"""Maximum number of calls shown, the oldest first: more than an operator reads, and far less than
a line of the control socket can hold."""
ANSWER_S_MAX = 2.0
"""Maximum seconds for all processes to answer: milliseconds are usual, unless a process is stopped
or hangs."""

Waiting = set[tuple[int, int]]
"""Calls as pairs: number of the front, number of the call."""


async def calls(
    fronts: Sequence[FrontProcess],
    entries: Collection[ServerEntry],
    names: Sequence[str],
    slow_s: float,
) -> CallsUnderWay:
    """Return calls to servers with these `names` (empty: all servers) that have taken `slow_s` or
    longer."""
    wanted = ShowCalls(ticket=0, servers=tuple(names), slow_s=slow_s, most=CALLS_SHOWN_MAX)
    workers = [
        copy.instance.questions for entry in entries for copy in entry.copies if copy.instance
    ]
    told, waiting = await asyncio.gather(
        asyncio.gather(*(_ask(front.questions, wanted) for front in fronts)),
        asyncio.gather(*(_waiting(questions) for questions in workers)),
    )
    queued: Waiting = {call for found in waiting for call in found}
    seen: list[InFlight] = []
    more = 0
    silent: list[str] = []
    for front, answer in zip(fronts, told, strict=True):
        if answer is None:
            silent.append(front.who)
            continue
        more += answer[0].more
        seen += [_seen(front, one, queued) for one in _read(answer[1])]
    seen.sort(key=lambda one: -one.age_s)
    more += max(0, len(seen) - CALLS_SHOWN_MAX)
    return CallsUnderWay(calls=tuple(seen[:CALLS_SHOWN_MAX]), more=more, silent=tuple(silent))


async def _ask(questions: Questions, wanted: ShowCalls) -> Shown | None:
    return await questions.ask(wanted, ANSWER_S_MAX)


async def _waiting(questions: Questions) -> Waiting:
    """Return the calls that wait in a worker; none if the worker does not answer."""
    answer = await _ask(questions, ShowCalls(ticket=0))
    try:
        return set(codec.typed(list[tuple[int, int]], answer[1])) if answer else set()
    except codec.Malformed:
        return set()


def _read(blob: bytes) -> list[CallUnderWay]:
    try:
        return codec.typed(list[CallUnderWay], blob)
    except codec.Malformed:
        return []


def _seen(front: FrontProcess, one: CallUnderWay, queued: Waiting) -> InFlight:
    waits = one.state == "running" and (front.number, one.id) in queued
    return InFlight(
        server=one.server,
        method=one.method,
        name=one.name,
        endpoint=one.endpoint,
        age_s=one.age_s,
        state="queued" if waits else one.state,
        client=one.client,
        session=one.session,
        front=front.who,
        progress=one.progress,
    )
