"""The files of clients on this machine, with the servers in them that are not this gateway.

Owns: which files exist, and how each is read. Never: the places of files (`clients`), shapes of
entries (`entries`), changing a file.
"""

import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.client_files import disk, entries, texts
from metamcp_supervisor.client_files.clients import (
    CLIENTS,
    ClientProgram,
    FileUnfit,
    Platform,
    Scope,
    candidates,
)
from metamcp_supervisor.client_files.entries import ClientServer
from metamcp_supervisor.config import files
from metamcp_supervisor.config.document import BrokenSyntax

PLATFORM: Platform = "darwin" if sys.platform == "darwin" else "linux"
_SCOPES: tuple[Scope, ...] = ("user", "project")


@dataclass(frozen=True, slots=True)
class ClientFile:
    """File of a client, with the servers in it that are not this gateway. `base`: folder of its
    project, else empty; `why`: why the file cannot be read, else empty."""

    client: ClientProgram
    path: Path
    servers: tuple[ClientServer, ...]
    base: str = ""
    why: str = ""
    can_be_included: bool = False


def every(origins: Collection[str]) -> list[ClientFile]:
    """Return the files of all clients for this user and this folder. `origins`: of this gateway."""
    return [file for client in CLIENTS.values() for file in of_client(client, origins)]


def of_client(client: ClientProgram, origins: Collection[str]) -> list[ClientFile]:
    """Return all files of a client that exist. `origins`: of this gateway."""
    return [read(client, scope, path, origins) for scope, path in _there(client)]


def _there(client: ClientProgram) -> Iterator[tuple[Scope, Path]]:
    home, cwd = Path.home(), Path.cwd()
    for scope in _SCOPES:
        for path in candidates(
            client, scope, platform=PLATFORM, environ=os.environ, home=home, cwd=cwd
        ):
            if os.path.exists(path):  # False in a folder that may not be looked at
                yield scope, path


def read(client: ClientProgram, scope: Scope, path: Path, origins: Collection[str]) -> ClientFile:
    """Return a file and its servers, or why it cannot be read. `origins`: of this gateway."""
    try:
        text = disk.read(path).text
        kept = texts.native(client.how(scope), text)
        values = entries.servers(kept, texts.entries(kept, text))
    except files.FileUnreadable as why:
        return ClientFile(client, path, (), why=str(why))
    except FileUnfit as unfit:
        return ClientFile(client, path, (), why=str(unfit))
    except BrokenSyntax as broken:
        line = f" (line {broken.line})" if broken.line else ""
        return ClientFile(client, path, (), why=f"cannot be read: {broken.message}{line}")
    servers = (entries.found(name, table) for name, table in values.items())
    others = tuple(each for each in servers if not entries.is_ours(each, origins))
    return ClientFile(
        client,
        path,
        others,
        base=str(Path.cwd()) if scope == "project" else "",
        can_be_included=kept.format == "json" and kept.place in (("mcpServers",), ("servers",)),
    )
