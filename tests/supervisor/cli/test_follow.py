"""`logs -f` and `events -f` go on when the gateway is another one; `consent watch` follows, too."""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.control.control import Control
from metamcp_supervisor.control.follow import newer
from metamcp_supervisor.telemetry.journal import WAITING, Follower, Journal
from metamcp_supervisor.verbs import Exit, JournalEvent
from tests.supervisor.cli.test_ctl import start
from tests.supervisor.small_gateway import SmallGateway, server


def events(*numbers: tuple[int, float]) -> list[JournalEvent]:
    return [JournalEvent(seq=seq, time=time, who="git", what="x") for seq, time in numbers]


@pytest.mark.parametrize(
    ("items", "after", "left"),
    [
        ([(1, 10.0), (2, 10.0), (3, 11.0)], None, [1, 2, 3]),
        ([(1, 10.0), (2, 10.0), (3, 11.0)], (1, 10.0), [2, 3]),
        ([(1, 10.0), (2, 9.0)], (1, 10.0), [2]),
        ([(1, 20.0), (2, 21.0)], (7, 12.0), [1, 2]),
        ([(7, 20.0), (8, 21.0)], (7, 12.0), [7, 8]),
        ([(1, 11.0), (2, 13.0)], (7, 12.0), [2]),
        ([], (7, 12.0), []),
    ],
)
def test_who_goes_on_gets_what_came_after_and_nothing_twice(
    items: Sequence[tuple[int, float]], after: tuple[int, float] | None, left: list[int]
) -> None:
    assert [item.seq for item in newer(events(*items), after)] == left


@asynccontextmanager
async def running(gateway: SmallGateway, directory: Path) -> AsyncGenerator[None, None]:
    control = Control(gateway, directory, "9.9")
    await control.start()
    try:
        yield
    finally:
        await control.close()


@pytest.mark.process
@pytest.mark.promise("M89")
async def test_following_goes_on_with_the_next_gateway_and_repeats_nothing() -> None:
    directory = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    first, second = SmallGateway(server("git")), SmallGateway(server("git"))
    try:
        async with running(first, directory):
            first.logs.add("git", "stderr", ["one", "two"])
            process = await start(directory, "logs", "git", "-f", "--json")
            assert process.stdout is not None
            assert process.stderr is not None
            texts = [json.loads(await process.stdout.readline())["text"] for _ in range(2)]
            first.logs.add("git", "stderr", ["three"])
            texts.append(json.loads(await process.stdout.readline())["text"])
        assert b"the gateway is gone; waiting 20 s" in await process.stderr.readline()
        # What the one before has kept, and what came while nobody could be asked.
        kept = first.logs.past("git")
        second.logs.begin((), kept, first.logs.last)
        second.logs.add("git", "stderr", ["four"])
        async with running(second, directory):
            texts.append(json.loads(await process.stdout.readline())["text"])
            second.logs.add("git", "stderr", ["five"])
            texts.append(json.loads(await process.stdout.readline())["text"])
        assert b"the gateway is gone" in await process.stderr.readline()
        async with running(third := SmallGateway(), directory):
            third.servers["git"] = server("git")
            third.logs.add("git", "stderr", ["six"])
            texts.append(json.loads(await process.stdout.readline())["text"])
        assert texts == ["one", "two", "three", "four", "five", "six"]
        process.terminate()
        await process.wait()
    finally:
        shutil.rmtree(directory)


@pytest.mark.process
async def test_a_gateway_that_is_gone_for_good_ends_the_following() -> None:
    directory = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    try:
        async with running(SmallGateway(server("git")), directory):
            process = await start(directory, "events", "-f", "--reconnect", "100ms")
            refused = await start(directory, "logs", "got", "-f")
            assert await refused.wait() == Exit.UNKNOWN_NAME, "not waited for: it is there"
        assert await process.wait() == Exit.NOT_RUNNING
    finally:
        shutil.rmtree(directory)


class FollowedJournal(Journal):
    """`followed`: set as soon as somebody follows it."""

    def __init__(self) -> None:
        super().__init__(time.time)
        self.followed = asyncio.Event()

    def follow(self, wake: Callable[[], None]) -> Follower[JournalEvent]:
        self.followed.set()
        return super().follow(wake)


@pytest.mark.process
@pytest.mark.parametrize("as_json", [True, False])
async def test_consent_watch_shows_what_begins_to_wait_and_nothing_else(as_json: bool) -> None:
    directory = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    gateway = SmallGateway(server("git"))
    gateway.journal = journal = FollowedJournal()
    journal.add("gateway", WAITING, "before")
    try:
        async with running(gateway, directory):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "metamcp_supervisor", "consent",
                "--runtime-dir", str(directory), "watch", *["--json"] * as_json,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            await journal.followed.wait()
            journal.add("git", "warming→ready")
            journal.add("engine", WAITING, asks := "a run needs an answer")
            line = (await process.stdout.readline()).decode()
            if as_json:
                assert json.loads(line)["cause"] == asks
            else:
                assert line.split(maxsplit=3)[1:] == ["engine", WAITING, f"{asks}\n"]
            process.terminate()
            await process.wait()
    finally:
        shutil.rmtree(directory)
