"""What it costs to list 2,000 tools in one go, beside the bare bytes.

    python -m benchmarks.listing [--rounds 300] [--json]

The gateway answers `tools/list` in both eras; a bare server, which is the same HTTP server without
anything behind it, answers every request with the bytes that the gateway answered. They are asked
in turns, one request at a time, so that whatever else the machine does hits them alike. Only the
ratios mean anything on another machine. Exit code 1 if one is above 1.2, or if an answer differed.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from metamcp_worker import loop
from metamcp_worker.asgi import CONNECTION, Receive, Scope, Send
from metamcp_worker.serve import HttpServer
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake

ROOT = Path(__file__).resolve().parent.parent
TOOLS = 2000
BAR = 1.2
WARM_UP = 20
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


# --- the bare server --------------------------------------------------------------------------


async def serve(body: bytes) -> int:
    """Answers everything with this body, on a port that it says on its first line."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        scope[CONNECTION].answer(_OK, body)

    sock = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app)
    print(sock.getsockname()[1], flush=True)
    await server.start([sock])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.drain(0)
    return 0


# --- asking -----------------------------------------------------------------------------------


class Asker:
    """One connection that sends the same request again and again."""

    def __init__(self, port: int, request: bytes, size: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.request = request
        self.buffer = bytearray(size + 4096)
        self.took_s: list[float] = []
        self.answer = b""

    def ask(self) -> None:
        start = time.perf_counter()
        self.sock.sendall(self.request)
        view, got, head, end = memoryview(self.buffer), 0, 0, 0
        while not end or got < end:
            more = self.sock.recv_into(view[got:])
            assert more, "the connection is closed"
            got += more
            if not end:
                head = self.buffer.index(b"\r\n\r\n") + 4
                at = self.buffer.lower().index(b"content-length:", 0, head)
                end = head + int(self.buffer[at + 15 : self.buffer.index(b"\r\n", at)])
        self.took_s.append(time.perf_counter() - start)
        self.answer = bytes(self.buffer[head:end])

    def measured(self) -> list[float]:
        return self.took_s[WARM_UP:]


def request(client: Client) -> bytes:
    """A whole HTTP request for the list of tools in the client's era."""
    params = {"_meta": client.meta()} if client.era == MODERN else {}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    body = json.dumps(message).encode()
    lines = {
        "Host": "127.0.0.1",
        **client.headers("tools/list"),
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return b"POST /mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + body


def compare(port: int, era: str, rounds: int) -> dict[str, Any]:
    client = Client(port, era)
    asked = request(client)
    listed = client.request("tools/list")["result"]["tools"]
    size = len(json.dumps(listed)) * 2
    gateway = Asker(port, asked, size)
    gateway.ask()
    command = [sys.executable, "-m", "benchmarks.listing", "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=dict(os.environ)
    ) as bare_process:
        assert bare_process.stdin is not None
        assert bare_process.stdout is not None
        bare_process.stdin.write(b"%d\n" % len(gateway.answer) + gateway.answer)
        bare_process.stdin.flush()
        bare = Asker(int(bare_process.stdout.readline()), asked, size)
        gateway.took_s.clear()
        for _ in range(rounds + WARM_UP):
            bare.ask()
            gateway.ask()
        same = bare.answer == gateway.answer
        bare.sock.close()
        gateway.sock.close()
        bare_process.stdin.close()
        bare_process.wait(timeout=10)
    client.close()
    medians = [statistics.median(one.measured()) * 1000 for one in (gateway, bare)]
    fastest = [min(one.measured()) * 1000 for one in (gateway, bare)]
    return {
        "tools": len(listed),
        "bytes": len(gateway.answer),
        "same": same,
        "gateway_ms": round(medians[0], 3),
        "bare_ms": round(medians[1], 3),
        "ratio": round(medians[0] / medians[1], 3),
        "ratio_of_fastest": round(fastest[0] / fastest[1], 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="A long list, measured.")
    parser.add_argument("--rounds", type=int, default=300, help="requests to each")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        size = int(sys.stdin.buffer.readline())
        return loop.run(serve(sys.stdin.buffer.read(size)))
    with Gateway({"bench": fake("--tools", str(TOOLS))}) as gateway:
        found = {era: compare(gateway.port, era, options.rounds) for era in (LEGACY, MODERN)}
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'':12}{'bytes':>10}{'gateway ms':>12}{'bare ms':>10}{'ratio':>8}{'fastest':>9}")
        for era, row in found.items():
            print(
                f"{era:12}{row['bytes']:>10}{row['gateway_ms']:>12.3f}{row['bare_ms']:>10.3f}"
                f"{row['ratio']:>8.2f}{row['ratio_of_fastest']:>9.2f}"
            )
        print(f"ratio of the medians: at most {BAR}")
    wrong = any(not row["same"] or row["tools"] < TOOLS for row in found.values())
    slow = any(row["ratio"] > BAR for row in found.values())
    return 1 if wrong or slow else 0


if __name__ == "__main__":
    sys.exit(main())
