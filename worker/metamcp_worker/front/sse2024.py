"""HTTP+SSE, the transport of revision 2024-11-05: one stream for everything that a client is told.

Owns: the stream and the `endpoint` event that begins it, which session a posted message is for, the
end of the session with its stream. Never: what is said in a session (`dialogue`).
"""

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qs, quote

from metamcp_worker.catalog.views import View
from metamcp_worker.front import answers
from metamcp_worker.front.dialogue import Dialogue
from metamcp_worker.front.elsewhere import missing
from metamcp_worker.front.exchange import Declined, Exchange, outcome
from metamcp_worker.front.guard import Facts
from metamcp_worker.front.legacy import Legacy, parameters
from metamcp_worker.front.links import Answer, Call
from metamcp_worker.front.session import Session, Sessions
from metamcp_worker.front.streams import Stream
from metamcp_worker.http.requests import Pending
from metamcp_worker.ipc.codec import Envelope
from metamcp_worker.ipc.errors import Code, Refused


class Line:
    """One stream, and the session on it once there was a handshake. `open`: somebody reads it."""

    __slots__ = ("endpoint", "open", "principal", "session", "stream")

    def __init__(self, stream: Stream, endpoint: str, principal: str) -> None:
        self.stream = stream
        self.endpoint = endpoint
        self.principal = principal
        self.session: Session | None = None
        self.open = True


class Posted:
    """A message that was posted; what there is to answer goes on the stream. A `client.Outlet`."""

    __slots__ = ("_stream", "facts")

    def __init__(self, stream: Stream, endpoint: str) -> None:
        self.facts = Facts(endpoint, accepts_sse=True)
        self._stream = stream

    def json(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._stream.answer(answers.event(body))

    def result(self, raw_id: bytes, body: bytes) -> Pending:
        self._stream.answer(answers.event(answers.result(raw_id, body)))
        return None

    def empty(self, status: int) -> None:
        pass  # the post was answered when it came

    def begin(self) -> Stream:
        return self._stream

    def put(self, event: bytes) -> bool:
        self._stream.put(event)
        return True

    async def settle(self) -> None:
        pass  # the stream outlives this message

    def watch(self, on_lost: Callable[[], None]) -> None:
        pass  # with the stream the session ends, and with that its calls

    def unwatch(self) -> None:
        pass

    async def expect(self, call: Call, then: Callable[[Answer | None], Pending]) -> None:
        rest = then(await outcome(call))
        if rest is not None:
            await rest


class Sse:
    """The streams of this transport. `mint`: makes the names under which clients post."""

    def __init__(
        self, legacy: Legacy, dialogue: Dialogue, sessions: Sessions, mint: Callable[[], str]
    ) -> None:
        self._legacy = legacy
        self._dialogue = dialogue
        self._sessions = sessions
        self._mint = mint
        self._lines: dict[str, Line] = {}

    async def get(self, exchange: Exchange, view: View) -> None:
        """A new stream. Raises Declined and Elsewhere."""
        exchange.check_staying()
        exchange.check_stream()
        stream = exchange.stream()
        name = self._mint()
        line = self._lines[name] = Line(stream, view.endpoint, view.principal)
        where = f"{view.spec.base}/messages?session_id={quote(name)}"
        stream.put(b"event: endpoint\ndata: %b\n\n" % where.encode())
        try:
            await exchange.stand(stream, view, {})
        finally:
            del self._lines[name]
            line.open = False
            stream.end()
            if line.session is not None:
                self._sessions.close(line.session)

    def post(
        self, exchange: Exchange, message: Envelope, view: View, version: str
    ) -> Awaitable[None]:
        """A message for one of the streams. Raises Declined and Elsewhere; what is wrong with the
        message is said on the stream."""
        return self._take(self._line(exchange, view), exchange, message, view, version)

    async def _take(
        self, line: Line, exchange: Exchange, message: Envelope, view: View, version: str
    ) -> None:
        raw_id = bytes(message.id) if message.method is not None else b""
        posted = Posted(line.stream, line.endpoint)
        line.stream.owed += 1  # from now on the stream waits for it
        try:
            exchange.empty(202)
            rest = self._answer(posted, line, message, view, version)
            del message  # it holds the body
            if rest is not None:
                await rest
        except (Refused, Declined) as why:
            if raw_id:
                posted.json(200, answers.error(raw_id, why.code, why.message))
        finally:
            line.stream.paid()

    def _answer(
        self, posted: Posted, line: Line, message: Envelope, view: View, version: str
    ) -> Pending:
        params, meta = parameters(message)
        raw_id = bytes(message.id)
        if message.method == "initialize" and raw_id:
            if line.session is not None:
                raise Refused(Code.INVALID_REQUEST, "This session is initialized already.")
            session, result = self._legacy.open(params, view, version, resumable=False)
            line.session = session
            session.attach(line.stream)
            posted.json(200, answers.result(raw_id, result))
            return None
        if line.session is None:
            raise Refused(Code.INVALID_REQUEST, "Send initialize first.")
        return self._dialogue.answer(posted, message, params, meta, line.session, view)

    def _line(self, exchange: Exchange, view: View) -> Line:
        names = parse_qs(exchange.facts.query.decode("latin-1")).get("session_id", [])
        if len(names) != 1:
            message = "The query needs session_id, as the endpoint event gave it."
            raise Declined(400, message, "session")
        gone = "There is no such stream (any more); open a new one."
        line = self._lines.get(names[0])
        found = line is not None and line.endpoint == view.endpoint
        if line is None or not found or line.principal != view.principal:
            raise missing(names[0], Declined(404, gone, "session"))
        if line.stream.ended:  # what is said on it now, nobody would hear
            raise Declined(404, gone, "session")
        return line
