"""The comparison with other gateways: its goals, its page, its pins; and all of it once, quickly,
with our own gateway only. The others are never installed by a test."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.figures import Figure, Row, Sample, Table
from benchmarks.peers import measures, page, plans, running, verdict
from benchmarks.peers.__main__ import PAGE, RESULTS
from benchmarks.peers.plans import OURS, OURS_COMPILED, PEERS, Peer, Site
from benchmarks.peers.taken import CALLERS, CPU, NEW, SAME, TOLD
from tests.benchmarks.values import result
from tests.house import nodes
from tests.test_tidy import IMPURE_IMPORTS

FOLDER = plans.HERE
PURE = ("page", "plans", "ratios", "taken", "verdict")
SITE = Site(
    Path("/somewhere"), 4321, {"c00": ["python", "child.py", "--tools", "9"]}, Path("/programs")
)
AGENTGATEWAY = next(peer for peer in PEERS if peer.name == "agentgateway")
QUICK_S_MAX = 110


def row(name: str, figures: dict[str, float], wrong: int = 0) -> Row:
    """In three rounds: a half of the figures, the figures, and twice as much."""
    found = {key: Figure(value, (value / 2, value, value * 2)) for key, value in figures.items()}
    return Row(name, found, 3, wrong)


def load(name: str, rate: float, p50_ms: float, p99_ms: float) -> Row:
    return row(name, {"calls/s": rate, "p50 ms": p50_ms, "p99 ms": p99_ms})


def ladder(ours: float, own: str = OURS) -> Table:
    """All others make 1000 calls/s, with a p50 of 0.4 ms and a p99 of 1 ms."""
    rows = [
        load(f"{name} {callers}", rate, p50, p99)
        for callers in CALLERS
        for name, rate, p50, p99 in (
            (own, ours, 0.3, 0.5),
            *((peer.name, 1000.0, 0.4, 1.0) for peer in PEERS),
        )
    ]
    return Table("ladder", "Callers", tuple(rows))


# --- goals ------------------------------------------------------------------------------------


def test_a_goal_is_a_ratio_to_what_another_gateway_reaches_in_the_same_run() -> None:
    met = verdict.bars(ladder(ours=3500.0))
    assert [bar.what for bar in met if bar.at_least] == [
        "metamcp, calls/s beside mcp-proxy (npm), callers: 64",
        "metamcp, calls/s beside mcp-hub, callers: 64",
    ]
    assert len(met) == 2 + 2 * len(CALLERS)
    assert all(bar.met for bar in met)
    assert [bar.limit for bar in met[:2]] == [3.5, 1.6]
    slow = [bar for bar in verdict.bars(ladder(ours=3000.0)) if not bar.met]
    assert [(bar.value, bar.limit) for bar in slow] == [(3.0, 3.5)]


def test_a_compiled_gateway_has_goals_of_its_own() -> None:
    pure, compiled = ladder(3500.0), ladder(2100.0, OURS_COMPILED)
    found = verdict.bars(replace(pure, rows=(*pure.rows, *compiled.rows)))
    assert [(bar.what.partition(",")[0], bar.limit) for bar in found if bar.at_least] == [
        (OURS, 3.5), (OURS, 1.6), (OURS_COMPILED, 3.5), (OURS_COMPILED, 2.2),
    ]  # fmt: skip
    assert {bar.what.partition(",")[0] for bar in found if not bar.met} == {OURS_COMPILED}


def test_one_gateway_with_less_latency_is_enough_to_miss_a_goal() -> None:
    table = ladder(ours=9000.0)
    rows = [
        load(one.name, 1.0, 0.2, 9.0) if one.name == "fastmcp 16" else one for one in table.rows
    ]
    (missed,) = [
        bar for bar in verdict.bars(Table("ladder", "", tuple(rows))) if not bar.met
    ]  # fmt: skip
    assert missed.what == "metamcp, p50 beside the least, that of fastmcp, callers: 16"


def test_beside_a_gateway_in_go_or_rust_there_is_no_goal() -> None:
    programs = [peer.name for peer in PEERS if peer.program]
    rows = [row for row in ladder(3500.0).rows if row.name.rpartition(" ")[0] in {OURS, *programs}]
    assert programs
    assert verdict.bars(Table("ladder", "", tuple(rows))) == ()


def test_without_another_gateway_there_is_no_goal() -> None:
    alone = Table("ladder", "", tuple(r for r in ladder(1.0).rows if r.name.startswith(OURS)))
    assert verdict.bars(alone) == ()


def test_only_our_own_wrong_answers_are_faults() -> None:
    rows = (row(f"{OURS} 1", {}, 2), row("mcp-hub 1", {}, 7))
    tables = [Table("ladder", "", rows), Table("large", "", (row(OURS, {}, 1),))]
    assert verdict.wrong(tables) == 3


def test_every_second_round_goes_backwards() -> None:
    asked: list[str] = []

    def asking(name: str) -> measures.Measure:
        def measure() -> Sample:
            asked.append(name)
            return Sample({"calls/s": 1.0})

        return measure

    rows, failed = measures.in_turns({name: asking(name) for name in "abc"}, 3)
    assert "".join(asked) == "abccbaabc"
    assert [row.name for row in rows] == ["a", "b", "c"]
    assert failed == []


# --- the page ---------------------------------------------------------------------------------


def test_only_what_is_between_marks_is_written_anew() -> None:
    text = "before\n<!-- rates -->\nold\n<!-- end rates -->\nafter\n"
    made = page.renewed(text, result(ladder(3500.0)))
    assert made.startswith("before\n<!-- rates -->\n")
    assert made.endswith("<!-- end rates -->\nafter\n")
    assert "old" not in made
    assert "| metamcp | 3,500 (1,750 to 7,000) | 3,500 (1,750 to 7,000) |" in made
    assert page.renewed(made, result(ladder(3500.0))) == made


def test_the_page_says_who_is_better_in_each_resource_and_by_how_many_times() -> None:
    ladder = Table("ladder", "", (
        row("metamcp 64", {"calls/s": 2000.0, CPU: 0.04}),
        row("metamcp (compiled) 64", {"calls/s": 2500.0, CPU: 0.02}),
        row("agentgateway 64", {"calls/s": 5000.0, CPU: 0.05}),
        row("mcp-hub 64", {"calls/s": 1000.0, CPU: 0.1}),
    ))  # fmt: skip
    memory = Table("footprint-one", "", (
        row(OURS, {"PSS MiB": 60.0}), row("mcp-proxy (Go)", {"PSS MiB": 10.0}),
    ))  # fmt: skip
    found = result(ladder, memory)
    assert [line for line in page.places(found).splitlines()[3:] if line] == [
        "| calls/s, 64 callers | 2,000 | 2,500 | agentgateway: 5,000 | agentgateway, 2.00 times |",
        (
            "| CPU ms per call, 64 callers | 0.040 | 0.020 | agentgateway: 0.050"
            " | metamcp (compiled), 2.50 times |"
        ),
        "| MiB, 1 server | 60.0 | - | mcp-proxy (Go): 10.0 | mcp-proxy (Go), 6.00 times |",
    ]
    factors = page.factors(found)
    assert "| metamcp beside agentgateway | - | 0.400 | - | - | 1.25 |" in factors
    assert "| metamcp beside mcp-hub | - | 2.00 | - | - | 2.50 |" in factors
    assert "| metamcp (compiled) beside mcp-hub | - | 2.50 | - | - | 5.00 |" in factors
    assert "supergateway" not in factors


def test_a_gateway_that_was_not_measured_is_named_all_the_same() -> None:
    found = replace(result(), versions={"mcp-hub": "4.2.1"})
    made = page.compared(found)
    assert (
        "| agentgateway | Rust | `agentgateway/agentgateway` from GitHub | not measured yet |"
        in made
    )
    assert "| mcp-hub | Node.js | `mcp-hub` from npm | 4.2.1 |" in made


def test_a_gateway_that_did_not_come_back_is_said_to_have_not() -> None:
    rows = (row("mcp-hub", {TOLD: 3.0}), row(OURS, {TOLD: 2.0, SAME: 0.05, NEW: 0.06}))
    table = Table("crash", "", rows, (), ("mcp-hub: Refused: HTTP 500 | `Closed`",))
    made = page.crash(result(table))
    assert f"| {OURS} | - | 2.00 | 0.050 | 0.060 |" in made
    never = "not within 10.0 s"
    assert f"| mcp-hub | `Refused: HTTP 500 / 'Closed'` | 3.00 | {never} | {never} |" in made
    assert page.words(result(Table("crash", "", (row("mcp-hub", {}),))))


def test_the_page_of_a_busy_machine_says_that_it_was_busy() -> None:
    assert page.busy({"before": 22_000.0, "after": 9_000.0}) == ""
    assert "take the ratios" in page.busy({"before": 9_000.0, "after": 8_000.0})


def test_a_result_is_read_as_it_was_written() -> None:
    found = result(ladder(3500.0))
    assert page.parsed(page.written(found)) == found


def test_the_page_has_the_figures_of_the_run_that_is_kept() -> None:
    """If not: python -m benchmarks.peers --page-only."""
    text = PAGE.read_text()
    assert sorted(page.marks(text)) == sorted(page.BLOCKS)
    kept = page.parsed(RESULTS.read_bytes())
    assert not kept.quick
    assert set(kept.versions) >= {peer.name for peer in PEERS if not peer.program}
    assert page.renewed(text, kept) == text


def test_the_page_says_who_is_missing_and_claims_no_more_than_it_shows() -> None:
    text = " ".join(PAGE.read_text().split())
    assert "ToolHive" in text
    assert "does not claim to be the fastest gateway of all" in text


# --- what is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "peer", [peer for peer in PEERS if not peer.program], ids=lambda peer: str(peer.name)
)
def test_a_gateway_is_pinned_to_the_version_that_the_page_names(peer: Peer) -> None:
    if peer.registry == "npm":
        wanted = json.loads((FOLDER / "npm" / "package.json").read_text())["dependencies"]
        locked = json.loads((FOLDER / "npm" / "package-lock.json").read_text())["packages"]
        assert wanted[peer.package] == peer.version
        assert locked[f"node_modules/{peer.package}"]["version"] == peer.version
    else:
        lines = (FOLDER / peer.package / "requirements.txt").read_text()
        assert f"\n{peer.package}=={peer.version} \\\n    --hash=sha256:" in lines


def test_the_page_names_the_file_of_each_gateway_that_is_one_program() -> None:
    text = PAGE.read_text()
    for peer in PEERS:
        if peer.program:
            row = f"| `{peer.program}` | github.com/{peer.package} | {peer.version} |"
            assert row in text


def test_a_program_says_its_version_itself(tmp_path: Path) -> None:
    for said, version in (
        ('{"version": "v1.4.1", "rust_version": "1.95.0"}', "1.4.1"),
        ('{"version": "v1.4.1", "build_profile": "quick"}', "1.4.1, profile quick"),
        ("dev", ""),
    ):
        program = tmp_path / AGENTGATEWAY.program
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o700)
        assert running.versions([AGENTGATEWAY], tmp_path)[AGENTGATEWAY.name] == version


def test_a_gateway_whose_program_is_not_there_is_not_measured(tmp_path: Path) -> None:
    with (
        pytest.raises(running.Failed, match="agentgateway is not installed"),
        running.started(AGENTGATEWAY, 1, tmp_path),
    ):
        pass


def test_pins_name_no_address() -> None:
    for path in (FOLDER / "npm" / "package-lock.json", *FOLDER.glob("*/requirements.txt")):
        assert not re.search(r'"resolved"|^-i |--index|--find|://[^"]*/-/', path.read_text()), path


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: str(peer.name))
def test_a_gateway_is_started_on_its_port_in_front_of_the_child(peer: Peer) -> None:
    assert peer.plan is not None
    plan = peer.plan(SITE)
    words = [*plan.command, *plan.files.values()]
    assert any(str(SITE.port) in word for word in words)
    assert any("child.py" in word and "--tools" in word for word in [*words, " ".join(words)])
    assert peer.program == "" or plan.command[0] == str(SITE.programs / peer.program)
    assert peer.tool_of("c00", "echo", 1) in {"echo", "c00__echo"}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_has_no_clock_no_dice_and_no_io(name: str) -> None:
    imported = {
        module.partition(".")[0]
        for node in nodes(FOLDER / f"{name}.py")
        for module in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom)
            else []
        )
    }  # fmt: skip
    assert not imported & IMPURE_IMPORTS


# --- all of it --------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.timeout(QUICK_S_MAX + 10)
def test_a_smoke_run_measures_everything_of_our_own_gateway(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.peers", "--quick"),
            *("--only", "none", "--json", str(kept)),
        ],
        cwd=FOLDER.parent.parent, capture_output=True, text=True, timeout=QUICK_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = page.parsed(kept.read_bytes())
    assert found.wrong == 0
    ours = {OURS, OURS_COMPILED} if machine.gateway() == machine.COMPILED else {OURS}
    named = {table.scenario: {one.name for one in table.rows} for table in found.tables}
    assert named == {
        "footprint-one": ours,
        "ladder": {f"{one} {callers}" for one in ("direct", *ours) for callers in (1, 16)},
        "large": {"direct", *ours},
        "footprint-many": ours,
        "lists": ours,
        "many": {f"{one} 1" for one in ours},
        "crash": ours,
    }
    crashed = next(table for table in found.tables if table.scenario == "crash").row(OURS)
    assert set(crashed.figures) == {TOLD, SAME, NEW}
