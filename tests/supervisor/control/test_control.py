import asyncio
import json
import os
import socket
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.config.config import Problem
from metamcp_supervisor.control.control import LINE_BYTES_MAX, ControlLimits
from metamcp_supervisor.telemetry.logs import LINE_CHARS_MAX
from metamcp_supervisor.verbs import Exit, ServerStatus
from metamcp_worker.ipc.errors import Code
from tests.supervisor.small_gateway import server, steered


class Peer:
    """A client that sends what it is told, lines or not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> dict[str, Any]:
        """The next line, or an empty object at the end."""
        found: dict[str, Any] = json.loads(await self.reader.readline() or b"{}")
        return found

    async def ask(self, method: str, /, **params: object) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        self.send(json.dumps(request).encode() + b"\n")
        return await self.line()


@asynccontextmanager
async def peer(directory: Path, token: str | None = None) -> AsyncGenerator[Peer, None]:
    """A connection that has shown the token, or another one; with "" it has shown none."""
    reader, writer = await asyncio.open_unix_connection(
        directory / "control.sock", limit=LINE_BYTES_MAX
    )
    found = Peer(reader, writer)
    try:
        assert (await found.line())["method"] == "hello"
        if token is None:
            shown = await found.ask("hello", token=(directory / "token").read_text())
            assert shown["result"] == {"v": 1, "role": "admin"}
        yield found
    finally:
        writer.close()


def say_and_leave(directory: Path, data: bytes) -> None:
    """The first line of the gateway is read, the others are not."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(directory / "control.sock"))
        client.sendall(data)
        client.recv(1)


async def test_socket_and_token_are_for_the_owner_alone() -> None:
    async with steered() as (_, directory):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert modes == {"control.sock": 0o600, "token": 0o600, "lock": 0o600}
        assert len((directory / "token").read_text()) == 64


@pytest.mark.promise("M80")
async def test_status_is_answered_after_the_token() -> None:
    async with steered(server("git")) as (_, directory), peer(directory) as client:
        answer = await client.ask("status")
        assert answer["id"] == 7
        assert answer["result"]["v"] == 1
        assert [s["name"] for s in answer["result"]["servers"]] == ["git"]


@pytest.mark.parametrize("first", ["status", "stop"])
async def test_nothing_is_answered_before_the_token(first: str) -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory, "") as client:
        assert (await client.ask(first, names=["git"]))["error"]["code"] == Exit.DENIED
        assert await client.line() == {}
        assert gateway.journal.since(0) == []


async def test_a_wrong_token_is_refused_and_the_right_one_is_not_in_the_answer() -> None:
    async with steered() as (_, directory), peer(directory, "") as client:
        answer = await client.ask("hello", token="0" * 64)
        assert answer["error"]["code"] == Exit.DENIED
        assert (directory / "token").read_text() not in json.dumps(answer)
        assert await client.line() == {}


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", Code.PARSE_ERROR),
        (b"\xff\x00", Code.PARSE_ERROR),
        (b"[" * 5000, Code.PARSE_ERROR),
        (b'[{"jsonrpc":"2.0","id":1,"method":"status"}]', Code.PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1}', Code.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"stop","params":{"names":["git"]}}', Code.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":null,"method":"status"}', Code.INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":1,"method":"status"}', Code.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"reboot"}', Code.METHOD_NOT_FOUND),
        (b'{"jsonrpc":"2.0","id":1,"method":"stop"}', Code.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"stop","params":[1]}', Code.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"logs","params":{"nme":1}}', Code.INVALID_PARAMS),
    ],
)
async def test_a_bad_line_gets_an_error_and_the_next_line_an_answer(line: bytes, code: int) -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        client.send(line + b"\n")
        assert (await client.line())["error"]["code"] == code
        assert "result" in await client.ask("status")
        assert {event.what for event in gateway.journal.since(0)} <= {"order refused"}


async def test_a_line_without_end_is_refused_at_its_limit() -> None:
    async with steered() as (_, directory), peer(directory) as client:
        client.send(b"x" * (LINE_BYTES_MAX + 100_000))
        answer = await client.line()
        assert answer["error"]["code"] == Code.INVALID_REQUEST
        assert str(LINE_BYTES_MAX) in answer["error"]["message"]
        async with peer(directory) as other:
            assert "result" in await other.ask("status")


async def test_a_fault_of_the_gateway_is_an_error_without_a_traceback() -> None:
    async with steered() as (gateway, directory), peer(directory) as client:
        gateway.fault = "the secret reason"
        error = (await client.ask("status"))["error"]
        assert error["code"] == Code.INTERNAL_ERROR
        assert "secret" not in error["message"]
        gateway.fault = ""
        assert "result" in await client.ask("status")


async def test_orders_are_carried_out_and_recorded_with_who_asked() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        answer = await client.ask("restart", names=["git"])
        assert answer["result"] == {"v": 1, "names": ["git"], "above": {"git": 1}}
        assert (await client.ask("wait", names=["git"], above={"git": 1}))["result"]
        asked, done = gateway.journal.since(0)
        assert (asked.who, asked.what) == ("git", "restart")
        assert f"process {os.getpid()} of user id {os.geteuid()}" in asked.cause
        assert done.generation == 2


async def test_an_unknown_name_stops_the_whole_order() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        error = (await client.ask("stop", names=["git", "gitt"]))["error"]
        assert error["code"] == Exit.UNKNOWN_NAME
        assert error["data"] == {"names": ["gitt"], "nearest": "git"}
        assert [event.what for event in gateway.journal.since(0)] == ["order refused"]
        assert gateway.servers["git"].state == "ready"


async def test_a_reload_tells_the_plan_or_every_problem() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        plan = (await client.ask("reload", dry_run=True))["result"]
        assert gateway.journal.since(0) == []
        assert not plan["applied"]
        assert (await client.ask("reload", expect="old"))["error"]["code"] == Exit.FAILED
        assert (await client.ask("reload", expect=plan["hash"]))["result"]["applied"]
        assert [event.what for event in gateway.journal.since(0)] == [
            "reload", "order refused", "reload",
        ]  # fmt: skip
        gateway.problems = (Problem("a.toml", "servers.git", "no command", 3),)
        error = (await client.ask("reload"))["error"]
        assert error["code"] == Exit.CONFIG
        assert error["data"] == {"problems": ["a.toml:3: servers.git: no command"]}


async def test_followed_events_come_as_they_happen() -> None:
    async with steered(server("git")) as (gateway, directory), peer(directory) as client:
        gateway.journal.add("git", "one")
        gateway.journal.add("git", "two")
        past = await client.ask("events", since=1, follow=True)
        assert past["params"]["what"] == "two"
        assert (await client.line())["result"] == {"v": 1, "last": 2}
        gateway.journal.add("git", "three")
        assert (await client.line())["params"]["seq"] == 3


async def test_one_that_follows_and_does_not_read_is_cut_and_harms_nobody() -> None:
    async with (
        steered(server("git")) as (gateway, directory),
        peer(directory) as slow,
        peer(directory) as other,
    ):
        assert "result" in await slow.ask("logs", name="git", follow=True)
        for _ in range(600):
            gateway.logs.add("git", "stderr", ["z" * LINE_CHARS_MAX])
            assert "result" in await other.ask("status")
        lines = [line async for line in slow.reader]
        assert json.loads(lines[-1])["method"] == "lagged"
        assert len(lines) < 600


async def test_waiting_ends_with_the_fact_and_says_what_is_missing_at_the_deadline() -> None:
    async with steered(server("git", "warming")) as (gateway, directory):
        async with peer(directory) as client:
            error = (await client.ask("wait", timeout_s=0.01))["error"]
            assert error["code"] == Exit.TIMEOUT
            assert "git is warming" in error["message"]
        async with peer(directory) as client:
            gateway.start(["git"])
            assert "result" in await client.ask("wait", names=["git"])


async def test_a_connection_goes_on_after_a_wait() -> None:
    async with steered(server("git", "warming")) as (_, directory), peer(directory) as client:
        for _ in range(3):
            assert "error" in await client.ask("wait", timeout_s=0.01)
        assert "result" in await client.ask("status")


@pytest.mark.parametrize(
    ("gone", "code"),
    [
        (server("git", "stopped"), Exit.SERVER_NOT_RUNNING),
        (server("git", "error", reason="exit"), Exit.FAILED),
        (server("git", "error", phase="failed", reason="spawn", retry_in_s=60.0), Exit.FAILED),
    ],
)
async def test_waiting_for_what_will_not_come_ends_at_once(gone: ServerStatus, code: Exit) -> None:
    async with steered(gone) as (_, directory), peer(directory) as client:
        error = (await client.ask("wait", names=["git"], timeout_s=50))["error"]
        assert error["code"] == code
        assert error["message"].startswith("git ")


async def test_a_client_that_leaves_ends_its_wait_and_its_following() -> None:
    async with steered(server("git", "warming")) as (gateway, directory):
        for verb in ("wait", "events", "logs") * ControlLimits().connections_max:
            async with peer(directory) as client:
                asked = {"names": ["git"]} if verb == "wait" else {"follow": True}
                named = {"name": "git"} if verb == "logs" else {}
                line = {"jsonrpc": "2.0", "id": 1, "method": verb, "params": {**asked, **named}}
                client.send(json.dumps(line).encode() + b"\n")
        async with peer(directory) as client:
            assert "result" in await client.ask("status")
        assert gateway.journal.since(0) == []


async def test_a_client_that_leaves_before_it_reads_is_no_fault_of_the_gateway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with steered(server("git")) as (gateway, directory):
        token = (directory / "token").read_text()
        hello = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"token": token}}
        for verb in ("events", "status") * 20:
            params = {"follow": True} if verb == "events" else {}
            asked = {"jsonrpc": "2.0", "id": 2, "method": verb, "params": params}
            for number in range(20):
                gateway.journal.add("git", "changed", f"{number}" * 200)
            lines = [json.dumps(one).encode() + b"\n" for one in (hello, asked)]
            await asyncio.to_thread(say_and_leave, directory, b"".join(lines))
        async with peer(directory) as last:
            assert "result" in await last.ask("status")
    assert caplog.records == []


async def test_a_silent_client_is_let_go_before_and_after_its_token() -> None:
    async with (
        steered(limits=ControlLimits(hello_s=0.05, idle_s=0.05)) as (_, directory),
        peer(directory, "") as mute,
        peer(directory) as idle,
    ):
        assert (await mute.line())["error"]["code"] == Exit.TIMEOUT
        assert (await idle.line())["error"]["code"] == Exit.TIMEOUT
        assert await idle.line() == {}


SERVER = """
import os, socket, sys
for _ in range(2):  # below the nursery, and below a worker
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0)
found = [socket.socket(socket.AF_UNIX) for _ in range(60)]
for one in found:
    one.connect(sys.argv[1])
print(found[-1].recv(4096).decode(), flush=True)
sys.stdin.read()
"""


async def test_what_runs_below_a_worker_takes_no_place_of_the_owner() -> None:
    async with steered(server("git")) as (_, directory):
        pipe = asyncio.subprocess.PIPE
        program = [sys.executable, "-c", SERVER, str(directory / "control.sock")]
        process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
        try:
            assert process.stdout is not None
            told = await process.stdout.readline()
            assert b"8 connections of servers to the control socket are open" in told
            async with peer(directory) as owner:
                assert "result" in await owner.ask("status")
        finally:
            await process.communicate(b"")


async def test_one_connection_too_many_is_told_so() -> None:
    async with (
        steered(limits=ControlLimits(connections_max=2)) as (_, directory),
        peer(directory),
        peer(directory),
    ):
        reader, writer = await asyncio.open_unix_connection(directory / "control.sock")
        assert "2 connections" in json.loads(await reader.readline())["error"]["message"]
        writer.close()
