"""Levels of the gateway's log that change while it runs, in each of its processes."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M89")]

TALKATIVE = """
import logging
from mcp.server import MCPServer

app = MCPServer("talkative")

@app.tool()
def say(word: str) -> str:
    room = logging.getLogger("metamcp.worker")
    room.debug("the worker says %s", word)
    room.error("the worker has said %s", word)
    return word
"""
SILENT = [sys.executable, str(ROOT / "tests" / "fakes" / "indiscreet_server.py")]


def servers(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """One whose code is in its worker, so that it can make that speak, and one that gives no
    answer, so that the front says so."""
    return {
        "talkative": {"module": "talkative:app", "cwd": str(gateway.folder)},
        "silent": {"command": SILENT, "timeout": "1s"},
    }


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({}) as running:
        (running.folder / "talkative.py").write_text(TALKATIVE)
        running.write(servers(running))
        running.ctl("reload")
        running.wait()
        yield running


def worker_says(gateway: Gateway, word: str) -> bool:
    """Call it: is what it says with the level `debug` in the log, before what it says next?"""
    client = Client(gateway.port, MODERN)
    client.call("talkative__say", word=word)
    client.close()
    until(lambda: f"the worker has said {word}" in gateway.log.read_text(), "it has spoken")
    return f"the worker says {word}" in gateway.log.read_text()


def front_says(gateway: Gateway) -> int:
    """How often the front told of a call without an answer, after one more of them."""
    client = Client(gateway.port, MODERN)
    assert client.call("silent__think")["error"]["code"] == -10003
    client.close()
    return gateway.log.read_text().count("got no answer in time")


def test_a_level_counts_at_once_in_fronts_and_workers_and_until_it_is_over(
    gateway: Gateway,
) -> None:
    before = {one["name"]: one["generation"] for one in gateway.status()["servers"]}
    assert not worker_says(gateway, "first")
    assert front_says(gateway) == 1
    out = gateway.ctl("set", "log.level", "debug", "log.levels.front=error", "--until", "2h")
    assert out.startswith("log: log.level debug until ")
    assert "log.level debug  log.levels.front error" in gateway.ctl("status").splitlines()[0]
    until(lambda: worker_says(gateway, "second"), "the worker heard of it")
    assert front_says(gateway) == 1, "the front says it no more"
    gateway.ctl("set", "log.level", "--clear")
    until(lambda: front_says(gateway) > 1, "the front says it again")
    assert not worker_says(gateway, "third")
    after = {one["name"]: one["generation"] for one in gateway.status()["servers"]}
    assert after == before, "nothing was restarted"
    refused = gateway.ctl("set", "log.level", "loud", ok=(65,))
    assert refused == ""


def test_a_level_ends_with_its_time_and_with_a_reload(gateway: Gateway) -> None:
    def told() -> list[str]:
        events = gateway.events(type="set")
        return [event["cause"] for event in events if event["what"] in {"set", "set over"}]

    gateway.ctl("set", "log.level", "debug", "--until", "1s")
    until(lambda: len(told()) == 2, "its time is over")
    assert told()[0].startswith("log.level debug until ")
    assert told()[1] == "log.level is info again: its time is over"
    gateway.ctl("set", "log.levels.worker", "debug")
    until(lambda: worker_says(gateway, "fourth"), "the worker heard of it")
    gateway.ctl("reload")
    assert told()[-1] == "log.levels.worker is none again: the files were read anew"
    assert not gateway.status()["overrides"]
    gateway.extra = '[log]\nlevels = { worker = "debug" }\n'
    gateway.write(servers(gateway))
    assert not worker_says(gateway, "fifth")
    gateway.ctl("reload")
    until(lambda: worker_says(gateway, "sixth"), "a reload reaches workers, too")
