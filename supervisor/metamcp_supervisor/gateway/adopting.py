"""What runs, collected for the next program of this gateway, and taken over from the one before.

Owns: which parts belong to it, and the order in which they are taken over. Never: the values
(`handing`), when it is done (`upgrading`), what becomes of a server afterwards (`tree`).

Collecting changes nothing, so that the gateway can go on if the next program cannot be executed.
Taking over starts nothing: processes, sockets and files are there already. What the configuration
says by now that it did not say before is then done as by a reload.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from metamcp_supervisor.config.config import Config, Server
from metamcp_supervisor.config.reload import launched
from metamcp_supervisor.control.control import Control
from metamcp_supervisor.fronts.fronts import Fronts, FrontsSnapshot
from metamcp_supervisor.gateway import handing
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nurseries import Nurseries
from metamcp_supervisor.servers import sharing
from metamcp_supervisor.servers.catalogues import Catalogues, Offer, offer
from metamcp_supervisor.servers.entries import Copy, CopySnapshot, Entry, ServerSnapshot
from metamcp_supervisor.servers.routes import Routes
from metamcp_supervisor.servers.server import Responds
from metamcp_supervisor.servers.states import Phase
from metamcp_supervisor.servers.tree import Tree
from metamcp_supervisor.telemetry.events import Journal
from metamcp_supervisor.telemetry.histories import History, HistorySnapshot
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_worker.ipc import sharing as words
from metamcp_worker.ipc.roots import wider

LOGS_BYTES_MAX = 16 * 1024 * 1024
"""Of what servers wrote, for all of them together: the newest of each; a moment to pack."""
SERVING, SPARE, LEAVING = "serving", "spare", "leaving"


class Parts(NamedTuple):
    """What of the gateway lives on."""

    nurseries: Nurseries
    hearts: Heartbeats
    fronts: Fronts
    routes: Routes
    catalogues: Catalogues
    tree: Tree
    control: Control
    journal: Journal
    logs: ServerLogs
    metrics: Metrics


def unsettled(parts: Parts) -> str:
    """Why nothing can be handed over at this moment, as a sentence, or nothing."""
    if why := parts.nurseries.unsettled() or parts.fronts.unsettled():
        return why
    for entry in parts.tree.entries.values():
        for copy in entry.copies:
            instance = copy.instance
            if copy.launch is not None or instance is None:
                return f"{entry.name} is being started"
            if instance.silent or instance.end is not None:
                return f"a worker of {entry.name} ends"
    if parts.tree.pinned.busy:
        return "tools are compared with what was approved"
    if parts.tree.deliveries.owed:
        return "a front waits for a descriptor"
    return "a catalogue is being written" if parts.catalogues.busy else ""


# Collecting


def collect(parts: Parts, gateway: handing.Gateway) -> handing.State:
    """Everything. Only while it is settled."""
    return handing.State(
        gateway=gateway,
        control=parts.control.handed(),
        nurseries=parts.nurseries.handed(),
        fronts=_fronts_of(parts),
        servers=tuple(_server(parts, entry) for entry in parts.tree.entries.values()),
        events=tuple(parts.journal.since(0)),
        last_event=parts.journal.last,
        histories=_histories_of(parts),
        lines=tuple(parts.logs.newest(LOGS_BYTES_MAX)),
        last_line=parts.logs.last,
        figures=parts.metrics.handed(),
    )


def _fronts_of(parts: Parts) -> FrontsSnapshot:
    roster, hearts = parts.fronts.roster, parts.hearts
    return FrontsSnapshot(
        fronts=tuple(
            front.handed(halted=hearts.is_halted(front.pid)) for front in roster.serving()
        ),
        last=roster.last,
        crashes=roster.crashes,
        sessions=tuple(parts.fronts.sessions.handed()),
        moving=parts.fronts.handovers.handed(),
    )


def _histories_of(parts: Parts) -> tuple[HistorySnapshot, ...]:
    return tuple(
        HistorySnapshot(
            name=name,
            since=one.since,
            because=one.because,
            ready_at=one.ready_at,
            ends=tuple(one.ends),
        )
        for name, one in parts.journal.histories.all().items()
    )


def _server(parts: Parts, entry: Entry) -> ServerSnapshot:
    known = parts.routes.handed(entry.name)
    return ServerSnapshot(
        name=entry.name,
        enabled=entry.server.enabled,
        launched=launched(entry.server),
        life=entry.life,
        generation=entry.generation,
        replacing=entry.replacing,
        spare_failures=entry.spare_failures,
        restarts=entry.restarts,
        rested=entry.rested,
        probe=entry.probe,
        contested=entry.contested,
        one_era=entry.one_era,
        used_at=entry.used_at,
        tenants=tuple(entry.tenants.values()),
        asks_roots=entry.offer.asks_roots,
        removed=entry.removed,
        answered=entry.answered,
        copies=tuple(_copies(parts.hearts, entry)),
        catalogue=known.catalogue,
        from_cache=entry.offer.from_cache,
        listed=known.listed,
        list_changes=known.changes,
        list_turns_at=known.turns_at,
        kept=tuple((each.tool, each.reason) for each in parts.tree.pinned.last(entry.name).kept)
        if entry.own
        else (),
    )


def _copies(hearts: Heartbeats, entry: Entry) -> Iterator[CopySnapshot]:
    for copy in entry.copies:
        assert copy.instance is not None, "nothing is handed over while a copy is forked"
        serves, spare = copy is entry.serving, copy is entry.spare
        yield CopySnapshot(
            role=SERVING if serves else SPARE if spare else LEAVING,
            generation=copy.generation,
            instance=copy.instance.handed(),
            ready=copy.ready,
            stopping=copy.stopping,
            halted=hearts.is_halted(copy.instance.pid),
            lists=copy.lists,
            leaf=str(copy.leaf.path) if copy.leaf is not None else "",
            due=copy.due,
        )


# Taking over


def take_over(parts: Parts, state: handing.State, config: Config) -> None:
    """Go on where the program before ended, with what `config` says now. Raises
    codec.Malformed."""
    parts.metrics.go_on(state.figures)
    parts.logs.go_on(state.lines, state.last_line)
    for each in state.histories:
        history = History(each.since, each.because, each.ready_at)
        history.ends.extend(each.ends)
        parts.journal.histories.go_on(each.name, history)
    copies = [copy for server in state.servers for copy in server.copies]
    parts.tree.bounds.adopt([Path(copy.leaf) for copy in copies if copy.leaf])
    parts.nurseries.adopt(state.nurseries)
    _fronts(parts.fronts, state.fronts)
    found = {server.name: server for server in state.servers}
    order = [*config.servers, *(name for name in found if name not in config.servers)]
    for name in order:
        if name in found:
            _entry(parts, found[name], sharing.wanted(config.servers, name))
    for name in order:
        if not words.whose(name):  # processes for single clients follow their server
            _reconcile(parts.tree, name, found.get(name), config.servers.get(name))


def _fronts(fronts: Fronts, found: FrontsSnapshot) -> None:
    fronts.sessions.fronts = len(found.fronts)
    for holder, record in found.sessions:
        fronts.sessions.keep(holder, record)
    fronts.roster.last, fronts.roster.crashes = found.last, found.crashes
    for front in found.fronts:
        fronts.adopt(front)
    fronts.handovers.adopt(found.moving)


def _entry(parts: Parts, found: ServerSnapshot, wanted: Server | None) -> None:
    """As it was. `wanted`: None for one that is no longer configured."""
    tree = parts.tree
    server = wanted or Server(name=found.name, source="the program before")
    server = replace(server, enabled=found.enabled)
    base = tree.entries.get(words.base(found.name))
    legacy = words.whose(found.name) == words.LEGACY
    known = Offer() if base is None or legacy else base.offer
    if found.catalogue:
        known = offer(found.catalogue, from_cache=found.from_cache)
    known = replace(known, asks_roots=wider(known.asks_roots, found.asks_roots))
    entry = tree.entries[found.name] = Entry(server, known)
    entry.go_on(found)
    tree.pinned.go_on(found.name, found.kept)
    if found.catalogue:
        tree.pinned.offered(found.name, found.catalogue)
    parts.routes.go_on(found, known.list_hash)
    if not entry.own:
        parts.routes.share(found.name, entry.division)
    for each in found.copies:
        copy = Copy(entry, each.generation)
        copy.ready, copy.stopping, copy.lists = each.ready, each.stopping, each.lists
        copy.leaf = Leaf(Path(each.leaf)) if each.leaf else None
        if each.role == SERVING:
            entry.serving = copy
        elif each.role == SPARE:
            entry.spare = copy
        else:
            entry.leaving.add(copy)
        tree.crew.adopt(copy, each)
    serves = next((each for each in found.copies if each.role == SERVING), None)
    if entry.life.degraded and not (serves and serves.halted):
        tree.feed(entry, Responds(yes=True))  # it has the full time to show it
    if entry.life.retry_at is not None:
        when = max(entry.life.retry_at, asyncio.get_running_loop().time())
        entry.retry_at(when, tree.retry)
    if entry.life.phase is Phase.QUEUED:
        tree.starting.join(entry)
    tree.apart.settled(entry)


def _reconcile(tree: Tree, name: str, found: ServerSnapshot | None, wanted: Server | None) -> None:
    """What the configuration says now, done."""
    if wanted is None:
        tree.remove(name)
    elif found is None or found.removed:
        tree.add(wanted)
    else:
        other = launched(wanted) != found.launched
        if other:
            tree.entries[name].unknown()
        tree.change(wanted, restart=other or wanted.enabled != found.enabled)
