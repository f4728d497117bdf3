"""What the supervisor keeps of sessions, for a front that comes after this one.

Owns: telling it, at its own pace. Never: sessions, what is in a record.

Ten thousand clients may say hello within a second, and the control socket is for more than that: a
few records wait in it at a time, and of a session only the newest record waits at all.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Message, SessionKept, SessionRecord, SessionsOver

QUEUED_MAX = 64
"""Packets that may wait in the control socket, each record with a descriptor of its own; further
records wait here."""
PAUSE_S = 0.02
"""Until the next look whether the supervisor has read some."""
RETRY_S = 1.0
"""After a record could not be sent, mostly for lack of descriptors."""
OVER_MAX = 512
"""Ids in one message: with ids of up to a hundred bytes it still fits into a packet."""

log = logging.getLogger("metamcp.front")


class Keeping:
    """`send`: queues a message with its descriptors; `queued`: how many are queued there."""

    def __init__(
        self, send: Callable[[Message, tuple[int, ...]], None], queued: Callable[[], int]
    ) -> None:
        self._send = send
        self._queued = queued
        self._records: dict[str, SessionRecord] = {}
        self._ended: deque[str] = deque()
        self._due = asyncio.Event()

    def kept(self, record: SessionRecord) -> None:
        """This is what is to be known of a session now."""
        self._records[record.id] = record
        self._due.set()

    def over(self, ids: tuple[str, ...]) -> None:
        """These sessions have ended."""
        for session in ids:
            self._records.pop(session, None)
        self._ended.extend(ids)
        self._due.set()

    async def run(self) -> None:
        """Tell it all, until cancelled."""
        while True:
            await self._due.wait()
            if self._queued() >= QUEUED_MAX:
                await asyncio.sleep(PAUSE_S)
            elif not self._tell_next():
                await asyncio.sleep(RETRY_S)
            if not self._records and not self._ended:
                self._due.clear()

    def flush(self) -> None:
        """Tell the rest at once: there will be no later."""
        while (self._records or self._ended) and self._tell_next():
            pass

    def _tell_next(self) -> bool:
        if self._ended:
            ids = tuple(self._ended.popleft() for _ in range(min(OVER_MAX, len(self._ended))))
            self._send(SessionsOver(ids=ids), ())
            return True
        session, record = next(iter(self._records.items()))
        try:
            self._send(SessionKept(), (packets.blob(codec.dump(record)),))
        except (OSError, TooLarge) as error:
            log.warning("a session cannot be kept for a later front yet: %s", error)
            return False
        del self._records[session]
        return True
