"""A process of the gateway that exists at most once: the embedder, the writer of the audit, the
process of the sandboxes.

Owns: its fork, control socket, beats and end, and the delay of its next start after a failure.
Never: when it is wanted, its messages (`embedder`, `audit_writer`, `code_process`).
"""

import asyncio
import random
import signal
import socket
from collections.abc import Callable, Mapping

from metamcp_supervisor import backoff
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat, WorkerExit

STABLE_S = 10.0
"""Seconds that a process must run for its end not to delay the next start."""


class RoleProcess:
    """Base of such processes. `who`: name of the process for `ps` and in the journal; `role`: word
    for all of its kind, `who` if it is empty; `loss`: effect of its end, for the journal;
    `end_s_max`: seconds that it has to end when it is asked to, then it is killed. `read`: decodes
    its messages. `connector`: by which fronts connect to it (`packets`), None if they do not."""

    who: str
    role = ""
    loss: str
    end_s_max = 3.0
    connector: socket.socket | None = None

    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        read: Callable[[bytes], Message],
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._forker = forker
        self._heartbeats = heartbeats
        self._journal = journal
        self._read = read
        self._dice = dice
        self._loop = asyncio.get_running_loop()
        self._launch: asyncio.Task[None] | None = None
        self._pid = 0
        self._since = 0.0
        self._channel: packets.Channel | None = None
        self._figures: Mapping[str, int] = {}
        self._leaving: dict[int, asyncio.TimerHandle] = {}
        self._failures = 0
        self._again = 0.0
        """Time of the loop's clock before which the process is not started again."""
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id, 0 while the process does not run."""
        return self._pid

    @property
    def is_wanted(self) -> bool:
        """Whether the configuration has a use for this process."""
        raise NotImplementedError

    def status(self) -> RoleStatus:
        """Return the state of the process, without its memory."""
        waits = self._again > self._loop.time()
        idle = "error" if waits else "starting" if self._launch is not None else "idle"
        return RoleStatus(role=self.who, state="ready" if self._pid else idle, pid=self._pid)

    def on_exit(self, end: WorkerExit) -> bool:
        """A worker ended; return whether it was this process."""
        if (timer := self._leaving.pop(end.pid, None)) is not None:
            timer.cancel()
            return True
        if not self._pid or end.pid != self._pid:
            return False
        self._journal.add(self.who, "error", f"it ended {self._how(end)}; {self.loss}")
        self._part()
        self._count_failure()
        return True

    async def close(self) -> None:
        """Close the control socket; the process ends then, or with the nursery at the latest."""
        self._closed = True
        if self._launch is not None:
            self._launch.cancel()
            await asyncio.wait([self._launch])
        self._part()
        for timer in self._leaving.values():
            timer.cancel()

    # For the processes themselves

    def _send_first_messages(self) -> None:
        """Send the first messages to a new process. Raises OSError."""
        raise NotImplementedError

    def _on_message(self, message: Message, fds: list[int]) -> None:
        """Take a message of the process that is not a beat."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Adapt the process to the configuration in force, with every beat, unless something else
        reports a reload."""

    def _on_failure(self, delay_s: float) -> None:
        """The process failed, and starts again after this delay at the earliest."""
        raise NotImplementedError

    def _how(self, end: WorkerExit) -> str:
        """Return words for how the process ended."""
        return f"with signal {end.signal}" if end.signal else f"with status {end.code}"

    def _on_lost(self, pause_s: float) -> None:
        """The process was dismissed, and what it was asked is not answered."""

    def _delay_s(self) -> float:
        return backoff.delay(self._failures, self._dice())

    def _start(self) -> None:
        if self._launch is None and not self._pid and not self._closed:
            self._launch = self._loop.create_task(self._fork_process(), name=self.who)

    def _dismiss(self) -> None:
        """Let the process end by closing its control socket; kill it after `end_s_max`."""
        if pid := self._pid:
            self._part()
            kill = self._forker.signal
            self._leaving[pid] = self._loop.call_later(self.end_s_max, kill, pid, signal.SIGKILL)
        self._on_lost(0.0)

    def _part(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._pid:
            self._heartbeats.forget(self._pid)
        self._channel, self._pid = None, 0

    def _count_failure(self) -> None:
        """Count a failed process or fork; delay the next start unless the process was stable."""
        stable = self._since and self._loop.time() - self._since > STABLE_S
        self._failures = 0 if stable else self._failures + 1
        self._since = 0.0
        delay_s = self._delay_s() if self._failures else 0.0
        self._again = self._loop.time() + delay_s
        self._on_failure(delay_s)

    def _count_growth(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return by how much the counters of the process have grown since its last report."""
        before, self._figures = self._figures, counts
        return {name: n - before.get(name, 0) for name, n in counts.items()}

    async def _fork_process(self) -> None:
        try:
            worker = await self._forker.fork(self.role or self.who, self.who)
        except NotForked as error:
            self._journal.add(self.who, "error", str(error))
            worker = None
        finally:
            self._launch = None
        if worker is None:
            self._count_failure()
        else:
            self._begin(worker)

    def _begin(self, worker: ForkedWorker) -> None:
        self._pid, self._figures, self._since = worker.pid, {}, self._loop.time()
        self._channel = packets.Channel(worker.sock, self._packet, self._silent)
        self._heartbeats.watch(worker.pid, lambda verdict: None)
        self._journal.add(self.who, "ready", f"process {worker.pid}")
        try:
            self._send_first_messages()
        except OSError as error:
            self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
            self._dismiss()
            self._count_failure()

    def _silent(self) -> None:
        """Kill the process, because its control socket is closed: it is ending or useless."""
        if self._pid:
            self._forker.signal(self._pid, signal.SIGKILL)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            message = self._read(data)
            if isinstance(message, Heartbeat):
                self._heartbeats.beat(self._pid, self.role or self.who, message.lag_ms)
                self._settle()
            else:
                self._on_message(message, fds)
        except codec.Malformed as error:
            self._journal.add(self.who, "bug", f"it sent something that cannot be read: {error}")
        finally:
            packets.close_all(fds)
