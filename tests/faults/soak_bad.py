"""Bad requests and bad lines of a server, very many: the gateway stays as small as it was.

    python -m tests.faults.soak_bad --requests 1000000 --lines 100000

Requests are mutations of the corpus of the fuzzer, over connections that are used as long as the
gateway keeps them; lines are those of a server that writes noise around each of its answers. At the
end memory and descriptors of every process are compared with those after a tenth of it all.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tests.fakes.stdio_wire import NOISE
from tests.fuzz.__main__ import inputs
from tests.live import processes
from tests.live.gateway import Gateway, fake
from tests.live.raw import MODERN, Raw
from tests.waiting import until

GROWTH_BYTES_MAX = 6 * 1024 * 1024
"""Maximum growth of the private memory of all processes of the gateway together."""
LINES_PER_CALL = len(NOISE) + 1
STATUSES = frozenset({200, 202, 400, 404, 406, 413, 415, 421})
WAIT_S = 30.0
SERVERS = {"good": fake(), "noisy": fake("--garbage", "--bad-utf8")}


@dataclass(frozen=True)
class Size:
    """What the gateway holds. `memory_bytes`: private memory of its processes together."""

    memory_bytes: int
    descriptors: dict[int, int]


def size(gateway: Gateway) -> Size:
    ours = {gateway.pid} | processes.below(gateway.pid)
    servers = {gateway.server(name)["pid"] for name in SERVERS}
    pids = sorted(ours - servers)
    return Size(
        sum(processes.memory(pid, "Pss_Anon") for pid in pids),
        {pid: processes.descriptors(pid) for pid in pids},
    )


class Rubbish:
    """A client whose requests are bad, and what became of them."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._bodies: Iterator[bytes] = inputs("envelope", seed)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        self.statuses: dict[int, int] = {}

    def send(self, count: int) -> None:
        """So many requests, each of which is answered."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        modern = {**headers, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call"}
        for number, body in enumerate(islice(self._bodies, count)):
            self._connection.request("POST", "/mcp", body, (headers, modern)[number % 2])
            with self._connection.getresponse() as answer:
                answer.read()
            assert answer.status in STATUSES, (answer.status, body)
            self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1

    def close(self) -> None:
        self._connection.close()


def noise(client: Raw, lines: int) -> None:
    """So many bad lines of the server, and an answer after every few."""
    for number in range(lines // LINES_PER_CALL):
        assert client.text("noisy__echo", text=str(number)) == str(number)


def run(requests: int, lines: int, seed: int = 7) -> dict[str, object]:
    """The figures; fails if the gateway grew, or does not answer."""
    with Gateway(SERVERS) as gateway:
        client, rubbish = Raw(gateway.port, MODERN), Rubbish(gateway.port, seed)
        try:
            rubbish.send(requests // 10)
            noise(client, lines // 10)
            before = size(gateway)
            rubbish.send(requests - requests // 10)
            noise(client, lines - lines // 10)
            until(lambda: size(gateway).descriptors == before.descriptors, "no descriptor is left")
            after = size(gateway)
            assert client.text("good__echo", text="still here") == "still here"
        finally:
            rubbish.close()
        assert all(gateway.server(name)["generation"] == 1 for name in SERVERS)
    grown = after.memory_bytes - before.memory_bytes
    assert grown <= GROWTH_BYTES_MAX, f"{grown} bytes more than before"
    return {
        "requests": requests, "statuses": rubbish.statuses, "lines": lines,
        "memory_bytes": after.memory_bytes, "grown_bytes": grown,
        "descriptors": sum(after.descriptors.values()),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Very many bad requests and bad lines.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    found = run(options.requests, options.lines, options.seed)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
