"""The demo as a new user runs it: real servers from public packages, both eras, exit code 0."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.views import tool_costs
from metamcp_worker.ipc import builtin_definitions
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.test_failed_starts import check_failed
from tests.live.tokens import TOKENS_PER_TOOL_MAX, definitions, endpoints, told
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

DEMO = ROOT / "examples" / "demo"
INSTALL_S_MAX = 400
CALLS = (
    "git__git_log",
    "time__get_current_time",
    "fetch__fetch",
    "filesystem__read_text_file",
    "memory__read_graph",
    "notes__add_note",
)
PROGRAMS = {
    "scripts run largest-files",
    "scripts run todo-list",
    "scripts run changed-files",
    "workflow run review-change",
    "workflow run refactor-function",
    "workflow run add-endpoint",
}


def needs() -> None:
    missing = [name for name in ("node", "npm", "git") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the demo needs {', '.join(missing)}")


@pytest.mark.promise("M13", "M19", "M48", "M53", "M106")
def test_the_demo_shows_answers_of_six_servers_and_of_scripts_and_workflows() -> None:
    needs()
    done = subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), "demo"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in CALLS:
        assert done.stdout.count(f"  {name} ") == 2, f"{name} in both eras: {done.stdout}"
    assert "ERROR" not in done.stdout
    told = outputs(done.stdout)
    shown = outputs((ROOT / "README.md").read_text())
    assert told.keys() == shown.keys() == PROGRAMS
    for name, text in shown.items():
        assert text.partition("\n```")[0].strip() in told[name], f"{name} as in the README"
    assert (
        "+    return sum(PRICES[name] for name in names)" in told["workflow run refactor-function"]
    )
    assert "+def stock() -> object:" in told["workflow run add-endpoint"]


def outputs(text: str) -> dict[str, str]:
    """What stands below each command of `metamcp`."""
    parts = [part.partition(" …\n") for part in text.split("\n$ metamcp ")[1:]]
    return {name: output for name, _, output in parts}


def test_who_installs_the_demo_waits_for_another_who_does() -> None:
    needs()
    install = [sys.executable, "-c", "import demo; demo.install()"]
    folder = os.open(DEMO, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with subprocess.Popen(install, cwd=DEMO, env={**os.environ, "PYTHONPATH": str(DEMO)}) as other:
        waiting = f"-> FLOCK  ADVISORY  WRITE {other.pid} "
        try:
            until(lambda: waiting in Path("/proc/locks").read_text(), "it waits")
        finally:
            os.close(folder)
        assert other.wait(INSTALL_S_MAX) == 0


@pytest.fixture(scope="module")
def real() -> Iterator[Gateway]:
    """Real servers from public packages behind one endpoint for each exposure."""
    needs()
    subprocess.run(
        [sys.executable, "-c", "import demo; demo.install()"],
        cwd=DEMO, check=True, timeout=INSTALL_S_MAX, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(DEMO)},
    )  # fmt: skip
    python, node = DEMO / ".venv" / "bin", DEMO / "node_modules" / "@modelcontextprotocol"
    servers: dict[str, dict[str, Any]] = {
        "git": {"command": [str(python / "mcp-server-git")]},
        "time": {"command": [str(python / "mcp-server-time"), "--local-timezone", "UTC"]},
        "fetch": {"command": [str(python / "mcp-server-fetch"), "--ignore-robots-txt"]},
        "filesystem": {
            "command": ["node", str(node / "server-filesystem/dist/index.js"), str(DEMO / "work")]
        },
        "memory": {"command": ["node", str(node / "server-memory/dist/index.js")]},
    }
    extra = "[code]\n" + "".join(
        f'[endpoints.{exposure}]\nnamespace = "default"\nexposure = "{exposure}"\n'
        for exposure in tool_costs.EXPOSURES
    )
    with Gateway(servers, extra=extra) as running:
        yield running


def test_git_outside_of_a_repository_is_a_failed_start(real: Gateway, tmp_path: Path) -> None:
    assert real.answers()
    command = [str(DEMO / ".venv/bin/mcp-server-git"), "--repository", str(tmp_path)]
    servers = {"git": {"command": command, "restart": "never"}, "good": fake()}
    with Gateway(servers, wait=False) as gateway:
        check_failed(gateway, "git")


@pytest.mark.promise("M38")
def test_real_definitions_cost_what_is_told_of_them_and_every_exposure_saves(
    real: Gateway,
) -> None:
    found = endpoints(real)
    everything = definitions(real, "all")
    whole = builtin_definitions.tokens_of_all(everything)
    assert len(everything) == found["all"]["tools"] >= 25
    assert abs(found["all"]["at_start"] - whole) <= TOKENS_PER_TOOL_MAX * len(everything)
    for exposure, definitions_max in (("servers", 3), ("toolset", 7), ("search", 13), ("code", 7)):
        sent = definitions(real, exposure)
        assert len(sent) <= definitions_max
        assert found[exposure]["at_start"] == builtin_definitions.tokens_of_all(sent)
        assert builtin_definitions.tokens_of_all(sent) < whole / 4, (
            "of five servers; the more, the less"
        )
    assert found["search"]["saved"] == found["search"]["all"] - found["search"]["at_start"]
    largest = told(real)["tools"][0]
    own = next(raw for raw in everything if json.loads(raw)["name"].endswith(largest["tool"]))
    assert abs(largest["tokens"] - builtin_definitions.tokens(own)) <= TOKENS_PER_TOOL_MAX + len(
        "filesystem__"
    )
