"""A client that lists once gets the tools of all servers, at the first start and at the next."""

import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_malformed_definitions import ODD
from tests.live.bridge import Bridge
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVERS = 8
NAMES = sorted(f"s{at}__t" for at in range(SERVERS))
WAIT_S_MAX = 4.0
INITIALIZE_S_MAX = 2.0
ROOM_S = 2.0
"""Seconds for the way to the gateway and back on a busy machine."""


def script(folder: Path, at: int) -> Path:
    tool = {"name": "t", "inputSchema": {"type": "object"}}
    answers = {"tools/list": {"result": json.dumps({"tools": [tool]})}}
    path = folder / f"{at}.json"
    era = ("legacy", "modern")[at % 2]
    path.write_text(json.dumps({"era": era, "capabilities": '{"tools":{}}', "answers": answers}))
    return path


def hang(path: Path) -> None:
    """Let the server with this script wait for ever as it starts."""
    path.unlink()
    os.mkfifo(path)


@contextmanager
def stopped(folder: Path) -> Generator[Gateway]:
    """Eight servers that are ready in a moment, behind a gateway that does not run yet."""
    servers: dict[str, dict[str, Any]] = {
        f"s{at}": {"command": [*ODD, str(script(folder, at))]} for at in range(SERVERS)
    }
    gateway = Gateway(servers, wait=False)
    try:
        yield gateway
    finally:
        gateway.__exit__(None, None, None)


def start(gateway: Gateway) -> None:
    """Start the gateway, until its port answers."""
    gateway.start()

    def answers() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", gateway.port)) == 0

    until(answers, "the port answers")


def listed(gateway: Gateway, way: str, era: str) -> list[str]:
    """What a client lists that lists once, as soon as it is connected."""
    if way == "http":
        with closing(Client(gateway.port, era)) as client:
            return sorted(client.tools())
    where = ("--url", gateway.url)
    with Bridge(*where, folder=gateway.folder, era=era, forked=True) as bridge:
        return sorted(bridge.tools())


@pytest.mark.promise("M15")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("way", ["http", "bridge"])
def test_a_client_that_lists_once_gets_all_tools_at_the_first_and_at_the_next_start(
    tmp_path: Path, way: str, era: str
) -> None:
    with stopped(tmp_path) as gateway:
        for _ in range(2):
            start(gateway)
            assert listed(gateway, way, era) == NAMES
            until(lambda: len(gateway.status()["servers"]) == SERVERS, "the gateway is up")
            gateway.stop()


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_lists_wait_four_seconds_for_a_server_that_hangs_and_initialize_does_not_wait(
    tmp_path: Path, era: str
) -> None:
    with stopped(tmp_path) as gateway:
        hang(tmp_path / "3.json")
        start(gateway)
        begin = time.monotonic()
        with closing(Client(gateway.port, era)) as client:
            assert time.monotonic() - begin < INITIALIZE_S_MAX
            assert sorted(client.tools()) == [name for name in NAMES if name != "s3__t"]
            assert time.monotonic() - begin < WAIT_S_MAX + ROOM_S
            again = time.monotonic()
            client.tools()
            assert time.monotonic() - again < INITIALIZE_S_MAX


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_the_tools_of_a_server_that_starts_again_are_listed_from_disk(
    tmp_path: Path, era: str
) -> None:
    with stopped(tmp_path) as gateway:
        start(gateway)
        with closing(Client(gateway.port, era)) as client:
            assert sorted(client.tools()) == NAMES
        gateway.stop()
        hang(tmp_path / "3.json")
        start(gateway)
        begin = time.monotonic()
        with closing(Client(gateway.port, era)) as client:
            assert sorted(client.tools()) == NAMES
        assert time.monotonic() - begin < INITIALIZE_S_MAX
        assert gateway.server("s3")["state"] == "warming"
