"""Servers that start when they are called: listed without running, gone when nobody needs them."""

import http.client
import os
import shlex
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import one_revision
from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import SERVER, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SERVERS = 100
MEMORY_BYTES_MAX = 120 * 1024 * 1024
"""Of the whole gateway in front of a hundred servers of which none runs."""


def lazy(idle_stop: str = "1s", **more: Any) -> dict[str, Any]:
    return {**fake(), "era": "modern", "start": "lazy", "idle_stop": idle_stop, **more}


def at_rest(gateway: Gateway) -> bool:
    return all(server["state"] == "idle" for server in gateway.status()["servers"])


def listed(client: Client) -> int:
    """How many tools there are, on all pages."""
    page = client.request("tools/list")["result"]
    count = len(page["tools"])
    while "nextCursor" in page:
        page = client.request("tools/list", {"cursor": page["nextCursor"]})["result"]
        count += len(page["tools"])
    return count


@pytest.mark.promise("M72")
def test_the_first_call_to_a_server_that_was_mended_is_answered(tmp_path: Path) -> None:
    needed = tmp_path / "needed"
    script = f"test -e {needed} || exit 3; exec {shlex.join(SERVER)}"
    broken = {"command": ["sh", "-c", script], "restarts_max": 1}
    with Gateway({"broken": broken, "good": fake()}, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("good")
        until(lambda: gateway.server("broken")["phase"] == "failed", "it is given up")
        needed.touch()
        with closing(Client(gateway.port)) as client:
            assert client.text("broken__echo", text="here") == "here"


@pytest.mark.promise("M76")
@pytest.mark.parametrize("restart", ["on-failure", "never"])
def test_a_call_starts_a_server_that_ended_by_itself_and_none_that_was_stopped(
    restart: str,
) -> None:
    command = [sys.executable, one_revision.__file__, "2025-11-25", one_revision.PLAIN]
    with Gateway({"one": {"command": command, "restart": restart}}) as gateway:
        client = Client(gateway.port, MODERN)
        assert "error" in client.call("one__end")
        gateway.wait("one", state="idle")
        assert client.tools() == ["one__echo", "one__end"]
        assert client.text("one__echo").startswith("2025-11-25")
        os.kill(gateway.server("one")["pid"], signal.SIGKILL)
        until(lambda: "result" in client.call("one__echo"), "a call starts it again")
        gateway.ctl("stop", "one", "--wait")
        assert "error" in client.call("one__echo")
        assert gateway.server("one")["state"] == "stopped"
        client.close()


@pytest.mark.promise("M76")
def test_a_hundred_lazy_servers_are_listed_while_none_of_them_runs() -> None:
    with Gateway({f"s{number:03}": lazy() for number in range(SERVERS)}) as gateway:
        until(lambda: at_rest(gateway), "all were started once, and rest", 90)
        assert gateway.stop() == 0
        gateway.start()
        assert at_rest(gateway)
        status = gateway.status()
        own = {status["pid"], status["nursery_pid"], status["fronts"][0]["pid"]}
        for era in (LEGACY, MODERN):
            client = Client(gateway.port, era)
            assert listed(client) == sum(server["tools"] for server in status["servers"])
            client.close()
        assert processes.below(status["pid"]) <= own
        assert sum(map(processes.memory, own)) <= MEMORY_BYTES_MAX
        client = Client(gateway.port)
        assert client.text("s042__echo", text="a") == "a"
        assert gateway.server("s042")["generation"] == 1
        client.close()


@pytest.mark.promise("M76")
def test_servers_that_were_started_to_be_listed_stop_and_the_first_call_starts_them() -> None:
    names = [f"s{number}" for number in range(4)]
    with Gateway({name: lazy("10m") for name in names}) as gateway:

        def call_when_it_stops(name: str) -> str:
            with closing(Client(gateway.port)) as client:
                until(lambda: gateway.server(name)["phase"] in {"draining", "stopping"}, "it stops")
                return client.text(f"{name}__echo", text=name)

        with closing(Client(gateway.port)) as client:
            assert client.text("s0__echo", text="early") == "early"
        with ThreadPoolExecutor(2) as pool:
            assert [*pool.map(call_when_it_stops, names[1:3])] == names[1:3]
        gateway.wait("s3", state="idle")
        causes = {event["who"]: event["cause"] for event in gateway.events(type="ready→draining")}
        assert causes == dict.fromkeys(names[1:], "its lists are read; the first call starts it")
        assert [gateway.server(name)["generation"] for name in names] == [1, 2, 2, 1]
        assert not any(gateway.server(name)["restarts"] for name in names)
        last = gateway.events()[-1]["seq"]
        assert gateway.stop() == 0
        gateway.start()
        assert at_rest(gateway)
        assert not gateway.events(type="idle→warming", since=last)
        with closing(Client(gateway.port)) as client:
            assert client.text("s3__echo", text="a") == "a"


@pytest.mark.promise("M76")
def test_a_call_wakes_a_server_up_however_long_it_takes_to_start() -> None:
    slow = {**lazy("1m"), "command": [*fake()["command"], "--slow-start", "4000"]}
    with Gateway({"slow": slow}) as gateway:
        gateway.stop()
        gateway.start()
        assert gateway.server("slow")["state"] == "idle"
        client = Client(gateway.port)
        began = time.monotonic()
        assert client.text("slow__echo", text="a") == "a"
        assert time.monotonic() - began > 3  # longer than calls are held for other servers
        client.close()


@pytest.mark.promise("M76")
def test_no_call_is_lost_while_a_server_comes_and_goes_for_want_of_use() -> None:
    with Gateway({"git": lazy("1ms")}) as gateway:
        client = Client(gateway.port)
        for number in range(12):
            assert client.text("git__echo", text=str(number)) == str(number)
            if number % 3 == 0:
                until(lambda: gateway.server("git")["state"] == "idle", "it rests")
        assert gateway.server("git")["generation"] >= 4
        assert not gateway.server("git")["errors"]
        assert not gateway.server("git")["restarts"]  # it was woken up, that is all
        client.close()


@pytest.mark.promise("M72")
def test_servers_start_in_the_order_in_which_they_need_each_other() -> None:
    app, mid = {**fake(), "depends_on": ["mid"]}, {**fake(), "depends_on": ["base"]}
    with Gateway({"app": app, "mid": mid, "base": fake()}) as gateway:
        ready = [event["who"] for event in gateway.events(type="warming→ready")]
        assert [name for name in ready if not name.startswith("front")] == ["base", "mid", "app"]
        assert gateway.stop() == 0
        gone = [line for line in gateway.log.read_text().splitlines() if "draining→stopped" in line]
        assert [next(n for n in ("app", "mid", "base") if f'"{n}"' in line) for line in gone] == [
            "app", "mid", "base",
        ]  # fmt: skip


@pytest.mark.promise("M75")
def test_a_call_waits_for_the_very_first_start_of_its_server() -> None:
    slow = {"command": [*fake()["command"], "--slow-start", "3000"]}
    with Gateway({"slow": slow}, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        early = [Client(gateway.port, era) for era in (LEGACY, MODERN)]
        assert gateway.server("slow")["state"] == "warming"
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(client.text, "slow__echo", text="a") for client in early]
            rest = pool.submit(posted, gateway.port, "/api/slow__echo", b'{"text": "a"}')
            assert [call.result() for call in calls] == ["a", "a"]
            assert rest.result() == 200
        for client in early:
            client.close()


def posted(port: int, path: str, body: bytes) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status


def test_a_call_waits_for_a_server_that_starts_and_is_told_of_one_that_was_never_up() -> None:
    slow = {"command": [*fake()["command"], "--slow-start", "4000"]}
    never = {"command": ["no-such-program"]}
    extra = '[endpoints.default]\nnamespace = "default"\n'
    with Gateway({"slow": fake(), "never": never}, extra=extra, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("slow")
        gateway.write({"slow": slow, "never": never})
        gateway.ctl("reload")
        client = Client(gateway.port)
        until(lambda: gateway.server("slow")["state"] == "warming", "it starts anew")
        assert client.text("slow__echo", text="a") == "a"
        error = client.request("tools/call", {"name": "never__echo"})["error"]
        assert error["code"] == -10001
        assert "server 'never' is not available: " in error["message"]
        assert "no program 'no-such-program' on the PATH" in error["message"]
        client.close()
