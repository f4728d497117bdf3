"""The true process of the engine, and a front that makes its calls from a table of tools."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Raw, json

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.engine_runs import (
    FRAME,
    EngineOn,
    EngineOrder,
    EngineSettings,
    FrontHello,
    HostAsk,
    HostDone,
    HostDrop,
    Method,
    OrderDone,
    OrderProgress,
    RunOwner,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Span
from tests import programs

WAIT_S = 60.0
MAIN = (
    "import socket, sys; from metamcp_worker.engine.run import main;"
    "sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))"
)
OWNER = RunOwner(endpoint="default", name="local")
_read = codec.reader(HostAsk | HostDrop | OrderDone | OrderProgress)
Tool = Callable[[HostAsk], HostDone | None]


def result(value: object, *, failed: bool = False) -> Raw:
    content = [{"type": "text", "text": json.encode(value).decode()}]
    return Raw(json.encode({"content": content, "isError": failed}))


def echo(ask: HostAsk) -> HostDone:
    """A tool that returns its arguments."""
    return HostDone(call=ask.call, result=result(json.decode(ask.arguments)))


class Peer:
    """A connection to the engine. `asked`: requests in their order; `dropped`: those taken back;
    `tools`: by name; `harmless`: names of tools that say so; `trace`: of its orders; `spans`: that
    it got. A thread answers; `fault`: what ended it but for the connection."""

    def __init__(
        self, sock: socket.socket, tools: dict[str, Tool] | None = None, *, front: str = "front",
        harmless: frozenset[str] = frozenset(), owner: RunOwner = OWNER,
    ) -> None:  # fmt: skip
        self.sock = sock
        self.sock.setblocking(True)
        self.tools = tools or {}
        self.harmless = harmless
        self.owner = owner
        self.asked: list[HostAsk] = []
        self.dropped: list[HostDrop] = []
        self.progress: list[OrderProgress] = []
        self.trace = ""
        self.spans: list[Span] = []
        self._done: dict[int, OrderDone] = {}
        self._news = threading.Condition()
        self._number = 0
        self.ended = False
        self.fault: BaseException | None = None
        if front:
            self.send(FrontHello(front=front))
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send a message, which is lost if the engine has ended."""
        body = codec.dump(message)
        with suppress(OSError):
            self.sock.sendall(FRAME.pack(len(body)) + body)

    def order(self, method: Method, **params: object) -> int:
        self._number += 1
        self.send(EngineOrder(
            id=self._number, method=method, owner=self.owner, params=Raw(json.encode(params)),
            progress=True, asks=True, trace=self.trace,
        ))  # fmt: skip
        return self._number

    def done(self, order: int) -> OrderDone | None:
        """The end of an order; None if the engine ended before."""
        with self._news:
            assert self._news.wait_for(lambda: order in self._done or self.ended, WAIT_S)
            if self.fault is not None:
                raise self.fault
            return self._done.get(order)

    def ask(self, method: Method, **params: object) -> tuple[dict[str, Any], OrderDone]:
        found = self.done(self.order(method, **params))
        assert found is not None
        return json.decode(found.structured), found

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self.sock.close()
        if self.fault is not None:
            raise self.fault

    def _live(self) -> None:
        try:
            with suppress(OSError), self.sock.makefile("rb") as stream:
                while len(head := stream.read(FRAME.size)) == FRAME.size:
                    self._heard(_read(stream.read(FRAME.unpack(head)[0])))
        except BaseException as error:
            self.fault = error
            raise
        finally:
            with self._news:
                self.ended = True
                self._news.notify_all()

    def _heard(self, message: HostAsk | HostDrop | OrderDone | OrderProgress) -> None:
        match message:
            case HostAsk(kind="describe") as ask:
                hints = {"annotations": {"readOnlyHint": ask.name in self.harmless}}
                self.send(HostDone(call=ask.call, result=Raw(json.encode(hints))))
            case HostAsk() as ask:
                self.asked.append(ask)
                if (done := self.tools.get(ask.name, echo)(ask)) is not None:
                    self.send(done)
            case OrderDone() as done:
                with self._news:
                    self._done[done.id] = done
                    self._news.notify_all()
            case OrderProgress(span=None) as progress:
                self.progress.append(progress)
            case OrderProgress(span=span):
                assert span is not None
                self.spans.append(span)
            case HostDrop() as drop:
                self.dropped.append(drop)


class Engine:
    """The process of the engine; `start` again after `kill` goes on with the same journal.
    `wrapper`: a command that becomes the engine."""

    def __init__(self, folder: Path, *, wrapper: tuple[str, ...] = (), **members: Any) -> None:
        self.folder = folder
        self._wrapper = wrapper
        self.spec = EngineOn(journal=str(folder / "workflows.db"), **members)
        self._acceptor, self._connector = packets.acceptor()
        self.peers: list[Peer] = []
        self.start()

    def start(self) -> None:
        self._control, theirs = packets.pair()
        self.process = self._run(theirs)
        blob = packets.blob(codec.dump(self.spec))
        fds = [blob, self._acceptor.fileno()]
        packets.send(self._control, messages.pack(EngineSettings()), fds)
        os.close(blob)

    def _run(self, sock: socket.socket) -> "subprocess.Popen[bytes] | programs.Worker":
        if not self._wrapper:
            return programs.Worker("engine", sock)
        with sock:
            return subprocess.Popen(
                [*self._wrapper, sys.executable, "-c", MAIN, str(sock.fileno())],
                pass_fds=[sock.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def lose_supervisor(self) -> None:
        """End the connection to the supervisor, as its death does."""
        self._control.close()

    def replace(self) -> None:
        """Tell the engine to end at once, as an upgrade does."""
        packets.send(self._control, messages.pack(messages.Stop(grace_s=0)))
        self.process.wait(WAIT_S)

    def kill(self) -> None:
        """Kill the engine, and wait until all that it sent was heard."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._control.close()
        for peer in self.peers:
            peer.close()

    def peer(self, tools: dict[str, Tool] | None = None, **members: Any) -> Peer:
        self.peers.append(Peer(packets.connect(self._connector), tools, **members))
        return self.peers[-1]

    def stop(self) -> int:
        self._control.close()
        code = self.process.wait(WAIT_S)
        for peer in self.peers:
            peer.close()
        self._acceptor.close()
        self._connector.close()
        return code


@contextmanager
def engine(folder: Path, **members: Any) -> Generator[Engine, None, None]:
    running = Engine(folder, **members)
    try:
        yield running
    finally:
        assert running.stop() in (0, -signal.SIGKILL)


def by_name(peers: list[Peer]) -> Counter[str]:
    """Number of calls of each tool."""
    return Counter(ask.name for peer in peers for ask in peer.asked)
