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

from metamcp_supervisor.config.config import Config, Endpoint, ToolConfig
from metamcp_supervisor.config.document import (
    ConfigFindings,
    Site,
    Table,
    ToolDraft,
    kind_of,
    list_of,
    shown,
    table_of,
)
from metamcp_supervisor.config.options import Section, keys
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

_NOTHING: Mapping[str, ToolConfig] = {}


def of_server(name: str, table: Table) -> tuple[ToolDraft, ...]:
    """Read the settings of tools in the table of a server, under the server's own names."""
    section: Section = "servers.*.tools.*"
    found: list[ToolDraft] = []
    for tool, inner in table.tables("tools", section).items():
        below = _table_below(inner, section)
        if below is not None:
            what = f'a tool with a dot in its name is written in quotes: tools."{tool}.{below}"'
            table.findings.error(inner.site, shown(what))
        elif not tool:
            table.findings.error(inner.site, "a tool has a name")
        else:
            found.append(
                ToolDraft(server=name, tool=tool, said=_read(inner, tool), site=inner.site)
            )
    return tuple(found)


def of_group(table: Table, section: Section) -> tuple[ToolDraft, ...]:
    """Read the settings of tools in the table of a namespace or an endpoint, as `server.tool`."""
    found: list[ToolDraft] = []
    for key, inner in table.tables("tools", section).items():
        server, dot, tool = key.partition(".")
        if dot and server and tool:
            said = _read(inner, tool)
            found.append(ToolDraft(server=server, tool=tool, said=said, site=inner.site))
        else:
            # Without quotes, TOML takes `tools.git.status` for a table in a table.
            below = shown(_table_below(inner, section) or "tool")
            what = f'a tool is written in quotes, with its server: tools."{shown(key)}.{below}"'
            table.findings.error(inner.site, what)
    return tuple(found)


def by_server(drafts: Iterable[ToolDraft]) -> dict[str, dict[str, ToolConfig]]:
    """Return the settings by server and tool, without empty ones, in an order that does not depend
    on the file."""
    found: dict[str, dict[str, ToolConfig]] = {}
    for draft in sorted(drafts, key=lambda draft: (draft.server, draft.tool)):
        if draft.said != ToolConfig():
            found.setdefault(draft.server, {})[draft.tool] = draft.said
    return found


def at(config: Config, endpoint: Endpoint) -> dict[Pair, ToolConfig]:
    """Return the settings of tools in force at an endpoint."""
    found: dict[Pair, ToolConfig] = {}
    for server, layers in _layers(config, endpoint):
        for name in sorted({name for layer in layers for name in layer}):
            said = [layer[name] for layer in layers if name in layer]
            found[server, name] = together(said)
    return found


def switches(config: Config, endpoint: Endpoint) -> dict[str, tuple[dict[str, bool], ...]]:
    """Return, for each server of an endpoint with patterns, which tools are enabled: by name or
    pattern, of the server, the namespace and the endpoint."""
    found: dict[str, tuple[dict[str, bool], ...]] = {}
    for server, layers in _layers(config, endpoint):
        if any(exposed_names.is_pattern(name) for layer in layers for name in layer):
            found[server] = tuple(
                {name: one.enabled for name, one in layer.items() if one.enabled is not None}
                for layer in layers
            )
    return found


def _layers(
    config: Config, endpoint: Endpoint
) -> Iterator[tuple[str, tuple[Mapping[str, ToolConfig], ...]]]:
    """Yield the servers of an endpoint, with the settings of their tools; the last ones win."""
    namespace = config.namespaces[endpoint.namespace]
    for server in namespace.servers:
        known = config.servers.get(server)
        of_server = known.tools if known is not None else _NOTHING
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
        for known, layers in _layers(config, endpoint)
        if known == server
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
        said = [getattr(layer, key) for layer in layers]
        return next((value for value in reversed(said) if value is not None), None)

    return ToolConfig(
        enabled=last("enabled"),
        hidden=last("hidden"),
        name=last("name"),
        aliases=last("aliases"),
        title=last("title"),
        description=last("description"),
        fixed=fixed,
        defaults=defaults,
    )


def _read(table: Table, tool: str) -> ToolConfig:
    table.refuse_unknown()
    for key in table.values if exposed_names.is_pattern(tool) else ():
        if key != "enabled":
            table.error(key, "is for a single tool; a pattern goes with 'enabled' alone")
    name, title, description = (table.text(key) for key in ("name", "title", "description"))
    if name is not None and (why := alias_flaw(name)):
        table.error("name", f"'{shown(name)}' {why}")
        name = None
    if title is not None and not 0 < len(title) <= TITLE_CHARACTERS_MAX:
        table.error("title", f"must have from 1 to {TITLE_CHARACTERS_MAX} characters")
    if description is not None and len(description) > DESCRIPTION_CHARACTERS_MAX:
        table.error("description", f"may have at most {DESCRIPTION_CHARACTERS_MAX} characters")
    fixed, defaults = json_values(table, "fixed"), json_values(table, "defaults")
    for argument in fixed.keys() & defaults.keys():
        site = table.site.at("defaults", argument)
        what = f"'{shown(argument)}' is in 'fixed' too; an argument is in one of them"
        table.findings.error(site, what)
    return ToolConfig(
        enabled=table.flag("enabled", default=True) if table.has("enabled") else None,
        hidden=table.flag("hidden", default=False) if table.has("hidden") else None,
        name=name,
        aliases=_aliases(table),
        title=title,
        description=description,
        fixed=fixed,
        defaults=defaults,
    )


def _aliases(table: Table) -> tuple[str, ...] | None:
    found = table.texts("aliases")
    if found is None:
        return None
    if len(found) > ALIASES_MAX:
        table.error("aliases", f"has {len(found)} names; a tool has at most {ALIASES_MAX}")
        return None
    for index, alias in enumerate(found):
        why = "is listed twice" if alias in found[:index] else alias_flaw(alias)
        if why:
            table.findings.error(table.site.at("aliases", index), f"'{shown(alias)}' {why}")
    return found


def json_values(table: Table, key: str) -> dict[str, str]:
    """Read names and their values, as JSON text."""
    inner = table.table(key)
    found: dict[str, str] = {}
    for name in sorted(inner.values) if inner is not None else ():
        site = table.site.at(key, name)
        value = inner.values[name] if inner is not None else None
        if _is_json(value, site, table.findings):
            found[name] = json.dumps(
                value, ensure_ascii=False, sort_keys=True, separators=(",", ":")
            )
    return found


def _is_json(value: object, site: Site, findings: ConfigFindings, depth: int = 0) -> bool:
    """Whether a value can be written as JSON; every part that cannot is reported."""
    inner, items = table_of(value), list_of(value)
    why = ""
    if (inner is not None or items is not None) and depth == VALUE_DEPTH_MAX:
        why = f"is nested in {VALUE_DEPTH_MAX} lists and tables, and no more are allowed"
    elif inner is not None or items is not None:
        below = inner.items() if inner is not None else enumerate(items or ())
        judged = [_is_json(each, site.at(at), findings, depth + 1) for at, each in below]
        return all(judged)
    elif isinstance(value, float) and not math.isfinite(value):
        why = "is not a number that JSON has"
    elif not isinstance(value, str | int | float):  # a boolean is a number, too
        why = f"is {kind_of(value)}, which JSON does not have; write it as a string, in quotes"
    if why:
        findings.error(site, why)
    return not why


def _table_below(table: Table, section: Section) -> str | None:
    """Return the key of an unexpected table, a sign that the user left out the quotes; or None."""
    known = keys(section)
    return next(
        (key for key, value in table.values.items() if table_of(value) and key not in known), None
    )
