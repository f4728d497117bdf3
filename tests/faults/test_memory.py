"""A machine, or a container, that runs out of memory: the kernel takes the server that eats it."""

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.servers.start_gate import CROWDED_S
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

GROUPS = Path("/sys/fs/cgroup")
MEMORY_BYTES = 400 * 1024 * 1024
"""Enough for a gateway and two small servers."""


def controller() -> Path | None:
    """Where groups that limit memory can be made."""
    for place, listed in (
        (GROUPS / "memory", GROUPS / "memory" / "memory.limit_in_bytes"),
        (GROUPS, GROUPS / "cgroup.subtree_control"),
    ):
        try:
            if place != GROUPS or "memory" in listed.read_text().split():
                return place if os.access(listed, os.W_OK) else None
        except OSError:
            continue
    return None


pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or controller() is None,
        reason="needs root and a control group for memory",
    ),
]


@contextmanager
def little_memory() -> Generator[Path, None, None]:
    """A control group that may hold MEMORY_BYTES."""
    place = controller()
    assert place is not None
    group = place / f"metamcp-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        old = group / "memory.limit_in_bytes"
        (old if old.exists() else group / "memory.max").write_text(str(MEMORY_BYTES))
        for swap in ("memory.swappiness", "memory.swap.max"):
            if (group / swap).exists():
                (group / swap).write_text("0")
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "nobody is in it any more")
        group.rmdir()


class Contained(Gateway):
    """All of it is in one control group."""

    group: Path

    def command(self, *arguments: str | Path) -> list[str]:
        command = super().command(*arguments)
        if arguments[0] != "serve":
            return command
        return [
            "sh",
            "-c",
            'echo $$ > "$0" && exec "$@"',
            str(self.group / "cgroup.procs"),
            *command,
        ]


def test_when_memory_runs_out_the_server_that_took_it_goes_and_nobody_else() -> None:
    with little_memory() as group:
        gateway = Contained({"hungry": fake(), "other": fake()})
        gateway.group = group
        with gateway:
            before = gateway.status()
            client = Client(gateway.port, MODERN)
            gone = client.call("hungry__leak", mib=2 * MEMORY_BYTES // (1024 * 1024))
            assert gone["error"]["data"]["may_have_run"] is True
            said = "killed by the kernel because the control group of the gateway was out of memory"
            until(lambda: said in gateway.journal(), "the journal says why")
            counted = 'metamcp_oom_kills_total{server="hungry"} 1'
            until(lambda: counted in gateway.ops("/metrics")[1], "the kill is counted")
            report = gateway.ctl("doctor", ok=(0, 1))
            assert "of 400 MiB in the control group of the gateway, in which the kernel" in report
            assert client.text("other__echo", text="in") == "in"
            until(lambda: "result" in client.call("hungry__echo"), "it is back")
            after = gateway.status()
            assert gateway.server("hungry")["pid"] != before["servers"][0]["pid"]
            assert after["nursery_pid"] == before["nursery_pid"]
            for who in (after["servers"][1], after["fronts"][0]):
                assert who["pid"] in {before["servers"][1]["pid"], before["fronts"][0]["pid"]}
            client.close()


HUNGRY = """
from mcp.server import MCPServer

server = MCPServer("inside")


@server.tool()
def eat() -> str:
    taken = [bytearray(1 << 20) for _ in range(4096)]
    return str(len(taken))
"""


def test_a_worker_that_the_kernel_takes_is_named_and_its_start_is_held_back() -> None:
    with little_memory() as group:
        gateway = Contained({})
        gateway.group = group
        (gateway.folder / "hungry.py").write_text(HUNGRY)
        inside = {"module": "hungry:server", "cwd": str(gateway.folder)}
        gateway.write({"inside": inside, "other": fake()})
        with gateway:
            client = Client(gateway.port, MODERN)
            assert client.call("inside__eat")["error"]["data"]["may_have_run"] is True
            assert client.text("other__echo", text="in") == "in"
            client.close()
            said = "its worker was killed by the kernel because the control group of the gateway"
            until(lambda: said in gateway.journal(), "the journal says why")
            gateway.wait("inside")
            mine = gateway.events(who="inside")
            end = next(one["time"] for one in mine if said in one["cause"])
            start = next(one for one in reversed(mine) if one["what"] == "launched")
            # The journal's clock is another one than that of the wait.
            assert start["time"] - end > CROWDED_S - 0.1
