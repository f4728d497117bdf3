"""The calls of one front that are not answered yet, for an operator who looks.

Owns: which of them are shown, in which order, and what a client calls itself. Never: arguments and
answers, what is secret, sending.
"""

import heapq
from collections.abc import Collection, Iterable

from msgspec import Struct

from metamcp_worker.front.links import Call
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.messages import CallUnderWay

CLIENT_CHARACTERS_MAX = 64
"""Of the name of a client; some put a sentence there."""


class _Info(Struct, frozen=True):
    name: str = ""


class _Said(Struct, frozen=True, rename="camel"):
    client_info: _Info = _Info()


def shown(
    calls: Iterable[tuple[Call, str]],
    now: float,
    *,
    servers: Collection[str] = (),
    slow_s: float = 0.0,
    most: int,
) -> tuple[list[CallUnderWay], int]:
    """The longest first, and how many more there are. `calls`: with their states; `servers`: only
    of these, unless it is empty; `slow_s`: only those that have taken so long."""
    found = [
        (call, state)
        for call, state in calls
        if now - call.started >= slow_s
        and (not servers or call.server in servers or process_names.base(call.server) in servers)
    ]
    longest = heapq.nsmallest(most, found, key=lambda one: (one[0].started, one[0].id))
    return [_shown(call, state, now) for call, state in longest], len(found) - len(longest)


def _shown(call: Call, state: str, now: float) -> CallUnderWay:
    origin = call.origin
    return CallUnderWay(
        id=call.id,
        server=process_names.base(call.server),
        method=call.label,
        name=origin.name if origin is not None else "",
        endpoint=origin.endpoint if origin is not None else "",
        age_s=max(0.0, now - call.started),
        state=state,
        client=_client(origin.said) if origin is not None else "",
        session=origin.who if origin is not None else "",
        progress=origin is not None and origin.progress,
    )


def _client(said: bytes) -> str:
    """What it calls itself, if it does."""
    try:
        return codec.typed(_Said, said or b"{}").client_info.name[:CLIENT_CHARACTERS_MAX]
    except codec.Malformed:
        return ""
