"""HTTP exchanges with the gateway: what is under way, and what the bridge wants done, as values.

Owns: these values, the numbers of exchanges, the table of requests that wait for an answer, the
errors that the bridge itself answers with. Never: an era, doing anything.

A number stands for one HTTP request. What a client wants may take several, so an `BridgeExchange`
lives longer than its number: when it is sent again it gets a new one, and what still comes for the
old one belongs to nobody.
"""

from enum import Enum, auto

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec


class ExchangePurpose(Enum):
    """Why something is sent. The first two are the client's messages, the rest are ours."""

    REQUEST = auto()
    NOTICE = auto()
    """A notification, or the answer to a request of a server: nothing comes back."""
    HELLO = auto()
    """The client's `initialize` again, for a session that the gateway has forgotten."""
    REPLAY = auto()
    """What the client said in the old session and the new one should know."""
    STREAM = auto()
    """The session's own stream."""
    LIST = auto()
    """A look at the tools, for the headers that they want."""
    GOODBYE = auto()


class Send(Struct, frozen=True):
    """One HTTP request. `after_s`: how long to wait before it; `settles`: what is to be sent next
    waits for its answer, otherwise only until it is written."""

    number: int
    verb: str
    headers: dict[str, str | bytes]
    body: bytes = b""
    after_s: float = 0.0
    settles: bool = False


class WriteLine(Struct, frozen=True):
    """One line for the client, without its end."""

    line: bytes


class StopExchange(Struct, frozen=True):
    """Nobody waits for this exchange any more: end it."""

    number: int


class WarnPeople(Struct, frozen=True):
    """A sentence for people."""

    text: str


Action = Send | WriteLine | StopExchange | WarnPeople


class Failure(Struct, frozen=True):
    """Why there is no answer. `may_have_run`: the gateway may have seen the request."""

    text: str
    may_have_run: bool = True


class BridgeExchange:
    """`raw_id`, `method`: of a request; `number` 0: it is not sent now.

    `session`: that it was sent in; `status`: of the answer; `busy`, `resumes`: how often it was
    sent again because the gateway was not ready, and its stream taken up again; `moved`: it was
    sent to a second session; `silent`: its answer is not wanted any more; `last_id`: of the newest
    event on its stream; `refusal`: an answer that is kept back while its headers are looked up.
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
    """All that are under way."""

    def __init__(self) -> None:
        self._last = 0
        self._sent: dict[int, BridgeExchange] = {}
        self._requests: dict[bytes, BridgeExchange] = {}

    @property
    def numbers(self) -> list[int]:
        return list(self._sent)

    def waiting(self) -> list[BridgeExchange]:
        """The requests of the client that have no answer yet."""
        return list(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, number: int) -> BridgeExchange | None:
        return self._sent.get(number)

    def add(self, request: BridgeExchange) -> bool:
        """A request of the client. False if one with this id still waits."""
        return self._requests.setdefault(key(request.raw_id), request) is request

    def request(self, raw_id: bytes) -> BridgeExchange | None:
        return self._requests.get(key(raw_id))

    def send(self, exchange: BridgeExchange, verb: str = "POST", after_s: float = 0.0) -> Send:
        """Send it, for the first time or again."""
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
        """What still comes for it belongs to nobody."""
        self._sent.pop(exchange.number, None)
        exchange.number = 0

    def done(self, exchange: BridgeExchange) -> None:
        """It is over, and if it was a request it is answered."""
        self.unsend(exchange)
        if self._requests.get(key(exchange.raw_id)) is exchange:
            del self._requests[key(exchange.raw_id)]


def key(raw_id: bytes) -> bytes:
    """One spelling for each id, so that ids can be compared. `7` and `"7"` stay two."""
    return codec.dump(codec.text(raw_id)) if b"\\" in raw_id else raw_id


def error(raw_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """An error that the bridge answers with."""
    found: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        found["data"] = data
    return codec.dump({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": found})


def one_line(message: bytes) -> bytes:
    """The same JSON without the line ends between its tokens; inside a string there are none."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ").strip()
    return message
