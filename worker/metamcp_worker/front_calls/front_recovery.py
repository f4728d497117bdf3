"""Sessions and calls that outlive their front: another front goes on with them.

Owns: sending records of sessions to the supervisor, at its own pace (`SessionRecordSender`);
letting workers keep calls (`keep`), and finding or dropping calls of fronts that are gone
(`CallRecovery`). Never: the sessions themselves, the contents of a record. Ten thousand clients may
open a session within a second, and the control socket has other messages, too: so it has few
records at a time, and only the newest record of a session waits."""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Collection

from msgspec import Raw, Struct

from metamcp_worker.front_calls.call_router import MARGIN_S, Routing
from metamcp_worker.front_calls.server_links import Call, Wire
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import PipeFull, TooLarge
from metamcp_worker.ipc.frames import Cancel, KeepCall, RecoverCall, ReleaseCalls
from metamcp_worker.ipc.messages import Message, SessionKept, SessionRecord, SessionsOver

QUEUED_MAX = 64
"""Maximum packets in the control socket, each record with its own descriptor; further records wait
here."""
PAUSE_S = 0.02
"""Seconds to the next check whether the supervisor has read some packets."""
RETRY_S = 1.0
"""Seconds to wait after a record could not be sent, mostly for lack of descriptors."""
OVER_MAX = 512
"""Maximum ids in one message: with ids of a hundred bytes it still fits into a packet."""

log = logging.getLogger("metamcp.front")


class SessionRecordSender:
    """Sends records of sessions to the supervisor. `send`: queues a message with its descriptors;
    `queued`: number of messages in that queue."""

    def __init__(
        self, send: Callable[[Message, tuple[int, ...]], None], queued: Callable[[], int]
    ) -> None:
        self._send = send
        self._queued = queued
        self._records: dict[str, SessionRecord] = {}
        self._ended: deque[str] = deque()
        self._due = asyncio.Event()

    def send_record(self, record: SessionRecord) -> None:
        """Send this record of a session, in place of an earlier record that still waits. If none
        waits it is sent at once, which is before the client has the answer: a front that dies then
        has lost nothing that a client knows."""
        waiting = self._records or self._ended or self._queued() >= QUEUED_MAX
        self._records[record.id] = record
        if waiting or not self._tell_next():
            self._due.set()

    def on_sessions_end(self, ids: tuple[str, ...]) -> None:
        """Tell the supervisor that these sessions have ended."""
        for session in ids:
            self._records.pop(session, None)
        self._ended.extend(ids)
        self._due.set()

    async def run(self) -> None:
        """Send whatever waits, until cancelled."""
        while True:
            await self._due.wait()
            if self._queued() >= QUEUED_MAX:
                await asyncio.sleep(PAUSE_S)
            elif not self._tell_next():
                await asyncio.sleep(RETRY_S)
            if not self._records and not self._ended:
                self._due.clear()

    def flush(self) -> None:
        """Send the rest at once, because the front ends."""
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
"""Seconds for workers to say whether they have a call. Workers answer at once; a worker that hangs
has been ended by then, and its calls with it."""
WORD_BYTES = 16
"""Bytes of the hashes that stand for sessions and streams in frames."""


class CallRecoveryData(Struct, frozen=True, gc=False):
    """Data that the next front needs to go on with a call. `id`: of the client's request; `token`:
    its progress token, or `null`; both raw. `label`: of the call."""

    id: Raw
    token: Raw
    label: str


def keep(call: Call, session_id: str, stream: bytes, raw_id: bytes, token: bytes) -> None:
    """Let this call outlive its front from now on. `stream`: name of its log; `token`: raw or
    empty."""
    note = CallRecoveryData(Raw(raw_id), Raw(token or b"null"), call.label)
    call.kept = KeepCall(call.id, _word(session_id.encode()), _word(stream), codec.dump(note))
    if call.wire is not None:
        call.wire.keep(call.kept)


class CallRecovery:
    """Asks workers for calls that other fronts began, through the pipes of this front."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def find(
        self,
        servers: Collection[str],
        session_id: str,
        stream: bytes,
        peer: int,
        make_call: Callable[[str, int, CallRecoveryData], Call],
    ) -> Call | None:
        """Find the call of this session that was to be answered on this stream; None if no worker
        of these servers has it. `make_call(server, number, note)` is called at once,
        because frames that came for the call follow immediately."""
        owner, name = _word(session_id.encode()), _word(stream)
        outcome: asyncio.Future[Call | None] = self._routing.loop.create_future()
        open_claims: set[int] = set()

        def on_claim_note(wire: Wire, number: int, note: bytes) -> None:
            open_claims.discard(number)
            if note and not outcome.done():
                outcome.set_result(
                    self._take(wire, make_call(wire.link.server, number, _note(note)))
                )
            elif note:
                _cancel(wire, number)
            elif not open_claims and not outcome.done():
                outcome.set_result(None)

        for wire in self._of(servers):
            number = self._routing.new_id()
            on_note = _make_note_handler(on_claim_note, wire, number)
            if wire.claim(RecoverCall(number, owner, name, peer), on_note):
                open_claims.add(number)
        if not open_claims:
            return None
        try:
            async with asyncio.timeout(CLAIM_S_MAX):
                return await outcome
        except TimeoutError:
            return None

    def release(self, servers: Collection[str], session_id: str) -> None:
        """Drop the calls that fronts which are gone have left of a session that is over."""
        for wire in self._of(servers):
            _send(wire, ReleaseCalls(_word(session_id.encode())))

    def leave(self) -> None:
        """Tell all workers that this front ends in order and answers every call itself."""
        for wire in list(self._routing.wires):
            _send(wire, ReleaseCalls())

    def _of(self, servers: Collection[str]) -> list[Wire]:
        """Return the pipes to these servers, with earlier generations, which may have the call."""
        return [wire for wire in self._routing.wires if wire.link.name in servers]

    def _take(self, wire: Wire, call: Call) -> Call:
        """Wait here for the answer of the call, with a full timeout: the worker knows how much time
        is really left."""
        call.frame, call.wire = None, wire
        if wire.link.apart:
            call.legacy = wire.legacy
        call.deadline = self._routing.loop.time() + wire.link.timeout_s + MARGIN_S
        wire.waiting[call.id] = call
        self._routing.watch()
        return call


def _make_note_handler(
    heard: Callable[[Wire, int, bytes], None], wire: Wire, number: int
) -> Callable[[bytes], None]:
    return lambda note: heard(wire, number, note)


def _note(note: bytes) -> CallRecoveryData:
    return codec.decode_as(CallRecoveryData, note)


def _cancel(wire: Wire, number: int) -> None:
    """Cancel a call that was found too late: its client has learned that the call is lost."""
    _send(wire, Cancel(number, b"the client was told that it is lost"))


def _send(wire: Wire, frame: Cancel | ReleaseCalls) -> None:
    if wire.pipe is not None:
        with contextlib.suppress(PipeFull):  # the worker ends unclaimed calls by itself
            wire.pipe.send(frame)


def _word(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=WORD_BYTES).digest()
