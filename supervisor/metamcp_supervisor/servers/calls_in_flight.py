"""The calls that are under way, as fronts and workers tell when they are asked.

Owns: whom to ask, how long an answer is waited for, and putting the answers together. Never: which
calls a front has (it says), what is shown of one (`metamcp_worker.ipc.figures`), printing.

A front knows whose call it is, the worker knows whether it was sent to the server yet: both are
asked at once, and a call that waits for its turn is `queued`.
"""

import asyncio
from collections.abc import Collection, Sequence

from metamcp_supervisor.fronts.front import Front, Questions, Shown
from metamcp_supervisor.servers.entry import Entry
from metamcp_supervisor.verbs import Calls, InFlight
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import CallUnderWay, ShowCalls

CALLS_SHOWN_MAX = 500
"""The longest ones: more than anybody reads, and far less than a line of the control socket has."""
ANSWER_S_MAX = 2.0
"""For every process to answer, all at once: milliseconds, unless it is stopped or hangs."""

Waiting = set[tuple[int, int]]
"""Front and number of calls."""


async def calls(
    fronts: Sequence[Front], entries: Collection[Entry], names: Sequence[str], slow_s: float
) -> Calls:
    """Those of the servers with these `names`, empty for all, that have taken so long."""
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
    return Calls(calls=tuple(seen[:CALLS_SHOWN_MAX]), more=more, silent=tuple(silent))


async def _ask(questions: Questions, wanted: ShowCalls) -> Shown | None:
    return await questions.ask(wanted, ANSWER_S_MAX)


async def _waiting(questions: Questions) -> Waiting:
    """Of a worker; none, if it does not say."""
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


def _seen(front: Front, one: CallUnderWay, queued: Waiting) -> InFlight:
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
