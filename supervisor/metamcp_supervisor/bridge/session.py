"""Logic of the bridge: lines of a client in, HTTP exchanges with the gateway out, and back.

Owns: the era of the connection, exactly one answer to every request, the text of failures, which
messages are sent again. Never: I/O, the clock, headers and sessions (`modern_era`, `legacy_era`).

The era belongs to the request: a request with the protocol version in its `_meta` is modern. The
first request that the gateway answers decides for the connection, as on any pipe of the protocol; a
request that the gateway never saw decides nothing, so that a client may try one era after the
other.
"""

from msgspec import Raw

from metamcp_supervisor.bridge.http_requests import (
    Action,
    BridgeExchange,
    ExchangePurpose,
    Exchanges,
    Failure,
    StopExchange,
    WarnPeople,
    WriteLine,
    error,
    key,
    one_line,
)
from metamcp_supervisor.bridge.legacy_era import LegacySession
from metamcp_supervisor.bridge.modern_era import VERSION, ModernRequests
from metamcp_worker.http.sse import SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope, ScannedId, glimpse
from metamcp_worker.ipc.errors import Code

INFLIGHT_MAX = 1024
"""Maximum requests at once: as many as the gateway takes of one session."""
BUSY_MAX = 20
BUSY_S = 0.25
"""How often a gateway that is not ready yet is asked again, and the seconds before each time: five
seconds in all."""
RESUMES_MAX = 20
"""How often the stream of one request is taken up again, at most."""
RESUME_S = 1.0
RESUME_S_MAX = 30.0
"""Seconds before that, unless the gateway names other ones, and the maximum that it may name."""

_CANCELLED = "notifications/cancelled"
_RETRIED = frozenset(
    {
        ExchangePurpose.REQUEST,
        ExchangePurpose.NOTICE,
        ExchangePurpose.HELLO,
        ExchangePurpose.REPLAY,
        ExchangePurpose.LIST,
    }
)
_MODERN = "2026-07-28"
_NONE = Raw()


_REMEDIES = {
    401: "asks for a valid key: name its file with --key-file, or put it into METAMCP_KEY",
    404: "has no such endpoint: its path is wrong, or the key belongs to another workspace",
}
"""Status of a refusal that people see once: what it says of the gateway, and what to do."""


class BridgeSession:
    """Connection of one client. `gateway`: name of the gateway in sentences."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self._exchanges = Exchanges()
        self._legacy = LegacySession(self._exchanges)
        self._modern = ModernRequests(self._exchanges)
        self._era: bool | None = None  # whether it is modern
        self._away = False
        self._ended = False
        self._told: set[int] = set()  # those of `_REMEDIES`

    @property
    def idle(self) -> bool:
        """Whether all requests are answered except `subscriptions/listen`, which stays open."""
        return all(
            exchange.method == "subscriptions/listen" for exchange in self._exchanges.list_waiting()
        )

    def cares(self, number: int) -> bool:
        """Whether the rest of this exchange is still wanted."""
        return self._exchanges[number] is not None

    # From the client

    def on_line(self, line: bytes) -> list[Action]:
        """Take a line of the client."""
        try:
            message = codec.envelope(line)
        except codec.Malformed as malformed:
            if line.lstrip().startswith(b"["):
                return [_refusal(b"", Code.INVALID_REQUEST, "Batches are not served.")]
            text = f"The line is not a JSON-RPC message: {malformed}."
            return [self._unread(glimpse(line, line), Code.PARSE_ERROR, text)]
        if message.method is None:
            if not (message.result or message.error):
                text = "The message is not a request, notification or answer."
                return [_refusal(bytes(message.id), Code.INVALID_REQUEST, text)]
            return (
                []
                if self._ended
                else self._legacy.send(BridgeExchange(ExchangePurpose.NOTICE, line))
            )
        if not message.id:
            return [] if self._ended else self._on_notification(message, line)
        if not codec.id_ok(bytes(message.id)):
            text = "The id must be a string or an integer."
            return [_refusal(b"", Code.INVALID_REQUEST, text)]
        return self._on_request(message, line)

    def overlong(self, seen: ScannedId, limit_bytes: int) -> list[Action]:
        """Answer a line above the limit, which was dropped."""
        text = f"The message has more than {limit_bytes} bytes."
        warning = WarnPeople(f"{text} It was dropped.")
        if seen.answer:  # a server waits for it
            if not seen.raw_id or self._ended:
                return [warning]
            answer = error(seen.raw_id, Code.TOO_LARGE, text)
            return [warning, *self._legacy.send(BridgeExchange(ExchangePurpose.NOTICE, answer))]
        return [self._unread(seen, Code.TOO_LARGE, text), warning]

    def goodbye(self) -> list[Action]:
        """End everything, because the client is gone. The client may still read, so its open
        requests are answered; requests that come from now on are refused."""
        self._ended = True
        actions: list[Action] = [StopExchange(number) for number in self._exchanges.numbers]
        for request in self._exchanges.list_waiting():
            text = "The connection ended before the answer came."
            actions += self._fail(request, Failure(text, may_have_run=request.number > 0))
        return [*actions, *self._legacy.goodbye()]

    def _unread(self, seen: ScannedId, code: int, text: str) -> WriteLine:
        """Return the refusal of a message when only `seen` is known of it. The refusal has no id if
        the id belongs to another request or not to a request, since the wrong request would be
        answered."""
        raw_id = seen.raw_id
        if seen.answer or not codec.id_ok(raw_id) or self._exchanges.request(raw_id) is not None:
            raw_id = b""
        return _refusal(raw_id, code, text)

    def _on_request(self, message: Envelope, line: bytes) -> list[Action]:
        assert message.method is not None
        raw_id = bytes(message.id)
        if self._ended:
            text = "The connection ended before this request was sent."
            return [_refusal(raw_id, Code.SERVER_DOWN, text)]
        modern = VERSION in codec.members(codec.members(message.params).get("_meta", _NONE))
        if self._era is not None and modern != self._era:
            return [_foreign(message, raw_id, modern=modern)]
        if len(self._exchanges) >= INFLIGHT_MAX:
            text = f"{INFLIGHT_MAX} requests are in flight; try again when some are answered."
            return [_refusal(raw_id, Code.OVERLOADED, text)]
        exchange = BridgeExchange(
            ExchangePurpose.REQUEST, line, method=message.method, raw_id=raw_id, modern=modern
        )
        if not self._exchanges.add(exchange):
            text = "A request with this id is still in flight."
            return [_refusal(raw_id, Code.INVALID_REQUEST, text)]
        if modern:
            return self._modern.send(exchange, message)
        return self._legacy.send(exchange)

    def _on_notification(self, message: Envelope, line: bytes) -> list[Action]:
        assert message.method is not None
        notice = BridgeExchange(
            ExchangePurpose.NOTICE, line, method=message.method, modern=self._era or False
        )
        if message.method == _CANCELLED:
            subject = codec.members(message.params).get("requestId")
            request = None if subject is None else self._exchanges.request(bytes(subject))
            if request is None:
                return []  # it is answered already
            if request.modern:
                return self._withdraw(request)
            return self._legacy.send(notice) if self._legacy.withdraw(request) else []
        if notice.modern:
            return self._modern.send(notice, message)
        return self._legacy.send(notice)

    def _withdraw(self, request: BridgeExchange) -> list[Action]:
        """Cancel a modern request by ending its HTTP request. The client gets no answer."""
        number = request.number
        self._modern.withdraw(request)
        self._exchanges.end_exchange(request)
        return [StopExchange(number)] if number else []

    # From the gateway

    def head(self, number: int, status: int, session: bytes) -> list[Action]:
        """Take the head of an answer. `session`: value of its session header, or empty."""
        exchange = self._exchanges[number]
        if exchange is None:
            return []
        exchange.status = status
        actions: list[Action] = []
        if self._away:
            self._away = False
            actions.append(WarnPeople(f"{self.gateway} is back."))
        if (remedy := _REMEDIES.get(status)) and not exchange.session and status not in self._told:
            self._told.add(status)
            actions.append(WarnPeople(f"{self.gateway} {remedy}."))
        if status == 503 and exchange.purpose in _RETRIED and exchange.busy < BUSY_MAX:
            exchange.busy += 1
            return actions + self._retry(exchange)
        if exchange.modern:
            self._modern.head(exchange, status)
            return actions
        return actions + self._legacy.head(exchange, status, session)

    def _retry(self, exchange: BridgeExchange) -> list[Action]:
        """Send an exchange again after a pause, because the gateway was not ready; end it instead
        if its answer is not wanted any more."""
        if exchange.silent and exchange.method != "initialize":  # others wait for that one
            self._exchanges.end_exchange(exchange)
            return []
        if exchange.resumes:
            return [self._legacy.resume(exchange, BUSY_S)]
        return [self._exchanges.send(exchange, after_s=BUSY_S)]

    def event(self, number: int, event: SseEvent) -> list[Action]:
        """Take an event of a stream."""
        exchange = self._exchanges[number]
        if exchange is None:
            return []
        if event.id is not None:
            exchange.last_id = event.id
        return self.message(number, event.data) if event.data else []

    def message(self, number: int, data: bytes) -> list[Action]:
        """Take a message of the gateway."""
        exchange = self._exchanges[number]
        if exchange is None:
            return []
        try:
            message = codec.envelope(data)
        except codec.Malformed:
            return [
                WarnPeople(f"{self.gateway} sent something that is not a message; it was dropped.")
            ]
        if message.method is not None:
            return [] if exchange.silent else [WriteLine(one_line(data))]
        if exchange.purpose is ExchangePurpose.REQUEST:
            return self._answer(exchange, message, data)
        if exchange.purpose is ExchangePurpose.STREAM:
            return self._astray(message, data)
        if exchange.purpose is ExchangePurpose.HELLO:
            return self._unpark(self._legacy.on_answer(exchange, message))
        if exchange.purpose is ExchangePurpose.LIST:
            return self._modern.on_tools_page(exchange, message)
        return []

    def on_exchange_end(
        self, number: int, failure: Failure | None = None, retry_ms: int | None = None
    ) -> list[Action]:
        """Take the end of an exchange. `retry_ms`: pause that its stream asked for."""
        exchange = self._exchanges[number]
        if exchange is None:
            return []
        actions: list[Action] = []
        if (
            failure is not None
            and not self._away
            and exchange.purpose is not ExchangePurpose.GOODBYE
        ):
            self._away = not failure.may_have_run
            actions.append(WarnPeople(failure.text))
        match exchange.purpose:
            case ExchangePurpose.REQUEST:
                return actions + self._resume_or_fail(exchange, failure, retry_ms)
            case ExchangePurpose.STREAM:
                return actions + self._legacy.on_stream_end(exchange, retry_ms)
            case ExchangePurpose.HELLO:
                failure = failure or self._make_failure(exchange)
                return actions + self._unpark(
                    self._legacy.on_session_refused(exchange, failure), failure
                )
            case ExchangePurpose.LIST:
                return actions + self._modern.on_list_failed(exchange)
            case _:
                self._exchanges.end_exchange(exchange)
                if failure is None and exchange.status >= 400:
                    subject = exchange.method or "what the client said"
                    actions.append(
                        WarnPeople(f"{self.gateway} refused {subject}: HTTP {exchange.status}.")
                    )
                return actions

    def _answer(self, exchange: BridgeExchange, message: Envelope, data: bytes) -> list[Action]:
        raw_id = bytes(message.id)
        if raw_id in {b"", b"null"}:
            # Refused before the gateway knew the id; the client needs it to understand.
            data = b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (exchange.raw_id, bytes(message.error))
            if not message.error or exchange.resumes:  # then it does not refuse the request
                return []
        elif key(raw_id) != key(exchange.raw_id):
            return self._astray(message, data)
        line = one_line(data)
        after: list[Action] = []
        if self._era is None:
            self._era = exchange.modern
        if exchange.modern:
            instead = self._modern.on_answer(exchange, message, line)
            if instead is not None:
                return instead
        else:
            after = self._legacy.on_answer(exchange, message)
        self._exchanges.end_exchange(exchange)
        answer: list[Action] = [] if exchange.silent else [WriteLine(line)]
        return answer + (self._unpark(after) if exchange.method == "initialize" else after)

    def _astray(self, message: Envelope, data: bytes) -> list[Action]:
        """Take an answer that came on another stream than that of its request, and end the stream
        of the request, which may still be open."""
        request = self._exchanges.request(bytes(message.id))
        if request is None:
            return []
        number = request.number
        actions = self._answer(request, message, data)
        return actions if not number or self.cares(number) else [*actions, StopExchange(number)]

    def _resume_or_fail(
        self, exchange: BridgeExchange, failure: Failure | None, retry_ms: int | None
    ) -> list[Action]:
        """Resume or fail a request whose exchange is over without an answer."""
        begun = exchange.status == 200 and exchange.last_id and not exchange.modern
        again = exchange.resumes > 0 and exchange.status < 400
        if (begun or again) and not exchange.silent and exchange.resumes < RESUMES_MAX:
            exchange.resumes += 1
            after_s = RESUME_S if retry_ms is None else min(retry_ms / 1000, RESUME_S_MAX)
            return [self._legacy.resume(exchange, after_s)]
        failure = failure or self._make_failure(exchange)
        actions = self._fail(exchange, failure)
        if exchange.method == "initialize" and not exchange.modern:
            actions += self._unpark(self._legacy.on_session_refused(exchange, failure), failure)
        return actions

    def _unpark(self, actions: list[Action], failure: Failure | None = None) -> list[Action]:
        """Fail the messages that still wait for the session, because it was refused."""
        failure = failure or Failure("The gateway refused to open a session.", may_have_run=False)
        for exchange in self._legacy.unpark():
            actions += self._fail(exchange, failure)
        return actions

    def _fail(self, exchange: BridgeExchange, failure: Failure) -> list[Action]:
        """End an exchange, and answer its request with an error unless no answer is wanted."""
        self._exchanges.end_exchange(exchange)
        if exchange.purpose is not ExchangePurpose.REQUEST or exchange.silent:
            return []
        text = failure.text
        if failure.may_have_run:
            text += " The request may have been processed; ask again only if that does no harm."
        return [_refusal(exchange.raw_id, Code.SERVER_DOWN, text)]

    def _make_failure(self, exchange: BridgeExchange) -> Failure:
        if exchange.status == 200:
            return Failure(f"{self.gateway} ended the stream of this request without an answer.")
        status = exchange.status
        if exchange.resumes:
            text = f"{self.gateway} has the answer of this request no more: HTTP {status}."
            return Failure(text)
        text = f"{self.gateway} answered with HTTP {status} and no message."
        return Failure(text, may_have_run=not (400 <= status < 500 or status == 503))


def _refusal(raw_id: bytes, code: int, text: str) -> WriteLine:
    return WriteLine(error(raw_id, code, text))


def _foreign(message: Envelope, raw_id: bytes, *, modern: bool) -> WriteLine:
    """Refuse a request of the other era than that of the connection."""
    if modern:
        text = "This connection began with initialize; it has no requests that stand alone."
        return _refusal(raw_id, Code.INVALID_REQUEST, text)
    version = codec.text(codec.members(message.params).get("protocolVersion", _NONE)) or ""
    text = "Unsupported protocol version: this connection began with requests that stand alone."
    data = {"supported": [_MODERN], "requested": version}
    return WriteLine(error(raw_id, Code.UNSUPPORTED_VERSION, text, data))
