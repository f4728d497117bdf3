"""A call outlives its front: a client of the handshake era that comes back for the answer gets it
from another front."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import mcp_types as types
import psutil
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from metamcp_worker.ipc.errors import Code
from tests.live import processes
from tests.live.bridge import Bridge
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway
from tests.live.test_sessions import Events, resumed
from tests.waiting import until

pytestmark = pytest.mark.live

WAIT_S = 60
SERVER = str(ROOT / "tests" / "fakes" / "patient_server.py")


def patient(era: str) -> dict[str, Any]:
    return {"command": [sys.executable, SERVER, "--era", era]}


@pytest.fixture(scope="module", params=[1, 2])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    servers = {"old": patient("legacy"), "new": patient("modern"), "doomed": patient("legacy")}
    with Gateway(servers, extra=f"[gateway]\nfronts = {request.param}") as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client with a session, and each time on a new connection."""
    one = Client(gateway.port)
    one.close()
    yield one
    one.end()


@contextmanager
def helper(gateway: Gateway) -> Generator[Client, None, None]:
    """A client without a session, for which fronts are all alike."""
    one = Client(gateway.port, MODERN)
    yield one
    one.close()


@contextmanager
def begun(
    client: Client, port: int, server: str, raw_id: object = "c"
) -> Generator[Events, None, None]:
    """A call that has begun to tell."""
    params = {"name": f"{server}__begin", "arguments": {}, "_meta": {"progressToken": "p"}}
    message = {"jsonrpc": "2.0", "id": raw_id, "method": "tools/call", "params": params}
    with closing(Events(client, port, "POST", json.dumps(message).encode())) as events:
        first = events.next()
        assert first is not None
        assert first["params"] == {"progressToken": "p", "progress": 1}
        yield events


def back(client: Client, port: int, last_id: str) -> closing[Events]:
    return closing(resumed(client, port, last_id))


def front(gateway: Gateway, process: int | None = None) -> int:
    """The front with which the only client of this process, or of another one, is connected."""
    here = {one.laddr for one in psutil.Process(process).net_connections("tcp4")}
    fronts: set[int] = {one["pid"] for one in gateway.status()["fronts"] if one["pid"]}
    (found,) = (pid for pid in fronts if here & peers(pid))
    return found


def killed(gateway: Gateway, victim: int = 0) -> None:
    victim = victim or front(gateway)
    os.kill(victim, signal.SIGKILL)
    until(lambda: not processes.alive({victim}), "it is dead")


def peers(pid: int) -> set[object]:
    """Whom this process is connected with."""
    return {one.raddr for one in psutil.Process(pid).net_connections("tcp4") if one.raddr}


def rest(events: Events) -> list[dict[str, Any]]:
    """All messages that are still to come."""
    found: list[dict[str, Any]] = []
    while (message := events.next()) is not None:
        found.append(message)
    return found


def text(message: dict[str, Any]) -> str:
    found: str = message["result"]["content"][0]["text"]
    return found


@pytest.mark.promise("M79", "M23")
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_client_whose_front_died_gets_the_rest_of_its_call_and_the_answer_once(
    gateway: Gateway, client: Client, server: str
) -> None:
    with begun(client, gateway.port, server) as first:
        killed(gateway)
    with helper(gateway) as other:
        other.text(f"{server}__step", n=2)
        with back(client, gateway.port, first.last_id) as second:
            step = second.next()
            assert step is not None
            assert step["params"] == {"progressToken": "p", "progress": 2}
            other.text(f"{server}__step", n=3)
            other.text(f"{server}__finish", text="the answer")
            step, answer = rest(second)
        assert step["params"] == {"progressToken": "p", "progress": 3}
        assert (answer["id"], text(answer)) == ("c", "the answer")
        with back(client, gateway.port, second.last_id) as third:
            assert rest(third) == []
        assert other.text(f"{server}__count").endswith(" 0")


@pytest.mark.promise("M79")
def test_an_answer_that_came_while_nobody_was_there_waits_for_its_client(
    gateway: Gateway, client: Client
) -> None:
    with begun(client, gateway.port, "old", raw_id=7) as first:
        killed(gateway)
    with helper(gateway) as other:
        other.text("old__finish", text="meanwhile")
        with back(client, gateway.port, first.last_id) as second:
            (answer,) = rest(second)
    assert (answer["id"], text(answer)) == (7, "meanwhile")


@pytest.mark.promise("M79")
@pytest.mark.parametrize("gateway", [2], indirect=True)
def test_an_answer_that_a_hung_front_never_read_is_not_lost_with_it(
    gateway: Gateway, client: Client
) -> None:
    with begun(client, gateway.port, "old") as first:
        hung = front(gateway)
        os.kill(hung, signal.SIGSTOP)
        with helper(gateway) as other:  # the other front takes it
            other.text("old__finish", text="unread")
        killed(gateway, hung)
    with back(client, gateway.port, first.last_id) as second:
        (answer,) = rest(second)
    assert text(answer) == "unread"


@pytest.mark.promise("M98")
@pytest.mark.parametrize("gateway", [1], indirect=True)
def test_the_name_of_an_event_is_worth_nothing_in_another_session(
    gateway: Gateway, client: Client
) -> None:
    stranger = Client(gateway.port)
    stranger.close()
    with begun(client, gateway.port, "old") as first:
        killed(gateway)
    with helper(gateway) as other:
        other.text("old__finish", text="for one alone")
    with back(stranger, gateway.port, first.last_id) as theirs:
        (nothing,) = rest(theirs)
    assert nothing["error"]["code"] == Code.SERVER_DOWN
    with back(client, gateway.port, first.last_id) as mine:
        (answer,) = rest(mine)
    assert text(answer) == "for one alone"
    stranger.end()


@pytest.mark.promise("M79")
def test_the_end_of_the_session_cancels_what_its_front_has_left(
    gateway: Gateway, client: Client
) -> None:
    with begun(client, gateway.port, "doomed"):
        killed(gateway)
    client.end()
    with helper(gateway) as other:
        until(lambda: other.text("doomed__count") == "1 1", "its server hears of it")


@pytest.mark.promise("M79")
def test_a_call_whose_server_died_as_well_is_answered_with_that(
    gateway: Gateway, client: Client
) -> None:
    with begun(client, gateway.port, "doomed") as first:
        killed(gateway)
    with helper(gateway) as other:
        assert "error" in other.call("doomed__crash")
    with back(client, gateway.port, first.last_id) as second:
        (answer,) = rest(second)
    assert (answer["id"], answer["error"]["code"]) == ("c", Code.SERVER_DOWN)
    assert answer["error"]["data"]["may_have_run"] is True


@pytest.mark.promise("M79")
def test_a_client_of_the_bridge_notices_nothing_of_it(gateway: Gateway) -> None:
    where = ("--runtime-dir", str(gateway.folder / "run"))
    with Bridge(*where, folder=gateway.folder) as bridge:
        params = {"name": "old__begin", "arguments": {}, "_meta": {"progressToken": "p"}}
        number = bridge.ask("tools/call", params)
        assert bridge.hear()["params"]["progress"] == 1
        killed(gateway, front(gateway, bridge.process.pid))
        with helper(gateway) as other:
            other.text("old__finish", text="over the bridge")
        answer = bridge.hear()
        assert (answer["id"], text(answer)) == (number, "over the bridge")


@pytest.mark.promise("M79")
async def test_the_official_client_notices_no_more_of_it_than_a_wait(gateway: Gateway) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)
        if progress == 1:
            killed(gateway)
            await asyncio.to_thread(finished)

    def finished() -> None:
        with helper(gateway) as other:
            other.text("old__step", n=2)
            other.text("old__finish", text="through all of it")

    async with (
        asyncio.timeout(WAIT_S),
        streamable_http_client(gateway.url) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        result = await session.call_tool("old__begin", {}, progress_callback=progressed)
        block = result.content[0]
        assert isinstance(block, types.TextContent)
        assert block.text == "through all of it"
    assert steps == [1, 2]
