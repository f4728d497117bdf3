"""Headers of revision 2026-07-28 that repeat what a body says: checked by whoever reads the body.

Owns: reading a header's value, comparing it with the body, and which tools want headers for their
arguments. Never: writing such headers (`metamcp_worker.http.mcp_headers` does), other headers.

Whoever routes by a header must be able to rely on it: so a header that says something else than the
body is refused, and so is one about which the body says nothing.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping

from msgspec import Raw

from metamcp_worker.http import mcp_headers
from metamcp_worker.http.hosts import BLANKS
from metamcp_worker.http.http1 import Headers
from metamcp_worker.http.mcp_headers import Path
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, Refused

Wishes = Mapping[Path, str]
"""Which arguments a tool wants repeated, each with the name of its header behind `Mcp-Param-`."""

_PREFIX = "Mcp-Param-"
_MARK = b"x-mcp-header"
_SENTINEL = re.compile(r"=\?base64\?(?P<payload>.*)\?=", re.DOTALL)
_DECIMAL = re.compile(r"(?P<whole>-?[0-9]{1,400})(?:\.0+)?")


def mismatch(message: str) -> Refused:
    return Refused(Code.HEADER_MISMATCH, message)


def header_text(value: bytes) -> str | None:
    """What a header says: as it is, or what is inside `=?base64?…?=`. None: nothing readable."""
    text = value.decode("latin-1")
    found = _SENTINEL.fullmatch(text)
    if found is None:
        return text
    try:
        decoded = base64.b64decode(found["payload"], validate=True)
        canonical = base64.b64encode(decoded).decode() == found["payload"]
        return decoded.decode() if canonical else None
    except (binascii.Error, ValueError):
        return None


def same(raw: Raw, header: bytes) -> bool:
    """Does this raw JSON string say what the header says?"""
    body = bytes(raw)
    if body == b'"%b"' % header and b"\\" not in body and not header.startswith(b"=?"):
        return body.isascii()
    text = codec.text(body)
    return text is not None and text == header_text(header)


def annotated(tools: Iterable[tuple[str, bytes]]) -> dict[str, Wishes]:
    """Of these tools, each with its raw definition, those that want arguments repeated. One that
    wants it improperly is no tool for clients that send headers, so nothing is asked of them."""
    found: dict[str, Wishes] = {}
    for name, definition in tools:
        if _MARK not in definition and b"\\u" not in definition:
            continue
        try:
            wishes = mcp_headers.wanted(codec.level(definition).get("inputSchema", Raw(b"{}")))
        except (codec.Malformed, mcp_headers.Unfit):
            continue
        if wishes:
            found[name] = wishes
    return found


def check(wishes: Wishes, arguments: Raw | None, found: Headers) -> None:
    """Raises Refused unless each of these arguments has its header, and each header its argument,
    and they say the same. `null` is no argument."""
    try:
        values: object = None if arguments is None else codec.value(arguments)
    except codec.Malformed as error:  # a number beyond all numbers is well-formed, but has no value
        message = f"params.arguments cannot be compared with headers: {error}."
        raise Refused(Code.INVALID_PARAMS, message) from None
    for path, name in wishes.items():
        title, key = _PREFIX + name, (_PREFIX + name).lower().encode()
        given = [value.strip(BLANKS) for header, value in found if header == key]
        argument = ".".join(path)
        value = mcp_headers.at(values, path)
        expected = mcp_headers.text_of(value)
        if len(given) > 1:
            raise mismatch(f"{title} came more than once.")
        if not given:
            if expected is not None:
                raise mismatch(f"{title} is missing; it repeats the argument {argument}.")
        elif expected is None:
            raise mismatch(f"{title} came, but there is no argument {argument} to repeat.")
        elif not _agree(value, expected, header_text(given[0])):
            raise mismatch(f"{title} is not the argument {argument}.")


def _agree(value: object, expected: str, said: str | None) -> bool:
    if said is None:
        return False
    number = not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )
    decimal = _DECIMAL.fullmatch(said) if number else None
    if decimal is not None and isinstance(value, int | float):
        return int(decimal["whole"]) == int(value)
    return said == expected
