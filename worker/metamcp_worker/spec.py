"""What the supervisor tells a worker: the typed, frozen values that cross the control socket.

Owns: their fields, units and defaults. Never: file formats, validation for humans (the supervisor's
`config` does both), secrets by reference (here they are already resolved).
"""

from msgspec import Struct


class ServerSpec(Struct, frozen=True, kw_only=True):
    """One MCP server, as its worker needs to know it. Exactly one of `command`, `module` is set.

    `command`: argv, the first element looked up on the PATH of `env`. `env`: the whole environment
    of the child. `cwd`: directory, or None for the gateway's. `module`: `package.module:object`.
    """

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    module: str | None = None
    start_timeout_s: float = 30.0
    timeout_s: float = 60.0
    stop_eof_s: float = 1.0
    stop_grace_s: float = 5.0
    concurrency: int = 1024
    """Requests in flight at the child; more wait in the queue."""
    queue: int = 4096
    """Requests that may wait for the child; one more is answered with `overloaded`."""
    probe: bool = True
    """Ask first whether it is modern. Some legacy servers exit when they are asked; see
    `messages.ServerDown.probing`."""


class NamingSpec(Struct, frozen=True, kw_only=True):
    """How an endpoint names things. See `metamcp_worker.names`."""

    style: str = "namespaced"
    separator: str = ""
    hyphens: str = "keep"
    length_max: int = 64


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """One endpoint: the paths that it answers at, its servers in order, its naming.

    `disabled`: pairs (server, tool) switched off. `default`: it answers at `/mcp` too.
    """

    name: str
    servers: tuple[str, ...]
    naming: NamingSpec = NamingSpec()
    disabled: tuple[tuple[str, str], ...] = ()
    default: bool = False


class FrontSpec(Struct, frozen=True, kw_only=True):
    """All that a front serves. `hosts`: values of `Host` and of the host part of `Origin` that are
    accepted, without port (`127.0.0.1`, `localhost`, `[::1]`, …). `timeouts_s`: per server."""

    version: str
    endpoints: tuple[EndpointSpec, ...]
    hosts: tuple[str, ...]
    timeouts_s: dict[str, float] = {}
    call_hold_s: float = 2.0
    """How long a call waits for a server that is just coming back."""
