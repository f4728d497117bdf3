"""An authorization server, and a server of the official SDK that takes only its tokens.

    python tests/fakes/oauth_server.py

The first line of its output is the URLs of both, first that of the MCP server. At the other, `POST
/fake/revoke` ends all access tokens, and `GET /fake/counts` tells what was granted. In a test's own
loop, `protected` gives the state to look at and to change. Every token has CANARY in it, so that a
test can look for leaks.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

CANARY = "canary7f3a"
Json = dict[str, Any]


@dataclass
class Issued:
    client: str
    scope: str
    resource: str
    expires_at: float


@dataclass
class World:
    """What both servers know. `seen`: requests to the authorization server, in order.

    `registers`, `documents`: how clients become known beside `clients`. `metadata`: members that
    are others, or None for none. `trouble`: path -> status of an answer that is an error;
    `errors`: path -> its code, if not `canary_error`; `pages`: path -> status and text of a page
    of HTML, as a firewall sends it. `spent`: refresh tokens that were used; whoever shows one a
    second time ends all tokens of that grant, and `reused` counts them. `held`: what refreshes
    wait for.
    `steps`: tool -> the scope that it wants beyond `read`. `waiting`: calls of the tool `wait`,
    which end when `released` is set.
    """

    issuer: str = ""
    url: str = ""
    registers: bool = True
    documents: bool = False
    agrees: bool = True
    lifetime_s: float = 3600
    rotates: bool = True
    clients: dict[str, Json] = field(default_factory=dict[str, Json])
    metadata: Json = field(default_factory=dict[str, Any])
    resource: Json = field(default_factory=dict[str, Any])
    trouble: dict[str, int] = field(default_factory=dict[str, int])
    steps: dict[str, str] = field(default_factory=lambda: {"write": "write"})
    waiting: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    pages: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    spent: dict[str, Issued] = field(default_factory=dict[str, Issued])
    reused: int = 0
    held: asyncio.Event | None = None
    seen: list[tuple[str, Json]] = field(default_factory=list[tuple[str, Json]])
    codes: dict[str, Json] = field(default_factory=dict[str, Json])
    access: dict[str, Issued] = field(default_factory=dict[str, Issued])
    refresh: dict[str, Issued] = field(default_factory=dict[str, Issued])

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def said(self, path: str) -> list[Json]:
        return [form for where, form in self.seen if where == path]

    async def verify_token(self, token: str) -> AccessToken | None:
        """The SDK's `TokenVerifier`."""
        known = self.access.get(token)
        if known is None or known.expires_at < time.time():
            return None
        return AccessToken(
            token=token,
            client_id=known.client,
            scopes=known.scope.split(),
            resource=known.resource,
        )

    def tokens(self, granted: Issued, *, machine: bool = False) -> JSONResponse:
        """New ones."""
        access = f"access-{CANARY}-{secrets.token_hex(8)}"
        self.access[access] = granted
        granted.expires_at = time.time() + self.lifetime_s
        found: Json = {"access_token": access, "token_type": "bearer", "scope": granted.scope}
        if self.lifetime_s:
            found["expires_in"] = int(self.lifetime_s)
        if not machine:
            refresh = f"refresh-{CANARY}-{secrets.token_hex(8)}"
            self.refresh[refresh] = granted
            found["refresh_token"] = refresh
        return JSONResponse(found)


def authorization_server(world: World) -> Starlette:
    async def metadata(request: Request) -> Response:
        found: Json = {
            "issuer": world.issuer,
            "authorization_endpoint": f"{world.issuer}/authorize",
            "token_endpoint": f"{world.issuer}/token",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
            "client_id_metadata_document_supported": world.documents,
            "authorization_response_iss_parameter_supported": True,
            **({"registration_endpoint": f"{world.issuer}/register"} if world.registers else {}),
            **world.metadata,
        }
        return JSONResponse({name: one for name, one in found.items() if one is not None})

    async def register(request: Request) -> Response:
        asked = json.loads(await request.body())
        client = {**asked, "client_id": f"client-{len(world.clients)}", "client_secret": CANARY}
        client["token_endpoint_auth_method"] = "client_secret_basic"
        world.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    async def authorize(request: Request) -> Response:
        asked = dict(request.query_params)
        back = {"state": asked["state"], "iss": world.issuer}
        if not world.agrees:
            return RedirectResponse(
                f"{asked['redirect_uri']}?{urlencode({**back, 'error': 'access_denied'})}"
            )
        code = f"code-{CANARY}-{secrets.token_hex(8)}"
        world.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({**back, 'code': code})}")

    async def token(request: Request) -> Response:
        form = _form(await request.body())
        if world.held is not None and form.get("grant_type") == "refresh_token":
            await world.held.wait()
        return _token(world, form, *_client(request, form))

    async def revoke(request: Request) -> Response:
        world.access.clear()
        return PlainTextResponse("revoked")

    async def counts(request: Request) -> Response:
        grants = Counter(form.get("grant_type") for form in world.said("/token"))
        return JSONResponse({**grants, "reused": world.reused})

    routes = [
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/fake/revoke", revoke, methods=["POST"]),
        Route("/fake/counts", counts),
    ]
    return Starlette(routes=routes)


def mcp_server(world: World) -> Starlette:
    made = MCPServer(
        "protected",
        token_verifier=world,
        auth=AuthSettings.model_validate(
            {
                "issuer_url": world.issuer,
                "resource_server_url": world.url,
                "required_scopes": ["read"],
                "validate_token_resource": True,
            }
        ),
        log_level="ERROR",
    )

    @made.tool()
    async def echo(text: str) -> str:
        return text

    @made.tool()
    async def write(text: str) -> str:
        return f"written: {text}"

    @made.tool()
    async def wait() -> str:
        world.waiting += 1
        await world.released.wait()
        return "waited"

    return made.streamable_http_app(json_response=True)


class Watched:
    """Notes what is asked of the authorization server, and makes trouble."""

    def __init__(self, app: ASGIApp, world: World) -> None:
        self._app = app
        self._world = world

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        form = _form(body) or _form(scope["query_string"])
        if body.startswith(b"{"):
            form = json.loads(body)
        self._world.seen.append((scope["path"], form))
        world, path = self._world, scope["path"]
        if path in world.pages:
            status, text = world.pages[path]
            await HTMLResponse(text, status)(scope, receive, send)
        elif path in world.trouble:
            code = world.errors.get(path, "canary_error")
            await _error(code, world.trouble[path], str(form))(scope, receive, send)
        else:
            await self._app(scope, _again(body, receive), send)


class Stepped:
    """In front of the MCP server: some tools want more than its tokens have at first."""

    def __init__(self, app: ASGIApp, world: World) -> None:
        self._app = app
        self._world = world

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/.well-known/") and self._world.resource:
            await JSONResponse(self._world.resource)(scope, receive, send)
            return
        body = await _body(receive)
        wanted = self._wanted(body)
        token = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        known = self._world.access.get(token)
        if wanted and known is not None and wanted not in known.scope.split():
            challenge = f'Bearer error="insufficient_scope", scope="{wanted}"'
            answer = PlainTextResponse("no", 403, {"WWW-Authenticate": challenge})
            await answer(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    def _wanted(self, body: bytes) -> str:
        if not body.startswith(b"{"):
            return ""
        message: Json = json.loads(body)
        name = message.get("params", {}).get("name", "")
        return self._world.steps.get(name, "") if message.get("method") == "tools/call" else ""


def _token(world: World, form: Json, client: str, secret: str) -> Response:
    known = world.clients.get(client)
    if known is None and not (world.documents and client.startswith("https://")):
        return _error("invalid_client", 401)
    if known is not None and known.get("client_secret", "") != secret:
        return _error("invalid_client", 401)
    match form.get("grant_type"):
        case "authorization_code":
            return _exchanged(world, client, form)
        case "refresh_token":
            return _refreshed(world, form)
        case "client_credentials":
            scope, resource = form.get("scope", "read"), form.get("resource", "")
            return world.tokens(Issued(client, scope, resource, 0), machine=True)
        case _:
            return _error("unsupported_grant_type")


def _exchanged(world: World, client: str, form: Json) -> Response:
    asked = world.codes.pop(form.get("code", ""), None)
    digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
    proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    if asked is None or asked["client_id"] != client or asked["code_challenge"] != proof:
        return _error("invalid_grant")
    if form.get("redirect_uri") != asked["redirect_uri"]:
        return _error("invalid_grant")
    scope = asked.get("scope", "read")
    return world.tokens(Issued(client, scope, form.get("resource", ""), 0))


def _refreshed(world: World, form: Json) -> Response:
    granted = world.refresh.get(form["refresh_token"])
    if granted is None:
        if (whose := world.spent.get(form["refresh_token"])) is not None:
            world.reused += 1
            for known in (world.access, world.refresh):
                for token in [token for token, one in known.items() if one is whose]:
                    del known[token]
        return _error("invalid_grant")
    if world.rotates:
        world.spent[form["refresh_token"]] = world.refresh.pop(form["refresh_token"])
    return world.tokens(granted)


def _client(request: Request, form: Json) -> tuple[str, str]:
    said = request.headers.get("authorization", "")
    if said.startswith("Basic "):
        name, _, secret = base64.b64decode(said[6:]).decode().partition(":")
        return name, secret
    return form.get("client_id", ""), form.get("client_secret", "")


def _error(code: str, status: int = 400, description: str = "") -> JSONResponse:
    return JSONResponse({"error": code, "error_description": description}, status)


def _form(body: bytes) -> Json:
    return {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message: Json = dict(await receive())
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read already, and then what else comes."""
    told = False

    async def replay() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncGenerator[None]:
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="on")
    server = uvicorn.Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        # Nothing tells of it.
        while not server.started:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def protected() -> AsyncGenerator[World]:
    """Both servers, each on a port of its own."""
    with socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        world = World()
        world.issuer = f"http://127.0.0.1:{one.getsockname()[1]}"
        world.url = f"http://127.0.0.1:{other.getsockname()[1]}/mcp"
        first = serving(Watched(authorization_server(world), world), one)
        second = serving(Stepped(mcp_server(world), world), other)
        async with first, second:
            yield world


async def main() -> None:
    async with protected() as world:
        sys.stdout.write(f"{world.url} {world.issuer}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
