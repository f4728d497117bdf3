"""What an operator does to a server that is at work: sees its calls, tunes it, signals it."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

LONG_MS = 60_000
"""Of calls that nobody waits for to end."""
NOTES = {"module": "notes:server", "cwd": str(ROOT / "examples" / "demo")}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "git": fake(),
        "single": {**fake(), "concurrency": 1},
        "notes": NOTES,
        "far": {"url": "http://127.0.0.1:9/mcp"},
    }
    with Gateway(servers, wait=False) as running:
        until(running.answers, "the gateway answers")
        running.wait("git", "single", "notes")
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    found = Client(gateway.port)
    yield found
    found.close()


def in_background(gateway: Gateway, tool: str, **arguments: Any) -> tuple[Client, threading.Thread]:
    """A call of a client of its own. With its session it ends."""
    caller = Client(gateway.port)

    thread = threading.Thread(target=lambda: caller.call(tool, **arguments))
    thread.start()
    return caller, thread


def under_way(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    found = json.loads(gateway.ctl("calls", "--json", *arguments))
    assert (found["v"], found["more"], found["silent"]) == (1, 0, [])
    calls: list[dict[str, Any]] = found["calls"]
    return calls


def states(gateway: Gateway) -> list[str]:
    return [call["state"] for call in under_way(gateway)]


@pytest.mark.promise("M80")
def test_calls_under_way_are_shown_with_who_waits_for_them(gateway: Gateway) -> None:
    callers = [in_background(gateway, "single__sleep", ms=LONG_MS) for _ in range(2)]
    try:
        until(lambda: "queued" in states(gateway), "the front knows that the server is ready")
        running, queued = under_way(gateway, "single")
        assert (running["state"], queued["state"]) == ("running", "queued")
        assert {running["name"], running["client"]} == {"single__sleep", "raw"}
        assert running["session"] != queued["session"]
        assert not any(str(caller.session) in json.dumps(running) for caller, _ in callers)
        told = [value for value in running.values() if not isinstance(value, float)]
        assert str(LONG_MS) not in json.dumps(told), "no argument of it"
        assert under_way(gateway, "git") == []
        assert under_way(gateway, "--slow", "1h") == []
        table = gateway.ctl("calls")
        assert "single__sleep" in table
        assert "2 under way" in table
        (front,) = gateway.status()["fronts"]
        os.kill(front["pid"], signal.SIGSTOP)
        try:
            assert "front-0 did not say" in gateway.ctl("calls")
        finally:
            os.kill(front["pid"], signal.SIGCONT)
    finally:
        for caller, thread in callers:
            Client.joining(caller, gateway.port).end()
            thread.join()
            caller.close()
    until(lambda: not under_way(gateway), "nobody waits any more")


@pytest.mark.promise("M80")
def test_a_setting_counts_at_once_and_only_for_its_time(gateway: Gateway, client: Client) -> None:
    said = gateway.ctl("set", "git", "timeout=200ms", "--until", "1h")
    assert "git: timeout 200ms until" in said
    assert "(else 5m)" in said
    answer = client.call("git__sleep", ms=LONG_MS)
    assert "within 0.2 s" in answer["error"]["message"]
    assert "timeout 200ms until" in gateway.ctl("describe", "git")
    assert "stays as set: timeout" in gateway.ctl("reload")
    assert "within 0.2 s" in client.call("git__sleep", ms=LONG_MS)["error"]["message"]
    gateway.ctl("set", "git", "--clear")
    assert "result" in client.call("git__sleep", ms=400)
    gateway.ctl("set", "git", "timeout=200ms", "--until", "500ms")
    until(lambda: not gateway.describe("git")["overrides"], "its time is over")
    until(lambda: "result" in client.call("git__sleep", ms=400), "its worker has heard so")
    whole = gateway.ctl("events", "--type", "set")
    assert "asked by process" in whole
    assert "timeout is 5m again" in whole
    gateway.ctl("set", "git", "command=sh", ok=[65])


@pytest.mark.promise("M80")
def test_a_signal_reaches_the_server_itself_and_those_without_one_are_refused(
    gateway: Gateway,
) -> None:
    before = gateway.server("git")
    said = gateway.ctl("signal", "git", "SIGKILL")
    assert said == f"git: SIGKILL sent to process {before['pid']}\n"
    until(lambda: gateway.server("git")["generation"] > before["generation"], "it starts anew")
    gateway.wait("git")
    gateway.ctl("signal", "notes", "HUP", ok=[1])
    gateway.ctl("signal", "far", "HUP", ok=[1])
    told = gateway.ctl("events", "--type", "refused")
    assert "'signal notes' asked by process" in told
    assert "notes runs in its worker and has no process of its own" in told
    assert "far is reached by URL: it has no process here" in told


@pytest.mark.promise("M80")
def test_latency_is_that_of_the_latest_calls(gateway: Gateway, client: Client) -> None:
    for _ in range(3):
        client.call("git__sleep", ms=30)
    until(lambda: gateway.server("git")["p95_s"], "the front has told")
    assert gateway.server("git")["p95_s"] >= gateway.server("git")["p50_s"] > 0
    assert "95 % within" in gateway.ctl("describe", "git")
    load: dict[str, Any] = {}

    def all_told() -> bool:
        load.update(json.loads(gateway.ctl("top", "--json")))
        return sum(map(int, load["latencies"]["git"])) >= 3

    until(all_told, "the front has told of all three")
    assert len(load["latencies"]["git"]) == len(load["bounds_s"]) + 1


@pytest.mark.promise("M89")
def test_who_follows_the_journal_goes_on_after_a_restart_of_the_gateway() -> None:
    with Gateway({"git": fake()}) as gateway:
        command = gateway.command(
            "ctl", "events", "-f", "--json", "--type", "→ready", "--reconnect", "60s"
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
            assert follower.stdout is not None
            assert follower.stderr is not None
            seen = [json.loads(follower.stdout.readline())["who"] for _ in range(2)]
            assert gateway.process is not None
            gateway.process.kill()
            gateway.process.wait()
            assert b"the gateway is gone; waiting 60 s" in follower.stderr.readline()
            gateway.start()
            seen += [json.loads(follower.stdout.readline())["who"] for _ in range(2)]
            follower.send_signal(signal.SIGINT)
            assert follower.wait() == 130
    assert sorted(seen) == ["front-0", "front-0", "git", "git"]
