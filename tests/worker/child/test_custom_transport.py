"""Transports that a package brings: the documented example, and code that does not behave."""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.child import custom_transport as module
from metamcp_worker.child.actions import CancelRequest
from metamcp_worker.child.custom_transport import Connect, CustomTransport, custom
from metamcp_worker.child.transport import SpawnFailed
from metamcp_worker.ipc.envelope import OverlongLine, ScannedId
from metamcp_worker.ipc.spec import ServerSpec
from tests.worker.child.far import Ear
from tests.worker.child.worker import ROOT, ChildWorker
from tests.worker.rawhttp import until

DOC = (ROOT / "docs" / "transports.md").read_text()
FAKE = ROOT / "tests" / "fakes" / "unix_server.py"
NEWS = b'{"jsonrpc":"2.0","method":"n"}'


def example(folder: Path) -> Path:
    """Install the package of the document; where to."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", DOC, re.DOTALL):
        (folder / name).write_text(text)
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    offline = ["--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "--target", str(target), str(folder)], check=True)
    return target


@contextlib.contextmanager
def server(path: Path, *flags: str) -> Generator[subprocess.Popen[bytes]]:
    """The scripted server behind this socket."""
    command = [sys.executable, str(FAKE), str(path), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.promise("M14")
def test_the_documented_transport_works_as_a_package(tmp_path: Path) -> None:
    class Worker(ChildWorker):
        python_path = f"{ROOT / 'worker'}:{example(tmp_path)}"

    place: dict[str, Any] = {"cwd": str(tmp_path), "env": {"HOME": "/"}}
    spec = {"command": (), "transport": "unix", "options": {"path": "s.sock"}, **place}
    with server(tmp_path / "s.sock") as process, Worker(**spec) as worker:
        assert len(worker.ready().tools) > 1
        front = worker.front()
        assert front.text(front.tool("echo", text="hi")) == "hi"
        assert front.text(front.tool("echo", text="x" * 1_000_000)) == "x" * 1_000_000
        process.kill()
        down = worker.down()
        assert (down.reason, "connection" in down.message) == ("exit", True)


class Script:
    """A channel that brings what it is given, and keeps what it is sent."""

    def __init__(self, *messages: Any, end: bool = False) -> None:
        self.sent: list[bytes] = []
        self.taken = 0
        self._messages = messages
        self._end = end

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for message in self._messages:
            self.taken += 1
            yield message
        if not self._end:
            await asyncio.Event().wait()


def connecting(channel: Any) -> Connect:
    @contextlib.asynccontextmanager
    async def connect(_: Mapping[str, str]) -> AsyncGenerator[Any]:
        yield channel

    return connect


@contextlib.asynccontextmanager
async def using(connect: Connect, **spec: Any) -> AsyncGenerator[tuple[CustomTransport, Ear]]:
    ear = Ear()
    found = CustomTransport(ServerSpec(name="odd", transport="odd", **spec), connect, ear)
    try:
        yield found, ear
    finally:
        await found.stop()
        await found.close()


async def lost(connect: Connect, **spec: Any) -> tuple[str, str]:
    """Why a transport of this kind is lost."""
    async with using(connect, **spec) as (found, ear):
        await ear.until(lambda: ear.losses)
        assert found.is_lost
        assert not found.write(b"{}\n")
        return ear.losses[0].reason, ear.losses[0].message


async def test_messages_cross_one_after_the_other_and_the_context_is_left() -> None:
    script = Script(b'{\n"jsonrpc":"2.0","method":"n"}\n', NEWS)
    log: list[Mapping[str, str] | str] = []

    @contextlib.asynccontextmanager
    async def connect(server: Mapping[str, str]) -> AsyncGenerator[Script]:
        log.append(server)
        yield script
        log.append("left")

    def left() -> bool:
        return log == [{"path": "p", "name": "odd"}]

    async with using(connect, options={"path": "p", "name": "other"}) as (found, ear):
        await ear.until(lambda: len(ear.raw) == 2)
        assert ear.raw == [b'{ "jsonrpc":"2.0","method":"n"}', NEWS]
        assert ear.messages[0][1:] == (None, 0)
        assert found.write(b"1\n")
        assert found.drop(CancelRequest(b"7", b"2\n"))
        await until(lambda: script.sent == [b"1", b"2"])
        assert not found.stuck()
        assert (found.pid, found.exit, found.last_words) == (0, None, "")
    assert left()


def failing(error: Exception | None) -> Connect:
    """It raises this instead of connecting, or never ends."""

    @contextlib.asynccontextmanager
    async def connect(_: Mapping[str, str]) -> AsyncGenerator[Any]:
        if error is not None:
            raise error
        yield await asyncio.Event().wait()

    return connect


def no_context(_: Mapping[str, str]) -> Any:
    return 7


class Mute(Script):
    async def send(self, message: bytes) -> None:
        raise OSError("no line")


@pytest.mark.parametrize(
    ("connect", "reason", "words"),
    [
        (failing(OSError("nobody there")), "exit", "failed with OSError: nobody there"),
        (failing(TimeoutError("slow")), "exit", "TimeoutError: slow"),
        (no_context, "exit", "failed with TypeError"),
        (connecting(7), "exit", "failed with TypeError"),
        (connecting(Script(NEWS, end=True)), "exit", "it ended the connection"),
        (connecting(Script("text")), "protocol", "a message that is str, not bytes"),
    ],
)
async def test_code_that_does_not_behave_ends_its_server_with_a_reason(
    connect: Connect, reason: str, words: str
) -> None:
    found = await lost(connect)
    assert found[0] == reason
    assert words in found[1]


async def test_a_message_above_the_limit_is_passed_over() -> None:
    async with using(connecting(Script(b'{"id":7,"result":1}', NEWS)), message_bytes=16) as (
        _,
        ear,
    ):
        await ear.until(lambda: ear.passed)
        assert ear.passed[0] == OverlongLine(19, ScannedId(b"7", answer=True))


async def test_code_that_does_not_connect_in_time_is_not_waited_for() -> None:
    assert (await lost(failing(None), start_timeout_s=0.05))[0] == "start_timeout"


async def test_what_cannot_be_sent_ends_the_server() -> None:
    async with using(connecting(Mute())) as (found, ear):
        assert found.write(b"{}\n")
        await ear.until(lambda: ear.losses)
        assert "could not send: OSError: no line" in ear.losses[0].message


async def test_a_pause_takes_no_more_messages() -> None:
    script = Script(*[NEWS] * 10)
    async with using(connecting(script)) as (found, ear):
        found.pause()
        await ear.until(lambda: ear.raw)
        assert (len(ear.raw), script.taken) == (1, 1)
        found.resume()
        await ear.until(lambda: len(ear.raw) == 10)


class Deaf(Script):
    async def send(self, message: bytes) -> None:
        await asyncio.Event().wait()


async def test_messages_that_are_not_taken_are_not_piled_up() -> None:
    async with using(connecting(Deaf())) as (found, _):
        count = module.QUEUE_BYTES_MAX // 1_000_000 + 2
        sent = [found.write(b"x" * 1_000_000) for _ in range(count)]
        assert sent == [True] * (count - 1) + [False]
        assert found.stuck()


async def test_code_that_does_not_end_is_left_behind_with_a_warning() -> None:
    release = asyncio.Event()

    class Stubborn(Script):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            yield NEWS
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await release.wait()

    async with using(connecting(Stubborn()), stop_grace_s=0.05) as (found, ear):
        await ear.until(lambda: ear.raw)
        await found.stop()
        (log,) = found.take_log_lines()
        assert "did not end within 0.05 s" in log.lines[0]
        release.set()


async def test_killing_it_waits_for_its_end() -> None:
    ear = Ear()
    found = CustomTransport(ServerSpec(name="odd"), connecting(Script(NEWS)), ear)
    await ear.until(lambda: ear.raw)
    found.tick()
    await found.close()
    assert found.is_lost
    assert ear.losses == []


@contextlib.contextmanager
def installed(folder: Path, code: str) -> Generator[None]:
    """A package whose entry point `odd` is `connect` in this code."""
    (folder / "odd_transport.py").write_text(code)
    info = folder / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{module.GROUP}]\nodd = odd_transport:connect\n")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("odd_transport", None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere_at_all", "cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("", "cannot be loaded: AttributeError"),
        ("connect = 7", "is of the type int, not a function"),
    ],
)
def test_a_transport_that_cannot_be_loaded_says_why(tmp_path: Path, code: str, words: str) -> None:
    with installed(tmp_path, code), pytest.raises(SpawnFailed, match=words):
        custom(ServerSpec(name="odd", transport="odd"), Ear())


def test_a_transport_that_is_not_installed_names_those_that_are(tmp_path: Path) -> None:
    with installed(tmp_path, ""), pytest.raises(SpawnFailed, match="'none'; there are: odd"):
        custom(ServerSpec(name="odd", transport="none"), Ear())


def test_a_folder_that_is_not_there_is_told() -> None:
    with pytest.raises(SpawnFailed, match="cannot start in /nowhere: No such file"):
        custom(ServerSpec(name="odd", transport="odd", cwd="/nowhere"), Ear())
