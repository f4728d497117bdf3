"""Options that make `metamcp ctl` fit into scripts."""

import asyncio
import os
import pty
from pathlib import Path

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.cli.test_ctl import COMMAND, read_until, said
from tests.supervisor.clienthome import Home
from tests.supervisor.small_gateway import server, steered

pytestmark = pytest.mark.process


async def test_chosen_fields_are_one_line_per_server_with_tabs() -> None:
    broken = server("fs", "error", pid=0, message="two\nlines", up_s=1.5)
    async with steered(server("git"), broken) as (_, directory):
        code, out, _ = await said(directory, "status", "-o", "name,state,required,up_s,message")
        wrong = await said(directory, "status", "-o", "name,colour")
    assert code == Exit.NOT_READY
    assert out == "git\tready\tfalse\t0\t-\nfs\terror\tfalse\t1.5\ttwo lines\n"
    assert wrong[0] == Exit.USAGE
    assert "a server has no 'colour'; it has: name, state" in wrong[2]


async def test_quiet_leaves_the_exit_code_and_the_errors() -> None:
    async with steered(server("git", "error")) as (_, directory):
        assert await said(directory, "-q", "status") == (Exit.NOT_READY, "", "")
        code, out, err = await said(directory, "--quiet", "stop", "gitt")
    assert (code, out) == (Exit.UNKNOWN_NAME, "")
    assert "did you mean 'git'" in err


async def test_events_and_logs_can_be_narrowed_down() -> None:
    async with steered(server("git")) as (gateway, directory):
        gateway.logs.add("git", "stderr", ["all well", "an ERROR here", "error again"])
        for what in ("ready→error", "error→warming", "restart"):
            gateway.journal.add("git", what)
        logs = await said(directory, "logs", "git", "--grep", "error", "-n", "1")
        assert logs[1].endswith("  error again\n")
        assert len((await said(directory, "logs", "git", "--since", "1h"))[1].splitlines()) == 3
        events = await said(directory, "events", "--type", "error→", "--since", "1")
        assert events[1].split()[1:] == ["git", "error→warming"]
        assert len((await said(directory, "events", "--since", "5m"))[1].splitlines()) == 3
        assert (await said(directory, "events", "--since", "soon"))[0] == Exit.USAGE


@pytest.mark.parametrize("joined", [False, True])
async def test_the_place_of_the_gateway_may_stand_behind_the_verb(joined: bool) -> None:
    async with steered(server("git")) as (_, where):
        place = [f"--runtime-dir={where}"] if joined else ["--runtime-dir", str(where)]
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "status", *place, "--json", stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0


async def test_without_colours_a_terminal_gets_none() -> None:
    async with steered(server("git", "warming")) as (_, where):
        ours, its = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--runtime-dir", str(where), "--no-color", "status"),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
        )
        os.close(its)
        shown = await asyncio.to_thread(read_until, ours, b"1 of 1 not ready")
        assert b"warming" in shown
        assert b"\x1b[33m" not in shown
        assert await process.wait() == Exit.NOT_READY
        os.close(ours)


@pytest.mark.parametrize(
    "verb", ["call x", "explain x", "policy explain x", "scripts run x", "workflow run x"]
)
def test_arguments_are_written_alike_at_every_verb(verb: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    words = (*verb.split(), "--args")
    for text, sentence in (
        ("@nope", "--args: nope: No such file or directory"),
        ("[1]", "--args is not a JSON object"),
    ):
        result = home.run(*words, text)
        assert (result.exit_code, sentence in result.output) == (Exit.USAGE, True), result.output
    (home.project / "arguments.json").write_text('{"a": 1}')
    assert home.run(*words, "@arguments.json").exit_code == Exit.NOT_RUNNING
