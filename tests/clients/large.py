"""A gateway with servers of every kind that can answer with a text of nearly the largest size, and
raw clients of every kind that ask for it."""

import http.client
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from metamcp_worker.ipc import codec
from tests.clients import hosted
from tests.clients.places import SLOW
from tests.live.bridge import STAMP, Bridge
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.raw import Raw

KIB = 16 * 1024 - 1
BODY_BYTES = KIB * 1024
TEXT = b"x" * BODY_BYTES
WAIT_S = 60

#: The tool of each server that answers with the text, its argument for the size, and the bytes for
#: which that is one more.
SERVERS: dict[str, tuple[str, str, int]] = {
    "stdio-legacy": ("blob", "kib", 1024),
    "stdio-modern": ("blob", "kib", 1024),
    "told": ("told_blob", "kib", 1024),
    "json-legacy": ("big", "bytes", 1),
    "json-modern": ("big", "bytes", 1),
    "events-legacy": ("big", "bytes", 1),
    "events-modern": ("big", "bytes", 1),
    "sse": ("big", "size", 1),
    "hosted": ("blob", "kib", 1024),
    "alone": ("blob", "kib", 1024),
}
HELLO: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
HTTP_SERVER = [sys.executable, str(ROOT / "tests" / "clients" / "big_http.py")]
SDK_SERVER = [sys.executable, str(ROOT / "tests" / "fakes" / "sdk_http.py")]


@contextmanager
def running(extra: str = "") -> Generator[Gateway]:
    """The gateway with all these servers. `extra`: more of its configuration."""
    with ExitStack() as stack:
        found: dict[str, dict[str, Any]] = {
            "told": {"command": [*SLOW, "--era", "legacy"]},
            "hosted": {"module": "tests.clients.hosted:server", "env": {"PYTHONPATH": str(ROOT)}},
            "alone": {"command": [sys.executable, hosted.__file__]},
        }
        tables: list[str] = [extra]
        for era in ("legacy", "modern"):
            found[f"stdio-{era}"] = fake("--era", era)
            for answer in ("json", "events"):
                url = stack.enter_context(serving([*HTTP_SERVER, era, answer]))
                tables.append(f'[servers.{answer}-{era}]\nurl = "{url}"')
        url = stack.enter_context(serving([*SDK_SERVER, "--ways", "sse"]))
        tables.append(f'[servers.sse]\nurl = "{url}"')
        yield stack.enter_context(Gateway(found, extra="\n".join(tables)))


@contextmanager
def serving(command: list[str]) -> Generator[str]:
    """A server over HTTP in a process of its own; its URL, which is the first line that it says."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


# --- clients ----------------------------------------------------------------------------------


class Fetch(Protocol):
    """Call the tool of a server, and return the raw result."""

    def __call__(self, gateway: Gateway, server: str, size: int = BODY_BYTES) -> bytes: ...


def arguments(server: str, size: int) -> dict[str, int]:
    _, name, unit = SERVERS[server]
    return {name: size // unit}


def call(server: str, size: int) -> bytes:
    """The parameters."""
    name = f"{server}__{SERVERS[server][0]}"
    return codec.dump({"name": name, "arguments": arguments(server, size)})


def request(method: str, params: bytes, raw_id: bytes = b"1") -> bytes:
    parts = raw_id, codec.dump(method), params
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % parts


def over_http(era: str, meta: bytes = b"") -> Fetch:
    """With a progress token in `meta`, the answer of a server that tells of progress first is a
    stream."""

    def fetch(gateway: Gateway, server: str, size: int = BODY_BYTES) -> bytes:
        with Raw(gateway.port, era).ask("tools/call", call(server, size), meta=meta) as stream:
            assert stream.streams == bool(meta)
            _, answer = stream.until(b"1")
            return bytes(answer.result)

    return fetch


def over_sse(gateway: Gateway, server: str, size: int = BODY_BYTES) -> bytes:
    """The transport of 2024."""
    news = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_S)
    posts = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_S)
    news.request("GET", "/sse", headers={"Accept": "text/event-stream"})
    with news.getresponse() as events:

        def data() -> bytes:
            while not (line := events.readline()).startswith(b"data:"):
                assert line, "the stream has ended"
            return line.removeprefix(b"data:").strip()

        def post(body: bytes) -> None:
            posts.request("POST", place, body, {"Content-Type": "application/json"})
            with posts.getresponse() as taken:
                assert taken.status == 202, taken.read()
                taken.read()

        place = data().decode()
        post(request("initialize", codec.dump({**HELLO, "protocolVersion": "2024-11-05"})))
        assert codec.envelope(data()).result
        post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        post(request("tools/call", call(server, size), b"2"))
        found = bytes(codec.envelope(data()).result)
    news.close()
    posts.close()
    return found


def over_a_bridge(era: str) -> Fetch:
    def fetch(gateway: Gateway, server: str, size: int = BODY_BYTES) -> bytes:
        where = ("--runtime-dir", str(gateway.folder / "run"))
        with Bridge(*where, folder=gateway.folder, era=era) as bridge:
            params = call(server, size)
            if era == MODERN:
                params = codec.splice(params, {"_meta": codec.dump(STAMP)})
            bridge.say(request("tools/call", params, b"7"))
            return bytes(codec.envelope(bridge.line()).result)

    return fetch


def over_rest(gateway: Gateway, server: str, size: int = BODY_BYTES) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_S)
    path = f"/metamcp/default/api/{server}__{SERVERS[server][0]}"
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(arguments(server, size)), headers)
    with connection.getresponse() as answer:
        assert answer.status == 200
        found = answer.read()
    connection.close()
    return found


TOKEN = b'"progressToken":"p"'
CLIENTS: dict[str, Fetch] = {
    "modern": over_http(MODERN),
    "legacy": over_http(LEGACY),
    "modern-stream": over_http(MODERN, TOKEN),
    "legacy-stream": over_http(LEGACY, TOKEN),
    "sse": over_sse,
    "connect-modern": over_a_bridge(MODERN),
    "connect-legacy": over_a_bridge(LEGACY),
    "rest": over_rest,
}
