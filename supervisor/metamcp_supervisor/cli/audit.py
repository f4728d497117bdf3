"""`metamcp audit`: records of the audit as a table, one of them, their proof, all of them as lines.

Owns: reading segments, which records fit, checking the chain over all segments. Never: writing
records (`metamcp_worker.audit`), the hash of a record (`ipc.audit_records`).

The segments are read directly, so this works without a gateway.
"""

import os
import re
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click
from msgspec import MsgspecError, Struct

from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.cli.errors import Group
from metamcp_supervisor.cli.progress import VerbProgress, progress
from metamcp_supervisor.cli.recordings import config_option, ending, state_option
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.store import database
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import audit_records as records
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.audit_records import START, AuditRecord, Break, ChainRow

EVENTS_HELP = f"{', '.join(records.ALL_EVENTS)}."
COLUMNS = ("SEQ", "TIME", "EVENT", "WHO", "SERVER", "WHAT", "OUTCOME", "TOOK")
LINES = 50
"""Number of records to show if the user does not say."""
TEXT_CHARACTERS_MAX = 60
CHECKPOINT = re.compile("([1-9][0-9]{0,17}):([0-9a-f]{64})")
WORDS = {
    "check": "the chain is checked with 'metamcp audit verify'",
    "ls": "did you mean 'list'?",
    "get": "a record is shown with 'metamcp audit show SEQ'",
}


class Segment(Struct, frozen=True):
    """Segment as it begins. `before`, `hash`: the last record before it, and the hash of that."""

    path: Path
    before: int
    hash: bytes


class Proof(Struct, frozen=True):
    """Outcome of `verify`. `broken`: the first place where the chain does not hold."""

    records: int
    segments: int
    first: int
    last: int
    last_hash: str
    broken: Break | None = None
    v: int = VERSION


@click.group(cls=Group, words=WORDS)
def audit() -> None:
    """Read and check the audit of a gateway, which need not run."""


@audit.command("list")
@click.option("--since", type=Duration(past=True), metavar="DURATION", help="Not older: 1h, 2d.")
@click.option("--until", type=Duration(past=True), metavar="DURATION", help="Older than this.")
@click.option("--workspace", metavar="NAME", help="Of this workspace.")
@click.option("--key", metavar="ID|NAME", help="Of this API key, or of its principal.")
@click.option("--server", metavar="NAME", help="Of calls to this server.")
@click.option("--tool", metavar="NAME", help="As the server or as clients name it.")
@click.option("--event", type=click.Choice(records.ALL_EVENTS), metavar="WORD", help=EVENTS_HELP)
@click.option("--outcome", type=click.Choice(records.OUTCOMES), help="Calls that ended so.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=LINES, show_default=True, help="At most so many."
)
@json_option
@state_option
@config_option
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
    now = time.time()
    keys = {key, *_ids(folder(state_dir, path).parent, key)} if key is not None else set[str]()

    def fits(record: AuditRecord) -> bool:
        return (
            (since is None or record.ts >= (now - since) * 1e9)
            and (until is None or record.ts <= (now - until) * 1e9)
            and workspace in {None, record.workspace}
            and (
                key is None
                or record.key in keys
                or key in {record.principal, record.principal.removeprefix("key:")}
            )
            and event in {None, record.event}
            and server in {None, record.server}
            and (tool is None or tool in {record.tool, record.exposed})
            and outcome in {None, record.outcome}
        )

    def work() -> int:
        found = deque(
            (
                (row, before, record)
                for row, before, record in _all(state_dir, path)
                if fits(record)
            ),
            maxlen=limit,
        )
        if as_json:
            for row, before, _ in found:
                click.echo(codec.dump(records.shown(row, before.hex())))
        elif found:
            show.table(COLUMNS, [_cells(row.seq, record) for row, _, record in found])
        else:
            click.echo("no record fits", err=True)
        return Exit.OK

    ending(work)


@audit.command("show")
@click.argument("seq", type=click.IntRange(min=1))
@json_option
@state_option
@config_option
def show_(seq: int, as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Show all of one record."""

    def work() -> int:
        for row, before, _ in _all(state_dir, path):
            if row.seq == seq:
                members = records.shown(row, before.hex())
                if as_json:
                    click.echo(codec.dump(members))
                else:
                    for name, value in members.items():
                        click.echo(f"{name:<12}  {show.printable(str(value))}")
                return Exit.OK
        raise Failed(Exit.UNKNOWN_NAME, f"the audit has no record {seq}")

    ending(work)


@audit.command()
@click.option("--expect", metavar="SEQ:HASH", help="A checkpoint from the log that must be there.")
@json_option
@state_option
@config_option
def verify(expect: str | None, as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Check every record against the chain, and every sealed segment against its digest.

    Records cut off at the end are found only with a checkpoint from the log, which --expect takes.
    """

    def work() -> int:
        if expect is not None and not CHECKPOINT.fullmatch(expect):
            what = "--expect takes a checkpoint from the log, written like SEQ:HASH, 64 hex digits"
            raise Failed(Exit.USAGE, what)
        with progress("checks the chain") as shown:
            found = proof(folder(state_dir, path), expect or "", shown)
        if as_json:
            click.echo(codec.dump(found))
        elif found.broken is not None:
            click.echo(f"broken at record {found.broken.seq}: {found.broken.why}")
        else:
            files = "1 file" if found.segments == 1 else f"{found.segments} files"
            what = f"the chain holds: {found.records} records in {files}"
            click.echo(f"{what}; the last one is {found.last}:{found.last_hash}")
        return Exit.OK if found.broken is None else Exit.FAILED

    ending(work)


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="JSON, one record a line; the only form.")
@state_option
@config_option
def export(as_json: bool, state_dir: str | None, path: Path | None) -> None:
    """Print all records with their hashes, the oldest first."""

    def work() -> int:
        if not as_json:
            raise Failed(Exit.USAGE, "name the form: metamcp audit export --json")
        for row, before, _ in _all(state_dir, path):
            click.echo(codec.dump(records.shown(row, before.hex())))
        return Exit.OK

    ending(work)


def folder(state_dir: str | None, path: Path | None) -> Path:
    """Return the folder of the segments. Raises Failed."""
    if state_dir is not None:
        return Path(state_dir) / records.FOLDER
    from metamcp_supervisor.config import sources
    from metamcp_supervisor.config.config import ConfigInvalid

    try:
        found = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        what = "the folder of the audit is not known; name the state directory with --state-dir"
        raise Failed(Exit.CONFIG, what, tuple(map(str, invalid.problems))) from None
    return found.gateway.state_dir / records.FOLDER


def segments(where: Path) -> list[Path]:
    """Return the segments, the oldest first. Raises Failed."""
    try:
        names = sorted(filter(records.is_segment, os.listdir(where)))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise Failed(Exit.DENIED, f"the audit cannot be read: {where}: {error.strerror}") from None
    if not names:
        raise Failed(
            Exit.UNKNOWN_NAME,
            f"no audit is in {where}; a table [audit] in the configuration begins one",
        )
    return [where / name for name in names]


def rows(path: Path) -> Iterator[Segment | ChainRow]:
    """Yield the beginning of a segment, then its rows. Raises sqlite3.Error and TypeError for a
    file that is broken."""
    with closing(database.read_only(path)) as base:
        seq, digest = base.execute("SELECT seq, hash FROM start").fetchone()
        yield Segment(path, int(seq), bytes(digest))
        for found in base.execute("SELECT seq, body, hash FROM record ORDER BY seq"):
            yield ChainRow(int(found[0]), bytes(found[1]), bytes(found[2]))


def proof(where: Path, expect: str = "", shown: VerbProgress | None = None) -> Proof:
    """Check everything that is there. `shown`: gets the number of bytes that are checked. Raises
    Failed."""
    paths = segments(where)
    shown = shown or VerbProgress("")
    check = _Check(expect, shown)
    shown.total = sum(path.stat().st_size for path in paths)
    checked = 0
    for path in paths:
        broken = check.segment(path)
        if broken is not None:
            break
        checked += path.stat().st_size
        shown.done = checked  # more than its records
    else:
        broken = check.rest(paths)
    return Proof(check.count, len(paths), check.first, check.seq, check.hash.hex(), broken)


class _Check:
    """Check of a chain, segment by segment. `seq`, `hash`: of the last record that holds."""

    def __init__(self, expect: str, shown: VerbProgress) -> None:
        self._shown = shown
        self.count = self.first = self.seq = 0
        self.hash = START
        seq, _, self._expected_hash = expect.partition(":")
        self._expected = int(seq or 0)
        self._seen = not expect
        self._begins: Segment | None = None
        self._sealed: dict[str, tuple[int, str]] = {}
        self._removed: set[tuple[int, str]] = set()

    def segment(self, path: Path) -> Break | None:
        """Check one segment behind those before it."""
        try:
            found = rows(path)
            begins = next(found)
            assert isinstance(begins, Segment)
            if self._begins is None:
                self._begins, self.seq, self.hash = begins, begins.before, begins.hash
                self.first = self.seq + 1
            if (begins.before, begins.hash) != (self.seq, self.hash):
                return Break(self.seq + 1, f"{path.name} does not begin where the one before ends")
            for row in found:
                assert isinstance(row, ChainRow)
                broken = records.check(self.hash, self.seq, [row])
                if broken is not None:
                    return broken
                self.seq, self.hash = row.seq, row.hash
                self._learn(row)
        except (sqlite3.Error, TypeError, ValueError, MsgspecError) as error:
            where = f" behind record {self.seq}" if self.seq else ""
            return Break(self.seq + 1, f"{path.name} cannot be read{where}: {error}")
        return None

    def rest(self, paths: list[Path]) -> Break | None:
        """Check the files of sealed segments, the segments that are gone, and the checkpoint."""
        for path in paths:
            seq, digest = self._sealed.get(path.name, (0, ""))
            if digest and _digest(path) != digest:
                return Break(seq, f"{path.name} is not as it was sealed")
        begins = self._begins
        if begins is not None and begins.before:
            if (begins.before, begins.hash.hex()) not in self._removed:
                return Break(
                    1, f"records before {begins.before + 1} are missing, and no record says why"
                )
        elif begins is not None and begins.hash != START:
            return Break(1, "the beginning was changed")
        if not self._seen:
            return Break(self._expected, "the checkpoint is not in the chain")
        return None

    def _learn(self, row: ChainRow) -> None:
        self.count += 1
        self._shown.done += len(row.body)
        if row.seq == self._expected and row.hash.hex() == self._expected_hash:
            self._seen = True
        if b'"worker":"audit"' in row.body:
            record = records.read(row.body)
            if record.event == "sealed":
                self._sealed[record.segment] = record.first, record.digest
            elif record.event == "removed":
                self._removed.add((record.last, record.last_hash))


def _digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _all(state_dir: str | None, path: Path | None) -> Iterator[tuple[ChainRow, bytes, AuditRecord]]:
    """Yield every row with the hash before it and its record. Raises Failed."""
    for each in segments(folder(state_dir, path)):
        before = START
        try:
            for row in rows(each):
                if isinstance(row, ChainRow):
                    yield row, before, records.read(row.body)
                before = row.hash
        except (sqlite3.Error, TypeError, ValueError, MsgspecError) as error:
            what = f"{each} is broken: {error}; 'metamcp audit verify' says where"
            raise Failed(Exit.FAILED, what) from None


def _ids(state_dir: Path, name: str) -> list[str]:
    """Return the ids of the API keys with this name or, as WHO shows it, `key:ID`."""
    from metamcp_supervisor.keys import api_keys

    found = [key_id for key_id, called, _ in api_keys.names(state_dir) if called == name]
    return [name.removeprefix("key:"), *found]


def _cells(seq: int, record: AuditRecord) -> tuple[str, ...]:
    when = datetime.fromtimestamp(record.ts / 1e9, UTC).astimezone()
    what = record.exposed or record.uri or record.method or record.text or record.segment
    return (
        str(seq),
        f"{when:%Y-%m-%d %H:%M:%S}",
        record.event,
        record.who or record.principal or record.key,
        record.server,
        what[:TEXT_CHARACTERS_MAX] or (f"{record.count} lost" if record.event == "gap" else ""),
        record.outcome,
        f"{record.ms:.1f} ms" if record.ms else "",
    )
