"""Headers that a user adds to every request to a remote server: which are good.

Owns: the rules for their names and values, and the sentence for each that is refused. Never: what
is read from where (`remote`), sending them.
"""

import re

HEADERS_MAX = 64
HEADERS_BYTES_MAX = 12 * 1024
"""Of all names and values together: common servers take 16 KiB, and some headers are our own."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t -~]*")
_OF_THE_CONNECTION = frozenset({
    "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""They concern two neighbours and not the server (RFC 9110, 7.6.1)."""
_OF_THE_MESSAGE = frozenset({"accept", "accept-encoding", "last-event-id"})
_PREFIXES_OF_THE_MESSAGE = ("content-", "mcp-")
_SECRET = frozenset({"authorization", "cookie"})


def flaw(name: str) -> str:
    """Why nobody can send a header of this name, as the end of a sentence, or nothing."""
    return "" if _TOKEN.fullmatch(name) else "is not the name of a header"


def reserved(name: str) -> str:
    """Why this header is not for the user to set, as the end of a sentence, or nothing."""
    low = name.lower()
    if low == "host":
        return "follows from 'url'; leave it out"
    if low in _OF_THE_CONNECTION:
        return "belongs to the connection, which is the gateway's own; leave it out"
    if low in _OF_THE_MESSAGE or low.startswith(_PREFIXES_OF_THE_MESSAGE):
        return "is set by the gateway for each message; leave it out"
    return ""


def value_flaw(value: str) -> str:
    """What is wrong with the value, as the end of a sentence that does not repeat it, or nothing.

    A line end in it would be the beginning of another header.
    """
    if not _VALUE.fullmatch(value):
        return "has a character in it that no header can have; only printable ASCII is possible"
    if value != value.strip():
        return "begins or ends with a blank, as when what it refers to is empty"
    return ""


def is_secret(name: str) -> bool:
    """Beside those whose name looks like it (`masks`)."""
    return name.lower() in _SECRET
