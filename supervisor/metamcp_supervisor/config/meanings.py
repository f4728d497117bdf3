"""`[embeddings]`: where searches over tools get vectors from.

Owns: its keys, their limits, and the rule that vectors have one source. Never: single values
(`table`), making vectors, what must be installed for a model on this machine (`extras`).
"""

from pathlib import Path

from metamcp_supervisor.config import program, remote
from metamcp_supervisor.config.config import Embeddings
from metamcp_supervisor.config.resolving import Resolving
from metamcp_supervisor.config.table import Table

BATCH_MAX = 64
"""As many texts as the gateway ever asks for at once."""
TIMEOUT_S_MAX = 120.0
"""For one request. No search waits so long, but what it asks for stays under way."""
MODEL_CHARACTERS_MAX = 256


def read(table: Table, resolving: Resolving, home: Path) -> Embeddings:
    table.refuse_unknown()
    default = Embeddings()
    url, written = remote.read_url(table, "url", resolving)
    key = table.text("key")
    token = None if key is None else resolving.value(key, table.site.at("key"))
    _check(table, token)
    if key is not None:
        program.warn_of_literal("EMBEDDINGS_KEY", key, table.site.at("key"), table)
    remote.warn_of_plain_text(table, "url", url, secrets=key is not None)
    folder = table.text("folder")
    where = None if folder is None else resolving.value(folder, table.site.at("folder"))
    for place, why in resolving.unresolved:
        table.findings.error(place, why)
    timeout_s = table.duration("timeout", default=default.timeout_s)
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        table.error("timeout", f'must be more than 0 and at most "{TIMEOUT_S_MAX:.0f}s"')
    base = table.site.document.base
    return Embeddings(
        url=url or "",
        url_written=written or "",
        model=table.text("model") or "",
        key=token or "",
        folder=program.directory(where, base=base, home=home) if where else None,
        weight=table.share("weight", default=default.weight),
        timeout_s=timeout_s,
        batch=table.whole("batch", default=default.batch, low=1, high=BATCH_MAX),
    )


def _check(table: Table, token: str | None) -> None:
    """One source, with what belongs to it."""
    if table.has("url") and table.has("folder"):
        table.error("folder", "vectors have one source; leave this or 'url' out")
    elif not table.has("url") and not table.has("folder"):
        what = "has no 'url' and no 'folder', so searches go by words alone"
        table.findings.warning(table.site, what)
    if table.has("url") and not table.text("model"):
        table.error("url", "needs 'model', the name of a model there")
    if len(table.text("model") or "") > MODEL_CHARACTERS_MAX:
        table.error("model", f"is longer than {MODEL_CHARACTERS_MAX} characters")
    for key in ("key", "model"):
        if table.has(key) and not table.has("url"):
            table.error(key, "is for vectors from a 'url'")
    if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
        table.error("key", "has a character in it that no token has, or none at all")
