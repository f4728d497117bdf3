"""A JSON Schema of metamcp.toml, for editors that complete and check during typing.

Owns: the form of the schema. Never: the keys
(`options`), rules that a schema cannot express (`parse`).
"""

import re

from metamcp_supervisor import VERSION
from metamcp_supervisor.config.formats import toml_loads
from metamcp_supervisor.config.options import options_of
from metamcp_supervisor.config.tables import Kind, Option, Section

_STRING: dict[str, object] = {"type": "string"}
_STRINGS: dict[str, object] = {"type": "array", "items": _STRING}
_OF_KIND: dict[Kind, dict[str, object]] = {
    "string": _STRING,
    "path": _STRING,
    "choice": _STRING,
    "choices": {"anyOf": [_STRING, _STRINGS]},
    "strings": _STRINGS,
    "command": {"anyOf": [_STRING, _STRINGS]},
    "table of strings": {"type": "object", "additionalProperties": _STRING},
    "table of values": {"type": "object"},
    "table": {"type": "object"},
    "tables": {"type": "array"},
    "boolean or table": {"type": "boolean"},
    "choice or table": _STRING,
    "boolean": {"type": "boolean"},
    "integers": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
    "integer": {"type": "integer", "minimum": 0},
    "number": {"type": "number", "minimum": 0},
    "number from 0 to 1": {"type": "number", "minimum": 0, "maximum": 1},
    "duration": {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"},
    "size": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[KMGT]$"},
    "cores": {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?%$"},
        ]
    },
    "address": {"type": "string", "pattern": r"^.+:[0-9]{1,5}$"},
    "address or socket": {"type": "string", "pattern": r"^(unix:.+|.+:[0-9]{1,5})$"},
}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def schema() -> dict[str, object]:
    """Return the schema, in the draft that every editor reads."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"urn:metamcp:configuration:{VERSION}",
        "title": "metamcp.toml",
        **_section(""),
    }


def _section(section: Section) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {option.key: _option(option) for option in options_of(section)},
    }


def _option(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {
        "description": _LINK.sub(r"\1", option.why),
        **_default_or_examples(option),
    }
    if inside := _inside(option):
        section, named = inside
        content = _section(section)
        if option.kind == "tables":
            return schema | {"type": "array", "items": content}
        table_schema = {"type": "object", "additionalProperties": content} if named else content
        either = option.kind in ("boolean or table", "choice or table")
        alone = {"enum": list(option.choices)} if option.choices else _OF_KIND[option.kind]
        schema |= {"anyOf": [alone, table_schema]} if either else table_schema
        return schema
    one_or_list = option.key == "match"
    schema |= _OF_KIND["command" if one_or_list else option.kind]
    if option.choices and option.kind == "choices":
        choice = {"enum": list(option.choices)}
        schema["anyOf"] = [choice, {"type": "array", "items": choice}]
    elif option.choices:
        schema["enum"] = list(option.choices)
    return schema


def _inside(option: Option) -> tuple[Section, bool] | None:
    """Return the section inside a table, and whether the table has one such section for each name.
    A workspace has the sections of the top of the file."""
    path = f"{option.section}.{option.key}".removeprefix(".")
    for head in (path, path.removeprefix("workspaces.*.")):
        for section, named in ((head, False), (f"{head}[]", False), (f"{head}.*", True)):
            if options_of(section):
                return section, named
    return None


def _default_or_examples(option: Option) -> dict[str, object]:
    """Return the default of a key, or examples."""
    if option.default:
        return {"default": _value(option.default)}
    if option.choices:
        return {"examples": list(option.choices)}
    return {"examples": [_value(option.example)]} if option.example else {"default": {}}


def _value(text: str) -> object:
    return toml_loads(f"value = {text}")["value"]
