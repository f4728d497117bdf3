"""The gateway of a soak: its servers, who is who among its processes, signals only to its own.

Owns: the configuration and its changes, what `status` says, which connections a front has. Never:
when something is done (`soak_plan`), what it means for clients (`soak_ledger`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from metamcp_supervisor import verbs
from metamcp_supervisor.control import client
from metamcp_worker.ipc import codec, process_names
from tests.live.gateway import ROOT, Gateway

SERVER = [sys.executable, str(ROOT / "tests" / "fakes" / "soak_server.py")]
GUEST = "guest"
"""It comes and goes with the configuration."""
TIMEOUT_S = 5.0
FRONTS = 2
LOOKS = 3
"""At a table that changes while it is read: what one look misses, another one sees."""
#: One after the other: what the servers are, beside their commands.
MANNERS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--era", "legacy"), {}),
    (("--era", "modern"), {}),
    (("--era", "both", "--garbage"), {}),
    (("--era", "legacy"), {"retry": "read-only"}),
    (("--era", "both"), {}),
    (("--era", "modern"), {"spares": 1}),
    (("--era", "legacy", "--half-lines"), {}),
    (("--era", "both"), {"start": "lazy", "idle_stop": "5s"}),
    (("--era", "modern"), {"retry": "idempotent", "strict_listing": True}),
    (("--era", "legacy"), {}),
)


def names_of(count: int) -> list[str]:
    return [f"s{number:02}" for number in range(count)]


class Soaked(Gateway):
    """A gateway with so many servers, and now and then a guest."""

    def __init__(self, count: int) -> None:
        self.names = names_of(count)
        self.entries: dict[str, dict[str, Any]] = {}
        for number, name in enumerate(self.names):
            flags, options = MANNERS[number % len(MANNERS)]
            self.entries[name] = {
                "command": [*SERVER, *flags],
                "timeout": f"{TIMEOUT_S:g}s",
                "stop_grace": "1s",
                "probe_interval": "5s",
                **options,
            }
        self.reloading = asyncio.Lock()
        super().__init__(self.entries, extra=f"[gateway]\nfronts = {FRONTS}\n", wait=False)

    def lazy(self, name: str) -> bool:
        return self.entries.get(process_names.base(name), {}).get("start") == "lazy"

    def copies(self, name: str) -> int:
        """How many processes it has when all is well."""
        return 1 + int(self.entries.get(name, {}).get("spares", 0))

    def look(self) -> verbs.GatewayStatus:
        """Raises client.Failed."""
        with client.connect(str(self.folder / "run")) as line:
            return codec.decode_as(verbs.GatewayStatus, line.call("status"))

    async def status_of(self) -> verbs.GatewayStatus:
        return await asyncio.to_thread(self.look)

    async def order(self, *arguments: str) -> tuple[int, str]:
        """Exit code and stderr of one `metamcp ctl`."""
        done = await asyncio.create_subprocess_exec(
            *self.command("ctl", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await done.communicate()
        return done.returncode or 0, said.decode(errors="replace").strip()

    async def change(self, name: str, entry: dict[str, Any] | None) -> tuple[int, str]:
        """Give this server another configuration, or none, and reload."""
        async with self.reloading:
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry
            self.write(self.entries)
            return await self.order("reload")

    def ours(self, pid: int) -> bool:
        """Was this process started for this gateway?"""
        with suppress(OSError):
            return self.folder.name.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """False if there is no such process of ours any more."""
        if pid <= 0 or not self.ours(pid):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def clients_of(self, pids: Sequence[int]) -> set[int]:
        """The ports from which clients are connected to these fronts. They should stand still
        meanwhile."""
        sockets: set[str] = set()
        for pid in pids:
            with suppress(OSError):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    with suppress(OSError):
                        sockets.add(os.readlink(entry.path))
        return {
            there
            for _ in range(LOOKS)
            for here, there, inode in _connections()
            if here == self.port and f"socket:[{inode}]" in sockets
        }


def _connections() -> list[tuple[int, int, str]]:
    """Both ports and the inode of every connection, but for some while others come and go."""
    found: list[tuple[int, int, str]] = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        here, there = (int(side.split(":")[1], 16) for side in fields[1:3])
        found.append((here, there, fields[9]))
    return found
