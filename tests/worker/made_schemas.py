"""Schemas and values for the tests of the differ, made by dice that fall the same way each time.

The alphabet is small on purpose: names, values and bounds meet again and again, so that a schema
and its mutation have much in common, and a value that is drawn for one is nearly valid for the
other.
"""

import copy
import importlib
import random
from typing import Any, TypeGuard

jsonschema: Any = importlib.import_module("jsonschema")
"""It has no types of its own."""

NAMES = ("a", "b", "c")
WORDS = ("", "x", "xy", "xyz", "a")
SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, 2, -1, 1.5, 1.0, 0.5, 3, *WORDS)
PATTERNS = ("^x", "y$", "^a$", ".*")
MODERN = "https://json-schema.org/draft/2020-12/schema"
OLD = "http://json-schema.org/draft-07/schema#"
TYPES = ("null", "boolean", "object", "array", "string", "integer", "number")


ANYTHING: tuple[Any, ...] = (True, True, False, {})


def is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


class Dice:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.old_draft = self.random.random() < 0.35

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def root(self) -> dict[str, Any]:
        """An input schema."""
        schema = self._object(3)
        schema["type"] = "object"
        if "#/$defs/" in repr(schema):
            schema["$defs"] = {"D": self.schema(2), "E": self.schema(1)}
        if self.old_draft:
            schema["$schema"] = OLD
        elif self.chance(0.5):
            schema["$schema"] = MODERN
        return schema

    def schema(self, depth: int) -> Any:
        roll = self.random.random()
        if roll < 0.06:
            return self.random.choice(ANYTHING)
        if roll < 0.12:
            return {"$ref": self.random.choice(["#/$defs/D", "#/$defs/D", "#/$defs/E", "#"])}
        if roll < 0.22:
            return self._values()
        if depth > 0 and roll < 0.45:
            return self._composed(depth)
        makers = [self._number, self._string, self._plain]
        if depth > 0:
            makers += [lambda: self._object(depth), lambda: self._array(depth)] * 2
        return self.random.choice(makers)()

    def _values(self) -> dict[str, Any]:
        if self.chance(0.4):
            return {"const": self.random.choice([*SCALARS, [1], {"a": 1}])}
        return {"enum": self.random.sample([*SCALARS, [1, "x"]], self.random.randint(1, 4))}

    def _plain(self) -> dict[str, Any]:
        if self.chance(0.3):
            return {"type": self.random.sample(TYPES, 2)}
        return {"type": self.random.choice(TYPES)}

    def _number(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.random.choice(["integer", "number"])}
        bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
        for key in self.random.sample(bounds, self.random.randint(0, 2)):
            schema[key] = self.random.choice([-1, 0, 1, 2, 1.5, 3])
        if self.chance(0.15):
            schema["multipleOf"] = self.random.choice([1, 2, 0.5])
        return self._loosened(schema)

    def _string(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.chance(0.4):
            schema["minLength"] = self.random.randint(0, 3)
        if self.chance(0.4):
            schema["maxLength"] = self.random.randint(0, 3)
        if self.chance(0.25):
            schema["pattern"] = self.random.choice(PATTERNS)
        return self._loosened(schema)

    def _loosened(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self.chance(0.15):
            del schema["type"]
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(0, 3))
        schema: dict[str, Any] = {"type": "object"}
        if names:
            schema["properties"] = {name: self.schema(depth - 1) for name in names}
        if self.chance(0.4):
            schema["required"] = self.random.sample(NAMES, self.random.randint(1, 2))
        if self.chance(0.35):
            schema["additionalProperties"] = self.random.choice([False, True, self.schema(0)])
        if self.chance(0.12):
            schema["patternProperties"] = {self.random.choice(["^a", "b"]): self.schema(0)}
        if self.chance(0.1):
            schema["propertyNames"] = self.random.choice([{"maxLength": 1}, {"enum": ["a", "b"]}])
        if self.chance(0.1):
            schema["maxProperties"] = self.random.randint(0, 3)
        if self.chance(0.1):
            schema["minProperties"] = self.random.randint(0, 2)
        if self.chance(0.1):
            key = "dependencies" if self.old_draft else "dependentRequired"
            schema[key] = {self.random.choice(NAMES): [self.random.choice(NAMES)]}
        if self.chance(0.08):
            key = "dependencies" if self.old_draft else "dependentSchemas"
            schema[key] = {self.random.choice(NAMES): self.schema(depth - 1)}
        if self.chance(0.04) and not self.old_draft:
            schema["unevaluatedProperties"] = False
        return self._loosened(schema)

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self.chance(0.35):
            prefix = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
            schema["items" if self.old_draft else "prefixItems"] = prefix
            if self.chance(0.5):
                schema["additionalItems" if self.old_draft else "items"] = self.schema(depth - 1)
        elif self.chance(0.8):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.25):
            schema["minItems"] = self.random.randint(0, 2)
        if self.chance(0.25):
            schema["maxItems"] = self.random.randint(0, 3)
        if self.chance(0.15):
            schema["uniqueItems"] = True
        if self.chance(0.1):
            schema["contains"] = self.schema(0)
        return self._loosened(schema)

    def _composed(self, depth: int) -> dict[str, Any]:
        key = self.random.choice(["anyOf", "anyOf", "oneOf", "allOf", "not", "if"])
        if key == "not":
            return {"not": self.schema(depth - 1)}
        if key == "if":
            schema = {"if": self.schema(depth - 1)}
            for branch in ("then", "else"):
                if self.chance(0.7):
                    schema[branch] = self.schema(depth - 1)
            return schema
        count = self.random.randint(1, 3)
        schema = {key: [self.schema(depth - 1) for _ in range(count)]}
        if self.chance(0.3):
            schema |= self._plain()
        return schema

    # Mutations

    def mutated(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The same schema with one to three things in it changed."""
        new: dict[str, Any] = copy.deepcopy(schema)
        for _ in range(self.random.randint(1, 3)):
            places = _schemas(new)
            holder, key = self.random.choice(places)
            here = holder[key]
            if is_table(here) and (here is new or not self.chance(0.2)):
                self._one_change(here)
                continue
            wider: list[Any] = [
                self.schema(1),
                {"anyOf": [here, self.schema(0)]},
                {"allOf": [here]},
            ]
            holder[key] = self.random.choice(wider)
        return new

    def _one_change(self, here: dict[str, Any]) -> None:
        roll = self.random.random()
        mine = [key for key in here if key not in {"$defs", "$schema"}]
        if roll < 0.3 and mine:
            del here[self.random.choice(mine)]
        elif roll < 0.5:
            made = self.schema(1)
            if is_table(made):
                here |= made
        elif roll < 0.65 and is_table(here.get("properties")):
            here["properties"][self.random.choice(NAMES)] = self.schema(1)
        elif roll < 0.75:
            here["required"] = self.random.sample(NAMES, self.random.randint(0, 2))
        elif roll < 0.85:
            here["additionalProperties"] = self.random.choice([False, True, self.schema(0)])
        else:
            for key, value in list(here.items()):
                if key == "enum":
                    here[key] = [*value, self.random.choice(SCALARS)]
                elif isinstance(value, int) and not isinstance(value, bool):
                    here[key] = max(0, value + self.random.choice([-1, 1]))

    # Values

    def value(self, schema: Any, root: dict[str, Any], depth: int = 4) -> Any:
        """One that may well be valid for the schema."""
        if not is_table(schema) or depth <= 0 or self.chance(0.08):
            return self.any_value(min(depth, 2))
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.value(
                root if name == "#" else root.get("$defs", {}).get(name), root, depth - 1
            )
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key) and self.chance(0.7):
                return self.value(self.random.choice(schema[key]), root, depth - 1)
        for key in ("then", "else", "if"):
            if key in schema and self.chance(0.4):
                return self.value(schema[key], root, depth - 1)
        kinds: Any = schema.get("type") or self._guess(schema)
        kind = self.random.choice(kinds) if is_list(kinds) else kinds
        return self._of_type(kind, schema, root, depth)

    def _guess(self, schema: dict[str, Any]) -> str:
        if schema.keys() & {"properties", "required", "additionalProperties"}:
            return "object"
        if schema.keys() & {"items", "prefixItems", "contains"}:
            return "array"
        return self.random.choice(TYPES)

    def _of_type(self, kind: str, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
        if kind == "object":
            known: dict[str, Any] = schema.get("properties", {})
            rest = schema.get("additionalProperties", True)
            names = {*schema.get("required", ())} | {n for n in known if self.chance(0.6)}
            if self.chance(0.3):
                names.add(self.random.choice([*NAMES, "z"]))
            return {n: self.value(known.get(n, rest), root, depth - 1) for n in sorted(names)}
        if kind == "array":
            items = schema.get("items", True)
            prefix: list[Any] = items if is_list(items) else schema.get("prefixItems", [])
            count = self.random.randint(schema.get("minItems", 0), 3)
            rest = schema.get("additionalItems", True) if is_list(items) else items
            each = [prefix[at] if at < len(prefix) else rest for at in range(count)]
            return [self.value(one, root, depth - 1) for one in each]
        if kind == "string":
            return self.random.choice(WORDS)
        if kind in ("integer", "number"):
            whole = [-1, 0, 1, 2, 3, 1.0]
            return self.random.choice(whole if kind == "integer" else [*whole, 0.5, 1.5, 2.5])
        return None if kind == "null" else self.chance(0.5)

    def any_value(self, depth: int) -> Any:
        if depth <= 0 or self.chance(0.5):
            return self.random.choice(SCALARS)
        if self.chance(0.5):
            return [self.any_value(depth - 1) for _ in range(self.random.randint(0, 2))]
        names = self.random.sample([*NAMES, "z"], self.random.randint(0, 3))
        return {name: self.any_value(depth - 1) for name in sorted(names)}


def valid(schema: dict[str, Any], value: Any) -> bool:
    """As the reference implementation says."""
    kind = (
        jsonschema.Draft7Validator
        if schema.get("$schema") == OLD
        else jsonschema.Draft202012Validator
    )
    return bool(kind(schema).is_valid(value))


def grounded(root: dict[str, Any]) -> bool:
    """Does every reference lead somewhere, and none back to itself at the same value? Otherwise the
    schema means nothing, and the reference implementation runs into its own end."""
    state: dict[int, bool] = {}

    def ends(schema: Any) -> bool:
        if not is_table(schema):
            return True
        if id(schema) in state:
            return state[id(schema)]
        state[id(schema)] = False
        found = all(map(ends, _beside(schema, root)))
        state[id(schema)] = found
        return found

    return all(ends(holder[key]) for holder, key in _schemas(root))


def _beside(schema: dict[str, Any], root: dict[str, Any]) -> list[Any]:
    """The schemas for the same value. A reference to nothing leads back to the schema itself."""
    found = [schema[key] for key in ("not", "if", "then", "else") if key in schema]
    for key in ("allOf", "anyOf", "oneOf"):
        found += schema.get(key, ())
    for key in ("dependentSchemas", "dependencies"):
        found += schema.get(key, {}).values()
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found.append(root if name == "#" else root.get("$defs", {}).get(name, schema))
    return found


def names_in(value: Any) -> set[str]:
    """Of members, anywhere in a value."""
    if is_table(value):
        return {*value} | {name for each in value.values() for name in names_in(each)}
    if is_list(value):
        return {name for each in value for name in names_in(each)}
    return set()


def _schemas(root: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The holder and key of every schema in this one, but of itself."""
    found: list[tuple[Any, Any]] = [({"": root}, "")]
    waiting: list[Any] = [root]
    while waiting:
        here = waiting.pop()
        for key, value in here.items() if is_table(here) else ():
            if key in ("properties", "patternProperties", "$defs", "dependentSchemas"):
                inner: list[tuple[Any, Any]] = [(value, name) for name in value]
            elif key in ("anyOf", "allOf", "oneOf", "prefixItems") or is_list(value):
                inner = [(value, at) for at, each in enumerate(value) if is_table(each)]
            elif is_table(value) and key != "const":
                inner = [(here, key)]
            else:
                inner = []
            if key in ("enum", "const", "required", "type", "dependentRequired", "dependencies"):
                continue
            found += inner
            waiting += [holder[at] for holder, at in inner]
    return found
