"""The tables `[log]`, `[recording]`, `[metrics]`, `[traces]` and `[embeddings]`: keys and limits.

Never: single values (`document.Table`).
"""

from pathlib import Path
from typing import cast

from metamcp_supervisor.config import program, server_sections
from metamcp_supervisor.config.config import (
    Embeddings,
    Form,
    Log,
    MetricsConfig,
    Recorded,
    RecordingConfig,
    TracesConfig,
)
from metamcp_supervisor.config.document import Table, shown
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.references import Resolving

FILE_BYTES_MIN = 64 * 1024
"""Minimum bytes of a file of recorded calls; a smaller file is full after a moment."""
FILES_MAX = 1000
BODY_BYTES_MIN = 1024
BODY_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a recorded body, because it stays in memory until it is written."""


def log(table: Table) -> Log:
    table.refuse_unknown()
    default = Log()
    known = option("log", "level").choices
    levels = table.named_texts("levels")
    for room, level in levels.items():
        if level not in known:
            site = table.site.at("levels", room)
            table.findings.error(site, f"'{shown(level)}' is not a level; {hint(level, known)}")
    return Log(
        format=cast("Form", table.choice("format") or default.format),
        level=table.choice("level") or default.level,
        levels={room: level for room, level in levels.items() if level in known},
    )


def recording(table: Table) -> RecordingConfig:
    table.refuse_unknown()
    default = RecordingConfig()
    body = table.size("body_max", low=BODY_BYTES_MIN) or default.body_max
    if body > BODY_BYTES_MAX:
        table.error("body_max", 'is too large; the largest size here is "1M"')
    return RecordingConfig(
        calls=cast("Recorded", table.choice("calls") or default.calls),
        file_max=table.size("file_max", low=FILE_BYTES_MIN) or default.file_max,
        files_max=table.whole("files_max", default=default.files_max, low=2, high=FILES_MAX),
        body_max=body,
    )


def metrics(table: Table) -> MetricsConfig:
    table.refuse_unknown()
    return MetricsConfig(per_tool=table.flag("per_tool", default=MetricsConfig().per_tool))


def traces(table: Table, resolving: Resolving) -> TracesConfig:
    table.refuse_unknown()
    endpoint, written = server_sections.read_url(table, "endpoint", resolving)
    headers, _ = server_sections.read_headers(table, resolving, lenient=False)
    for place, why in resolving.unresolved:
        table.findings.error(place, why)
    if not table.has("endpoint"):
        table.findings.warning(table.site, "has no 'endpoint', so nothing is traced")
    server_sections.warn_of_plain_text(table, "endpoint", endpoint, secrets=bool(headers))
    return TracesConfig(
        endpoint=endpoint or "",
        sample=table.share("sample", default=TracesConfig().sample),
        headers=headers,
        endpoint_written=written or "",
    )


BATCH_MAX = 64
"""Maximum number of texts in a request; the gateway never asks for more at once."""
TIMEOUT_S_MAX = 120.0
"""Maximum seconds of a request. No search waits that long, but its request goes on."""
MODEL_CHARACTERS_MAX = 256


def read(table: Table, resolving: Resolving, home: Path) -> Embeddings:
    table.refuse_unknown()
    default = Embeddings()
    url, written = server_sections.read_url(table, "url", resolving)
    key = table.text("key")
    token = None if key is None else resolving.value(key, table.site.at("key"))
    _check(table, token)
    if key is not None:
        program.warn_of_literal("EMBEDDINGS_KEY", key, table.site.at("key"), table)
    server_sections.warn_of_plain_text(table, "url", url, secrets=key is not None)
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
    """Check that there is a single source of vectors, and that the other keys fit it."""
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
