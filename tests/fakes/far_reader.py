"""A client of one URL in a process of its own, which says how much memory large answers cost it.

    python tests/fakes/far_reader.py URL ERA COUNT AT_ONCE BYTES

It calls the tool `big` so often, so many at once, and prints the growth of its peak in bytes.
"""

import asyncio
import json
import resource
import sys

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Fail, ServerRequest
from metamcp_worker.child.streamable_http import remote
from metamcp_worker.ipc.envelope import OverlongLine
from metamcp_worker.ipc.spec import ServerSpec


class Sizes:
    """A `Listener` that keeps nothing but the size of what came."""

    def __init__(self) -> None:
        self.sizes: dict[bytes, int] = {}
        self.news = asyncio.Event()

    def on_messages(self, lines: list[bytes], stream: bytes | None = None, via: int = 0) -> None:
        if stream:
            self.sizes[stream] = len(lines[0])
            self.news.set()

    def on_request_failed(self, key: bytes, error: bytes) -> None:
        sys.exit(error.decode())

    def on_skip(self, size_bytes: int, lines: int = 0) -> None:
        pass

    def overlong(self, line: OverlongLine) -> None:
        sys.exit("a message was passed over")

    def count(self, counter: str, times: int = 1) -> None:
        pass

    def on_log(self) -> None: ...

    def secret(self, text: str) -> None:
        pass

    def on_server_lost(self, failure: Fail) -> None:
        sys.exit(failure.message)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def main(url: str, era: str, count: int, at_once: int, size: int) -> None:
    ear = Sizes()
    transport = remote(ServerSpec(name="far", url=url), "1.0", ear)
    stamp = jsonrpc_lines.MetaBuilder(
        jsonrpc_lines.MODERN if era == "modern" else jsonrpc_lines.LEGACY[0], "1.0"
    )

    async def ask(key: bytes, method: str, params: bytes) -> int:
        meta = stamp.own()
        line = jsonrpc_lines.request(key, method, params, meta)
        transport.request(ServerRequest(key, line, method, params))
        while key not in ear.sizes:
            ear.news.clear()
            await ear.news.wait()
        return ear.sizes[key]

    if era == "modern":
        await ask(b"1", "server/discover", b"{}")
    else:
        info = {"name": "t", "version": "1"}
        hello = {"protocolVersion": jsonrpc_lines.LEGACY[0], "capabilities": {}, "clientInfo": info}
        await ask(b"1", "initialize", json.dumps(hello).encode())
        transport.write(jsonrpc_lines.notification("notifications/initialized"))
    before = peak()
    params = json.dumps({"name": "big", "arguments": {"size": size}}).encode()
    keys = iter(range(2, count + 2))

    async def caller() -> None:
        for key in keys:
            assert await ask(b"%d" % key, "tools/call", params) > size

    await asyncio.gather(*(caller() for _ in range(at_once)))
    sys.stdout.write(f"{peak() - before}\n")
    await transport.stop()
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
