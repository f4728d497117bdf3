"""What the supervisor keeps of sessions, for a front that comes after this one.

Owns: telling it, at its own pace. Never: sessions, what is in a record.

Ten thousand clients may say hello within a second, and the control socket is for more than that: a
few records wait in it at a time, and of a session only the newest record waits at all.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Collection

from msgspec import Raw, Struct

from metamcp_worker.front.call_router import MARGIN_S, Routing
from metamcp_worker.front.server_links import Call, Wire
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import PipeFull, TooLarge
from metamcp_worker.ipc.frames import Cancel, Claim, Keep, Release
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


CLAIM_S_MAX = 8.0
"""For workers to say whether they have a call. They say it at once; one that hangs has ended by
then, and has it not."""
WORD_BYTES = 16


class Note(Struct, frozen=True, gc=False):
    """What the next front has to know of a call. `id`: of the client's request, `token`: under
    which it wants to hear of progress, or `null`, both raw; `label`: of the call."""

    id: Raw
    token: Raw
    label: str


def keep(call: Call, session_id: str, stream: bytes, raw_id: bytes, token: bytes) -> None:
    """From here on this call outlives its front. `stream`: the name of its tape; `token`: raw or
    empty."""
    note = Note(Raw(raw_id), Raw(token or b"null"), call.label)
    call.kept = Keep(call.id, _word(session_id.encode()), _word(stream), codec.dump(note))
    if call.wire is not None:
        call.wire.keep(call.kept)


class Claims:
    """Asks the workers behind these pipes."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def find(
        self,
        servers: Collection[str],
        session_id: str,
        stream: bytes,
        peer: int,
        found: Callable[[str, int, Note], Call],
    ) -> Call | None:
        """The call of this session that was answered on this stream; None if no worker of these
        servers has it. `found(server, number, note)` makes the call, at once: what came for it
        meanwhile is right behind."""
        owner, name = _word(session_id.encode()), _word(stream)
        outcome: asyncio.Future[Call | None] = self._routing.loop.create_future()
        asked: set[int] = set()

        def heard(wire: Wire, number: int, note: bytes) -> None:
            asked.discard(number)
            if note and not outcome.done():
                outcome.set_result(self._take(wire, found(wire.link.server, number, _note(note))))
            elif note:
                _cancel(wire, number)
            elif not asked and not outcome.done():
                outcome.set_result(None)

        for wire in self._of(servers):
            number = self._routing.new_id()
            told = _telling(heard, wire, number)
            if wire.claim(Claim(number, owner, name, peer), told):
                asked.add(number)
        if not asked:
            return None
        try:
            async with asyncio.timeout(CLAIM_S_MAX):
                return await outcome
        except TimeoutError:
            return None

    def release(self, servers: Collection[str], session_id: str) -> None:
        """This session is over, and so is what fronts that are gone have left of it."""
        for wire in self._of(servers):
            _send(wire, Release(_word(session_id.encode())))

    def leave(self) -> None:
        """This front ends in order: it answers every call itself."""
        for wire in list(self._routing.wires):
            _send(wire, Release())

    def _of(self, servers: Collection[str]) -> list[Wire]:
        """The pipes to these servers; an earlier generation may have what a later one has not."""
        return [wire for wire in self._routing.wires if wire.link.name in servers]

    def _take(self, wire: Wire, call: Call) -> Call:
        """Wait for the answer here. The worker knows best how much time is left."""
        call.frame, call.wire = None, wire
        if wire.link.apart:
            call.legacy = wire.legacy
        call.deadline = self._routing.loop.time() + wire.link.timeout_s + MARGIN_S
        wire.waiting[call.id] = call
        self._routing.watch()
        return call


def _telling(
    heard: Callable[[Wire, int, bytes], None], wire: Wire, number: int
) -> Callable[[bytes], None]:
    return lambda note: heard(wire, number, note)


def _note(note: bytes) -> Note:
    return codec.typed(Note, note)


def _cancel(wire: Wire, number: int) -> None:
    """It was found too late: whoever asked was told that nobody has it."""
    _send(wire, Cancel(number, b"the client was told that it is lost"))


def _send(wire: Wire, frame: Cancel | Release) -> None:
    if wire.pipe is not None:
        with contextlib.suppress(PipeFull):  # the worker ends by itself what nobody asks for
            wire.pipe.send(frame)


def _word(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=WORD_BYTES).digest()
