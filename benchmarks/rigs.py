"""What is measured, started: relays, gateways in front of the child, and how each is spoken to.

Owns: the ways of saying one call in every dialect of the gateway. Never: load, clocks.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import load, roles
from benchmarks.load import Speech
from benchmarks.machine import CHILD, ROOT
from metamcp_worker import PURE
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, free_port
from tests.waiting import until

NAME = "bench"
"""Of the one server where there is one."""
TOKEN_META = {"progressToken": 1}
UNCOUNTED = ROOT / "benchmarks" / "uncounted"


@dataclass(frozen=True, slots=True)
class Relay:
    port: int
    pids: roles.Pids


@contextmanager
def relay(module: str, *, tool: str = "echo") -> Generator[Relay]:
    """`bare_relay` or `ceiling`, in front of the child, of which they call nothing but `tool`."""
    port = free_port()
    command = [sys.executable, "-m", f"benchmarks.{module}", str(port), *CHILD]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "BENCH_TOOL": tool})
    try:
        until(lambda: listening(port), f"{module} listens")
        yield Relay(port, roles.of_relay(process.pid))
    finally:
        process.terminate()
        process.wait(timeout=10)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def child(*flags: str) -> dict[str, Any]:
    """A configuration entry for the child."""
    return {"command": [*CHILD, *flags]}


def children(count: int, *flags: str) -> dict[str, dict[str, Any]]:
    return {f"s{number:03}": child(*flags) for number in range(count)}


def bare(port: int) -> Speech:
    """To a relay, which looks at no header."""
    return load.speech(port, {}, "echo")


def legacy(
    gateway: Gateway, tool: str = "echo", server: str = NAME, **arguments: Any
) -> Speech:  # fmt: skip
    """In a session of its own, whose connection is closed already."""
    with closing(Client(gateway.port, LEGACY)) as client:
        headers = client.headers()
    return load.speech(gateway.port, headers, f"{server}__{tool}", arguments=arguments or None)


def modern(gateway: Gateway, tool: str = "echo", server: str = NAME, **arguments: Any) -> Speech:
    with closing(Client(gateway.port, MODERN)) as client:
        name = f"{server}__{tool}"
        headers, meta = client.headers("tools/call", name), client.meta()
    return load.speech(gateway.port, headers, name, arguments=arguments or None, meta=meta)


def rest(gateway: Gateway, tool: str = "echo", server: str = NAME) -> Speech:
    """The same call as plain HTTP; what comes back is the result itself."""
    path = f"/api/{server}__{tool}"
    said = load.speech(gateway.port, {}, tool, path=path)
    body = f'{{"text":"%(text)b","padding":"{load.PADDING}"}}'.encode()
    return replace(said, body=body, proof=b'"content"')


def streamed(gateway: Gateway, server: str = NAME) -> Speech:
    """A call with a word of progress before its answer, so that it is answered as SSE."""
    with closing(Client(gateway.port, LEGACY)) as client:
        headers = client.headers()
    said = load.speech(gateway.port, headers, f"{server}__progress", meta=TOKEN_META)
    return replace(said, proof=b"notifications/progress")


def listing(gateway: Gateway, era: str, path: str = "/mcp") -> Speech:
    """The whole list of tools; the text that has to come back is in the id."""
    with closing(Client(gateway.port, era, path)) as client:
        headers = client.headers("tools/list")
        meta = {"_meta": client.meta()} if era == MODERN else {}
    body = b'{"jsonrpc":"2.0","id":"%%(text)b","method":"tools/list","params":%b}'
    head = load.speech(gateway.port, headers, "", path=path).head
    return Speech(head, body % load.written(meta).encode(), b'"tools"')


def every(gateway: Gateway, names: Iterable[str]) -> list[Speech]:
    """A call of each of these tools, by their exposed names, in one session. Their arguments and
    the progress token are those that any tool of the child may want."""
    with closing(Client(gateway.port, LEGACY)) as client:
        headers = client.headers()
    said: dict[str, Any] = {"arguments": {"ms": 0, "kib": 1}, "meta": TOKEN_META}
    return [load.speech(gateway.port, headers, name, **said) for name in names]


def uncounted(servers: Mapping[str, Mapping[str, Any]]) -> Gateway:
    """A gateway out of which counting is taken, not yet started; see `pure`."""
    return customized(pure(Gateway(servers)), UNCOUNTED)


def pure(gateway: Gateway) -> Gateway:
    """The same, not yet started, without compiled modules: nothing of those can be replaced."""
    gateway.environ[PURE] = "1"
    return gateway


def customized(gateway: Gateway, folder: Path) -> Gateway:
    """The same, not yet started: every Python of it begins with `sitecustomize` of this folder."""
    gateway.environ |= customizing(folder)
    return gateway


def customizing(folder: Path) -> dict[str, str]:
    """What has to be in an environment for that."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path}


def bridge(gateway: Gateway) -> tuple[list[str], dict[str, str]]:
    """`metamcp connect` to this gateway, and what has to be in its environment."""
    return gateway.command("connect"), gateway.environ
