"""The table `[consent]` of metamcp.toml.

Owns: its keys and limits, its form when it is shown. Never: single values (`document.Table`), which
calls a rule concerns (fronts decide).
"""

from typing import cast

from metamcp_supervisor.config.config import ConsentConfig
from metamcp_supervisor.config.document import Table, shorten
from metamcp_supervisor.config.units import duration_text
from metamcp_worker.ipc.spec import ConsentRule, GuardEffect, Unaskable

CONSENT_S_MIN = 1.0
"""Minimum seconds for a person to answer."""


def read(top: Table) -> ConsentConfig | None:
    """Read `[consent]`; None without it. `top`: the whole file."""
    table = top.table("consent", "consent")
    if table is None:
        return None
    table.refuse_unknown()
    default = ConsentConfig()
    timeout_s = table.duration("timeout", default=default.timeout_s)
    if timeout_s < CONSENT_S_MIN:
        table.error("timeout", f'is too short; the shortest time here is "{CONSENT_S_MIN:.0f}s"')
    unaskable = table.choice("on_no_elicitation") or default.on_no_elicitation
    return ConsentConfig(
        rules=tuple(map(_rule, table.list_tables("rules", "consent.rules[]"))),
        timeout_s=timeout_s,
        on_no_elicitation=cast("Unaskable", unaskable),
        use_annotations=table.flag("use_annotations", default=default.use_annotations),
    )


def _rule(table: Table) -> ConsentRule:
    table.refuse_unknown()
    for key in ("match", "effect"):
        if not table.has(key):
            table.findings.error(table.site, f"has no '{key}'")
    globs = globs_of(table, "match")
    return ConsentRule(match=globs, effect=cast("GuardEffect", table.choice("effect") or "deny"))


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


def to_table(consent: ConsentConfig) -> dict[str, object]:
    """Return the table as a user writes it, under its name; nothing if it is not written."""
    if consent == ConsentConfig():
        return {}
    table = {
        "rules": [{"match": list(rule.match), "effect": rule.effect} for rule in consent.rules],
        "timeout": duration_text(consent.timeout_s),
        "on_no_elicitation": consent.on_no_elicitation,
        "use_annotations": consent.use_annotations,
    }
    return {"consent": table}
