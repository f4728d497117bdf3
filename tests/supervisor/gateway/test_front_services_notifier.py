"""The command of `[notify]`: when it runs, what it is told, and what comes of its failure."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.gateway.front_services import Notifier
from metamcp_supervisor.telemetry.journal import WAITING, Journal
from tests.supervisor.configs import config
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

SAYS = (
    'echo "$(date +%s.%N) $METAMCP_NOTIFY_KIND $METAMCP_NOTIFY_WAITING $METAMCP_NOTIFY_TEXT'
    ' $HOME$METAMCP_STATE_DIR" >> said'
)
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/home/ann", "METAMCP_STATE_DIR": "/nowhere"}


class Desk:
    """A notifier of a gateway in this folder. `waiting`: how many runs and calls wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(time.time)
        self.waiting = {"run": 0, "consent": 0}
        self.config = replace(config(), files=(folder / "metamcp.toml",))
        self.notifier = Notifier(self.journal, lambda: self.config, ENVIRON, lambda: self.waiting)

    def notify_by(self, *command: str) -> None:
        self.config = replace(self.config, notify=command)

    async def said(self, lines: int) -> list[str]:
        """What the command has written, as soon as it is so many lines."""
        path = self.folder / "said"

        def found() -> list[str]:
            written = path.read_text().splitlines() if path.exists() else []
            return written if len(written) >= lines else []

        return await until(found, f"the command has run {lines} times")

    async def errors(self, count: int) -> list[str]:
        def found() -> list[str]:
            noted = [each.cause for each in self.journal.since(0) if each.what == "error"]
            return noted if len(noted) >= count else []

        return await until(found, f"{count} failures are noted")


@asynccontextmanager
async def opened_desk(folder: Path) -> AsyncGenerator[Desk]:
    desk = Desk(folder)
    desk.notifier.begin()
    try:
        yield desk
    finally:
        await desk.notifier.close()


async def test_the_command_is_told_what_begins_to_wait_and_how_much_waits(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.notify_by("sh", "-c", SAYS)
        desk.journal.add("git", "warming→ready")
        desk.waiting["run"] = 2
        desk.journal.add("engine", WAITING, "a run\nwaits")
        ((line),) = await desk.said(1)
        assert line.partition(" ")[2] == "run 2 a run\\u000awaits /home/ann"
        desk.waiting["consent"] = 1
        desk.journal.add("gateway", WAITING, "a call waits")
        assert (await desk.said(2))[1].partition(" ")[2] == "consent 3 a call waits /home/ann"


async def test_many_that_begin_to_wait_are_told_at_most_once_a_second(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.notify_by("sh", "-c", SAYS)
        for name in ("first", "second"):
            desk.journal.add("engine", WAITING, name)
        await desk.said(1)
        for name in ("third", "fourth"):
            desk.journal.add("engine", WAITING, name)
        lines = [line.split() for line in await desk.said(2)]
        assert [text for _, _, _, text, _ in lines] == ["second", "fourth"]
        assert float(lines[1][0]) - float(lines[0][0]) >= 1.0


async def test_a_command_that_fails_is_one_line_in_the_journal(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        for command in (("sh", "-c", "exit 3"), ("/no/such/program",)):
            desk.notify_by(*command)
            before = len([each for each in desk.journal.since(0) if each.what == "error"])
            desk.journal.add("engine", WAITING, "a run waits")
            await desk.errors(before + 1)
        assert await desk.errors(2) == [
            "the command of [notify] failed with exit code 3",
            "the command of [notify] cannot be started: No such file or directory",
        ]


async def test_without_a_command_nothing_runs_until_a_reload_brings_one(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.journal.add("engine", WAITING, "before")
        desk.notify_by("sh", "-c", SAYS)
        desk.journal.add("engine", WAITING, "after")
        (line,) = await desk.said(1)
        assert "after" in line
