"""`metamcp audit`: records of the audit as a table, one of them, their proof, all of them as lines.

Owns: these verbs at the prompt, the folder that is meant. Never: reading segments and checking
their chain (`audit.audit_segments`), writing records (`metamcp_worker.audit`).

The segments are read directly, so this works without a gateway.
"""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import structs

from metamcp_supervisor.audit import audit_segments
from metamcp_supervisor.audit.audit_segments import AuditDenied, AuditQuestion, AuditUnread
from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.cli.errors import Group, gateway_options, run_and_exit, tell
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.store.database import DatabaseFile, StoreError, make_database
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import audit_records as records
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.audit_records import AuditRecord

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config

EVENTS_HELP = f"{', '.join(records.ALL_EVENTS)}."
COLUMNS = ("SEQ", "TIME", "EVENT", "WHO", "SERVER", "WHAT", "OUTCOME", "TOOK")
LINES = 50
"""Number of records to show if the user does not say."""
TEXT_CHARACTERS_MAX = 60
WORDS = {
    "check": "the chain is checked with 'metamcp audit verify'",
    "ls": "did you mean 'list'?",
    "get": "a record is shown with 'metamcp audit show SEQ'",
}


@click.group(cls=Group, words=WORDS)
def audit() -> None:
    """Read and check the audit of a gateway, which need not run."""


@audit.command("list")
@click.option("--since", type=Duration(past=True), metavar="DURATION", help="Not older: 1h, 2d.")
@click.option("--until", type=Duration(past=True), metavar="DURATION", help="Older than this.")
@click.option("--workspace", metavar="NAME", help="Of this workspace.")
@click.option("--key", metavar="ID|NAME", help="Of this API key, or of its principal.")
@click.option("--server", metavar="NAME", help="Of calls to this server, and of its events.")
@click.option("--tool", metavar="NAME", help="As the server or as clients name it.")
@click.option("--event", type=click.Choice(records.ALL_EVENTS), metavar="WORD", help=EVENTS_HELP)
@click.option("--outcome", type=click.Choice(records.OUTCOMES), help="Calls that ended so.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=LINES,
    show_default=True,
    help="At most so many.",
)
@json_option
@gateway_options("path", "state_dir")
def list_(
    since: float | None,
    until: float | None,
    workspace: str | None,
    key: str | None,
    server: str | None,
    tool: str | None,
    event: str | None,
    outcome: str | None,
    limit: int,
    as_json: bool,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """List records, the newest last."""

    def work() -> int:
        audit_folder, now = folder(state_dir, path), time.time()
        question = AuditQuestion(
            since=0.0 if since is None else now - since,
            until=0.0 if until is None else now - until,
            workspace=workspace or "",
            keys=() if key is None else (key, *_ids(state_dir, path, key)),
            server=server or "",
            tool=tool or "",
            event=event or "",
            outcome=outcome or "",
            limit=limit,
        )
        matches = audit_segments.find_records(audit_folder, question).records
        if as_json:
            for match in matches:
                click.echo(codec.dump(match.to_export_record()))
        elif matches:
            show.table(COLUMNS, [_cells(match.row.seq, match.record) for match in matches])
        else:
            click.echo("no record fits", err=True)
        return Exit.OK

    read_and_exit(work)


@audit.command("show")
@click.argument("seq", type=click.IntRange(min=1))
@json_option
@gateway_options("path", "state_dir")
def show_(seq: int, as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Show all of one record."""

    def work() -> int:
        members = audit_segments.one(folder(state_dir, path), seq).to_export_record()
        if as_json:
            click.echo(codec.dump(members))
        else:
            for name, value in members.items():
                click.echo(f"{name:<12}  {show.printable(str(value))}")
        return Exit.OK

    read_and_exit(work)


@audit.command()
@click.option("--expect", metavar="SEQ:HASH", help="A checkpoint from the log that must be there.")
@json_option
@gateway_options("path", "state_dir")
def verify(expect: str | None, as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Check every record against the chain, and every sealed segment against its digest.

    Records cut off at the end are found only with a checkpoint from the log, which --expect takes.
    """

    def work() -> int:
        if expect is not None and not audit_segments.CHECKPOINT.fullmatch(expect):
            message = f"--expect: {audit_segments.CHECKPOINT_FORM}"
            raise Failed(Exit.USAGE, message)
        with progress("checks the chain") as verb_progress:

            def on_progress(done: int, total: int) -> None:
                verb_progress.done, verb_progress.total = done, total

            proof = audit_segments.proof(folder(state_dir, path), expect or "", on_progress)
        if as_json:
            tell(**structs.asdict(proof))
        elif proof.broken is not None:
            click.echo(f"broken at record {proof.broken.seq}: {proof.broken.why}")
        else:
            files = "1 file" if proof.segments == 1 else f"{proof.segments} files"
            message = f"the chain holds: {proof.records} records in {files}"
            click.echo(f"{message}; the last one is {proof.last}:{proof.last_hash}")
        return Exit.OK if proof.broken is None else Exit.FAILED

    read_and_exit(work)


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="JSON, one record a line; the only form.")
@gateway_options("path", "state_dir")
def export(as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Print all records with their hashes, the oldest first."""

    def work() -> int:
        if not as_json:
            raise Failed(Exit.USAGE, "name the form: metamcp audit export --json")
        for stored_record in audit_segments.every(folder(state_dir, path)):
            click.echo(codec.dump(stored_record.to_export_record()))
        return Exit.OK

    read_and_exit(work)


def folder(state_dir: str | None, path: Path | None) -> Path:
    """Return the folder of the segments. Raises Failed."""
    if state_dir is not None:
        return Path(state_dir) / records.FOLDER
    return _load_config(path).gateway.state_dir / records.FOLDER


def _load_config(path: Path | None) -> "Config":
    from metamcp_supervisor.config import sources
    from metamcp_supervisor.config.config import ConfigInvalid

    try:
        return sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        problem = "the folder of the audit is not known; name the state directory with --state-dir"
        raise Failed(Exit.CONFIG, problem, tuple(map(str, invalid.problems))) from None


def read_and_exit(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, and end with its exit code or with that of its failure."""

    def read() -> int:
        try:
            return work()
        except AuditUnread as error:
            code = Exit.DENIED if isinstance(error, AuditDenied) else Exit.of(error)
            raise Failed(code, str(error)) from None

    run_and_exit(read)


def _ids(state_dir: str | None, path: Path | None, name: str) -> list[str]:
    """Return the ids of the API keys with this name or, as WHO shows it, `key:ID`. Raises
    Failed."""
    from metamcp_supervisor.keys import api_keys

    base = DatabaseFile(Path(state_dir)) if state_dir else make_database(_load_config(path).gateway)
    try:
        rows = asyncio.run(api_keys.names(base))
    except StoreError as error:
        raise Failed(Exit.FAILED, f"keys are not known by name: {error}") from None
    return [name.removeprefix("key:"), *(key_id for key_id, called, _ in rows if called == name)]


def _cells(seq: int, record: AuditRecord) -> tuple[str, ...]:
    when = datetime.fromtimestamp(record.ts / 1e9, UTC).astimezone()
    subject = record.exposed or record.uri or record.method or record.text or record.segment
    return (
        str(seq),
        f"{when:%Y-%m-%d %H:%M:%S}",
        record.event,
        record.who or record.principal or record.key,
        record.server,
        subject[:TEXT_CHARACTERS_MAX] or (f"{record.count} lost" if record.event == "gap" else ""),
        record.outcome,
        f"{record.ms:.1f} ms" if record.ms else "",
    )
