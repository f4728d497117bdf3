"""The workers of the servers, from the fork to the end of everything below them.

Owns: forking, the deadlines of processes on their way up or down, killing, the order of last words
and death. Never: the rules (`server`), who shall run (`tree`), pipes (`routes`).

An instance is over when two things have come, in any order: the nursery's word that the worker and
everything below it is gone, and the end of its control socket, in which its last words may wait.
"""

import asyncio
import signal
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from metamcp_supervisor.lives import instances
from metamcp_supervisor.lives.entries import Entry
from metamcp_supervisor.lives.fronts import Forker
from metamcp_supervisor.lives.heartbeats import Heartbeats
from metamcp_supervisor.lives.instances import Instance
from metamcp_supervisor.lives.pulse import Verdict
from metamcp_supervisor.lives.server import Fact, Responds, WentDown
from metamcp_supervisor.lives.spawn import NotForked, NurseryGone, WorkerExit
from metamcp_supervisor.lives.specs import STOP_EOF_S, server_spec
from metamcp_supervisor.lives.states import ExitClass, Phase
from metamcp_supervisor.lives.tokens import KeyUnfit, Tokens
from metamcp_supervisor.watched.events import Journal
from metamcp_worker.messages import Beat, FromChild, ServerDown, Spawned

START_S_MARGIN = 5.0
"""The worker watches `start_timeout` itself; this much later it is killed."""
STOP_S_MARGIN = 3.0
"""The same for the worker's own ladder: end of stdin, SIGTERM, SIGKILL."""
LEAVE_S_MAX = 10.0
"""From the news that a server is down to the end of its worker."""
KILLED_S_MAX = 2.0
"""From SIGKILL to the news of its end: milliseconds, or a second for one with much memory."""
SILENT_S_MAX = 2.0
"""From the end of a control socket to the end of its worker."""
LAST_WORDS_S_MAX = 1.0
"""From the end of a worker to the end of what it wrote to its control socket."""


class Lives(Protocol):
    """Who decides what happens to servers."""

    def feed(self, entry: Entry, fact: Fact, cause: str = "") -> None: ...

    def told(self, entry: Entry, message: FromChild, blob: bytes) -> None:
        """What an instance says beyond its own life."""
        ...

    def gone(self, entry: Entry) -> None:
        """Nothing is left of its instance."""
        ...


class Crew:
    def __init__(
        self,
        lives: Lives,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        tokens: Tokens,
        environ: Mapping[str, str],
        version: str,
    ) -> None:
        self._lives = lives
        self._forker = forker
        self._hearts = hearts
        self._journal = journal
        self._tokens = tokens
        self._environ = environ
        self._version = version
        self._entries: dict[int, Entry] = {}

    def fork(self, entry: Entry) -> None:
        """Start a worker for the current generation."""
        generation = entry.life.generation
        task = asyncio.get_running_loop().create_task(self._launch(entry, generation))
        entry.launch = task
        task.add_done_callback(partial(self._launched, entry))

    def ask_to_stop(self, entry: Entry, grace_s: float) -> None:
        """Let it finish for `grace_s`, then go down its ladder."""
        if entry.instance is None:
            return  # the fork is still under way; what comes of it is stopped then
        entry.instance.stop(grace_s)
        entry.deadline(grace_s + _ladder_s(entry), self._overdue)

    def hurry(self, entry: Entry) -> None:
        """One that still waits for calls has no time left but for its ladder: nobody calls."""
        if entry.instance is not None and entry.life.phase in (Phase.DRAINING, Phase.STOPPING):
            entry.deadline(_ladder_s(entry), self._overdue)

    def condemn(self, entry: Entry, reason: ExitClass, message: str) -> None:
        """Count it as down for this reason, and kill it."""
        assert entry.instance is not None
        if not entry.instance.reported:
            entry.instance.reported = True
            self._lives.feed(entry, WentDown(reason, message))
        self._kill(entry)

    # What the nursery says

    def exited(self, end: WorkerExit) -> bool:
        """A worker and everything below it is gone; True if it was one of ours.

        Its last words may still wait in its control socket: they come first.
        """
        entry = self._entries.get(end.pid)
        if entry is None:
            return False
        assert entry.instance is not None
        entry.instance.end = end
        if entry.instance.silent:
            self._bury(entry)
        else:
            entry.deadline(LAST_WORDS_S_MAX, self._bury)
        return True

    def halted(self, pid: int, yes: bool) -> None:
        if entry := self._entries.get(pid):
            self._journal.add(entry.name, "halted" if yes else "resumed")

    # What workers say

    def heard(self, instance: Instance, message: FromChild, blob: bytes) -> None:
        entry = self._entries[instance.pid]
        match message:
            case Beat():
                instance.inflight = message.inflight
                self._hearts.beat(instance.pid)
            case Spawned():
                pass  # the instance has noted the pid
            case ServerDown():
                self._down(entry, instance, message)
            case _:
                self._lives.told(entry, message, blob)

    def unheard(self, instance: Instance, sentence: str) -> None:
        self._journal.add(instance.server, "bug", sentence, instance.generation)

    def fell_silent(self, instance: Instance) -> None:
        instance.silent = True
        entry = self._entries[instance.pid]
        if instance.end is not None:
            self._bury(entry)
        else:
            entry.deadline(SILENT_S_MAX, self._overdue)

    def _down(self, entry: Entry, instance: Instance, message: ServerDown) -> None:
        if instance.reported:
            return
        instance.reported = True
        if instance.end is None:
            entry.deadline(LEAVE_S_MAX, self._overdue)
        down = instances.told(message, remote=entry.server.url is not None)
        if message.probing and entry.probe and down.reason is ExitClass.EXIT:
            # Some old servers exit when they are asked something new: once more, without asking.
            entry.probe = False
            down = instances.excused(down)
        self._lives.feed(entry, down)

    # Up and down

    async def _launch(self, entry: Entry, generation: int) -> None:
        try:
            worker = await self._forker.fork("child", f"{entry.name}#{generation}")
        except NotForked as error:
            entry.launch = None
            if entry.life.phase is Phase.WARMING:
                excused = isinstance(error, NurseryGone)
                self._lives.feed(entry, WentDown(ExitClass.NURSERY, str(error), excused))
            self._lives.gone(entry)
            return
        instance = entry.instance = Instance(entry.name, generation, worker, self)
        entry.launch = None
        self._entries[worker.pid] = entry
        self._hearts.watch(worker.pid, partial(self._judged, entry, instance))
        if entry.life.phase is not Phase.WARMING:
            self.ask_to_stop(entry, 0.0)  # it was stopped meanwhile
            return
        entry.deadline(entry.server.start_timeout_s + START_S_MARGIN, self._overdue)
        try:
            oauth = self._tokens.spec(entry.server.oauth)
            spec = server_spec(entry.server, self._environ, probe=entry.probe, oauth=oauth)
            instance.run(spec, self._version)
        except KeyUnfit as error:
            self.condemn(entry, ExitClass.SPAWN, str(error))
        except OSError as error:
            self.condemn(entry, ExitClass.EXIT, f"the gateway could not brief it: {error.strerror}")

    def _launched(self, entry: Entry, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add(entry.name, "bug", f"its start broke off: {error!r}")

    def _overdue(self, entry: Entry) -> None:
        """A worker did not do in time what it was to do."""
        if entry.life.phase is Phase.WARMING:
            limit = f"{entry.server.start_timeout_s:g} s"
            message = f"it was not ready within {limit}, and its worker did not say so"
            self.condemn(entry, ExitClass.START_TIMEOUT, message)
        else:
            self._journal.add(entry.name, "kill", "its worker did not leave in time")
            self._kill(entry)

    def _kill(self, entry: Entry) -> None:
        assert entry.instance is not None
        if entry.instance.end is None:  # else only its last words are waited for
            self._forker.signal(entry.instance.pid, signal.SIGKILL)
            entry.deadline(KILLED_S_MAX, self._outlives)

    def _outlives(self, entry: Entry) -> None:
        """It was killed and its end is not told: perhaps nobody carries out what we order."""
        self._journal.add(entry.name, "kill", "its worker was killed and its end is not told")
        self._forker.suspect()
        self._kill(entry)

    def _judged(self, entry: Entry, instance: Instance, verdict: Verdict) -> None:
        if verdict in (Verdict.HUNG, Verdict.DEAD):
            instance.condemned = ExitClass.HANG
        self._journal.add(entry.name, f"heartbeat {verdict}", generation=instance.generation)
        self._lives.feed(entry, Responds(verdict is Verdict.FINE))
        if verdict is Verdict.DEAD:
            self._kill(entry)

    def _bury(self, entry: Entry) -> None:
        instance = entry.instance
        assert instance is not None
        assert instance.end is not None
        entry.no_deadline()
        self._hearts.forget(instance.pid)
        instance.close()
        entry.instance = None
        del self._entries[instance.pid]
        if instance.end.orphans:
            left = f"{instance.end.orphans} processes that it left behind were killed"
            self._journal.add(entry.name, "swept", left, instance.generation)
        if not instance.reported:
            self._lives.feed(entry, instances.untold(instance.end, instance.condemned))
        self._lives.gone(entry)


def _ladder_s(entry: Entry) -> float:
    """What a worker may need to end its server and itself."""
    return STOP_EOF_S + entry.server.stop_grace_s + STOP_S_MARGIN
