"""Tool sets of a true gateway: what clients see of them, and what is there after its end."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamcp_supervisor.store.database import FILE
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

SERVERS = {"git": fake(), "db": fake()}
DESK = """
[endpoints.default]
namespace = "default"
[endpoints.desk]
namespace = "default"
exposure = "toolset"
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=DESK) as running:
        yield running


def toolsets(gateway: Gateway, *arguments: str, ok: int = 0) -> str:
    """What one `metamcp toolsets` says, on either stream."""
    done = gateway.run("toolsets", *arguments, ok=(ok,))
    return done.stdout + done.stderr


def in_view(gateway: Gateway, era: str = LEGACY) -> list[str]:
    """The tools of servers that a client of the desk is shown."""
    client = Client(gateway.port, era, "/metamcp/desk/mcp")
    try:
        params = {"_meta": client.meta()} if era == MODERN else {}
        tools = client.request("tools/list", params)["result"]["tools"]
    finally:
        client.end()
    return [tool["name"] for tool in tools if "__" in tool["name"]]


def killed(gateway: Gateway) -> None:
    """The supervisor and everything below it, without a word, and then a new one."""
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGKILL)
    gateway.process.wait(timeout=20)
    until(lambda: not gateway.left(), "nothing of the gateway is left")
    gateway.start()


@pytest.mark.promise("M31")
def test_the_tool_set_that_was_equipped_last_comes_back_after_a_restart_and_a_kill(
    gateway: Gateway,
) -> None:
    assert in_view(gateway) == []
    toolsets(gateway, "create", "one", "git.echo", "db.odd")
    toolsets(gateway, "create", "two", "db.echo")
    toolsets(gateway, "equip", "one", "--endpoint", "desk")
    toolsets(gateway, "equip", "two", "--endpoint", "desk")
    assert in_view(gateway) == ["db__echo"]
    before = json.loads(toolsets(gateway, "list", "--json"))
    assert gateway.stop() == 0
    gateway.start()
    assert json.loads(toolsets(gateway, "list", "--json")) == before
    assert in_view(gateway) == in_view(gateway, MODERN) == ["db__echo"]
    toolsets(gateway, "equip", "one", "--endpoint", "desk")
    before = json.loads(toolsets(gateway, "list", "--json"))
    killed(gateway)
    assert json.loads(toolsets(gateway, "list", "--json")) == before
    assert set(in_view(gateway)) == {"git__echo", "db__odd"}
    toolsets(gateway, "unequip", "--endpoint", "desk")
    killed(gateway)
    assert in_view(gateway) == []


@pytest.mark.promise("M31")
def test_views_follow_the_tool_set_and_are_there_when_the_command_returns(gateway: Gateway) -> None:
    toolsets(gateway, "create", "three", "git.echo", "--equip", "--endpoint", "desk")
    assert in_view(gateway) == ["git__echo"]
    toolsets(gateway, "add", "three", "db.echo")
    assert set(in_view(gateway)) == {"git__echo", "db__echo"}
    toolsets(gateway, "remove", "three", "git.echo")
    assert in_view(gateway) == ["db__echo"]
    toolsets(gateway, "delete", "three", "--yes")
    assert in_view(gateway) == []


def test_a_front_that_is_killed_and_an_upgrade_change_nothing_of_a_view(gateway: Gateway) -> None:
    toolsets(gateway, "create", "four", "git.echo", "--equip", "--endpoint", "desk")
    front = gateway.status()["fronts"][0]["pid"]
    os.kill(front, signal.SIGKILL)
    until(lambda: gateway.status()["fronts"][0]["pid"] not in (0, front), "another front")
    gateway.wait()
    assert in_view(gateway) == ["git__echo"]
    gateway.ctl("upgrade")
    until(lambda: "renewed" in gateway.journal(), "the fronts are of the new program")
    assert in_view(gateway) == ["git__echo"]
    toolsets(gateway, "unequip", "--endpoint", "desk")
    assert in_view(gateway) == []


def test_the_view_of_a_session_goes_through_an_upgrade_and_ends_with_it() -> None:
    def equipped(gateway: Gateway) -> int:
        return len(json.loads(toolsets(gateway, "list", "--json"))["equipped"])

    with Gateway(SERVERS, extra=f'{DESK}view_scope = "session"\n') as gateway:
        toolsets(gateway, "create", "one", "git.echo")
        client = Client(gateway.port, path="/metamcp/desk/mcp")
        asked = {"name": "equip-toolset", "arguments": {"name": "one"}}
        assert not client.request("tools/call", asked)["result"].get("isError")
        gateway.ctl("upgrade")
        until(lambda: "renewed" in gateway.journal(), "the fronts are of the new program")
        client.close()
        listed = Client.joining(client, gateway.port)
        tools = listed.request("tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools if "__" in tool["name"]] == ["git__echo"]
        assert in_view(gateway) == [], "another session has its own view"
        assert equipped(gateway) == 1
        listed.end()
        until(lambda: equipped(gateway) == 0, "its view is gone")


class Spoiled(Gateway):
    """A gateway whose database is none."""

    GARBAGE = b"this is no database\n" * 100

    @property
    def database(self) -> Path:
        return self.folder / "state" / FILE

    def start(self) -> None:
        self.database.parent.mkdir()
        self.database.write_bytes(self.GARBAGE)
        super().start()


def errors(gateway: Gateway) -> list[str]:
    return [event["cause"] for event in gateway.events() if event["what"] == "error"]


def test_a_broken_database_keeps_no_gateway_from_starting_and_is_never_written() -> None:
    with Spoiled(SERVERS, extra=DESK) as gateway:
        told = errors(gateway)
        why = (
            f"{gateway.database} cannot be read, so it stays as it is: file is not a database;"
            " repair it, or move it away to begin anew"
        )
        assert told == [
            f"{what}: {why}"
            for what in (
                "tool sets, views and scripts cannot be kept", "no API key is valid",
                "the calls of today before now do not count",
                "consent that was given before now does not count",
            )
        ]  # fmt: skip
        for _ in range(2):
            said = toolsets(gateway, "create", "one", "git.echo", ok=1)
            assert said == f"metamcp: {why}\n"
        assert errors(gateway) == told
        assert gateway.database.read_bytes() == Spoiled.GARBAGE
        gateway.database.unlink()
        assert "no tool set" in toolsets(gateway, "list")
        toolsets(gateway, "create", "one", "git.echo")
        assert "one" in toolsets(gateway, "list")


def test_sqlite_is_loaded_when_there_is_something_to_remember() -> None:
    with Gateway({"git": fake()}, extra=DESK) as gateway:
        assert not (gateway.folder / "state" / FILE).exists()
        assert not loaded(gateway.pid)
        toolsets(gateway, "create", "one", "git.echo")
        assert loaded(gateway.pid)


def loaded(pid: int) -> bool:
    return "sqlite" in Path(f"/proc/{pid}/maps").read_text()
