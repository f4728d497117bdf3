"""What the answer of a server becomes for a client of the other era.

Owns: the differences between the eras in results and errors that are passed on. Never: lists, which
are made for each era (`views`), questions to clients, which have ways of their own, answers between
peers of one era, which pass unread. A body is opened only where its bytes make it likely that
something is to be changed.
"""

import re

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code

NOT_FOUND_LEGACY = -32002
"""A resource that is not there, in the revisions before 2026-07-28, and only in those."""

READ = "resources/read"
_CALL = "tools/call"
_COMPLETE = b'"complete"'
#: What nobody has said of how long a result holds.
_NOT_KEPT = {"ttlMs": b"0", "cacheScope": b'"private"'}
_CONTENT = b'"structuredContent"'
_NO_OBJECT = re.compile(rb'"structuredContent"\s*:\s*[^\s{]')


def converted(method: str, body: bytes, code: int, *, modern: bool) -> tuple[bytes, int]:
    """The answer to a request of this method, with its code (0: it is a result), as a client of its
    era knows it; the server is of the other era. `modern`: the client's."""
    if modern:
        return _modern_error(body, code) if code else (_modern_result(method, body), 0)
    if code:
        return _legacy_error(method, body, code)
    return (_legacy_result(body) if method == _CALL else body), 0


def _modern_result(method: str, body: bytes) -> bytes:
    """Every result says of what kind it is, and what was read, for how long it holds."""
    wanted: dict[str, Raw | bytes] = {"resultType": _COMPLETE}
    if method == READ:
        wanted |= _NOT_KEPT
    if any(b'"' + key.encode() + b'"' in body for key in wanted):
        try:
            members = codec.level(body)
        except codec.Malformed:
            return body
        wanted = {key: raw for key, raw in wanted.items() if key not in members}
    return codec.splice(body, wanted) if body[:1] == b"{" else body


def _modern_error(body: bytes, code: int) -> tuple[bytes, int]:
    if code == NOT_FOUND_LEGACY:
        return _recoded(body, code, Code.INVALID_PARAMS)
    return body, code


def _legacy_result(body: bytes) -> bytes:
    """Structured content was an object in every earlier revision, and its clients refuse a result
    in which it is none. What it says stands in the text as well."""
    if _CONTENT not in body or _NO_OBJECT.search(body) is None:
        return body
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body
    content = members.get("structuredContent")
    if content is None or bytes(content).startswith(b"{"):
        return body
    del members["structuredContent"]
    return codec.dump(members)


def _legacy_error(method: str, body: bytes, code: int) -> tuple[bytes, int]:
    if code == Code.INVALID_PARAMS and method == READ:
        return _recoded(body, code, NOT_FOUND_LEGACY)
    return body, code


def _recoded(body: bytes, before: int, after: int) -> tuple[bytes, int]:
    """The same error under another code."""
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body, before
    members["code"] = Raw(b"%d" % after)
    return codec.dump(members), after
