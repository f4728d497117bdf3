"""The console's pages over HTTP, in front of a small gateway with its real control socket."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2

from metamcp_supervisor.console.site import SEND_S, ConsoleSite
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import ConsoleOn
from metamcp_supervisor.verbs import ServerStatus
from metamcp_worker.http.requests import Handler
from metamcp_worker.http.serve import HttpServer
from tests.supervisor.small_gateway import SmallGateway, steered

OWN = {"sec-fetch-site": "same-origin"}
"""Header by which a browser says that a page of the console asks."""


class Browser:
    """A browser that has opened a page of the console. `directory`: of the gateway at run time;
    `token`: of its session."""

    def __init__(self, base: str, gateway: SmallGateway, directory: str) -> None:
        self.base = base
        self.directory = directory
        self.gateway = gateway
        self.http = httpx2.AsyncClient(base_url=base, timeout=20.0)
        self.token = ""

    async def login(self, role: Role = Role.ADMIN) -> None:
        link = self.gateway.sessions.link(role)
        answer = await self.http.post("/login", json={"link": link}, headers=OWN)
        assert answer.status_code == 200, answer.text
        self.token = answer.json()["token"]

    @property
    def headers(self) -> dict[str, str]:
        return {**OWN, "authorization": f"Bearer {self.token}"}

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(f"/f{path}", headers=self.headers)

    async def post(self, path: str, **form: str | list[str]) -> httpx2.Response:
        return await self.http.post(f"/f{path}", data=form, headers=self.headers)


def site_of(directory: str, send_s: float = SEND_S) -> ConsoleSite:
    """The console of the gateway of this directory."""
    on = ConsoleOn(runtime_dir=directory, version="9.9", hosts=("127.0.0.1", "localhost"))
    return ConsoleSite(on, send_s=send_s)


@asynccontextmanager
async def serve(site: Handler) -> AsyncGenerator[str]:
    """Serve a console, and yield its URL."""
    sock = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(site)
    await server.start([sock])
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def opened(*servers: ServerStatus) -> AsyncGenerator[Browser]:
    async with (
        steered(*servers) as (gateway, directory),
        serve(site_of(str(directory))) as base,
    ):
        browser = Browser(base, gateway, str(directory))
        try:
            yield browser
        finally:
            await browser.http.aclose()
