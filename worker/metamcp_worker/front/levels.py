"""Levels of log messages, and which messages a client wants.

Owns: the names of the levels and their order. Never: sending, remembering what a client wants.
"""

from msgspec import Raw

from metamcp_worker.ipc import codec

MESSAGE = "notifications/message"
SET_LEVEL = "logging/setLevel"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most talkative on (RFC 5424, as MCP spells it)."""

_PLACES = {level: place for place, level in enumerate(LEVELS)}


def passes(level: str, params: bytes) -> bool:
    """Does a client that wants messages from `level` on get the one with these raw params? Empty:
    it wants all. A level that nobody knows has no place in the order, and passes."""
    if not level:
        return True
    try:
        said = codec.text(codec.level(params).get("level", Raw(b"null")))
    except codec.Malformed:
        return True
    place = _PLACES.get(said or "")
    return place is None or place >= _PLACES[level]
