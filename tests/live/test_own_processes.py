"""The gateway's own processes reach each other over connections that no other process can make."""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.confinement import kernel
from tests.live import processes
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.test_audit import command, records
from tests.live.test_middleware import line, roles
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M96")]

HOSTILE = [sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py")]
SERVERS: dict[str, dict[str, Any]] = {
    "one": fake(),
    "basic": {"command": HOSTILE},
    "none": {"command": HOSTILE, "sandbox": "none"},
}
EXTRA = """
[gateway]
fronts = 2

[audit]
required = true

[code]

[endpoints.default]
namespace = "default"
exposure = "code"
builtins = ["catalog", "workflows"]
"""
CACHE = line("cache", "one/pid", timeout="5s", options={"read_only": False})
SHORT = line("short", "one/echo", uses="filter", timeout="5s", options={"text_max": 4})
PAUSED = {
    "name": "paused",
    "inputs": {"pause": {"type": "string", "default": "0s"}},
    "steps": [
        {"wait": "${{ inputs.pause }}"},
        {"id": "last", "call": "one.echo", "with": {"text": "a"}},
        {"output": "${{ steps.last.result.text }}"},
    ],
}
CONTROL = "control.sock"
BEFORE = ("engine.sock", "audit.sock", "code.sock", "middleware-cache.sock")
"""Sockets at which earlier versions listened."""
ROLES = ("audit", "code", "engine", "middleware cache")
LISTENING = 0x10000


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=f"{EXTRA}{CACHE}") as running:
        yield running


def audited(gateway: Gateway) -> int:
    """Number of records of calls that go through the middleware."""
    return sum(record.tool == "pid" for _, record in records(gateway))


def work(gateway: Gateway) -> None:
    """Use every process of the gateway: code, a workflow, a middleware, the audit."""
    with closing(Client(gateway.port)) as client:
        code = "return (await mcp.call('one__echo', {text: 'b'})).text"
        assert client.call("run_code", code=code)["result"]["structuredContent"]["value"] == "b"
        run = client.call("run_workflow", definition=PAUSED)["result"]["structuredContent"]
        assert run["output"] == "a"
        calls = audited(gateway)
        before = roles(gateway)["middleware cache"]["counts"].get("requests", 0)
        assert client.text("one__pid") == client.text("one__pid")
    until(
        lambda: roles(gateway)["middleware cache"]["counts"].get("requests", 0) >= before + 2,
        "the middleware had both calls",
    )
    until(lambda: audited(gateway) >= calls + 2, "both calls are in the audit")


def working(gateway: Gateway) -> None:
    """Wait until every process is there again, and use each."""

    def worked() -> bool:
        try:
            work(gateway)
        except (AssertionError, KeyError, OSError):
            return False
        return True

    until(worked, "every process works")
    work(gateway)


def listening(gateway: Gateway) -> set[str]:
    """Unix sockets at which a process of the gateway listens, with a path or without."""
    inodes: dict[str, str] = {}
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = row.split()
        if int(flags, 16) & LISTENING:
            inodes[f"socket:[{inode}]"] = path[0] if path else ""
    found = set[str]()
    for pid in {gateway.pid, *processes.below(gateway.pid)}:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if (target := os.readlink(entry)) in inodes:
                found.add(inodes[target])
    return found


def check(gateway: Gateway) -> None:
    """Check that nothing but the control socket takes connections."""
    run = gateway.folder / "run"
    names = {path.name for path in run.iterdir()}
    sockets = {name for name in names if stat.S_ISSOCK((run / name).stat().st_mode)}
    assert sockets == {CONTROL}
    assert listening(gateway) == {str(run / CONTROL)}
    with closing(Client(gateway.port)) as client:
        for server in ("basic", "none"):
            said = {
                name: client.text(f"{server}__connect", path=str(run / name))
                for name in (*names, *BEFORE)
            }
            confined = server == "basic" and kernel.has_asking()
            reached = {name for name, outcome in said.items() if outcome == "done"}
            assert reached == (set() if confined else {CONTROL})


def test_no_process_but_the_supervisor_listens_while_every_feature_is_used(
    gateway: Gateway,
) -> None:
    work(gateway)
    check(gateway)


@pytest.mark.parametrize("victim", [*ROLES, "front-0", "front-1"])
def test_a_killed_process_is_replaced_and_reached_again(gateway: Gateway, victim: str) -> None:
    work(gateway)

    def pid() -> int:
        status = gateway.status()
        if victim.startswith("front-"):
            return int(status["fronts"][int(victim[-1])]["pid"])
        return int(roles(gateway)[victim]["pid"])

    first = pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: pid() != first, "it is gone")
    working(gateway)
    check(gateway)
    assert "the chain holds" in command(gateway, "verify")


def test_a_run_goes_on_in_the_next_engine(gateway: Gateway) -> None:
    work(gateway)
    with closing(Client(gateway.port)) as client:
        begun = client.call("run_workflow", definition=PAUSED, inputs={"pause": "2s"}, wait=False)
        run = begun["result"]["structuredContent"]["run"]
        os.kill(roles(gateway)["engine"]["pid"], signal.SIGKILL)

        def output() -> Any:
            found = client.call("workflow_status", run=run)["result"]
            return found.get("structuredContent", {}).get("output")

        until(lambda: output() == "a", "the run has ended")
    check(gateway)


def test_a_reload_brings_a_middleware_and_takes_it_away(gateway: Gateway) -> None:
    work(gateway)
    with closing(Client(gateway.port)) as client:

        def answer() -> str:
            return json.dumps(client.call("one__echo", text="long and long"))

        gateway.extra = f"{EXTRA}{CACHE}{SHORT}"
        gateway.write(SERVERS)
        gateway.ctl("reload")
        until(lambda: "9 more characters were cut" in answer(), "the new one has the call")
        check(gateway)
        gateway.extra = f"{EXTRA}{CACHE}"
        gateway.write(SERVERS)
        gateway.ctl("reload")
        until(lambda: "long and long" in answer(), "it is gone")
    gateway.ctl("roll")
    working(gateway)
    check(gateway)


def test_a_reload_replaces_the_writer_of_the_audit_ends_it_and_starts_it(gateway: Gateway) -> None:
    work(gateway)

    def pid() -> int:
        return int(roles(gateway).get("audit", {}).get("pid", 0))

    def reload(settings: str, records: int) -> None:
        writer, before = pid(), audited(gateway)
        gateway.extra = EXTRA.replace("[audit]\nrequired = true", settings) + CACHE
        gateway.write(SERVERS)
        gateway.ctl("reload")
        until(lambda: pid() != writer, "it is replaced")
        with closing(Client(gateway.port)) as client:
            assert client.text("one__pid")
        until(lambda: audited(gateway) == before + records, "records are as configured")

    reload('[audit]\nrequired = true\ndurability = "power"', 1)
    reload("", 0)
    reload("[audit]", 1)
    check(gateway)
    assert "the chain holds" in command(gateway, "verify")


def test_an_upgrade_leaves_every_process_within_reach(gateway: Gateway) -> None:
    work(gateway)
    first = {name: roles(gateway)[name]["pid"] for name in ROLES}
    gateway.ctl("upgrade")
    working(gateway)
    assert not {roles(gateway)[name]["pid"] for name in ROLES} & set(first.values())
    check(gateway)
