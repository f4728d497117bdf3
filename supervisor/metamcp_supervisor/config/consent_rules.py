"""The table `[consent]` of metamcp.toml.

Owns: its keys and limits, its form when it is shown. Never: single values (`document.Table`), which
calls a rule concerns (fronts decide).
"""

from metamcp_supervisor.config.config import ConsentConfig
from metamcp_supervisor.config.document import Table, shorten
from metamcp_worker.ipc.spec import ConsentRule


def read(table: Table) -> ConsentConfig:
    settings = table.settings()
    rules = tuple(map(_rule, table.list_tables("rules", "consent.rules[]")))
    return ConsentConfig(**settings, rules=rules)


def _rule(table: Table) -> ConsentRule:
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
