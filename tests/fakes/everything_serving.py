"""How the fixture is reached: over stdio or HTTP, in both eras or in one of them only.

Pinned to an era, it refuses the other one as a server does that has never heard of it, or that
serves it no more.
"""

import json
import socket
from collections import deque
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import anyio
import mcp_types as types
import uvicorn
from mcp.server.runner import serve_dual_era_loop, serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.fakes.everything_server import Everything, Handlers

PATH = "/mcp"
VERSION_HEADER = b"mcp-protocol-version"

#: Events kept for clients that come back; more than a run of the suite makes.
EVENTS_MAX = 10_000

#: Said to clients of a closed stream, so that their reconnection does not slow down the suite.
RETRY_MS = 50


class Events(EventStore):
    """The last events of all streams, in order."""

    def __init__(self) -> None:
        self.last = 0
        self.kept: deque[tuple[int, str, types.JSONRPCMessage | None]] = deque(maxlen=EVENTS_MAX)

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self.last += 1
        self.kept.append((self.last, stream_id, message))
        return str(self.last)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        after = int(last_event_id) if last_event_id.isdigit() else 0
        stream = next((stream for number, stream, _ in self.kept if number == after), None)
        for number, of, message in list(self.kept):
            if of == stream and number > after and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def refusal(requested: object) -> types.ErrorData:
    """What a server without handshake says to one."""
    supported = list(MODERN_PROTOCOL_VERSIONS)
    data = {"supported": supported, "requested": requested}
    code = types.UNSUPPORTED_PROTOCOL_VERSION
    return types.ErrorData(code=code, message="Unsupported protocol version", data=data)


# --- HTTP -------------------------------------------------------------------------------------


def version_of(scope: Scope) -> str | None:
    found = (value for name, value in scope["headers"] if name == VERSION_HEADER)
    first: bytes | None = next(found, None)
    return None if first is None else first.decode("latin-1")


def legacy_only(app: ASGIApp) -> ASGIApp:
    """A server of the handshake era reads no version before there is a session."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and version_of(scope) not in HANDSHAKE_PROTOCOL_VERSIONS:
            headers = [pair for pair in scope["headers"] if pair[0] != VERSION_HEADER]
            scope = {**scope, "headers": headers}
        await app(scope, receive, send)

    return serve


def modern_only(app: ASGIApp) -> ASGIApp:
    """Everything without a modern version is refused, `initialize` by its own proposal."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        version = version_of(scope) if scope["type"] == "http" else ""
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await app(scope, receive, send)
        elif scope["method"] != "POST":
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        else:
            await handshake_refused(await Request(scope, receive).body())(scope, receive, send)

    return serve


def handshake_refused(body: bytes) -> Response:
    try:
        message: Any = json.loads(body)
    except ValueError:
        message = None
    requested = member(member(message, "params"), "protocolVersion")
    error = refusal(requested).model_dump(mode="json")
    answer = {"jsonrpc": "2.0", "id": member(message, "id"), "error": error}
    return JSONResponse(answer, status_code=400)


def member(value: Any, name: str) -> Any:
    return cast(dict[str, Any], value).get(name) if isinstance(value, dict) else None


GATES = {"legacy": legacy_only, "modern": modern_only}


async def over_http(port: int, era: str, push: bool) -> None:
    """Serves on localhost and says where on the first line of stdout."""
    app: ASGIApp = server(push=push).streamable_http_app(
        streamable_http_path=PATH, event_store=Events(), retry_interval=RETRY_MS
    )
    if era in GATES:
        app = GATES[era](app)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        print(f"http://localhost:{listener.getsockname()[1]}{PATH}", flush=True)  # noqa: T201 - the answer to whoever started it
        # h11 strips the blanks around a header's value, httptools leaves them to the application.
        config = uvicorn.Config(
            app, http="h11", log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        await uvicorn.Server(config).serve(sockets=[listener])


# --- stdio ------------------------------------------------------------------------------------


async def over_stdio(era: str, push: bool) -> None:
    made = server(push=push)
    lifespan: AbstractAsyncContextManager[Any] = made.lifespan(made)
    async with lifespan as state, stdio_server() as (read, write), write:
        if era == "legacy":
            options = made.create_initialization_options()
            await serve_loop(made, read, write, lifespan_state=state, init_options=options)
            return
        forward, forwarded = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def sieve() -> None:
            """Takes `initialize` out, so that it never decides the era of the connection."""
            async with forward:
                async for item in read:
                    message = item.message if isinstance(item, SessionMessage) else None
                    if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
                        error = refusal((message.params or {}).get("protocolVersion"))
                        answer = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                        await write.send(SessionMessage(answer))
                    else:
                        await forward.send(item)

        async with anyio.create_task_group() as group:
            if era == "modern":
                group.start_soon(sieve)
            await serve_dual_era_loop(
                made,
                forwarded if era == "modern" else read,
                write,
                lifespan_state=state,
                init_options=made.create_initialization_options(),
            )


def server(*, push: bool) -> Everything:
    return Handlers(push=push).server()


def run(transport: str, port: int, era: str, *, push: bool) -> None:
    if transport == "http":
        anyio.run(over_http, port, era, push)
    else:
        anyio.run(over_stdio, era, push)
