"""Judgement of the arguments of a script by its parameters, a JSON Schema.

Owns: the keywords that parameters may have, what is wrong first with a schema or with arguments.
Never: schemas of tools, which their servers judge.

The keywords are those of JSON Schema 2020-12 that cost a bounded time; `pattern` may take for ever.
A schema with others is refused when it is saved, because it would promise more than is checked.
Schema and arguments both come from clients, so the steps of a judgement are bounded.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import is_list, is_table

SCHEMA_BYTES_MAX = 16 * 1024
"""Maximum bytes of the parameters of a script."""
DEPTH_MAX = 64
"""Maximum depth of schemas in one another, followed references included."""
STEPS_MAX = 100_000
"""Maximum steps of a judgement, which take a tenth of a second; arguments that a model writes take
less than a hundred."""
TOLD_CHARACTERS_MAX = 60
"""Maximum characters of a value or a name in a sentence."""

_DEFINITIONS = "#/$defs/"
_ABOUT: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated",
     "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType"}
)  # fmt: skip
"""Keywords that limit nothing."""
_SCHEMA: Final = frozenset({"additionalProperties", "items", "not"})
_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"properties", "$defs"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OTHERS: Final = frozenset({"type", "enum", "const", "required", "uniqueItems", "$ref"})
_CHECKED: Final = _SCHEMA | _SCHEMAS | _NAMED | _COUNTS | _BOUNDS | _OTHERS


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": is_table,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value % 1 == 0,
}
_SIZED: Mapping[str, Callable[[Any], bool]] = {
    "Length": _TYPES["string"], "Items": is_list, "Properties": is_table,
}  # fmt: skip
"""Values that a limit of a count is for, by the end of its keyword."""


class _StepsExhausted(Exception):
    """The judgement has no step left, or goes too deep."""


def unfit(text: str) -> str:
    """Return why this JSON cannot be the parameters of a script, or an empty string."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > SCHEMA_BYTES_MAX:
        return f"the parameters have {size} bytes, and {SCHEMA_BYTES_MAX} are possible"
    try:
        schema = codec.value(text.encode())
    except (codec.Malformed, UnicodeError) as error:
        return f"the parameters are not JSON: {error}"
    if not is_table(schema) or schema.get("type", "object") != "object":
        return 'the parameters are a JSON Schema of an object, with "type": "object"'
    definitions = schema.get("$defs", {})
    try:
        return next(_faults(schema, "$", definitions, 0), "")
    except _StepsExhausted:
        return f"the parameters have schemas more than {DEPTH_MAX} deep in one another"


def compact(text: str) -> str:
    """Return parameters that are not `unfit` on one line."""
    return codec.dump(codec.value(text.encode())).decode()


def wrong(text: str, arguments: Raw) -> str:
    """Return what is wrong first with arguments, an object, by parameters that are not `unfit`, and
    the place in both; else an empty string. Raises codec.Malformed."""
    schema, value = codec.value(text.encode()), codec.value(arguments)
    try:
        return _ArgumentChecker(schema).fault(schema, value, "$", "args", 0)
    except _StepsExhausted:
        return "it takes too long to check the arguments by the parameters; make them smaller"


def _faults(schema: Any, at: str, definitions: Any, depth: int) -> Iterator[str]:
    """Yield sentences about what is wrong with a schema, at this place in the parameters."""
    if depth > DEPTH_MAX:
        raise _StepsExhausted
    if isinstance(schema, bool):
        return
    if not is_table(schema):
        yield f"the parameters have no schema at {at}"
        return
    for word, value in schema.items():
        here = f"{at}.{_cut(word)}"
        if word not in _CHECKED | _ABOUT:
            yield f"the parameters have a keyword at {here} that is not checked; leave it out"
        elif word in _CHECKED and not _fits(word, value, definitions):
            yield f"the parameters have a wrong value at {here}"
        elif word in _SCHEMA:
            yield from _faults(value, here, definitions, depth + 1)
        elif word in _SCHEMAS:
            for number, each in enumerate(value):
                yield from _faults(each, f"{here}[{number}]", definitions, depth + 1)
        elif word in _NAMED:
            for name, each in value.items():
                yield from _faults(each, f"{here}.{_cut(name)}", definitions, depth + 1)


def _fits(word: str, value: Any, definitions: Any) -> bool:
    """Whether a keyword may have this value, apart from schemas in it."""
    if word in _SCHEMAS:
        return is_list(value) and bool(value)
    if word in _NAMED:
        return is_table(value)
    if word in _COUNTS:
        return _TYPES["integer"](value) and value >= 0
    if word in _BOUNDS:
        return _is_number(value)
    if word == "type":
        names = value if is_list(value) and value else [value]
        return all(isinstance(name, str) and name in _TYPES for name in names)
    if word == "required":
        return is_list(value) and all(isinstance(name, str) for name in value)
    if word == "$ref":
        name = value.removeprefix(_DEFINITIONS) if isinstance(value, str) else "/"
        return value == "#" or (name != value and name in definitions)
    if word == "uniqueItems":
        return isinstance(value, bool)
    return word != "enum" or is_list(value)


class _ArgumentChecker:
    """Judgement with its steps. `root`: the whole schema, for references."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = STEPS_MAX

    def fault(self, schema: Any, value: Any, at: str, path: str, depth: int) -> str:
        """Return what is wrong first, or an empty string. `at`: place in the parameters; `path`:
        place in the arguments."""
        if depth > DEPTH_MAX:
            raise _StepsExhausted
        self._spend(1)
        if isinstance(schema, bool):
            return "" if schema else f"{path} is not allowed (parameters: {at})"
        for word, operand in schema.items():
            if word not in _CHECKED:
                continue
            self._spend(1 + (len(operand) if (is_table(operand) or is_list(operand)) else 0))
            here = f"{at}.{word}"
            fault = self._within(schema, word, value, here, path, depth + 1)
            if not fault and (reason := self._alone(word, operand, value)):
                fault = f"{path} {reason} (parameters: {here})"
            if fault:
                return fault
        return ""

    def _alone(self, word: str, operand: Any, value: Any) -> str:
        """Return what a keyword without schemas says against a value, or an empty string.
        `operand`: value of the keyword itself."""
        match word:
            case "type":
                names = operand if is_list(operand) else [operand]
                right = any(_TYPES[name](value) for name in names)
                return "" if right else f"is not of the type {' or '.join(names)}"
            case "enum" | "const":
                values = operand if word == "enum" else [operand]
                key = self._key(value)
                right = any(self._key(each) == key for each in values)
                alternatives = ", ".join(_cut(codec.dump(each).decode()) for each in values[:8])
                return (
                    "" if right else f"is not {'one of ' if word == 'enum' else ''}{alternatives}"
                )
            case "required" if is_table(value):
                missing = next((name for name in operand if name not in value), None)
                return "" if missing is None else f"has no {_cut(missing)!r}, which is required"
            case "uniqueItems" if operand and is_list(value):
                keys = [self._key(each) for each in value]
                return "" if len({*keys}) == len(keys) else "has two equal items"
            case _:
                pass
        if word in _COUNTS and _SIZED[word[3:]](value):
            count, least = len(value), word.startswith("min")
            right = count >= operand if least else count <= operand
            limit = f"{'at least' if least else 'at most'} {operand}"
            return "" if right else f"has a length of {count}, and {limit} is possible"
        if word in _BOUNDS and _is_number(value):
            right = {
                "minimum": value >= operand, "exclusiveMinimum": value > operand,
                "maximum": value <= operand, "exclusiveMaximum": value < operand,
            }[word]  # fmt: skip
            return "" if right else f"is not as {word} {operand} wants it"
        return ""

    def _within(self, schema: Any, word: str, value: Any, at: str, path: str, depth: int) -> str:
        """Return what the schemas in a keyword say against a value, or an empty string."""
        operand = schema[word]
        match word:
            case "$ref":
                name = operand.removeprefix(_DEFINITIONS)
                target = self._root if operand == "#" else self._root["$defs"][name]
                return self.fault(target, value, at, path, depth)
            case "properties" | "additionalProperties" if is_table(value):
                named = schema.get("properties", {})
                if word == "properties":
                    parts = [(name, named[name], f"{at}.{_cut(name)}") for name in named]
                else:
                    parts = [(name, operand, at) for name in value if name not in named]
                faults = (
                    self.fault(each, value[name], schema_path, f"{path}.{_cut(name)}", depth)
                    for name, each, schema_path in parts
                    if name in value
                )
                return next(filter(None, faults), "")
            case "items" | "prefixItems" if is_list(value):
                first = schema.get("prefixItems", [])
                if word == "prefixItems":
                    pairs = [(each, f"{at}[{n}]") for n, each in enumerate(first[: len(value)])]
                    start = 0
                else:
                    pairs, start = [(operand, at)] * (len(value) - len(first)), len(first)
                faults = (
                    self.fault(each, value[n], schema_path, f"{path}[{n}]", depth)
                    for n, (each, schema_path) in enumerate(pairs, start)
                )
                return next(filter(None, faults), "")
            case "not":
                fault = self.fault(operand, value, at, path, depth)
                return "" if fault else f"{path} is as it may not be (parameters: {at})"
            case "allOf" | "anyOf" | "oneOf":
                return self._of(word, operand, value, at, path, depth)
            case _:
                return ""

    def _of(self, word: str, operand: Any, value: Any, at: str, path: str, depth: int) -> str:
        faults = [
            self.fault(each, value, f"{at}[{number}]", path, depth)
            for number, each in enumerate(operand)
        ]
        if word == "allOf":
            return next(filter(None, faults), "")
        fitting = faults.count("")
        if fitting == 1 or (fitting and word == "anyOf"):
            return ""
        if len(faults) == 1:
            return faults[0]
        count = "more than one" if fitting else "none"
        return f"{path} fits {count} of {len(faults)} schemas (parameters: {at})"

    def _key(self, value: Any, depth: int = 0) -> object:
        """Return a value that is equal for equal JSON only: 1 and 1.0 are, 1 and true are not."""
        if depth > DEPTH_MAX:
            raise _StepsExhausted
        self._spend(1)
        if is_table(value):
            return frozenset((name, self._key(each, depth + 1)) for name, each in value.items())
        if is_list(value):
            return tuple(self._key(each, depth + 1) for each in value)
        return (bool, value) if isinstance(value, bool) else value

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise _StepsExhausted


def _cut(text: str) -> str:
    return text if len(text) <= TOLD_CHARACTERS_MAX else f"{text[: TOLD_CHARACTERS_MAX - 1]}…"
