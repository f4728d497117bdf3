"""A real identity provider on loopback, and a person who logs in there with a browser's habits."""

import asyncio
import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.clients import programs
from tests.conformance import suite

SECRET = "s3cr3t-of-the-gateway"
BACK = "http://127.0.0.1:33418/callback"
PAGES_MAX = 20
"""Pages from the link to the way back: login, consent, and what leads from one to the other."""


class Provider:
    """The provider. `issuer`: its URL."""

    def __init__(self, issuer: str, process: subprocess.Popen[str]) -> None:
        self.issuer = issuer
        self._process = process

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def token(self, resource: str, scope: str = "mcp:list mcp:call") -> str:
        """A token for a program."""
        form = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
        return str(self.post("/token", form)["access_token"])

    def revoke(self, token: str) -> None:
        self.post("/token/revocation", {"token": token})

    def post(self, path: str, form: dict[str, str]) -> dict[str, Any]:
        answer = httpx2.post(
            f"{self.issuer}{path}", data=form, auth=("gateway", SECRET), timeout=30, trust_env=False
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


@contextmanager
def provider() -> Generator[Provider]:
    """A provider that runs."""
    with subprocess.Popen(
        [str(suite.NODE), str(programs.HERE / "identity.mjs")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"SECRET": SECRET},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield Provider(process.stdout.readline().strip(), process)
        finally:
            process.terminate()


class Person:
    """Logs in at the provider, and consents to everything. `client_id`: of a client that the
    provider knows already; others register. `asked`: the scopes of the gateway at each login."""

    def __init__(self, server_url: str, client_id: str = "") -> None:
        self._code: asyncio.Queue[AuthorizationCodeResult] = asyncio.Queue()
        self.asked: list[set[str]] = []
        self.auth = OAuthClientProvider(
            server_url,
            OAuthClientMetadata(client_name="a client", redirect_uris=[AnyUrl(BACK)]),
            Memory(client_id),
            self._browse,
            self._code.get,
        )

    async def _browse(self, link: str) -> None:
        """Open the link, and fill in every form on the way back."""
        (scopes,) = parse_qs(urlsplit(link).query)["scope"]
        self.asked.append({scope for scope in scopes.split() if scope.startswith("mcp:")})
        async with httpx2.AsyncClient(timeout=30, trust_env=False) as browser:
            page = await browser.get(link)
            for _ in range(PAGES_MAX):
                if page.is_redirect:
                    target = str(page.url.join(page.headers["location"]))
                    if target.startswith(BACK):
                        break
                    page = await browser.get(target)
                else:
                    action = re.search(r'action="([^"]+)"', page.text)
                    kind = re.search(r'name="prompt" value="(\w+)"', page.text)
                    assert action, page.text
                    assert kind, page.text
                    form = {"prompt": kind[1], "login": "ann", "password": "anything"}
                    page = await browser.post(page.url.join(action[1]), data=form)
            else:
                raise AssertionError("the provider never leads back")
        found = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        await self._code.put(
            AuthorizationCodeResult(
                code=found["code"], state=found.get("state"), iss=found.get("iss")
            )
        )


class Memory:
    """Keeps what a client has while it runs."""

    def __init__(self, client_id: str) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if client_id:
            self.client = OAuthClientInformationFull(
                client_id=client_id, redirect_uris=[AnyUrl(BACK)], token_endpoint_auth_method="none"
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info
