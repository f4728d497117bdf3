"""The bridge in the handshake era: one session with the gateway, opened as the client asked.

Owns: the session's id and revision, the messages that wait while it is opened, opening it again
when the gateway has forgotten it, its stream. Never: the table of requests (`http_requests`),
modern requests, carrying out an action.

    CLOSED --initialize--> OPENING --its result--> OPEN --404--> OPENING (again, by ourselves)

A gateway that was restarted knows none of its sessions. The client has said everything that a new
session needs, so the bridge opens it with the same bytes, and the client learns only that lists may
have changed.
"""

from msgspec import Raw

from metamcp_supervisor.bridge.http_requests import (
    Action,
    BridgeExchange,
    ExchangePurpose,
    Exchanges,
    Failure,
    Send,
    StopExchange,
    WarnPeople,
    WriteLine,
)
from metamcp_worker.http.mcp_headers import EVENTS, LAST_EVENT, MESSAGE, PROTOCOL, SESSION
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope

NOTICES_MAX = 256
"""Maximum notifications and answers that wait for the session; more than a client has in flight."""
REPLAYS_MAX = 1024
"""Maximum subscriptions that are asked for again in a new session."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 15.0
"""Seconds before the stream is asked for again: doubled each time from the minimum to the
maximum."""

_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_LISTS = ("tools", "prompts", "resources")
_GONE = 404
_NONE = Raw()


class LegacySession:
    """Session of this bridge with the gateway."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._hello = b""
        self._id = b""
        self._version = ""
        self._opening = False
        self._welcomed = False
        self._parked: list[BridgeExchange] = []
        self._stream: BridgeExchange | None = None
        self._replays: dict[bytes, bytes] = {}
        self._pause_s = PAUSE_S_MIN

    def send(self, exchange: BridgeExchange) -> list[Action]:
        """Send a message of the client, or let it wait until the session is open."""
        if exchange.purpose is ExchangePurpose.REQUEST and exchange.method == "initialize":
            self._hello = exchange.body
            self._opening = True
            self._welcomed = False
            exchange.headers = MESSAGE
            return [self._exchanges.send(exchange)]
        if self._opening:
            return self._park(exchange)
        return [self._post(exchange)]

    def withdraw(self, exchange: BridgeExchange) -> bool:
        """Note that the client cancelled this request. Return False if it was never sent."""
        exchange.silent = True
        if exchange in self._parked:
            self._parked.remove(exchange)
            self._exchanges.end_exchange(exchange)
            return False
        return True

    def head(self, exchange: BridgeExchange, status: int, session: bytes) -> list[Action]:
        """Take the head of an answer. `session`: session id in it."""
        if status == _GONE and exchange.session and not exchange.moved and not exchange.resumes:
            if exchange.silent:  # cancelled: not to be done in another session
                self._exchanges.end_exchange(exchange)
                return []
            return self._reopen_session(exchange)
        if status >= 400:
            return []
        if exchange.purpose is ExchangePurpose.HELLO or exchange.method == "initialize":
            exchange.session = session
        elif exchange.purpose is ExchangePurpose.STREAM:
            self._pause_s = PAUSE_S_MIN
        elif exchange.method == "notifications/initialized" and not self._welcomed:
            self._welcomed = True
            return self._listen()
        if exchange.method not in _REPLAYED:
            exchange.body = b""  # it will not be sent again, and may be large
        return []

    def on_answer(self, exchange: BridgeExchange, message: Envelope) -> list[Action]:
        """Take the answer to a request of the client or to the bridge's own `initialize`."""
        if exchange.purpose is ExchangePurpose.HELLO or exchange.method == "initialize":
            if not message.result:
                return self.on_session_refused(
                    exchange, Failure("The gateway refused to open a session.")
                )
            return self._on_session_opened(exchange, message.result)
        if exchange.method in _REPLAYED and message.result:
            self._remember(exchange)
        return []

    def on_session_refused(self, exchange: BridgeExchange, failure: Failure) -> list[Action]:
        """Note that the session was not opened. The caller fails the messages that wait for it."""
        self._exchanges.end_exchange(exchange)
        self._opening = False
        if not (self._welcomed and self._id) or self._stream is not None:
            return []
        return self._listen(self._next_pause())  # the next try finds the session gone and opens one

    def unpark(self) -> list[BridgeExchange]:
        """Return the messages that waited for the session, which wait no longer."""
        parked, self._parked = self._parked, []
        return parked

    def on_stream_end(self, exchange: BridgeExchange, retry_ms: int | None) -> list[Action]:
        """Ask for the session's stream again, which has ended, unless the gateway has none."""
        refused = 400 <= exchange.status < 500
        self._exchanges.end_exchange(exchange)
        if exchange is not self._stream:
            return []
        self._stream = None
        if refused:
            return []
        pause_s = self._next_pause()
        if retry_ms is not None:
            pause_s = min(max(retry_ms / 1000, PAUSE_S_MIN), PAUSE_S_MAX)
        return self._listen(pause_s, exchange.last_id)

    def resume(self, exchange: BridgeExchange, after_s: float) -> Send:
        """Continue the stream of a request where it broke off."""
        exchange.headers = self._stream_headers(exchange.last_id)
        exchange.session = self._id
        return self._exchanges.send(exchange, "GET", after_s)

    def goodbye(self) -> list[Action]:
        if not self._id:
            return []
        exchange = BridgeExchange(ExchangePurpose.GOODBYE)
        exchange.headers = self._stamp()
        return [self._exchanges.send(exchange, "DELETE")]

    def _park(self, exchange: BridgeExchange) -> list[Action]:
        waiting = sum(parked.purpose is ExchangePurpose.NOTICE for parked in self._parked)
        if exchange.purpose is ExchangePurpose.NOTICE and waiting >= NOTICES_MAX:
            return [
                WarnPeople(
                    f"{exchange.method or 'an answer'} was dropped: the session is not open."
                )
            ]
        self._parked.append(exchange)
        return []

    def _post(self, exchange: BridgeExchange) -> Send:
        exchange.headers = {**MESSAGE, **self._stamp()}
        exchange.session = self._id
        return self._exchanges.send(exchange)

    def _stamp(self) -> dict[str, str | bytes]:
        headers: dict[str, str | bytes] = {}
        if self._id:
            headers[SESSION] = self._id
        if self._version:
            headers[PROTOCOL] = self._version
        return headers

    def _stream_headers(self, last_id: bytes) -> dict[str, str | bytes]:
        headers = {**self._stamp(), "Accept": EVENTS}
        return {**headers, LAST_EVENT: last_id} if last_id else headers

    def _listen(self, after_s: float = 0.0, last_id: bytes = b"") -> list[Action]:
        """Ask for the session's stream, in the place of an older one."""
        actions: list[Action] = []
        if self._stream is not None:
            actions.append(StopExchange(self._stream.number))
            self._exchanges.end_exchange(self._stream)
        self._stream = exchange = BridgeExchange(ExchangePurpose.STREAM)
        exchange.headers = self._stream_headers(last_id)
        exchange.session = self._id
        return [*actions, self._exchanges.send(exchange, "GET", after_s)]

    def _next_pause(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s

    def _reopen_session(self, exchange: BridgeExchange) -> list[Action]:
        """Open a new session, because the gateway does not know the old one; the exchange was not
        processed, and is sent again in the new session."""
        self._exchanges.unsend(exchange)
        actions: list[Action] = []
        if exchange.purpose is not ExchangePurpose.STREAM:
            exchange.moved = True
            if exchange.session != self._id and not self._opening:
                return [self._post(exchange)]  # another exchange found out before
            actions += self._park(exchange)
        else:
            self._stream = None
        if not self._opening:
            self._opening = True
            hello = BridgeExchange(ExchangePurpose.HELLO, self._hello, method="initialize")
            hello.headers = MESSAGE
            actions += [
                WarnPeople("The gateway does not know this session any more; a new one is opened."),
                self._exchanges.send(hello),
            ]
        return actions

    def _on_session_opened(self, exchange: BridgeExchange, result: Raw) -> list[Action]:
        self._opening = False
        self._id = exchange.session
        self._version = codec.text(codec.members(result).get("protocolVersion", _NONE)) or ""
        actions: list[Action] = []
        if exchange.purpose is ExchangePurpose.HELLO:
            bodies = [_INITIALIZED, *self._replays.values()] if self._welcomed else []
            actions += [self._post(BridgeExchange(ExchangePurpose.REPLAY, body)) for body in bodies]
            actions += _make_list_notifications(result)
            self._exchanges.end_exchange(exchange)
        actions += [self._post(parked) for parked in self.unpark()]
        if exchange.purpose is ExchangePurpose.HELLO and self._welcomed:
            actions += self._listen()
        return actions

    def _remember(self, exchange: BridgeExchange) -> None:
        """Keep a request of the client that the next session must know too."""
        params = codec.members(codec.envelope(exchange.body).params)
        subject = _REPLAYED[exchange.method] or bytes(params.get("uri", b""))
        if exchange.method == "resources/unsubscribe":
            self._replays.pop(subject, None)
        elif subject in self._replays or len(self._replays) < REPLAYS_MAX:
            self._replays[subject] = exchange.body


#: Requests whose effect lasts as long as the session. Only the newest `logging/setLevel` counts.
_REPLAYED = {
    "logging/setLevel": b"level", "resources/subscribe": b"", "resources/unsubscribe": b"",
}  # fmt: skip


def _make_list_notifications(result: Raw) -> list[Action]:
    """Return notifications for the client that its lists may be different in a new session."""
    capabilities = codec.members(codec.members(result).get("capabilities", _NONE))
    return [
        WriteLine(b'{"jsonrpc":"2.0","method":"notifications/%b/list_changed"}' % name.encode())
        for name in _LISTS
        if bytes(codec.members(capabilities.get(name, _NONE)).get("listChanged", b"")) == b"true"
    ]
