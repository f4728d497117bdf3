"""The last catalogue of each server, kept on disk over restarts.

Owns: the folder `catalogue` of the state directory and its files, one for each server in its
current configuration, and the figures of a catalogue. Never: notifying fronts (`publish`), the
meaning of a definition.

A file is written whole under another name and then renamed, so that a full disk or a crash leaves
the old file. Trouble with the disk is reported and never stops a server.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, structs

from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.reload import hash_launch
from metamcp_worker.ipc import codec, packets, server_catalog, validation
from metamcp_worker.ipc.builtin_definitions import tokens_of_all
from metamcp_worker.ipc.roots import Asked
from metamcp_worker.ipc.server_catalog import ServerCatalogue

LEFT_OUT_MAX = 50
"""Maximum number of invalid definitions of one server that are named; 'metamcp tools' names all."""


class CatalogueFigures(Struct, frozen=True):
    """Figures of one catalogue, without the definitions that lists leave out. `token_cost`:
    estimated for all tool definitions. `invalid`: how many definitions are not valid; `left_out`:
    place and reason of each, up to LEFT_OUT_MAX. `unread`: lists that it did not give. `schemas`:
    the first tool whose schemas clients or APIs of models may refuse, with the reason, and how many
    more there are. `protocol`: revision that the server spoke; `identity`: differs between versions
    of the server; `gateways`: as in `ServerCatalogue`."""

    tools: int = 0
    prompts: int = 0
    resources: int = 0
    token_cost: int = 0
    list_hash: str = ""
    from_cache: bool = False
    asks_roots: Asked = ""
    invalid: int = 0
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    schemas: str = ""
    protocol: str = ""
    identity: str = ""
    gateways: tuple[str, ...] = ()

    @property
    def modern(self) -> bool:
        """Whether the catalogue is of the revision without sessions."""
        return self.protocol >= server_catalog.MODERN_SINCE


def offer(data: bytes, *, from_cache: bool = False) -> CatalogueFigures:
    """Return the figures of a packed catalogue. Raises codec.Malformed."""
    catalogue = server_catalog.unpack(data)
    invalid = tuple(validation.invalid(catalogue))
    unlisted = [each for each in invalid if not each.fault.legacy]
    unlisted_counts = Counter(each.kind for each in unlisted)
    tools = frozenset(each.definition for each in unlisted)
    return CatalogueFigures(
        tools=len(catalogue.tools) - unlisted_counts["tools"],
        prompts=len(catalogue.prompts) - unlisted_counts["prompts"],
        resources=len(catalogue.resources) - unlisted_counts["resources"],
        token_cost=tokens_of_all(tool for tool in catalogue.tools if bytes(tool) not in tools),
        list_hash=server_catalog.list_hash(catalogue),
        from_cache=from_cache,
        asks_roots=catalogue.asksRoots,
        invalid=len(invalid),
        left_out=tuple(map(str, invalid[:LEFT_OUT_MAX])),
        unread=catalogue.unread,
        schemas=_schemas(catalogue),
        protocol=catalogue.protocol,
        identity=hashlib.sha256(bytes(catalogue.serverInfo)).hexdigest()[:16],
        gateways=catalogue.gateways,
    )


def _schemas(catalogue: ServerCatalogue) -> str:
    refused = [
        f"tool '{name}': {each}"
        for name, each in (catalogue.schemas or {}).items()
        if each.input or not each.legacy  # results of a modern server may be of any type
    ]
    more = f" (and {len(refused) - 1} more tools)" if len(refused) > 1 else ""
    return refused[0] + more if refused else ""


def fill_unread_lists(data: bytes, before: bytes) -> bytes:
    """Return a catalogue with the lists of the one before in place of those that the server did not
    give; one that cannot be read as it is."""
    try:
        catalogue = server_catalog.unpack(data)
        if not catalogue.unread or not before:
            return data
        last = server_catalog.unpack(before)
    except codec.Malformed:
        return data
    lists = {kind: last.of(kind) for kind in catalogue.unread if kind in server_catalog.KINDS}
    schemas = last.schemas if "tools" in lists else catalogue.schemas
    return server_catalog.pack(structs.replace(catalogue, **lists, schemas=schemas))


def one_era(data: bytes) -> bytes:
    """Return the catalogue to keep for the era that a server does not speak: its protocol and
    `serverInfo`, without lists."""
    catalogue = server_catalog.unpack(data)
    return server_catalog.pack(
        ServerCatalogue(protocol=catalogue.protocol, serverInfo=catalogue.serverInfo)
    )


class Catalogues:
    """`on_trouble(server, sentence)`: called when a file could not be read or written."""

    def __init__(self, state_dir: Path, on_trouble: Callable[[str, str], None]) -> None:
        self._folder = state_dir / "catalogue"
        self._on_trouble = on_trouble
        self._kept: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[Server, bytes]] = {}
        self._writer: asyncio.Task[None] | None = None

    def load(self, server: Server) -> bytes:
        """Return the packed catalogue that the server offered last in this configuration, or b"".
        Blocks while it reads one file, so call this only at a start."""
        path = self._path(server)
        if not os.path.lexists(path):
            return b""
        try:
            data = files.data(path, packets.BLOB_BYTES_MAX)
            server_catalog.unpack(data)
        except files.FileUnreadable as error:
            self._on_trouble(server.name, f"{path} {error}; it is left alone")
            return b""
        except codec.Malformed as error:
            self._on_trouble(server.name, f"{path} cannot be read, so it stays as it is: {error}")
            return b""
        self._kept[server.name] = _digest(path, data)
        return data

    def keep(self, server: Server, data: bytes) -> None:
        """Write a catalogue soon, unless the disk has the same one. If two catalogues of one server
        wait, only the newer is written."""
        digest = _digest(self._path(server), data)
        if self._kept.get(server.name) == digest:
            return
        self._kept[server.name] = digest
        self._waiting[server.name] = server, data
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    @property
    def busy(self) -> bool:
        """Whether a catalogue is being written to the disk."""
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
        return self._folder / server.name / f"{hash_launch(server)}.json"


def _digest(path: Path, data: bytes) -> bytes:
    """Return the digest of the path and content of a file. The path counts, because its name shows
    how the server was started."""
    return hashlib.sha256(b"%b\0%b" % (os.fsencode(path), data)).digest()


def _replace(path: Path, data: bytes) -> None:
    """Replace a file, and remove the files of earlier configurations of the server. Raises OSError;
    then the old file is still there, and no part of a new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace_file(path, data)
    for old in path.parent.iterdir():
        if old != path:  # of an earlier configuration of the server
            old.unlink(missing_ok=True)
