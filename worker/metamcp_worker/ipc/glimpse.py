"""What can be seen of a message that nobody reads: one that is too long, or nested too deeply.

Owns: the id, if it stands where clients write it, and whether it is the id of an answer. Never:
reading a message, answering one.

Some clients write the id at the beginning, others behind `params`, at the very end. Everywhere else
what looks like one may belong to something inside. The last brace of a message closes the outermost
object, and in a string no quote stands without a backslash, so what is right before it is its own.
"""

import re

from msgspec import Struct

ENDS_BYTES = 1024
"""Of a message at each of its ends; an id and what is around it have less."""

_ID = rb'"id"\s*:\s*(?P<id>-?\d+|"(?:[^"\\\x00-\x1f]|\\.)*")'
_JSONRPC = rb'"jsonrpc"\s*:\s*"2\.0"'
_BEGINNING = re.compile(
    rb"\s*\{\s*(?:"
    + _JSONRPC
    + rb'\s*,\s*|"method"\s*:\s*"[^"\\]*"\s*,\s*|'
    + _ID
    + rb'\s*,\s*)*(?P<answer>"result"|"error")?'
)
_END = re.compile(
    rb",\s*(?:" + _JSONRPC + rb"\s*,\s*)?" + _ID + rb"\s*(?:,\s*" + _JSONRPC + rb"\s*)?\}\s*\Z"
)


class Glimpse(Struct, frozen=True):
    """`raw_id`: empty if it is not seen; `answer`: it belongs to a request of the other side."""

    raw_id: bytes = b""
    answer: bool = False


def glimpse(beginning: bytes, end: bytes) -> Glimpse:
    """Of a message of which these are the first and last bytes."""
    first = _BEGINNING.match(beginning[:ENDS_BYTES])
    last = _END.search(end[-ENDS_BYTES:])
    raw_id = (first and first["id"]) or (last and last["id"]) or b""
    return Glimpse(raw_id, bool(first and first["answer"]))
