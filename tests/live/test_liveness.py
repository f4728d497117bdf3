"""Who does not answer is found, described and replaced; who only works, or stood still with the
whole machine, is left alone."""

import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M73")]

OFTEN = {"probe_interval": "500ms", "timeout": "2s", "stop_grace": "200ms"}
PAUSE_S = 8.0
"""Longer than a worker may hang."""
STUCK = """
import re
from mcp.server import MCPServer
app = MCPServer("stuck")

@app.tool()
def spin() -> str:
    return str(re.match("(a+)+$", "a" * 64 + "b"))
"""


def events(gateway: Gateway, who: str) -> list[str]:
    """What happened to it, in words."""
    return [event["what"] for event in gateway.events(who=who)]


def replaced(gateway: Gateway, name: str, old: dict[str, Any]) -> dict[str, Any]:
    """How the server stands when another generation of it is up."""

    def back() -> dict[str, Any]:
        now = gateway.server(name)
        up = now["state"] == "active" and now["generation"] > old["generation"]
        return now if up else {}

    return until(back, f"{name} is replaced")


@contextmanager
def calling(gateway: Gateway, tool: str) -> Generator[dict[str, Any], None, None]:
    """A call under way; at the end of the block its answer is there."""
    found: dict[str, Any] = {}

    def run() -> None:
        client = Client(gateway.port, MODERN)
        found.update(client.request("tools/call", {"name": tool, "arguments": {}}))
        client.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("how", ["deaf", "stopped"])
def test_a_server_that_answers_no_probe_is_replaced_and_its_end_described(how: str) -> None:
    with Gateway({"victim": fake() | OFTEN, "other": fake() | OFTEN}) as gateway:
        old, other = gateway.server("victim"), gateway.server("other")
        if how == "deaf":
            client = Client(gateway.port, MODERN)
            client.text("victim__deafen")
            client.close()
        else:
            os.kill(old["pid"], signal.SIGSTOP)
        new = replaced(gateway, "victim", old)
        assert new["reason"] == "hang"
        assert "it has not answered a server/discover for" in new["message"]
        assert "probe missed" in events(gateway, "victim")
        assert not processes.alive({old["pid"], old["worker_pid"]})
        assert gateway.server("other")["generation"] == other["generation"]


def test_a_server_that_works_longer_than_probes_take_is_left_alone() -> None:
    patient = fake("--era", "legacy") | OFTEN | {"timeout": "30s"}
    with Gateway({"slow": patient}) as gateway:
        old = gateway.server("slow")
        client = Client(gateway.port, MODERN)
        until(lambda: client.text("slow__work", ms=4000) == "worked", "the answer")
        client.close()
        new = gateway.server("slow")
        assert (new["pid"], new["generation"]) == (old["pid"], old["generation"])
        assert "probe missed" not in events(gateway, "slow")


def test_a_stopped_worker_is_parted_from_its_calls_at_once_and_killed_if_it_stays_so() -> None:
    with Gateway({"victim": fake()}) as gateway:
        old = gateway.server("victim")
        worker = old["worker_pid"]
        os.kill(worker, signal.SIGSTOP)
        until(lambda: "heartbeat late" in events(gateway, "victim"), "it is degraded")
        with calling(gateway, "victim__pid") as found:
            new = replaced(gateway, "victim", old)
        # It waited for the next one as long as calls wait, and was not given to the stopped one.
        assert "result" in found or found["error"]["data"]["reason"] == "hang"
        assert new["reason"] == "hang"
        assert not processes.alive({worker, old["pid"]})


def test_a_worker_that_goes_on_in_time_keeps_its_server_and_its_calls() -> None:
    with Gateway({"victim": fake()}) as gateway:
        old = gateway.server("victim")
        for _ in range(3):
            os.kill(old["worker_pid"], signal.SIGSTOP)
            until(lambda: events(gateway, "victim")[-1] == "halted", "it is degraded")
            with calling(gateway, "victim__pid") as found:
                os.kill(old["worker_pid"], signal.SIGCONT)
            assert found["result"]["content"][0]["text"] == str(old["pid"])
        assert gateway.server("victim")["generation"] == old["generation"]


def test_the_stacks_of_a_worker_that_hangs_are_in_the_log_of_its_server() -> None:
    with Gateway({}) as gateway:
        (gateway.folder / "stuck_server.py").write_text(STUCK)
        module = {"module": "stuck_server:app", "cwd": str(gateway.folder)}
        gateway.write({"stuck": module, "other": fake()})
        gateway.ctl("reload")
        gateway.wait()
        old = gateway.server("stuck")
        with calling(gateway, "stuck__spin") as found:
            new = replaced(gateway, "stuck", old)
        assert "error" in found
        assert new["reason"] == "hang"
        log = gateway.ctl("logs", "stuck", "-n", "500")
        assert "[stacks] Fatal Python error: Aborted" in log
        assert "stuck_server.py" in log
        assert "\nFatal Python error" not in gateway.log.read_text(), "only as a line of the log"


@pytest.mark.parametrize("first", ["supervisor", "workers"])
def test_a_pause_of_the_whole_machine_is_nobodys_fault(first: str) -> None:
    with Gateway({"one": fake() | OFTEN, "two": fake()}) as gateway:
        before = gateway.status()
        everybody = [gateway.pid, *sorted(processes.below(gateway.pid))]
        order = everybody if first == "supervisor" else everybody[::-1]
        for pid in order:
            os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + PAUSE_S
        until(lambda: time.monotonic() > end, "the pause is over")
        for pid in order:
            os.kill(pid, signal.SIGCONT)
        client = Client(gateway.port, MODERN)
        assert client.text("one__echo", text="here") == "here"
        client.close()
        after = gateway.status()
        for key in ("servers", "fronts"):
            assert [one["pid"] for one in after[key]] == [one["pid"] for one in before[key]]
        for who in ("one", "two", "front-0"):
            assert not {"heartbeat hung", "heartbeat dead"} & set(events(gateway, who))
