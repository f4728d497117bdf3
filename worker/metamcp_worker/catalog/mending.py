"""The arguments of a call, where an operator has some of them fixed or gives them a default.

Owns: what a client's arguments become before they go to the server. Never: which tools that is
for, and how their schemas look then (`overriding`).

Everything else stays the bytes that the client sent, in its place. What is put in comes last: where
a server takes two names for one that differ in their case, the last one counts.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, Refused

_ARGUMENTS = "arguments"
_NOTHING = frozenset({b"", b"null"})
"""What says the same as no arguments."""


class Mend(Struct, frozen=True):
    """`fixed`: these are sent, whatever the client says of them; `defaults`: these, where it says
    nothing. Values are raw JSON."""

    fixed: Mapping[str, bytes] = {}
    defaults: Mapping[str, bytes] = {}


def mended(params: Mapping[str, Raw], mend: Mend) -> Mapping[str, Raw]:
    """The parameters of `tools/call` as the server gets them. Raises Refused.

    Arguments that are no object are the server's to refuse, unless something is fixed: then no
    server may take them for an empty object.
    """
    raw = bytes(params.get(_ARGUMENTS, b""))
    if raw in _NOTHING:
        raw, given = b"{}", dict[str, Raw]()
    else:
        try:
            given = codec.level(raw)
        except codec.Malformed as error:
            if not mend.fixed:
                return params
            what = f"params.arguments must be an object, and some of it is fixed here: {error}"
            raise Refused(Code.INVALID_PARAMS, what) from None
    if not given.keys().isdisjoint(mend.fixed):
        given = {name: value for name, value in given.items() if name not in mend.fixed}
        raw = codec.dump(given)
    added = {name: value for name, value in mend.defaults.items() if name not in given}
    added.update(mend.fixed)
    return {**params, _ARGUMENTS: Raw(_with(raw, added, first=not given))}


def _with(raw: bytes, added: Mapping[str, bytes], *, first: bool) -> bytes:
    """The raw object with these members behind all others. `first`: there are no others."""
    members = b",".join(codec.dump(name) + b":" + value for name, value in added.items())
    if not members:
        return raw
    return b"%b%b%b}" % (raw.rstrip()[:-1], b"" if first else b",", members)
