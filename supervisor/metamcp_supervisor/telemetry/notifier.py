"""The command of `[notify]`, which runs when something begins to wait for a person.

Owns: when it runs, what it gets, and the event about its failure. Never: what waits (an event of
the journal says so), whether the command may run (`confirmation`), its process (`printed_values`).
"""

import asyncio
from collections.abc import Callable, Mapping

from metamcp_supervisor.config import environment
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import printable
from metamcp_supervisor.config.printed_values import program_output
from metamcp_supervisor.telemetry.journal import WAITING, Follower, Journal
from metamcp_supervisor.verbs import JournalEvent
from metamcp_worker.ipc.engine_runs import ROLE

PAUSE_S = 1.0
"""Seconds between two starts of the command at least."""
WHAT = "the command of [notify]"


class Notifier:
    """`config`: returns the configuration in force; `environ`: environment variables of the
    gateway; `waiting`: returns how many runs and calls wait, by kind."""

    def __init__(
        self,
        journal: Journal,
        config: Callable[[], Config],
        environ: Mapping[str, str],
        waiting: Callable[[], Mapping[str, int]],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._journal = journal
        self._config = config
        names = environment.select_variables(environ, ["*"])
        self._environ = {name: environ[name] for name in names}
        self._waiting = waiting
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        woken = asyncio.Event()
        follower = self._journal.follow(woken.set)
        self._task = asyncio.create_task(self._run(follower, woken), name="notifier")

    async def close(self) -> None:
        """Run the command no more; one that runs goes on to its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, follower: Follower[JournalEvent], woken: asyncio.Event) -> None:
        try:
            while True:
                await woken.wait()
                woken.clear()
                if await self._notify(follower):
                    await asyncio.sleep(self._pause_s)
                if follower.lagged:  # the command took longer than thousands of events
                    self._journal.unfollow(follower)
                    follower = self._journal.follow(woken.set)
        finally:
            self._journal.unfollow(follower)

    async def _notify(self, follower: Follower[JournalEvent]) -> bool:
        """Run the command for all that began to wait since the last time; return whether it ran."""
        events = [event for event in follower.take() if event.what == WAITING]
        config = self._config()
        if not (events and config.notify):
            return False
        environ = self._environ | self._details(events[-1])
        folder = config.files[0].parent
        _, error = await asyncio.to_thread(program_output, config.notify, folder, environ, WHAT)
        if error:
            self._journal.add("gateway", "error", error)
        return True

    def _details(self, event: JournalEvent) -> dict[str, str]:
        return {
            "METAMCP_NOTIFY_KIND": "run" if event.who == ROLE else "consent",
            "METAMCP_NOTIFY_TEXT": printable(event.cause),
            "METAMCP_NOTIFY_WAITING": str(sum(self._waiting().values())),
        }
