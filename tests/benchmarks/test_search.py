"""The search over tools is as good as it was, by our own set of tools and queries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.search import exposed, quality, sets
from benchmarks.search.sets import Query
from metamcp_supervisor.views import tool_costs
from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.search.index import Index
from tests.house import ROOT

VIEWS = ROOT / "docs" / "views.md"
PUBLIC_TOOLS, PUBLIC_TOKENS = 538, 112_468
"""Measured with `python -m benchmarks.search FOLDER`; the public sets are not copied here."""
RUN_S_MAX = 50
"""It takes five seconds where nothing else runs."""


@pytest.fixture(scope="module")
def own() -> sets.Sets:
    return sets.own()


@pytest.fixture(scope="module")
def index(own: sets.Sets) -> Index:
    return quality.indexed(own)


@pytest.mark.promise("M36")
@pytest.mark.parametrize(
    ("letter", "least"),
    [
        ("A", quality.Quality(first=0.64, five=0.88, mrr=0.75, recall=0.92)),
        ("B", quality.Quality(first=0.85, five=0.93, mrr=0.9, recall=0.96)),
        ("C", quality.Quality(first=0.78, five=0.92, mrr=0.86, recall=0.93)),
        ("D", quality.Quality(first=0.4, five=0.75, mrr=0.53, recall=0.87)),
    ],
)
def test_tools_are_found_by_name_description_and_intent(
    own: sets.Sets, index: Index, letter: str, least: quality.Quality
) -> None:
    reached = quality.judged(own.queries[letter], quality.by(index))
    assert reached.first >= least.first
    assert reached.five >= least.five
    assert reached.mrr >= least.mrr
    assert reached.recall >= least.recall


def test_every_query_of_the_set_wants_tools_that_are_there(own: sets.Sets) -> None:
    wanted = {name for queries in own.queries.values() for one in queries for name in one.wanted}
    assert wanted <= own.names()
    assert len(own.names()) == len(own.documents)


@pytest.mark.promise("M38")
def test_an_answer_costs_a_fraction_of_all_definitions(own: sets.Sets, index: Index) -> None:
    everything = sum(len(document.definition) for document in own.documents)
    for query in own.queries["B"]:
        answer = tool_text.markdown(index.search(query.text, 5), "full")
        assert len(answer.encode()) < everything / 8


@pytest.mark.promise("M38")
@pytest.mark.parametrize("exposure", [one for one in tool_costs.EXPOSURES if one != "all"])
def test_public_tools_cost_fifty_times_what_an_exposure_begins_with(exposure: Exposure) -> None:
    start = tool_costs.at_start(exposure, ())
    saving = builtin_definitions.TokenSavings(PUBLIC_TOKENS, start)
    assert saving.percent >= 98
    count, less = len(builtin_definitions.of(exposure)), f"{saving.tokens / PUBLIC_TOKENS:.1%}"
    assert count <= 13
    row = f"| `{exposure}` | {count} | {start} | {less} |"
    assert row in VIEWS.read_text(), "it is measured with python -m benchmarks.search FOLDER"
    assert f"| `all` | {PUBLIC_TOOLS} | {PUBLIC_TOKENS:,} | |" in VIEWS.read_text()


@pytest.mark.promise("M38")
def test_the_same_reckoning_is_made_of_any_set(own: sets.Sets) -> None:
    found = exposed.savings(own.documents)
    assert found["all"].tokens == 0
    assert found["all"].everything > builtin_definitions.tokens_of_all(
        one.definition for one in own.documents
    )
    assert found["search"].shown == builtin_definitions.tokens_of_bytes(
        builtin_definitions.size("search")
    )
    assert list(exposed.table(own.documents))[2].startswith(f"| `all` | {len(own.documents)} | ")


def test_figures_are_what_their_names_say() -> None:
    queries = [Query("one", frozenset("a")), Query("two", frozenset("bc"))]
    judged = quality.judged(queries, lambda query, _: list("ax" if query == "one" else "xyb"))
    assert judged == quality.Quality(first=0.5, five=1.0, mrr=(1 + 1 / 3) / 2, recall=0.75)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    rooms = [str(ROOT / room) for room in ("supervisor", "worker", ".")]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.search", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(rooms)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


@pytest.mark.process
def test_the_benchmark_prints_its_tables() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[:4] for line in done.stdout.splitlines() if line[:3] in ("| A", "| B", "| C")] == [
        "| A ", "| B ", "| C ",
    ]  # fmt: skip
    assert "| 10000 |" in done.stdout
    assert "| `search` | 8 | " in done.stdout


@pytest.mark.process
def test_without_the_public_sets_it_says_where_they_can_be_had(tmp_path: Path) -> None:
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path / 'livemcpbench' / 'tools.json'} cannot be read: No")
    assert "benchmarks/search/README.md" in done.stderr
