"""The commands of `[notify]` and `[hooks]`: when they run, what they are told, and what comes of a
failure."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import HOOK_EVENTS, HookConfig
from metamcp_supervisor.gateway.front_services import HOOK_SERVERS_MAX, HookNames, Notifier
from metamcp_supervisor.telemetry.journal import WAITING, Journal
from metamcp_supervisor.verbs import JournalEvent
from tests.supervisor.configs import config
from tests.supervisor.stage import until

process = pytest.mark.process

SAYS = (
    'echo "$(date +%s.%N) $METAMCP_NOTIFY_KIND $METAMCP_NOTIFY_WAITING $METAMCP_NOTIFY_TEXT'
    ' $HOME$METAMCP_STATE_DIR" >> said'
)
HOOK = (
    'echo "$METAMCP_HOOK_EVENT|$METAMCP_HOOK_SERVER|$METAMCP_HOOK_COUNT|$METAMCP_HOOK_TEXT'
    '|$METAMCP_NOTIFY_WAITING" >> said'
)
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/home/ann", "METAMCP_STATE_DIR": "/nowhere"}


class Desk:
    """A notifier of a gateway in this folder. `waiting`: how many runs and calls wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(time.time)
        self.waiting = {"run": 0, "consent": 0}
        self.failed: set[str] = set()
        self.quarantined: set[str] = set()
        self.config = replace(config(), files=(folder / "metamcp.toml",))
        self.notifier = Notifier(
            self.journal, lambda: self.config, ENVIRON, lambda: self.waiting,
            failed=lambda: self.failed, down=lambda: self.failed | self.quarantined,
        )  # fmt: skip

    def notify_by(self, *command: str) -> None:
        self.config = replace(self.config, notify=command)

    def hook(self, *on: str) -> None:
        hooks = HookConfig(on=on, command=("sh", "-c", HOOK))
        self.config = replace(self.config, hooks=hooks)

    def fail(self, *servers: str) -> None:
        for server in servers:
            self.failed.add(server)
            self.journal.add(server, "warming→error", f"exit: {server} ended")

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


@process
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


@process
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


@process
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


@process
async def test_without_a_command_nothing_runs_until_a_reload_brings_one(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.journal.add("engine", WAITING, "before")
        desk.notify_by("sh", "-c", SAYS)
        desk.journal.add("engine", WAITING, "after")
        (line,) = await desk.said(1)
        assert "after" in line


@process
async def test_a_hook_is_told_which_server_failed_and_that_it_is_back(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.hook("failed", "recovered")
        desk.journal.add("wiki", "warming→error", "exit: it is tried again at once")
        desk.fail("git")
        desk.journal.add("git", "error→warming")
        desk.fail("git")
        assert await desk.said(1) == ["failed|git|1|exit: git ended|"]
        desk.failed.clear()
        desk.journal.add("git", "warming→ready")
        assert (await desk.said(2))[1] == "recovered|git|1|warming→ready|"


@process
async def test_events_of_one_name_are_counted_and_the_most_urgent_name_comes_first(
    tmp_path: Path,
) -> None:
    async with opened_desk(tmp_path) as desk:
        desk.hook("failed", "approval")
        desk.waiting["run"] = 1
        desk.journal.add("engine", WAITING, "a run waits")
        servers = [f"s{number}" for number in range(HOOK_SERVERS_MAX + 1)]
        desk.fail(*servers)
        named = ",".join(servers[1:])
        count, last = len(servers), servers[-1]
        assert await desk.said(2) == [
            f"failed|{named}|{count}|exit: {last} ended|", "approval||1|a run waits|1"
        ]  # fmt: skip


@process
async def test_a_server_that_failed_before_an_upgrade_is_known(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.failed.add("git")
    desk.hook("failed", "recovered")
    desk.notifier.begin()
    try:
        desk.fail("git")
        desk.failed.clear()
        desk.journal.add("git", "warming→ready")
        assert await desk.said(1) == ["recovered|git|1|warming→ready|"]
    finally:
        await desk.notifier.close()


@process
async def test_a_server_that_was_in_quarantine_before_an_upgrade_recovers(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.quarantined.add("git")
    desk.hook("recovered")
    desk.notifier.begin()
    try:
        desk.journal.add("git", "quarantined→warming")
        desk.journal.add("git", "warming→ready")
        assert await desk.said(1) == ["recovered|git|1|warming→ready|"]
    finally:
        await desk.notifier.close()


@process
async def test_a_server_that_failed_before_there_were_hooks_does_not_count_again(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.notifier.begin()
    try:
        desk.fail("git")
        desk.hook("failed")
        desk.fail("git", "wiki")
        assert await desk.said(1) == ["failed|wiki|1|exit: wiki ended|"]
    finally:
        await desk.notifier.close()


@process
async def test_a_hook_that_hangs_does_not_delay_the_command_of_notify(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    waits = "while ! [ -e go ]; do sleep 0.05; done; echo >>hung"
    hanging = HookConfig(on=("failed",), command=("sh", "-c", waits))
    desk.config = replace(desk.config, hooks=hanging)
    desk.notify_by("sh", "-c", HOOK)
    desk.notifier.begin()
    try:
        desk.fail("git")
        desk.journal.add("engine", WAITING, "a run waits")
        assert await desk.said(1) == ["approval||1|a run waits|0"]
        assert not (tmp_path / "hung").exists()
        (tmp_path / "go").touch()
        await until((tmp_path / "hung").exists, "the hook has ended")
    finally:
        await desk.notifier.close()


def named(*events: tuple[str, str], failed: frozenset[str] = frozenset()) -> list[str]:
    """The names of these events; each is of a server or another part, and what happened."""
    names = HookNames(lambda: failed)
    return [
        names.find(JournalEvent(seq=0, time=0.0, who=who, what=what)) for who, what in events
    ]  # fmt: skip


def test_every_name_is_that_of_an_event() -> None:
    git = frozenset({"git"})
    found = named(
        ("git", "ready→error"), ("git", "warming→ready"), ("wiki", "ready→quarantined"),
        ("wiki", "tools drifted"), ("engine", WAITING), ("gateway", "reload refused"), failed=git,
    )  # fmt: skip
    assert sorted(found) == sorted(HOOK_EVENTS)


def test_what_nobody_has_to_look_at_has_no_name() -> None:
    events = (
        ("git", "idle→warming"), ("git", "warming→ready"), ("git", "ready→error"),
        ("git", "ready→draining"), ("front-0", "warming→ready"), ("gateway", "note"),
    )  # fmt: skip
    assert named(*events) == [""] * len(events)


def test_a_failed_server_counts_again_once_an_operator_stopped_it() -> None:
    git = frozenset({"git"})
    turns = (
        ("git", "warming→error"), ("git", "warming→error"), ("git", "error→stopped"),
        ("git", "warming→error"),
    )  # fmt: skip
    assert named(*turns, failed=git) == ["failed", "", "", "failed"]


def test_a_server_that_leaves_quarantine_has_recovered() -> None:
    turns = ("git", "ready→quarantined"), ("git", "quarantined→warming"), ("git", "warming→ready")
    assert named(*turns) == ["quarantined", "", "recovered"]
