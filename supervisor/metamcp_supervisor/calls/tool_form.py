"""Arguments of a tool as people give them: as words at a prompt, or in a form.

Owns: the fields of a JSON Schema, the value that a text stands for, and sentences about texts that
stand for none. Never: validating values further (the server does that), asking (`tool_call`).

A text is a string where the schema allows a string. Elsewhere it is read as JSON. A field for a
list takes one text for each item, or the whole list as JSON.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct

from metamcp_supervisor.config.naming import hint
from metamcp_worker.ipc import codec

Json = dict[str, Any]
FieldKind = Literal["text", "integer", "number", "boolean", "choice", "list", "json"]

REFERENCES_MAX = 16
"""Maximum references from one schema to another that are followed for one field."""
BRANCHES_MAX = 64
"""Maximum alternatives of one field; a schema with more is read as JSON."""
CHOICES_MAX = 500
"""Maximum values to choose from in one field."""

_TYPE_WORDS = {"text": "string", "json": "JSON"}
#: Types in the order in which a text is tried as one of them.
_TYPES = ("string", "null", "boolean", "integer", "number", "array", "object")


class ArgumentsUnfit(ValueError):
    """Raised for arguments that do not fit a schema. `problems`: sentences, one for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class FormField(Struct, frozen=True, kw_only=True):
    """Argument as a person gives it. `choices`: texts of the allowed values, empty if others are
    allowed too; `item`: kind of the items of a list; `default`: text of the value that counts if
    nothing is given, None without one."""

    name: str
    kind: FieldKind
    required: bool = False
    title: str = ""
    description: str = ""
    choices: tuple[str, ...] = ()
    item: FieldKind = "text"
    default: str | None = None

    @property
    def type(self) -> str:
        """Name of the type, for sentences."""
        words = {**_TYPE_WORDS, "choice": "one of " + ", ".join(self.choices)}
        if self.kind == "list":
            return f"list of {words.get(self.item, self.item)}"
        return words.get(self.kind, self.kind)


def fields(schema: Json) -> tuple[FormField, ...]:
    """Return the fields of an object schema, required ones first."""
    required = _required_names(schema)
    form_fields = [
        _field(name, table(property_schema), schema, required=name in required)
        for name, property_schema in table(schema.get("properties")).items()
    ]
    return tuple(sorted(form_fields, key=lambda field: not field.required))


def split(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of `KEY=VALUE` words by key. Raises ArgumentsUnfit."""
    texts: dict[str, list[str]] = {}
    wrong = [word for word in words if not word.partition("=")[1] or word.startswith("=")]
    if wrong:
        raise ArgumentsUnfit([f"{word!r} is not of the form KEY=VALUE" for word in wrong])
    for word in words:
        key, _, text = word.partition("=")
        texts.setdefault(key, []).append(text)
    return texts


def collect_texts(schema: Json, form: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the texts of a form by field: fields that were left empty are not given, and each line
    of a list is an item."""
    texts: dict[str, list[str]] = {}
    for field in fields(schema):
        text = form.get(field.name, "").replace("\r\n", "\n")
        if text == "" and not (field.required and field.kind == "text"):
            continue
        if field.kind == "list" and not text.lstrip().startswith("["):
            texts[field.name] = [line for line in text.split("\n") if line]
        else:
            texts[field.name] = [text]
    return texts


def arguments(
    schema: Json, texts_by_name: Mapping[str, Sequence[str]], others: Collection[str] = ()
) -> dict[str, object]:
    """Return the arguments that these texts stand for. `others`: names of arguments that are given
    in another way. Raises ArgumentsUnfit with all that is wrong: unknown and missing names, and
    texts that are not of the type of their field."""
    properties = table(schema.get("properties"))
    problems: list[str] = []
    values: dict[str, object] = {}
    for name, texts in texts_by_name.items():
        if name in properties:
            property_schema = table(properties[name])
        elif properties and not schema.get("additionalProperties"):
            problems.append(f"no argument is named {name!r}; {hint(name, properties)}")
            continue
        else:
            property_schema = table(schema.get("additionalProperties"))
        try:
            values[name] = _value(texts, property_schema, schema)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    missing = [
        field
        for field in fields(schema)
        if field.required and field.name not in {*texts_by_name, *others}
    ]
    problems += [f"{field.name} is missing ({field.type})" for field in missing]
    if problems:
        raise ArgumentsUnfit(problems)
    return values


def usage(command: str, schema: Json) -> str:
    """Return a line that shows how a verb takes these arguments at a prompt."""
    words = [command]
    for field in fields(schema):
        value = "|".join(field.choices) if field.kind == "choice" else field.type.upper()
        if field.kind == "list":
            value = f"{_TYPE_WORDS.get(field.item, field.item).upper()}…"
        word = f"{field.name}={value}"
        words.append(word if field.required else f"[{word}]")
    return f"usage: metamcp {' '.join(words)}"


def _field(name: str, schema: Json, root: Json, *, required: bool) -> FormField:
    branches = _branches(schema, root)
    resolved = _resolve_reference(schema, root)
    choices = _choices(branches)
    kind = "choice" if choices else _kind(branches)
    item: FieldKind = "text"
    if kind == "list":
        items = _branches(_items(branches), root)
        choices = _choices(items)
        item = "choice" if choices else _kind(items)
        kind = "json" if item in {"json", "list"} else kind
    default = resolved.get("default", schema.get("default"))
    return FormField(
        name=name,
        kind=kind,
        required=required,
        title=_text(resolved.get("title")),
        description=_text(schema.get("description")) or _text(resolved.get("description")),
        choices=choices,
        item=item,
        default=None if default is None else _to_text(default),
    )


def _kind(branches: Sequence[Json]) -> FieldKind:
    types = _types(branches) - {"null"}
    kinds: dict[str, FieldKind] = {
        "string": "text", "boolean": "boolean", "integer": "integer", "number": "number",
        "array": "list",
    }  # fmt: skip
    if "string" in types:
        return "text"
    if types == {"integer", "number"}:
        return "number"
    return kinds.get(next(iter(types)), "json") if len(types) == 1 else "json"


def _choices(branches: Sequence[Json]) -> tuple[str, ...]:
    """Return the texts of the values that are allowed, empty unless these are all."""
    texts: list[str] = []
    for branch in branches:
        if branch.get("type") == "null":
            continue
        values = branch.get("enum", [branch["const"]] if "const" in branch else None)
        if not isinstance(values, list):
            return ()
        texts += [_to_text(value) for value in cast("list[object]", values)]
    return tuple(dict.fromkeys(texts))[:CHOICES_MAX]


def _value(texts: Sequence[str], schema: Json, root: Json) -> object:
    """Return the value of these texts. Raises ValueError."""
    branches = _branches(schema, root)
    types = _types(branches)
    listed = "array" in types and ("string" not in types or len(texts) > 1)
    if listed and not (len(texts) == 1 and texts[0].lstrip().startswith("[")):
        items = _items(branches)
        return [_value([text], items, root) for text in texts]
    if len(texts) > 1:
        raise ValueError("is given more than once, and is not a list")
    return _single(texts[0], branches)


def _single(text: str, branches: Sequence[Json]) -> object:
    choices = [value for branch in branches for value in _allowed_values(branch)]
    for value in choices:
        if _to_text(value) == text:
            return value
    open_ = [branch for branch in branches if not _allowed_values(branch)]
    if not open_:
        texts = [_to_text(value) for value in choices]
        raise ValueError(f"{text!r} is not allowed; {hint(text, texts)}")
    types = _types(open_)
    if "string" in types:
        return text
    try:
        parsed: object = codec.value(text.encode("utf-8", "surrogateescape"))
    except codec.Malformed:
        if not types:
            return text
        parsed = None if text == "null" else text
    if not types or any(_is(parsed, kind) for kind in types):
        return int(parsed) if isinstance(parsed, float) and "number" not in types else parsed
    names = " or ".join(kind for kind in _TYPES if kind in types)
    article = "an" if names[0] in "aio" else "a"
    raise ValueError(f"{text!r} is not {article} {names}")


def _is(value: object, kind: str) -> bool:
    """Whether a value has this type of JSON Schema."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            is_integral = isinstance(value, float) and math.isfinite(value) and value.is_integer()
            return is_integral or (isinstance(value, int) and not isinstance(value, bool))
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _allowed_values(branch: Json) -> list[object]:
    """Return the values that a branch lists; empty if it lists none."""
    if "const" in branch:
        return [branch["const"]]
    values = branch.get("enum")
    return cast("list[object]", values) if isinstance(values, list) else []


def _types(branches: Sequence[Json]) -> set[str]:
    """Return the types of branches; empty if one of them allows everything."""
    types: set[str] = set()
    for branch in branches:
        if "type" not in branch:
            if "properties" not in branch:
                return set()
            types.add("object")
            continue
        types.add(_text(branch["type"]))
    return types & {*_TYPES}


def _branches(schema: Json, root: Json) -> list[Json]:
    """Return the alternatives of a schema, each with at most one type."""
    branches: list[Json] = []
    waiting = [_resolve_reference(schema, root)]
    for _ in range(BRANCHES_MAX):  # a schema may be an alternative of itself
        if not waiting:
            break
        branch = waiting.pop(0)
        several = branch.get("anyOf") or branch.get("oneOf")
        kinds = branch.get("type")
        if isinstance(several, list) and several:
            listed = cast("list[object]", several)[:BRANCHES_MAX]
            waiting = [
                *(_resolve_reference(table(alternative), root) for alternative in listed),
                *waiting,
            ]
        elif isinstance(kinds, list):
            branches += [{**branch, "type": kind} for kind in cast("list[object]", kinds)]
        elif "type" not in branch and (allowed := _allowed_values(branch)):
            branches += [{"const": value, "type": _type_of(value)} for value in allowed]
        else:
            branches.append(branch)
    return [{}] if waiting else branches


def _type_of(value: object) -> str:
    return "string" if isinstance(value, str) else next(k for k in _TYPES[1:] if _is(value, k))


def _resolve_reference(schema: Json, root: Json) -> Json:
    """Return the schema that a reference leads to; an empty one if it leads nowhere."""
    resolved = schema
    for _ in range(REFERENCES_MAX):
        parts = resolved.get("allOf")
        if isinstance(parts, list) and len(cast("list[object]", parts)) == 1:
            resolved = {**resolved, **table(cast("list[object]", parts)[0])}
            resolved.pop("allOf")
        reference = resolved.get("$ref")
        if not isinstance(reference, str):
            return resolved
        resolved = {k: v for k, v in resolved.items() if k != "$ref"} | _at(reference, root)
    return {}


def _at(reference: str, root: Json) -> Json:
    node: object = root if reference.startswith("#") else {}
    for segment in reference.lstrip("#").strip("/").split("/"):
        if segment:
            node = table(node).get(segment.replace("~1", "/").replace("~0", "~"))
    return table(node)


def _items(branches: Sequence[Json]) -> Json:
    array = next((branch for branch in branches if branch.get("type") == "array"), Json())
    return table(array.get("items"))


def _required_names(schema: Json) -> set[str]:
    names = schema.get("required")
    return (
        {_text(name) for name in cast("list[object]", names)} if isinstance(names, list) else set()
    )


def table(value: object) -> Json:
    """Return the value if it is an object, else an empty object."""
    return cast(Json, value) if isinstance(value, dict) else {}


def sequence(value: object) -> list[object]:
    """Return the value if it is a list, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else codec.dump(value).decode()
