"""The tables `[[middleware]]` of metamcp.toml.

Owns: keys, their limits, names that are unique, packages that are missing. Never: single values
(`document.Table`), loading a middleware (its process does).
"""

import json
import re
from collections.abc import Callable, Collection

from metamcp_supervisor.config.config import Config, MiddlewareConfig
from metamcp_supervisor.config.document import ConfigFindings, SourceLocation, Table, shorten
from metamcp_supervisor.config.policy_rules import globs_of
from metamcp_supervisor.config.units import duration_text, size_text

GROUP = "metamcp.middleware"
LINES_MAX = 64
"""Maximum number of middleware; each has a process."""
TIMEOUT_S_MAX = 600.0
MEMORY_BYTES_MAX = 64 * 1024 * 1024 * 1024
OPTIONS_BYTES_MAX = 32 * 1024
"""Maximum size of the options of one middleware as JSON; they go to its process in one packet."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


def read(top: Table) -> tuple[MiddlewareConfig, ...]:
    """Read all of them. `top`: the whole file."""
    lines: list[MiddlewareConfig] = []
    tables = top.list_tables("middleware", "middleware[]")
    if len(tables) > LINES_MAX:
        top.error("middleware", f"has {len(tables)} tables; at most {LINES_MAX} are allowed")
    for table in tables:
        line = _line(table)
        if line is not None and any(line.name == other.name for other in lines):
            message = f"'{line.name}' is the name of another one; choose another, and say 'uses'"
            table.error("name", message)
        elif line is not None:
            lines.append(line)
    return tuple(lines)


def check(
    config: Config,
    main: SourceLocation,
    installed: Callable[[str], Collection[str]],
    findings: ConfigFindings,
) -> None:
    """Report middleware that no installed package brings. `installed`: returns the entry points
    of a group, called only if there is middleware."""
    if not config.middleware:
        return
    names = installed(GROUP)
    for at, line in enumerate(config.middleware):
        if line.uses not in names:
            site = main.at("middleware", at)
            have = ", ".join(sorted(names))
            message = (
                f"no installed package brings the middleware '{shorten(line.uses)}'; there are:"
            )
            findings.error(site, f"{message} {have}")


def _line(table: Table) -> MiddlewareConfig | None:
    table.refuse_unknown()
    name = table.text("name")
    if name is None or not _NAME.fullmatch(name):
        message = (
            "needs a 'name' of at most 32 characters: a-z, 0-9, and after the first also - and _"
        )
        table.findings.error(table.site, message)
        return None
    settings = table.read_members()
    if settings.get("timeout_s", 0.0) > TIMEOUT_S_MAX:
        table.error("timeout", f'must be from "1ms" to "{duration_text(TIMEOUT_S_MAX)}"')
    if settings.get("memory_bytes", 0) > MEMORY_BYTES_MAX:
        table.error("memory_max", f'is too large; the most is "{size_text(MEMORY_BYTES_MAX)}"')
    return MiddlewareConfig(
        **settings,
        name=name,
        uses=table.text("uses") or name,
        match=_match(table),
        options=_options(table),
    )


def _match(table: Table) -> tuple[str, ...]:
    if not table.has("match"):
        table.findings.error(table.site, 'has no \'match\'; write one like "github/*" or "*/*"')
        return ()
    return globs_of(table, "match")


def _options(table: Table) -> str:
    inner = table.table("options")
    try:
        text = "{}" if inner is None else json.dumps(inner.values, allow_nan=False)
    except (TypeError, ValueError):
        table.error("options", "has a value that JSON does not have; write a string")
        return "{}"
    if len(text) > OPTIONS_BYTES_MAX:
        message = f"is {len(text)} bytes of JSON; the most is {OPTIONS_BYTES_MAX}"
        table.error("options", message)
    return text
