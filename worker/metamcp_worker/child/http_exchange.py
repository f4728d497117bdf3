"""Meaning of a server's HTTP response: the answer to the request, or why there is none.

Owns: which message answers a request, how a server says that a session is over, the sentences about
HTTP statuses, when a broken stream is taken up again (`ResumeState`). Never: reading a response,
sending anything.

Over HTTP the response itself ties an answer to its request, so the id is only a formality, and some
servers get it wrong: a number comes back as a string, or a refusal has the id null. The id is
corrected here, because the front that waits knows the request by its id. `result` and `error` stay
as they are.
"""

import math
import re
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus

from metamcp_worker.child.jsonrpc_lines import ServerErrors
from metamcp_worker.http.sse import SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope, ErrorObject
from metamcp_worker.ipc.errors import Code

CHALLENGE_CHARS_MAX = 1024
"""Maximum characters of `WWW-Authenticate` that are passed on; the longest seen have some
hundred."""
SESSION_ID_CHARS_MAX = 1024
"""Maximum characters of a session id, because every request carries the id and servers limit the
size of headers."""
RETRY_AFTER_S_MAX = 900.0
"""Maximum seconds for which a server may ask to be left alone: as long as an open circuit."""

WORDS_CHARACTERS_MAX = 200
"""Maximum characters of the text of a refusal that are passed on."""

_HEAD = re.compile(rb'\{"jsonrpc":"2\.0","id":[^,]{1,256},"(?:result|error)":')
_BOM = b"\xef\xbb\xbf"
_DIGITS_MAX = 9
"""Maximum digits that are read of a number of seconds; larger numbers are limited anyway."""
_ERROR_BYTES = 512
"""Bytes at the start of a message in which the code of an error or a method is looked for."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")
# Words of servers that do not answer 404: the official TypeScript SDK's examples answer 400 to an
# unknown session, and so do the many servers that copy them.
_SESSION_WORDS = re.compile(r"session|not initialized", re.IGNORECASE)

#: Continuation of the sentence about a status: how an operator can help.
_ADVICE = {
    202: "that is not an answer to a request",
    401: "it wants credentials; set `headers` or `oauth` of this server in the configuration",
    403: "it does not accept what it was sent; check `headers` or `oauth` of this server",
    404: "check the path of its `url`",
    405: "check the path of its `url`",
    407: "a proxy wants credentials",
    429: "it has had too many requests; try again later",
    503: "try again later",
}


_OBJECTIONS = frozenset({Code.HEADER_MISMATCH, Code.UNSUPPORTED_VERSION})


class RefusalMeaning(Enum):
    """Meaning of a refusal that is not an answer."""

    SESSION_OVER = auto()
    """The server did not look at the request: send it again in a new session."""
    NO_ANSWER = auto()
    """The body is not a JSON-RPC error; only the status says something."""


def one_line(message: bytes) -> bytes:
    """Return the message as one line, because line ends separate messages further on. In valid JSON
    line ends stand only between tokens, where a blank means the same. A byte order mark is removed
    (RFC 8259, 8.1)."""
    message = message.removeprefix(_BOM)
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    return message.strip()


def answer(message: bytes, key: bytes, *, streamed: bool = False) -> bytes | None:
    """Return the message as the answer to the request `key`; None if it is not an answer. Raises
    codec.Malformed.

    `streamed`: whether the message came on a stream. Some servers write every answer to all open
    streams, so there only an answer with the id of the request counts. The id may be a string.
    """
    envelope = _envelope(message)
    if envelope.method is not None or (streamed and _number(bytes(envelope.id)) != key):
        return None
    return _answer(envelope, message, key)


def with_number_id(message: bytes) -> bytes:
    """Return the message; if it is an answer whose id is a number written as a string, with the
    number as its id."""
    if b'"method"' in message[:_ERROR_BYTES]:
        return message
    try:
        envelope = _envelope(message)
    except codec.Malformed:
        return message
    key = _number(raw := bytes(envelope.id))
    return message if envelope.method is not None or key == raw else _answer(envelope, message, key)


def refusal(status: int, body: bytes, key: bytes, *, in_session: bool) -> bytes | RefusalMeaning:
    """Return the meaning of a response whose status is not that of an answer: the server's own
    error as a message, or a word for it.

    `in_session`: whether the request named a session.
    """
    try:
        envelope = _envelope(one_line(body))
    except codec.Malformed:
        envelope = Envelope()
    failure = _failure(envelope)
    if in_session and status in {400, 404}:
        ours = failure is not None and bytes(envelope.id) == key
        says_so = failure is not None and bool(_SESSION_WORDS.search(failure.message))
        if (says_so or not ours) if status == 404 else (says_so and not ours):
            return RefusalMeaning.SESSION_OVER
    if failure is None or envelope.method is not None:
        return RefusalMeaning.NO_ANSWER
    return _answer(envelope, one_line(body), key)


def session_over(message: bytes) -> bool:
    """Whether this answer is the error of a server that does not know the session and says so with
    status 200. The TypeScript SDK uses the same code for requests that took too long, so the word
    "session" has to be in the message."""
    if b"-32001" not in message[:_ERROR_BYTES]:
        return False
    failure = _failure(codec.envelope(message))
    return failure is not None and failure.code == -32001 and "session" in failure.message.lower()


def about(body: bytes, key: bytes) -> bool:
    """Whether this body of a refusal names the request, which shows that the server has read it."""
    try:
        return bytes(codec.envelope(body).id) == key
    except codec.Malformed:
        return False


def words(body: bytes, media_type: str) -> str:
    """Return the text of a refusal in one line; empty for a page for browsers."""
    if media_type == "text/html" or body.lstrip()[:1] == b"<":
        return ""
    text = " ".join(body[: 4 * WORDS_CHARACTERS_MAX].decode(errors="replace").split())
    return text[:WORDS_CHARACTERS_MAX]


def trouble(
    faults: ServerErrors,
    status: int,
    challenge: str = "",
    retry_after_s: float = 0.0,
    text: str = "",
) -> bytes:
    """Return the error object for a status that came without one. `challenge`: the value of
    `WWW-Authenticate`; `text`: of the body."""
    # A request that was refused as wrong was not run; 408 and 499 come in the middle of a run.
    refused = 300 <= status < 500 and status not in {408, 499}
    data: dict[str, object] = {"status": status, "may_have_run": not refused}
    if challenge:
        data["www_authenticate"] = challenge[:CHALLENGE_CHARS_MAX]
    if retry_after_s:
        data["retry_after_ms"] = round(retry_after_s * 1000)
    problem = sentence(status) + (f"; it says: {text}" if text else "")
    return faults.body(Code.INTERNAL_ERROR, problem, data)


def retry_after_s(value: str, now: float) -> float:
    """Seconds to wait by the header `Retry-After`, which holds seconds or a date; 0 if it cannot be
    read. `now`: seconds since the epoch."""
    if value.isdecimal():
        seconds = float(value[:_DIGITS_MAX])
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, math.ceil(seconds)), RETRY_AFTER_S_MAX)


def sentence(status: int) -> str:
    """Return the words for a status, with advice. The words continue a sentence that begins with
    the name of the server or with "it"."""
    advice = _ADVICE.get(status, "")
    return f"answered {format_status(status)}" + (f": {advice}" if advice else "")


def format_status(status: int) -> str:
    """`HTTP 502 Bad Gateway`"""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def objection(message: bytes) -> int:
    """Return the code of an error about how the gateway speaks to the server: -32020 for headers
    that do not match the body, -32022 for the revision. 0 for any other answer."""
    if b"-3202" not in message[:_ERROR_BYTES]:
        return 0
    failure = _failure(codec.envelope(message))
    return failure.code if failure is not None and failure.code in _OBJECTIONS else 0


def session_id_ok(session_id: str) -> bool:
    """Whether this session id can be sent back in a header. An empty id is allowed, because a
    server need not give one."""
    return not session_id or (
        len(session_id) <= SESSION_ID_CHARS_MAX and bool(_VISIBLE.fullmatch(session_id))
    )


def _envelope(message: bytes) -> Envelope:
    envelope = codec.envelope(message)
    if envelope.jsonrpc != "2.0":
        raise codec.Malformed("it is not a JSON-RPC 2.0 message")
    return envelope


def _number(id: bytes) -> bytes:  # noqa: A002 - the wire's own name
    """Return a raw id; if a server wrote a number as a string, the number that the gateway sent."""
    return id[1:-1] if id[:1] == b'"' and id[1:-1].isdigit() else id


def _answer(envelope: Envelope, message: bytes, key: bytes) -> bytes:
    # Strings that are not ASCII have not been checked yet; if they are broken, the later check
    # looks for the id at the head of the message.
    if bytes(envelope.id) == key and (message.isascii() or _HEAD.match(message)):
        return message
    parts = [b'{"jsonrpc":"2.0","id":', key]
    for name, value in ((b"result", envelope.result), (b"error", envelope.error)):
        if bytes(value):
            parts += [b',"', name, b'":', bytes(value)]
    return b"".join([*parts, b"}"])


def _failure(envelope: Envelope) -> ErrorObject | None:
    """Return the error in a message, or None if there is none."""
    return codec.error_object(envelope.error) if bytes(envelope.error).startswith(b"{") else None


ATTEMPTS_MAX = 5
"""Maximum attempts in a row to take up a stream without receiving an event: 15 seconds and more."""
DELAY_S = 1.0
"""Seconds before the first attempt, if the server names no time; doubled with each further attempt
in a row."""
DELAY_S_MAX = 30.0
RETRY_S_MIN = 0.1
"""Minimum seconds between attempts that a server may ask for; less would let the gateway ask
without pause."""
RETRY_S_MAX = 300.0
EMPTY_S_MAX = 5.0
"""Maximum seconds to the next attempt if the stream brings events without messages: the answer of a
server that is polled may be there a moment later."""


class ResumeState:
    """Progress of one stream, to take it up again. `endless`: whether the stream belongs to no
    request, and starts again if it cannot be continued."""

    def __init__(self, *, endless: bool = False) -> None:
        self.last_id = b""
        self._endless = endless
        self._retry_s: float | None = None
        self._attempts = 0
        self._empty = 0

    def saw(self, event: SseEvent) -> None:
        """Note an event that the stream brought."""
        self._attempts = 0
        if event.data:
            self._empty = 0
        if event.id is not None:
            self.last_id = event.id
        if event.retry_ms is not None:
            self._retry_s = min(max(event.retry_ms / 1000, RETRY_S_MIN), RETRY_S_MAX)

    def reset(self) -> None:
        """Forget the last event, because the server cannot continue from there."""
        self.last_id = b""

    def plan_reconnect(self) -> float | None:
        """Note that the connection ended. Return the seconds to wait before the next one; None to
        give up."""
        self._attempts += 1
        self._empty += 1
        if not self._endless and (not self.last_id or self._attempts > ATTEMPTS_MAX):
            return None
        if self._retry_s is not None and self._attempts == 1:
            doubled_s = min(self._retry_s * 2.0 ** min(self._empty - 1, 10), EMPTY_S_MAX)
            return max(self._retry_s, doubled_s)
        backoff_s = DELAY_S * 2.0 ** min(self._attempts - 1, 10)
        return max(self._retry_s or 0.0, min(backoff_s, DELAY_S_MAX))
