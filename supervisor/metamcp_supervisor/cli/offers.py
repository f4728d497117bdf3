"""Offers of the servers of a configuration as last seen, beside what was approved.

Owns: finding the configuration, the lock and the catalogues in the state directory, and which
tools the user means. Never: what a difference means (`lock_drift`), tables and sentences (`lock`,
`tools`).

The gateway keeps the catalogues on disk. So this works whether the gateway runs or is down, and in
a pipeline that checks a change of versions.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw, Struct, structs

from metamcp_supervisor.approval import lock_drift, lock_io
from metamcp_supervisor.approval.lock import Lock, definitions
from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.approval.quarantine import QuarantineState
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import sources
from metamcp_supervisor.config.config import Config, ConfigInvalid, Server
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.services import UnknownName
from metamcp_supervisor.servers.catalogues import Catalogues
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import disclosure, json_schemas, server_catalog, validation
from metamcp_worker.ipc.server_catalog import SchemaFaults, ServerCatalogue
from metamcp_worker.ipc.validation import InvalidDefinition


class OfferedServer(NamedTuple):
    """Server and its offer. `tools`: None if the server was not seen yet."""

    server: Server
    tools: Sequence[Raw] | None = None
    info: Mapping[str, str] = {}


class ToolFilter(NamedTuple):
    """Choice of tools. `server`: None for all servers; `tool`: None for all tools of the server."""

    server: str | None = None
    tool: str | None = None

    def is_selected(self, server: str, tool: str) -> bool:
        return self.server in (None, server) and self.tool in (None, tool)


class StoredOffers(Struct, frozen=True):
    """Offers on disk. `path`: of the lock; `lock`: None if that file does not exist; `catalogues`:
    of the enabled servers, None for a server that was not seen yet; `notes`: about catalogues that
    cannot be read."""

    config: Config
    path: Path
    lock: Lock | None
    seen: Lock
    catalogues: Mapping[str, ServerCatalogue | None]
    notes: Sequence[str]


class OfferComparison(StoredOffers, frozen=True, kw_only=True):
    """Offers on disk that are compared. `invalid`: definitions that lists leave out, by server;
    `schemas`: faults of schemas, by server and tool."""

    offered: Mapping[str, OfferedServer]
    invalid: Mapping[str, Sequence[InvalidDefinition]]
    schemas: Mapping[str, Mapping[str, SchemaFaults]]

    def drifts(self, wished: ToolFilter | None = None) -> Iterator[ToolDrift]:
        """Yield the drift of each wished tool of the servers whose tools are known."""
        wish = wished or ToolFilter()
        definition_keys = definitions(self.config.servers.values())
        pins = QuarantineState(self.seen, self.lock, dict.fromkeys(self.offered), definition_keys)
        for name, each in self.offered.items():
            if wish.server in (None, name) and each.tools is not None:
                for drift in pins.judge(name, each.tools).drifts:
                    if wish.is_selected(name, drift.tool):
                        yield drift

    def keeps_back(self, drift: ToolDrift) -> bool:
        """Whether a gateway with these files keeps the tool from clients."""
        locked = drift.server in (self.lock or Lock()).servers
        pinning = lock_drift.mode(self.config.servers[drift.server].pinning, locked=locked)
        return pinning == "enforce" and not drift.harmless

    def unseen(self) -> list[str]:
        """Return the servers without a catalogue."""
        return [name for name, each in self.offered.items() if each.tools is None]

    def list_unlocked_servers(self) -> list[str]:
        """Return the servers with tools that the lock does not have."""
        locked = (self.lock or Lock()).servers
        return [name for name, each in self.offered.items() if each.tools and name not in locked]


def read_offers(path: Path | None, state_dir: str | None, lock: Path | None) -> StoredOffers:
    """Read the offers on disk. `path`: of the configuration, by default the one that `metamcp up`
    would take; `lock`: of the lock, by default beside the configuration. Raises Failed."""
    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
        lock_path = lock or lock_io.find_lock_path(config)
        folder = Path(state_dir) if state_dir else config.gateway.state_dir
        stored_lock = lock_io.load(lock_path)
        seen = lock_io.load(folder / lock_io.SEEN) or Lock()
    except ConfigInvalid as invalid:
        first, *others = map(str, invalid.problems)
        raise Failed(Exit.CONFIG, first, tuple(others)) from None
    notes: list[str] = []
    catalogue_store = Catalogues(folder, lambda server, reason: notes.append(f"{server}: {reason}"))
    catalogues = {
        name: server_catalog.unpack(data) if (data := catalogue_store.load(server)) else None
        for name, server in config.servers.items()
        if server.enabled
    }
    return StoredOffers(config, lock_path, stored_lock, seen, catalogues, notes)


def look(path: Path | None, state_dir: str | None, lock: Path | None) -> OfferComparison:
    """Read the offers as `read_offers` does, for the servers whose tools are compared. Raises
    Failed."""
    with progress("reads the definitions of tools"):
        stored = read_offers(path, state_dir, lock)
        offered = {
            name: _make_offered(stored.config.servers[name], each)
            for name, each in stored.catalogues.items()
            if stored.config.servers[name].pinning != "off"
        }
        invalid = {
            name: tuple(validation.invalid(each))
            for name, each in stored.catalogues.items()
            if each is not None
        }
        schemas = {
            name: json_schemas.faults(each.tools) if each.schemas is None else each.schemas
            for name, each in stored.catalogues.items()
            if each is not None
        }
    return OfferComparison(
        **structs.asdict(stored), offered=offered, invalid=invalid, schemas=schemas
    )


def wish(word: str | None, sight: OfferComparison) -> ToolFilter:
    """Return the filter for SERVER or SERVER.TOOL, also for a tool that was approved and is not
    offered any more. Raises Failed."""

    def tools(server: str) -> set[str] | None:
        if sight.offered[server].tools is None:
            return None
        names = {each.tool for each in sight.drifts(ToolFilter(server))}
        offered = sight.offered[server].tools or ()
        return names | {name for each in offered if (name := lock_drift.name_of(each)) is not None}

    return parse_filter(word, sight.offered, tools)


def parse_filter(
    word: str | None, servers: Collection[str], tools: Callable[[str], Collection[str] | None]
) -> ToolFilter:
    """Return the filter for SERVER or SERVER.TOOL. `tools`: returns the tools of a server, None if
    it was not seen yet. Raises Failed."""
    if word is None:
        return ToolFilter()
    server, tool = disclosure.read(word) or (word, "")
    if server not in servers:
        raise Failed(Exit.UNKNOWN_NAME, str(UnknownName([server], servers)))
    if not tool:
        return ToolFilter(server)
    names = tools(server)
    if names is None:
        raise Failed(Exit.UNKNOWN_NAME, unseen(server))
    if tool not in names:
        problem = f"'{server}' has no tool '{tool[:80]}'; {hint(tool, names)}"
        raise Failed(Exit.UNKNOWN_NAME, problem)
    return ToolFilter(server, tool)


def unseen(server: str) -> str:
    """Return the sentence about a server that was not seen yet."""
    return f"{server} was not seen yet as it is configured now; start the gateway once"


def _make_offered(server: Server, catalogue: ServerCatalogue | None) -> OfferedServer:
    if catalogue is None:
        return OfferedServer(server)
    return OfferedServer(server, catalogue.tools, lock_drift.server_info(catalogue.serverInfo))
