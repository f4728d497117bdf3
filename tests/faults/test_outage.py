"""Many servers lose what all of them need, for a while."""

import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SERVERS = 24
"""Three times as many as may start at once."""
STARTS_MIN = 5
"""Of each, before what they need is back."""
NEEDY = str(ROOT / "tests" / "fakes" / "needy.py")
AT_ONCE_MAX, WINDOW_S = 8, 0.2
"""The gate counts a quarter of a second; the journal notes a start some milliseconds after it."""


class Upstream:
    """Takes connections and holds them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._held: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        while self._held:
            self._held.pop().close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                self._held.append(listener.accept()[0])
            except OSError:
                return


def tried(log: Path, names: Iterable[str]) -> bool:
    """Was each of them started so often, as the log says?"""
    line = re.compile(r'"who":"(\w+)","what":"launched"')
    starts = Counter(line.findall(log.read_text()))
    return all(starts[name] >= STARTS_MIN for name in names)


def come_back(log: Path, size: int) -> bool:
    """Are all of them ready, as what was written after the first `size` bytes says? To ask the
    gateway would take as much of a processor as the start of a server, each time."""
    with log.open("rb") as file:
        file.seek(size)
        return file.read().count('"what":"warming→ready"'.encode()) >= SERVERS


def events(log: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    found = [line for line in lines if "what" in line]
    return [one | {"time": datetime.fromisoformat(one["time"]).timestamp()} for one in found]


@pytest.mark.promise("M72")
def test_all_of_them_come_back_together_without_a_stampede() -> None:
    servers = {
        f"s{number:02}": {"command": [sys.executable, NEEDY, "PORT"]} for number in range(SERVERS)
    }
    with Upstream(free_port()) as upstream:
        for entry in servers.values():
            entry["command"][2] = str(upstream.port)
        with Gateway(servers) as gateway:
            lost = time.time()
            upstream.down()
            until(
                partial(tried, gateway.log, servers), "each was started again and again in vain", 60
            )
            assert {server["state"] for server in gateway.status()["servers"]} <= {
                "error",
                "warming",
            }
            back, size = time.time(), gateway.log.stat().st_size
            upstream.up()
            until(partial(come_back, gateway.log, size), "all of them are back")
            client = Client(gateway.port, MODERN)
            assert client.text("s07__echo", text="a") == "a"
            client.close()
            told = events(gateway.log)
    ready = [e["time"] - back for e in told if e["what"] == "warming→ready" and e["time"] > back]
    assert len(ready) == SERVERS
    starts = [e["time"] for e in told if e["what"] == "launched" and e["time"] > lost]
    for first in starts:
        assert sum(first <= start < first + WINDOW_S for start in starts) <= AT_ONCE_MAX
