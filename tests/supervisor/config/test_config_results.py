"""`results` of an endpoint: what a file may say, what fronts are told of it, what is refused."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import ResultsConfig
from metamcp_supervisor.config.reload import plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import front_spec
from metamcp_worker.ipc.spec import RESULTS, ResultLimits
from tests.supervisor.configs import loaded, messages

SERVER = '[servers.git]\ncommand = ["git-server"]\n[endpoints.dev]\nnamespace = "default"\n'


def written(results: str) -> str:
    return f"{SERVER}results = {results}\n"


def test_an_endpoint_keeps_results_only_if_it_says_so(tmp_path: Path) -> None:
    (plain,) = front_spec(loaded(tmp_path, SERVER), "1").endpoints
    assert (plain.results, plain.builtins) == (None, ())
    found = loaded(tmp_path, written('{ max = "32K", keep = "10m" }'))
    assert found.endpoints["dev"].results == ResultsConfig(32 * 1024, 600.0)
    (keeping,) = front_spec(found, "1").endpoints
    folder = str(found.gateway.state_dir / "results")
    limits = ResultLimits(
        folder=folder, max_bytes=32 * 1024, keep_s=600.0, total_bytes=256 * 1024 * 1024
    )
    assert (keeping.results, keeping.builtins) == (limits, (RESULTS,))


def test_an_empty_table_has_the_defaults_and_they_are_shown(tmp_path: Path) -> None:
    shown: object = tables(loaded(tmp_path, written("{}")))["endpoints"]
    assert isinstance(shown, dict)
    assert shown["dev"]["results"] == {"max": "64K", "keep": "1h", "total": "256M"}


def test_a_change_is_in_place(tmp_path: Path) -> None:
    old, new = loaded(tmp_path, SERVER), loaded(tmp_path, written("{}"))
    (change,) = (each for each in plan(old, new).changes if each.why)
    assert (change.server, change.action, change.why) == (
        "endpoints.dev", "in-place", "results changed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ('{ max = "4K" }', 'max: is too small; the smallest size here is "8K"'),
        ('{ max = "1G", total = "2G" }', "max: is at most 256M"),
        ('{ max = "1M", total = "64K" }', "total: is less than 'max', so that no result fits"),
        ('{ keep = "1s" }', 'keep: is too short; the shortest time here is "10s"'),
        ('{ keep = "8d" }', "keep: is too long"),
        ('{ most = "1M" }', "most: unknown key 'most'"),
        ('"64K"', "results: must be a table, not a string"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, results: str, why: str) -> None:
    assert any(why in message for message in messages(tmp_path, written(results)))


def test_a_tool_cannot_be_named_as_the_one_that_reads_results(tmp_path: Path) -> None:
    named = 'tools."git.log" = { name = "read_result" }\n'
    assert loaded(tmp_path, SERVER + named).endpoints
    (why,) = messages(tmp_path, written("{}") + named)
    assert "is the name of a built-in tool" in why
