"""Services of the features in a running gateway, and their processes.

Owns: what the gateway asks of each service, and what a service gets from it; of a process its fork,
control socket, beats and end, the delay of its next start after a failure, and the acceptor by
which fronts connect to it. Never: when a process is wanted, its settings and messages (its
feature).

An acceptor is there as long as the configuration has a use for the process, whether the process
runs or not: connections wait in it. The end of the process ends what its connections asked for;
later connections get the next process.
"""

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from metamcp_supervisor import backoff
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.control.console_sessions import ConsoleSessions
from metamcp_supervisor.fronts.front import Forker, FrontProcess
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.store.database import Database
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import Values
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat, WorkerExit
from metamcp_worker.ipc.spec import FrontSpec

STABLE_S = 10.0
"""Seconds that a process must run for its end not to delay the next start."""


class ServingFronts(Protocol):
    """Fronts that serve clients now."""

    def list_serving(self) -> Sequence[FrontProcess]: ...

    def reconfigure(self) -> None:
        """Give them their specification again."""
        ...

    def untold(self, front: FrontProcess, error: OSError) -> None:
        """Replace a front that could not be sent what it is to know."""
        ...


class ServiceContext(Struct, frozen=True, kw_only=True):
    """Values for a service. `config`: returns the configuration in force; `roles`: processes of all
    services, by name; `sessions`: of the console."""

    forker: Forker
    heartbeats: Heartbeats
    journal: Journal
    metrics: Metrics
    config: Callable[[], Config]
    version: str
    keys: ApiKeys
    sessions: ConsoleSessions
    fronts: ServingFronts
    database: Database
    roles: "dict[str, RoleProcess]"


class GatewayService:
    """Base of the services; each does what its feature needs of this."""

    async def begin(self, *, fresh: bool) -> None:
        """Begin, before any front does. `fresh`: no gateway before this one goes on in it."""

    def on_taken_over(self) -> None:
        """Go on with the processes of the program before this one."""

    def listen(self) -> None:
        """Listen at the addresses in the configuration. Raises listen.CannotBind."""

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with the settings of the feature in force; its
        processes take connections from now on."""
        return spec

    def welcome(self, front: FrontProcess) -> None:
        """Send a new front what it is to know. Raises OSError."""

    def on_front_gone(self, number: int) -> None:
        """The front with this number is gone."""

    def on_front_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        """A front sent a message, which is for one of the services; `blob` came with it."""

    def on_keys_changed(self) -> None:
        """API keys were created or have ended."""

    def count_waiting(self) -> dict[str, int]:
        """Return how many of its things wait for a person, by kind."""
        return {}

    def figures(self) -> dict[str, object]:
        """Return figures that a page shows and no event reports, by the kind of news
        (`console.console_orders`)."""
        return {}

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        """Yield the families of the feature for a page of metrics, and their rows."""
        return iter(())

    async def close(self) -> None:
        """End, because the gateway ends."""


class RoleProcess(GatewayService):
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
        context: ServiceContext,
        read: Callable[[bytes], Message],
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._forker = context.forker
        self._heartbeats = context.heartbeats
        self._journal = context.journal
        self._config = context.config
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

    def _count_growth(self, counts: Mapping[str, int], counter: dict[str, int]) -> None:
        """Add by how much the counters of the process have grown since its last report."""
        before, self._figures = self._figures, counts
        for name, n in counts.items():
            counter[name] = counter.get(name, 0) + n - before.get(name, 0)

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


class SocketProcess(RoleProcess):
    """Base of such processes. `off`: words of the journal when the configuration has no use for the
    process any more; `lasting`: whether a process keeps its first settings, so that other ones need
    another process. `order(config)`: its first message, None if the process is not wanted."""

    off: str
    lasting = False

    def __init__(
        self,
        context: ServiceContext,
        read: Callable[[bytes], Message],
        order: Callable[[Config], Message | None],
    ) -> None:
        super().__init__(context, read)
        self._order = order
        self._listener: socket.socket | None = None
        self._on: Message | None = None

    @property
    def is_wanted(self) -> bool:
        return self._on is not None

    def on_settings_changed(self, *, on: bool) -> None:
        """The settings have changed. `on`: whether the process is wanted."""

    def take_snapshot(self) -> tuple[int, ...]:
        """Return the descriptors of acceptor and connector, or of the listening socket, for the
        program after this one."""
        ends = self._listener, self.connector
        return tuple(end.fileno() for end in ends if end is not None)

    def adopt(self, fds: Sequence[int]) -> None:
        """Continue with what the previous program handed over, whose process ends after its runs,
        as it lost its control socket."""
        self._listener, self.connector, *_ = [
            *(socket.socket(fileno=fd) for fd in fds), None, None
        ]  # fmt: skip

    async def close(self) -> None:
        await super().close()
        self._deaf()

    def adapt(self) -> None:
        """Take connections or not, and send a process other settings, as the configuration says.
        Runs go on with the settings that they began with."""
        on = self._order(self._config())
        listens = self._listener is not None
        if self._closed or (on == self._on and listens == (on is not None)):
            return
        self._on = on
        self.on_settings_changed(on=on is not None)
        if on is None:
            if self._pid:
                self._journal.add(self.who, "stopped", self.off)
            self._dismiss()
            self._deaf()
        elif self._channel is None:
            self._listen()
        elif self.lasting:
            self._renew()
        else:
            try:
                self._tell(on)
            except OSError as error:
                self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
                self._renew()

    def _renew(self) -> None:
        """Let the next connection start another process, with the settings in force."""
        self._dismiss()
        self._watch()

    def _tell(self, on: Message, fds: tuple[int, ...] = ()) -> None:
        """Send settings, with the acceptor to a new process. Raises OSError."""
        assert self._channel is not None
        self._channel.send(messages.pack(on), list(fds))

    def _listen(self) -> None:
        if self._listener is None:
            try:
                self._listener, self.connector = packets.acceptor()
            except OSError as error:
                self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
                return
        self._watch()

    def _watch(self) -> None:
        """Start the process at the next connection."""
        if self._listener is not None and not self._pid and self._launch is None:
            self._loop.add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._start()

    def _deaf(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if self.connector is not None:
            self.connector.close()
        self._listener = self.connector = None

    def _send_first_messages(self) -> None:
        if self._on is None or self._listener is None:
            self._dismiss()
        elif self._channel is not None:
            self._tell(self._on, (os.dup(self._listener.fileno()),))

    def _on_failure(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._watch)
