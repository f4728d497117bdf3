"""A JSON Schema of metamcp.toml, for editors that complete and check during typing.

Owns: the form of the schema, and an example for each key without a default. Never: the keys
(`options`), rules that a schema cannot express (`parse`).
"""

import re

from metamcp_supervisor import VERSION
from metamcp_supervisor.config.formats import toml_loads
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
    ("", "notify"): ("notify", False),
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
EXAMPLES = {
    "audience": '"https://gateway.example.com/metamcp/team/mcp"',
    "body_max": '"1M"',
    "burst": "20",
    "calls_max": "100",
    "calls_per_day": "10000",
    "calls_per_minute": "600",
    "cert": '"tls/gateway.pem"',
    "client_ca": '"tls/clients.pem"',
    "client_id": '"metamcp"',
    "client_metadata_url": '"https://example.com/metamcp-client.json"',
    "client_secret": '"${env:CLIENT_SECRET}"',
    "command": '["uvx", "mcp-server-git"]',
    "cpu_max": "1.5",
    "database": '"postgresql://metamcp:${env:DB_PASSWORD}@db.example.com/metamcp"',
    "description": '"Shows what changed in the repository."',
    "drain_delay": '"5s"',
    "endpoint": '"http://127.0.0.1:4318/v1/traces"',
    "disk_max": '"2G"',
    "extensions": '{ "com.example/maps" = { zoom = 9 } }',
    "folder": '"models/small"',
    "console_listen": '"127.0.0.1:6272"',
    "health_listen": '"127.0.0.1:6273"',
    "idle_stop": '"10m"',
    "in_flight": "20",
    "introspection": '"https://id.example.com/introspect"',
    "issuer": '"https://id.example.com"',
    "key": '"${env:API_KEY}"',
    "keys": '["laptop", "ci"]',
    "match": '["github/*"]',
    "memory_high": '"384M"',
    "memory_max": '"512M"',
    "message": '"Ask the operators first."',
    "model": '"small-model"',
    "module": '"notes:server"',
    "name": '"status"',
    "namespace": '"dev"',
    "nofile_max": "1024",
    "needs": '["browser"]',
    "output_max": '"1M"',
    "parallel_max": "8",
    "path": '"team"',
    "processes_max": "64",
    "runs_max": "4",
    "runtime_dir": '"/run/metamcp"',
    "socket": '"/run/metamcp/mcp.sock"',
    "state_dir": '"/var/lib/metamcp"',
    "streams": "100",
    "strict_listing": "true",
    "tcp_ports": "[443]",
    "timeout": '"30s"',
    "title": '"Status"',
    "url": '"https://mcp.example.com/mcp"',
    "uses": '"redaction"',
    "when": '''"source != 'client'"''',
    "gateway.tls.key": '"tls/gateway.key"',
    "servers": '{ git = { command = ["uvx", "mcp-server-git"] } }',
    "namespaces": '{ dev = { servers = ["git"] } }',
    "namespaces.*.servers": '["git", "time"]',
    "endpoints": '{ dev = { namespace = "dev" } }',
    "workspaces": '{ red = { servers = { git = { command = ["uvx", "mcp-server-git"] } } } }',
}
"""Value of each key without a default, as it stands in the file; behind the name of its section
where the same key means something else."""
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
        "properties": {
            option.key: _option(option) for option in OPTIONS if option.section == section
        },
    }


def _option(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {
        "description": _LINK.sub(r"\1", option.why),
        **_default_or_examples(option),
    }
    if inside := _INSIDE.get((option.section, option.key)):
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


def _default_or_examples(option: Option) -> dict[str, object]:
    """Return the default of a key, or examples."""
    if option.default:
        return {"default": _value(option.default)}
    if option.choices:
        return {"examples": list(option.choices)}
    if option.kind == "table" and option.key not in EXAMPLES:
        return {"default": {}}
    text = EXAMPLES.get(f"{option.section}.{option.key}") or EXAMPLES[option.key]
    return {"examples": [_value(text)]}


def _value(text: str) -> object:
    return toml_loads(f"value = {text}")["value"]
