"""Schemas of tools: what clients and APIs of models cannot read, and the same schema without it.

Owns: the keywords of JSON Schema with their values, references, patterns, and who refuses which
flaw. Never: the other members of a definition (`validation`), whether a value fits a schema, the
differences between two schemas (the supervisor).

A client of the TypeScript SDK compiles all output schemas of a list, and throws for one that it
cannot compile; a client of the Python SDK checks the schema of a tool that it calls. So an output
schema is in order if the metaschema of its draft accepts it, if Ajv and `jsonschema` can compile
it, and if its references stay in it. An input schema goes to the API of a model, which refuses a
whole request for one schema. A test compares these rules with both validators.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import unquote, urljoin

from msgspec import Raw

from metamcp_worker.ipc import codec, validation
from metamcp_worker.ipc.codec import is_list, is_table
from metamcp_worker.ipc.server_catalog import SchemaFaults, iter_definitions

VS_CODE, ANTHROPIC, OPENAI, GEMINI = "VS Code", "Anthropic", "OpenAI", "Gemini"
BROKEN = frozenset({ANTHROPIC, OPENAI})
"""Refuse a request if an input schema is not a JSON Schema, or has a union at its top."""
NO_ITEMS = frozenset({VS_CODE, OPENAI, GEMINI})
"""Refuse an array without `items`."""
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of arguments that every API takes."""
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
DIALECTS = frozenset(
    f"{scheme}://json-schema.org/{draft}/schema"
    for scheme in ("http", "https")
    for draft in ("draft/2020-12", "draft/2019-09", "draft-07", "draft-06")
)
"""Values of `$schema` that the TypeScript SDK knows, without a `#` at the end."""
_OLD = frozenset({
    "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema",
    "https://json-schema.org/draft/2019-09/schema",
})  # fmt: skip
"""Dialects in which `items` may be a list of schemas, as `jsonschema` knows their names."""
_OTHER_TYPES: Mapping[str, str] = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number",
    "bool": "boolean", "list": "array", "dict": "object", "map": "object", "none": "null",
}  # fmt: skip
_COMPARED = frozenset({"date", "time", "date-time", "iso-time", "iso-date-time"})
_UNIONS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = frozenset({*_UNIONS, "not", "if", "then", "else", "dependentSchemas"})
"""Keywords whose schemas are about the same value as the schema around them."""


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_names(value: object) -> TypeGuard[list[str]]:
    if not is_list(value) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value)) == len(value)


def _is_type(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _is_names(value) and bool(value) and set(value) <= set(TYPES)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_IN_BOTH = re.compile(
    r"(?:(?:[^\\^$.*+?()\[\]{}|]|\.|\)"
    r"|\\(?:[dDwWsSnrtfv^$\\.*+?()\[\]{}|/]|0(?![0-9])|[1-9][0-9]*|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
    r"|\[(?:[^\]\\]|\\(?:[dDwWsSbnrtfv^$\\.*+?()\[\]{}|/-]|0(?![0-9])|x[0-9a-fA-F]{2}"
    r"|u[0-9a-fA-F]{4}))*+\])(?:(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??)?"
    r"|[\^$|]|\\[bB]|\((?:\?(?:[:=!]|<[=!]))?)*+",
    re.DOTALL,
)
"""Regular expression of what JavaScript reads with the flag `u`, as Ajv sets it. Python refuses the
rest of what JavaScript refuses, and `is_pattern` asks it too."""


PATTERN = "a pattern that JavaScript and Python read"


def is_pattern(value: object) -> bool:
    """Whether a value is a regular expression for JavaScript and Python alike."""
    if not isinstance(value, str) or _IN_BOTH.fullmatch(value) is None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sets that a later Python reads in another way
            re.compile(value)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_Check = tuple[Callable[[Any], bool], str]
_TEXT: _Check = _is_text, "a string"
_FLAG: _Check = _is_flag, "true or false"
_NUMBER: _Check = _is_number, "a number"
_COUNT: _Check = _is_count, "a whole number of 0 or more"
_NAMED: _Check = (lambda value: _is_text(value) and bool(_ANCHOR.fullmatch(value))), "a plain name"
#: Keywords with a plain value.
_VALUES: Mapping[str, _Check] = {
    **dict.fromkeys(
        ("title", "description", "$comment", "format", "contentEncoding", "contentMediaType",
         "$schema", "$ref", "$dynamicRef", "$recursiveRef", "$id"), _TEXT,
    ),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems", "nullable"), _FLAG),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains",
         "minProperties", "maxProperties"), _COUNT,
    ),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), _NAMED),
    "multipleOf": ((lambda value: _is_number(value) and value > 0), "a number above 0"),
    "type": (_is_type, "a type of JSON"),
    "required": (_is_names, "a list of different names"),
    "enum": ((lambda value: is_list(value) and bool(value)), "a list that is not empty"),
    "examples": (is_list, "a list"),
    "pattern": (is_pattern, PATTERN),
    "$vocabulary": (
        (lambda value: is_table(value) and all(map(_is_flag, value.values()))),
        "an object of true and false",
    ),
    "dependentRequired": (
        (lambda value: is_table(value) and all(map(_is_names, value.values()))),
        "an object of lists of different names",
    ),
    "id": ((lambda _: False), "'$id', as it is called since draft 6"),
}  # fmt: skip
_SCHEMA, _SCHEMAS, _TABLE = "a schema", "a list of schemas", "an object of schemas"
#: Keywords with schemas in them.
_SCHEMATA: Mapping[str, str] = {
    **dict.fromkeys(
        ("not", "if", "then", "else", "items", "additionalItems", "additionalProperties",
         "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
         "contentSchema"), _SCHEMA,
    ),
    **dict.fromkeys((*_UNIONS, "prefixItems"), _SCHEMAS),
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
         "dependencies"), _TABLE,
    ),
}  # fmt: skip
_LIMITS = frozenset(
    {"formatMinimum", "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum"}
)
"""Keywords of Ajv about a text in a format that has an order."""


class SchemaFlaw(NamedTuple):
    """Flaw of a schema. `place`: path to it; `reason`: the flaw itself; `refused_by`: who refuses
    an input schema with it."""

    place: str
    reason: str
    refused_by: frozenset[str] = BROKEN


class _Reference(NamedTuple):
    """Reference of a schema. `made`: the new schema that has it as member `key`; `uri`: of the
    resource that it stands in."""

    schema: dict[str, Any]
    made: dict[str, Any]
    key: str
    place: str
    uri: str


class _Reading:
    """Reading of one schema. `flaws`: what is wrong with it; `made`: the same schema without that.
    `argued`: it is of arguments."""

    def __init__(self, root: dict[str, Any], path: str, *, argued: bool) -> None:
        self.flaws: list[SchemaFlaw] = []
        self._argued = argued
        dialect = root.get("$schema")
        self._old = isinstance(dialect, str) and dialect.removesuffix("#") in _OLD
        self._resources: dict[str, dict[str, Any]] = {"": root}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._references: list[_Reference] = []
        self._read: set[int] = set()
        self._in_place: dict[int, list[dict[str, Any]]] = {}
        if isinstance(dialect, str) and dialect.removesuffix("#") not in DIALECTS:
            self._note(f"{path}.$schema", "names a draft that clients do not know")
        self.made: dict[str, Any] = self._schema(root, path, "") or {}
        while self._references:
            self._follow(self._references.pop())
        if self._circular():
            self._note(path, "leads to itself for the same value")

    def _note(self, path: str, reason: str, refused_by: frozenset[str] = BROKEN) -> None:
        self.flaws.append(SchemaFlaw(path, reason, refused_by))

    def _schema(self, schema: Any, path: str, uri: str) -> Any:
        """Return a schema without its flaws; None if it is not a schema."""
        if isinstance(schema, bool):
            return schema
        if not is_table(schema):
            return self._note(path, f"expected a schema, got {_kind(schema)}")
        self._read.add(id(schema))
        uri = self._name(schema, path, uri)
        made: dict[str, Any] = {}
        for key, value in schema.items():
            if (check := _VALUES.get(key)) is not None:
                if check[0](value):
                    made[key] = value
                    if key in ("$ref", "$dynamicRef"):
                        self._references.append(_Reference(schema, made, key, path, uri))
                else:
                    self._note(f"{path}.{key}", f"expected {check[1]}", _find_refusers(key))
                    _mend(made, key, value)
            elif (kind := _SCHEMATA.get(key)) is not None:
                self._inner(schema, made, key, kind, path, uri)
            else:
                made[key] = value
        self._together(made, path)
        return made

    def _inner(
        self,
        schema: dict[str, Any],
        made: dict[str, Any],
        key: str,
        kind: str,
        path: str,
        uri: str,
    ) -> None:
        """Read the schemas that are the value of a keyword."""
        value, here = schema[key], f"{path}.{key}"
        inside: list[Any] = []
        if kind is _TABLE and is_table(value):
            made[key] = {
                name: self._entry(key, name, entry, here, uri) for name, entry in value.items()
            }
            made[key] = {name: entry for name, entry in made[key].items() if entry is not None}
            inside = [*value.values()]
        elif is_list(value) and ((kind is _SCHEMAS and value) or (key == "items" and self._old)):
            read = [
                self._schema(subschema, f"{here}[{at}]", uri) for at, subschema in enumerate(value)
            ]
            made[key] = [subschema for subschema in read if subschema is not None]
            inside = value
        elif kind is _SCHEMA and isinstance(value, bool | dict):
            made[key] = self._schema(value, here, uri)
            inside = [value]
        else:
            self._note(here, f"expected {kind}, got {_kind(value)}")
            if key == "items":
                made[key] = {}
        if key in _IN_PLACE:
            self._in_place.setdefault(id(schema), []).extend(
                subschema for subschema in inside if is_table(subschema)
            )

    def _entry(self, key: str, name: str, value: Any, path: str, uri: str) -> Any:
        """Return a schema of a table; None to leave it out."""
        here = f"{path}.{name}"
        if key == "dependencies" and is_list(value):
            if _is_names(value):
                return value
            return self._note(here, "expected a list of different names")
        if key == "patternProperties" and not is_pattern(name):
            return self._note(here, f"expected {PATTERN}", _find_refusers("pattern"))
        made = self._schema(value, here, uri)
        return {} if made is None and key == "properties" else made

    def _together(self, made: dict[str, Any], path: str) -> None:
        """Look at keywords that depend on each other."""
        if "nullable" in made:
            types = made.get("type", [])
            if not types or (not made["nullable"] and "null" in types):
                self._note(f"{path}.nullable", "stands without a 'type' that fits")
                del made["nullable"]
        for key in _LIMITS & made.keys():
            if not isinstance(made[key], str) or made.get("format") not in _COMPARED:
                self._note(f"{path}.{key}", "stands without a 'format' that has an order")
                del made[key]
        if self._argued and "items" not in made:
            types = made.get("type", ())
            if types == "array" or (is_list(types) and "array" in types):
                if "prefixItems" not in made:
                    self._note(path, "is an array without 'items'", NO_ITEMS)
                made["items"] = {}

    def _name(self, schema: dict[str, Any], path: str, uri: str) -> str:
        """Note the names of a schema, and return the URI of its resource."""
        own = schema.get("$id")
        if isinstance(own, str) and own.startswith("#"):
            if not self._old:
                self._note(f"{path}.$id", "is an anchor, which is '$anchor' since draft 2019-09")
            self._anchor(schema, own[1:], path, uri)
        elif isinstance(own, str) and own:
            uri = _join_uri(uri, own.removesuffix("#"))
            if self._resources.setdefault(uri, schema) is not schema:
                self._note(f"{path}.$id", "is the name of another schema too")
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(key), str):
                self._anchor(schema, anchor, path, uri)
        return uri

    def _anchor(self, schema: dict[str, Any], name: str, path: str, uri: str) -> None:
        if self._anchors.setdefault((uri, name), schema) is not schema:
            self._note(path, f"has an anchor that another schema has too: {name[:40]!r}")

    def _follow(self, reference: _Reference) -> None:
        """Look where a reference leads; the schema there is read too."""
        schema, made, key, path, uri = reference
        target = self._target(uri, schema[key])
        if is_table(target):
            self._in_place.setdefault(id(schema), []).append(target)
            if id(target) not in self._read:
                self._schema(target, f"{path}.{key}", uri)
        elif not isinstance(target, bool):
            destination = (
                "nowhere" if schema[key].startswith("#") else "out of this schema, or nowhere"
            )
            self._note(f"{path}.{key}", f"leads {destination}")
            made.pop(key, None)

    def _target(self, uri: str, reference: str) -> Any:
        """Return what a reference means; None if it means nothing in this schema."""
        base, _, fragment = reference.partition("#")
        uri = _join_uri(uri, base) if base else uri
        target: Any = self._resources.get(uri)
        if not fragment or target is None:
            return target
        if not fragment.startswith("/"):
            return self._anchors.get((uri, fragment))
        for step in unquote(fragment[1:]).split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if is_table(target):
                target = target.get(name)
            elif is_list(target) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                return None
        return target

    def _circular(self) -> bool:
        """Whether a schema leads to itself, by references and by parts about the same value."""
        done: set[int] = set()
        for start in self._in_place.keys() - done:
            path: dict[int, Iterator[dict[str, Any]]] = {start: iter(self._in_place[start])}
            while path:
                here = next(reversed(path))
                other = next(path[here], None)
                if other is None:
                    done.add(here)
                    del path[here]
                elif id(other) in path:
                    return True
                elif id(other) not in done:
                    path[id(other)] = iter(self._in_place.get(id(other), ()))
        return False


def _join_uri(uri: str, reference: str) -> str:
    try:
        return urljoin(uri, reference)
    except ValueError:
        return reference


def _kind(value: object) -> str:
    """Return the type of a value in JSON, with its article."""
    if value is None:
        return "null"
    kinds = {"bool": "true or false", "str": "a string", "list": "a list", "dict": "an object"}
    return kinds.get(type(value).__name__, "a number")


def _mend(made: dict[str, Any], key: str, value: Any) -> None:
    """Put a value in the place of a wrong one, where it is plain what was meant."""
    if key == "type":
        words = [value] if isinstance(value, str) else value if is_list(value) else []
        lower = [word.lower() for word in words if isinstance(word, str)]
        types = dict.fromkeys(_OTHER_TYPES.get(word, word) for word in lower)
        if types and types.keys() <= set(TYPES):
            made[key] = [*types] if len(types) > 1 else next(iter(types))
    elif key == "required" and is_list(value):
        made[key] = [*dict.fromkeys(name for name in value if isinstance(name, str))]


def _find_refusers(key: str) -> frozenset[str]:
    """Return who refuses a wrong value of a keyword."""
    return frozenset({OPENAI}) if key == "pattern" else BROKEN


_OUTPUT, _INPUT = "$.outputSchema", "$.inputSchema"
_NOT_AT_TOP: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_UNIONS, BROKEN), "enum": frozenset({OPENAI}), "not": frozenset({OPENAI}),
}  # fmt: skip


def faults(tools: Iterable[Raw]) -> dict[str, SchemaFaults]:
    """Return the faults of the schemas of a server's tools, by the names of the tools. A tool
    whose schemas are in order is not among them."""
    faults_by_tool = {key: tool_faults(raw) for key, _, raw in iter_definitions("tools", tools)}
    return {
        key: schema_faults
        for key, schema_faults in faults_by_tool.items()
        if schema_faults != _NONE
    }


_NONE = SchemaFaults()


def tool_faults(tool: bytes) -> SchemaFaults:
    """Return the faults of the schemas of one tool."""
    if validation.unreadable(tool) is not None:
        return _NONE
    members = codec.level(tool)
    output, legacy = "", False
    if "outputSchema" in members:
        schema = codec.value(members["outputSchema"])
        output = _sentence(_output_flaws(schema))
        if not output and (reason := _legacy_flaw(schema)):
            output, legacy = reason, True
    flaws = _input_flaws(codec.value(members.get("inputSchema", Raw(b"null"))))
    refusing = frozenset[str]().union(*(flaw.refused_by for flaw in flaws))
    warning = f"{_format_refusers(refusing)} may refuse it, {_sentence(flaws)}" if flaws else ""
    return SchemaFaults(output, legacy, warning)


def _output_flaws(schema: object) -> list[SchemaFlaw]:
    if not is_table(schema):
        return [SchemaFlaw(_OUTPUT, f"expected an object, got {_kind(schema)}")]
    return _Reading(schema, _OUTPUT, argued=False).flaws


def _legacy_flaw(schema: dict[str, Any]) -> str:
    """Return why clients before 2026-07-28 refuse a list with this output schema, which is in
    order; empty if they take it."""
    if schema.get("type") != "object":
        return f"{_OUTPUT}.type: expected 'object'"
    for name, property_schema in schema.get("properties", {}).items():
        if not is_table(property_schema):
            return f"{_OUTPUT}.properties.{name}: expected an object, got {_kind(property_schema)}"
    return ""


def _input_flaws(schema: object) -> list[SchemaFlaw]:
    if not is_table(schema):
        return []  # the whole definition is not valid then
    flaws = _Reading(schema, _INPUT, argued=True).flaws
    for key, refusing in _NOT_AT_TOP.items():
        if key in schema:
            flaws.append(SchemaFlaw(f"{_INPUT}.{key}", "stands at the top of the schema", refusing))
    properties = schema.get("properties")
    for name in properties if is_table(properties) else ():
        if NAME.fullmatch(name) is None:
            path = f"{_INPUT}.properties.{name}"
            reason = "is not a name of 1 to 64 letters, digits, '_', '.' and '-'"
            flaws.append(SchemaFlaw(path, reason, frozenset({ANTHROPIC})))
    return flaws


def _sentence(flaws: Sequence[SchemaFlaw]) -> str:
    """Return the first flaw, and how many there are besides; empty for none."""
    if not flaws:
        return ""
    more = f" (and {len(flaws) - 1} more)" if len(flaws) > 1 else ""
    return f"{flaws[0].place[:PLACE_CHARACTERS_MAX]}: {flaws[0].reason}{more}"


PLACE_CHARACTERS_MAX = 200
"""Characters of the place of a flaw in a sentence."""


def _format_refusers(refusing: frozenset[str]) -> str:
    """Return who refuses, as the subject of a sentence."""
    names = [name for name in (ANTHROPIC, OPENAI, GEMINI) if name in refusing]
    *first, last = names
    apis = f"the APIs of {', '.join(first)} and {last}" if first else f"the API of {last}"
    return f"{VS_CODE} and {apis}" if VS_CODE in refusing else apis


def safe_tool(tool: bytes) -> bytes:
    """Return a tool without what clients and APIs of models refuse in its schemas; the same bytes
    if there is nothing of that. A caller may send what it could send before, or more."""
    if validation.unreadable(tool) is not None:
        return tool
    members = codec.level(tool)
    before = codec.value(members.get("inputSchema", Raw(b"null")))
    after = _safe_input(before if is_table(before) else {})
    changed: dict[str, object] = {} if after == before else {"inputSchema": after}
    if "outputSchema" in members:
        output = codec.value(members["outputSchema"])
        if is_table(output) and output.get("$schema", NEWEST) != NEWEST:
            output = {key: value for key, value in output.items() if key != "$schema"}
            changed["outputSchema"] = output
        if _output_flaws(output):
            del members["outputSchema"]
            changed.pop("outputSchema", None)
            changed.setdefault("inputSchema", after)
    if not changed:
        return tool
    return codec.dump({**members, **changed})


NEWEST = "https://json-schema.org/draft/2020-12/schema"


def _safe_input(before: dict[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in before.items() if key not in _NOT_AT_TOP}
    if schema.get("$schema") != NEWEST:
        schema.pop("$schema", None)
    schema["type"] = "object"
    branches = [before, *(branch for key in _UNIONS for branch in _list(before.get(key)))]
    properties: dict[str, Any] = {
        name: value if is_table(value) else {} if value else {"not": {}}
        for branch in reversed(branches)
        for name, value in _table(_table(branch).get("properties")).items()
        if NAME.fullmatch(name)
    }
    if properties or "properties" in schema:
        schema["properties"] = properties
    names = (name for name in _list(schema.pop("required", None)) if isinstance(name, str))
    if required := [name for name in names if NAME.fullmatch(name)]:
        schema["required"] = required
    for _ in range(SAFE_ROUNDS):  # what was left out can have been the aim of a reference
        reading = _Reading(schema, _INPUT, argued=True)
        if not reading.flaws:
            return schema
        schema = reading.made
    return {"type": "object", "properties": {name: {} for name in properties}}


SAFE_ROUNDS = 3
"""Readings of an input schema until nothing is wrong with it, before only names are left of it."""


def _table(value: object) -> dict[str, Any]:
    return value if is_table(value) else {}


def _list(value: object) -> list[Any]:
    return value if is_list(value) else []
