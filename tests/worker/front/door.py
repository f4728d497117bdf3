"""A whole front on a loopback port, over calls whose one worker the test plays."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from metamcp_worker.front.compose import FrontSteps
from metamcp_worker.front.http import App
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import ServerState, SessionRecord
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, NamingSpec

from ..rawhttp import Client, Reply, listener, post
from .offers import offer
from .peers import Peer

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
META: dict[str, Any] = {
    VERSION_KEY: MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
}


OFF = (("s", "v"), ("s", "none"))
"""Tools that are switched off; what the only server does not list would be asked of it."""


class Door:
    """`peer`: the worker of the one server, `s`, whose tools are `t` and `u`. `kept`, `over`: what
    another front would hear of the sessions."""

    def __init__(
        self,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
        endpoints: tuple[EndpointSpec, ...] = (),
    ) -> None:
        served = endpoints or _endpoints("default", "dev")
        self.spec = FrontSpec(version="1.2.3", endpoints=served, hosts=hosts)
        self.stats = Stats()
        self.steps = FrontSteps(self.stats, lambda message, fds: None)
        self.calls = self.steps.calls
        self.steps.configure(self.spec)
        self.kept: list[SessionRecord] = []
        self.over: list[str] = []
        self.app = App(
            self.calls, self.stats, self.spec, on_kept=self.kept.append, on_over=self.over.extend
        )
        self.steps.app = self.app
        self.calls.lists_changed = self.app.lists_changed
        self.server = HttpServer(self.app, request=Exchange, on_refused=self.stats.count_refusal)
        self.peer = Peer()
        self.port = 0
        self._clients: list[Client] = []

    async def open(self) -> None:
        await self.calls.attach("s", 1, self.peer.fd)
        self.offer(offer("t", "u"))
        sock = listener()
        self.port = sock.getsockname()[1]
        await self.server.start([sock])

    def offer(self, catalogue: ServerCatalogue) -> None:
        """What the server offers from now on."""
        self.calls.catalogue("s", catalogue)
        self.calls.server_state(ServerState(server="s", state="ready", listed=True, generation=1))
        self.calls.refresh()

    def serve_only(self, *endpoints: str, sse: bool = True) -> None:
        served = _endpoints(*endpoints, sse=sse)
        spec = FrontSpec(version="1", endpoints=served, hosts=self.spec.hosts)
        self.steps.configure(spec)
        self.calls.refresh()
        self.app.reconfigure(spec)

    async def connect(self, address: str = "127.0.0.1") -> Client:
        client = await Client.connect(self.port, address)
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> Reply:
        """On a connection of its own."""
        return await (await self.connect()).ask(data)

    async def initialize(
        self, protocol: str = LEGACY, path: str = "/mcp", **capabilities: object
    ) -> str:
        """The id of a new session."""
        params = {
            "protocolVersion": protocol,
            "capabilities": capabilities,
            "clientInfo": {"name": "c"},
        }
        reply = await self.ask(legacy("initialize", params, path=path))
        assert reply.status == 200, reply
        return reply.headers["mcp-session-id"]

    async def call(self, session: str, *headers: str, **more: Any) -> Client:
        """A client that has called the tool `t` and waits."""
        client = await self.connect()
        client.send(legacy("tools/call", {"name": "t", **more}, *headers, session=session))
        return client

    async def news(self, session: str, *headers: str) -> Client:
        """A client that reads the stream of a session."""
        client = await self.connect()
        client.send(bodiless("GET", f"Mcp-Session-Id: {session}", *headers))
        head = await client.head()
        assert head.headers["content-type"] == "text/event-stream", head
        return client

    async def answer(self, session: str, question: Any, body: str) -> int:
        """Post the answer to what a client was asked; `body`: its member `result` or `error`, raw.
        The status."""
        raw_id = codec.dump(question["id"]).decode()
        message = f'{{"jsonrpc":"2.0","id":{raw_id},{body}}}'
        return (await self.ask(post(message.encode(), f"Mcp-Session-Id: {session}"))).status

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.app.drain(0.1)
        await self.server.drain(0.1)
        await self.calls.close()
        self.peer.close()


def _endpoints(*names: str, sse: bool = True) -> tuple[EndpointSpec, ...]:
    bare = NamingSpec(style="bare")
    return tuple(
        EndpointSpec(
            name=name, servers=("s",), naming=bare, disabled=OFF, default=name == "default", sse=sse
        )
        for name in names
    )


@asynccontextmanager
async def opened_door(*endpoints: EndpointSpec) -> AsyncGenerator[Door]:
    """`endpoints`: served ones, instead of `default` and `dev`."""
    door = Door(endpoints=endpoints)
    try:
        await door.open()
        yield door
    finally:
        await door.close()


@asynccontextmanager
async def opened_session(
    protocol: str = LEGACY, path: str = "/mcp", **capabilities: object
) -> AsyncGenerator[tuple[Door, str]]:
    """A front, and the id of a session of a client."""
    async with opened_door() as door:
        yield door, await door.initialize(protocol, path, **capabilities)


def modern(
    method: str,
    params: dict[str, Any] | None = None,
    *headers: str,
    id: object = 1,  # noqa: A002 - the protocol's word
    meta: dict[str, Any] | None = None,
    path: str = "/mcp",
) -> bytes:
    """A whole request of revision 2026-07-28. `headers` replace those that it would have."""
    params = params or {}
    name = params.get("name", params.get("uri"))
    defaults = [f"MCP-Protocol-Version: {MODERN}", f"Mcp-Method: {method}"]
    if name is not None:
        defaults.append(f"Mcp-Name: {name}")
    names = {header.partition(":")[0].lower() for header in headers}
    kept = [line for line in defaults if line.partition(":")[0].lower() not in names]
    message = {
        "jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta or META},
    }  # fmt: skip
    return post(codec.dump(message), *kept, *headers, path=path)


def legacy(
    method: str,
    params: dict[str, Any] | None = None,
    *headers: str,
    id: object = 1,  # noqa: A002 - the protocol's word
    session: str = "",
    path: str = "/mcp",
) -> bytes:
    """A request of the handshake era; a notification when `id` is None."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        message["id"] = id
    if params is not None:
        message["params"] = params
    if session:
        headers = (f"Mcp-Session-Id: {session}", *headers)
    return post(codec.dump(message), *headers, path=path)


def bodiless(method: str, *headers: str, path: str = "/mcp") -> bytes:
    """GET, DELETE and the like."""
    return post(b"", *headers, "Content-Type", "Content-Length", method=method, path=path)
