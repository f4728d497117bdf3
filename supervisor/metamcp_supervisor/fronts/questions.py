"""Which calls are under way: the question to one process, and its answer.

Owns: the tickets that join both. Never: how long an answer may take, what it means (`looking`).
"""

import asyncio
import itertools
from collections.abc import Callable

from msgspec import structs

from metamcp_worker.ipc.messages import CallsShown, Message, ShowCalls

Shown = tuple[CallsShown, bytes]
"""The answer, and the blob that came with it."""


class Questions:
    """To one front or worker. `send`: to it."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._open: dict[int, asyncio.Future[Shown]] = {}

    async def ask(self, wanted: ShowCalls, within_s: float) -> Shown | None:
        """None: it does not say. The ticket is given here."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Shown] = asyncio.get_running_loop().create_future()
        self._open[ticket] = answer
        self._send(structs.replace(wanted, ticket=ticket))
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._open[ticket]

    def answer(self, message: CallsShown, blob: bytes) -> None:
        found = self._open.get(message.ticket)
        if found is not None and not found.done():
            found.set_result((message, blob))
