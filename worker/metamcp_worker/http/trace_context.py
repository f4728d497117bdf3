"""W3C trace context: the words with which one process tells the next which trace a request is of.

Owns: reading and writing `traceparent`, and the same words as HTTP headers. Never: dice, whether a
request is traced (`front/tracing`), what is told of it (`messages`), `tracestate` and `baggage`,
which pass as they came.

A `traceparent` that is not exactly right is none: with half of one, spans would hang from nothing.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from metamcp_worker.http.http1 import Headers

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
"""In `params._meta` without a prefix (MCP 2026-07-28), and as HTTP headers."""
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)
TRACE_BYTES, SPAN_BYTES = 16, 8
SAMPLED = 0x01
_RANDOM = 0x02
"""The trace id is random: a promise of whoever began the trace, so it stays."""
STATE_CHARACTERS_MAX = 512
"""As much of `tracestate` as everybody has to pass on; a longer one is told to nobody but the
server."""

_VERSION = "00"
_CHARACTERS = 55
"""Of version 00; later ones may have more behind a hyphen."""
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<rest>-.*)?"
)
_HEADERS = {key.encode(): key for key in KEYS}
_PRINTABLE = re.compile(rb"[\t -~]{1,8192}")


class TraceContext(Struct, frozen=True, gc=False):
    """A place in a trace. `trace_id`: 32 digits, `span_id`: 16 digits, hexadecimal in small
    letters; `flags`: those that are known here."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def child(self, span_id: str) -> "TraceContext":
        return TraceContext(self.trace_id, span_id, self.flags)


def parse(text: str) -> TraceContext | None:
    """What this `traceparent` says; None for one that says nothing."""
    found = _FORM.fullmatch(text)
    if found is None or found["version"] == "ff":
        return None
    if found["version"] == _VERSION and len(text) != _CHARACTERS:
        return None
    if not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    flags = int(found["flags"], 16) & (SAMPLED | _RANDOM)
    return TraceContext(found["trace"], found["span"], flags)


def written(context: TraceContext) -> str:
    """As a `traceparent`, in the version that is known here."""
    return f"{_VERSION}-{context.trace_id}-{context.span_id}-{context.flags:02x}"


def of_headers(headers: Headers) -> Mapping[str, str]:
    """The words that HTTP headers say, by their keys; what came in pieces is put together. A value
    that is no text of a header is left out."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = _HEADERS.get(name)
        said = value.strip()
        if key is not None and _PRINTABLE.fullmatch(said):
            found[key] = f"{found[key]},{said.decode()}" if key in found else said.decode()
    return found
