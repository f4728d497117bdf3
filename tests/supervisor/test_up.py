"""`metamcp up` and `serve` at the prompt: what is printed, and how a start fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.cli.up import first_screen
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus

SERVERS = (
    ServerStatus(name="git", state="active", phase="ready", generation=1, tools=9, token_cost=321,
                 start_s=0.4),
    ServerStatus(name="bad", state="error", phase="failed", generation=1, reason="spawn",
                 message="no program 'nope'\x1b[2J"),
)  # fmt: skip
STATUS = GatewayStatus(
    version="1", pid=1, state="active", up_s=1.0, url="http://127.0.0.1:6270/mcp",
    ops_url="http://127.0.0.1:6271", config_hash="x", config_files=(), config_age_s=1.0,
    nursery_pid=2, fronts=(), servers=SERVERS,
    endpoints={"default": "http://127.0.0.1:6270/metamcp/default/mcp"},
)  # fmt: skip


def test_the_first_screen_says_where_to_connect_and_what_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first_screen(STATUS)
    out = capsys.readouterr().out
    assert "claude mcp add --transport http metamcp http://127.0.0.1:6270/mcp" in out
    assert (
        '{"mcpServers": {"metamcp": {"type": "http", "url": "http://127.0.0.1:6270/mcp"}}}' in out
    )
    assert "9 tools, about 321 tokens" in out
    assert "spawn: no program 'nope'" in out
    assert "\x1b" not in out, "a server's words never reach a terminal as they are"


@pytest.mark.parametrize(
    ("verb", "config", "flags", "code", "word"),
    [
        ("up", "[servers.a]\ncomand = 1\n", (), 65, "did you mean 'command'"),
        ("serve", "", ("--listen", "nowhere"), 65, "--listen"),
        ("serve", "", ("--runtime-dir", "/proc/nothing"), 77, "--runtime-dir"),
    ],
)
def test_a_start_that_fails_is_sentences_and_an_exit_code(
    tmp_path: Path, verb: str, config: str, flags: tuple[str, ...], code: int, word: str
) -> None:
    (tmp_path / "metamcp.toml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", verb, "--config", "metamcp.toml",
         "--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"), *flags],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr
