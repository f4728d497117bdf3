"""The process that makes vectors for all fronts, kept alive while fronts use it.

Owns: starting and ending the process, which front asked for which texts, and the answer to a front
without a process. Never: making vectors (`metamcp_worker.embedder`), using them (fronts),
settings (`config.sections`).

The process is forked for the first texts and ends when no front asks for a while, so a gateway
without such searches does not have it. Failures of the process cause no delay: fronts never wait
for vectors.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import Callable, Mapping

from msgspec import structs

from metamcp_supervisor import backoff
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked, WorkerExit
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.embedding import Embed, Embedded, EmbedFigures, EmbedOn, Vectors
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Beat, Tune
from metamcp_worker.ipc.spec import EmbeddingsSpec, LogSpec

WHO = "embedder"
"""Name of the process for `ps` and in the journal."""
ASKS_MAX = 1024
"""Maximum number of requests without an answer yet; a further request is answered without
vectors."""
IDLE_S = 600.0
"""Seconds without a request after which the process ends, to free the memory of a loaded model."""
END_S_MAX = 3.0
"""Maximum seconds for the process to end; then it is killed."""
PAUSE_S = 5.0
"""Seconds that a front must wait before its next request, where a better number is not known."""

_read = codec.reader(Embedded | EmbedFigures | Beat)


class Embedder:
    """`spec`: returns the current settings, None where vectors are not needed. `count`: called with
    counters of texts by outcome, as increments."""

    def __init__(
        self,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        spec: Callable[[], EmbeddingsSpec | None],
        count: Callable[[Mapping[str, int]], None],
        *,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._forker = forker
        self._hearts = hearts
        self._journal = journal
        self._spec = spec
        self._count = count
        self._dice = dice
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._asked: dict[int, tuple[FrontProcess, int]] = {}
        """Front and its own ticket, by the ticket given here."""
        self._waiting: list[tuple[Embed, bytes]] = []
        """Requests to send as soon as the process has started."""
        self._launch: asyncio.Task[None] | None = None
        self._told: EmbeddingsSpec | None = None
        self._pid = 0
        self._channel: packets.Channel | None = None
        self._figures: Mapping[str, int] = {}
        self._leaving: dict[int, asyncio.TimerHandle] = {}
        self._idle: asyncio.TimerHandle | None = None
        self._failures = 0
        self._again = 0.0
        """Time of the loop's clock before which the process is not started again."""

    @property
    def pid(self) -> int:
        """Process id, 0 while the process does not run."""
        return self._pid

    def asked(self, front: FrontProcess, message: Embed, blob: bytes) -> None:
        """Pass texts of a front on to the process. Every request is answered, sooner or later,
        unless another program takes over meanwhile (upgrade)."""
        spec = self._spec()
        pause_s = self._again - self._loop.time()
        if spec is None or not blob or len(self._asked) >= ASKS_MAX or pause_s > 0:
            self._answer(front, message.ticket, Vectors(pause_s=max(PAUSE_S, pause_s)))
            return
        self._settle(spec)
        ticket = next(self._tickets)
        self._asked[ticket] = front, message.ticket
        self._waiting.append((structs.replace(message, ticket=ticket), blob))
        if self._channel is not None:
            self._flush()
        elif self._launch is None:
            self._launch = self._loop.create_task(self._start(spec), name=WHO)
        self._keep()

    def exited(self, end: WorkerExit) -> bool:
        """A worker ended; return whether it was this process."""
        if (timer := self._leaving.pop(end.pid, None)) is not None:
            timer.cancel()
            return True
        if end.pid != self._pid or not self._pid:
            return False
        how = f"signal {end.signal}" if end.signal else f"status {end.code}"
        self._journal.add(WHO, "error", f"it ended with {how}; searches go by words alone")
        self._part()
        self._failed()
        return True

    async def close(self) -> None:
        """Close the control socket; the process ends then, or with the nursery at the latest."""
        if self._launch is not None:
            self._launch.cancel()
            await asyncio.wait([self._launch])
        self._part()
        for timer in self._leaving.values():
            timer.cancel()
        if self._idle is not None:
            self._idle.cancel()

    # Starting and ending the process

    def _settle(self, spec: EmbeddingsSpec | None) -> None:
        """Adapt the process to `spec`. A different source or file needs a new process. None ends
        the process, which must not continue with a key that was removed."""
        told = self._told
        if told is None or self._channel is None or told == spec:
            return
        if spec is None:
            self._journal.add(WHO, "stopped", "nobody needs vectors any more")
            self._dismiss()
        elif _silenced(spec) != _silenced(told):
            self._dismiss()
        else:
            self._told = spec
            log = spec.log
            tune = Tune(format=log.format, level=log.level, levels=log.levels)
            self._channel.send(messages.pack(tune))

    async def _start(self, spec: EmbeddingsSpec) -> None:
        try:
            worker = await self._forker.fork(WHO, WHO)
        except NotForked as error:
            self._journal.add(WHO, "error", str(error))
            self._failed()
        else:
            self._begin(worker, spec)
        finally:
            self._launch = None

    def _begin(self, worker: ForkedWorker, spec: EmbeddingsSpec) -> None:
        self._pid, self._told, self._figures = worker.pid, spec, {}
        self._channel = packets.Channel(worker.sock, self._packet, self._silent)
        self._hearts.watch(worker.pid, lambda verdict: None)
        self._journal.add(WHO, "ready", f"process {worker.pid}")
        try:
            self._channel.send(messages.pack(EmbedOn()), [packets.blob(codec.dump(spec))])
        except OSError as error:
            self._journal.add(WHO, "error", f"no free descriptor: {error.strerror}")
            self._dismiss()
            self._failed()
        else:
            self._flush()

    def _flush(self) -> None:
        """Send all requests that wait."""
        waiting, self._waiting = self._waiting, []
        for message, blob in waiting:
            try:
                fd = packets.blob(blob)
            except OSError:
                self._told_nothing(message.ticket, PAUSE_S)
                continue
            if self._channel is not None:
                self._channel.send(messages.pack(message), [fd])

    def _keep(self) -> None:
        """Restart the idle timer, after a request."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._loop.call_later(IDLE_S, self._rest)

    def _rest(self) -> None:
        self._idle = None
        if self._channel is not None:
            self._journal.add(WHO, "stopped", "nobody asked it for a while")
            self._dismiss()

    def _silent(self) -> None:
        """Kill the process, because its control socket is closed: it is ending or useless."""
        if self._pid:
            self._forker.signal(self._pid, signal.SIGKILL)

    def _dismiss(self) -> None:
        """Let the process end by closing its control socket; kill it after END_S_MAX."""
        pid = self._pid
        self._part()
        kill = self._forker.signal
        self._leaving[pid] = self._loop.call_later(END_S_MAX, kill, pid, signal.SIGKILL)
        self._lost(0.0)

    def _part(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._pid:
            self._hearts.forget(self._pid)
        self._channel, self._pid = None, 0

    def _failed(self) -> None:
        """Count a failed process; delay its next start, and answer requests without vectors."""
        self._failures += 1
        delay_s = backoff.delay(self._failures, self._dice())
        self._again = self._loop.time() + delay_s
        self._waiting.clear()
        self._lost(delay_s)

    def _lost(self, pause_s: float) -> None:
        """Answer requests that the process got without vectors. Requests that wait go to the next
        process."""
        waiting = {message.ticket for message, _ in self._waiting}
        for ticket in self._asked.keys() - waiting:
            self._told_nothing(ticket, pause_s)

    # Messages of the process

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            match _read(data):
                case Embedded(ticket=ticket):
                    self._failures = 0
                    front, its = self._asked.pop(ticket, (None, 0))
                    if front is not None and fds:
                        front.send(Embedded(ticket=its), [fds.pop(0)])
                case EmbedFigures(counts=counts):
                    before, self._figures = self._figures, counts
                    self._count({name: n - before.get(name, 0) for name, n in counts.items()})
                case Beat(lag_ms=lag_ms):
                    self._hearts.beat(self._pid, WHO, lag_ms)
                    self._settle(self._spec())
                case _:
                    pass
        except codec.Malformed as error:
            self._journal.add(WHO, "bug", f"it sent something that cannot be read: {error}")
        finally:
            packets.close_all(fds)

    def _told_nothing(self, ticket: int, pause_s: float) -> None:
        front, its = self._asked.pop(ticket)
        self._answer(front, its, Vectors(pause_s=pause_s))

    def _answer(self, front: FrontProcess, ticket: int, found: Vectors) -> None:
        """Send vectors to a front; one that cannot be reached asks again."""
        try:
            front.send(Embedded(ticket=ticket), [packets.blob(codec.dump(found))])
        except (OSError, TooLarge):
            return


def _silenced(spec: EmbeddingsSpec) -> EmbeddingsSpec:
    """Return `spec` without log format and log levels, which can be changed while the process
    runs."""
    return structs.replace(spec, log=LogSpec(secrets=spec.log.secrets))
