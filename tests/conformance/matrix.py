"""Runs cells: one gateway for all of them, the fixtures, and a few runs of the suite at a time."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.conformance import results, suite
from tests.conformance.cells import CLIENT_SCENARIOS, ENDPOINTS, Behind, Cell, Direct, Played
from tests.conformance.results import Json, Score, Scores
from tests.conformance.shims import shims
from tests.conformance.suite import Players
from tests.live.gateway import Gateway, fake
from tests.waiting import until

FIXTURE = [sys.executable, str(suite.ROOT / "tests" / "fakes" / "everything.py")]
BASELINE = Path(__file__).parent / "baseline.json"

#: Runs at a time. A run mostly waits; with more of them, some miss the deadlines of the suite.
LANES = 4

#: A scenario has deadlines of its own, which a busy machine can miss: what got worse is run once
#: more when nothing else of the suite runs. With more than these it is not the machine.
AGAIN_MAX = 5

STOP_S = 10

#: Until calls that nobody comes back for are over: the fixture does not wait long for answers.
QUIET_S_MAX = 20

#: Two heartbeats of a worker.
QUIET_S = 2.0

#: How the scenarios begin in which a server asks the client something.
QUESTIONS = ("input-required-result-", "server-stateless")

OTHERS: dict[str, dict[str, Any]] = {
    "alpha": fake("--tools", "5", "--page", "2"),
    "beta": fake("--resources"),
}


class Baseline:
    """What every cell reached when it was last written down."""

    def __init__(self) -> None:
        self.cells: Json = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}

    def like(self, cell: Cell) -> Scores:
        """What the cell is written as a difference from."""
        if isinstance(cell, Behind):
            return results.read(self.cells.get(cell.direct.name, {}), {})
        return {}

    def of(self, cell: Cell) -> Scores | None:
        """None if nothing is expected: it never ran, and no other run says what it should do."""
        if cell.name in self.cells:
            return results.read(self.cells[cell.name], self.like(cell))
        if isinstance(cell, Behind) and cell.same_era:
            return self.like(cell) or None
        return None

    def take(self, found: dict[Cell, Scores]) -> None:
        """Writes down what is not worse; the direct runs first, because others refer to them."""
        for cell in sorted(found, key=lambda cell: not isinstance(cell, Direct)):
            if not results.worse(found[cell], self.of(cell) or {}):
                self.cells[cell.name] = results.written(found[cell], self.like(cell))
        BASELINE.write_text(json.dumps(dict(sorted(self.cells.items())), indent=1) + "\n")


# --- what is run ------------------------------------------------------------------------------


def serving(era: str) -> list[str]:
    """Flags of the fixture. Of both eras, it asks in the way of the first one in sessions only, so
    that a client that is not spoken to in its own loses something."""
    return ["--era", era, *(["--push"] if era == "both" else [])]


@contextmanager
def fixture(era: str) -> Generator[str]:
    """The fixture over HTTP; its address."""
    command = [*FIXTURE, "--transport", "http", *serving(era)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the fixture does not start"
            yield url
        finally:
            process.terminate()
            process.wait(STOP_S)


@contextmanager
def gateway(cells: Sequence[Behind]) -> Generator[Gateway]:
    """One gateway with all endpoints of these cells, and the servers that they need."""
    with ExitStack() as stack:
        stdio: dict[str, dict[str, Any]] = dict(OTHERS)
        tables: list[str] = []
        for served, transport, era in sorted({(c.served, c.transport, c.era) for c in cells}):
            if transport == "stdio":
                stdio[served] = {"command": [*FIXTURE, *serving(era)]}
            else:
                url = stack.enter_context(fixture(era))
                tables.append(f'[servers.{served}]\nurl = "{url}"')
            for endpoint in ENDPOINTS:
                servers = [served] if endpoint == "bare" else [served, *OTHERS]
                tables.append(
                    f"[namespaces.{served}-{endpoint}]\nservers = {json.dumps(servers)}\n"
                    f'[endpoints.{served}-{endpoint}]\nnamespace = "{served}-{endpoint}"\n'
                    'naming = { style = "bare" }'
                )
        yield stack.enter_context(Gateway(stdio, extra="\n".join(tables)))


@dataclass(frozen=True, slots=True)
class Playing:
    """What all runs share. `shim`: the command of a client of ours."""

    gateway: Gateway | None
    shim: str
    players: Players


def run(cells: Sequence[Cell], baseline: Baseline) -> dict[Cell, Scores]:
    """All cells; those of one lane run one after the other."""
    behind = [cell for cell in cells if isinstance(cell, Behind)]
    found: dict[Cell, Scores] = {cell: {} for cell in cells}
    with ExitStack() as stack:
        running = stack.enter_context(gateway(behind)) if behind else None
        playing = Playing(running, stack.enter_context(shims()), stack.enter_context(Players()))

        def work(lane: Lane) -> list[tuple[Cell, Scores]]:
            return [(cell, once(cell, playing, scenarios)) for cell, scenarios in lane]

        with ThreadPoolExecutor(LANES) as pool:
            for cell, scores in chain.from_iterable(pool.map(work, lanes(cells))):
                found[cell] = {**found[cell], **scores}
        for cell in cells:
            suspects = list(results.worse(found[cell], baseline.of(cell) or {}))
            if 0 < len(suspects) <= AGAIN_MAX:
                found[cell] = {**found[cell], **once(cell, playing, suspects)}
    return found


Lane = list[tuple[Cell, Sequence[str]]]
"""Cells and scenarios that run one after the other; without scenarios, all of the cell."""


def lanes(cells: Sequence[Cell]) -> list[Lane]:
    """The longest first. Scenarios of a client share nothing, so each has a lane of its own."""
    shared: dict[str, Lane] = {}
    alone: list[Lane] = []
    for cell in cells:
        if isinstance(cell, Played):
            each: list[Lane] = [[(cell, (one,))] for one in scenarios_of(cell)]
            alone += each
        else:
            shared.setdefault(cell.lane, []).append((cell, ()))
    return [*sorted(shared.values(), key=len, reverse=True), *alone]


def scenarios_of(cell: Played) -> Sequence[str]:
    return cell.scenarios or CLIENT_SCENARIOS[cell.revision]


def once(cell: Cell, playing: Playing, scenarios: Sequence[str] = ()) -> Scores:
    """These scenarios, or all of the cell."""
    if isinstance(cell, Played):
        return played(cell, playing, scenarios or scenarios_of(cell))
    revision = "" if cell.scenarios else cell.revision
    running = playing.gateway
    with ExitStack() as stack:
        if isinstance(cell, Direct):
            url = stack.enter_context(fixture("both"))
        else:
            assert running is not None
            url = f"http://localhost:{running.port}/metamcp/{cell.at}/mcp"

        def play(names: Sequence[str]) -> Scores:
            return playing.players.server(url, revision, names or cell.scenarios)

        if isinstance(cell, Behind) and cell.guesses and running is not None:
            return afresh(play, cell, running, scenarios)
        return play(scenarios)


def afresh(
    play: Callable[[Sequence[str]], Scores], cell: Behind, running: Gateway, names: Sequence[str]
) -> Scores:
    """A run, and each scenario of questions again when its server has no calls any more.

    Some scenarios never come back for the call that they began. While it waits for them, nobody
    can say whose call a further question of that server belongs to.
    """
    found = dict(play(names))
    for scenario in [one for one in found if one.startswith(QUESTIONS) and found[one].lost]:
        until(Quiet(running, cell.served), f"{cell.served} has no calls any more", QUIET_S_MAX)
        found |= play([scenario])
    return found


class Quiet:
    """Has this server had no calls for a while? What is shown of it may be a heartbeat old."""

    def __init__(self, running: Gateway, server: str) -> None:
        self._running = running
        self._server = server
        self._since = time.monotonic()

    def __call__(self) -> bool:
        if self._running.server(self._server)["inflight"]:
            self._since = time.monotonic()
        return time.monotonic() - self._since > QUIET_S


def played(cell: Played, playing: Playing, scenarios: Sequence[str]) -> Scores:
    command = f"{playing.shim} {cell.era}"
    found: dict[str, Score] = {}
    for scenario in scenarios:
        found |= playing.players.client(command, cell.revision, scenario)
    return found
