"""Confinement of a server in its table: `sandbox`, `sandbox_required`, `read`, `write`, `needs`,
`network`.

Owns: these keys and the rules between them, the profile of a server. Never: the rights that follow
from a command (`confinement.rules` of the worker).
"""

from dataclasses import replace
from posixpath import basename, normpath
from typing import cast

from metamcp_supervisor.config import known_servers
from metamcp_supervisor.config.config import HOST, Network, Server
from metamcp_supervisor.config.document import Table, list_of, shown, table_of
from metamcp_worker.ipc.spec import Profile

PATHS_MAX = 256
PORTS_MAX = 64
_NEVER = ("/", "/dev", "/proc", "/sys")
_ITSELF = "podman"
"""Launcher that makes a container by itself, which no confined process may do."""
_KEYS = ("sandbox", "sandbox_required", "read", "write", "needs", "network")


def profile(server: Server) -> Profile:
    """Return the profile of a server: `basic`, if its table has none. A server without a process of
    its own is not confined, nor is a launcher that makes a container by itself."""
    if not server.command:
        return "none"
    by_itself = basename(server.command[0]) == _ITSELF
    return server.sandbox or ("none" if by_itself else "basic")


def network(server: Server) -> Network:
    """Return the network of a server: all of it, or in the profile `strict` none."""
    if server.network is not None:
        return server.network
    return "none" if profile(server) == "strict" else HOST


def read(table: Table, server: Server) -> Server:
    """Return the server with the keys of its table; those that do not fit it are reported."""
    written = [key for key in _KEYS if table.has(key)]
    if not server.command:
        for key in written:
            table.error(key, "is only for a server with 'command', which has its own process")
        return server
    server = replace(server, sandbox=cast("Profile | None", table.choice("sandbox")))
    if profile(server) == "none":
        for key in written:
            if key != "sandbox":
                table.error(key, 'means nothing with sandbox = "none"')
    return replace(
        server,
        sandbox_required=table.flag("sandbox_required", default=False),
        read=_paths(table, "read"),
        write=_paths(table, "write"),
        needs=_needs(table),
        network=_network(table),
    )


def _paths(table: Table, key: str) -> tuple[str, ...]:
    found = table.texts(key) or ()
    for path in found:
        if not path or normpath(path) in _NEVER or normpath(path).startswith("/proc/"):
            what = "would show it other processes and devices; name the folders that it needs"
            table.error(key, f"'{shown(path)}' {what}")
    if len(found) > PATHS_MAX:
        table.error(key, f"has more than {PATHS_MAX} paths")
    return found


def _needs(table: Table) -> tuple[str, ...] | None:
    names = table.texts("needs")
    known = known_servers.table().needs
    for name in names or ():
        if name not in known:
            table.error("needs", f"'{shown(name)}' is not known; there are: {', '.join(known)}")
    return names


def _network(table: Table) -> Network | None:
    if table_of(table.values.get("network")) is None:
        return cast("Network | None", table.choice("network"))
    inner = table.table("network", "servers.*.network")
    assert inner is not None
    inner.refuse_unknown()
    ports = list_of(inner.values.get("tcp_ports"))
    if not ports or len(ports) > PORTS_MAX or not all(map(_is_port, ports)):
        inner.error("tcp_ports", f"must be a list of up to {PORTS_MAX} ports, such as [443]")
        return None
    return tuple(cast("list[int]", ports))


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65_535
