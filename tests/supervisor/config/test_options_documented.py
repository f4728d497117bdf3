"""docs/configuration.md and the list of options say the same, and so do the defaults."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import fields

from metamcp_supervisor import VERSION
from metamcp_supervisor.cli.up import serve
from metamcp_supervisor.config import places
from metamcp_supervisor.config.config import (
    AiConfig,
    AuditConfig,
    CodeConfig,
    ConsentConfig,
    Endpoint,
    HookConfig,
    Log,
    MetricsConfig,
    MiddlewareConfig,
    RecordingConfig,
    ResultsConfig,
    Server,
    ToolConfig,
    TracesConfig,
)
from metamcp_supervisor.config.document import (
    ConfigDocument,
    ConfigFindings,
    SourceLocation,
    Table,
    list_of,
    table_of,
)
from metamcp_supervisor.config.formats import toml_loads
from metamcp_supervisor.config.json_schema import schema
from metamcp_supervisor.config.options import LATER, all_options, keys, members, option
from metamcp_supervisor.config.reload import plan
from metamcp_supervisor.config.tables import Kind, Option
from metamcp_supervisor.embeddings.embedding_settings import Embeddings
from metamcp_supervisor.workflows.engine_settings import EngineConfig
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.spec import IssuerSpec, NamingSpec, OAuth, PolicySpec, UseLimits
from tests.supervisor.configs import config, server

jsonschema: Any = importlib.import_module("jsonschema")
DOC = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
HEADINGS = {
    "": "The top of the file",
    "gateway": "`[gateway]`",
    "gateway.tls": "`[gateway.tls]`",
    "log": "`[log]`",
    "recording": "`[recording]`",
    "audit": "`[audit]`",
    "code": "`[code]`",
    "middleware[]": "`[[middleware]]`",
    "consent": "`[consent]`",
    "consent.rules[]": "`[[consent.rules]]`",
    "policies[]": "`[[policies]]`",
    "suggestions": "`[suggestions]`",
    "ai": "`[ai]`",
    "engine": "`[engine]`",
    "notify": "`[notify]`",
    "hooks": "`[hooks]`",
    "metrics": "`[metrics]`",
    "traces": "`[traces]`",
    "embeddings": "`[embeddings]`",
    "servers.*": "`[servers.NAME]`",
    "servers.*.oauth": "`[servers.NAME.oauth]`",
    "namespaces.*": "`[namespaces.NAME]`",
    "servers.*.tools.*": "`[servers.NAME.tools.TOOL]`",
    "namespaces.*.tools.*": '`[namespaces.NAME.tools."server.tool"]`',
    "endpoints.*.tools.*": '`[endpoints.NAME.tools."server.tool"]`',
    "endpoints.*": "`[endpoints.NAME]`",
    "endpoints.*.naming": "`[endpoints.NAME.naming]`",
    "workspaces.*": "`[workspaces.NAME]`",
    "workspaces.*.limits": "`[workspaces.NAME.limits]`",
    "servers.*.limits": "`[servers.NAME.limits]`",
    "servers.*.network": "`[servers.NAME.network]`",
    "endpoints.*.code": "`[endpoints.NAME.code]`",
    "endpoints.*.limits": "`[endpoints.NAME.limits]`",
    "endpoints.*.results": "`[endpoints.NAME.results]`",
}
RECORDS = {
    "log": Log(), "recording": RecordingConfig(), "audit": AuditConfig(), "code": CodeConfig(),
    "endpoints.*.code": CodeLimits(), "middleware[]": MiddlewareConfig(name=""),
    "consent": ConsentConfig(), "ai": AiConfig(), "engine": EngineConfig(),
    "hooks": HookConfig(), "metrics": MetricsConfig(), "traces": TracesConfig(),
    "embeddings": Embeddings(),
    "policies[]": PolicySpec(name=""), "servers.*": Server(name="", source=""),
    "servers.*.oauth": OAuth(), "endpoints.*": Endpoint(name="", namespace=""),
    "endpoints.*.naming": NamingSpec(), "endpoints.*.results": ResultsConfig(),
    "endpoints.*.oauth": IssuerSpec(issuer="", audience=""),
}  # fmt: skip
"""Without any settings, by the table that is read to them."""
ELSEWHERE = {("audit", "level"), ("servers.*", "sandbox")}
"""Defaults that depend on more: without `[audit]` it is off; some launchers are not confined."""
KINDS: dict[Kind, str] = {
    "strings": "list of strings",
    "command": "list of strings, or string",
}


def row(each: Option) -> str:
    """How an option stands in the documentation."""
    kind = KINDS.get(each.kind, each.kind)
    if each.choices:
        kind = " or ".join(f"`{choice}`" for choice in each.choices)
    default = f"`{each.default}`" if each.default else "none"
    return f"| `{each.key}` | {kind} | {default} | {each.effect} | {each.why} |"


def section(heading: str) -> str:
    return DOC.split(f"\n### {heading}\n")[1].split("\n#")[0]


@pytest.mark.parametrize("name", HEADINGS)
def test_every_option_has_its_row_and_every_row_its_option(name: str) -> None:
    rows = re.findall(r"^\| `.*", section(HEADINGS[name]), re.MULTILINE)
    assert rows == [row(each) for each in all_options() if each.section == name]


def test_what_is_not_available_yet_is_listed() -> None:
    text = DOC.split("\n## Not in this version\n")[1].split("\n## ")[0]
    later = {key for found in LATER.values() for key in found}
    assert set(re.findall(r"`(\w+)`", text)) == later


def test_every_place_that_is_looked_at_is_documented() -> None:
    text = DOC.split("\n## Where it is looked for\n")[1].split("\n## ")[0]
    first = (f"${places.VARIABLE}", "./metamcp.toml", *places.CLIENT_FILES)
    names = [*first, "~/.config/metamcp/metamcp.toml", str(places.SYSTEM_FILE)]
    found = [text.index(f"`{name}`") for name in names]
    assert found == sorted(found)


def test_every_variable_of_the_environment_is_documented() -> None:
    for key in keys("gateway"):
        assert f"`METAMCP_{key.upper()}`" in DOC
        flag = f"--{key.replace('_', '-')}"
        if key == "cluster_secret":  # everybody on the machine sees the flags of a program
            assert not any(flag in option.opts for option in serve.params)
            continue
        assert f"`{flag}`" in DOC
        assert any(flag in option.opts for option in serve.params), flag


@pytest.mark.parametrize("name", RECORDS)
def test_written_defaults_are_the_defaults_of_the_values(name: str) -> None:
    findings = ConfigFindings()
    for each, member in members(name):
        if not each.default or (name, each.key) in ELSEWHERE:
            continue
        values = toml_loads(f"{each.key} = {each.default}")
        site = SourceLocation(ConfigDocument("", Path(), values))
        record = CodeLimits() if not hasattr(RECORDS[name], member) else RECORDS[name]
        read = Table(values, site, findings, name).settings()
        assert read == {member: getattr(record, member)}, each.key
    assert not findings.problems


@pytest.mark.promise("M78")
def test_a_reload_does_to_a_server_what_the_documentation_says() -> None:
    old = server("git")
    changed = {
        "command": ("other",), "module": "a:b", "env": {"A": "b"}, "cwd": Path("/other"),
        "inherit_env": ("A",),
        "enabled": False, "required": True, "recording": "full", "restart": "never",
        "retry": "read-only", "pinning": "off", "start_timeout_s": 9.0,
        "timeout_s": 9.0, "timeout_max_s": 9.0, "list_timeout_s": 9.0, "stop_grace_s": 9.0,
        "hide_after_s": 9.0,
        "strict_listing": True, "trust_annotations": True,
        "concurrency": 9, "queue": 9, "message_max": 9, "url": "http://x/", "transport": "sse",
        "probe_interval_s": 9.0,
        "restarts_max": 9, "restart_window_s": 9.0, "restart_delay_max_s": 9.0,
        "headers": {"A": "b"}, "oauth": OAuth(), "options": {"a": "b"},
        "start": "lazy", "idle_stop_s": 9.0, "depends_on": ("db",), "spares": 1,
        "worker": "own",
        "sharing": "shared", "era": "legacy", "protocol": "2025-03-26",
        "extensions": {"e": "{}"}, "tools": {"t": ToolConfig(hidden=True)},
        "memory_max": 9, "memory_high": 9, "memory_rlimit": True, "cpu_max": 0.5,
        "processes_max": 9, "nofile_max": 99, "limits": UseLimits(in_flight=1),
        "sandbox": "strict", "sandbox_required": True, "read": ("/r",), "write": ("/w",),
        "network": "none", "needs": ("kube",), "unix_sockets": ("/s",),
        "disk_max": 9,
    }  # fmt: skip
    for name, value in changed.items():
        key = name.removesuffix("_s")
        new = server("git", **{name: value})
        (change,) = plan(config(old), config(new)).changes
        effect = option("servers.*", key).effect
        assert change.action == ("restart" if effect == "restart" else "in-place"), key
        assert key in change.why
        assert ("next start" in change.why) == (effect == "next start"), key
    others = {each.name for each in fields(Server)} - set(changed)
    assert {name for name in others if not name.endswith("_written")} == {
        "folder",
        "name",
        "source",
        "mistake",
        "referred",
    }


def test_the_schema_has_every_option_and_nothing_else() -> None:
    found: list[str] = []

    def walk(level: dict[str, object]) -> None:
        for choice in list_of(level.get("anyOf")) or ():
            walk(table_of(choice) or {})
        if items := table_of(level.get("items")):
            walk(items)
        inner = level.get("additionalProperties")
        if properties := table_of(level.get("properties")):
            assert inner is False
            found.extend(properties)
            for value in properties.values():
                walk(table_of(value) or {})
        elif below := table_of(inner):
            walk(below)

    walk(schema())
    nested = ("servers.", "namespaces.", "endpoints.")  # these stand in a workspace, too
    again = [each.key for each in all_options() if each.section.startswith(nested)]
    assert sorted(found) == sorted([*(each.key for each in all_options()), *again])


def described(level: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of the schema, with what the schema says of it."""
    for key, value in level.get("properties", {}).items():
        yield f"{path}{key}", value
        yield from described(value, f"{path}{key}.")
    below = [*level.get("anyOf", ()), level.get("items"), level.get("additionalProperties")]
    for each in below:
        if isinstance(each, dict):
            yield from described(cast(dict[str, Any], each), path)


def test_every_key_of_the_schema_has_a_description_and_a_valid_default_or_example() -> None:
    judge = jsonschema.Draft7Validator
    judge.check_schema(schema())
    for path, value in described(schema()):
        assert value["description"], path
        assert "](" not in value["description"], f"{path}: editors show no links"
        shown = [*value.get("examples", ()), *([value["default"]] if "default" in value else [])]
        assert shown, path
        for each in shown:
            judge(value).validate(each)


def test_each_version_has_a_schema_of_its_own() -> None:
    assert schema()["$id"] == f"urn:metamcp:configuration:{VERSION}"
