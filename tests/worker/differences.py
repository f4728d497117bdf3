"""Differences between two definitions, and what they mean: the table of `docs/compatibility.md`.

A row: what changed, the old and the new schema, and the verdict if they are input schemas and if
they are output schemas.
"""

from typing import Any

Schema = Any
Row = tuple[str, Schema, Schema, str, str]

SAME, FINE, MORE, OPEN, BAD = "identical", "compatible", "additive", "unknown", "breaking"
STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
NULL: Schema = {"type": "null"}


def of(**members: Schema) -> Schema:
    return {"type": "object", "properties": members}


def one(schema: Schema) -> Schema:
    """An object with this schema for its only member."""
    return of(a=schema)


def needs(schema: Schema, *names: str) -> Schema:
    return {**schema, "required": list(names)}


def closed(schema: Schema, rest: Schema = False) -> Schema:
    return {**schema, "additionalProperties": rest}


def draft_07(schema: Schema) -> Schema:
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def tree(value: Schema, **members: Schema) -> Schema:
    node = of(value=value, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
    return {**of(root={"$ref": "#/$defs/node"}, **members), "$defs": {"node": node}}


def array(**rest: Schema) -> Schema:
    return one({"type": "array", **rest})


CONDITION: Schema = {"if": needs({}, "a"), "then": needs({}, "b")}

ROWS: tuple[Row, ...] = (
    # Nothing, and almost nothing
    ("the same in another order", of(a=STRING, b=NUMBER), of(b=NUMBER, a=STRING), SAME, SAME),
    ("the order of required members", needs(of(a=STRING, b=STRING), "a", "b"),
     needs(of(a=STRING, b=STRING), "b", "a"), FINE, FINE),
    ("another description",
     one({**STRING, "description": "x"}), one({**STRING, "description": "y"}),
     FINE, FINE),
    ("a keyword that nobody knows", one(STRING), one({**STRING, "x-order": 1}), FINE, FINE),
    ("a definition that nothing refers to", one(STRING), {**one(STRING), "$defs": {"x": NULL}},
     FINE, FINE),
    ("a definition moved out", one(STRING), {**one({"$ref": "#/$defs/s"}), "$defs": {"s": STRING}},
     OPEN, OPEN),
    ("one of one alternatives", one(STRING), one({"anyOf": [STRING]}), FINE, FINE),
    ("a constant for a list of one", one({"enum": ["x"]}), one({"const": "x"}), FINE, FINE),
    ("true for an empty schema", one({}), one(True), FINE, FINE),
    # Members
    ("an optional member added", of(a=STRING), of(a=STRING, b=NUMBER), MORE, MORE),
    ("a required member added", of(a=STRING), needs(of(a=STRING, b=NUMBER), "b"), BAD, MORE),
    ("a member becomes required", one(STRING), needs(one(STRING), "a"), BAD, FINE),
    ("a member becomes optional", needs(one(STRING), "a"), one(STRING), FINE, BAD),
    ("a member removed", of(a=STRING, b=NUMBER), of(a=STRING), FINE, BAD),
    ("a member removed that nothing else is accepted beside", closed(of(a=STRING, b=NUMBER)),
     closed(of(a=STRING)), BAD, FINE),
    ("a member added where nothing else was accepted", closed(of(a=STRING)),
     closed(of(a=STRING, b=NUMBER)), MORE, BAD),
    ("a member renamed", needs(of(a=STRING), "a"), needs(of(b=STRING), "b"), BAD, BAD),
    ("other members refused", one(STRING), closed(one(STRING)), BAD, FINE),
    ("other members accepted", closed(one(STRING)), one(STRING), FINE, BAD),
    ("other members limited", closed(of(), True), closed(of(), STRING), BAD, FINE),
    ("other members of a wider type", closed(of(), INTEGER), closed(of(), NUMBER), FINE, BAD),
    ("a member that others were limited to", closed(of(), STRING), closed(of(b=NUMBER), STRING),
     BAD, BAD),
    ("a member that is never valid", one(STRING), one(False), BAD, FINE),
    ("members by pattern, wider", {"type": "object", "patternProperties": {"^x": INTEGER}},
     {"type": "object", "patternProperties": {"^x": NUMBER}}, OPEN, OPEN),
    ("members by a new pattern", of(), {"type": "object", "patternProperties": {"^x": NUMBER}},
     OPEN, OPEN),
    ("names limited", of(), {"type": "object", "propertyNames": {"maxLength": 3}}, OPEN, FINE),
    ("more members needed", {"type": "object", "minProperties": 1},
     {"type": "object", "minProperties": 2}, BAD, FINE),
    ("a member needed with another", of(a=STRING, b=STRING),
     {**of(a=STRING, b=STRING), "dependentRequired": {"a": ["b"]}}, OPEN, FINE),
    ("a member needed with another, draft 7", draft_07(of(a=STRING, b=STRING)),
     draft_07({**of(a=STRING, b=STRING), "dependencies": {"a": ["b"]}}), OPEN, FINE),
    ("a keyword that draft 7 does not have", draft_07(of(a=STRING)),
     draft_07({**of(a=STRING), "dependentRequired": {"a": ["b"]}}), OPEN, FINE),
    # Types and values
    ("a wider type", one(INTEGER), one(NUMBER), FINE, BAD),
    ("another type", one(STRING), one(NUMBER), BAD, BAD),
    ("null accepted, too", one(STRING), one({"type": ["string", "null"]}), FINE, BAD),
    ("null accepted, too, as an alternative",
     one(STRING), one({"anyOf": [STRING, NULL]}), FINE, OPEN),
    ("no type any more", one(STRING), one({}), FINE, BAD),
    ("a value added", one({"enum": ["x"]}), one({"enum": ["x", "y"]}), FINE, BAD),
    ("a value removed", one({"enum": ["x", "y"]}), one({"enum": ["x"]}), BAD, FINE),
    ("only certain values", one(STRING), one({"enum": ["x", "y"]}), BAD, FINE),
    ("every value of a type", one({"enum": [True, False]}), one({"type": "boolean"}), FINE, FINE),
    ("another constant", one({"const": 1}), one({"const": 2}), BAD, BAD),
    ("true is not one", one({"const": True}), one({"const": 1}), BAD, BAD),
    ("one is 1.0", one({"const": 1}), one({"enum": [1.0]}), FINE, FINE),
    # Bounds
    ("a minimum", one(INTEGER), one({**INTEGER, "minimum": 1}), BAD, FINE),
    ("a lower minimum", one({**INTEGER, "minimum": 1}), one({**INTEGER, "minimum": 0}), FINE, BAD),
    ("the same bound of whole numbers", one({**INTEGER, "exclusiveMinimum": 0}),
     one({**INTEGER, "minimum": 1}), FINE, FINE),
    ("a bound that is not reached any more", one({**NUMBER, "maximum": 1}),
     one({**NUMBER, "exclusiveMaximum": 1}), BAD, FINE),
    ("multiples", one({**NUMBER, "multipleOf": 4}), one({**NUMBER, "multipleOf": 2}), OPEN, OPEN),
    ("a shorter text", one({**STRING, "maxLength": 9}), one({**STRING, "maxLength": 5}), BAD, FINE),
    ("a bound for another type", one(STRING), one({**STRING, "minimum": 1}), FINE, FINE),
    ("another pattern",
     one({**STRING, "pattern": "^a"}), one({**STRING, "pattern": "^b"}), OPEN, OPEN),
    ("no pattern any more", one({**STRING, "pattern": "^a"}), one(STRING), FINE, OPEN),
    ("a format", one(STRING), one({**STRING, "format": "email"}), OPEN, FINE),
    ("a bound that is none", one(NUMBER), one({**NUMBER, "minimum": "1"}), OPEN, FINE),
    # Items
    ("items of a wider type", array(items=INTEGER), array(items=NUMBER), FINE, BAD),
    ("fewer items", array(maxItems=5), array(maxItems=3), BAD, FINE),
    ("no two alike", array(items=STRING), array(items=STRING, uniqueItems=True), OPEN, FINE),
    ("the first item", array(prefixItems=[STRING]), array(prefixItems=[INTEGER]), OPEN, OPEN),
    ("the first item, draft 7", draft_07(array(items=[INTEGER])), draft_07(array(items=[NUMBER])),
     OPEN, OPEN),
    ("one item of a kind", array(), array(contains=STRING), OPEN, FINE),
    # Choices
    ("an alternative added",
     one({"anyOf": [STRING]}), one({"anyOf": [STRING, NUMBER]}), FINE, OPEN),
    ("an alternative removed",
     one({"anyOf": [STRING, NUMBER]}), one({"anyOf": [STRING]}), OPEN, FINE),
    ("an alternative for what refers to a definition",
     {**one({"$ref": "#/$defs/s"}), "$defs": {"s": STRING}},
     {**one({"anyOf": [{"$ref": "#/$defs/s"}, NULL]}), "$defs": {"s": STRING}}, FINE, OPEN),
    ("nothing in place of alternatives", one({"anyOf": [False, STRING]}), one(False), BAD, FINE),
    ("a member in one of two alternatives",
     one({"anyOf": [of(x=STRING), of(y=STRING)]}), one(of(x=STRING, y=STRING)), OPEN, MORE),
    ("alternatives in another order",
     one({"oneOf": [STRING, NULL]}), one({"oneOf": [NULL, STRING]}),
     OPEN, OPEN),
    ("a part more",
     one({"allOf": [STRING]}), one({"allOf": [STRING, {"maxLength": 3}]}), OPEN, OPEN),
    ("something excluded", one(STRING), one({**STRING, "not": {"const": "x"}}), OPEN, FINE),
    ("less excluded", one({"not": NUMBER}), one({"not": INTEGER}), OPEN, OPEN),
    ("a condition", of(a=STRING), {**of(a=STRING), **CONDITION},
     OPEN, FINE),
    ("nothing but what is evaluated",
     of(a=STRING), {**of(a=STRING), "unevaluatedProperties": False},
     OPEN, FINE),
    ("a member beside alternatives", one({"anyOf": [STRING, NULL]}),
     of(a={"anyOf": [STRING, NULL]}, b=STRING), MORE, MORE),
    ("a wider type beside a condition", {**one(INTEGER), **CONDITION},
     {**one(NUMBER), **CONDITION}, FINE, OPEN),
    ("a member beside a condition", {**of(a=STRING), **CONDITION},
     {**of(a=STRING, b=STRING), **CONDITION}, OPEN, MORE),
    # References
    ("a recursive schema, wider", tree(INTEGER), tree(NUMBER), OPEN, OPEN),
    ("a member beside a recursive schema", tree(INTEGER), tree(INTEGER, b=STRING), MORE, MORE),
    ("a reference to nothing", one(STRING), one({"$ref": "#/$defs/none"}), OPEN, OPEN),
    ("a reference to elsewhere", one(STRING), one({"$ref": "https://example.com/s"}), OPEN, OPEN),
    ("the same reference to elsewhere, and a member", one({"$ref": "https://example.com/s"}),
     of(a={"$ref": "https://example.com/s"}, b=STRING), MORE, MORE),
    ("a reference to itself", one(STRING), {**one({"$ref": "#/$defs/x"}),
     "$defs": {"x": {"$ref": "#/$defs/x"}}}, OPEN, OPEN),
    ("what a name refers to", {**one({"$ref": "#n"}), "$defs": {"n": {"$anchor": "n", **INTEGER}}},
     {**one({"$ref": "#n"}), "$defs": {"n": {"$anchor": "n", **NUMBER}}}, OPEN, OPEN),
    ("another dialect", one(STRING), {"$schema": "http://json-schema.org/draft-04/schema#",
     **one(NUMBER)}, OPEN, OPEN),
    ("a schema that is none", one(STRING), 5, OPEN, OPEN),
    ("whatever there was, for any object", {}, {"type": "object"}, FINE, FINE),
)  # fmt: skip
