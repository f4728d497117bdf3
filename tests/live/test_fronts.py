"""Several fronts on one listening socket: a client never notices which of them it talks to."""

import asyncio
import http.client
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client.client import Client as Sdk

from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.live.test_parked import ACCEPT, ELICIT, EVERYTHING, Asked
from tests.live.test_sessions import ASKABLE, Events, asked, initialize, resumed
from tests.waiting import until

pytestmark = pytest.mark.live

SERVERS = {"old": fake("--era", "legacy", "--resources"), "new": fake("--era", "modern")}
AGAIN = 24
"""New connections, so that hardly ever all are accepted by the front that has the session."""


@pytest.fixture(scope="module", params=[2, 3])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=f"[gateway]\nfronts = {request.param}") as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client with a session, which can be asked anything, and each time on a new connection."""
    one = Client(gateway.port)
    one.session = None
    one.post(initialize(ASKABLE))
    one.close()
    yield one
    one.end()


def pids(gateway: Gateway) -> list[int]:
    """Of the fronts that serve."""
    return [front["pid"] for front in gateway.status()["fronts"] if front["state"] == "ready"]


def kill_one(gateway: Gateway) -> int:
    """SIGKILL to a front; its pid. From here on it accepts nothing; who knows that it is dead is
    not waited for."""
    victim = pids(gateway)[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: not processes.alive({victim}), "it is dead")
    return victim


def replaced(gateway: Gateway, victim: int) -> None:
    count = len(gateway.status()["fronts"])
    until(lambda: victim not in (now := pids(gateway)) and len(now) == count, "all serve again")


@pytest.mark.promise("M79")
def test_every_request_of_a_session_may_come_over_a_new_connection(client: Client) -> None:
    for number in range(AGAIN):
        assert client.text("old__echo", text=str(number)) == str(number)
        client.close()


@pytest.mark.promise("M79")
def test_connections_stay_open_when_their_fronts_are_replaced(gateway: Gateway) -> None:
    clients = [Client(gateway.port, era) for era in (MODERN, LEGACY) * (AGAIN // 2)]
    for one in clients:
        one.text("new__echo", text="first")
    sockets = [one.http.sock for one in clients]
    gateway.ctl("roll")
    for number, (one, sock) in enumerate(zip(clients, sockets, strict=True)):
        assert one.text("old__echo", text=str(number)) == str(number)
        assert one.http.sock is sock
        one.end()


@pytest.mark.promise("M79")
def test_requests_for_several_sessions_may_share_one_connection(gateway: Gateway) -> None:
    clients = [Client(gateway.port) for _ in range(6)]
    shared = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    for number in range(AGAIN):
        one = clients[number % len(clients)]
        one.http.close()
        one.http = shared
        assert one.text("new__echo", text=str(number)) == str(number)
    for one in clients:
        one.end()


@pytest.mark.promise("M79")
def test_a_stream_of_a_session_tells_what_happens_on_other_connections(
    gateway: Gateway, client: Client
) -> None:
    client.request("resources/subscribe", {"uri": "fake://one"})
    news = Events(client, gateway.port, "GET", None, Accept="text/event-stream")
    for _ in range(4):
        client.close()
        client.text("old__touch")
        message = news.next()
        assert message is not None
        assert message["params"]["uri"] == "fake://one"
    news.close()


@pytest.mark.promise("M79")
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_question_is_answered_and_its_stream_resumed_on_other_connections(
    gateway: Gateway, client: Client, server: str
) -> None:
    for _ in range(4):
        first = asked(client, gateway.port, f"{server}__elicit")
        question = first.next()
        assert question is not None
        first.close()
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        client.close()
        client.post(json.dumps(answer).encode())
        assert client.status == 202
        second = resumed(client, gateway.port, first.last_id)
        last = second.next()
        assert last is not None
        assert json.loads(last["result"]["content"][0]["text"]) == {"action": "decline"}
        second.close()


@pytest.mark.promise("M79")
def test_a_parked_call_goes_on_over_any_connection(gateway: Gateway) -> None:
    client = Asked(gateway, **EVERYTHING)
    for _ in range(AGAIN // 2):
        result = client.ask(ELICIT)
        assert result["resultType"] == "input_required"
        client.close()
        final = client.ask(ELICIT, result)
        assert json.loads(final["content"][0]["text"]) == ACCEPT
        client.close()


def post(gateway: Gateway, where: str, method: str, params: dict[str, Any]) -> None:
    """A message for a stream of HTTP+SSE, on a connection of its own."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    http_ = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    http_.request("POST", where, json.dumps(message), {"Content-Type": "application/json"})
    assert http_.getresponse().status == 202
    http_.close()


@pytest.mark.promise("M79")
def test_what_is_posted_for_a_stream_of_http_sse_finds_it(gateway: Gateway) -> None:
    stream = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    stream.request("GET", "/sse", headers={"Accept": "text/event-stream"})
    events = stream.getresponse()

    def told() -> str:
        while not (line := events.readline()).startswith(b"data: "):
            assert line
        return line[6:].strip().decode()

    where = told()
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c"}}
    post(gateway, where, "initialize", hello)
    assert json.loads(told())["result"]["protocolVersion"] == "2024-11-05"
    for number in range(AGAIN // 2):
        params = {"name": "old__echo", "arguments": {"text": str(number)}}
        post(gateway, where, "tools/call", params)
        assert json.loads(told())["result"]["content"][0]["text"] == str(number)
    events.close()
    stream.close()


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_the_official_client_works_as_with_one_front(gateway: Gateway, mode: str) -> None:
    async with asyncio.timeout(60), Sdk(gateway.url, mode=mode) as client:
        for number in range(AGAIN // 2):
            calls = (client.call_tool("new__echo", {"text": str(number)}) for _ in range(4))
            for result in await asyncio.gather(*calls):
                assert f"text='{number}'" in repr(result.content)


def test_what_nobody_has_is_answered_as_with_one_front(gateway: Gateway) -> None:
    client = Client(gateway.port)
    for session in ("nobody", "token.0", "token.1", "token.999999999", "token.99999999999999"):
        client.session = session
        answer = json.loads(client.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'))
        assert client.status == 404
        assert "no such session" in answer["error"]["message"]
    client.close()


@pytest.mark.promise("M79")
def test_the_sessions_of_a_killed_front_go_on_in_another_at_once(gateway: Gateway) -> None:
    clients = [Client(gateway.port) for _ in range(8)]
    for one in clients:
        assert one.text("old__echo", text="before") == "before"
        one.close()
    victim = kill_one(gateway)
    for one in clients:
        assert one.text("old__echo", text="after") == "after"
        one.end()
    replaced(gateway, victim)


@pytest.mark.promise("M79")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_front_that_is_killed_under_load_refuses_nobody(gateway: Gateway, era: str) -> None:
    with Callers(gateway.port, ["old", "new"], callers=16, era=era) as run:
        until(lambda: run.tally.right > 500, "calls go through")
        victim = kill_one(gateway)
        replaced(gateway, victim)
        more = run.tally.right + 500
        until(lambda: run.tally.right > more, "calls go through again")
    assert (run.tally.wrong, run.tally.refused, dict(run.tally.errors)) == ([], 0, {})
    assert run.tally.broken <= run.callers  # the connections of that front, once each


def sessions(gateway: Gateway) -> tuple[int, int]:
    """Of all fronts, as `ctl status` and the metrics have them."""
    page = gateway.ops("/metrics")[1].splitlines()
    counted = (line.rpartition(" ")[2] for line in page if line.startswith("metamcp_sessions{"))
    shown = sum(front["sessions"] for front in gateway.status()["fronts"])
    return shown, sum(int(float(number)) for number in counted)


def test_all_fronts_are_shown_and_counted_together(gateway: Gateway) -> None:
    clients = [Client(gateway.port) for _ in range(12)]
    assert len(pids(gateway)) == len(gateway.status()["fronts"]) > 1
    assert gateway.ops("/livez")[0] == 200

    def counted() -> bool:
        shown, exposed = sessions(gateway)
        return shown == exposed >= len(clients)

    until(counted, "the sessions of all fronts are counted")
    for one in clients:
        one.end()


@pytest.mark.promise("M79")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_all_fronts_are_replaced_under_load_and_nobody_notices(era: str) -> None:
    with Gateway({"git": fake()}, extra="[gateway]\nfronts = 2") as gateway:
        before = {front["pid"] for front in gateway.status()["fronts"]}
        with Callers(gateway.port, ["git"], callers=8, era=era) as run:
            until(lambda: run.tally.right > 50, "calls flow")
            gateway.ctl("roll")
            calls = run.tally.right
            until(lambda: run.tally.right > calls + 50, "calls flow on")
            run.stop()
        assert not before & {front["pid"] for front in gateway.status()["fronts"]}
        assert (run.tally.wrong, dict(run.tally.errors), run.tally.refused) == ([], {}, 0)
