"""What each server offered last, kept on disk over restarts.

Owns: the folder `catalogue` of the state directory and its files, one for each server as it is
started now, and the figures read out of one catalogue. Never: what a front is told (`publish`), a
definition's meaning.

A file is written whole under another name and then renamed, so that a full disk or a crash leaves
the old one. Trouble with the disk is told and never stops a server.
"""

import asyncio
import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.reload import launched
from metamcp_worker.ipc import codec, packets, server_catalog, validation
from metamcp_worker.ipc.roots import Asked
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.token_cost import together

LEFT_OUT_MAX = 50
"""Definitions of one server that are not valid and told one by one; 'metamcp tools' names all."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Figures of one catalogue, of what lists have. `token_cost`: estimated, of the tool
    definitions. `invalid`: how many definitions are not valid; `left_out`: each with place and
    reason, up to LEFT_OUT_MAX. `modern`: it is of the revision without sessions; `identity`:
    another one for another version of the server."""

    tools: int = 0
    prompts: int = 0
    resources: int = 0
    token_cost: int = 0
    list_hash: str = ""
    from_cache: bool = False
    asks_roots: Asked = ""
    invalid: int = 0
    left_out: tuple[str, ...] = ()
    modern: bool = False
    identity: str = ""


def offer(data: bytes, *, from_cache: bool = False) -> Offer:
    """The figures of a packed catalogue. Raises codec.Malformed."""
    found = server_catalog.unpack(data)
    invalid = tuple(validation.invalid(found))
    unlisted = [each for each in invalid if not each.fault.legacy]
    gone = Counter(each.kind for each in unlisted)
    tools = frozenset(each.definition for each in unlisted)
    return Offer(
        tools=len(found.tools) - gone["tools"],
        prompts=len(found.prompts) - gone["prompts"],
        resources=len(found.resources) - gone["resources"],
        token_cost=together(one for one in found.tools if bytes(one) not in tools),
        list_hash=server_catalog.list_hash(found),
        from_cache=from_cache,
        asks_roots=found.asksRoots,
        invalid=len(invalid),
        left_out=tuple(map(str, invalid[:LEFT_OUT_MAX])),
        modern=found.protocol >= server_catalog.MODERN_SINCE,
        identity=hashlib.sha256(bytes(found.serverInfo)).hexdigest()[:16],
    )


def one_era(data: bytes) -> bytes:
    """What is kept as the other catalogue of a server that has none: nothing but who it is."""
    found = server_catalog.unpack(data)
    return server_catalog.pack(
        ServerCatalogue(protocol=found.protocol, serverInfo=found.serverInfo)
    )


class Catalogues:
    """`on_trouble(server, sentence)` hears of a file that could not be read or written."""

    def __init__(self, state_dir: Path, on_trouble: Callable[[str, str], None]) -> None:
        self._folder = state_dir / "catalogue"
        self._on_trouble = on_trouble
        self._kept: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[Server, bytes]] = {}
        self._writer: asyncio.Task[None] | None = None

    def load(self, server: Server) -> bytes:
        """The packed catalogue that this very server offered last, or nothing. Blocks for one file:
        for the start only."""
        path = self._path(server)
        if not os.path.lexists(path):
            return b""
        try:
            data = files.data(path, packets.BLOB_BYTES_MAX)
            server_catalog.unpack(data)
        except files.Unreadable as why:
            self._on_trouble(server.name, f"{path} {why}; it is left alone")
            return b""
        except codec.Malformed as error:
            self._on_trouble(server.name, f"{path} cannot be read and is left alone: {error}")
            return b""
        self._kept[server.name] = _digest(path, data)
        return data

    def keep(self, server: Server, data: bytes) -> None:
        """Write it soon, unless it is what the disk has. Of two for one server the newer stays."""
        digest = _digest(self._path(server), data)
        if self._kept.get(server.name) == digest:
            return
        self._kept[server.name] = digest
        self._waiting[server.name] = server, data
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    @property
    def busy(self) -> bool:
        """Is something on its way to the disk?"""
        return self._writer is not None and not self._writer.done()

    async def close(self) -> None:
        """Wait until everything is on the disk."""
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._waiting:
            server, data = self._waiting.pop(next(iter(self._waiting)))
            try:
                await asyncio.to_thread(_replace, self._path(server), data)
            except OSError as error:
                self._kept.pop(server.name, None)
                self._on_trouble(
                    server.name, f"its catalogue could not be kept on disk: {error.strerror}"
                )

    def _path(self, server: Server) -> Path:
        assert "/" not in server.name, "names of servers are checked by the configuration"
        return self._folder / server.name / f"{launched(server)}.json"


def _digest(path: Path, data: bytes) -> bytes:
    """Of a file: what it is called belongs to it, since it says how the server was started."""
    return hashlib.sha256(b"%b\0%b" % (os.fsencode(path), data)).digest()


def _replace(path: Path, data: bytes) -> None:
    """Raises OSError; then the old file is still there, and no half of a new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, new = files.beside(path)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    for old in path.parent.iterdir():
        if old != path:  # of the server as it was started before
            old.unlink(missing_ok=True)
