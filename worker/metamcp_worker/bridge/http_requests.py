"""HTTP exchanges with the gateway, and the actions that the session asks for, as values.

Owns: these values, the numbers of exchanges, the table of requests that wait for an answer, the
errors that the bridge itself answers with. Never: an era, carrying out an action.

A number stands for one HTTP request. A message of the client may take several, so a
`BridgeExchange` lives longer than its number: when it is sent again it gets a new number, and
everything that still comes for the old number is dropped.
"""

from enum import Enum, auto

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec


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
    headers: dict[str, str | bytes]
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
        self.headers: dict[str, str | bytes] = {}
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

    def waiting(self) -> list[BridgeExchange]:
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

    def done(self, exchange: BridgeExchange) -> None:
        """End an exchange; if it is a request, it counts as answered."""
        self.unsend(exchange)
        if self._requests.get(key(exchange.raw_id)) is exchange:
            del self._requests[key(exchange.raw_id)]


def key(raw_id: bytes) -> bytes:
    """Return an id in one spelling, so that ids can be compared. `7` and `"7"` stay different."""
    return codec.dump(codec.text(raw_id)) if b"\\" in raw_id else raw_id


def error(raw_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """Return an error with which the bridge answers, as JSON."""
    found: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        found["data"] = data
    return codec.dump({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": found})


def one_line(message: bytes) -> bytes:
    """Return the same JSON without the line ends between its tokens; strings contain none."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ").strip()
    return message
