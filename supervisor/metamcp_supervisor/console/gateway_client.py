"""Connection of the console to the control socket, in the name of a session or an API key.

Owns: the hello with the token of the session or the key, requests one after the other, what an
answer means. Never: rights (the gateway has the role of the session), what a verb does.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from metamcp_supervisor import runtime
from metamcp_supervisor.control import client
from metamcp_supervisor.control.access import SESSION_ENDED, Role
from metamcp_supervisor.control.client import ANSWER_S, LINE_BYTES_MAX, Failed
from metamcp_supervisor.control.console_sessions import NOT_A_KEY, TOO_MANY
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope

CLOSED = "the gateway closed the connection; it may be stopping"
NOT_ADMITTED = "the gateway does not admit its console now"
"""Sentence for any other failure at the hello, since the sentence of the gateway may have paths."""


class _Welcome(Struct, frozen=True):
    role: str = ""
    key: str = ""


class VerbRequest(Struct, frozen=True):
    """Request of a program for a verb, as the control socket takes it."""

    method: str
    params: dict[str, Any] = {}
    id: int | str = 1

    @property
    def follows(self) -> bool:
        """Whether notifications come after the result, without an end."""
        return self.params.get("follow") is True or self.method == "news"

    @property
    def stays(self) -> bool:
        """Whether the answer may take as long as its caller likes."""
        return self.follows or self.method == "wait"


class SessionEnded(Failed):
    """Raised if the gateway does not know the session, or not any more."""


class KeyRefused(Failed):
    """Raised if the gateway refuses the API key, or does not know that keys are for it."""


class GatewayClient:
    """Connection that may ask, a `pages.Ask`. Created by `connect_gateway`. `role`: of the session;
    `key`: id of its API key, empty for the session of a link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked = 0
        self._turn = asyncio.Lock()
        self.role = Role.VIEWER
        self.key = ""

    async def __call__(
        self, verb: str, params: object = None, *, timeout_s: float = ANSWER_S
    ) -> bytes:
        async with self._turn:
            await self._send(verb, params)
            return (await self._read_answer(timeout_s))[1]

    async def items(
        self, verb: str, params: object = None, *, timeout_s: float = ANSWER_S
    ) -> list[bytes]:
        """Return the raw items that a verb sends before its result. Raises Failed."""
        async with self._turn:
            await self._send(verb, params)
            return (await self._read_answer(timeout_s))[0]

    async def stream(self, verb: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield kind and raw parameters of each notification of a verb that follows, to its end.
        Raises Failed."""
        await self._send(verb, None)
        await self._read_answer(ANSWER_S)
        while True:
            message = await self._read(None)
            if message.method is None:
                return
            yield message.method, bytes(message.params)

    async def pass_on(self, request: VerbRequest) -> AsyncIterator[tuple[bytes, Envelope]]:
        """Yield each line of the answer to a request, with its end, and what it means. Raises
        Failed."""
        members = {"id": request.id, "method": request.method, "params": request.params}
        self._writer.write(codec.dump({"jsonrpc": "2.0", **members}) + b"\n")
        while True:
            line = await self._read_line(None)
            message = _parse(line)
            yield line, message
            if message.method is None and (bytes(message.error) or not request.follows):
                return

    def close(self) -> None:
        """End what is being waited for, too."""
        self._writer.close()

    async def greet(self, directory: str, credential: Mapping[str, str]) -> None:
        """Show the token of the gateway, and the credential. Raises Failed with a sentence that
        strangers may read, SessionEnded, and KeyRefused."""
        try:
            message = await self._read(ANSWER_S)
            if message.method != "hello":
                client.result(message)
            await self._send("hello", {"token": client.token(directory), **credential})
            _, raw = await self._read_answer(ANSWER_S)
            welcome = codec.decode_as(_Welcome, raw)
        except codec.Malformed:
            raise Failed(Exit.NOT_RUNNING, NOT_ADMITTED) from None
        except Failed as error:
            raise _refusal(error) from None
        if credential["key"] and not welcome.key:
            # A gateway of before keys takes who shows its token for its own user.
            raise KeyRefused(Exit.DENIED, NOT_A_KEY)
        self.role, self.key = Role.parse_role(welcome.role) or Role.VIEWER, welcome.key

    async def _send(self, verb: str, params: object) -> None:
        self._asked += 1
        request: dict[str, object] = {"jsonrpc": "2.0", "id": self._asked, "method": verb}
        if params is not None:
            request["params"] = params
        self._writer.write(codec.dump(request) + b"\n")

    async def _read_answer(self, timeout_s: float) -> tuple[list[bytes], bytes]:
        """Return the items of an answer and its raw result. Raises Failed, and SessionEnded."""
        items: list[bytes] = []
        while True:
            message = await self._read(timeout_s)
            if message.method is None:
                try:
                    return items, client.result(message)
                except Failed as error:
                    if str(error) == SESSION_ENDED:
                        raise SessionEnded(error.exit, SESSION_ENDED) from None
                    raise
            items.append(bytes(message.params))

    async def _read(self, timeout_s: float | None) -> Envelope:
        return _parse(await self._read_line(timeout_s))

    async def _read_line(self, timeout_s: float | None) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._reader.readline()
        except TimeoutError:
            raise Failed(
                Exit.TIMEOUT, f"the gateway gave no answer in {timeout_s or 0:g} s"
            ) from None
        except (OSError, ValueError):
            line = b""
        if not line:
            raise Failed(Exit.NOT_RUNNING, CLOSED)
        return line


def _refusal(error: Failed) -> Failed:
    """Return a failure at the hello as strangers may read it."""
    if isinstance(error, SessionEnded) or error.exit == Exit.TIMEOUT or str(error) == CLOSED:
        return error
    if str(error).startswith((NOT_A_KEY, TOO_MANY)):
        return KeyRefused(error.exit, str(error))
    return Failed(Exit.NOT_RUNNING, NOT_ADMITTED)


def _parse(line: bytes) -> Envelope:
    try:
        return codec.envelope(line)
    except codec.Malformed as error:
        raise Failed(Exit.FAILED, f"the gateway sent a bad answer: {error}") from None


@contextlib.asynccontextmanager
async def connect_gateway(
    directory: str, session: str = "", *, key: str = "", address: str = ""
) -> AsyncGenerator[GatewayClient]:
    """Connect to the gateway of this runtime directory for a session, or for an API key that a
    program at an address shows; with neither, for the gateway's own user. Raises what `greet`
    does."""
    path = runtime.socket_path(directory)
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    except OSError:
        raise Failed(Exit.NOT_RUNNING, CLOSED) from None
    try:
        gateway = GatewayClient(reader, writer)
        await gateway.greet(directory, {"session": session, "key": key, "address": address})
        yield gateway
    finally:
        writer.close()
