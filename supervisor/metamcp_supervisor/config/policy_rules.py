"""The tables `[[policies]]` and `[consent]` of metamcp.toml.

Owns: their keys and limits, the check of each condition, globs that no server can have. Never:
single values (`document.Table`), what a rule does (`metamcp_worker.guard`).
"""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import cast

from metamcp_supervisor.config import naming
from metamcp_supervisor.config.config import ConsentConfig
from metamcp_supervisor.config.document import (
    ConfigFindings,
    SourceLocation,
    Table,
    kind_of,
    list_of,
    shorten,
    table_of,
)
from metamcp_supervisor.config.naming import hint
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.spec import ConsentRule, PolicyEffect, PolicyMode, PolicySpec

POLICIES_MAX = 1000
MATCH_MAX = 64
"""Maximum globs of one rule."""
GLOB_CHARACTERS_MAX = 256
MESSAGE_CHARACTERS_MAX = 1000
EVERYTHING = "*/*"
_WILD = re.compile(r"[*?\[]")


def read(top: Table) -> tuple[PolicySpec, ...]:
    """Read the rules of a file; rules with a mistake are reported and left out."""
    value = top.values.get("policies")
    items, site = list_of(value) if value is not None else [], top.site.at("policies")
    if items is None or not all(table_of(item) is not None for item in items):
        kind = "a table" if items is None and table_of(value) is not None else kind_of(value)
        top.findings.error(site, f"must be a list of tables, [[policies]], not {kind}")
        return ()
    if len(items) > POLICIES_MAX:
        top.findings.error(site, f"has more than {POLICIES_MAX} rules")
        return ()
    rules: dict[str, PolicySpec] = {}
    for at, item in enumerate(items):
        table = Table(table_of(item) or {}, site.at(at), top.findings, "policies[]")
        rule = _rule(table)
        if rule is not None and rule.name in rules:
            table.error("name", f"'{rule.name}' is the name of another rule; rename one")
        elif rule is not None:
            rules[rule.name] = rule
    return tuple(rules.values())


def _rule(table: Table) -> PolicySpec | None:
    table.refuse_unknown()
    name, effect, mode = table.text("name"), table.choice("effect"), table.choice("mode")
    for key in ("name", "effect"):
        if not table.has(key):
            table.findings.error(table.site, f"has no '{key}'")
    if name and (flaw := naming.flaw(name)):
        table.error("name", f"'{shorten(name)}' {flaw}")
    when, message = table.text("when") or "", table.text("message") or ""
    if table.has("when"):
        _check(when, table)
    if len(message) > MESSAGE_CHARACTERS_MAX:
        table.error("message", f"may have at most {MESSAGE_CHARACTERS_MAX} characters")
    match = _match(table)
    if not name or effect is None:
        return None
    return PolicySpec(
        name=name,
        match=match,
        when=when,
        effect=cast("PolicyEffect", effect),
        message=message,
        mode=cast("PolicyMode", mode or "enforce"),
    )


def _check(when: str, table: Table) -> None:
    from metamcp_worker.cel.expressions import ExpressionError
    from metamcp_worker.guard import conditions  # loads CEL, which few gateways need

    try:
        conditions.parse(when)
    except ExpressionError as error:
        table.error("when", str(error))


def _match(table: Table) -> tuple[str, ...]:
    """Return the globs of a rule: one, or a list of them."""
    written = table.values.get("match")
    if written is None:
        return (EVERYTHING,)
    globs = [written] if isinstance(written, str) else table.texts("match") or ()
    accepted: list[str] = []
    for at, glob in enumerate(globs):
        site = table.site.at("match") if isinstance(written, str) else table.site.at("match", at)
        server, slash, name = glob.partition("/")
        if not (slash and server and name):
            example = f"'{shorten(glob) or '*'}/*'"
            message = f"'{shorten(glob)}' must be written 'server/name'; both may have '*'"
            table.findings.error(
                site, f"{message}, as in {example}" if "/" not in glob else message
            )
        elif len(glob) > GLOB_CHARACTERS_MAX:
            table.findings.error(site, f"may have at most {GLOB_CHARACTERS_MAX} characters")
        else:
            accepted.append(glob)
    if not globs and written == []:
        table.error("match", "is empty, so the rule concerns nothing; leave it out for everything")
    if len(accepted) > MATCH_MAX:
        table.error("match", f"has more than {MATCH_MAX} globs")
    return tuple(accepted)


def strangers(rule: PolicySpec, servers: Collection[str]) -> list[tuple[str, str]]:
    """Return the globs of a rule that no server has, each with a sentence."""
    names = {*servers, *map(process_names.label, servers)}
    unmatched: list[tuple[str, str]] = []
    for glob in rule.match:
        server_glob = glob.partition("/")[0]
        if any(fnmatchcase(name, server_glob) for name in names):
            continue
        verb = "is like" if _WILD.search(server_glob) else "is named"
        unmatched.append(
            (glob, f"no server {verb} '{shorten(server_glob)}'; {hint(server_glob, names)}")
        )
    return unmatched


def warn(
    rules: Sequence[PolicySpec],
    servers: Collection[str],
    main: SourceLocation,
    findings: ConfigFindings,
) -> None:
    """Warn of globs that no configured server has, because the rule does nothing there."""
    for at, rule in enumerate(rules):
        for glob, message in strangers(rule, servers):
            site = main.at("policies", at, "match")
            findings.add_warning(site, f"'{shorten(glob)}' concerns nothing: {message}")


def read_consent(table: Table) -> ConsentConfig:
    settings = table.settings()
    rules = tuple(map(_consent_rule, table.list_tables("rules", "consent.rules[]")))
    return ConsentConfig(**settings, rules=rules)


def _consent_rule(table: Table) -> ConsentRule:
    settings = table.settings()
    for key in ("match", "effect"):
        if not table.has(key):
            table.findings.error(table.site, f"has no '{key}'")
    return ConsentRule(match=globs_of(table, "match"), **{"effect": "deny", **settings})


def globs_of(table: Table, key: str) -> tuple[str, ...]:
    """Return globs of `server/name`: one as a string, or a list of them."""
    value = table.values.get(key)
    texts = table.texts(key) if isinstance(value, list) else (table.text(key),)
    globs = tuple(text for text in texts or () if text is not None)
    for glob in globs:
        server, slash, name = glob.partition("/")
        if not (server and slash and name):
            table.error(
                key, f"'{shorten(glob)}' is not of the form server/name, where * is anything"
            )
    return globs
