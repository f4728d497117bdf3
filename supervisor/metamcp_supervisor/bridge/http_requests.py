"""HTTP exchanges with the gateway: as values, and as the bytes of HTTP/1.1.

Owns: the actions that the session asks for, the numbers of exchanges, the table of requests that
wait for an answer, the errors that the bridge itself answers with; the form of a request, when an
answer is whole, whether its connection can be used again, the limit of bytes without a body. Never:
an era, carrying out an action, connections, time, the meaning of a status.

A number stands for one HTTP request. A message of the client may take several, so a
`BridgeExchange` lives longer than its number: when it is sent again it gets a new number, and
everything that still comes for the old number is dropped.

A connection has one request under way, and so at most one answer at a time. Interim answers (1xx)
are passed over. An answer that changes to another protocol is refused, and every request asks for
an answer without compression.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto

import httptools
from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError


class ExchangePurpose(Enum):
    """Purpose of an exchange. The first two are for messages of the client, the rest for messages
    of the bridge."""

    REQUEST = auto()
    NOTICE = auto()
    """Notification, or answer to a request of a server; the gateway sends no message back."""
    HELLO = auto()
    """Client's `initialize` again, for a session that the gateway has forgotten."""
    REPLAY = auto()
    """Message of the client in the old session that the new session must know."""
    STREAM = auto()
    """Stream of the session itself."""
    LIST = auto()
    """List of the tools, for the headers that they want."""
    GOODBYE = auto()


class Send(Struct, frozen=True):
    """Send one HTTP request. `after_s`: seconds to wait before it; `settles`: the next request
    waits for the answer to this one, otherwise only until this one is written."""

    number: int
    verb: str
    headers: Mapping[str, str | bytes]
    body: bytes = b""
    after_s: float = 0.0
    settles: bool = False


class WriteLine(Struct, frozen=True):
    """Write one line to the client. `line` has no line end."""

    line: bytes


class StopExchange(Struct, frozen=True):
    """End an exchange whose answer is not wanted any more."""

    number: int


class WarnPeople(Struct, frozen=True):
    """Write a sentence for people."""

    text: str


Action = Send | WriteLine | StopExchange | WarnPeople


class Failure(Struct, frozen=True):
    """Reason for a missing answer. `may_have_run`: the gateway may have seen the request."""

    text: str
    may_have_run: bool = True


class BridgeExchange:
    """Message to the gateway and its answer. `raw_id`, `method`: of a request; `number`: 0 while
    the exchange is not under way.

    `session`: session in which it was sent; `status`: status of the answer; `busy`: how often it
    was sent again because the gateway was not ready; `resumes`: how often its stream was taken up
    again; `moved`: it was sent to a second session; `silent`: its answer is not wanted any more;
    `last_id`: id of the newest event on its stream; `refusal`: answer that is kept back while the
    bridge looks up the headers.
    """

    __slots__ = (
        "body", "busy", "headers", "last_id", "method", "modern", "moved", "number", "purpose",
        "raw_id", "refusal", "resumes", "session", "silent", "status",
    )  # fmt: skip

    def __init__(
        self,
        purpose: ExchangePurpose,
        body: bytes = b"",
        *,
        method: str = "",
        raw_id: bytes = b"",
        modern: bool = False,
    ) -> None:
        self.purpose = purpose
        self.body = body
        self.method = method
        self.raw_id = raw_id
        self.modern = modern
        self.headers: Mapping[str, str | bytes] = {}
        self.number = 0
        self.session = b""
        self.status = 0
        self.busy = 0
        self.resumes = 0
        self.moved = False
        self.silent = False
        self.last_id = b""
        self.refusal = b""


class Exchanges:
    """Table of the exchanges that are under way, and of the requests that wait for an answer."""

    def __init__(self) -> None:
        self._last = 0
        self._sent: dict[int, BridgeExchange] = {}
        self._requests: dict[bytes, BridgeExchange] = {}

    @property
    def numbers(self) -> list[int]:
        return list(self._sent)

    def list_waiting(self) -> list[BridgeExchange]:
        """Return the requests of the client that have no answer yet."""
        return list(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, number: int) -> BridgeExchange | None:
        return self._sent.get(number)

    def add(self, request: BridgeExchange) -> bool:
        """Add a request of the client. Return False if another request with this id still waits."""
        return self._requests.setdefault(key(request.raw_id), request) is request

    def request(self, raw_id: bytes) -> BridgeExchange | None:
        return self._requests.get(key(raw_id))

    def send(self, exchange: BridgeExchange, verb: str = "POST", after_s: float = 0.0) -> Send:
        """Return the action that sends an exchange, for the first time or again."""
        self.unsend(exchange)
        self._last += 1
        exchange.number = self._last
        exchange.status = 0
        self._sent[self._last] = exchange
        body = exchange.body if verb == "POST" else b""
        settles = (
            exchange.purpose in {ExchangePurpose.NOTICE, ExchangePurpose.REPLAY} and not after_s
        )
        return Send(self._last, verb, exchange.headers, body, after_s, settles)

    def unsend(self, exchange: BridgeExchange) -> None:
        """Drop everything that still comes for the exchange's number."""
        self._sent.pop(exchange.number, None)
        exchange.number = 0

    def end_exchange(self, exchange: BridgeExchange) -> None:
        """End an exchange; if it is a request, it counts as answered."""
        self.unsend(exchange)
        if self._requests.get(key(exchange.raw_id)) is exchange:
            del self._requests[key(exchange.raw_id)]


def key(raw_id: bytes) -> bytes:
    """Return an id in one spelling, so that ids can be compared. `7` and `"7"` stay different."""
    return codec.dump(codec.text(raw_id)) if b"\\" in raw_id else raw_id


def error(raw_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """Return an error with which the bridge answers, as JSON."""
    members: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        members["data"] = data
    return codec.dump({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": members})


def one_line(message: bytes) -> bytes:
    """Return the same JSON without the line ends between its tokens; strings contain none."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ").strip()
    return message


ASIDE_BYTES_MAX = 64 * 1024
"""Maximum bytes of heads, interim answers and trailers without a byte of a body between them; the
sum is checked once per read of the connection."""

_BODILESS = frozenset({204, 304})
_UNFIT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that would end a header's line, or are forbidden in one."""


class MalformedAnswer(MetaMCPError):
    """Raised if the bytes that came are not an answer, or not a whole one."""


class HeaderUnfit(MetaMCPError):
    """Raised if a header does not fit into HTTP. The text does not have the header's value, which
    may be a secret."""


class HttpAnswer:
    """Answer as far as it has come. `begun`: the head is there; `held`: pieces of the body that the
    caller has not taken yet, `held_bytes` long; `whole`: nothing more comes."""

    __slots__ = ("_headers", "begun", "held", "held_bytes", "status", "whole")

    def __init__(self) -> None:
        self.status = 0
        self.begun = False
        self.whole = False
        self.held: list[bytes] = []
        self.held_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []

    def header(self, name: str) -> str:
        """Return a header's value without blanks around it, or an empty string. `name` in lower
        case."""
        raw_name = name.encode()
        for header_name, value in self._headers:
            if header_name == raw_name:
                return value.decode("latin-1").strip()
        return ""

    def take(self) -> bytes:
        """Take the part of the body that has come and was not taken yet."""
        chunks, self.held, self.held_bytes = self.held, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def head_came(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self._headers = headers
        self.begun = True

    def came(self, data: bytes) -> None:
        self.held.append(data)
        self.held_bytes += len(data)


class HttpAnswerReader:
    """Reader of the answers on one connection. `answer`: answer that is awaited or being read, if
    there is one; `reusable`: another request may follow the last answer."""

    def __init__(self) -> None:
        self.answer: HttpAnswer | None = None
        self.reusable = True
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._aside = 0
        self._open_ended = False

    def expect(self) -> HttpAnswer:
        """Return the answer that the next bytes belong to, since a request is being sent."""
        self.answer = HttpAnswer()
        self._aside = 0
        return self.answer

    def feed(self, data: bytes) -> None:
        """Read bytes of the connection. Raises MalformedAnswer; then close the connection."""
        answer = self.answer
        if answer is None:
            raise MalformedAnswer("something came that nobody asked for")
        self._aside += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise MalformedAnswer("it changes to another protocol") from None
        except httptools.HttpParserError as error:
            if not answer.whole:
                raise MalformedAnswer(f"what it sends is not HTTP: {error}") from None
            self.reusable = False  # more came than the answer
        if self._aside > ASIDE_BYTES_MAX and not answer.whole:
            raise MalformedAnswer(f"its headers have more than {ASIDE_BYTES_MAX} bytes")

    def on_eof(self) -> None:
        """Note the end of the connection. Raises MalformedAnswer if the answer is not whole."""
        answer, self.answer = self.answer, None
        self.reusable = False
        if answer is None or answer.whole:
            return
        if not (answer.begun and self._open_ended):
            raise MalformedAnswer("it ended")
        answer.whole = True

    # What the parser calls

    def on_message_begin(self) -> None:
        self._headers = []
        if self.answer is None:  # in one read behind the last one
            raise MalformedAnswer("something came that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.answer is None or self.answer.begun or status < 200:
            return
        self.answer.head_came(status, self._headers)
        self._headers = []  # trailers count for nothing
        measured = self.answer.header("content-length") or self.answer.header("transfer-encoding")
        self._open_ended = not measured and status not in _BODILESS

    def on_body(self, body: bytes) -> None:
        if self.answer is not None:
            self.answer.came(body)
            self._aside = 0

    def on_message_complete(self) -> None:
        if self.answer is not None and self.answer.begun:
            self.answer.whole = True
            self.answer = None
            self.reusable = self._parser.should_keep_alive()


def request(
    verb: str, target: str, host: str, headers: Mapping[str, str | bytes], body: bytes
) -> bytes:
    """Return a request as bytes. Raises HeaderUnfit."""
    lines = [f"{verb} {target} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity".encode()]
    for name, value in headers.items():
        raw_value = value.encode() if isinstance(value, str) else value
        if _UNFIT.search(raw_value):
            raise HeaderUnfit(f"the header {name} does not fit into HTTP")
        lines.append(b"%b: %b" % (name.encode("ascii"), raw_value))
    if verb == "POST":
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
