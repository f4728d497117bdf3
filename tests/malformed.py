"""Definitions that break the list of some client, and one of each kind that does not."""

import json
from collections.abc import Mapping
from typing import Any

Members = Mapping[str, Any]

KEYS = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
#: The name of a definition that is called so, by kind.
NAMES = {
    "tools": "{}", "prompts": "{}", "resources": "x://{}", "resourceTemplates": "x://{}/{{id}}",
}  # fmt: skip

_DEEP: Any = json.loads("[" * 180 + "]" * 180)
_ANY: dict[str, Members] = {
    "description_number": {"description": 5},
    "description_null": {"description": None},
    "description_surrogate": {"description": "ok \ud83d"},
    "title_number": {"title": 7},
    "icons_text": {"icons": "x"},
    "icons_empty": {"icons": [{}]},
    "meta_array": {"_meta": []},
    "deep": {"x-deep": _DEEP},
    "digits": {"x-digits": 10**4200},
}
_CONTENT: dict[str, Members] = {
    "no_name": {"name": None},
    "mime_number": {"mimeType": 5},
    "annotations_text": {"annotations": "x"},
    "audience_other": {"annotations": {"audience": ["me"]}},
    "priority_two": {"annotations": {"priority": 2}},
    "modified_once": {"annotations": {"lastModified": "once"}},
}
#: By kind, what is put into a definition that is in order.
MALFORMED: Mapping[str, Mapping[str, Members]] = {
    "tools": {
        **_ANY,
        "schema_missing": {"inputSchema": ...},
        "schema_null": {"inputSchema": None},
        "schema_text": {"inputSchema": "x"},
        "schema_empty": {"inputSchema": {}},
        "schema_array": {"inputSchema": {"type": "array"}},
        "properties_array": {"inputSchema": {"type": "object", "properties": []}},
        "property_true": {"inputSchema": {"type": "object", "properties": {"x": True}}},
        "required_text": {"inputSchema": {"type": "object", "required": "q"}},
        "annotations_text": {"annotations": "x"},
        "hint_text": {"annotations": {"readOnlyHint": "maybe"}},
        "execution_other": {"execution": {"taskSupport": "x"}},
    },
    "prompts": {
        **_ANY,
        "arguments_text": {"arguments": "x"},
        "argument_nameless": {"arguments": [{}]},
        "argument_required_text": {"arguments": [{"name": "a", "required": "yes"}]},
    },
    "resources": {
        **_ANY,
        **_CONTENT,
        "size_text": {"size": "big"},
        "size_half": {"size": 1.5},
        "port": {"uri": "x://port:99999/"},
    },
    "resourceTemplates": {**_ANY, **_CONTENT},
}
LEGACY_ONLY = {"properties_array", "property_true", "required_text"}
"""In order for revision 2026-07-28."""


def good(kind: str, name: str = "good") -> dict[str, Any]:
    """A definition that is in order."""
    found = {"name": name, KEYS[kind]: NAMES[kind].format(name)}
    return {**found, "inputSchema": {"type": "object"}} if kind == "tools" else found


def definition(kind: str, name: str) -> dict[str, Any]:
    """One of MALFORMED."""
    found = {**good(kind, name), **MALFORMED[kind][name]}
    return {key: value for key, value in found.items() if value is not ...}


def all_of(kind: str) -> list[dict[str, Any]]:
    """Every definition of MALFORMED, between two that are in order."""
    return [good(kind), *(definition(kind, name) for name in MALFORMED[kind]), good(kind, "last")]


def listed(kind: str, *, modern: bool) -> list[str]:
    """The keys of those that clients of one era are to see."""
    names = ["good", *(set(MALFORMED[kind]) & LEGACY_ONLY if modern else ()), "last"]
    return sorted(NAMES[kind].format(name) for name in names)
