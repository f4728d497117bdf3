"""What the gateway is to say of itself and of calls: `[log]`, `[recording]`, `[metrics]` and
`[traces]`.

Owns: their keys and limits. Never: single values (`table`), where it is said, what must
be installed for it (`extras`).
"""

from typing import cast

from metamcp_supervisor.config import remote
from metamcp_supervisor.config.config import Form, Log, Metrics, Recorded, Recording, Traces
from metamcp_supervisor.config.document import shown
from metamcp_supervisor.config.nearest import hint
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.resolving import Resolving
from metamcp_supervisor.config.table import Table

FILE_BYTES_MIN = 64 * 1024
"""Of calls: below, a file is full after a moment."""
FILES_MAX = 1000
BODY_BYTES_MIN = 1024
BODY_BYTES_MAX = 1024 * 1024
"""What is kept of it is in memory until it is written."""


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


def recording(table: Table) -> Recording:
    table.refuse_unknown()
    default = Recording()
    body = table.size("body_max", low=BODY_BYTES_MIN) or default.body_max
    if body > BODY_BYTES_MAX:
        table.error("body_max", 'is too large; the largest size here is "1M"')
    return Recording(
        calls=cast("Recorded", table.choice("calls") or default.calls),
        file_max=table.size("file_max", low=FILE_BYTES_MIN) or default.file_max,
        files_max=table.whole("files_max", default=default.files_max, low=2, high=FILES_MAX),
        body_max=body,
    )


def metrics(table: Table) -> Metrics:
    table.refuse_unknown()
    return Metrics(per_tool=table.flag("per_tool", default=Metrics().per_tool))


def traces(table: Table, resolving: Resolving) -> Traces:
    table.refuse_unknown()
    endpoint, written = remote.read_url(table, "endpoint", resolving)
    headers, _ = remote.read_headers(table, resolving, lenient=False)
    for place, why in resolving.unresolved:
        table.findings.error(place, why)
    if not table.has("endpoint"):
        table.findings.warning(table.site, "has no 'endpoint', so nothing is traced")
    remote.warn_of_plain_text(table, "endpoint", endpoint, secrets=bool(headers))
    return Traces(
        endpoint=endpoint or "",
        sample=table.share("sample", default=Traces().sample),
        headers=headers,
        endpoint_written=written or "",
    )
