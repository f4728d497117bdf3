"""Title, description and parameters of a tool, read from its raw definition.

Owns: reading a definition, also a broken one, and how the type of a parameter is written for
people. Never: calls, validation of arguments, the bytes that clients get.

Reading never fails: members of the wrong type are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec

DEFINITION_BYTES_MAX = 1 << 20
"""Maximum bytes of a definition; of a larger one nothing is read, only the tool's name is known."""
PARAMETERS_MAX = 200
"""Maximum parameters read of one tool, nested ones included."""
DEPTH_MAX = 4
"""Maximum levels of nested parameters, and maximum references followed for one type."""
CHOICES_MAX = 8
"""Maximum values of an enumeration that are written out."""
TYPE_CHARACTERS_MAX = 120

Schema = Mapping[str, Any]

_NESTING = frozenset({"$ref", "allOf", "anyOf", "items", "oneOf", "properties"})
"""Keys of a schema under which a parameter can have parameters of its own."""


class Parameter(Struct, frozen=True):
    """A parameter of a tool. `name`: full path, as `options.path`; `schema`: as the server sent it;
    `root`: schema in which its references are looked up."""

    name: str
    required: bool
    schema: Schema
    root: Schema

    @property
    def description(self) -> str:
        return _text(self.schema.get("description"))

    @property
    def type(self) -> str:
        """Type as text: `string`, `"a" | "b"`, `integer[]`; "any" where the schema has no type."""
        return _type(self.schema, self.root, DEPTH_MAX)[:TYPE_CHARACTERS_MAX]


class Definition(Struct, frozen=True):
    """Readable parts of a definition. `more`: whether there are parameters beyond the
    maximum."""

    title: str = ""
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    more: bool = False


def read(raw: bytes) -> Definition:
    """Return the readable parts of a definition; all empty if it is broken or too large."""
    if len(raw) > DEFINITION_BYTES_MAX:
        return Definition()
    members = codec.members(raw)
    root = _schema(_value(members.get("inputSchema")))
    parameters: list[Parameter] = []
    more = False
    for parameter in _parameters(root):
        if len(parameters) == PARAMETERS_MAX:
            more = True
            break
        parameters.append(parameter)
    title = _text(_value(members.get("title")))
    return Definition(
        title or _text(_schema(_value(members.get("annotations"))).get("title")),
        _text(_value(members.get("description"))),
        tuple(parameters),
        more,
    )


def _parameters(root: Schema) -> Iterator[Parameter]:
    """Yield the parameters in the order of the schema, nested ones behind those of their level."""
    waiting = [("", root, 0)]
    while waiting:
        prefix, schema, depth = waiting.pop()
        required = _list(schema.get("required"))
        nested: list[tuple[str, Schema, int]] = []
        for name, value in _schema(schema.get("properties")).items():
            inner = _schema(value)
            yield Parameter(prefix + name, name in required, inner, root)
            if depth + 1 < DEPTH_MAX and not _NESTING.isdisjoint(inner):
                nested.extend(
                    (f"{prefix}{name}.", below, depth + 1) for below in _objects(inner, root)
                )
        waiting.extend(reversed(nested))


def _objects(schema: Schema, root: Schema) -> Iterator[Schema]:
    """Yield the schemas with properties in one parameter: itself, its items, its alternatives."""
    if "$ref" in schema:
        schema = _resolve_reference(schema, root)
    if "properties" in schema:
        yield schema
    for key in ("items", "anyOf", "oneOf", "allOf"):
        if key not in schema:
            continue
        value = schema[key]
        for subschema in _list(value) or [value]:
            inner = _resolve_reference(_schema(subschema), root)
            if "properties" in inner:
                yield inner


def _resolve_reference(schema: Schema, root: Schema) -> Schema:
    """Return the target of a local reference (`#/$defs/Place`), or the schema if it has none."""
    for _ in range(DEPTH_MAX):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = root
        for step in reference[2:].split("/"):
            target = _schema(target).get(step.replace("~1", "/").replace("~0", "~"))
        schema = _schema(target)
    return schema


def _type(schema: Schema, root: Schema, depth: int) -> str:
    if depth == 0:
        return "any"
    schema = _resolve_reference(schema, root)
    choices = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if choices:
        literals = [codec.dump(choice).decode() for choice in choices[:CHOICES_MAX]]
        return " | ".join([*literals, "…"] if len(choices) > CHOICES_MAX else literals)
    declared = schema.get("type")
    kinds = [name for name in _list(declared) if isinstance(name, str)] or [_text(declared)]
    if kinds == ["array"]:
        inner = _type(_schema(schema.get("items")), root, depth - 1)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kinds != [""]:
        return " | ".join(kinds)
    for key in ("anyOf", "oneOf"):
        inners = (
            _type(_schema(subschema), root, depth - 1) for subschema in _list(schema.get(key))
        )
        if named := list(dict.fromkeys(inners)):
            return " | ".join(named)
    return "object" if "properties" in schema else "any"


def _value(raw: Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return codec.value(raw)
    except codec.Malformed:
        return None


def _schema(value: Any) -> Schema:
    return cast(Schema, value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(cast(Iterable[Any], value)) if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
