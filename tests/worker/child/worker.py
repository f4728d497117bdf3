"""A child worker in a real process, with this test as its supervisor and its fronts."""

import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, TypeVar

from metamcp_worker.ipc import codec, frame_bytes, messages, packets, server_catalog
from metamcp_worker.ipc.errors import PeerGone
from metamcp_worker.ipc.frames import CallFrame, Error, Frame, Progress, Result, ServerGone
from metamcp_worker.ipc.messages import (
    AttachFront,
    EventCounts,
    LogLines,
    Message,
    RunServer,
    ServerDown,
    ServerReady,
    Stop,
)
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import ServerSpec
from tests import programs

ROOT = Path(__file__).parent.parent.parent.parent
SERVER = (sys.executable, str(ROOT / "tests" / "fakes" / "stdio_server.py"))
RUN = (
    "import os, socket, sys; from metamcp_worker.child import run; "
    "os._exit(run.main(socket.socket(fileno=int(sys.argv[1]))))"
)
WORKER = str(ROOT / "worker")
WAIT_S = 20.0
QUIET_S = 0.01

M = TypeVar("M", bound=Message)


class Front:
    """This test's end of one pipe."""

    def __init__(self, near: Connection) -> None:
        self._near = near
        self._calls = 0
        self.seen: list[Frame] = []
        """What came that was not asked for: progress, notices."""

    def send(self, frame: Frame) -> None:
        self._near.send_bytes(frame_bytes.pack(frame)[4:])

    def call(self, method: str, params: str | bytes = b"{}", **options: Any) -> int:
        """Send a call; its number."""
        self._calls += 1
        raw = params.encode() if isinstance(params, str) else params
        self.send(CallFrame(self._calls, method, raw, **options))
        return self._calls

    def tool(self, name: str, /, **arguments: object) -> int:
        """Call a tool; the number of the call."""
        return self.call("tools/call", codec.dump({"name": name, "arguments": arguments}))

    def read(self) -> Frame:
        assert self._near.poll(WAIT_S), "no frame came"
        return frame_bytes.unpack(self._near.recv_bytes())

    def quiet(self) -> bool:
        """Does nothing come, for a moment?"""
        return not self._near.poll(QUIET_S)

    def answer(self, number: int) -> Result | Error:
        """The answer to the call `number`; it must be the next answer."""
        while True:
            frame = self.read()
            if isinstance(frame, Result | Error):
                assert frame.id == number, (number, frame)
                return frame
            assert not isinstance(frame, ServerGone), frame
            self.seen.append(frame)

    def text(self, number: int) -> str:
        """The text in the result of the call `number`."""
        frame = self.answer(number)
        assert isinstance(frame, Result), frame
        found: str = json.loads(frame.body)["content"][0]["text"]
        return found

    def error(self, number: int) -> dict[str, Any]:
        frame = self.answer(number)
        assert isinstance(frame, Error), frame
        found: dict[str, Any] = json.loads(frame.body)
        return found

    def down(self) -> dict[str, str]:
        """Read up to the news that the server is gone."""
        while not isinstance(frame := self.read(), ServerGone):
            self.seen.append(frame)
        found: dict[str, str] = json.loads(frame.body)
        return found

    def progress(self) -> list[Any]:
        return [json.loads(one.body) for one in self.seen if isinstance(one, Progress)]

    def close(self) -> None:
        self._near.close()


class ChildWorker:
    """One worker; leaving the `with` block ends it. `flags`: of the scripted server, `spec`: other
    fields of its ServerSpec. `logs`, `counts`: what it reported so far."""

    python_path = WORKER
    run = RUN
    """Its program, for what is to happen before it is a worker."""
    folder: Path | None = None
    """In which it is started."""

    def __init__(self, *flags: str, **spec: Any) -> None:
        spec.setdefault("command", (*SERVER, *flags))
        self.spec = ServerSpec(name="fake", **spec)
        self.logs: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self.dropped = 0
        self.counts: dict[str, int] = {}
        self._fronts: list[Front] = []

    def __enter__(self) -> Self:
        self.sock, far = packets.pair()
        self.sock.settimeout(WAIT_S)
        self.process = self._start(far)
        self.tell(RunServer(generation=1, version="0"), packets.blob(codec.dump(self.spec)))
        return self

    def _start(self, far: socket.socket) -> "subprocess.Popen[bytes] | programs.Worker":
        """A fork, unless something is to be as it is not in one."""
        if (self.run, self.python_path, self.folder) == (RUN, WORKER, None):
            return programs.Worker("child", far)
        with far:
            return subprocess.Popen(
                [sys.executable, "-c", self.run, str(far.fileno())],
                pass_fds=[far.fileno()],
                env={**os.environ, "PYTHONPATH": self.python_path},
                cwd=self.folder,
            )

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        for front in self._fronts:
            front.close()
        try:
            self.process.wait(WAIT_S)
        finally:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()

    def tell(self, message: Message, fd: int | None = None) -> None:
        fds = [] if fd is None else [fd]
        packets.send(self.sock, messages.pack(message), fds)
        packets.close_all(fds)

    def read(self, kind: type[M]) -> tuple[M, bytes]:
        """The next message of this kind, with its blob; what else comes is noted."""
        while True:
            data, fds = packets.receive(self.sock)
            message = messages.unpack_from_child(data)
            if isinstance(message, LogLines):
                self.logs[message.stream] += message.lines
                self.dropped += message.dropped
            if isinstance(message, EventCounts):
                for name, n in message.counts.items():
                    self.counts[name] = self.counts.get(name, 0) + n
            blob = b"".join(packets.read_blob(fd) for fd in fds)
            if isinstance(message, kind):
                return message, blob

    def ready(self) -> ServerCatalogue:
        """Wait until the server is ready; its catalogue."""
        return server_catalog.unpack(self.read(ServerReady)[1])

    def down(self) -> ServerDown:
        return self.read(ServerDown)[0]

    def counted(self, counter: str) -> int:
        """Wait until something was counted; how often."""
        while counter not in self.counts:
            self.read(EventCounts)
        return self.counts[counter]

    def front(self, number: int = 1) -> Front:
        near, far = multiprocessing.Pipe()
        with far:
            packets.send(self.sock, messages.pack(AttachFront(front=number)), [far.fileno()])
        front = Front(near)
        self._fronts.append(front)
        return front

    def stop(self, grace_s: float = 5.0) -> ServerDown:
        """Stop it as the supervisor does; how the server ended."""
        self.tell(Stop(grace_s=grace_s))
        down = self.down()
        self.rest()
        assert self.process.wait(WAIT_S) == 0
        return down

    def limit_files(self, count: int) -> int:
        """Let the worker open descriptors below `count` only; the limit before."""
        before = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (count, before[1]))
        return before[0]

    def rest(self) -> None:
        """Read until the worker closes its control socket."""
        with suppress(PeerGone):
            while True:
                packets.receive(self.sock)


def alive(pid: int) -> bool:
    """Does this process run? A zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


@contextmanager
def ready_worker(*flags: str, **spec: Any) -> Generator[tuple[ChildWorker, Front]]:
    """A worker whose server is ready, and a front that is attached to it."""
    with ChildWorker(*flags, **spec) as worker:
        worker.ready()
        yield worker, worker.front()
