"""Limits of use with the true binary: what is refused and how, and what outlives processes."""

import http.client
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_metrics import total
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M66"), pytest.mark.timeout(120)]

OVERLOADED = -10002


def shown(gateway: Gateway, kind: str, name: str) -> dict[str, Any]:
    """What the status says of the limits of an owner."""
    limits: list[dict[str, Any]] = gateway.status()["limits"]
    return next(one for one in limits if (one["kind"], one["name"]) == (kind, name))


def stored(gateway: Gateway) -> int:
    """The largest count of calls that is in the database."""
    path = gateway.folder / "state" / "metamcp.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        (calls,) = database.execute("SELECT max(used) FROM quota").fetchone()
    return int(calls or 0)


def called(gateway: Gateway, times: int, path: str = "/mcp") -> list[int]:
    """The codes of the errors of so many calls, 0 for one that is answered well."""
    with closing(Client(gateway.port, MODERN, path)) as client:
        answers = [client.call("one__echo", text="x") for _ in range(times)]
    return [answer.get("error", {}).get("code", 0) for answer in answers]


def test_a_quota_goes_on_after_a_front_the_gateway_or_its_program_has_ended() -> None:
    with Gateway({"one": {**fake(), "limits": {"calls_per_day": 10}}}) as gateway:

        def today() -> int:
            return int(shown(gateway, "server", "one")["calls_today"])

        assert called(gateway, 3) == [0, 0, 0]
        until(lambda: today() == 3, "the calls were told")
        front = gateway.status()["fronts"][0]["pid"]
        os.kill(front, signal.SIGKILL)
        until(lambda: gateway.status()["fronts"][0]["pid"] not in (0, front), "another front")
        assert called(gateway, 2) == [0, 0]
        until(lambda: today() == 5, "the calls were told")
        gateway.ctl("upgrade")
        until(lambda: "renewed" in gateway.journal(), "the fronts are of the new program")
        assert called(gateway, 2) == [0, 0]
        assert gateway.stop() == 0
        gateway.start()
        assert today() == 7, "an orderly end loses nothing"
        assert called(gateway, 4) == [0, 0, 0, OVERLOADED]
        until(lambda: stored(gateway) == 10, "the calls are written")
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(timeout=30)
        until(lambda: not gateway.left(), "everything has ended")
        gateway.start()
        assert called(gateway, 1) == [OVERLOADED]
        text = "one: 10 of 10 calls today; refused by calls_per_day 1"
        until(lambda: any(shown(gateway, "server", "one")["refused"].values()), "it was told")
        assert f"server {text}" in gateway.ctl("status")
        assert "10 of 10 calls today; refused by calls_per_day 1" in gateway.ctl("tree")
        limited = "metamcp_limited_total"
        assert total(gateway, limited, kind="server", name="one", limit="calls_per_day") == 1
        assert total(gateway, "metamcp_quota_used_ratio", kind="server", name="one") == 1.0


# Each limit and its refusal

LIMITED = """
[endpoints.free]
namespace = "default"
[endpoints.minute]
namespace = "default"
limits = { calls_per_minute = 1 }
[endpoints.day]
namespace = "default"
limits = { calls_per_day = 1 }
[endpoints.flight]
namespace = "default"
limits = { in_flight = 1 }
[endpoints.stream]
namespace = "default"
limits = { streams = 1, body_max = "4K" }
"""
SLEEP_MS = 20_000


@pytest.fixture(scope="module")
def limited() -> Iterator[Gateway]:
    with Gateway({"one": fake()}, extra=LIMITED) as found:
        yield found


def posted(gateway: Gateway, path: str, body: bytes, **headers: str) -> tuple[int, str, Any]:
    """Status, `Retry-After` and body of the answer to a request."""
    with closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)) as connection:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.getheader("retry-after") or "", json.loads(answer.read())


@pytest.mark.parametrize(
    ("name", "limit"),
    [("minute", "calls_per_minute"), ("day", "calls_per_day"), ("flight", "in_flight")],
)
def test_a_call_above_a_limit_gets_the_error_of_its_era_and_rest_429(
    limited: Gateway, name: str, limit: str
) -> None:
    base = f"/metamcp/{name}"
    with closing(Client(limited.port, MODERN, f"{base}/mcp")) as first:
        if limit == "in_flight":
            message = {
                "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "one__sleep", "arguments": {"ms": SLEEP_MS},
                           "_meta": first.meta()},
            }  # fmt: skip
            body, headers = json.dumps(message), first.headers("tools/call", "one__sleep")
            first.http.request("POST", first.path, body, headers)
            until(lambda: limited.server("one")["inflight"] == 1, "it is in flight")
        else:
            assert first.text("one__echo", text="x") == "x"
        for era in (MODERN, LEGACY):
            with closing(Client(limited.port, era, f"{base}/mcp")) as client:
                error = client.call("one__echo", text="x")["error"]
                assert error["code"] == OVERLOADED
                assert f"The limit {limit} of the endpoint {name} is reached" in error["message"]
                assert (error["data"]["reason"], error["data"]["limit"]) == ("limit", limit)
                assert (error["data"].get("retryAfterMs", 0) > 0) is (limit != "in_flight")
                assert client.tools(), "a list is not a call"
        status, after, _ = posted(limited, f"{base}/api/one__echo", b'{"text":"x"}')
        assert (status, int(after) > 0) == (429, True)
    told = "metamcp_limited_total"
    until(lambda: total(limited, told, kind="endpoint", name=name, limit=limit) == 3, "it counts")
    assert called(limited, 1, "/metamcp/free/mcp") == [0], "another endpoint has no limit"


def test_a_stream_above_the_limit_gets_429_and_a_body_413(limited: Gateway) -> None:
    path = "/metamcp/stream/mcp"
    with closing(Client(limited.port, LEGACY, path)) as client:
        wanted = {**client.headers(), "Accept": "text/event-stream"}
        client.http.request("GET", path, headers=wanted)
        assert client.http.getresponse().status == 200
        with closing(Client(limited.port, LEGACY, path)) as other:
            other.http.request("GET", path, headers={**other.headers(), "Accept": wanted["Accept"]})
            answer = other.http.getresponse()
            assert (answer.status, answer.getheader("retry-after")) == (429, "10")
            assert json.loads(answer.read())["error"]["code"] == OVERLOADED
    status, _, said = posted(limited, path, b" " * 4097, Accept="application/json")
    assert (status, said["error"]["message"]) == (413, "The body has more than 4096 bytes.")
    until(
        lambda: shown(limited, "endpoint", "stream")["refused"] == {"streams": 1, "body_max": 1},
        "both count",
    )


# Turns at a server

SHARED = """
[workspaces.acme.namespaces.dev]
servers = ["default:slow"]
[workspaces.acme.endpoints.acme]
namespace = "dev"
[endpoints.mine]
namespace = "default"
[endpoints.keyed]
namespace = "default"
auth = "keys"
"""
CALL_MS = 20
FLOOD = 48
CALLS = 60
OVERTAKEN_MAX = FLOOD // 2
"""Calls of the flood that may be answered during one call of another: those that run, twice over,
and what threads of the test count late. Without turns all of the flood would come first."""


class KeyedClient(Client):
    """A client that sends a key."""

    def __init__(self, port: int, key: str, path: str) -> None:
        self.key = key
        super().__init__(port, LEGACY, path)

    def headers(self, method: str = "", name: str = "") -> dict[str, str]:
        return {**super().headers(method, name), "X-API-Key": self.key}


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    slow = {**fake(), "sharing": "shared", "concurrency": 4}
    with Gateway({"slow": slow}, extra=SHARED) as found:
        yield found


def key(gateway: Gateway, name: str) -> str:
    command = [*gateway.command("keys"), "create", name, "--json"]
    done = programs.run(command, check=True)
    made: str = json.loads(done.stdout)["key"]
    return made


@contextmanager
def flood(made: Callable[[], Client], gateway: Gateway) -> Generator[list[None]]:
    """Sessions that call without a pause; the list grows with each answer."""
    over, answered = threading.Event(), list[None]()

    def call() -> None:
        with closing(made()) as client:
            while not over.is_set():
                client.text("slow__sleep", ms=CALL_MS)
                answered.append(None)

    with ThreadPoolExecutor(FLOOD) as pool:
        calls = [pool.submit(call) for _ in range(FLOOD)]
        try:
            until(lambda: gateway.server("slow")["inflight"] >= FLOOD // 2, "the flood")
            yield answered
        finally:
            over.set()
    for one in calls:
        one.result()


@pytest.mark.parametrize("owner", ["workspace", "key"])
def test_a_flood_of_one_hardly_delays_another_at_a_server_of_both(
    shared: Gateway, owner: str
) -> None:
    def client(who: str) -> Client:
        if owner == "key":
            return KeyedClient(shared.port, keys[who], "/metamcp/keyed/mcp")
        return Client(shared.port, LEGACY, f"/metamcp/{who}/mcp")

    keys = {who: key(shared, who) for who in ("mine", "acme")} if owner == "key" else {}
    with closing(client("acme")) as other, flood(lambda: client("mine"), shared) as answered:
        first: list[int] = []
        for _ in range(CALLS):
            before = len(answered)
            other.text("slow__sleep", ms=CALL_MS)
            first.append(len(answered) - before)
    assert sorted(first)[CALLS * 9 // 10] < OVERTAKEN_MAX, first
