"""A running copy of a server as the supervisor sees it: a worker process and its control socket.

Owns: the packets to and from one child worker, and what it reported about its server. Never:
decisions (`server`, `server_io`), the pipes between fronts and workers (`publish`).
"""

import asyncio
import signal
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.fronts.front import Questions
from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_supervisor.servers.server import WentDown
from metamcp_supervisor.servers.states import ExitClass
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.messages import (
    HTTP,
    AttachFront,
    CallsShown,
    CatalogueChanged,
    FromChild,
    Message,
    RunServer,
    ServerDown,
    ServerReady,
    Spawned,
    Stop,
    Tune,
    WorkerExit,
)
from metamcp_worker.ipc.packets import ChannelSnapshot
from metamcp_worker.ipc.spec import LogSpec, ServerSpec

HINT_S = 3600.0
"""Seconds until the journal reports the same counter of an instance again."""
#: Counters of a worker, and their explanation for operators.
_HINTS = {
    "unroutable_request": "it asked a client something, and it is not known which: its question was"
    ' refused; with sharing = "per-session" or concurrency = 1 there is only one that it can mean',
    "unattributed_log": "it told a client something, and it is not known which: nobody got it"
    '; with sharing = "per-session" or concurrency = 1 there is only one that it can mean',
    "broken_answer": "it broke off an answer: its caller got an error",
    "broken_reply": "it sent an answer that is not valid JSON-RPC: its caller got an error",
    "too_large": "it sent more than message_max in one answer: its caller got an error",
}


def _hint(counter: str) -> str:
    if not counter.startswith(HTTP):
        return _HINTS.get(counter, "")
    status = counter.removeprefix(HTTP)
    try:
        phrase = f" {HTTPStatus(int(status)).phrase}"
    except ValueError:
        phrase = ""
    return f"it answered a request with HTTP {status}{phrase}: its caller got an error"


class InstanceSnapshot(Struct, frozen=True, kw_only=True):
    pid: int
    line: ChannelSnapshot
    server_pid: int
    achieved: str = ""
    lacking: tuple[str, ...] = ()
    protocol: str
    start_s: float
    inflight: int
    probes_missed: int
    reported: bool
    told_of: tuple[str, ...]
    condemned: ExitClass | None
    shared: str = ""
    slot: int = 0


class InstanceListener(Protocol):
    """The listener that receives everything that instances send."""

    def on_message(self, instance: "Instance", message: FromChild, blob: bytes) -> None:
        """The worker sent this message. `blob`: content of the descriptor of `ServerReady` and
        `CatalogueChanged`, empty for other messages."""
        ...

    def unheard(self, instance: "Instance", sentence: str) -> None:
        """The worker sent something that cannot be used."""
        ...

    def fell_silent(self, instance: "Instance") -> None:
        """The control socket is closed: the worker is dead or about to be."""
        ...


class Instance:
    """`reported`: the end of the server has been reported. `told_of`: when the journal last
    reported a counter, in monotonic seconds. `condemned`: exit class of an instance that is killed
    because it does not answer. `silent`: the control socket is closed. `end`: how the worker ended.
    `questions`: about its calls. `achieved`, `lacking`: of its confinement, as in
    `messages.Spawned`. `shared`, `slot`: of a worker that it shares, as in `ForkedWorker`;
    `dropped`: that worker was asked to end it at once; `ended_alone`: the worker goes on without
    it."""

    def __init__(
        self, server: str, generation: int, worker: ForkedWorker, ear: InstanceListener
    ) -> None:
        self.server = server
        self.generation = generation
        self.pid = worker.pid
        self.shared, self.slot = worker.shared, worker.slot
        self.dropped = self.ended_alone = False
        self.server_pid = 0
        self.achieved = ""
        self.lacking: tuple[str, ...] = ()
        self.protocol = ""
        self.start_s = 0.0
        self.inflight = self.queued = 0
        self.probes_missed = 0
        self.reported = False
        self.told_of: dict[str, float] = {}
        self.condemned: ExitClass | None = None
        self.silent = False
        self.end: WorkerExit | None = None
        self.questions = Questions(self._send)
        self._ear = ear
        self._channel = packets.Channel(
            worker.sock, self._packet, lambda: ear.fell_silent(self), self._on_descriptors_lost
        )

    def take_snapshot(self) -> InstanceSnapshot:
        """Return the state of this instance that the program after this one needs."""
        return InstanceSnapshot(
            pid=self.pid,
            line=self._channel.take_snapshot(),
            server_pid=self.server_pid,
            achieved=self.achieved,
            lacking=self.lacking,
            protocol=self.protocol,
            start_s=self.start_s,
            inflight=self.inflight,
            probes_missed=self.probes_missed,
            reported=self.reported,
            told_of=tuple(self.told_of),
            condemned=self.condemned,
            shared=self.shared,
            slot=self.slot,
        )

    def go_on(self, snapshot: InstanceSnapshot) -> None:
        """Continue from the state that the previous program handed over."""
        self.server_pid, self.protocol, self.start_s = (
            snapshot.server_pid, snapshot.protocol, snapshot.start_s,
        )  # fmt: skip
        self.achieved, self.lacking = snapshot.achieved, snapshot.lacking
        self.inflight, self.probes_missed = snapshot.inflight, snapshot.probes_missed
        self.reported, self.condemned = snapshot.reported, snapshot.condemned
        self.told_of = dict.fromkeys(snapshot.told_of, asyncio.get_running_loop().time())
        for data, fds in snapshot.line.waiting:
            self._channel.send(data, fds)

    def run(self, spec: ServerSpec, version: str) -> None:
        """Order the worker to start its server. `version`: of the gateway. Raises OSError when this
        process has no free descriptor."""
        blob = packets.blob(codec.dump(spec))
        self._send(RunServer(generation=self.generation, version=version), [blob])

    def tune(self, log: LogSpec, processes_max: int = 0) -> None:
        """Set the log format and log levels of the worker, and the maximum number of processes of
        its server; 0: as before."""
        words = Tune(
            format=log.format, level=log.level, levels=log.levels, processes_max=processes_max
        )
        self._send(words)

    def attach(self, front: int, fd: int) -> None:
        """Give the worker `fd`, its end of the pipe to this front."""
        self._send(AttachFront(front=front), [fd])

    def stop(self, grace_s: float) -> None:
        self._send(Stop(grace_s=grace_s))

    def hints(self, counts: Iterable[str], now: float) -> list[tuple[str, str]]:
        """Return name and sentence of each counter that an operator should know about, unless the
        journal reported it within the last hour. `now`: monotonic seconds."""
        hints = [(name, hint) for name in counts if (hint := _hint(name))]
        return [(name.replace("_", " "), hint) for name, hint in hints if self.is_news(name, now)]

    def is_news(self, counter: str, now: float) -> bool:
        """Whether the journal did not report this counter within the last hour; it does now. `now`:
        monotonic seconds."""
        if now - self.told_of.get(counter, -HINT_S) < HINT_S:
            return False
        self.told_of[counter] = now
        return True

    def close(self) -> None:
        self._channel.close()

    def _send(self, message: Message, fds: list[int] | None = None) -> None:
        self._channel.send(messages.pack(message), fds or [])

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            message = messages.unpack_from_child(data)
        except codec.Malformed as error:
            packets.close_all(fds)
            self._ear.unheard(self, f"its worker sent a packet that cannot be read: {error}")
            return
        blob = b""
        if isinstance(message, ServerReady | CatalogueChanged | CallsShown) and fds:
            blob = packets.read_blob(fds.pop(0))
        packets.close_all(fds)
        if isinstance(message, CallsShown):
            self.questions.answer(message, blob)
            return
        match message:
            case Spawned():
                self.server_pid = message.pid
                self.achieved, self.lacking = message.achieved, message.lacking
            case ServerReady():
                self.protocol, self.start_s = message.protocol, message.start_s
            case _:
                pass
        self._ear.on_message(self, message, blob)

    def _on_descriptors_lost(self, data: bytes) -> None:
        # Only catalogues come with a descriptor; a start without one ends by its time limit.
        self._ear.unheard(self, "its catalogue was lost: the gateway has no free descriptors")


_NO_EXIT = frozenset({ExitClass.EXIT, ExitClass.CLEAN, ExitClass.SIGNAL})
"""Exit classes of a process. A remote server has no process here, and must be started again even
after it closed its connection cleanly."""


def to_went_down(message: ServerDown, *, remote: bool = False) -> WentDown:
    """Convert a worker's report about the end of its server. `remote`: the server is reached by
    URL."""
    try:
        reason = ExitClass(message.reason)
    except ValueError:
        reason = ExitClass.EXIT
    if remote and reason in _NO_EXIT:
        reason = ExitClass.CONNECT
    return WentDown(reason, message.message, retry_after_s=message.retry_after_s)


def untold(end: WorkerExit, condemned: ExitClass | None, *, shared: bool = False) -> WentDown:
    """Return how a server went down whose worker ended without a report. `shared`: other servers
    had the same worker, so it may not be the fault of this one."""
    if end.with_nursery:
        return WentDown(ExitClass.NURSERY, "its worker went down with the nursery", excused=True)
    worker = "the worker that it shares" if shared else "its worker"
    if condemned is not None:
        return WentDown(condemned, f"{worker} did not answer and {_how(end)}", shared)
    reason = ExitClass.SIGNAL if end.signal else ExitClass.EXIT
    return WentDown(reason, f"{worker} {_how(end)}", shared)


def with_excuse(down: WentDown) -> WentDown:
    return replace(down, excused=True)


def _how(end: WorkerExit) -> str:
    if not end.signal:
        return f"ended with status {end.code}"
    try:
        name = signal.Signals(end.signal).name
    except ValueError:
        name = "a signal"
    return f"was ended by {name} ({end.signal})"
