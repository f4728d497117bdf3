"""What `wait` waits for."""

import asyncio
import os
import subprocess
import sys

import pytest

from metamcp_supervisor.control.follow import FULFILS
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.verbs import Exit
from tests.supervisor.control.test_control import peer
from tests.supervisor.small_gateway import server, steered
from tests.waiting import until

STATES = ("warming", "ready", "active", "idle", "draining", "stopped", "error", "quarantined")


@pytest.mark.parametrize("wanted", sorted(FULFILS))
async def test_exactly_the_states_that_fulfil_a_wish_end_its_waiting(wanted: str) -> None:
    servers = [server(state, state, retry_in_s=1.0) for state in STATES]
    async with steered(*servers) as (_, directory), peer(directory) as client:
        fulfilled: set[str] = set()
        for state in STATES:
            asked = {"names": [state], "for": wanted, "timeout_s": 0.01}
            if "result" in await client.ask("wait", **asked):
                fulfilled.add(state)
        assert fulfilled == next(found for name, found in FULFILS.items() if name == wanted)


@pytest.mark.promise("M80")
async def test_waiting_for_a_state_ends_when_it_comes() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        asyncio.get_running_loop().call_later(0.02, gateway.become, "git", "error")
        answer = await client.ask("wait", names=["git"], **{"for": "error"})
        assert answer["result"] == {"v": 1}


async def test_waiting_for_many_servers_looks_at_each_as_often_as_something_happens_to_it() -> None:
    names = [f"s{number}" for number in range(100)]
    async with (
        steered(*(server(name, "warming") for name in names)) as (gateway, directory),
        peer(directory) as client,
        peer(directory) as other,
    ):
        waiting = asyncio.create_task(client.ask("wait", timeout_s=20))
        for name in names:
            gateway.become(name, "ready")
            await other.ask("events", n=0)
        assert (await waiting)["result"] == {"v": 1}
        # All once a second, too; a look at all for every event would be 10,000.
        assert gateway.rows < 20 * len(names)


async def test_waiting_for_active_in_vain_ends_at_once() -> None:
    failed = server("git", "error", phase="failed", reason="spawn", retry_in_s=60.0)
    async with steered(failed) as (_, directory), peer(directory) as client:
        error = (await client.ask("wait", names=["git"], **{"for": "active"}))["error"]
        assert error["code"] == Exit.FAILED
        unknown = await client.ask("wait", names=["git"], **{"for": "happy"})
        assert "error" in unknown


async def test_a_server_that_failed_is_waited_for_if_it_is_tried_again_in_time() -> None:
    failed = server(
        "git", "error", phase="failed", reason="exit", message="status 3", retry_in_s=38.0
    )
    async with steered(failed) as (gateway, directory), peer(directory) as client:
        error = (await client.ask("wait", timeout_s=30))["error"]
        assert error["code"] == Exit.FAILED
        assert error["message"].startswith("git failed: status 3 (next start in 38 s)")
        waiting = asyncio.create_task(client.ask("wait", timeout_s=60))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        gateway.become("git", "ready")
        assert (await waiting)["result"] == {"v": 1}
        gateway.servers["git"] = server("git", "error", phase="quarantined", retry_in_s=1.0)
        error = (await client.ask("wait", timeout_s=60))["error"]
        assert error["code"] == Exit.FAILED, "no time ends a quarantine"
        assert error["message"].startswith("git is in quarantine: ")
        assert error["message"].endswith("; 'metamcp ctl clear git' lets it out")


@pytest.mark.process
def test_a_tree_has_its_root_first_and_one_that_is_gone_has_nothing() -> None:
    script = "import subprocess; subprocess.run(['sleep', '1000'])"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        try:
            tree = until(
                lambda: (found := usage.trees([parent.pid])[parent.pid])[1:] and found,
                "its child runs",
            )
            assert next(process.pid for process in tree) == parent.pid
            until(lambda: usage.trees([parent.pid])[parent.pid][1].command[0] == "sleep", "sleep")
            assert tree[1].parent == parent.pid
        finally:
            for process in usage.trees([parent.pid])[parent.pid][::-1]:
                os.kill(process.pid, 9)
    assert usage.trees([parent.pid]) == {parent.pid: []}
