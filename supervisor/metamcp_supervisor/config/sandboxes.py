"""Confinement of a server in its table: `sandbox`, `sandbox_required`, `read`, `write`, `needs`,
`unix_sockets`, `network`, `disk_max`; and what known servers need beside their own files.

Owns: these keys and the rules between them, the profile of a server, which known server a command
starts and what that opens. Never: the table of known servers, a file of TOML, the rights
that follow from a command itself (`confinement.rules` of the worker).
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from posixpath import basename, normpath
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config.config import HOST, Network, Server
from metamcp_supervisor.config.document import Table, list_of, shorten, table_of
from metamcp_supervisor.config.formats import toml_loads
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import Profile

PATHS_MAX = 256
PORTS_MAX = 64
_NEVER = ("/", "/dev", "/proc", "/sys")
_ITSELF = "podman"
"""Launcher that makes a container by itself, which no confined process may do."""
KEYS = (
    "sandbox", "sandbox_required", "read", "write", "needs", "unix_sockets", "network", "disk_max",
)  # fmt: skip


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


def check(table: Table, server: Server) -> Server:
    """Return the server with its network; keys that do not fit it are reported."""
    written = [key for key in KEYS if table.has(key)]
    if not server.command:
        for key in written:
            table.error(key, "is only for a server with 'command', which has its own process")
        return server
    if profile(server) == "none":
        for key in written:
            if key != "sandbox":
                table.error(key, 'means nothing with sandbox = "none"')
    _check_paths(table, "read", server.read)
    _check_paths(table, "write", server.write)
    for name in server.needs or ():
        if name not in known_table().needs:
            names = ", ".join(known_table().needs)
            table.error("needs", f"'{shorten(name)}' is not known; there are: {names}")
    server = replace(server, network=_network(table))
    _check_paths(table, "unix_sockets", server.unix_sockets)
    return server


def _check_paths(table: Table, key: str, paths: Sequence[str]) -> None:
    for path in paths:
        if not path or normpath(path) in _NEVER or normpath(path).startswith("/proc/"):
            problem = "would show it other processes and devices; name the folders that it needs"
            table.error(key, f"'{shorten(path)}' {problem}")
    if len(paths) > PATHS_MAX:
        table.error(key, f"has more than {PATHS_MAX} paths")


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


LAUNCHERS = frozenset({
    "bun", "bunx", "deno", "docker", "node", "npm", "npx", "pipx", "pnpm", "pnpx", "podman",
    "python", "python3", "uv", "uvx", "yarn",
})  # fmt: skip
"""Programs that start another one, which one of their first words names."""
WHOLE = "."
"""Path that stands for the working directory."""
WORDS_MAX = 3
"""Words of a launcher without options that are looked at: `uv tool run NAME`."""
_NAMED = re.compile(r"--(?:from|package|spec)=(.+)")
_VERSION = re.compile(r"(?<=.)(?:@[^/]*|==.*|\[.*)$")
_MODULES = re.compile(r".*/node_modules/((?:@[^/]+/)?[^/]+)")
_IMAGES = frozenset({"docker", "podman"})


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """A need of servers. `text`: what it opens, as the end of a sentence."""

    text: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    browser: bool = False


class KnownServer(Struct, frozen=True, forbid_unknown_fields=True):
    """Server of a package, image or program. `own`: folders of the home that it makes for itself;
    `source`: where its needs are documented."""

    name: str
    source: str
    needs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class KnownServers(Struct, frozen=True, forbid_unknown_fields=True):
    """The table; `version`: its date."""

    version: str
    needs: dict[str, Need]
    servers: tuple[KnownServer, ...]


class NeededRights(NamedTuple):
    """Rights that the needs of a server open in its confinement, as in `ConfinementSpec`."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    browser: bool


@cache
def known_table() -> KnownServers:
    """Return the table of this version."""
    text = Path(__file__).parents[1].joinpath("known_servers.toml").read_text(encoding="utf-8")
    return codec.decode_as(KnownServers, codec.dump(toml_loads(text)))


def find_known_server(command: Sequence[str]) -> KnownServer | None:
    """Return the known server that a command starts; None if it starts another one."""
    by_name = {server.name: server for server in known_table().servers}
    return next((by_name[name] for name in _package_names(command) if name in by_name), None)


def needs(server: Server) -> tuple[str, ...]:
    """Return the names of what a server needs: as its table says, or else as it is known."""
    entry = _find_applicable(server)
    return entry.needs if entry is not None else server.needs or ()


def _find_applicable(server: Server) -> KnownServer | None:
    """Return the known server whose needs count: none if the table of the server has its own, or if
    the server is not confined."""
    counts = server.needs is None and profile(server) != "none"
    return find_known_server(server.command) if counts else None


def needs_text(server: Server) -> str:
    """Return what is opened for the needs of a server, and who says that it has them; empty for a
    server without needs."""
    entry = _find_applicable(server)
    whose = "its table" if entry is None else f"{entry.name} is known since {known_table().version}"
    texts = [
        known_table().needs[name].text for name in needs(server) if name in known_table().needs
    ]
    texts += [f"{folder}, which it makes" for folder in (entry.own if entry else ())]
    return f"it gets {', '.join(texts)} ({whose})" if texts else ""


def needed_rights(server: Server, home: str) -> NeededRights:
    """Return what the needs of a server open. `home`: of the operator; a working directory that is
    the home or around it is not opened as a whole."""
    each = [known_table().needs[name] for name in needs(server)]
    entry = _find_applicable(server)
    own = [f"{folder}/" for folder in (entry.own if entry else ())]
    working_dir = str(server.cwd or server.folder).rstrip("/")
    wide = f"{home}/".startswith(f"{working_dir}/")
    return NeededRights(
        tuple(path for need in each for path in need.read),
        (*(path for need in each for path in need.write if path != WHOLE or not wide), *own),
        any(need.browser for need in each),
    )


def _package_names(command: Sequence[str]) -> Iterator[str]:
    """Yield names under which the server of a command may be known."""
    program = basename(command[0])
    yield program
    if program not in LAUNCHERS:
        return
    words = command[1:]
    for word in words:
        if named := _NAMED.fullmatch(word):
            yield _plain(named[1])
    plain = (word for word in words if not word.startswith("-"))
    for word in plain if program in _IMAGES else islice(plain, WORDS_MAX):
        yield _image(word) if program in _IMAGES else _plain(word)


def _image(word: str) -> str:
    """Return the name of an image without its version."""
    return re.sub(r"(?:@sha256:.*|:[\w.-]+)$", "", word).removeprefix("docker.io/")


def _plain(word: str) -> str:
    """Return the name of the package that a word names: with a version, as a path, or as a module
    of Python."""
    if modules := _MODULES.match(word):
        return modules[1]
    name = _VERSION.sub("", word.removeprefix("npm:"))
    return name if name.startswith("@") else basename(name).replace("_", "-")
