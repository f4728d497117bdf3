"""Settings that change single tools: reading them, and joining those of several tables.

Owns: the tables `tools` of servers, namespaces and endpoints, and which of them wins. Never: which
names are allowed (`assemble`), changing a definition (the worker's `tool_overrides`).

An endpoint wins over its namespace, and the namespace over the server: key by key, and in `fixed`
and `defaults` argument by argument.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import fields

from metamcp_supervisor.config.config import Config, Endpoint, ToolConfig
from metamcp_supervisor.config.document import (
    ConfigFindings,
    SourceLocation,
    Table,
    ToolDraft,
    kind_of,
    list_of,
    shorten,
    table_of,
)
from metamcp_supervisor.config.options import keys
from metamcp_supervisor.config.tables import Section
from metamcp_worker.ipc import exposed_names
from metamcp_worker.ipc.exposed_names import alias_flaw

ALIASES_MAX = 32
"""Maximum number of aliases of a tool; lists do not show aliases, so only clients that know them
use them."""
TITLE_CHARACTERS_MAX = 200
DESCRIPTION_CHARACTERS_MAX = 16_384
"""Maximum characters of a description, as many as a search reads; clients pay for every character
with each request."""
VALUE_DEPTH_MAX = 32
"""Maximum levels of lists and tables in the value of an argument."""

Pair = tuple[str, str]
"""Name of a server, and the server's own name of a tool."""

_SINGLE = [each.name for each in fields(ToolConfig) if each.name not in ("fixed", "defaults")]
_NOTHING: Mapping[str, ToolConfig] = {}


def of_server(name: str, table: Table) -> tuple[ToolDraft, ...]:
    """Read the settings of tools in the table of a server, under the server's own names."""
    section: Section = "servers.*.tools.*"
    drafts: list[ToolDraft] = []
    for tool, inner in table.tables("tools", section).items():
        below = _table_below(inner, section)
        if below is not None:
            message = f'a tool with a dot in its name is written in quotes: tools."{tool}.{below}"'
            table.findings.error(inner.site, shorten(message))
        elif not tool:
            table.findings.error(inner.site, "a tool has a name")
        else:
            drafts.append(
                ToolDraft(server=name, tool=tool, said=_read(inner, tool), site=inner.site)
            )
    return tuple(drafts)


def of_group(table: Table, section: Section) -> tuple[ToolDraft, ...]:
    """Read the settings of tools in the table of a namespace or an endpoint, as `server.tool`."""
    drafts: list[ToolDraft] = []
    for key, inner in table.tables("tools", section).items():
        server, dot, tool = key.partition(".")
        if dot and server and tool:
            settings = _read(inner, tool)
            drafts.append(ToolDraft(server=server, tool=tool, said=settings, site=inner.site))
        else:
            # Without quotes, TOML takes `tools.git.status` for a table in a table.
            below = shorten(_table_below(inner, section) or "tool")
            message = (
                f'a tool is written in quotes, with its server: tools."{shorten(key)}.{below}"'
            )
            table.findings.error(inner.site, message)
    return tuple(drafts)


def by_server(drafts: Iterable[ToolDraft]) -> dict[str, dict[str, ToolConfig]]:
    """Return the settings by server and tool, without empty ones, in an order that does not depend
    on the file."""
    settings: dict[str, dict[str, ToolConfig]] = {}
    for draft in sorted(drafts, key=lambda draft: (draft.server, draft.tool)):
        if draft.said != ToolConfig():
            settings.setdefault(draft.server, {})[draft.tool] = draft.said
    return settings


def at(config: Config, endpoint: Endpoint) -> dict[Pair, ToolConfig]:
    """Return the settings of tools in force at an endpoint."""
    settings: dict[Pair, ToolConfig] = {}
    for server, layers in _layers(config, endpoint):
        for name in sorted({name for layer in layers for name in layer}):
            configs = [layer[name] for layer in layers if name in layer]
            settings[server, name] = together(configs)
    return settings


def switches(config: Config, endpoint: Endpoint) -> dict[str, tuple[dict[str, bool], ...]]:
    """Return, for each server of an endpoint with patterns, which tools are enabled: by name or
    pattern, of the server, the namespace and the endpoint."""
    enabled: dict[str, tuple[dict[str, bool], ...]] = {}
    for server, layers in _layers(config, endpoint):
        if any(exposed_names.is_pattern(name) for layer in layers for name in layer):
            enabled[server] = tuple(
                {name: tool.enabled for name, tool in layer.items() if tool.enabled is not None}
                for layer in layers
            )
    return enabled


def _layers(
    config: Config, endpoint: Endpoint
) -> Iterator[tuple[str, tuple[Mapping[str, ToolConfig], ...]]]:
    """Yield the servers of an endpoint, with the settings of their tools; the last ones win."""
    namespace = config.namespaces[endpoint.namespace]
    for server in namespace.servers:
        server_config = config.servers.get(server)
        of_server = server_config.tools if server_config is not None else _NOTHING
        of_groups = (group.tools.get(server, _NOTHING) for group in (namespace, endpoint))
        yield server, (of_server, *of_groups)


def places(
    config: Config, endpoint: Endpoint, server: str, tool: str
) -> list[tuple[str, ToolConfig]]:
    """Return the settings that a tool has at an endpoint, each with words for its place; the last
    one wins."""
    heads = f"servers.{server}", f"namespaces.{endpoint.namespace}", f"endpoints.{endpoint.name}"
    return [
        (f"tools.{name} of [{head}], {config.origin(head, '')}", layer[name])
        for candidate, layers in _layers(config, endpoint)
        if candidate == server
        for head, layer in zip(heads, layers, strict=True)
        for name in layer
        if name == tool or (exposed_names.is_pattern(name) and fnmatchcase(tool, name))
    ]


def together(layers: Sequence[ToolConfig]) -> ToolConfig:
    """Join settings of a tool. `layers`: the last one wins."""
    fixed: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for layer in layers:
        for values, others in ((layer.fixed, defaults), (layer.defaults, fixed)):
            for name in values:
                others.pop(name, None)
        fixed |= layer.fixed
        defaults |= layer.defaults

    def last(key: str) -> Any:
        layer_values = [getattr(layer, key) for layer in layers]
        return next((value for value in reversed(layer_values) if value is not None), None)

    settings = {name: last(name) for name in _SINGLE}
    return ToolConfig(**settings, fixed=fixed, defaults=defaults)


def _read(table: Table, tool: str) -> ToolConfig:
    table.refuse_unknown()
    for key in table.values if exposed_names.is_pattern(tool) else ():
        if key != "enabled":
            table.error(key, "is for a single tool; a pattern goes with 'enabled' alone")
    name, title, description = (table.text(key) for key in ("name", "title", "description"))
    if name is not None and (flaw := alias_flaw(name)):
        table.error("name", f"'{shorten(name)}' {flaw}")
        name = None
    if title is not None and not 0 < len(title) <= TITLE_CHARACTERS_MAX:
        table.error("title", f"must have from 1 to {TITLE_CHARACTERS_MAX} characters")
    if description is not None and len(description) > DESCRIPTION_CHARACTERS_MAX:
        table.error("description", f"may have at most {DESCRIPTION_CHARACTERS_MAX} characters")
    fixed, defaults = json_values(table, "fixed"), json_values(table, "defaults")
    for argument in fixed.keys() & defaults.keys():
        site = table.site.at("defaults", argument)
        message = f"'{shorten(argument)}' is in 'fixed' too; an argument is in one of them"
        table.findings.error(site, message)
    settings = table.read_members()
    _check_aliases(table, settings.get("aliases", ()))
    return ToolConfig(
        **settings, name=name, title=title, description=description, fixed=fixed, defaults=defaults
    )


def _check_aliases(table: Table, aliases: Sequence[str]) -> None:
    if len(aliases) > ALIASES_MAX:
        table.error("aliases", f"has {len(aliases)} names; a tool has at most {ALIASES_MAX}")
        return
    for index, alias in enumerate(aliases):
        flaw = "is listed twice" if alias in aliases[:index] else alias_flaw(alias)
        if flaw:
            table.findings.error(table.site.at("aliases", index), f"'{shorten(alias)}' {flaw}")


def json_values(table: Table, key: str) -> dict[str, str]:
    """Read names and their values, as JSON text."""
    inner = table.table(key)
    texts: dict[str, str] = {}
    for name in sorted(inner.values) if inner is not None else ():
        site = table.site.at(key, name)
        value = inner.values[name] if inner is not None else None
        if _is_json(value, site, table.findings):
            texts[name] = json.dumps(
                value, ensure_ascii=False, sort_keys=True, separators=(",", ":")
            )
    return texts


def _is_json(value: object, site: SourceLocation, findings: ConfigFindings, depth: int = 0) -> bool:
    """Whether a value can be written as JSON; every part that cannot is reported."""
    inner, items = table_of(value), list_of(value)
    fault = ""
    if (inner is not None or items is not None) and depth == VALUE_DEPTH_MAX:
        fault = f"is nested in {VALUE_DEPTH_MAX} lists and tables, and no more are allowed"
    elif inner is not None or items is not None:
        below = inner.items() if inner is not None else enumerate(items or ())
        judged = [_is_json(each, site.at(at), findings, depth + 1) for at, each in below]
        return all(judged)
    elif isinstance(value, float) and not math.isfinite(value):
        fault = "is not a number that JSON has"
    elif not isinstance(value, str | int | float):  # a boolean is a number, too
        fault = f"is {kind_of(value)}, which JSON does not have; write it as a string, in quotes"
    if fault:
        findings.error(site, fault)
    return not fault


def _table_below(table: Table, section: Section) -> str | None:
    """Return the key of an unexpected table, a sign that the user left out the quotes; or None."""
    allowed = keys(section)
    return next(
        (key for key, value in table.values.items() if table_of(value) and key not in allowed), None
    )
