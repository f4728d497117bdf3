"""W3C trace context: how one process tells the next which trace a request belongs to.

Owns: reading and writing `traceparent`, and finding all three members in HTTP headers. Never:
random ids, whether a request is traced (`front/trace`), spans (`messages`), the content of
`tracestate` and `baggage`, which pass as they came.

A `traceparent` that is not exactly right is ignored: spans would get a parent that does not exist.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from metamcp_worker.http.request_head import Headers

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
"""Members of `params._meta`, without a prefix (MCP 2026-07-28), and names of HTTP headers."""
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)
TRACE_BYTES, SPAN_BYTES = 16, 8
SAMPLED = 0x01
_RANDOM = 0x02
"""Flag: the trace id is random. Only the process that began the trace can promise that, so the flag
passes as it came."""
STATE_CHARACTERS_MAX = 512
"""Maximum characters of a `tracestate` in spans: every process has to pass on that much. A longer
one goes to the server only."""

_VERSION = "00"
_CHARACTERS = 55
"""Length of a `traceparent` of version 00; later versions may have more after a hyphen."""
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<rest>-.*)?"
)
_HEADERS = {key.encode(): key for key in KEYS}
_PRINTABLE = re.compile(rb"[\t -~]{1,8192}")


class TraceContext(Struct, frozen=True, gc=False):
    """Place in a trace. `trace_id`: 32 digits, `span_id`: 16 digits, hexadecimal in lower case;
    `flags`: those that are known here."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def child(self, span_id: str) -> "TraceContext":
        return TraceContext(self.trace_id, span_id, self.flags)


def parse(text: str) -> TraceContext | None:
    """Read a `traceparent`; None if it is not valid."""
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
    """Write a `traceparent`, in the version that is known here."""
    return f"{_VERSION}-{context.trace_id}-{context.span_id}-{context.flags:02x}"


def of_headers(headers: Headers) -> Mapping[str, str]:
    """Return the members in HTTP headers, by their keys; repeated headers are joined. A value with
    characters that a header cannot have is left out."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = _HEADERS.get(name)
        said = value.strip()
        if key is not None and _PRINTABLE.fullmatch(said):
            found[key] = f"{found[key]},{said.decode()}" if key in found else said.decode()
    return found
