"""Streamable HTTP, the transport to a remote server, and the choice of a transport for a URL.

Owns: the era of a request, and the headers and the form of cancellation in that era; the choice of
the protocol, the limits of connections, how the transport is stopped. Never: the reading of one
answer (`http_exchange_io`), which request goes in which session (`http_sessions`), the life of
sessions (`http_sessions_io`), HTTP+SSE of 2024 (`sse2024_transport`).

A modern server has no sessions: a request stands alone, and closing its response cancels it. A
legacy server may use sessions. If it forgets a session, which may happen at any time, it answers
404; then the session is opened again, and the refused request is sent once more. Other requests are
never sent twice, because only the 404 proves that the server did not look at a request.

With `transport = "auto"` streamable HTTP is tried first, as its specification says. If the status
of the answer to `initialize` is one that servers of the older event stream give, that stream is
tried once, whatever the answer says; if there is none, the answer counts.
"""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import structs

from metamcp_worker.child import http_exchange, jsonrpc_lines, request_headers
from metamcp_worker.child.actions import CancelRequest, Fail, ServerRequest
from metamcp_worker.child.http_exchange_io import (
    ANSWER_S_MAX,
    OPEN_S_MAX,
    Post,
    SessionOver,
    exchange,
    tell,
)
from metamcp_worker.child.http_sessions import SESSIONS_MAX, SETTINGS, HttpSession
from metamcp_worker.child.http_sessions_io import HttpSessionManager
from metamcp_worker.child.http_transport import (
    LINGERING_MAX,
    TELLS_AT_ONCE_MAX,
    HttpTransport,
    RequestRefused,
)
from metamcp_worker.child.request_headers import RequestHeaders
from metamcp_worker.child.sse2024_transport import Sse2024
from metamcp_worker.child.transport import SpawnFailed, Transport, TransportListener
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.fetch import Auth, ConnectionBroken, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, TooLarge
from metamcp_worker.ipc.spec import ServerSpec

RECHECK_S = 0.25
"""Seconds between a request that did not reach the server and the check whether the server is there
at all: a server that is being replaced may be away for a moment."""
WARNINGS_MAX = 20
"""Maximum number of warnings about tools that are left out of one page of a list."""

_OLDER = frozenset({400, 404, 405})
"""Statuses that a server of the older protocol may answer to a POST."""
_NO_SUCH_PLACE = frozenset({404, 405})
"""Statuses that say that the URL is a wrong one, if no error of MCP comes with them."""
_CREDENTIALS = frozenset({401, 403, 407})
_LATER = frozenset({408, 425, 429})
_OFFERS = "notifications/tools/list_changed"

Elsewhere = Callable[[ServerRequest], Awaitable[Fail | None]]
"""Function that sends a request, which was refused here, by another protocol, or returns why the
server does not speak that."""


class Streamable:
    """Protocol of one server. `elsewhere`: called for a server that does not speak streamable HTTP;
    None if the server has to."""

    def __init__(self, link: HttpTransport, version: str, elsewhere: Elsewhere | None) -> None:
        self._link = link
        self._elsewhere = elsewhere
        self._sessions = HttpSessionManager(link)
        self._headers = RequestHeaders()
        self._stamp = jsonrpc_lines.MetaBuilder(jsonrpc_lines.MODERN, version)
        self._own_s = max(link.spec.timeout_s, link.spec.start_timeout_s)
        self._legacy = False
        self._met = False
        self._sent: dict[bytes, HttpSession] = {}

    def request(self, request: ServerRequest) -> None:
        if request.method == "initialize":
            work = self._initialize
        elif self._legacy and request.method != "server/discover":
            work = self._in_session
        else:
            work = self._alone
            self._met = self._met or request.method != "server/discover"
        self._link.ask(request.key, request.line, lambda: work(request))

    def write(self, line: bytes, via: int) -> bool:
        session = self._sessions.sessions.by_via(via)
        if session is None or not self._legacy:
            return False  # Modern servers are sent nothing but requests.
        if not session.is_open and codec.envelope(line).method == "notifications/initialized":
            self._sessions.greet(line)
            return True
        return self._tell(session, line)

    def drop(self, drop: CancelRequest) -> bool:
        session = self._sent.get(drop.key)
        self._link.cut(drop.key)
        return session is None or self._tell(session, drop.line)

    def tick(self, now: float) -> None:
        self._sessions.tick(now)

    async def farewell(self) -> None:
        await self._sessions.farewell()

    def doubt(self) -> None:
        """Check whether the server is there at all, unless a check is under way."""
        if self._met and not self._link.is_lost and not self._link.is_running("recheck"):
            self._link.start("recheck", self._recheck)

    # --- requests ---------------------------------------------------------------------------

    async def _alone(self, request: ServerRequest) -> None:
        """Send a request to a modern server, or to one whose era is not known."""
        try:
            headers = self._headers.headers(request.method, request.params)
        except TooLarge as error:
            problem = f"cannot be sent this: {error}"
            data: dict[str, object] = {"limit_bytes": error.limit_bytes, "may_have_run": False}
            raise RequestRefused(self._link.faults.body(Code.TOO_LARGE, problem, data)) from None
        endless = not request.own or request.method == "subscriptions/listen"
        post = Post(
            request.key, request.line, headers, request.key,
            own=request.own, answer_s=ANSWER_S_MAX if endless else self._own_s,
        )  # fmt: skip
        async with exchange(self._link, post) as answer:
            if request.method == "tools/list":
                answer.message, warnings = self._headers.learn(answer.message)
                for text in warnings[:WARNINGS_MAX]:
                    self._link.warn(text)
            self._link.deliver(answer.message, request.key, 0)
            objection = http_exchange.objection(answer.message)
        if objection == Code.HEADER_MISMATCH:
            # The tools say which headers the server wants, so the known list must be out of date.
            self._link.deliver(jsonrpc_lines.notification(_OFFERS), b"", 0)
        elif objection == Code.UNSUPPORTED_VERSION:
            self.doubt()

    async def _initialize(self, request: ServerRequest) -> None:
        post = Post(
            request.key, request.line, request_headers.INITIALIZE, b"",
            resumable=True, answer_s=self._own_s,
        )  # fmt: skip
        try:
            async with exchange(self._link, post) as answer:
                refusal = answer.message if answer.status in _OLDER and self._elsewhere else b""
                if not refusal:
                    if self._sessions.begin(request.params, answer):
                        self._legacy = self._met = True
                    self._link.deliver(answer.message, request.key, 0)
            if refusal and await self._try_older(request):
                self._link.deliver(refusal, request.key, 0)
        except (Unreachable, ConnectionBroken) as error:
            self._link.lose_touch(error, "is not there")
        except RequestRefused as refused:
            if refused.status in _OLDER and self._elsewhere is not None:
                await self._go_elsewhere(request, refused)
            elif refused.status in _CREDENTIALS:
                self._link.lose(
                    Fail("authorization", f"it {http_exchange.sentence(refused.status)}")
                )
            elif refused.status >= 500 or refused.status in _LATER:
                message = f"it {http_exchange.sentence(refused.status)}"
                self._link.lose(Fail("exit", message, refused.retry_after_s))
            else:
                raise

    async def _try_older(self, request: ServerRequest) -> Fail | None:
        """Send `initialize` by the older protocol, the first time. Return why it was not sent."""
        elsewhere, self._elsewhere = self._elsewhere, None
        assert elsewhere is not None
        return await elsewhere(request)

    async def _go_elsewhere(self, request: ServerRequest, refused: RequestRefused) -> None:
        """Send `initialize`, which was refused without an error of MCP, by the older protocol.
        Raises RequestRefused if the server does not speak that, but knows the URL."""
        failure = await self._try_older(request)
        if failure is None:
            return
        if refused.status not in _NO_SUCH_PLACE:
            raise refused
        message = f"{failure.message}, and before that: {http_exchange.sentence(refused.status)}"
        self._link.lose(structs.replace(failure, message=message))

    async def _in_session(self, request: ServerRequest) -> None:
        session = self._sessions.sessions.of(request)
        if session is None:
            problem = (
                f"has {SESSIONS_MAX} sessions for other kinds of clients in use; try again later"
            )
            raise RequestRefused(
                self._link.faults.body(Code.OVERLOADED, problem, {"may_have_run": False})
            )
        session.busy += 1
        try:
            if not await self._try_session(request, session) and not await self._try_session(
                request, session
            ):
                problem = "forgot its session twice in a row"
                data: dict[str, object] = {"may_have_run": False}
                raise RequestRefused(self._link.faults.body(Code.SERVER_DOWN, problem, data))
        finally:
            session.busy -= 1
            session.idle_since = asyncio.get_running_loop().time()
            self._sent.pop(request.key, None)

    async def _try_session(self, request: ServerRequest, session: HttpSession) -> bool:
        """Get the answer in this session. Return False if the session was over."""
        await self._sessions.ready(session)
        session_id = session.id
        self._sent[request.key] = session
        post = Post(
            request.key, request.line, session.headers, request.key, session.talk,
            resumable=True, own=request.own,
            answer_s=self._own_s if request.own else ANSWER_S_MAX,
        )  # fmt: skip
        try:
            async with exchange(self._link, post) as answer:
                del self._sent[request.key]
                if request.method in SETTINGS and codec.envelope(answer.message).result:
                    session.remember(request)
                self._link.deliver(answer.message, request.key, post.via)
                objection = http_exchange.objection(answer.message)
        except SessionOver:
            self._sessions.on_session_lost(session, session_id)
            return False
        if objection == Code.UNSUPPORTED_VERSION:
            revision = session.headers[mcp_headers.PROTOCOL]
            self._link.lose(Fail("protocol", f"it does not speak {revision} any more"))
        return True

    # --- the rest ---------------------------------------------------------------------------

    def _tell(self, session: HttpSession, line: bytes) -> bool:
        """Send a message without an answer in the current opening of the session; in a later one it
        would have no meaning."""
        opened = session.opened

        async def send_line() -> None:
            if session.opened != opened:
                return
            session_id = session.id
            try:
                status = await tell(self._link, line, session.headers)
            except Unreachable:
                self.doubt()
            except (ConnectionBroken, RequestRefused) as error:
                self._link.warn(f"a notification or an answer to it was lost: {error}")
            else:
                if status == 404:
                    self._sessions.on_session_lost(session, session_id)
                elif status >= 400:
                    reason = http_exchange.format_status(status)
                    self._link.warn(f"it refused a notification, or an answer to it: {reason}")

        return self._link.tell(line, send_line)

    async def _recheck(self) -> None:
        """Check the server: a legacy server is there if it answers at all, a modern one only if it
        is still modern."""
        await asyncio.sleep(RECHECK_S)
        key = self._sessions.new_id()
        prefix = f"it does not speak {jsonrpc_lines.MODERN} any more: it"
        try:
            if self._legacy:
                await self._ping(key)
                return
            line = jsonrpc_lines.request(key, "server/discover", b"{}", self._stamp.own())
            headers = self._headers.headers("server/discover", b"{}")
            async with exchange(
                self._link, Post(key, line, headers, b"", answer_s=OPEN_S_MAX)
            ) as answer:
                if not codec.envelope(answer.message).result:
                    self._link.lose(Fail("protocol", f"{prefix} refuses server/discover"))
        except RequestRefused as refused:
            if refused.status in _OLDER:
                self._link.lose(
                    Fail("protocol", f"{prefix} {http_exchange.sentence(refused.status)}")
                )
        except (Unreachable, ConnectionBroken) as error:
            self._link.lose_touch(error, "is not there any more")

    async def _ping(self, key: bytes) -> None:
        line = jsonrpc_lines.request(key, "ping", b"{}")
        headers = self._sessions.sessions.base.headers
        response = await self._link.origin.send("POST", headers, line, answer_s=OPEN_S_MAX)
        await response.close()


OWN_REQUESTS_MAX = 64
"""Maximum number of the gateway's own requests at once: lists, subscriptions, checks whether the
server is there. Own requests never wait for calls."""


def remote(
    spec: ServerSpec, version: str, listener: TransportListener, auth: Auth | None = None
) -> Transport:
    """Return the transport to `spec.url`. `version`: of the gateway. `auth`: adds credentials to
    each request. Raises SpawnFailed if the URL cannot be used."""
    headers, refused = request_headers.filter_headers(spec.headers)
    # Each session has a stream, may be opened and may be closed.
    beside = OWN_REQUESTS_MAX + TELLS_AT_ONCE_MAX + LINGERING_MAX + 3 * SESSIONS_MAX
    requests_max = spec.concurrency + beside
    try:
        origin = Origin(
            spec.url or "",
            headers=headers,
            auth=auth,
            limits=FetchLimits(requests_max=requests_max),
        )
    except (Unreachable, ValueError) as error:
        raise SpawnFailed(f"cannot connect to {spec.name}: {error}") from None
    made = RemoteTransport(spec, version, listener, origin)
    for name in refused:
        made.warn(f"the header {name!r} of its configuration is not sent: it is the gateway's own")
    return made


class RemoteTransport(HttpTransport):
    """`Transport` to a URL by one of the two protocols."""

    def __init__(
        self, spec: ServerSpec, version: str, listener: TransportListener, origin: Origin
    ) -> None:
        super().__init__(spec, listener, origin)
        self._way: Streamable | Sse2024
        if spec.transport == "sse":
            self._way = Sse2024(self)
        else:
            elsewhere = self._elsewhere if spec.transport == "auto" else None
            self._way = Streamable(self, version, elsewhere)

    def request(self, request: ServerRequest) -> bool:
        if self.is_lost:
            return False
        self._way.request(request)
        return True

    def write(self, line: bytes, via: int = 0) -> bool:
        return not self.is_lost and self._way.write(line, via)

    def drop(self, drop: CancelRequest) -> bool:
        return not self.is_lost and self._way.drop(drop)

    def doubt(self) -> None:
        self._way.doubt()

    def tick(self) -> None:
        """Do the work that is due; called a few times per second."""
        self._way.tick(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """Cancel all tasks, and say goodbye to the server if it is there."""
        await self.kill()
        if not self.gone:
            await self._way.farewell()

    async def _elsewhere(self, request: ServerRequest) -> Fail | None:
        """Switch to the older protocol and send a request. Return why that is not possible."""
        older = Sse2024(self, trial=True)
        failure = await older.try_out()
        if failure is None:
            self._way = older
            older.request(request)
        return failure
