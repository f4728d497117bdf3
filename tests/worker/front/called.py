"""Calls on the loop, over servers whose workers the test plays."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from metamcp_worker.catalog.views import View
from metamcp_worker.front.compose import FrontSteps
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.frames import CallFrame, Error, Result
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec

from .callers import answer_of
from .offers import endpoint
from .peers import Peer


def request(
    method: str, params: bytes, *, meta: bytes = b"{}", caller: bytes = b"", modern: bool = True
) -> McpRequest:
    return McpRequest(method, codec.level(params), codec.level(meta), caller, modern)


class Front:
    """Calls over these servers, all of them attached to a peer."""

    def __init__(self, endpoints: tuple[EndpointSpec, ...]) -> None:
        self.stats = Stats()
        self._endpoints = endpoints
        self.steps = FrontSteps(self.stats, lambda message, fds: None)
        self.calls = self.steps.calls
        self.steps.configure(FrontSpec(version="1", endpoints=endpoints, hosts=()))
        self.peers: dict[str, Peer] = {}
        self._peers: list[Peer] = []

    async def add(self, server: str, catalogue: ServerCatalogue) -> None:
        self.calls.catalogue(server, catalogue)
        self.calls.server_state(ServerState(server=server, state="ready", listed=True))
        await self.attach(server, 1)
        self.calls.refresh()

    async def attach(self, server: str, generation: int) -> Peer:
        """A worker of this generation; it is the one in `peers` from now on."""
        peer = self.peers[server] = Peer()
        self._peers.append(peer)
        await self.calls.attach(server, generation, peer.fd)
        return peer

    def retry(self, retries: dict[str, str]) -> None:
        """Configure it anew, with these policies of servers."""
        self.calls.configure(
            FrontSpec(version="1", endpoints=self._endpoints, hosts=(), retries=retries)
        )

    @property
    def view(self) -> View:
        view = self.calls.view("default")
        assert view is not None
        return view

    async def sent(self, server: str, asked: McpRequest) -> CallFrame:
        """Start the request and see what `server` gets."""
        self.calls.start(self.view, asked, None)
        return await self.peers[server].call()

    async def answered(
        self, server: str, asked: McpRequest, body: bytes, code: int = 0
    ) -> CallAnswer:
        """Start the request, let `server` answer, and see what comes back."""
        call = self.calls.start(self.view, asked, None)
        number = (await self.peers[server].call()).id
        self.peers[server].write(Error(number, body) if code else Result(number, body))
        return await answer_of(call)

    def refusal(self, asked: McpRequest) -> ProtocolError:
        with pytest.raises(ProtocolError) as refusal:
            self.calls.start(self.view, asked, None)
        return refusal.value

    async def close(self) -> None:
        await self.calls.close()
        await self.steps.close()
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def opened_front(
    *endpoints: EndpointSpec, **offers: ServerCatalogue
) -> AsyncGenerator[Front]:
    front = Front(endpoints or (endpoint(*offers),))
    for server, catalogue in offers.items():
        await front.add(server, catalogue)
    try:
        yield front
    finally:
        await front.close()
