"""The nursery as the supervisor sees it: every process of the gateway is forked through it.

Owns: starting and restarting the nursery, the orders to it, the workers that it forked. Never: the
process and its socket (`nursery_process`).

When the nursery dies, its workers die with it (parent death signal) and their descendants become
children of the supervisor, which is a subreaper. The supervisor kills them, reports the end of
every worker, and starts a new nursery. The nursery does the same sweep when a worker dies.
"""

import asyncio
import contextlib
import itertools
import signal as signals
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec import Struct, structs

from metamcp_supervisor.processes import nursery_process, nursery_start
from metamcp_supervisor.processes.heartbeats import Stacks
from metamcp_supervisor.processes.nursery_process import (
    ChildProcess,
    ForkedWorker,
    InheritedChild,
    NotForked,
    NurseryDown,
    NurseryGone,
    NurseryRun,
)
from metamcp_supervisor.processes.nursery_start import DEFAULT_COMMAND
from metamcp_supervisor.processes.workers import WorkerTable
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import (
    Fork,
    Forked,
    ForkFailed,
    Halted,
    NurseryReady,
    Resumed,
    Signal,
    Tune,
    WorkerExit,
)
from metamcp_worker.ipc.packets import Channel, ChannelSnapshot
from metamcp_worker.runtime import logs, orphans


def tune(channel: Channel) -> None:
    """Set the log format and log levels of a nursery to those of this process. Levels that do not
    fit into a packet are left out: a nursery hardly logs."""
    log = logs.current()
    with contextlib.suppress(TooLarge):
        channel.send(messages.pack(Tune(format=log.format, level=log.level, levels=log.levels)))


__all__ = (
    "DEFAULT_COMMAND",
    "ForkedWorker",
    "NotForked",
    "Nursery",
    "NurseryDown",
    "NurseryGone",
)  # fmt: skip

BORN_S_MAX = 30.0
"""Maximum seconds from the start to `NurseryReady`: the imports take half a second, but 20 seconds
on an overloaded machine with cold disks."""
FORK_S_MAX = 10.0
"""Maximum seconds for a fork, which takes 2 ms. A nursery that needs longer is stopped or stuck,
and is replaced."""
CLOSE_S_MAX = orphans.SWEEP_S_MAX + 1.0
"""Maximum seconds for the nursery's own sweep when it is closed; then it is killed."""
DEATHS_MAX = 5
DEATHS_WINDOW_S = 60.0
"""Seconds in which the nursery may die DEATHS_MAX times; after one more death the supervisor gives
up."""
RETRY_S = 0.5
"""Seconds to wait after a nursery that did not even start, so that a full process table may
empty."""
STACKS_CHARS_MAX = 8000
"""Maximum characters of the stacks of a worker in the journal: some dozen calls of each thread."""


class NurserySnapshot(Struct, frozen=True, kw_only=True):
    """The nursery, for the program after this one. `stacks`: process, file and name of each
    worker."""

    pid: int
    line: ChannelSnapshot
    workers: tuple[int, ...]
    stacks: tuple[tuple[int, int, str], ...]


class Nursery:
    """Fork workers and report their ends, over as many nursery processes as needed.

    `on_exit`: called once for every worker that `fork` returned, after the return.
    `on_halt(pid, yes)`: a worker was stopped, or resumed. `on_lost(reason)`: the nursery cannot be
    kept alive, and no worker is left. `on_event`: a sentence for the journal. `keep`: pids of
    children of this process that a sweep must spare, because other code started them and waits for
    them. `retired`: workers are not forked here any more, so the nursery is not replaced when it
    dies.
    """

    def __init__(
        self,
        *,
        on_exit: Callable[[WorkerExit], None],
        on_halt: Callable[[int, bool], None],
        on_lost: Callable[[str], None],
        on_event: Callable[[str], None],
        keep: Callable[[], Collection[int]] = tuple[int, ...],
        command: Sequence[str] = DEFAULT_COMMAND,
    ) -> None:
        self._workers = WorkerTable(on_exit, on_halt)
        self.stacks = Stacks(self.signal)
        self._on_lost = on_lost
        self._on_event = on_event
        self._spared = keep
        self._command = tuple(command)
        self.retired = False
        self._life: NurseryRun | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._suspicion: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # set: it runs, or never will again, and `_over` says why
        self._over = ""
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX + 1)
        self._tickets = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Forked | ForkFailed | None]] = {}

    @property
    def pid(self) -> int:
        """Process id of the nursery; 0 while there is none."""
        return 0 if self._life is None else self._life.process.pid

    async def start(self) -> None:
        """Start the nursery and wait until it can fork. Raises NurseryDown."""
        if not orphans.become_subreaper():
            self._on_event("this system has no child subreaper: orphans of servers may survive")
        try:
            await self._launch()
        except NurseryDown:
            await self._bury()
            raise
        self._watch_over()

    def adopt(self, snapshot: NurserySnapshot) -> None:
        """Continue with a nursery of the previous program, and with its workers."""
        orphans.become_subreaper()
        life = self._life = nursery_process.adopt_nursery(snapshot.pid)
        for pid in snapshot.workers:
            self._workers.adopt(pid)
        for pid, fd, name in snapshot.stacks:
            self.stacks.adopt(pid, fd, name)
        channel = self._converse(life, socket.socket(fileno=snapshot.line.fd))
        for data, fds in snapshot.line.waiting:
            channel.send(data, fds)
        self._settled.set()
        self._watch_over()

    def take_snapshot(self) -> NurserySnapshot:
        """Return the state that the program after this one needs. Call this only while `runs`."""
        assert self._life is not None and self._life.channel is not None  # noqa: PT018 - one fact
        return NurserySnapshot(
            pid=self.pid,
            line=self._life.channel.take_snapshot(),
            workers=tuple(self._workers.pids()),
            stacks=tuple(self.stacks.take_snapshot()),
        )

    @property
    def runs(self) -> bool:
        """Whether the nursery is up, with no fork under way."""
        up = self._life is not None and self._life.channel is not None and self._settled.is_set()
        return up and not self._asked and not self._over

    @property
    def childless(self) -> bool:
        return not (self._workers.pids() or self._asked)

    def knows(self, pid: int) -> bool:
        """Whether this is a worker that the nursery forked."""
        return self._workers.knows(pid)

    async def fork(self, role: str, name: str) -> ForkedWorker:
        """Fork one worker; while the nursery is being replaced, wait for the new one.

        The end of the worker is reported after this has returned: await this method directly, not
        through another task, and note the worker before the next await. Raises NotForked.
        """
        life, channel = await self._wait_for_run(name)
        ticket = next(self._tickets)
        try:
            file = self.stacks.open(ticket, "" if role == "child" else name)
            with contextlib.ExitStack() as undo:
                undo.callback(packets.close_all, [file])
                undo.callback(self.stacks.forget, ticket)
                ours, theirs = packets.pair()
                undo.pop_all()
        except OSError as error:
            raise NotForked(f"{name} gets no control socket: {error.strerror}") from None
        answer = self._asked[ticket] = asyncio.get_running_loop().create_future()
        pid = 0
        try:
            order = messages.pack(Fork(ticket=ticket, role=role, name=name))
            channel.send(order, [theirs.detach(), file])
            pid = await self._answer(life, answer, name)
        finally:
            theirs.close()
            self.stacks.forget(ticket)
            del self._asked[ticket]
            if not pid:
                ours.close()
                self._disown(answer)
        for news in self._workers.claim(pid):
            asyncio.get_running_loop().call_soon(news)
        return ForkedWorker(pid, role, name, ours)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a worker; for a worker that is dead already, do nothing."""
        if self._life is not None and self._life.channel is not None:
            self._life.channel.send(messages.pack(Signal(pid=pid, number=number)))

    def tune(self) -> None:
        """Set the log format and log levels of the nursery to those of this process."""
        if self._life is not None and self._life.channel is not None:
            tune(self._life.channel)

    def suspect(self) -> None:
        """Replace the nursery if it does not answer, after a worker should have ended long ago."""
        if self._suspicion is None or self._suspicion.done():
            self._suspicion = asyncio.create_task(self._question(), name="question")

    async def close(self) -> None:
        """End the nursery and everything below it. Workers that still ran are reported as exits."""
        self._finish("the gateway stops")
        for task in (self._suspicion, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._life is not None:
            if self._life.channel is not None:
                self._life.channel.close()  # so it sweeps and exits
            self._life.process.send_signal(signals.SIGCONT)  # in case it was stopped by a signal
            await nursery_process.wait_for_exit(self._life.process, CLOSE_S_MAX)
            await self._bury()

    # Orders and answers

    async def _wait_for_run(self, name: str) -> tuple[NurseryRun, packets.Channel]:
        try:
            async with asyncio.timeout(BORN_S_MAX):
                while not self._over:
                    await self._settled.wait()
                    if self._life is not None and self._life.channel is not None:
                        return self._life, self._life.channel
        except TimeoutError:
            raise NotForked(f"{name} waited {BORN_S_MAX:.0f} s for a nursery") from None
        raise NotForked(f"{name} is not started: {self._over}")

    async def _answer(
        self, life: NurseryRun, answer: asyncio.Future[Forked | ForkFailed | None], name: str
    ) -> int:
        """Wait for the answer to a fork; return the pid. Raises NotForked."""
        try:
            async with asyncio.timeout(FORK_S_MAX):
                reply = await answer
        except TimeoutError:
            reason = f"the nursery did not answer within {FORK_S_MAX:.0f} s and is replaced"
            self._on_event(reason)
            self._condemn(life)
            raise NurseryGone(f"{name} was not forked: {reason}") from None
        if reply is None:
            raise NurseryGone(f"the nursery died before it had forked {name}")
        if isinstance(reply, ForkFailed):
            raise NotForked(reply.reason)
        return reply.pid

    async def _question(self) -> None:
        """Test the nursery with an order that it refuses. Any answer will do; without an answer
        within FORK_S_MAX the nursery is replaced, as for every fork."""
        with contextlib.suppress(NotForked):
            await self.fork("no role", "nobody")

    def _disown(self, answer: asyncio.Future[Forked | ForkFailed | None]) -> None:
        """Kill the worker of a fork whose caller has left, if it was forked, and do not report its
        end."""
        reply = answer.result() if answer.done() and not answer.cancelled() else None
        if isinstance(reply, Forked):
            self._workers.disown(reply.pid)
            self.signal(reply.pid, signals.SIGKILL)

    def _on_packet(self, life: NurseryRun, data: bytes, fds: list[int]) -> None:
        packets.close_all(fds)
        try:
            message = messages.unpack_from_nursery(data)
        except codec.Malformed as error:
            self._on_event(f"the nursery speaks another language and is replaced: {error}")
            self._condemn(life)
            return
        match message:
            case NurseryReady():
                if not life.born.done():
                    life.born.set_result(message)
            case Forked() | ForkFailed():
                self._on_fork_answer(message)
            case Halted(pid=pid):
                self._workers.on_halt(pid, True)
            case Resumed(pid=pid):
                self._workers.on_halt(pid, False)
            case WorkerExit():
                self._report_exit(message)

    def _on_fork_answer(self, message: Forked | ForkFailed) -> None:
        answer = self._asked.get(message.ticket)
        if answer is not None and not answer.done():
            answer.set_result(message)
            if isinstance(message, Forked):
                self._workers.expect(message.pid)
                self.stacks.on_fork(message.ticket, message.pid)
        elif isinstance(message, Forked):  # its caller has left
            self.signal(message.pid, signals.SIGKILL)

    def _report_exit(self, report: WorkerExit) -> None:
        """Report the end of a worker, with the stacks that it wrote last."""
        name, text = self.stacks.take(report.pid)
        if name and text:
            lines = " | ".join(line.strip() for line in text[:STACKS_CHARS_MAX].splitlines())
            self._on_event(f"{name} (process {report.pid}) wrote its stacks: {lines}")
        self._workers.on_exit(structs.replace(report, stacks=text))

    # The life of the nursery

    def _watch_over(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="nursery")
        self._keeper.add_done_callback(self._keeper_done)

    async def _keep(self) -> None:
        """Replace the nursery whenever it dies."""
        loop = asyncio.get_running_loop()
        while True:
            if self._life is not None:
                await self._life.gone.wait()
            await self._bury()
            if self.retired:
                return
            self._deaths.append(loop.time())
            if len(self._deaths) > DEATHS_MAX and loop.time() - self._deaths[0] < DEATHS_WINDOW_S:
                self._lose(f"the nursery died {len(self._deaths)} times in {DEATHS_WINDOW_S:.0f} s")
                return
            try:
                await self._launch()
            except NurseryDown as error:
                self._on_event(str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self._on_event(f"a new nursery runs as process {self.pid}")

    async def _launch(self) -> None:
        """Start a nursery and wait for its Born. Raises NurseryDown; `_bury` then cleans up."""
        process, ours = self._begin()
        life = self._life = NurseryRun(process, asyncio.get_running_loop().create_future())
        self._converse(life, ours)
        reason = "it closed its control socket"
        try:
            async with asyncio.timeout(BORN_S_MAX):
                born = await life.born
        except TimeoutError:
            born, reason = None, f"it was not ready within {BORN_S_MAX:.0f} s"
        if born is None or life.channel is None:  # it may have died after its Born
            self._condemn(life)
            raise NurseryDown(f"the nursery (process {life.process.pid}) did not start: {reason}")
        for missing in born.missing:
            self._on_event(f"the nursery could not preload {missing}")
        self.tune()
        self._settled.set()

    def _begin(self) -> tuple[ChildProcess, socket.socket]:
        """Take the nursery that was forked early, or execute one. Raises NurseryDown."""
        if self._command == DEFAULT_COMMAND and (early := nursery_start.take_early()):
            pid, ours = early
            return InheritedChild(pid), ours
        try:
            return nursery_start.execute(self._command)
        except OSError as error:
            raise NurseryDown(f"the nursery did not start: {error}") from None

    def _converse(self, life: NurseryRun, ours: socket.socket) -> packets.Channel:
        life.channel = packets.Channel(
            ours, partial(self._on_packet, life), partial(self._condemn, life)
        )
        return life.channel

    def _condemn(self, life: NurseryRun) -> None:
        """Close the channel of a nursery that is dead or must die, and end all waits for it."""
        if life.channel is not None:
            life.channel.close()
            life.channel = None
        if not life.born.done():
            life.born.set_result(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)
        if not self._over:
            self._settled.clear()
        life.gone.set()

    async def _bury(self) -> None:
        """End and reap the nursery, kill the processes that it left, report the end of its
        workers."""
        life = self._life
        if life is None:
            return
        self._condemn(life)
        life.process.kill()
        if not await nursery_process.wait_for_exit(life.process, orphans.SWEEP_S_MAX):
            self._on_event(f"the nursery (process {life.process.pid}) was killed and does not die")
        killed, clean = await nursery_process.sweep(self._spared)
        if not clean:
            self._on_event(f"after {orphans.SWEEP_S_MAX:.0f} s some orphans are still alive")
        self._life = None
        doomed = self._workers.pids()
        orphaned = len(killed.difference(doomed))
        if not self._over:
            self._on_event(
                f"the nursery (process {life.process.pid}) died, "
                f"{nursery_process.how(life.process)}; "
                f"{len(doomed)} workers and {orphaned} processes below them went with it"
            )
        for pid in doomed:
            end = WorkerExit(pid=pid, signal=signals.SIGKILL, orphans=orphaned, with_nursery=True)
            self._report_exit(end)
            orphaned = 0
        self.stacks.close()

    def _lose(self, reason: str) -> None:
        self._finish(reason)
        self._on_lost(reason)

    def _finish(self, reason: str) -> None:
        """End all waits for a nursery, for this reason; workers are not forked from now on."""
        self._over = self._over or reason
        self._settled.set()
        if self._life is not None and not self._life.born.done():
            self._life.born.set_result(None)

    def _keeper_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._lose(f"the keeper of the nursery failed: {error!r}")
