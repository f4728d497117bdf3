import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import ctl
from metamcp_supervisor.config.config import Problem
from metamcp_supervisor.verbs import Exit
from metamcp_supervisor.wording import columns
from tests.supervisor.small_gateway import SmallGateway, server, steered

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[3] / "docs" / "operating.md"
COMMAND = (sys.executable, "-m", "metamcp_supervisor", "ctl")


def read_until(terminal: int, end: bytes) -> bytes:
    """What a terminal was sent, up to and with `end`."""
    seen = b""
    while end not in seen:
        assert select.select([terminal], [], [], 20)[0], seen
        seen += os.read(terminal, 65536)
    return seen


async def start(directory: Path, *arguments: str) -> asyncio.subprocess.Process:
    """The true command, in a process of its own, with its output in pipes."""
    return await asyncio.create_subprocess_exec(
        *(*COMMAND, "--runtime-dir", str(directory), *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one `metamcp ctl`."""
    process = await start(directory, *arguments)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.promise("M80")
async def test_status_is_a_table_of_plain_columns_in_a_pipe() -> None:
    git = server(
        "git",
        tools=15,
        token_cost=2100,
        rss_bytes=99 << 20,
        memory_bytes=71 << 20,
        up_s=273840.0,
        p95_s=0.0841,
    )
    linear = server("linear", "error", reason="connect", message="refused", retry_in_s=38.0)
    async with steered(git, linear) as (_, directory):
        code, out, err = await said(directory, "status")
        failing, only, _ = await said(directory, "status", "--failing", "-o", "name,state")
    head, title, *rows, foot = out.splitlines()
    assert head.startswith("gateway active  up 1d02h  fronts 1/1  connections 2  sessions 0")
    assert " ".join(title.split()) == " ".join(columns.STATUS)
    assert rows[0].endswith("connect: refused; next start in 38s")
    assert " ".join(rows[1].split()) == "git ready 1 4121 3d04h 15 2100 0 0 84ms 71M 0"
    assert (failing, only) == (Exit.NOT_READY, "linear\terror\n")
    assert (foot, code, err) == ("1 of 2 not ready", Exit.NOT_READY, "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f│─]", out)


@pytest.mark.promise("M80")
async def test_status_as_json_has_a_version_and_is_one_line() -> None:
    async with steered(server("git"), server("fs", "stopped")) as (_, directory):
        code, out, _ = await said(directory, "status", "--json")
        named = await said(directory, "status", "--json", "fs")
    assert (code, out.count("\n")) == (0, 1)
    found = json.loads(out)
    assert (found["v"], found["servers"][0]["name"]) == (1, "git")
    assert named[0] == Exit.NOT_READY
    assert [s["name"] for s in json.loads(named[1])["servers"]] == ["fs"]


async def test_a_restart_that_waits_returns_with_the_new_generation() -> None:
    async with steered(server("git")) as (gateway, directory):
        assert await said(directory, "restart", "git", "--wait") == (0, "git: ready\n", "")
        assert gateway.servers["git"].generation == 2
        assert (await said(directory, "stop", "git", "--wait"))[1] == "git: stopped\n"
        assert (await said(directory, "wait", "git"))[0] == Exit.SERVER_NOT_RUNNING
        assert (await said(directory, "start", "git", "--wait"))[:2] == (0, "git: ready\n")
        assert (await said(directory, "start", "git"))[1] == "git: start requested\n"


async def test_a_wait_in_vain_ends_with_its_own_exit_code() -> None:
    async with steered(server("git", "warming")) as (_, directory):
        code, _, err = await said(directory, "wait", "--for", "ready", "--timeout", "10ms")
    assert (code, err) == (Exit.TIMEOUT, "metamcp: not ready after 0.01 s: git is warming\n")


@pytest.mark.parametrize(
    "verb", [("status",), ("start",), ("stop",), ("restart",), ("logs",), ("wait",)]
)
async def test_an_unknown_name_is_told_with_the_nearest_one(verb: tuple[str]) -> None:
    async with steered(server("github")) as (_, directory):
        code, out, err = await said(directory, *verb, "gihtub")
    assert (code, out) == (Exit.UNKNOWN_NAME, "")
    assert err == "metamcp: no server is named 'gihtub'; did you mean 'github'?\n"


async def test_a_reload_shows_its_plan_and_applies_the_one_that_was_seen() -> None:
    async with steered(server("git")) as (gateway, directory):
        _, out, _ = await said(directory, "reload", "--dry-run")
        plan, foot = out.splitlines()
        assert plan == "~  git  restart  env.GIT_DIR changed"
        expect = foot.partition("apply it with: metamcp ")[2].split()
        assert (await said(directory, *expect))[0] == 0
        assert (await said(directory, "reload", "--expect", "0000"))[0] == Exit.FAILED
        assert gateway.reloads == [True, False]


async def test_an_invalid_configuration_is_told_with_every_problem() -> None:
    async with steered() as (gateway, directory):
        gateway.problems = (Problem("a", "x", "one", 3), Problem("a", "y", "two", 9))
        code, out, err = await said(directory, "reload")
    assert (code, out) == (Exit.CONFIG, "")
    assert err.splitlines()[1:] == ["metamcp: a:3: x: one", "metamcp: a:9: y: two"]


@pytest.mark.promise("M89")
async def test_logs_are_shown_and_followed_without_what_a_terminal_would_obey() -> None:
    async with steered(server("git")) as (gateway, directory):
        gateway.logs.add("git", "stderr", ["one", "two", "\x1b[2Jthree"])
        process = await start(directory, "logs", "git", "-f", "-n", "2")
        assert process.stdout is not None
        assert (await process.stdout.readline()).endswith(b"  two\n")
        assert (await process.stdout.readline()).endswith(b"  \\x1b[2Jthree\n")
        gateway.logs.add("git", "stdout", ["noise"])
        assert (await process.stdout.readline()).endswith(b"  [stdout] noise\n")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert await said(directory, "logs", "git", "-n", "0") == (0, "", "")


async def test_a_terminal_gets_colours_and_a_watch_shows_what_changes() -> None:
    async with steered(server("git", "warming", message="[bold]\x1b[2Jx")) as (gateway, where):
        ours, its = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--runtime-dir", str(where), "status", "--watch", "--every", "50ms"),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
        )
        os.close(its)
        first = await asyncio.to_thread(read_until, ours, b"[bold]\\x1b[2Jx")
        assert b"\x1b[33mwarming" in first
        gateway.become("git", "ready")
        await asyncio.to_thread(read_until, ours, b"\x1b[32mready")
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(read_until, ours, b"\x1b[?1049l")  # the screen of before
        assert await process.wait() == 130
        os.close(ours)


async def test_on_a_narrow_terminal_reasons_stand_below_the_table() -> None:
    reason = "no program 'git-server' on the PATH"
    broken = server("git", "error", reason="spawn", message=reason)
    async with steered(broken) as (_, where):
        ours, its = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--runtime-dir", str(where), "status"),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"},
        )
        os.close(its)
        await asyncio.to_thread(read_until, ours, f"git: spawn: {reason}".encode())
        assert await process.wait() == Exit.NOT_READY
        os.close(ours)


async def test_a_watch_in_a_pipe_is_one_object_per_line() -> None:
    async with steered(server("git")) as (gateway, directory):
        process = await start(directory, "status", "--watch", "--json", "--every", "50ms")
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["servers"][0]["state"] == "ready"
        gateway.become("git", "error")
        assert json.loads(await process.stdout.readline())["servers"][0]["state"] == "error"
    assert await process.wait() == Exit.NOT_RUNNING
    await process.communicate()


async def test_following_ends_with_the_gateway() -> None:
    async with steered(server("git")) as (gateway, directory):
        gateway.journal.add("git", "warming→ready", "235 ms", generation=2)
        process = await start(directory, "events", "-f", "--json", "--reconnect", "200ms")
        assert process.stdout is not None
        assert process.stderr is not None
        event = json.loads(await process.stdout.readline())
        assert (event["v"], event["who"], event["what"]) == (1, "git", "warming→ready")
    assert await process.wait() == Exit.NOT_RUNNING
    waited, why, *_ = (await process.stderr.read()).splitlines()
    assert waited == b"metamcp: the gateway is gone; waiting 0.2 s for it to be back"
    assert b"no gateway is running at" in why


def test_without_a_gateway_there_is_one_sentence_with_the_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "status"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "METAMCP_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (Exit.NOT_RUNNING, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"no gateway is running at {tmp_path}/control.sock" in done.stderr


def test_a_runtime_directory_with_too_long_a_path_is_a_usage_error(tmp_path: Path) -> None:
    long = str(tmp_path / ("x" * 120))
    done = subprocess.run(
        [*COMMAND, "--runtime-dir", long, "status"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.USAGE
    assert "the path of a unix socket may have" in done.stderr


async def test_an_old_token_is_a_matter_of_permission() -> None:
    async with steered() as (_, directory):
        (directory / "token").write_text("0" * 64)
        code, _, err = await said(directory, "status")
    assert code == Exit.DENIED
    assert "token" in err


async def test_status_imports_neither_rich_nor_asyncio_nor_http_nor_the_gateway() -> None:
    async with steered(server("git")) as (_, directory):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "importtime", *COMMAND[1:]),
            *("--runtime-dir", str(directory), "status", "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    imported = {line.rpartition("|")[2].strip() for line in err.decode().splitlines()}
    assert "metamcp_supervisor.control.client" in imported
    slow = {
        "asyncio",
        "http",
        "ssl",
        "rich",
        "psutil",
        "prometheus_client",
        "metamcp_supervisor.config.config",
    }
    assert not slow & {name if "metamcp" in name else name.split(".")[0] for name in imported}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (131, "2m11s"), (18420, "5h07m"), (273840, "3d04h"), (-1, "0s")],
)
def test_spans_of_time_have_two_units_at_most(seconds: float, text: str) -> None:
    assert columns.span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0K"), (831488, "812K"), (71 << 20, "71M"), (1288490189, "1.2G")]
)
def test_sizes_have_three_digits_at_most(count: int, text: str) -> None:
    assert columns.size(count) == text


def test_the_outlook_says_what_comes_next_and_why() -> None:
    servers = [
        server("a", "idle"),
        server("b", "error", reason="spawn", message="x" * 300),
        server("c", "ready", reason="exit", message="two\nlines"),
        server("d", "ready", pid=0, origin="https://x.example"),
        server("e", "error", pid=0, origin="https://x.example", reason="connect"),
    ]
    rows = columns.status_rows(SmallGateway(*servers).status())
    assert [row[0].strip() for row in rows] == ["b", "e", "a", "c", "d"]  # what is wrong is first
    found = {row[0].strip(): row[-1] for row in rows}
    assert found["a"] == "starts on first call"
    assert found["b"].startswith("spawn: xxx")
    assert found["b"].endswith("…; no start planned")
    assert found["c"] == "exit: two lines"
    assert found["d"] == "https://x.example"
    assert found["e"] == "connect; no start planned"


def test_a_table_without_rows_is_its_title() -> None:
    assert show.plain(show.PrintedTable(("A", "BB"), [])) == "A  BB"


def test_the_documentation_knows_every_verb_and_option() -> None:
    text = DOCS.read_text()
    context = click.Context(ctl)
    for name in ctl.list_commands(context):
        command = ctl.get_command(context, name)
        assert command is not None
        assert f"`metamcp ctl {name}" in text, name
        for option in (option for given in command.params for option in given.opts):
            assert not option.startswith("--") or option in text, option
