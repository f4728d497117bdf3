"""Validation of definitions: whether one is valid by the schema of the client's revision.

Owns: the types of the specification's schema, and the few rules beside it without which an official
SDK cannot read the list. Never: the consequence for an invalid definition (fronts leave it out, the
supervisor names it), the schemas of a tool's arguments and results (`json_schemas`), the meaning of
definitions.

There are two groups of revisions. A definition that is valid for 2025-11-25 is valid for all
earlier revisions, which know fewer of the same members, and for 2026-07-28, which asks less of the
input schema of a tool. A test checks this, and these types against the specification's own JSON
Schema. An output schema makes no definition invalid: lists leave out the schema alone.

A client gives up a whole list for one definition that it cannot read. So a definition must also be
JSON that every parser takes (not too deep, no number of thousands of digits), the URI of a resource
must parse in the Python SDK, and a time in the TypeScript SDK. The Python SDK reads `execution` in
2026-07-28 as well, although that revision does not have it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.server_catalog import KEYS, KINDS, MODERN_SINCE, ServerCatalogue

DEPTH_MAX = 150
"""Maximum depth of nested values. The Python SDK reads 200, and the answer around the definition
needs some."""
DIGITS_MAX = 4000
"""Maximum digits in a row, of a number or in any text. The Python SDK reads numbers of 4,300."""
NAME_CHARACTERS_MAX = 80
"""Characters of a definition's name that a sentence shows."""

#: Word for one of KINDS in a sentence.
NOUNS: Mapping[str, str] = {"tools": "tool", "prompts": "prompt", "resources": "resource",
                            "resourceTemplates": "resource template"}  # fmt: skip

_Text = str | UnsetType
_Flag = bool | UnsetType


class _Object(Struct):
    """Any object."""


class _Icon(Struct, rename="camel"):
    src: str
    mime_type: _Text = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class _Named(Struct, rename="camel"):
    name: str
    title: _Text = UNSET
    description: _Text = UNSET
    icons: list[_Icon] | UnsetType = UNSET
    meta: _Object | UnsetType = field(name="_meta", default=UNSET)


class _ToolAnnotations(Struct, rename="camel"):
    title: _Text = UNSET
    read_only_hint: _Flag = UNSET
    destructive_hint: _Flag = UNSET
    idempotent_hint: _Flag = UNSET
    open_world_hint: _Flag = UNSET


class _Execution(Struct, rename="camel"):
    task_support: Literal["forbidden", "optional", "required"] | UnsetType = UNSET


class _Schema(Struct):
    type: Literal["object"]
    dialect: _Text = field(name="$schema", default=UNSET)


class _LegacySchema(_Schema):
    properties: dict[str, _Object] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class _AnyTool(_Named):
    annotations: _ToolAnnotations | UnsetType = UNSET
    execution: _Execution | UnsetType = UNSET


class _Tool(_AnyTool, kw_only=True):
    input_schema: _Schema


class _LegacyTool(_AnyTool, kw_only=True):
    input_schema: _LegacySchema


class _Argument(Struct):
    name: str
    title: _Text = UNSET
    description: _Text = UNSET
    required: _Flag = UNSET


class _Prompt(_Named):
    arguments: list[_Argument] | UnsetType = UNSET


_DAY = (
    "(?:(?:[0-9]{2}(?:[2468][048]|[13579][26]|0[48])|(?:[02468][048]|[13579][26])00)-02-29|[0-9]{4}-"
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"\A{_DAY}T{_HOUR}:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-]{_HOUR})\Z"
"""Regular expression of a time: ISO 8601 with a time zone, as the TypeScript SDK accepts it."""


class _Annotations(Struct, rename="camel"):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: Annotated[str, Meta(pattern=TIME)] | UnsetType = UNSET


class _Template(_Named, kw_only=True):
    uri_template: str
    mime_type: _Text = UNSET
    annotations: _Annotations | UnsetType = UNSET


class _Resource(_Named, kw_only=True):
    uri: str
    mime_type: _Text = UNSET
    size: int | float | UnsetType = UNSET
    annotations: _Annotations | UnsetType = UNSET


class Fault(Struct, frozen=True, gc=False):
    """Fault of a definition. `place`: path to it; `reason`: the fault itself; `legacy`: it concerns
    only clients of revisions before 2026-07-28."""

    place: str
    reason: str
    legacy: bool = False

    @property
    def clients(self) -> str:
        """Clients that it concerns, as a part of a sentence; empty for all."""
        return f" for clients before {MODERN_SINCE}" if self.legacy else ""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class InvalidDefinition(Struct, frozen=True):
    """Definition that lists leave out. `name`: its name or URI, empty if it has none."""

    kind: str
    name: str
    definition: bytes
    fault: Fault

    def __str__(self) -> str:
        name = repr(self.name[:NAME_CHARACTERS_MAX]) if self.name else "without a name"
        return f"{NOUNS[self.kind]} {name}{self.fault.clients}: {self.fault}"


_readers: Mapping[str, Callable[[bytes], object]] = {
    "tools": msgspec.json.Decoder(_LegacyTool).decode,
    "prompts": msgspec.json.Decoder(_Prompt).decode,
    "resources": msgspec.json.Decoder(_Resource).decode,
    "resourceTemplates": msgspec.json.Decoder(_Template).decode,
}
_read_modern_tool = msgspec.json.Decoder(_Tool).decode


def fault(kind: str, definition: bytes | Raw) -> Fault | None:
    """Find the fault that keeps a definition of one of KINDS out of lists; None if it is valid."""
    raw = bytes(definition)
    if (unread_fault := unreadable(raw)) is not None:
        return unread_fault
    problem = _find_fault(_readers[kind], raw)
    if problem is None or kind != "tools":
        return problem
    if (worse := _find_fault(_read_modern_tool, raw)) is not None:
        return worse
    return Fault(problem.place, problem.reason, legacy=True)


def invalid(catalogue: ServerCatalogue) -> Iterator[InvalidDefinition]:
    """Yield the definitions of one server that lists leave out."""
    for kind in KINDS:
        for definition in catalogue.of(kind):
            if (problem := fault(kind, definition)) is not None:
                yield InvalidDefinition(kind, _name(kind, definition), bytes(definition), problem)


def explain_refusal(kind: str, server: str, name: str, fault: Fault) -> str:
    """Return the sentence for a client that calls such a definition."""
    called = f"The {NOUNS[kind]} {name[:NAME_CHARACTERS_MAX]!r} of {server}"
    text = f"{called} is not served{fault.clients}"
    return f"{text}: its definition is not valid ({fault}), which its server has to correct."


def _name(kind: str, definition: Raw) -> str:
    return codec.text(codec.members(definition).get(KEYS[kind], Raw(b"null"))) or ""


def _find_fault(read: Callable[[bytes], object], raw: bytes) -> Fault | None:
    try:
        definition = read(raw)
    except msgspec.DecodeError as error:
        return _make_fault(error)
    if isinstance(definition, _Resource):
        return _resource(definition)
    return None


def _resource(resource: _Resource) -> Fault | None:
    if isinstance(resource.size, float) and not resource.size.is_integer():
        return Fault("$.size", "expected `integer`, got `number`")
    if _PLAIN_URI.match(resource.uri) is None and not _is_uri(resource.uri):
        return Fault("$.uri", "expected a URI")
    return None


_PLAIN_URI = re.compile(
    r"(?:(?!(?i:https?|wss?|ftp|file):)[A-Za-z][A-Za-z0-9+.-]*:(?:(?!//)|//[A-Za-z0-9._~-]*(?=[/?#]|\Z))"
    r"|file:///|https?://(?:[a-z][a-z0-9]*\.)*[a-z]+(?=[/?#]|\Z))[^\x00-\x1f]*\Z"
)
"""Regular expression of nearly all URIs in use. Others are parsed as the Python SDK does it."""


def _is_uri(text: str) -> bool:
    from pydantic_core import Url

    try:
        Url(text)
    except ValueError:
        return False
    return True


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % DIGITS_MAX)


def unreadable(raw: bytes) -> Fault | None:
    """Find a fault for which no client gets a definition, whatever its members are."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return Fault("$", "its bytes are not UTF-8")
    if len(raw) > DIGITS_MAX and _LONG_NUMBER.search(raw):
        return Fault("$", f"a number has {DIGITS_MAX} digits or more")
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX and _is_deep(raw):
        return Fault("$", f"its values are nested more than {DEPTH_MAX} deep")
    return None


def _is_deep(raw: bytes) -> bool:
    brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


_MISSING = re.compile(r"Object missing required field `(.+?)`\Z")
#: Names of types in msgspec, and in JSON Schema.
_TYPES = {
    "`str`": "`string`", "`int | float`": "`integer`", "`int`": "`integer`", "`float`": "`number`",
    "`bool`": "`boolean`",
}  # fmt: skip


def _make_fault(error: msgspec.DecodeError) -> Fault:
    """Make a fault of an error of msgspec."""
    if not isinstance(error, msgspec.ValidationError):
        return Fault("$", "some parsers cannot read its JSON, as half of a surrogate pair")
    reason, _, path = str(error).partition(" - at `")
    path = path.removesuffix("`") or "$"
    if missing := _MISSING.match(reason):
        return Fault(f"{path}.{missing[1]}", "is required and missing")
    if "matching regex" in reason:
        return Fault(path, "expected a time of ISO 8601 with a time zone")
    if (value := reason.removeprefix("Invalid enum value ")) != reason:
        return Fault(path, f"{value} is not a value that the schema has")
    for ours, theirs in _TYPES.items():
        reason = reason.replace(ours, theirs)
    return Fault(path, reason[:1].lower() + reason[1:])
