"""A Routing on the loop, with the worker of its one server, `git`, played by the test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from metamcp_worker.front_calls.call_router import Routing
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.messages import ServerState

from .callers import Caller
from .peers import WAIT_S, Peer


class Front:
    """A Routing and what it tells."""

    def __init__(self, hold_s: float = WAIT_S, timeout_s: float = WAIT_S) -> None:
        self.ended: list[tuple[int, CallAnswer | None]] = []
        self.late: asyncio.Queue[str] = asyncio.Queue()
        self.wanted: list[str] = []
        self.notices: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()
        self.routing = Routing(
            self._end, self.late.put_nowait, self.wanted.append,
            lambda server, method, params: self.notices.put_nowait((server, method, params)),
        )  # fmt: skip
        self.routing.configure({"git": timeout_s}, hold_s)
        self._peers: list[Peer] = []

    async def attach(self, generation: int = 1) -> Peer:
        peer = Peer()
        self._peers.append(peer)
        await self.routing.attach("git", generation, peer.fd)
        return peer

    def call(
        self, params: bytes = b"{}", caller: Caller | None = None, *, repeatable: bool = False
    ) -> Call:
        frame = CallFrame(self.routing.new_id(), "tools/call", params)
        call = Call(
            "git", frame, self.routing.cancel, self.routing.loop.time(), caller=caller,
        )  # fmt: skip
        call.repeatable = repeatable
        self.routing.start(call)
        return call

    def state(
        self,
        state: str,
        generation: int = 0,
        retry_after_ms: int = -1,
        hold_ms: int = -1,
        call_after_ms: int = -1,
    ) -> None:
        self.routing.learn(
            ServerState(
                server="git", state=state, listed=True, generation=generation,
                retry_after_ms=retry_after_ms, hold_ms=hold_ms, call_after_ms=call_after_ms,
                reason=f"r-{state}", message=f"It is {state}.",
            )
        )  # fmt: skip

    async def close(self) -> None:
        await self.routing.close()
        for peer in self._peers:
            peer.close()

    def _end(self, call: Call, answer: CallAnswer | None) -> None:
        self.ended.append((call.id, answer))
        call.answer.end(answer)


@asynccontextmanager
async def opened_front(
    *, hold_s: float = WAIT_S, timeout_s: float = WAIT_S
) -> AsyncGenerator[Front]:
    front = Front(hold_s, timeout_s)
    try:
        yield front
    finally:
        await front.close()


@asynccontextmanager
async def attached_front(**how: float) -> AsyncGenerator[tuple[Front, Peer]]:
    """A front, and the worker of its server."""
    async with opened_front(**how) as front:
        yield front, await front.attach()
