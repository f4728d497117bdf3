"""Address on this machine to which a browser comes back from an authorization server.

Owns: the listener, reading one request, the page that the person sees. Never: the use of the answer
(`flow`), opening browsers.

The listener is bound to 127.0.0.1 only. Requests must carry the `state` that only the true redirect
knows, so that another page in the same browser cannot slip in an answer of its own. Other requests
are refused, and the wait goes on.
"""

import asyncio
import contextlib
import hmac
import socket
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

PATH = "/callback"
PERSON_S_MAX = 600.0
"""Seconds for a person to open a link, to find their password, and to agree."""
HEAD_BYTES_MAX = 16 * 1024
HEAD_S_MAX = 5.0
"""Seconds for a browser to send its request; some browsers open connections in advance."""
CONNECTIONS_MAX = 16
"""Maximum connections at once; browsers open a handful."""

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>MetaMCP</title></head>
<body style="font-family: sans-serif; margin: 4em"><h1>{head}</h1><p>{text}</p></body></html>
"""
_DONE = _PAGE.format(
    head="The answer has arrived",
    text="You can close this page. MetaMCP goes on where you came from.",
)
_STRANGE = _PAGE.format(
    head="This is not the answer that is waited for",
    text="Open the newest link that MetaMCP gave you.",
)


class CallbackAnswer(Struct, frozen=True):
    """Answer that came back. `error`: an OAuth error code, instead of a `code`. `iss`: None if not
    sent."""

    code: str
    iss: str | None = None
    error: str = ""

    def __repr__(self) -> str:
        return f"CallbackAnswer(error={self.error!r})"


class Callback:
    """Listener for the answer, to be closed after use. `port`: the preferred port; another port is
    taken if that is in use. Raises OSError."""

    def __init__(self, port: int) -> None:
        self._sock = _bind_socket(port)
        self._host = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._state = ""
        self._answer: asyncio.Future[CallbackAnswer] = asyncio.get_running_loop().create_future()
        self._silent: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://{self._host}{PATH}"

    async def answer(self, state: str, *, wait_s: float) -> CallbackAnswer | None:
        """Wait for the answer with this `state`; None if none comes within `wait_s` seconds."""
        self._state = state
        server = await asyncio.start_server(
            self._on_connection, sock=self._sock, limit=HEAD_BYTES_MAX
        )
        try:
            async with asyncio.timeout(wait_s):
                return await self._answer
        except TimeoutError:
            return None
        finally:
            server.close()
            for writer in self._silent:
                writer.transport.abort()  # else the next line would wait for them, from 3.12 on
            await server.wait_closed()

    def close(self) -> None:
        self._sock.close()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_S_MAX):
                if len(self._silent) < CONNECTIONS_MAX:
                    self._silent.add(writer)
                    head = await reader.readuntil(b"\r\n\r\n")
                    self._silent.discard(writer)
                    writer.write(self._respond(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a connection opened in advance, or a client that is not a browser
        finally:
            self._silent.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _respond(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, target_and_version = line.partition(" ")
        target = urlsplit(target_and_version.partition(" ")[0])
        hosts = [value for field in fields for value in _value(field, "host")]
        # A page of another host, whose name was set up to lead here, must not get an answer.
        if hosts != [self._host] or method != "GET" or target.path != PATH:
            return _page("404 Not Found", _STRANGE)
        params = parse_qs(target.query)
        if self._answer.done() or not _same(_one(params, "state"), self._state):
            return _page("400 Bad Request", _STRANGE)
        code, error = _one(params, "code"), _one(params, "error")
        self._answer.set_result(
            CallbackAnswer(code, _one(params, "iss") if "iss" in params else None, error)
        )
        return _page("200 OK", _DONE)


def _bind_socket(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            sock.close()
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            sock.listen()
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _value(field: str, name: str) -> list[str]:
    key, _, value = field.partition(":")
    return [value.strip()] if key.strip().lower() == name else []


def _one(params: dict[str, list[str]], name: str) -> str:
    """Return a parameter that is there once; empty for a missing or repeated parameter."""
    values = params.get(name, [])
    return values[0] if len(values) == 1 else ""


def _same(value: str, expected: str) -> bool:
    return bool(expected) and hmac.compare_digest(value.encode(), expected.encode())


def _page(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n"
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
        "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    )
    return head.encode() + body
