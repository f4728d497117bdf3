"""What becomes of calls when a remote server refuses, breaks or is away."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metamcp_worker.child.streamable_http import remote
from metamcp_worker.child.transport import SpawnFailed
from metamcp_worker.ipc.spec import ServerSpec
from tests.fakes.http_server import running
from tests.worker.child.far import Ear, Far, far, met_server
from tests.worker.rawhttp import until
from tests.worker.scripted import Wire, serving

pytestmark = pytest.mark.process

FAKE = Path(__file__).parent.parent.parent / "fakes" / "http_server.py"


@contextmanager
def process(*flags: str, port: int = 0) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """The scripted server as a process, and its URL."""
    command = [sys.executable, str(FAKE), "--port", str(port), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield server, server.stdout.readline().decode().strip()
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def loss(there: Far) -> tuple[str, str]:
    """Wait until the server is lost: the reason and the message."""
    await there.ear.until(lambda: there.ear.losses)
    (found,) = there.ear.losses
    return found.reason, found.message


async def test_a_url_that_is_none_is_refused_before_anything_is_tried() -> None:
    for url in ("ftp://x", "http://", "http://u:p@x/"):
        with pytest.raises(SpawnFailed, match="cannot connect to far"):
            remote(ServerSpec(name="far", url=url), "1.0", Ear())


@pytest.mark.promise("M18")
async def test_a_server_that_is_not_there_is_lost_with_a_clear_reason() -> None:
    async with far(f"http://127.0.0.1:{free_port()}/mcp") as there:
        found = await there.discover()
        assert found["failed"]["code"] == -10001
        assert found["failed"]["data"]["may_have_run"] is False
        assert there.ear.losses == []  # The next word may still be heard.
        there.send("initialize", {}, own=True)
        reason, message = await loss(there)
        assert reason == "exit"
        assert "Connection refused" in message or "refused" in message
        assert there.transport.is_lost
        assert not there.drop(b"1")


@pytest.mark.parametrize(
    ("transport", "status", "reason", "words"),
    [
        ("auto", 401, "authorization", "set `headers` or `oauth`"),
        ("auto", 403, "authorization", "check `headers` or `oauth`"),
        ("auto", 407, "authorization", "HTTP 407"),
        ("auto", 405, "protocol", "HTTP 405 Method Not Allowed"),
        ("auto", 429, "exit", "HTTP 429"),
        ("auto", 500, "exit", "HTTP 500"),
        ("auto", 503, "exit", "HTTP 503 Service Unavailable"),
        ("sse", 404, "protocol", "HTTP 404"),
        ("sse", 503, "exit", "HTTP 503"),
    ],
)
async def test_a_handshake_that_is_refused_ends_it_with_what_to_do(
    transport: str, status: int, reason: str, words: str
) -> None:
    async with running() as (server, url):
        place = url.replace("/mcp", "/sse") if transport == "sse" else url
        async with far(place, transport=transport) as there:
            server.status = status
            refusal = (await there.discover())["failed"]["data"]
            assert refusal.get("status", status) == status
            there.send("initialize", {}, own=True)
            (lost, message) = await loss(there)
            assert (lost, words in message) == (reason, True)
            assert message.count("HTTP 405") == (2 if status == 405 else 0), "both ways are told"


BUSY = b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
NO_TLS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("transport", ["auto", "sse"])
@pytest.mark.parametrize(
    ("scheme", "answer", "reason", "words", "retry_after_s"),
    [
        ("http:", BUSY, "exit", "HTTP 503", 7.0),
        ("https:", NO_TLS, "tls", "it does not speak TLS there", 0.0),
    ],
    ids=["wants to be left alone", "without the TLS of its URL"],
)
async def test_a_server_is_lost_for_its_reason_and_for_the_time_that_it_names(
    transport: str, scheme: str, answer: bytes, reason: str, words: str, retry_after_s: float
) -> None:
    async def script(wire: Wire) -> None:
        if scheme == "https:" or await wire.request():
            await wire.write(answer)

    async with (
        serving(script) as url,
        far(url.replace("http:", scheme), transport=transport) as there,
    ):
        there.send("initialize", {}, own=True)
        assert words in (await loss(there))[1]
        told = [(one.reason, one.retry_after_s) for one in there.ear.losses]
        assert told == [(reason, retry_after_s)]


@pytest.mark.parametrize("status", [429, 500, 502])
async def test_a_refused_call_is_an_error_of_that_call_only(status: int) -> None:
    async with met_server() as (server, there):
        server.status = status
        found = await there.outcome(there.call("echo", text="hi"))
        assert found["failed"]["message"].startswith(f"server 'far' answered HTTP {status}")
        assert found["failed"]["data"]["may_have_run"] is (status >= 500)
        server.status = 0
        assert await there.text(there.call("echo", text="hi")) == "hi"
        assert there.ear.losses == []


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
HALF = b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"jsonrpc"'
HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: 68000000\r\n\r\n{"
SHORT = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n"
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
)
SHUT = b""


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (HTML, -32603, "not JSON-RPC"),
        (HALF, -10001, "broke in the middle"),
        (HUGE, -10004, "68000000 bytes, the limit is 67108864"),
        (SHORT, -32603, "it does not end within the 30 bytes that its Content-Length says"),
        (SHUT, -10001, "did not answer"),
    ],
)
async def test_a_broken_answer_is_an_error_that_says_how(
    answer: bytes, code: int, words: str
) -> None:
    async def script(wire: Wire) -> None:
        if await wire.request():
            await wire.write(answer)

    async with serving(script) as url, far(url) as there:
        found = await there.ask("tools/list")
        assert found["failed"]["code"] == code
        assert words in found["failed"]["message"]
        assert found["failed"]["data"]["may_have_run"] is True


async def test_noise_on_the_stream_of_a_call_is_logged_and_passed_over() -> None:
    async def script(wire: Wire) -> None:
        if await wire.request():
            answer = b'data: {"jsonrpc":"2.0","id":"1","result":{"a": 1.0}}\n\n'
            await wire.stream(b"data: noise\n\nevent: ping\ndata: {}\n\ndata: {}\n\n", answer)

    async with serving(script) as url, far(url) as there:
        found = await there.ask("tools/list")
        assert found == {"jsonrpc": "2.0", "id": 1, "result": {"a": 1.0}}
        (log,) = there.transport.take_log_lines()
        assert log.lines == ("noise", "{}")


async def test_a_redirect_to_another_origin_is_not_followed() -> None:
    async with running() as (other, elsewhere):

        async def script(wire: Wire) -> None:
            while await wire.request():
                await wire.answer(b"", f"Location: {elsewhere}", status="307 X")

        async with serving(script) as url, far(url, headers={"X-Key": "secret"}) as there:
            found = await there.discover()
            assert "another origin" in found["failed"]["message"]
        assert other.seen == []


@pytest.mark.process
@pytest.mark.promise("M75")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_that_is_killed_in_the_middle_of_calls_fails_them_and_is_lost(
    era: str,
) -> None:
    with process("--era", era, "--answer", "events") as (server, url):
        async with far(url) as there:
            await there.discover()
            if era == "legacy":
                await there.initialize()
            keys = [there.call("wait") for _ in range(8)]
            await there.text(there.call("echo", text="hi"))
            os.kill(server.pid, signal.SIGKILL)
            for key in keys:
                found = await there.outcome(key)
                assert found["failed"]["code"] == -10001
                assert found["failed"]["data"]["may_have_run"] is True
            assert (await loss(there))[0] == "exit"


@pytest.mark.process
@pytest.mark.promise("M11")
async def test_a_server_that_restarts_under_load_runs_each_call_at_most_once(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "calls"
    flags = ("--era", "legacy", "--journal", str(journal))
    port = free_port()
    with process(*flags, port=port) as (first, url):
        async with far(url) as there:
            await there.initialize()
            keys = [there.call("echo", text=f"a{number}") for number in range(50)]
            await asyncio.gather(*(there.text(key) for key in keys))
            first.kill()
            first.wait()
            with process(*flags, port=port):
                more = [there.call("echo", text=f"b{number}") for number in range(50)]
                found = await asyncio.gather(*(there.outcome(key) for key in more))
            assert [one for one in found if "failed" in one] == []
            assert there.ear.losses == []
    lines = journal.read_text().split()
    assert sorted(lines) == sorted([f"a{n}" for n in range(50)] + [f"b{n}" for n in range(50)])


async def test_calls_that_meet_a_closed_door_were_not_run_and_a_look_decides() -> None:
    async with running() as (_, url), far(url) as there:
        await there.discover()
    async with far(url) as there:
        async with running(int(url.split(":")[2].split("/")[0])):
            await there.discover()
            await there.text(there.call("echo", text="hi"))
        found = await there.outcome(there.call("echo", text="away"))
        assert found["failed"]["code"] == -10001
        assert (await loss(there))[0] == "exit"


async def test_more_than_the_server_takes_is_not_piled_up() -> None:
    async def script(wire: Wire) -> None:
        await wire.closed()

    async with serving(script) as url, far(url) as there:
        assert not there.transport.stuck()
        keys = [there.call("echo", text="x" * 15_000_000) for _ in range(5)]
        await until(there.transport.stuck)
        for key in keys:
            there.drop(key)
        await until(lambda: not there.transport.stuck())


async def test_a_mistake_of_ours_is_the_end_of_the_connection_and_not_silence() -> None:
    class Clumsy(Ear):
        def on_messages(
            self, lines: list[bytes], stream: bytes | None = None, via: int = 0
        ) -> None:
            raise ValueError("oh")

        def on_request_failed(self, key: bytes, error: bytes) -> None:
            raise ValueError("no")

    async with running() as (server, url):
        for status, word in ((0, "oh"), (502, "no")):
            server.status = status
            ear = Clumsy()
            transport = remote(ServerSpec(name="far", url=url), "1.0", ear)
            there = Far(ear, transport)
            there.send("server/discover", own=True)
            assert word in (await loss(there))[1]
            await transport.close()
