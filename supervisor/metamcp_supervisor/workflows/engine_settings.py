"""Table `[engine]` of metamcp.toml.

Owns: its keys. Never: single values (`document`), the
runs themselves (`metamcp_worker.engine`).
"""

from pathlib import Path
from typing import Literal

from metamcp_supervisor.config import installation, network, show
from metamcp_supervisor.config.config import PrivateStruct
from metamcp_supervisor.config.document import ConfigFindings, SourceLocation, Table
from metamcp_supervisor.config.references import ReferenceResolver
from metamcp_supervisor.config.tables import ConfigTable, Option


class EngineConfig(PrivateStruct, frozen=True, kw_only=True):
    """Table `[engine]`. `database`: URL of a database in PostgreSQL for runs of several machines,
    which may be secret, and as written in the file; empty for a file of this gateway; `referred`:
    values of the references to secrets in it; `keep_s`: time for which ended runs are kept; `sync`:
    whether a step is on the disk before the next begins, `full`, or is only safe from the end of
    any process; `runs_max`: workflow runs at once, more wait."""

    UNCOMPARED = frozenset({"database_written", "referred"})
    HIDDEN = UNCOMPARED | {"database"}

    keep_s: float = 30 * 86_400.0
    sync: Literal["full", "normal"] = "full"
    runs_max: int = 64
    database: str = ""
    database_written: str = ""
    referred: tuple[str, ...] = ()


def read(table: Table, resolving: ReferenceResolver, home: Path) -> EngineConfig:
    settings = table.settings()
    database, written = network.read_database_url("database", table, resolving)
    return EngineConfig(
        **settings,
        database=database,
        database_written=written,
        referred=tuple(filter(None, resolving.secrets)),
    )


def check(engine: EngineConfig, site: SourceLocation, findings: ConfigFindings) -> None:
    """Report packages that are missing for a database of several machines."""
    if engine.database and (message := installation.describe_missing(installation.MACHINES)):
        findings.error(site.at("database"), message)


def secrets_of_engine(engine: EngineConfig) -> tuple[str, ...]:
    """Return the secret values in the settings for runs of workflows."""
    return (*engine.referred, *show.database_secrets(engine.database))


def show_table(engine: EngineConfig) -> dict[str, object]:
    url = show.masked_url(engine.database_written or engine.database)
    return show.show("engine", engine, database=url or None)


OPTIONS = (
    Option("engine", "database", "string", "", "in place",
           "`postgresql://USER:${env:NAME}@HOST/DATABASE`: runs of several machines, in place of a"
           " file in the state directory; without it the `store` of the gateway.",
           example='"postgresql://metamcp:${env:DB_PASSWORD}@db.example.com/metamcp"'),
    Option("engine", "keep", "duration", '"30d"', "in place", "How long ended runs are kept.",
           low="60s", high="366d"),
    Option("engine", "sync", "choice", '"full"', "in place",
           "`full`: a step is on the disk before the next begins; `normal`: twice as many steps,"
           " and a loss of power may lose the last ones.",
           ("full", "normal")),
    Option("engine", "runs_max", "integer", "64", "in place",
           "Workflow runs under way at once; more wait.", low="1", high="10000"),
)  # fmt: skip

TABLE = ConfigTable(
    name="engine",
    why="How runs of workflows are kept.",
    options=OPTIONS,
    record=EngineConfig,
    read=read,
    show=show_table,
    check=check,
    secrets=secrets_of_engine,
    sent=lambda engine: [("database", engine.database_written)],
)
