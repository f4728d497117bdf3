"""The true process of the sandboxes with the true Deno, and a front that answers its calls."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Raw, json

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.code_runs import (
    CodeFigures,
    CodeLimits,
    EndRun,
    HostCall,
    HostReply,
    Language,
    RunEnded,
    StartRun,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import PeerGone
from metamcp_worker.ipc.messages import Heartbeat
from metamcp_worker.sandbox.code_run import FrameBuffer, frame
from tests.waiting import until

WAIT_S = 60.0
MAIN = (
    "import socket, sys; from metamcp_worker.sandbox.run import main;"
    "sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))"
)
DENO = shutil.which("deno", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "deno"
_read = codec.reader(HostCall | RunEnded)
_read_news = codec.reader(Heartbeat | CodeFigures)

Answer = Callable[[HostCall], HostReply | None]


def text_result(text: str) -> Raw:
    return Raw(json.encode({"content": [{"type": "text", "text": text}]}))


def echo(call: HostCall) -> HostReply:
    """A tool that returns its arguments."""
    return HostReply(
        run=call.run, call=call.call, result=text_result(bytes(call.arguments).decode())
    )


class Front:
    """A connection of a front. `calls`: all that its runs made."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setblocking(True)
        self._frames = FrameBuffer(64 * 1024 * 1024)
        self._messages: list[HostCall | RunEnded] = []
        self._ended: dict[int, RunEnded] = {}
        self._run = 0
        self.calls: list[HostCall] = []

    def send(self, message: Message) -> None:
        self.sock.sendall(frame(codec.dump(message)))

    def start(
        self, code: str, *, language: Language = "typescript", args: object = None,
        limits: CodeLimits | None = None,
    ) -> int:  # fmt: skip
        self._run += 1
        self.send(StartRun(
            run=self._run, code=code, language=language, limits=limits or CodeLimits(),
            args=Raw(json.encode({} if args is None else args)),
        ))  # fmt: skip
        return self._run

    def message(self, within_s: float = WAIT_S) -> HostCall | RunEnded | None:
        """The next message, None if none came in time."""
        end = time.monotonic() + within_s
        while not self._messages:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                return None
            data = self.sock.recv(1 << 20)
            assert data, "the process of the sandboxes has closed the connection"
            self._messages += [_read(body) for body in self._frames.feed(data)]
        return self._messages.pop(0)

    def end(
        self, run: int, answer: Answer = echo, meanwhile: Callable[[], None] = lambda: None
    ) -> RunEnded:
        """Answer calls until this run has ended. `meanwhile`: done every few milliseconds."""
        deadline = time.monotonic() + WAIT_S
        while run not in self._ended:
            assert time.monotonic() < deadline, "the run does not end"
            match self.message(0.005):
                case HostCall() as call:
                    self.calls.append(call)
                    if (reply := answer(call)) is not None:
                        self.send(reply)
                case RunEnded() as ended:
                    self._ended[ended.run] = ended
                case _:
                    meanwhile()
        return self._ended.pop(run)

    def run(
        self, code: str, *, language: Language = "typescript", args: object = None,
        limits: CodeLimits | None = None, answer: Answer = echo,
    ) -> RunEnded:  # fmt: skip
        return self.end(self.start(code, language=language, args=args, limits=limits), answer)

    def kill(self, run: int) -> None:
        self.send(EndRun(run=run))

    def close(self) -> None:
        self.sock.close()


class Sandboxes:
    """The process of the sandboxes. `figures`: its last news."""

    def __init__(self, **members: object) -> None:
        self._members = members
        self._fronts: list[Front] = []
        self._acceptor, self._connector = packets.acceptor()
        self._control, theirs = packets.pair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        theirs.close()
        self.figures = CodeFigures(counts={})
        self.order(self._acceptor.fileno())

    def order(self, *fds: int, **members: object) -> None:
        """Send the order to begin, or to go on with other members."""
        self._members |= members
        packets.send(self._control, codec.dump({"type": "CodeOn", **self._members}), fds)

    def front(self) -> Front:
        self._fronts.append(Front(packets.connect(self._connector)))
        return self._fronts[-1]

    def news(self, fact: Callable[[CodeFigures], bool], what: str) -> CodeFigures:
        """Figures of which this is true."""

        def heard() -> CodeFigures | None:
            while select.select([self._control], [], [], 0)[0]:
                found = _read_news(packets.receive(self._control)[0])
                if isinstance(found, CodeFigures):
                    self.figures = found
            return self.figures if fact(self.figures) else None

        return until(heard, what) or self.figures

    def leave(self) -> None:
        """End the control socket, as a supervisor does that wants this process no longer."""
        self._control.close()

    def stop(self) -> int:
        for front in self._fronts:
            front.close()
        with suppress(OSError, PeerGone):
            packets.send(self._control, messages.pack(messages.Stop(grace_s=0)))
        self._control.close()
        self._acceptor.close()
        self._connector.close()
        return self.process.wait(WAIT_S)


@contextmanager
def sandboxes(**members: object) -> Generator[Sandboxes, None, None]:
    running = Sandboxes(**{"deno": DENO, "runs_max": 4, **members})
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.kill(running.process.pid, signal.SIGCONT)
        code = running.stop()
        assert code in (0, -signal.SIGKILL)


def denos(parent: int) -> dict[int, str]:
    """Pids of the sandboxes of this process, with their status by the kernel."""
    found: dict[int, str] = {}
    for pid in _children(parent):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if status.startswith("Name:\tdeno"):  # and not a fork that is to become one
                found[pid] = status
    return found


def peak_kb(parent: int) -> int:
    """The most memory that one of the sandboxes of this process has had so far, all of its own
    processes together."""
    return max((_peak_kb(pid) for pid in _children(parent)), default=0)


def _peak_kb(pid: int) -> int:
    lines: list[str] = []
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    own = sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return own + sum(map(_peak_kb, _children(pid)))


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
