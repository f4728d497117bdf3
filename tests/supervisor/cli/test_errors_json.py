"""`--json` of a verb that fails: an object on standard error."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.clienthome import Home

pytestmark = pytest.mark.promise("M109")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def error_of(home: Home, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the error on stderr, and what is on stdout."""
    result = home.run(*arguments)
    said = json.loads(result.stderr.splitlines()[-1])
    assert said["v"] == 1
    assert set(said) == {"v", "error"}
    assert set(said["error"]) == {"code", "message", "details"}
    return result.exit_code, said["error"], result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["status", "--json"], Exit.NOT_RUNNING, "no gateway"),
        (["ctl", "describe", "x", "--json"], Exit.NOT_RUNNING, "no gateway"),
        (["ctl", "wait", "--json", "--timeout", "1x"], Exit.USAGE, "'1x'"),
        (["status", "--json", "--nosuch"], Exit.USAGE, "--nosuch"),
        (["ctl", "nosuch", "--json"], Exit.USAGE, "no command is named 'nosuch'"),
        (["nosuch", "--json"], Exit.USAGE, "no command is named 'nosuch'"),
        (["keys", "nosuch", "--json"], Exit.USAGE, "no command is named 'nosuch'"),
        (["install", "nosuch", "--json"], Exit.USAGE, "no client is named 'nosuch'"),
        (["import", "./nosuch.json", "--json"], Exit.CONFIG, "nosuch.json does not exist"),
        (["export", "--to", "cursor", "--json"], Exit.CONFIG, "the configuration has errors"),
        (["config", "show", "--json"], Exit.CONFIG, "the configuration has errors"),
        (["lock", "write", "--json"], Exit.CONFIG, "no configuration"),
        (["replay", "1", "--json"], Exit.CONFIG, "where recorded calls are is not known"),
        (["audit", "list", "--json"], Exit.CONFIG, "the folder of the audit is not known"),
        (["tools", "--json"], Exit.CONFIG, ""),
        (["login", "x", "--json"], Exit.CONFIG, "the configuration has errors"),
        (["tls", "show", "--json"], Exit.CONFIG, ""),
        (["keys", "list", "--json"], Exit.CONFIG, ""),
    ],
)
def test_a_failure_is_an_object_with_the_same_exit_code(
    home: Home, arguments: list[str], code: Exit, message: str
) -> None:
    exit_code, error, out = error_of(home, *arguments)
    assert exit_code == code
    assert error["code"] == code.name.lower()
    assert message in error["message"]
    assert out == ""
    plain = home.run(*(each for each in arguments if each != "--json"))
    assert plain.exit_code == code
    assert "{" not in plain.stderr


def test_errors_of_the_configuration_are_details(home: Home) -> None:
    home.with_config("[servers.x]\ncommnd = ['x']\n[servers.y]\n")
    _, error, _ = error_of(home, "config", "show", "--json")
    assert len(error["details"]) > 1
    assert any("metamcp.toml:2: servers.x.commnd" in each for each in error["details"])


def test_words_behind_two_dashes_are_not_options(home: Home) -> None:
    home.with_config("[servers.x]\ncommand = ['x']\n")
    result = home.run("add", "x", "--", "y", "--json")
    assert result.exit_code == Exit.FAILED
    assert "{" not in result.stderr


def test_a_reader_that_is_gone_is_not_an_error(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell
    script = f"{sys.executable} -m metamcp_supervisor config schema | head -c 1"
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, timeout=60, check=True, cwd=tmp_path
    )
    assert done.stdout == b"{"
    assert b"Traceback" not in done.stderr
