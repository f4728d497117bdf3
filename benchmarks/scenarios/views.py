"""Orders about views where 50 servers have 1,000 tools: what equipping 200 of them takes and where
that time goes, and the list of what is in view beside the same bytes that wait in memory.

A gateway of two fronts is clocked at every stage of an order (`benchmarks/clocked`). `disk` is what
SQLite and the disk take for the transaction; beside it, in turns, stands the same transaction of a
program that does nothing else. What is left of `gateway` is ours: deciding, telling all fronts,
building the view, answering. `client` is all of it as the client sees it, and `first list` the
first list after it, for which the bytes are made.

Lists are as in `listing`, of another gateway, which is not clocked; one of them (`all`) has as many
tools, which are all that there is at its endpoint. There sessions get views of
their own as well, each another one, and list what is in them: what one of them holds, and what
equipping takes among so many.
"""

import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import rigs, roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most, percentile, ratio
from benchmarks.held import Held
from benchmarks.machine import ROOT
from benchmarks.scenarios import listing, sessions
from benchmarks.turns import in_turns
from tests.live.client import LEGACY, Client
from tests.live.gateway import Gateway

TITLE = "Views of 1,000 tools of 50 servers"
SERVERS, TOOLS, SHOWN = 50, 20, 200
"""Servers, tools of each, tools in view."""
ROUNDS = 7
"""Short ones: the disk has moods."""
CLOCKED = ROOT / "benchmarks" / "clocked"
VARIABLE = "METAMCP_BENCH_CLOCK"
PATHS = {
    "toolset": "/mcp",
    "search": "/metamcp/find/mcp",
    "servers": "/metamcp/whole/mcp",
}
EXTRA = """
[gateway]
fronts = 2

[endpoints.default]
namespace = "default"
exposure = "toolset"

[endpoints.find]
namespace = "default"
exposure = "search"
view_scope = "principal"

[endpoints.whole]
namespace = "default"
exposure = "servers"
view_scope = "principal"

[endpoints.some]
namespace = "some"

[endpoints.own]
namespace = "default"
exposure = "search"
view_scope = "session"
"""
OWN, SOME = "/metamcp/own/mcp", "/metamcp/some/mcp"
ALONE = "the transaction alone"
SESSIONS = 500
"""With views of their own."""
GATEWAY_MS_BAR, LIST_BAR = 10.0, 1.1
Call = tuple[str, dict[str, Any]]


def measure(effort: Effort) -> Table:
    servers, shown = effort.of(SERVERS, 2), effort.of(SHOWN, 20)
    names = [f"s{number:03}" for number in range(servers)]
    tools = [f"{name}.{tool}" for tool in _tools() for name in names][: 2 * shown]
    halves = tools[:shown], tools[shown:]
    rows = list(ordered(effort, names, halves))
    rows += listed(effort, names, halves[0])
    return Table("views", TITLE, tuple(rows), tuple(bars(rows, shown)), (waited(rows, shown),))


def bars(rows: list[Row], shown: int) -> list[Bar]:
    found = {row.name: row for row in rows}
    judged = [
        most(f"{name}: in the gateway, without the disk", found[name]["ours ms"], GATEWAY_MS_BAR,
             "ms", absolute=True)
        for name in (f"equip {shown}", f"load {shown}", "activate a server")
    ]  # fmt: skip
    for exposure in PATHS:
        beside = compared(found[f"list, {exposure}"], found[f"bytes, {exposure}"], "p50 ms")
        judged.append(most(f"{exposure}: the list beside its bytes alone", beside, LIST_BAR))
        beside = compared(found[f"list, {exposure}"], found["list, all"], "p50 ms")
        what = f"{exposure}: the list beside one of as many tools without a view"
        judged.append(most(what, beside, LIST_BAR))
    return judged


def waited(rows: list[Row], shown: int) -> str:
    found = {row.name: row for row in rows}
    beside = ratio(found[f"equip {shown}"]["disk ms"], found[ALONE]["disk ms"])
    return f"Equipping waits {beside:.2f} times as long for the disk as the transaction alone."


# --- orders ---------------------------------------------------------------------------------------


def ordered(
    effort: Effort, names: list[str], halves: tuple[list[str], list[str]]
) -> tuple[Row, ...]:
    """Each row takes turns between two states of the view, so that every order changes it."""
    shown = len(halves[0])
    with tempfile.TemporaryDirectory(prefix="metamcp-clock-") as folder:
        gateway = rigs.customized(running(names, 1), CLOCKED)
        gateway.environ[VARIABLE] = folder
        with gateway, _clients(gateway) as clients:
            sets = clients["toolset"]
            for name, half in zip(("one", "other"), halves, strict=True):
                done(sets, ("build-toolset", {"name": name, "tools": half}))
            rows: Mapping[str, tuple[str, tuple[Call, Call]]] = {
                f"equip {shown}": (
                    "toolset",
                    (("equip-toolset", {"name": "one"}), ("equip-toolset", {"name": "other"})),
                ),
                f"load {shown}": (
                    "search",
                    (("load_tool", {"name": halves[0]}), ("unload_tool", {"name": halves[0]})),
                ),
                "activate a server": (
                    "servers",
                    (
                        ("gateway_activate", {"name": names[0]}),
                        ("gateway_deactivate", {"name": names[0]}),
                    ),
                ),
            }
            turns: dict[str, Callable[[], Sample]] = {
                name: partial(orders, clients[exposure], calls, Path(folder), effort.seconds / 2)
                for name, (exposure, calls) in rows.items()
            }
            with written(gateway.folder, json.dumps(halves[0])) as write:
                turns[ALONE] = partial(transactions, write, effort.seconds / 2)
                return in_turns(turns, effort.of(ROUNDS, 1))


def running(names: list[str], some: int) -> Gateway:
    """Not started yet. `some`: servers of which everything is in view at another endpoint."""
    own = str(TOOLS - listing.OWN_TOOLS)
    extra = f'{EXTRA}\n[namespaces.default]\nservers = ["*"]\n'
    extra += f"[namespaces.some]\nservers = {json.dumps(names[:some])}\n"
    return Gateway(rigs.children(len(names), "--tools", own), extra=extra)


@contextmanager
def _clients(gateway: Gateway) -> Generator[dict[str, Client]]:
    found = {name: Client(gateway.port, LEGACY, path) for name, path in PATHS.items()}
    yield found
    for client in found.values():
        client.close()


def done(client: Client, call: Call) -> None:
    name, arguments = call
    answer = client.call(name, **arguments)
    assert not answer["result"]["isError"], answer


def orders(client: Client, calls: tuple[Call, Call], folder: Path, seconds: float) -> Sample:
    """The middle of each stage. Only the first call of the two counts."""
    found: list[dict[str, float]] = []
    wrong = 0
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        begin = time.perf_counter()
        answer = client.call(calls[0][0], **calls[0][1])
        heard = time.perf_counter()
        wrong += answer["result"]["isError"]
        first_s = roles.timed(lambda: client.request("tools/list"))
        found.append(
            {"client ms": (heard - begin) * 1000, **stages(folder, begin, heard)}
            | {"first list ms": first_s * 1000}
        )
        done(client, calls[1])
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    return Sample(middle, wrong)


def stages(folder: Path, begin: float, end: float) -> dict[str, float]:
    """What the gateway did between these moments, in milliseconds, one stage after the other."""
    marks = {"decide": begin, "write": begin, "written": begin, "build": end, "built": end}
    answered = begin
    for what, since, until in sorted(_stamps(folder, begin, end), key=lambda one: one[1]):
        if what == "decide":
            marks["decide"] = since
        elif what == "write":
            marks |= {"write": since, "written": until}
        elif what == "build" and marks["build"] == end and since > marks["written"] > begin:
            marks |= {"build": since, "built": until}
        elif what == "answer":
            answered = until
    gateway, disk = answered - marks["decide"], marks["written"] - marks["write"]
    found = {
        "gateway": gateway,
        "ours": gateway - disk,
        "disk": disk,
        "decision": marks["write"] - marks["decide"],
        "telling": marks["build"] - marks["written"],
        "view": marks["built"] - marks["build"],
        "answer": answered - marks["built"],
    }
    return {f"{name} ms": took * 1000 for name, took in found.items()}


def _stamps(folder: Path, begin: float, end: float) -> Iterator[tuple[str, float, float]]:
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            what, since, until = line.split()
            if begin <= float(since) <= end:
                yield what, float(since), float(until)


@contextmanager
def written(folder: Path, body: str) -> Generator[Callable[[], None]]:
    """A write of this text as the gateway does one, in a file beside its own."""
    with closing(sqlite3.connect(folder / "alone.db", isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("CREATE TABLE view (name TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")

        def write() -> None:
            database.execute("BEGIN IMMEDIATE")
            database.execute("REPLACE INTO view VALUES ('one', ?)", (body,))
            database.execute("COMMIT")

        yield write


def transactions(write: Callable[[], None], seconds: float) -> Sample:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while not took or time.perf_counter() < end:
        took.append(roles.timed(write) * 1000)
    return Sample({"disk ms": statistics.median(took)})


# --- lists ----------------------------------------------------------------------------------------


def listed(effort: Effort, names: list[str], tools: list[str]) -> Iterator[Row]:
    """One request at a time, each list in turns with its bytes."""
    activated = names[: len(tools) // TOOLS]
    orders: Mapping[str, list[Call]] = {
        "toolset": [("build-toolset", {"name": "one", "tools": tools, "autoEquip": True})],
        "search": [("load_tool", {"name": tools})],
        "servers": [("gateway_activate", {"name": name}) for name in activated],
    }
    with running(names, len(activated)) as gateway, ExitStack() as stack:
        clients = stack.enter_context(_clients(gateway))
        pids = roles.of_gateway(gateway)
        turns: dict[str, Callable[[], Sample]] = {}
        missing: dict[str, bool] = {}
        for exposure, path in {"all": SOME, **PATHS}.items():
            for call in orders.get(exposure, []):
                done(clients[exposure], call)
            said = rigs.listing(gateway, LEGACY, path)
            with Held(gateway.port, said, 1) as one:
                whole = one.answers()[0].partition(b"\r\n\r\n")[2]
            missing[f"list, {exposure}"] = whole.count(b'"inputSchema":') < len(tools)
            alone = listing.bare_bytes(whole.partition(b'"id":"H0H"')[2])
            port, bare_pid = stack.enter_context(alone)
            turns[f"bytes, {exposure}"] = partial(
                listing.sample, port, said, {"front": [bare_pid]}, effort.seconds / 2
            )
            turns[f"list, {exposure}"] = partial(
                listing.sample, gateway.port, said, pids, effort.seconds / 2
            )
        for row in in_turns(turns, effort.of(ROUNDS, 1)):
            yield replace(row, wrong=row.wrong + missing.get(row.name, False))
        count = effort.of(SESSIONS, 10)
        sample = apart(gateway.port, pids, tools, count)
        yield from in_turns({f"own views of {count} sessions": lambda: sample}, 1)


def apart(port: int, pids: roles.Pids, tools: list[str], count: int) -> Sample:
    """Each session loads all of these tools but one, another one each time, and lists them."""
    opened = [session for session, _ in islice(sessions.sessions(port, OWN), count)]
    before = roles.pss_mib(pids)
    took: list[float] = []
    with closing(Client(port, LEGACY, OWN)) as client:
        for number, session in enumerate(opened):
            client.session = session
            without = tools[: number % len(tools)] + tools[number % len(tools) + 1 :]
            begin = time.perf_counter()
            done(client, ("load_tool", {"name": [*without, *tools[: number // len(tools)]]}))
            took.append((time.perf_counter() - begin) * 1000)
            client.request("tools/list")
    after = roles.pss_mib(pids)
    held = {role: (after[role] - used) / count * 1024 for role, used in before.items()}
    return Sample(
        {
            "client ms": percentile(took, 0.5),
            "last ms": percentile(took[-max(1, count // 10) :], 0.5),
            "front KiB": held["front"],
            "supervisor KiB": held["supervisor"],
        }
    )


def _tools() -> list[str]:
    """Of each child, the large ones first."""
    large = [f"t{number:03}" for number in range(TOOLS - listing.OWN_TOOLS)]
    return [*large, "echo", "blob", "sleep", "progress", "stamps"]
