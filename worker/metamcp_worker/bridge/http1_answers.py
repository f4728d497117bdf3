"""HTTP/1.1 as the bridge speaks it to the gateway: requests to bytes, bytes to answers.

Owns: the form of a request, when an answer is whole, whether its connection can be used again, the
limit of bytes without a body. Never: connections, time, the meaning of a status.

A connection has one request under way, and so at most one answer at a time. Interim answers (1xx)
are passed over. An answer that changes to another protocol is refused, and every request asks for
an answer without compression.
"""

import re
from collections.abc import Mapping

import httptools

from metamcp_worker.ipc.errors import MetaMCPError

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
        wanted = name.encode()
        for known, value in self._headers:
            if known == wanted:
                return value.decode("latin-1").strip()
        return ""

    def take(self) -> bytes:
        """Take the part of the body that has come and was not taken yet."""
        held, self.held, self.held_bytes = self.held, [], 0
        return held[0] if len(held) == 1 else b"".join(held)

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

    def ended(self) -> None:
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
        said = value.encode() if isinstance(value, str) else value
        if _UNFIT.search(said):
            raise HeaderUnfit(f"the header {name} does not fit into HTTP")
        lines.append(b"%b: %b" % (name.encode("ascii"), said))
    if verb == "POST":
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
