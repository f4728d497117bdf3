"""Servers that leak: one is replaced between two calls, one is killed, and nobody else notices."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M76")]
LOOKS_S_MAX = 60.0
"""The soft limit wants several samples, two seconds apart, and this machine may be busy."""


def events(gateway: Gateway, server: str) -> list[dict[str, Any]]:
    return gateway.events(who=server)


def again(gateway: Gateway, server: str) -> bool:
    """Is another instance of it at work?"""
    now = gateway.server(server)
    return bool(now["generation"] > 1 and now["state"] == "active")


def test_a_server_that_leaks_is_replaced_and_its_call_in_flight_is_answered() -> None:
    leaky = {**fake(), "memory_high": "128M", "era": "legacy"}
    with (
        Gateway({"leaky": leaky, "other": fake()}) as gateway,
        closing(Client(gateway.port)) as client,
    ):
        other = gateway.server("other")["pid"]
        assert client.text("leaky__leak", mib=160) == "160"
        assert client.text("leaky__sleep", ms=15_000) == "slept 15000 ms"
        until(lambda: again(gateway, "leaky"), "it is replaced", LOOKS_S_MAX)
        assert client.text("leaky__leak", mib=1) == "1"
        found = gateway.server("leaky")
        assert (found["generation"], found["reason"]) == (2, "")
        assert "memory_high is 128 MiB" in json.dumps(events(gateway, "leaky"))
        assert gateway.server("other")["pid"] == other


@pytest.mark.parametrize(
    ("limit", "tool", "arguments", "sentence"),
    [
        ({"memory_max": "128M"}, "leak", {"mib": 256}, "memory_max is 128 MiB"),
        ({"processes_max": 1, "sandbox": "none"}, "spawn_daemon", {}, "processes_max is 1"),
    ],
)
def test_a_server_above_its_hard_limit_is_killed_and_starts_again(
    limit: dict[str, Any], tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    with (
        Gateway({"big": {**fake(), **limit, "era": "legacy"}, "other": fake()}) as gateway,
        closing(Client(gateway.port)) as client,
    ):
        other = gateway.server("other")["pid"]
        client.call(f"big__{tool}", **arguments)  # answered, or it is killed in the middle of it
        until(lambda: again(gateway, "big"), "it is back", LOOKS_S_MAX)
        told = json.dumps(events(gateway, "big"))
        assert sentence in told
        assert "limit: it " in told
        assert client.text("big__echo", text="back") == "back"
        assert gateway.server("other")["pid"] == other


def test_a_server_that_fills_its_own_folders_starts_again_without_its_temporary_files() -> None:
    hostile = {"command": [sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py")]}
    with (
        Gateway({"big": {**hostile, "disk_max": "64M"}, "other": fake()}) as gateway,
        closing(Client(gateway.port)) as client,
    ):
        other = gateway.server("other")["pid"]
        temporary = json.loads(client.text("big__fill", mib=32))["folder"]
        client.call("big__fill", mib=80)  # answered, or it is killed in the middle of it
        until(lambda: again(gateway, "big"), "it is back", LOOKS_S_MAX)
        events_of_it = json.dumps(events(gateway, "big"))
        assert f"MiB of the disk, most of it in {temporary}, disk_max is 64 MiB" in events_of_it
        assert not Path(temporary).exists()
        own = gateway.folder / "state" / "servers" / "big"
        (own / "home").mkdir(exist_ok=True)
        with (own / "home" / "kept").open("wb") as file:
            file.write(bytes(80 << 20))
        until(lambda: f"most of it in {own}" in json.dumps(events(gateway, "big")), "it is told")
        assert gateway.server("other")["pid"] == other
