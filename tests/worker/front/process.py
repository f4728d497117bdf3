"""A front as a process of its own, and the supervisor's end of everything that it needs."""

import http.client
import multiprocessing
import os
import socket
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from metamcp_worker.ipc import codec, frame_bytes, messages, packets, server_catalog
from metamcp_worker.ipc.frames import CallFrame, Frame
from metamcp_worker.ipc.messages import (
    AttachServer,
    Catalogue,
    Listen,
    Message,
    ServeOn,
    ServerState,
)
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec
from tests import programs

from .offers import endpoint, offer
from .peers import WAIT_S

M = TypeVar("M", bound=Message)


class Front:
    """One front process."""

    def __init__(self) -> None:
        self.sock, theirs = packets.pair()
        self.sock.settimeout(WAIT_S)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.workers: list[Worker] = []
        self.blob = b""
        self.listening = False
        self.process: subprocess.Popen[bytes] | programs.Worker = programs.Worker("front", theirs)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        packets.send(self.sock, messages.pack(message), fds)
        packets.close_all(fds)

    def serve(self, *endpoints: EndpointSpec) -> None:
        listener = os.dup(self.listener.fileno())
        self.send(ServeOn(front=0), [spec(*endpoints or (endpoint("git"),)), listener])

    def listen(self) -> None:
        """All was told: accept. Told once, with the first look at what the front does."""
        if not self.listening:
            self.listening = True
            self.send(Listen())

    def offer(self, server: str, *tools: str, state: str = "ready") -> None:
        found = packets.blob(server_catalog.pack(offer(*tools)))
        self.send(Catalogue(server=server, list_hash=""), [found])
        self.send(ServerState(server=server, state=state, listed=True))

    def attach(self, server: str, generation: int = 1) -> "Worker":
        near, far = multiprocessing.Pipe()
        with near:
            self.send(AttachServer(server=server, generation=generation), [os.dup(near.fileno())])
        self.workers.append(Worker(far))
        return self.workers[-1]

    def heard(self, kind: type[M]) -> M:
        """The next message of this kind; its descriptor, if any, is read into `blob`."""
        self.listen()
        while True:
            data, fds = packets.receive(self.sock)
            message = messages.unpack_from_front(data)
            if isinstance(message, kind):
                self.blob = packets.read_blob(fds.pop()) if fds else b""
                return message
            packets.close_all(fds)

    def post(self, method: str, **params: object) -> "Posted":
        self.listen()
        return self.early(method, **params)

    def early(self, method: str, **params: object) -> "Posted":
        """A request that comes before the front may accept it: the listener's queue holds it."""
        return Posted(self.listener.getsockname(), method, params)

    def tools(self) -> list[str]:
        """The names that a client sees."""
        return [tool["name"] for tool in self.post("tools/list").answer()["result"]["tools"]]

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.sock.close()
        self.ended()
        self.listener.close()
        for worker in self.workers:
            worker.close()


class Worker:
    """The far end of a pipe to the front."""

    def __init__(self, far: Connection) -> None:
        self._far = far

    def call(self) -> CallFrame:
        assert self._far.poll(WAIT_S), "the front sent nothing"
        frame = frame_bytes.unpack(self._far.recv_bytes())
        assert isinstance(frame, CallFrame)
        return frame

    def write(self, frame: Frame) -> None:
        self._far.send_bytes(frame_bytes.pack(frame)[4:])

    def close(self) -> None:
        self._far.close()


class Posted:
    """A request on its way; `answer` waits for what comes back."""

    def __init__(self, address: tuple[str, int], method: str, params: dict[str, object]) -> None:
        meta: dict[str, object] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body: dict[str, object] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }
        if "name" in params:
            headers["Mcp-Name"] = str(params["name"])
        self._connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
        self._connection.request("POST", "/metamcp/default/mcp", codec.dump(body), headers)

    def answer(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = codec.value(self._connection.getresponse().read())
            return found
        finally:
            self._connection.close()


def spec(*endpoints: EndpointSpec) -> int:
    """A blob with what a front serves."""
    found = FrontSpec(version="1", endpoints=endpoints, hosts=("127.0.0.1",), call_hold_s=WAIT_S)
    return packets.blob(codec.dump(found))


@contextmanager
def front() -> Generator[Front]:
    found = Front()
    try:
        yield found
    finally:
        found.close()
