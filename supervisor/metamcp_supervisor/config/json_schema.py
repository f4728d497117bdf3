"""A JSON Schema of metamcp.toml, for editors that complete and check during typing.

Owns: the form of the schema. Never: the keys (`options`), rules that a schema cannot express
(`parse`).
"""

from metamcp_supervisor.config.options import OPTIONS, Kind, Option, Section

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
_INSIDE: dict[tuple[Section, str], tuple[Section, bool]] = {
    ("", "gateway"): ("gateway", False),
    ("gateway", "tls"): ("gateway.tls", False),
    ("", "log"): ("log", False),
    ("", "recording"): ("recording", False),
    ("", "audit"): ("audit", False),
    ("", "code"): ("code", False),
    ("", "middleware"): ("middleware[]", False),
    ("", "consent"): ("consent", False),
    ("consent", "rules"): ("consent.rules[]", False),
    ("", "suggestions"): ("suggestions", False),
    ("", "ai"): ("ai", False),
    ("", "engine"): ("engine", False),
    ("", "metrics"): ("metrics", False),
    ("", "traces"): ("traces", False),
    ("", "embeddings"): ("embeddings", False),
    ("", "policies"): ("policies[]", False),
    ("", "servers"): ("servers.*", True),
    ("", "namespaces"): ("namespaces.*", True),
    ("", "endpoints"): ("endpoints.*", True),
    ("servers.*", "oauth"): ("servers.*.oauth", False),
    ("servers.*", "tools"): ("servers.*.tools.*", True),
    ("namespaces.*", "tools"): ("namespaces.*.tools.*", True),
    ("endpoints.*", "tools"): ("endpoints.*.tools.*", True),
    ("endpoints.*", "naming"): ("endpoints.*.naming", False),
    ("endpoints.*", "limits"): ("endpoints.*.limits", False),
    ("endpoints.*", "code"): ("endpoints.*.code", False),
    ("endpoints.*", "results"): ("endpoints.*.results", False),
    ("endpoints.*", "oauth"): ("endpoints.*.oauth", False),
    ("servers.*", "limits"): ("servers.*.limits", False),
    ("servers.*", "network"): ("servers.*.network", False),
    ("", "workspaces"): ("workspaces.*", True),
    ("workspaces.*", "servers"): ("servers.*", True),
    ("workspaces.*", "namespaces"): ("namespaces.*", True),
    ("workspaces.*", "endpoints"): ("endpoints.*", True),
    ("workspaces.*", "limits"): ("workspaces.*.limits", False),
}
"""Section inside a table, and whether the table has one such section for each name."""


def schema() -> dict[str, object]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "metamcp.toml",
        **_section(""),
    }


def _section(section: Section) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            option.key: _option(option) for option in OPTIONS if option.section == section
        },
    }


def _option(option: Option) -> dict[str, object]:
    found: dict[str, object] = {"description": option.why}
    if inside := _INSIDE.get((option.section, option.key)):
        section, named = inside
        content = _section(section)
        if option.kind == "tables":
            return found | {"type": "array", "items": content}
        whole = {"type": "object", "additionalProperties": content} if named else content
        either = option.kind in ("boolean or table", "choice or table")
        alone = {"enum": list(option.choices)} if option.choices else _OF_KIND[option.kind]
        found |= {"anyOf": [alone, whole]} if either else whole
        return found
    found |= _OF_KIND[option.kind]
    if option.key == "match":
        found |= _OF_KIND["command"]  # one, or a list
    if option.choices and option.kind == "choices":
        one = {"enum": list(option.choices)}
        found["anyOf"] = [one, {"type": "array", "items": one}]
    elif option.choices:
        found["enum"] = list(option.choices)
    return found
