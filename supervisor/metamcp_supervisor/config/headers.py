"""Headers that a user adds to every request to a remote server: which of them are allowed.

Owns: the rules for their names and values, and the sentence for each refused header. Never: reading
them from a file (`server_sections`), sending them.
"""

import re

HEADERS_MAX = 64
HEADERS_BYTES_MAX = 12 * 1024
"""Maximum bytes of all names and values together: common servers accept 16 KiB, and the gateway
adds some headers of its own."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t -~]*")
_OF_THE_CONNECTION = frozenset({
    "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers between two neighbours of a connection, not for the server (RFC 9110, 7.6.1)."""
_OF_THE_MESSAGE = frozenset({"accept", "accept-encoding", "last-event-id"})
_PREFIXES_OF_THE_MESSAGE = ("content-", "mcp-")
_SECRET = frozenset({"authorization", "cookie"})


def flaw(name: str) -> str:
    """Return why a header of this name cannot be sent, as the end of a sentence, or an empty
    string."""
    return "" if _TOKEN.fullmatch(name) else "is not the name of a header"


def reserved(name: str) -> str:
    """Return why a user may not set this header, as the end of a sentence, or an empty string."""
    low = name.lower()
    if low == "host":
        return "follows from 'url'; leave it out"
    if low in _OF_THE_CONNECTION:
        return "belongs to the connection, which is the gateway's own; leave it out"
    if low in _OF_THE_MESSAGE or low.startswith(_PREFIXES_OF_THE_MESSAGE):
        return "is set by the gateway for each message; leave it out"
    return ""


def value_flaw(value: str) -> str:
    """Return the error in a value, as the end of a sentence that does not repeat the value, or an
    empty string.

    A line end in the value would begin another header.
    """
    if not _VALUE.fullmatch(value):
        return "has a character in it that no header can have; only printable ASCII is possible"
    if value != value.strip():
        return "begins or ends with a blank, as when what it refers to is empty"
    return ""


def is_secret(name: str) -> bool:
    """Whether a header is secret although its name does not look so to `masking`."""
    return name.lower() in _SECRET
