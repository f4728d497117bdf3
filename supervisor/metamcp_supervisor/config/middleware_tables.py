"""The tables `[[middleware]]` of metamcp.toml.

Owns: keys, their limits, names that are unique, packages that are missing. Never: single values
(`document.Table`), loading a middleware (its process does).
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import cast

from metamcp_supervisor.config.config import Config, MiddlewareConfig, MiddlewareMode
from metamcp_supervisor.config.consent_rules import globs_of
from metamcp_supervisor.config.document import ConfigFindings, SourceLocation, Table, shorten
from metamcp_supervisor.config.units import duration_text, size_text

GROUP = "metamcp.middleware"
LINES_MAX = 64
"""Maximum number of middleware; each has a process."""
ORDER_MAX = 1_000_000
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.001, 600.0
MEMORY_BYTES_MIN, MEMORY_BYTES_MAX = 16 * 1024 * 1024, 64 * 1024 * 1024 * 1024
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


def to_tables(lines: Sequence[MiddlewareConfig]) -> dict[str, object]:
    """Return the tables as a user writes them, under their name; nothing if there are none."""
    return {"middleware": list(map(_to_table, lines))} if lines else {}


def _to_table(line: MiddlewareConfig) -> dict[str, object]:
    return {
        "name": line.name,
        **({"uses": line.uses} if line.uses != line.name else {}),
        "match": list(line.match),
        "order": line.order,
        "timeout": duration_text(line.timeout_s),
        "mode": line.mode,
        "memory_max": size_text(line.memory_bytes),
        **({"options": json.loads(line.options)} if line.options != "{}" else {}),
    }


def _line(table: Table) -> MiddlewareConfig | None:
    table.refuse_unknown()
    name = table.text("name")
    if name is None or not _NAME.fullmatch(name):
        message = (
            "needs a 'name' of at most 32 characters: a-z, 0-9, and after the first also - and _"
        )
        table.findings.error(table.site, message)
        return None
    default = MiddlewareConfig(name=name)
    timeout_s = table.duration("timeout", default=default.timeout_s)
    if not TIMEOUT_S_MIN <= timeout_s <= TIMEOUT_S_MAX:
        message = (
            f'must be from "{duration_text(TIMEOUT_S_MIN)}" to "{duration_text(TIMEOUT_S_MAX)}"'
        )
        table.error("timeout", message)
    return MiddlewareConfig(
        name=name,
        uses=table.text("uses") or name,
        match=_match(table),
        order=table.whole("order", default=default.order, low=0, high=ORDER_MAX),
        timeout_s=timeout_s,
        mode=cast("MiddlewareMode", table.choice("mode") or default.mode),
        memory_bytes=_memory(table, default.memory_bytes),
        options=_options(table),
    )


def _match(table: Table) -> tuple[str, ...]:
    if not table.has("match"):
        table.findings.error(table.site, 'has no \'match\'; write one like "github/*" or "*/*"')
        return ()
    return globs_of(table, "match")


def _memory(table: Table, default: int) -> int:
    size_bytes = table.size("memory_max", low=MEMORY_BYTES_MIN)
    if size_bytes is not None and size_bytes > MEMORY_BYTES_MAX:
        table.error("memory_max", f'is too large; the most is "{size_text(MEMORY_BYTES_MAX)}"')
    return default if size_bytes is None else size_bytes


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
