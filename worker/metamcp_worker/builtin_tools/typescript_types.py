"""TypeScript types of tools, built from their JSON Schemas.

Owns: the declaration of a tool as code calls it, with descriptions as comments. Never: which tools
there are, checking arguments, calls.

The text always parses, whatever the schema is: a part that has no type here, that refers to itself,
or that is too much, is `unknown`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.ipc import codec

DEPTH_MAX = 8
"""Maximum levels of types within types; the next one is `unknown`."""
TYPES_MAX = 1000
"""Maximum types of one declaration, as references can make a short schema a long text."""
CHOICES_MAX = 50
"""Maximum values of an enumeration that are written out."""
COMMENT_CHARACTERS_MAX = 400
DESCRIPTION_CHARACTERS_MAX = 2000
"""Maximum characters of the description of the tool itself."""
LINE_CHARACTERS_MAX = 72
"""Maximum characters of an object that is written on one line."""

Schema = Mapping[str, Any]

_NOTHING: Schema = {}
_UNKNOWN = "unknown"
_INDENT = "  "
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_WORD = re.compile(r"[a-z]+\Z")
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}


def declaration(name: str, definition: bytes) -> str:
    """Return the declaration of `mcp.call` for the tool with this exposed name. `definition`: raw,
    as in a list of tools, of any shape. The type of the result is that of the data which `mcp.call`
    returns."""
    try:
        tool = _object(codec.value(definition))
    except codec.Malformed:  # a number that is too large, or too many levels
        tool = _NOTHING
    input_schema = _object(tool.get("inputSchema"))
    arguments = _Writer(input_schema).type(input_schema, 1)
    if arguments == _UNKNOWN:
        arguments = "Record<string, unknown>"
    needed = "" if input_schema.get("required") else "?"
    made = _object(tool.get("outputSchema"))
    only = _object(made.get("properties"))
    unwrapped = only["result"] if list(only) == ["result"] else made
    result = _Writer(made).type(unwrapped, 1) if made else _UNKNOWN
    lines = _comment(tool.get("description"), None, DESCRIPTION_CHARACTERS_MAX)
    parameters = f"name: {_literal(name)}, args{needed}: {arguments}"
    lines.append(f"function call({parameters}): Promise<{result}>;")
    body = "\n".join(_INDENT + line for line in lines)
    return f"declare namespace mcp {{\n{body}\n}}"


class _Writer:
    """Writes the types of one schema, in whose root references are looked up."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = TYPES_MAX
        self._open = ["#"]
        """References that are being written, to find those that lead back."""
        self._kinds: Mapping[str, Callable[[Schema, int], str]] = {
            "array": self._array, "object": self._members, "null": lambda schema, depth: "null",
        }  # fmt: skip

    def type(self, schema: object, depth: int) -> str:
        """Return the type of a schema. `depth`: levels around it, which indent its lines."""
        self._left -= 1
        if schema is False:
            return "never"
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX or self._left < 0:
            return _UNKNOWN
        mapping = cast(Schema, schema)
        made = (
            self._resolve_reference(mapping, depth)
            if "$ref" in mapping
            else self._own(mapping, depth)
        )
        if mapping.get("nullable") is True and made not in (_UNKNOWN, "null"):
            return _union([made, "null"])
        return made

    def _resolve_reference(self, schema: Schema, depth: int) -> str:
        reference = schema["$ref"]
        if not isinstance(reference, str) or reference in self._open:
            return _UNKNOWN
        self._open.append(reference)
        try:
            return self.type(_at(self._root, reference), depth)
        finally:
            self._open.pop()

    def _own(self, schema: Schema, depth: int) -> str:
        if "const" in schema:
            return _value(schema["const"])
        if isinstance(values := schema.get("enum"), list):
            return self._choice(cast("list[object]", values), schema, depth)
        parts = [self._kind(schema, depth)]
        for key in ("anyOf", "oneOf"):
            if isinstance(subschemas := schema.get(key), list):
                choices = [
                    self.type(subschema, depth) for subschema in cast("list[object]", subschemas)
                ]
                parts.append(_union(choices))
        if isinstance(subschemas := schema.get("allOf"), list):
            parts += [self.type(subschema, depth) for subschema in cast("list[object]", subschemas)]
        distinct = list(dict.fromkeys(text for text in parts if text != _UNKNOWN))
        if len(distinct) < 2:
            return distinct[0] if distinct else _UNKNOWN
        return " & ".join(f"({text})" if " | " in text else text for text in distinct)

    def _choice(self, values: list[object], schema: Schema, depth: int) -> str:
        if len(values) > CHOICES_MAX:
            return self._kind(schema, depth)
        return _union(map(_value, values)) if values else "never"

    def _kind(self, schema: Schema, depth: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            return _union(self._single(schema, name, depth) for name in cast("list[object]", kind))
        if kind is None and isinstance(schema.get("properties"), Mapping):
            kind = "object"
        return self._single(schema, kind, depth)

    def _single(self, schema: Schema, kind: object, depth: int) -> str:
        if not isinstance(kind, str):
            return _UNKNOWN
        write = self._kinds.get(kind)
        return _PLAIN.get(kind, _UNKNOWN) if write is None else write(schema, depth)

    def _array(self, schema: Schema, depth: int) -> str:
        items = schema.get("items", {})
        if isinstance(first := schema.get("prefixItems"), list):
            parts = [self.type(item, depth + 1) for item in cast("list[object]", first)]
            if items is not False:
                parts.append(f"...{_many(self.type(items, depth + 1))}")
            return f"[{', '.join(parts)}]"
        return _many(self.type(items, depth + 1))

    def _members(self, schema: Schema, depth: int) -> str:
        members = _object(schema.get("properties"))
        others = schema.get("additionalProperties")
        if not members:
            return f"Record<string, {self.type(others, depth + 1)}>"
        declared = schema.get("required")
        required = cast("list[object]", declared) if isinstance(declared, list) else []
        lines: list[str] = []
        for name, member in members.items():
            lines += _comment(
                _text(member, "description"), _default(member), COMMENT_CHARACTERS_MAX
            )
            mark = "" if name in required else "?"
            lines.append(f"{_key(name)}{mark}: {self.type(member, depth + 1)};")
        if isinstance(others, Mapping):
            lines.append("[key: string]: unknown;")
        short = "{ " + " ".join(lines)[:-1] + " }"
        if len(short) <= LINE_CHARACTERS_MAX and "/*" not in short and "\n" not in short:
            return short
        inner, outer = _INDENT * (depth + 1), _INDENT * depth
        return "{\n" + "".join(f"{inner}{line}\n" for line in lines) + outer + "}"


def _at(root: Schema, pointer: str) -> Any:
    """Return the schema at a JSON pointer into the root (RFC 6901); None if there is none."""
    if not pointer.startswith("#"):
        return None
    schema: Any = root
    for token in pointer[1:].split("/")[1:]:
        schema = _object(schema).get(token.replace("~1", "/").replace("~0", "~"))
    return schema


def _object(value: object) -> Schema:
    return cast(Schema, value) if isinstance(value, Mapping) else _NOTHING


def _union(types: Iterable[str]) -> str:
    parts = list(dict.fromkeys(types))
    if _UNKNOWN in parts or not parts:
        return _UNKNOWN
    return " | ".join(f"({text})" if " & " in text else text for text in parts)


def _many(item_type: str) -> str:
    return f"{item_type}[]" if _WORD.match(item_type) else f"Array<{item_type}>"


def _value(value: object) -> str:
    """Return the type that has this value alone."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return _literal(value) if isinstance(value, str) else _UNKNOWN


def _literal(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


def _key(name: str) -> str:
    return name if _IDENTIFIER.match(name) else _literal(name)


def _text(schema: object, key: str) -> object:
    return cast(Schema, schema).get(key) if isinstance(schema, Mapping) else None


def _default(schema: object) -> str | None:
    value = _text(schema, "default")
    return None if value is None or isinstance(value, list | Mapping) else _value(value)


def _comment(text: object, default: str | None, characters: int) -> list[str]:
    """Return a comment of one line with this text, or none without one."""
    parts = [tool_text.line(text, characters)] if isinstance(text, str) else []
    if default is not None:
        parts.append(f"Default: {tool_text.line(default, characters)}")
    comment = " ".join(filter(None, parts)).replace("*/", "*\\/")
    return [f"/** {comment} */"] if comment else []
