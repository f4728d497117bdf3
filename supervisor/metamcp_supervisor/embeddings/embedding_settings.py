"""Table `[embeddings]` of metamcp.toml.

Owns: its keys, the rules between them. Never: single values (`document`), the settings of processes
(`embedder`), making vectors (`metamcp_worker.embedder`).
"""

from pathlib import Path

from metamcp_supervisor.config import installation, program, sections, show
from metamcp_supervisor.config.config import ModelService
from metamcp_supervisor.config.document import ConfigFindings, SourceLocation, Table
from metamcp_supervisor.config.references import ReferenceResolver
from metamcp_supervisor.config.tables import ConfigTable, Option

TIMEOUT_S_MAX = 120.0
"""Maximum seconds of a request. No search waits that long, but its request goes on."""


class Embeddings(ModelService, frozen=True, kw_only=True):
    """Source of vectors for searches: an endpoint at `url` with the name of its `model`, or a model
    in `folder`; without both, searches compare words only. `weight`: of matches by vectors, where
    matches by words have 1. `batch`: texts in a request."""

    folder: Path | None = None
    weight: float = 0.4
    timeout_s: float = 10.0
    batch: int = 32

    @property
    def is_configured(self) -> bool:
        return bool(self.url or self.folder)


def read(table: Table, resolving: ReferenceResolver, home: Path) -> Embeddings:
    settings = table.settings()
    url, written = sections.read_url(table, "url", resolving)
    key = table.text("key")
    token = None if key is None else resolving.value(key, table.site.at("key"))
    _check(table, token)
    if key is not None:
        program.warn_of_literal("EMBEDDINGS_KEY", key, table.site.at("key"), table)
    sections.warn_of_plain_text(table, "url", url, secrets=key is not None)
    program.warn_of_short([token or "", *resolving.secrets], table)
    folder = table.text("folder")
    folder_path = None if folder is None else resolving.path(folder, table.site.at("folder"))
    resolving.report(table.findings)
    if settings.get("timeout_s", 0.0) > TIMEOUT_S_MAX:
        table.error("timeout", f'must be more than 0 and at most "{TIMEOUT_S_MAX:.0f}s"')
    base = table.site.document.base
    return Embeddings(
        **settings,
        url=url or "",
        url_written=written or "",
        model=table.text("model") or "",
        key=token or "",
        key_written=key or "",
        referred=tuple(resolving.secrets),
        folder=program.directory(folder_path, base=base, home=home) if folder_path else None,
    )


def _check(table: Table, token: str | None) -> None:
    """Check that there is a single source of vectors, and that the other keys fit it."""
    if table.has("url") and table.has("folder"):
        table.error("folder", "vectors have one source; leave this or 'url' out")
    elif not table.has("url") and not table.has("folder"):
        message = "has no 'url' and no 'folder', so searches go by words alone"
        table.findings.add_warning(table.site, message)
    if table.has("url") and not table.text("model"):
        table.error("url", "needs 'model', the name of a model there")
    if len(table.text("model") or "") > sections.MODEL_CHARACTERS_MAX:
        table.error("model", f"is longer than {sections.MODEL_CHARACTERS_MAX} characters")
    for key in ("key", "model"):
        if table.has(key) and not table.has("url"):
            table.error(key, "is for vectors from a 'url'")
    if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
        table.error("key", "has a character in it that no token has, or none at all")


def check(embeddings: Embeddings, site: SourceLocation, findings: ConfigFindings) -> None:
    """Report packages that are missing for a model on this machine."""
    missing = installation.MEANING
    if embeddings.folder is not None and (message := installation.describe_missing(missing)):
        findings.error(site.at("folder"), message)


def show_table(embeddings: Embeddings) -> dict[str, object]:
    folder = None if embeddings.folder is None else str(embeddings.folder)
    service = show.show_service(embeddings)
    return show.show("embeddings", embeddings, **service, folder=folder)


OPTIONS = (
    Option("embeddings", "url", "string", "", "in place",
           "An endpoint as that of OpenAI: `https://api.openai.com/v1/embeddings`, or your own.",
           example='"https://mcp.example.com/mcp"'),
    Option("embeddings", "model", "string", "", "in place",
           "The name of a model there; another name makes all vectors anew.",
           example='"small-model"'),
    Option("embeddings", "key", "string", "", "in place",
           "A bearer token for it; a reference, please.", example='"${env:API_KEY}"'),
    Option("embeddings", "folder", "path", "", "in place",
           "In place of `url`: a folder with a small model that the gateway runs itself.",
           example='"models/small"'),
    Option("embeddings", "weight", "number from 0 to 1", "0.4", "in place",
           "Of what vectors find, beside 1 of what words find.", high="1"),
    Option("embeddings", "timeout", "duration", '"10s"', "in place",
           "For one request. No search waits for it longer than 150 ms."),
    Option("embeddings", "batch", "integer", "32", "in place",
           "Tools in one request, up to 64.", low="1", high="64"),
)  # fmt: skip

TABLE = ConfigTable(
    name="embeddings",
    why="Where searches get vectors from.",
    options=OPTIONS,
    record=Embeddings,
    read=read,
    show=show_table,
    always=True,
    check=check,
    secrets=show.secrets_of_model,
    sent=lambda vectors: [("url", vectors.url_written), ("key", vectors.key_written)],
)
