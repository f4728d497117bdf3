"""A person with a browser, and the gateway's side of an authorization, in a test's own loop."""

import asyncio
import base64
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth.flow import login
from metamcp_worker.oauth.vault import TokenRecord, Vault, bare
from tests.fakes.oauth_server import CANARY, World
from tests.live.gateway import free_port

KEY = bytes(range(32))
PERSON_S = 10.0
DOCUMENT = "https://me.example/client.json"


def spec(world: World, folder: Path, *, url: str = "", **oauth: Any) -> ServerSpec:
    """A server with these settings of `oauth`. Tests that run beside this one take other ports."""
    key = base64.b64encode(KEY).decode()
    port = callback_port(world.issuer)
    given = OAuthSpec(store=str(folder / "oauth"), key=key, callback_port=port, **oauth)
    return ServerSpec(name="far", url=url or world.url, oauth=given)


@functools.cache
def callback_port(issuer: str) -> int:
    """The port to which browsers come back from this authorization server."""
    return free_port()


def stored(of: ServerSpec) -> list[TokenRecord]:
    assert of.oauth is not None
    return Vault(of.oauth.store, KEY).find(of.name, bare(of.url or ""))


def put(of: ServerSpec, record: TokenRecord) -> None:
    assert of.oauth is not None
    Vault(of.oauth.store, KEY).put(record)


async def browse(link: str) -> str:
    """Open the link, and go where it leads; the last page."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        page = await browser.get(link, follow_redirects=True)
        return page.text


class Person:
    """Opens the links that they are shown. `links`: those."""

    def __init__(self, look: Callable[[str], str] = lambda link: link) -> None:
        self.links: list[str] = []
        self.pages: list[asyncio.Task[str]] = []
        self._look = look

    def show(self, link: str) -> None:
        if link:
            self.links.append(link)
            self.pages.append(asyncio.ensure_future(browse(self._look(link))))

    async def login(self, of: ServerSpec, person_s: float = PERSON_S) -> TokenRecord:
        record = await login(of, self.show, person_s=person_s)
        await asyncio.gather(*self.pages)
        return record


def known(client_id: str, **more: Any) -> dict[str, Any]:
    """A client that the authorization server knows beforehand."""
    return {client_id: {"client_id": client_id, **more}}


__all__ = [
    "CANARY",
    "DOCUMENT",
    "KEY",
    "Person",
    "browse",
    "callback_port",
    "known",
    "put",
    "spec",
    "stored",
]
