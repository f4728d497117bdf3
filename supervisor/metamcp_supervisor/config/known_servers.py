"""Known servers: what the servers that are used most need beside their own files.

Owns: reading the table that this version ships (`known_servers.toml`), which server a command
starts, and the paths that follow. Never: the table, rights that follow from a command itself
(`confinement.rules` of the worker).
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from posixpath import basename
from typing import NamedTuple

from msgspec import Struct

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.formats import toml_loads
from metamcp_worker.ipc import codec

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
def table() -> KnownServers:
    """Return the table of this version."""
    text = Path(__file__).parents[1].joinpath("known_servers.toml").read_text(encoding="utf-8")
    return codec.typed(KnownServers, codec.dump(toml_loads(text)))


def known(command: Sequence[str]) -> KnownServer | None:
    """Return the known server that a command starts; None if it starts another one."""
    by_name = {server.name: server for server in table().servers}
    return next((by_name[name] for name in _names(command) if name in by_name), None)


def needs(server: Server) -> tuple[str, ...]:
    """Return the names of what a server needs: as its table says, or else as it is known."""
    entry = _known(server)
    return entry.needs if entry is not None else server.needs or ()


def _known(server: Server) -> KnownServer | None:
    """Return the known server whose needs count: none if the table of the server has its own."""
    return known(server.command) if server.needs is None and server.command else None


def described(server: Server) -> str:
    """Return what is opened for the needs of a server, and who says that it has them; empty for a
    server without needs."""
    entry = _known(server)
    whose = "its table" if entry is None else f"{entry.name} is known since {table().version}"
    texts = [table().needs[name].text for name in needs(server) if name in table().needs]
    texts += [f"{folder}, which it makes" for folder in (entry.own if entry else ())]
    return f"it gets {', '.join(texts)} ({whose})" if texts else ""


def opened(server: Server, home: str) -> NeededRights:
    """Return what the needs of a server open. `home`: of the operator; a working directory that is
    the home or around it is not opened as a whole."""
    each = [table().needs[name] for name in needs(server)]
    entry = _known(server)
    own = [f"{folder}/" for folder in (entry.own if entry else ())]
    place = str(server.cwd or server.folder).rstrip("/")
    wide = f"{home}/".startswith(f"{place}/")
    return NeededRights(
        tuple(path for need in each for path in need.read),
        (*(path for need in each for path in need.write if path != WHOLE or not wide), *own),
        any(need.browser for need in each),
    )


def _names(command: Sequence[str]) -> Iterator[str]:
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
