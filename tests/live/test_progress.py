"""Progress of verbs that take longer than a second, as a person at a terminal sees it."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from metamcp_worker.audit.segments import Segments
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc.audit_records import AuditRecord
from tests.live.gateway import SERVER, Gateway, fake, free_port, toml
from tests.terminal import Terminal
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M109")]

DOWNLOADS = "echo 'Downloading numpy (15.2MiB)' >&2; sleep 3; exec \"$@\""
COLOURS = re.compile(rb"\x1b\[(?:\d+;)*[34]\d(?:;\d+)*m")
RECORDS = 600_000
"""More than a second of checking."""
METAMCP = (sys.executable, "-m", "metamcp_supervisor")


def slow() -> dict[str, object]:
    """A server that says what it downloads, as npx and uvx do, and starts three seconds later."""
    return {"command": ["sh", "-c", DOWNLOADS, "sh", *SERVER]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    servers = {"slow": slow(), "quick": fake()}
    lines = [
        f"[servers.{name}]\ncommand = {toml(entry['command'])}" for name, entry in servers.items()
    ]
    ports = f"[gateway]\nlisten = '127.0.0.1:{free_port()}'\nops_listen = '127.0.0.1:{free_port()}'"
    (tmp_path / "metamcp.toml").write_text("\n".join([ports, *lines]))
    return tmp_path


def up(folder: Path, environ: Mapping[str, str] | None = None) -> Terminal:
    mine = {"HOME": str(folder / "home"), "METAMCP_RUNTIME_DIR": str(folder / "run")}
    command = [*METAMCP, "up", "--config", "metamcp.toml"]
    inherited = {key: value for key, value in os.environ.items() if key in ("PATH", "TMPDIR")}
    return Terminal(command, cwd=folder, environ={**inherited, **mine, **(environ or {})})


def test_the_start_says_which_servers_it_waits_for_and_what_they_download(folder: Path) -> None:
    with up(folder) as terminal:
        seen = terminal.until("waits for slow (Downloading numpy (15.2MiB))")
        line = seen.splitlines()[-1]
        assert re.search(r"^. 1 of 2 started, [1-3] s; waits for slow", line), seen
        seen = terminal.until("Endpoint")
        assert "waits for" not in seen, "the line has gone"
        assert re.search(r"^\d\d:\d\d:\d\d +slow +.*→ready", seen, re.MULTILINE), seen


def test_a_terminal_that_knows_lines_only_gets_lines_only(folder: Path) -> None:
    with up(folder, {"TERM": "dumb"}) as terminal:
        terminal.until("Endpoint")
        assert b"\x1b[K" not in terminal.raw
        assert b"waits for" not in terminal.raw


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({"slow": slow()}, wait=False) as running:
        until(running.answers, "the gateway answers")
        yield running


def at_terminal(gateway: Gateway, *words: str, **environ: str) -> Terminal:
    inherited = {**os.environ, **environ}
    inherited.pop("NO_COLOR", None) if "NO_COLOR" not in environ else None
    inherited["TERM"] = environ.get("TERM", "xterm-256color")
    return Terminal(gateway.command("ctl", *words), cwd=gateway.folder, environ=inherited)


def test_a_verb_that_waits_says_for_which_servers_and_leaves_nothing_behind(
    gateway: Gateway,
) -> None:
    with at_terminal(gateway, "wait", "slow") as terminal:
        terminal.until("waits for slow to be ready: 0 of 1 ready; slow warming")
        assert terminal.finish() == 0
        assert terminal.text() == ""
        assert COLOURS.search(terminal.raw)
    with at_terminal(gateway, "restart", "slow", "--wait", NO_COLOR="1") as terminal:
        terminal.until("0 of 1 ready; slow warming")
        assert terminal.finish() == 0
        assert terminal.text() == "slow: ready"
        assert not COLOURS.search(terminal.raw)
    for words, environ in ((("--json",), {}), ((), {"TERM": "dumb"})):
        with at_terminal(gateway, "restart", "slow", "--wait", *words, **environ) as terminal:
            assert terminal.finish() == 0
            assert b"waits for" not in terminal.raw
            assert b"\x1b[" not in terminal.raw
    piped = gateway.run("ctl", "restart", "slow", "--wait")
    assert (piped.stdout, piped.stderr) == ("slow: ready\n", "")


def test_a_quick_verb_shows_no_progress(gateway: Gateway) -> None:
    with at_terminal(gateway, "reload") as terminal:
        assert terminal.finish() == 0
        assert b"reads the configuration" not in terminal.raw


def test_the_check_of_a_long_audit_has_a_bar(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "audit", durable=False, bytes_max=1 << 30)
    segments.begin(10)
    segments.add(
        [
            audit.encoded(AuditRecord(ts=n, n=n, origin="a", event="call", text="x" * 50))
            for n in range(1, RECORDS + 1)
        ],
        {"a": RECORDS},
    )
    segments.close()
    command = [*METAMCP, "audit", "verify", "--state-dir", str(tmp_path)]
    with Terminal(command, cwd=tmp_path, environ={**os.environ, "TERM": "xterm"}) as terminal:
        terminal.until(lambda text: re.search(r"checks the chain .*━.* [1-9]\d?%", text))
        assert terminal.finish() == 0
        assert terminal.text().startswith(f"the chain holds: {RECORDS} records in 1 file")
