"""`metamcp login` and `logout` where they come to nothing; the live tests have what works."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main
from tests.supervisor.configs import write

pytestmark = pytest.mark.process

TEXT = """
[servers.far]
url = "http://127.0.0.1:1/mcp"
oauth = true
[servers.machine]
url = "http://127.0.0.1:1/mcp"
oauth = { client_id = "a", client_secret = "secret-canary", grant = "client_credentials" }
[servers.plain]
url = "http://127.0.0.1:1/mcp"
"""


def run(folder: Path, *words: str, key: str | None = None) -> Result:
    path = write(folder, "metamcp.toml", TEXT)
    where = ["--config", str(path), "--state-dir", str(folder / "s"), "--runtime-dir", str(folder)]
    return CliRunner().invoke(main, [*words, *where], env={"METAMCP_OAUTH_KEY": key})


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    got = run(tmp_path, "login", "far", "--no-browser")
    assert got.exit_code == 1
    assert got.stdout == ""
    assert "cannot log in: http://127.0.0.1:1 cannot be reached: " in got.stderr


@pytest.mark.parametrize("verb", ["login", "logout"])
def test_only_servers_with_oauth_have_tokens(tmp_path: Path, verb: str) -> None:
    got = run(tmp_path, verb, "fra")
    assert got.exit_code == 8
    assert "no server is named 'fra'; did you mean 'far'?" in got.stderr
    got = run(tmp_path, verb, "plain")
    assert got.exit_code == 2
    assert "server 'plain' has no `oauth` in its configuration" in got.stderr


def test_a_server_that_gets_its_tokens_by_itself_needs_no_login(tmp_path: Path) -> None:
    got = run(tmp_path, "login", "machine")
    assert got.exit_code == 0
    assert "server 'machine' gets its tokens by itself" in got.stderr


def test_a_key_that_is_none_is_told_and_not_repeated(tmp_path: Path) -> None:
    got = run(tmp_path, "login", "far", key="key-canary")
    assert got.exit_code == 1
    assert "$METAMCP_OAUTH_KEY is not a key for the tokens" in got.stderr
    assert "canary" not in got.stderr


def test_nothing_is_stored_and_logout_says_so(tmp_path: Path) -> None:
    got = run(tmp_path, "logout", "far")
    assert got.exit_code == 0
    assert got.stderr.splitlines()[-1] == "metamcp: nothing is stored for 'far'"


def test_a_file_that_only_lies_there_sends_nobody_anywhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = TEXT + '[servers.local]\ncommand = ["x"]\n'
    write(tmp_path, "metamcp.toml", text)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        state = ["--state-dir", str(tmp_path / "s"), "--runtime-dir", str(tmp_path)]
        got = CliRunner().invoke(main, ["login", "far", *state])
    finally:
        os.chdir(before)
    assert got.exit_code == 77
    assert "metamcp up" in capfd.readouterr().err
