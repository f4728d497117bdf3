"""What an operator is told of a true gateway: why a server is down, its history, its load."""

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.client import Client
from tests.live.gateway import SERVER, Gateway
from tests.waiting import until

pytestmark = pytest.mark.live

SECRET = "a-secret-of-the-environment"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers: dict[str, dict[str, Any]] = {
        # A shell that stays, with an argument that holds what its environment holds.
        "good": {
            "command": ["sh", "-c", f"{shlex.join(SERVER)}; :", f"--for={SECRET}"],
            "env": {"NAME_OF_IT": SECRET},
        },
        "bad": {"command": ["sh", "-c", "echo no repository >&2; exit 3"]},
    }
    with Gateway(servers, wait=False) as running:
        until(running.answers, "the gateway answers")
        running.wait("good", state="active")
        yield running


@pytest.mark.promise("M80")
def test_a_server_that_never_becomes_ready_is_explained_in_one_sentence(gateway: Gateway) -> None:
    def failed_twice() -> dict[str, Any] | None:
        found = gateway.describe("bad")
        return found if found["failures"] >= 2 and found["server"]["phase"] == "backoff" else None

    found = until(failed_twice, "it failed twice")
    assert found is not None
    assert "it ended with status 3; on stderr: no repository; 'metamcp logs " in found["why"]
    assert f"{found['recent']} within 120 s (8 are allowed); next start in " in found["why"]
    assert [end["reason"] for end in found["exits"]] == ["exit"] * len(found["exits"])
    assert found["exits"][-1]["next"] == "error"
    assert found["log"][-1]["text"] == "no repository"


@pytest.mark.promise("M80")
def test_a_working_server_shows_its_processes_and_no_secret(gateway: Gateway) -> None:
    found = gateway.describe("good")
    worker, shell, server = found["processes"]
    assert (shell["pid"], shell["parent"]) == (found["server"]["pid"], worker["pid"])
    assert server["parent"] == shell["pid"]
    assert worker["command"] == ["metamcp", "worker", "good"]
    assert server["rss_bytes"] > 0
    assert server["descriptors"] > 0
    assert found["list_hash"]
    assert found["config"]["env"]["NAME_OF_IT"] == "***"
    assert shell["command"][-1] == "--for=***"


def test_a_kill_is_in_the_history_and_in_the_sentence(gateway: Gateway) -> None:
    before = gateway.describe("good")
    os.kill(before["server"]["pid"], 9)

    def back() -> bool:
        found = gateway.describe("good")
        server = found["server"]
        newer = server["generation"] > before["server"]["generation"]
        return bool(newer and server["state"] == "active")

    until(back, "it is back")
    found = gateway.describe("good")
    assert found["exits"][-1]["reason"] == "signal"
    assert found["exits"][-1]["ready_s"] > 0
    assert "it answers calls; it went down before (signal: " in found["why"]


@pytest.mark.promise("M80")
def test_top_counts_calls_and_measures_the_server(gateway: Gateway) -> None:
    gateway.wait("good", state="active")
    client = Client(gateway.port)
    client.text("good__echo", text="hi")
    client.close()

    def counted() -> bool:
        found = json.loads(gateway.ctl("top", "--json"))
        (good,) = (one for one in found["status"]["servers"] if one["name"] == "good")
        return bool(good["calls"]) and found["footprints"]["good"]["processes"] == 3

    until(counted, "the call is counted")
    assert "good" in gateway.ctl("top", "--every", "50ms")


def test_an_order_and_who_gave_it_are_in_the_journal(gateway: Gateway) -> None:
    before = gateway.server("good")["generation"]
    gateway.ctl("restart", "good", "--wait")
    assert gateway.server("good")["generation"] == before + 1
    events = gateway.ctl("events", "--since", "1h", "--type", "restart")
    assert f"of user id {os.geteuid()} (" in events


def test_the_doctor_knows_the_gateway_that_runs(gateway: Gateway) -> None:
    done = gateway.run("ctl", "doctor", "--json", ok=())
    found = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["gateway"]["text"] == f"active, process {gateway.pid}"
    assert str(gateway.port) in found["listen"]["text"]
