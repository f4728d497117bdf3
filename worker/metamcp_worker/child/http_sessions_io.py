"""Life of a legacy server's sessions: opening, opening again, listening, closing.

Owns: the handshake of every session, except the first half for the base session, which is a request
like others; the requests that wait for an opening; the stream on which a server speaks unasked
(`listen`). Never: which request goes in which session.
"""

import asyncio
import contextlib
import itertools
from functools import partial

from msgspec import Raw, Struct

from metamcp_worker.child import http_exchange, jsonrpc_lines, request_headers
from metamcp_worker.child.actions import Fail
from metamcp_worker.child.http_exchange import ResumeState
from metamcp_worker.child.http_exchange_io import OPEN_S_MAX, Post, ServerAnswer, exchange, tell
from metamcp_worker.child.http_sessions import (
    HttpSession,
    HttpSessions,
    askable,
    build_shared_capabilities,
)
from metamcp_worker.child.http_transport import Body, HttpTransport, RequestRefused
from metamcp_worker.child.lists import CHANGES
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.fetch import ConnectionBroken, Unreachable
from metamcp_worker.http.sse import FIELDS_BYTES_MAX, EventReader, SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, MetaMCPError, TooLarge

FAREWELL_S_MAX = 2.0
"""Maximum seconds to tell the server that its sessions are over; most servers would find out by
themselves."""

_INITIALIZED = jsonrpc_lines.notification("notifications/initialized")


class _Initialized(Struct, rename="camel"):
    protocol_version: str


class HttpSessionManager:
    """All sessions with one server, with their tasks."""

    def __init__(self, link: HttpTransport) -> None:
        caller = link.spec.caller.encode()
        declared = askable(caller) if caller else build_shared_capabilities(link.spec)
        self.sessions = HttpSessions(declared, alone=bool(caller))
        self._link = link
        self._hello = b"{}"
        self._ids = itertools.count(1)
        self._opening: dict[int, asyncio.Future[bytes]] = {}

    def begin(self, hello: bytes, answer: ServerAnswer) -> bool:
        """Begin the base session with the server's answer to `initialize`, whose parameters were
        `hello`. Return False if the answer does not begin a session. Raises RequestRefused."""
        protocol = _protocol(answer.message)
        if not protocol:
            return False
        self._check(answer.session_id)
        self._hello = hello
        self.sessions.base.open(answer.session_id, protocol)
        self._opening[0] = asyncio.get_running_loop().create_future()
        return True

    def greet(self, line: bytes) -> None:
        """Start the second half of the handshake of the base session."""
        self._link.start(("open", 0), lambda: self._greet(self.sessions.base, line))

    async def ready(self, session: HttpSession) -> None:
        """Wait until the session can be used; open it unless that is under way. Raises
        RequestRefused."""
        while not session.is_open:
            opening = self._opening.get(session.via) or self._open_now(session)
            error = await asyncio.shield(opening)
            if error:
                raise RequestRefused(error)

    def on_session_lost(self, session: HttpSession, session_id: str) -> None:
        """Note that the server has forgotten the session that had this id."""
        if session.is_open and session.id == session_id:
            session.is_open = False
            self._link.cut(("stream", session.via))

    def new_id(self) -> bytes:
        """Return an id for a request of the transport itself: a string, because all other ids are
        numbers."""
        return b'"metamcp-%d"' % next(self._ids)

    def tick(self, now: float) -> None:
        for session in self.sessions.take_closable(now):
            self._link.cut(("stream", session.via))
            self._link.tell(b"", partial(self._delete, session))

    async def farewell(self) -> None:
        """Close all sessions."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S_MAX):
                await asyncio.gather(*(self._delete(session) for session in self.sessions.all()))

    # --- opening ----------------------------------------------------------------------------

    def _open_now(self, session: HttpSession) -> asyncio.Future[bytes]:
        opening = asyncio.get_running_loop().create_future()
        self._opening[session.via] = opening
        self._link.start(("open", session.via), lambda: self._open(session))
        return opening

    async def _open(self, session: HttpSession) -> None:
        """Run both halves of a handshake, and repeat the settings of the session before."""
        error = b""
        try:
            async with exchange(self._link, self._hello_of(session)) as answer:
                protocol = _protocol(answer.message)
                if not protocol:
                    raise RequestRefused(self._refusal(answer.message))
                self._check(answer.session_id)
                session.open(answer.session_id, protocol)
        except (RequestRefused, codec.Malformed) as refused:
            error = self._link.to_error_object(refused)
            if session is self.sessions.base:
                message = f"it has forgotten the session and does not open a new one: {refused}"
                self._link.lose(Fail("protocol", message[:1000]))
        except MetaMCPError as failed:
            problem = f"could not be asked for a session: {failed}"
            error = self._link.faults.body(Code.SERVER_DOWN, problem, {"may_have_run": False})
            if isinstance(failed, Unreachable):
                self._link.doubt()
        if error:
            self.sessions.forget(session)
            self._settle_opening(session, error)
            return
        await self._greet(session, _INITIALIZED)
        if session is self.sessions.base:
            # Most probably the server was replaced, and its lists may have changed.
            for change in CHANGES:
                self._link.deliver(jsonrpc_lines.notification(change), b"", 0)

    async def _greet(self, session: HttpSession, line: bytes) -> None:
        try:
            await tell(self._link, line, session.headers)
            for setting in list(session.settings()):
                key = self.new_id()
                message = jsonrpc_lines.request(key, setting.method, setting.params)
                async with exchange(self._link, self._post(session, key, message)):
                    pass  # Whatever the answer is: it was asked before.
        except (MetaMCPError, codec.Malformed) as error:
            # If the session is of no use, the request that waits for it will meet the reason.
            self._link.warn(f"a new session could not be set up as the old one was: {error}")
        session.is_open = True
        self._settle_opening(session, b"")
        self._link.start(("stream", session.via), lambda: self._listen(session))

    def _settle_opening(self, session: HttpSession, error: bytes) -> None:
        opening = self._opening.pop(session.via, None)
        if opening is not None and not opening.done():
            opening.set_result(error)

    def _hello_of(self, session: HttpSession) -> Post:
        params = self._hello
        if session is not self.sessions.base:
            hello = codec.level(params)
            hello["capabilities"] = Raw(session.capabilities)
            params = codec.dump(hello)
        key = self.new_id()
        return Post(
            key, jsonrpc_lines.request(key, "initialize", params), request_headers.INITIALIZE, b"",
            session.via, resumable=True, answer_s=OPEN_S_MAX,
        )  # fmt: skip

    def _post(self, session: HttpSession, key: bytes, line: bytes) -> Post:
        return Post(key, line, session.headers, b"", session.talk, answer_s=OPEN_S_MAX)

    def _refusal(self, answer: bytes) -> bytes:
        """Return the error object that says why a session was not begun."""
        problem = "gave no answer to initialize that could be understood"
        error = bytes(codec.envelope(answer).error)
        fallback = self._link.faults.body(Code.INTERNAL_ERROR, problem)
        return error if error.startswith(b"{") else fallback

    def _check(self, session_id: str) -> None:
        if not http_exchange.session_id_ok(session_id):
            problem = "gives a session id that is too long, or not of visible ASCII characters"
            raise RequestRefused(self._link.faults.body(Code.INTERNAL_ERROR, problem))

    # --- afterwards -------------------------------------------------------------------------

    async def _listen(self, session: HttpSession) -> None:
        session_id = session.id
        if await listen(self._link, session):
            self.on_session_lost(session, session_id)
            if session is self.sessions.base and 0 not in self._opening:
                self._open_now(session)

    async def _delete(self, session: HttpSession) -> None:
        """Tell the server that this session is over; the answer does not matter."""
        if not session.id:
            return
        with contextlib.suppress(Unreachable, ConnectionBroken):
            response = await self._link.origin.send(
                "DELETE", session.headers, answer_s=FAREWELL_S_MAX
            )
            await response.close()


def _protocol(answer: bytes) -> str:
    """Return the revision that an answer to `initialize` agrees on; empty if the gateway does not
    know it."""
    try:
        revision = codec.decode_as(_Initialized, codec.envelope(answer).result).protocol_version
    except codec.Malformed:
        return ""
    return revision if revision in jsonrpc_lines.LEGACY else ""


SILENT_S_MAX = 300.0
"""Seconds of silence, without even keep-alives, after which a stream is taken up again. The stream
may be dead without having ended, because a proxy forgot it; taking up a live stream loses
nothing."""

_AGAIN = frozenset({408, 409, 425, 429})
"""Statuses that mean "not now". 409: the server has not noticed yet that the last connection
ended."""


async def listen(link: HttpTransport, session: HttpSession) -> bool:
    """Pass on the messages of the stream as long as the server has one. Return whether the session
    is over."""
    resume = ResumeState(endless=True)
    had_one = False
    while True:
        headers: dict[str, str | bytes] = {**session.headers, "Accept": mcp_headers.EVENTS}
        if resume.last_id:
            headers[mcp_headers.LAST_EVENT] = resume.last_id
        try:
            response = await link.origin.send("GET", headers, answer_s=OPEN_S_MAX)
            async with Body(link.intake, response) as body:
                status = response.status
                if status == 200 and response.media_type == mcp_headers.EVENTS:
                    had_one = True
                    await _events(link, session, body, resume)
                elif status == 404 and had_one and session.id:
                    return True
                elif status < 500 and status not in _AGAIN and not resume.last_id:
                    return False
                elif status < 500:
                    resume.reset()
        except Unreachable:
            link.doubt()
        except ConnectionBroken:
            pass  # The stream is taken up again, as after its end.
        except TooLarge as error:
            link.warn(f"something that it said on its own was passed over: {error}")
            resume.reset()
        await asyncio.sleep(resume.plan_reconnect() or 0.0)


async def _events(
    link: HttpTransport, session: HttpSession, body: Body, resume: ResumeState
) -> None:
    reader = EventReader(link.intake.message_bytes + FIELDS_BYTES_MAX)
    talk = session.talk
    while piece := await body.piece(wait_s=SILENT_S_MAX):
        _take(link, resume, talk, reader.feed(piece))
        link.noise(reader)
        body.holds(reader.held_bytes)


def _take(link: HttpTransport, resume: ResumeState, talk: int, events: list[SseEvent]) -> None:
    """Pass on these events, in a separate function, because the variable of a loop would keep the
    last event in memory until the next one comes."""
    for event in events:
        resume.saw(event)
        if event.event == "message" and event.data:
            link.deliver(
                http_exchange.with_number_id(http_exchange.one_line(event.data)), b"", talk
            )
