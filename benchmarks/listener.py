"""The gateway's own HTTP server beside uvicorn, both with the same trivial application.

    python -m benchmarks.listener [--seconds 2] [--json]

Each answers a call with its own body as the result. They are asked in turns, by as many callers;
the best round of each counts. `cpu_us` is the CPU time of the server for one call, which says more
than calls per second on a machine that does other things as well. An HTTP server of one's own is
worth its code only if it is clearly faster: exit code 1 if a core serves less than 1.4 times as
many calls with it as with uvicorn, at 16 callers, or if an answer was wrong.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import uvicorn

from benchmarks import load
from metamcp_worker.http import request_head
from metamcp_worker.http.requests import HttpRequest
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.runtime import loop

BAR = 1.4
CALLERS = (1, 16, 64)
ROUNDS = 3
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
    "Mcp-Session-Id": "0123456789abcdef0123456789abcdef",
}
_OK = request_head.head(200, [request_head.JSON])
_HEAD, _TAIL = b'{"result":', b"}"


def own(request: HttpRequest) -> None:
    request.answer(_OK, _HEAD, request.take(), _TAIL)


async def asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    text = b"".join((_HEAD, (await receive())["body"], _TAIL))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def serve(name: str) -> int:
    """Until the end of stdin."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(sock.getsockname()[1], flush=True)
    if name == "own":
        await HttpServer(own).start([sock])
    else:
        config = uvicorn.Config(
            asgi,
            http="httptools",
            lifespan="off",
            log_level="warning",
            access_log=False,
        )
        serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[sock]))
        assert not serving.done()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


class Served:
    """One of the two, in a process of its own."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.listener", "--serve", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        self._usage = psutil.Process(self._process.pid)

    def run(self, callers: int, seconds: float) -> dict[str, float]:
        speeches = [load.speech(self._port, HEADERS, "echo")]
        before = sum(self._usage.cpu_times()[:2])
        figures = load.call(self._port, speeches, callers, seconds)
        spent = sum(self._usage.cpu_times()[:2]) - before
        return {
            "calls_per_s": round(figures.rate),
            "cpu_us": round(spent / figures.calls * 1e6, 1),
            "p50_ms": round(figures.percentile_ms(0.50), 4),
            "wrong": figures.wrong,
        }

    def close(self) -> None:
        self._process.communicate(timeout=10)


def measure(seconds: float) -> dict[str, dict[int, dict[str, float]]]:
    servers = {name: Served(name) for name in ("own", "uvicorn")}
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in servers}
    try:
        for callers in CALLERS:
            for _ in range(ROUNDS):
                for name, one in servers.items():
                    run = one.run(callers, seconds)
                    best = found[name].setdefault(callers, run)
                    wrong = best["wrong"] + run["wrong"] if best is not run else run["wrong"]
                    if run["cpu_us"] < best["cpu_us"]:
                        best = found[name][callers] = run
                    best["wrong"] = wrong
    finally:
        for one in servers.values():
            one.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="The HTTP server, measured beside uvicorn.")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--serve", choices=("own", "uvicorn"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return loop.run(serve(options.serve))
    found = measure(options.seconds)
    ratio = found["uvicorn"][16]["cpu_us"] / found["own"][16]["cpu_us"]
    if options.json:
        print(json.dumps({"rows": found, "calls_per_core_ratio_at_16": round(ratio, 2)}))
    else:
        print(f"{'':10}{'callers':>8}{'calls/s':>10}{'cpu us':>10}{'p50 ms':>10}")
        for name, rows in found.items():
            for callers, row in rows.items():
                print(
                    f"{name:10}{callers:>8}{row['calls_per_s']:>10.0f}"
                    f"{row['cpu_us']:>10.1f}{row['p50_ms']:>10.3f}"
                )
        print(f"calls of one core at 16 callers: {ratio:.2f} of uvicorn's (at least {BAR})")
    wrong = sum(row["wrong"] for rows in found.values() for row in rows.values())
    return 0 if not wrong and ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
