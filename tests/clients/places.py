"""A gateway with every kind of server behind it, one endpoint for each, and the ways to them.

Each endpoint has three servers: the fixture, in one era and over one transport; a scripted server
of the same era that asks for visits to URLs; and another one whose calls are cancelled. A cancelled
call counts for a while among those that a question may belong to, so that none is asked there.
"""

import json
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.conformance.matrix import FIXTURE, fixture
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import ROOT, Gateway, fake

ERAS = {"legacy": LEGACY, "modern": MODERN}
KINDS = tuple(product(("stdio", "http"), ERAS))
FLAGS = ("--prompts", "--resources")
SLOW = (sys.executable, str(ROOT / "tests" / "clients" / "slow_server.py"))


@dataclass(frozen=True, slots=True)
class Place:
    """One endpoint: how the fixture is reached behind it, and in which era."""

    gateway: Gateway
    transport: str
    era: str

    @property
    def main(self) -> str:
        """The gateway's name for the fixture, and for the endpoint."""
        return f"{self.transport}-{self.era}"

    @property
    def names(self) -> dict[str, str]:
        return {"main": self.main, "side": f"side-{self.main}", "slow": f"slow-{self.main}"}

    @property
    def bridge(self) -> list[str]:
        """The command of a bridge to this endpoint; it is started in `ROOT`."""
        where = ["--runtime-dir", str(self.gateway.folder / "run"), "--endpoint", self.main]
        return [sys.executable, "-m", "metamcp_supervisor", "connect", *where]

    def url(self, last: str = "mcp") -> str:
        return f"http://127.0.0.1:{self.gateway.port}/metamcp/{self.main}/{last}"

    def way(self, way: str) -> dict[str, Any]:
        """Where a client finds it over http, sse or stdio."""
        if way == "stdio":
            command, *args = self.bridge
            return {"way": way, "command": command, "args": args, "cwd": str(ROOT)}
        return {"way": way, "url": self.url("mcp" if way == "http" else way)}


@contextmanager
def running() -> Generator[list[Place]]:
    """The places of one gateway."""
    with ExitStack() as stack:
        servers: dict[str, dict[str, Any]] = {}
        tables: list[str] = []
        for transport, era in KINDS:
            name = f"{transport}-{era}"
            servers[f"side-{name}"] = fake("--era", era, *FLAGS)
            servers[f"slow-{name}"] = {"command": [*SLOW, "--era", era]}
            if transport == "stdio":
                servers[name] = {"command": [*FIXTURE, "--era", era]}
            else:
                tables.append(f'[servers.{name}]\nurl = "{stack.enter_context(fixture(era))}"')
            members = json.dumps([name, f"side-{name}", f"slow-{name}"])
            tables.append(f"[namespaces.{name}]\nservers = {members}")
            tables.append(f'[endpoints.{name}]\nnamespace = "{name}"')
        gateway = stack.enter_context(Gateway(servers, extra="\n".join(tables)))
        yield [Place(gateway, transport, era) for transport, era in KINDS]
