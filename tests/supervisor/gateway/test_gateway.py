"""The whole gateway in this process, with its true nursery: what happens half-way up and down."""

import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor import runtime
from metamcp_supervisor.config.config import Address, Config, Server
from metamcp_supervisor.config.confirmation import NotConfirmed
from metamcp_supervisor.control.services import NotNow, ReloadRefused
from metamcp_supervisor.gateway.gateway import Gateway
from tests.fakes.nursery_hand import subreaper
from tests.supervisor.configs import config, server
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

END_S_MAX = 20.0
"""Below what the gateway would wait for a nursery that does not come."""
FAKE = Path(__file__).parents[2] / "fakes" / "stdio_server.py"


def fake(name: str, **settings: object) -> Server:
    return server(name, command=(sys.executable, str(FAKE)), **settings)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one, as sockets need. The gateway makes this process a subreaper."""
    with tempfile.TemporaryDirectory(prefix="metamcp-", dir="/tmp") as name:
        yield Path(name)
    subreaper(False)


def settings(folder: Path, *servers: Server) -> Config:
    anywhere = Address("127.0.0.1", 0)
    return config(
        *servers, listen=anywhere, ops_listen=anywhere, state_dir=folder / "s", runtime_dir=folder
    )


def anything(new: Config, yes: bool) -> None: ...


@asynccontextmanager
async def rising(
    first: Config,
    load: Callable[[], Config] | None = None,
    permit: Callable[[Config, bool], None] = anything,
) -> AsyncGenerator[Gateway, None]:
    """A gateway whose control socket is there, and nothing else yet for sure. It must end well."""
    gateway = Gateway(first, load or (lambda: first), permit, dict(os.environ), "9.9")
    run = asyncio.create_task(gateway.run(lambda: None))
    try:
        await until(lambda: gateway.status().nursery_pid, "the nursery is on its way")
        assert (first.gateway.runtime_dir / runtime.SOCKET).exists()
        yield gateway
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(END_S_MAX):
            assert await run == 0
    assert [event for event in gateway.journal.since(0) if event.what == "bug"] == []


async def up(gateway: Gateway, *names: str) -> None:
    def there() -> bool:
        states = {server.name: server.state for server in gateway.status().servers}
        return states == dict.fromkeys(names, "active")

    await until(there, f"exactly {names} are active")


async def test_every_server_is_known_as_soon_as_the_control_socket_answers(folder: Path) -> None:
    async with rising(settings(folder, fake("one"))) as gateway:
        gateway.restart(["one"])
        await up(gateway, "one")


async def test_a_hangup_while_everything_starts_is_a_reload(folder: Path) -> None:
    old = settings(folder, fake("one"), fake("two"))
    new = settings(folder, fake("one", timeout_s=9.0), fake("three"))
    async with rising(old, lambda: new) as gateway:
        os.kill(os.getpid(), signal.SIGHUP)
        await up(gateway, "one", "three")
        assert "reloaded" in [event.what for event in gateway.journal.since(0)]


async def test_an_end_during_the_start_does_not_wait_for_a_nursery_that_does_not_come(
    folder: Path,
) -> None:
    async with rising(settings(folder, fake("one"))) as gateway:
        os.kill(gateway.status().nursery_pid, signal.SIGSTOP)


async def test_a_gateway_that_ends_starts_and_reloads_nothing_more(folder: Path) -> None:
    old, new = settings(folder, fake("one")), settings(folder, fake("two"))
    reading, go_on = threading.Event(), threading.Event()

    def load() -> Config:
        reading.set()
        assert go_on.wait(END_S_MAX)
        return new

    async with rising(old, load) as gateway:
        await up(gateway, "one")
        reload = asyncio.create_task(gateway.reload(dry_run=False, expect=None))
        await until(reading.is_set, "the new configuration is being read")
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: gateway.status().state == "draining", "the end has begun")
        go_on.set()
        with pytest.raises(NotNow, match="the gateway stops"):
            await reload
        with pytest.raises(NotNow):
            gateway.start(["one"])


async def test_reloads_come_one_after_the_other(folder: Path) -> None:
    configs = iter([settings(folder, fake("one"), fake("two")), settings(folder, fake("two"))])
    async with rising(settings(folder, fake("one")), lambda: next(configs)) as gateway:
        plans = await asyncio.gather(gateway.reload(False, None), gateway.reload(False, None))
        actions = [[change.action for change in plan.changes] for plan in plans]
        assert actions == [["unchanged", "add"], ["unchanged", "remove"]]
        await up(gateway, "two")


async def test_commands_that_nobody_confirmed_are_shown_and_not_started(folder: Path) -> None:
    old = settings(folder, fake("one"))
    new = replace(old, servers={"one": fake("one"), "evil": fake("evil")})

    def refuse(new: Config, yes: bool) -> None:
        if not yes:
            raise NotConfirmed("not confirmed", "evil: ...")

    async with rising(old, lambda: new, refuse) as gateway:
        plan = await gateway.reload(dry_run=True, expect=None)
        assert plan.changes[1].server == "evil"
        assert plan.question == "evil: ..."
        with pytest.raises(ReloadRefused, match="not confirmed"):
            await gateway.reload(dry_run=False, expect=plan.hash)
        await up(gateway, "one")
        assert set(gateway.config.servers) == {"one"}
        assert (await gateway.reload(dry_run=False, expect=plan.hash, yes=True)).applied
        assert "evil" in gateway.config.servers
