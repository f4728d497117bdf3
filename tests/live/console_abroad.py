"""A gateway whose console other machines reach: over TLS, at an address of the network."""

import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.live.gateway import Gateway, free_port
from tests.live.test_keys import listed


def address() -> str:
    """The address of this machine in its network; empty if it is in none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        found: str = probe.getsockname()[0]
        return "" if found.startswith("127.") else found
    return ""


class ConsoleAbroad(Gateway):
    """Gateway with such a console, whose endpoints ask for keys. `authority`: file that clients
    trust. Skips the test on a machine without a network."""

    def __init__(self, servers: Mapping[str, Mapping[str, Any]]) -> None:
        self.address = address()
        if not self.address:
            pytest.skip("this machine has no address but loopback")
        self.console_port = free_port()
        self.base = f"https://{self.address}:{self.console_port}"
        extra = f"""
[gateway]
auth = "keys"
tls = "required"
console_listen = "{self.address}:{self.console_port}"
[audit]
"""
        super().__init__(servers, extra=extra)

    @property
    def authority(self) -> Path:
        return self.folder / "state" / "tls" / "ca.pem"

    def keys(self, *words: str) -> dict[str, Any]:
        return self._told("keys", *words)

    def key(self, name: str, *scopes: str) -> dict[str, Any]:
        """A new key."""
        return self.keys("create", name, *(word for one in scopes for word in ("--scope", one)))

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._told("console", "sessions")["sessions"]
        return found

    def listed(self, key: str) -> int:
        """The status of a list of tools at the endpoint, over TLS."""
        context = ssl.create_default_context(cafile=str(self.authority))
        endpoint = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        try:
            return listed(endpoint, key)
        finally:
            endpoint.close()

    def orders(self) -> list[str]:
        """The orders in the audit, the newest first."""
        state = ("--state-dir", str(self.folder / "state"), "--event", "order", "--json")
        done = programs.run([*programs.PROGRAM, "audit", "list", *state], check=True)
        return [json.loads(line)["text"] for line in done.stdout.splitlines()]

    def _told(self, *words: str) -> dict[str, Any]:
        done = programs.run([*self.command(*words), "--json"], check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found
