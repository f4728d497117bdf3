"""The process of the sandboxes in the true gateway: there from the first run to the end of its
table, replaced when it dies, gone with the gateway."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.sandbox import confinement
from tests.live import processes
from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until
from tests.worker.sandbox.sandboxes import denos

pytestmark = [pytest.mark.live, pytest.mark.promise("M46")]

SERVERS = {"one": fake()}
ENDPOINT = """
[endpoints.default]
namespace = "default"
exposure = "code"
"""
CODE = f"{ENDPOINT}[code]\nwarm = 1\n"
CALL_MS = 8000
"""Of a call to which something happens meanwhile."""
UNUSED_BYTES_MAX = 3 * 1024 * 1024
WAITING_BYTES_MAX = 45 * 1024 * 1024
"""Memory of two sandboxes that wait."""
BESIDE_BYTES_MAX = 12 * 1024 * 1024
"""Memory of the process of the sandboxes."""


def value(gateway: Gateway, code: str, **arguments: object) -> object:
    """What code of a client returns."""
    with closing(Client(gateway.port)) as client:
        result = client.call("run_code", code=code, args=arguments)["result"]
    assert not result["isError"], result
    return result["structuredContent"]["value"]


def run(gateway: Gateway) -> None:
    assert value(gateway, "return args.n + 1", n=41) == 42


def role(gateway: Gateway) -> dict[str, Any]:
    """What the status says of the process; empty if it is not wanted."""
    return next(
        (one for one in gateway.status()["roles"] if one["role"] == "code"), dict[str, Any]()
    )


def session_of(pid: int) -> tuple[int, str]:
    """The session of a process, and its priority beside others if the kernel has one for it."""
    with suppress(FileNotFoundError):
        return os.getsid(pid), Path(f"/proc/{pid}/autogroup").read_text().strip().partition(" ")[2]
    return os.getsid(pid), ""


def test_the_first_run_starts_it_and_the_operator_sees_it() -> None:
    with Gateway(SERVERS, extra=CODE) as gateway:
        assert (role(gateway)["state"], role(gateway)["pid"]) == ("idle", 0)
        assert "code: idle" in gateway.ctl("status").splitlines()
        run(gateway)
        until(lambda: role(gateway)["counts"].get("runs") == 1, "the run is counted")
        found = until(lambda: role(gateway) if role(gateway)["memory_bytes"] else {}, "its memory")
        assert (found["state"], found["confined"] != "") == ("ready", True)
        assert f"code: ready, process {found['pid']}, " in gateway.ctl("status")
        shares = {session_of(pid) for pid in (found["pid"], *denos(found["pid"]))}
        assert len(shares) == 1, "all sandboxes together have the share of one"
        assert shares.pop()[1] in ("", f"nice {confinement.SESSION_NICE}")
        assert f"code        ready                 process {found['pid']}" in gateway.journal()
        page = gateway.ops("/metrics")[1]
        assert 'metamcp_code_runs_total{outcome="ok"} 1.0' in page
        assert 'metamcp_process_resident_memory_bytes{role="code"' in page
        assert "metamcp_code_running 0.0" in page


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_was_killed_or_hangs_is_replaced_at_the_next_run(number: signal.Signals) -> None:
    with Gateway(SERVERS, extra=CODE) as gateway:
        run(gateway)
        first = role(gateway)["pid"]
        sandboxes = set(denos(first))
        os.kill(first, number)
        until(lambda: role(gateway)["pid"] != first, "it is gone")
        run(gateway)
        assert role(gateway)["pid"] not in (0, first)
        until(lambda: not processes.alive(sandboxes), "its sandboxes are gone")
        assert "it ended with signal 9; its runs failed" in gateway.journal()


def test_other_settings_reach_it_and_without_its_table_it_ends() -> None:
    with Gateway(SERVERS, extra=CODE) as gateway:
        run(gateway)
        pid = role(gateway)["pid"]
        gateway.extra = f"{ENDPOINT}[code]\nwarm = 3\n"
        gateway.write(SERVERS)
        gateway.ctl("reload")
        run(gateway)
        until(lambda: len(denos(pid)) == 3, "so many sandboxes wait")
        assert role(gateway)["pid"] == pid
        gateway.extra = ""
        gateway.write(SERVERS)
        gateway.ctl("reload")
        until(lambda: not Path(f"/proc/{pid}").exists(), "it ends")
        assert role(gateway) == {}
        assert "metamcp_code" not in gateway.ops("/metrics")[1]


@pytest.mark.parametrize("order", ["upgrade", "reload"])
def test_a_run_under_way_ends_well_when_its_process_has_to_go(order: str) -> None:
    code = "return await mcp.call('one__sleep', { ms: args.ms })"
    with Gateway(SERVERS, extra=CODE) as gateway, ThreadPoolExecutor(1) as pool:
        found = pool.submit(value, gateway, code, ms=CALL_MS)
        until(lambda: gateway.server("one")["inflight"], "it calls")
        first = role(gateway)["pid"]
        gateway.extra = ""
        gateway.write(SERVERS)
        gateway.ctl(order)
        until(lambda: role(gateway) == {}, "no further run is possible")
        assert found.result() == f"slept {CALL_MS} ms"
        until(lambda: not Path(f"/proc/{first}").exists(), "it ends after its run")


def test_an_upgrade_and_a_stop_leave_nothing_of_it() -> None:
    with Gateway(SERVERS, extra=CODE) as gateway:
        run(gateway)
        first = role(gateway)["pid"]
        gateway.ctl("upgrade")
        until(lambda: not Path(f"/proc/{first}").exists(), "that of the program before ends")
        assert 'metamcp_code_runs_total{outcome="ok"}' in gateway.ops("/metrics")[1]
        run(gateway)
        second = role(gateway)["pid"]
        assert second not in (0, first)
        until(lambda: denos(second), "a sandbox waits")
        every = {second, *denos(second)}
        gateway.stop()
        until(lambda: not processes.alive(every), "all of it has ended")


def test_without_a_run_code_mode_costs_next_to_nothing_and_two_sandboxes_what_they_are() -> None:
    with Gateway(SERVERS) as without, Gateway(SERVERS, extra=f"{ENDPOINT}[code]\n") as gateway:
        until(lambda: role(gateway), "code mode is on")
        found = {each: {each.pid, *processes.below(each.pid)} for each in (without, gateway)}
        assert len(found[without]) == len(found[gateway])
        off, idle = (sum(map(processes.memory, pids)) for pids in found.values())
        assert idle - off <= UNUSED_BYTES_MAX
        client = Client(gateway.port)
        assert all(client.text("one__echo", text="a") == "a" for _ in range(100))
        client.close()
        assert role(gateway)["pid"] == 0, "calls of others do not start it"
        run(gateway)
        pid = role(gateway)["pid"]
        until(lambda: "metamcp_code_warm 2.0" in gateway.ops("/metrics")[1], "two wait")
        assert sum(map(processes.memory, denos(pid))) <= WAITING_BYTES_MAX
        assert processes.memory(pid) <= BESIDE_BYTES_MAX
