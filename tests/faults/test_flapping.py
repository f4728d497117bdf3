"""Servers that come and go, that die at every step of their lives, and that come back as others."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.servers.catalog_changes import LIST_CHANGES_MAX
from tests.faults.ears import hearing
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, Raw
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

FLAPS = 4

#: Where a server dies -> the flags that make it so.
STEPS = {
    "probed": ("--die-at", "server/discover"),
    "greeted": ("--era", "legacy", "--die-at", "initialize"),
    "begun": ("--era", "legacy", "--die-at", "notifications/initialized"),
    "listed": ("--die-at", "tools/list"),
}


@pytest.mark.promise("M28", "M72")
def test_a_flapping_server_does_not_make_clients_fetch_their_lists_again_and_again() -> None:
    flapping = {**fake("--exit-after", "1000"), "hide_after": "10ms", "restarts_max": FLAPS - 1}
    with Gateway({"good": fake(), "flaps": flapping}, wait=False) as gateway:
        with closing(Client(gateway.port, MODERN)) as client:
            gateway.wait("good")
            until(lambda: "good__echo" in client.tools(), "its tools are listed")
        with hearing(gateway.port, LEGACY) as one, hearing(gateway.port, MODERN) as other:
            until(lambda: gateway.server("flaps")["phase"] == "failed", "its circuit is open", 60)
            ready = [line for line in told(gateway, "flaps") if "warming→ready" in line]
            assert len(ready) > LIST_CHANGES_MAX, "more often than lists may change"
            assert gateway.server("flaps")["generation"] == FLAPS
            for stream in (one, other):
                # It may have come up for the first time after the client.
                assert 0 < stream.changes() <= LIST_CHANGES_MAX + 1
            with closing(Client(gateway.port, MODERN)) as client:
                client.call("flaps__echo", text="a")  # allows one attempt
            until(lambda: gateway.server("flaps")["generation"] == FLAPS + 1, "half-open")
            assert gateway.server("good")["generation"] == 1


@pytest.mark.promise("M28")
def test_a_server_that_comes_back_as_another_is_in_the_journal_and_clients_hear_it_once(
    tmp_path: Path,
) -> None:
    with Gateway({"pulls": fake("--another", str(tmp_path / "starts"))}) as gateway:
        asking = Raw(gateway.port, MODERN)
        before = asking.names()
        with hearing(gateway.port, LEGACY) as one, hearing(gateway.port, MODERN) as other:
            gateway.ctl("restart", "pulls", "--wait")
            until(lambda: one.changes() and other.changes(), "they heard of it")
            (line,) = [line for line in told(gateway, "pulls") if "lists changed" in line]
            assert f"tools: new1 added ({len(before) + 1} in all)" in line
            gateway.ctl("stop", "pulls", "--wait")  # another change, after which no first one comes
            until(lambda: one.changes() > 1 and other.changes() > 1, "that it is gone")
            assert one.changes() == other.changes() == 2
            assert "pulls__new1" not in before


@pytest.mark.promise("M72", "M74")
def test_a_server_that_dies_at_any_step_of_its_start_is_told_and_leaves_nothing() -> None:
    entries = {name: fake(*flags) for name, flags in STEPS.items()}
    with Gateway({"good": fake(), **entries}, wait=False) as gateway:
        gateway.wait("good")
        gateway.ctl("stop", *STEPS, "--wait")
        before = descriptors(gateway)
        gateway.ctl("start", *STEPS)

        def tried() -> bool:
            found = {one["name"]: one for one in gateway.status()["servers"]}
            return all(found[name]["generation"] >= 4 for name in STEPS if name != "probed")

        until(tried, "each was started again and again", 60)
        found = {one["name"]: one for one in gateway.status()["servers"]}
        assert found["probed"]["state"] == "active", "it was started without the question"
        for name in STEPS.keys() - {"probed"}:
            assert found[name]["reason"] == "exit", found[name]
            assert "ended with status 9" in found[name]["message"]
        gateway.ctl("stop", *STEPS, "--wait")
        until(lambda: descriptors(gateway) == before, f"{before}: {descriptors(gateway)}")
        assert len([pid for pid in gateway.left() if "stdio_server" in command(pid)]) == 1


@pytest.mark.promise("M75")
def test_a_server_that_dies_in_the_middle_of_an_answer_fails_that_call_and_comes_back() -> None:
    with Gateway({"torn": fake("--die-at", "tools/call")}) as gateway:
        for era in (LEGACY, MODERN):
            client = Client(gateway.port, era)
            error: dict[str, Any] = client.call("torn__echo", text="a")["error"]
            client.close()
            assert (error["code"], error["data"]["may_have_run"]) == (-10001, True)
            gateway.wait("torn")


def told(gateway: Gateway, name: str) -> list[str]:
    """The journal's lines about a server."""
    lines = gateway.journal().splitlines()
    return [line for line in lines if line.split()[0] == name]


def descriptors(gateway: Gateway) -> list[int]:
    """How many are open in the supervisor, the nursery and the front."""
    status = gateway.status()
    pids = [gateway.pid, status["nursery_pid"], status["fronts"][0]["pid"]]
    return [processes.descriptors(pid) for pid in pids]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
