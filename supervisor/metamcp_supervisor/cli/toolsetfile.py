"""Files of tool sets: one, or a list of them, as JSON.

Owns: reading such a file, and what is said of one that cannot be used. Never: whether its tools are
there (the gateway knows), writing (`toolsets export`).

    {"name": "dev", "description": "…", "tools": [{"namespacedName": "git.git_status"}],
     "createdAt": "…", "updatedAt": "…"}

What `toolsets list --json` and `toolsets show --json` print is taken, too: the list is the member
`toolsets` there. Tools may be plain strings. Other members are ignored, and so are the times: they
say when another gateway got it.
"""

import sys
from collections.abc import Sequence

from msgspec import Struct

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import TOOLSETS_MAX, Pair, read

FILE_BYTES_MAX = 16 * 1024 * 1024
"""A thousand tool sets of two hundred tools."""
TOLD_CHARACTERS_MAX = 64
"""Of what stands in a file."""


class _Tool(Struct, frozen=True):
    namespacedName: str  # noqa: N815 - as it stands in files


class _Set(Struct, frozen=True):
    name: str
    tools: list[_Tool | str]
    description: str | None = None


_read = codec.reader(_Set | list[_Set])


class _Printed(Struct, frozen=True):
    toolsets: list[_Set]


_read_printed = codec.reader(_Printed)


class Found(Struct, frozen=True):
    """One tool set of a file."""

    name: str
    tools: tuple[Pair, ...]
    description: str


def load(path: str) -> list[Found]:
    """What is in this file, or comes on standard input (`-`). Raises Failed."""
    where = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Failed(Exit.FAILED, f"{where} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Failed(Exit.FAILED, f"{where} has more than {FILE_BYTES_MAX} bytes")
    return parse(data, where)


def parse(data: bytes, where: str) -> list[Found]:
    """`where`: named in what is said of it. Raises Failed."""
    try:
        value = _value(data.removeprefix(b"\xef\xbb\xbf"))
    except codec.Malformed as error:
        raise _broken(where, str(error)) from None
    one, top = isinstance(value, _Set), "$.toolsets" if isinstance(value, _Printed) else "$"
    sets: Sequence[_Set] = [value] if isinstance(value, _Set) else _listed(value)
    if not sets:
        raise _broken(where, "there is no tool set in it")
    if len(sets) > TOOLSETS_MAX:
        raise _broken(where, f"there are more than {TOOLSETS_MAX} tool sets in it")
    found: dict[str, Found] = {}
    for number, each in enumerate(sets):
        place = top if one else f"{top}[{number}]"
        if each.name in found:
            told = each.name[:TOLD_CHARACTERS_MAX]
            raise _broken(where, f"the name {told!r} is there twice - at `{place}.name`")
        found[each.name] = Found(each.name, _pairs(each, where, place), each.description or "")
    return list(found.values())


def _value(data: bytes) -> _Set | list[_Set] | _Printed:
    """Raises codec.Malformed."""
    if data.lstrip()[:1] == b"{" and "toolsets" in codec.level(data):
        printed: _Printed = _read_printed(data)
        return printed
    found: _Set | list[_Set] = _read(data)
    return found


def _listed(value: list[_Set] | _Printed) -> Sequence[_Set]:
    return value.toolsets if isinstance(value, _Printed) else value


def _pairs(each: _Set, where: str, place: str) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for number, tool in enumerate(each.tools):
        text = tool if isinstance(tool, str) else tool.namespacedName
        pair = read(text)
        if pair is None:
            told = text[:TOLD_CHARACTERS_MAX]
            why = f"{told!r} is not a tool: one is written server.tool, as git.git_status"
            raise _broken(where, f"{why} - at `{place}.tools[{number}]`")
        pairs.append(pair)
    return tuple(dict.fromkeys(pairs))


def _broken(where: str, why: str) -> Failed:
    return Failed(Exit.FAILED, f"{where} is not a file of tool sets: {why}")
