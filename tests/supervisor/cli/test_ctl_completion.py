"""What shells complete: verbs, options, and names of servers from the gateway that runs."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.cli.completion import names
from tests.supervisor.cli.test_ctl import COMMAND
from tests.supervisor.small_gateway import server, steered

pytestmark = pytest.mark.process


async def completed(*words: str, cache: Path) -> tuple[list[str], str]:
    """What is offered for the last word, and what was said besides."""
    main = "import sys; sys.argv[0] = 'metamcp'; from metamcp_supervisor.__main__ import main;"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{main} main(prog_name='metamcp')"),
        env={
            **os.environ,
            "_METAMCP_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "XDG_CACHE_HOME": str(cache),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return [line.partition(",")[2] for line in out.decode().split()], err.decode()


@pytest.mark.promise("M80")
@pytest.mark.parametrize("verb", ["status", "describe", "logs", "restart", "wait", "calls", "set"])
async def test_names_of_servers_are_completed_from_the_gateway(verb: str, tmp_path: Path) -> None:
    async with steered(server("github"), server("gitlab"), server("fs")) as (_, directory):
        words = ("metamcp", "ctl", "--runtime-dir", str(directory), verb, "gi")
        assert await completed(*words, cache=tmp_path) == (["github", "gitlab"], "")


@pytest.mark.parametrize("verb", ["status", "logs", "restart"])
async def test_they_are_completed_for_a_verb_that_stands_alone(verb: str, tmp_path: Path) -> None:
    async with steered(server("github"), server("gitlab"), server("fs")) as (_, directory):
        words = ("metamcp", verb, "--runtime-dir", str(directory), "gi")
        assert await completed(*words, cache=tmp_path) == (["github", "gitlab"], "")
    assert "status" in (await completed("metamcp", "st", cache=tmp_path))[0]


def test_without_a_gateway_nothing_is_completed_and_nothing_said(tmp_path: Path) -> None:
    words = ("metamcp", "ctl", "--runtime-dir", str(tmp_path), "describe", "g")
    assert asyncio.run(completed(*words, cache=tmp_path)) == ([], "")


def test_verbs_are_completed(tmp_path: Path) -> None:
    found, _ = asyncio.run(completed("metamcp", "ctl", "d", cache=tmp_path))
    assert {"describe", "doctor"} <= set(found)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("set", "git", "ti"), ["timeout="]),
        (("set", "git", "timeout=5s", "mem"), ["memory_max=", "memory_high="]),
        (("signal", "git", "us"), ["USR1", "USR2"]),
        (("set", "log.levels.f"), ["log.levels.front"]),
        (("set", "log.level", "d"), ["debug"]),
    ],
)
def test_settings_and_signals_are_completed(
    words: tuple[str, ...], offered: list[str], tmp_path: Path
) -> None:
    assert asyncio.run(completed("metamcp", "ctl", *words, cache=tmp_path)) == (offered, "")


async def test_names_are_kept_for_the_next_key_and_not_for_long(tmp_path: Path) -> None:
    async with steered(server("git")) as (gateway, directory):
        words = ("metamcp", "ctl", "--runtime-dir", str(directory), "describe", "")
        assert (await completed(*words, cache=tmp_path))[0] == ["git"]
        gateway.servers["new"] = server("new")
        (kept,) = (tmp_path / "metamcp").iterdir()
        os.utime(kept, (1.0, 1.0))
        assert (await completed(*words, cache=tmp_path))[0] == ["git", "new"]
        (kept,) = (tmp_path / "metamcp").iterdir()
        ahead = kept.stat().st_mtime + 3600.0
        os.utime(kept, (ahead, ahead))
        gateway.servers.clear()
        assert (await completed(*words, cache=tmp_path))[0] == []


def test_a_gateway_that_hangs_completes_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "control.sock"))
        mute.listen()
        (tmp_path / "token").write_text("x")
        words = ("metamcp", "ctl", "--runtime-dir", str(tmp_path), "describe", "g")
        assert asyncio.run(completed(*words, cache=tmp_path)) == ([], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_accepts(shell: str) -> None:
    done = subprocess.run(
        [*COMMAND, "completion", shell], capture_output=True, text=True, timeout=30, check=True
    )
    assert f"_METAMCP_COMPLETE={shell}_complete" in done.stdout
    assert "%(" not in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, timeout=30, check=True)


def test_a_directory_that_cannot_be_a_runtime_directory_completes_nothing() -> None:
    assert names("/nowhere/" + "x" * 200) == []
