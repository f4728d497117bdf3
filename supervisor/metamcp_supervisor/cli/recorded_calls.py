"""`metamcp calls`: recorded calls that are over, as a table, as lines, or a single one.

Owns: the options, which calls fit, the table and the page of one call. Never: reading the files
(`recordings`), calls under way (`metamcp ctl calls`).
"""

import heapq
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import click
from msgspec import UNSET, Raw, UnsetType

from metamcp_supervisor.cli import columns, recordings, show
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.cli.recordings import RecordedLine, RecordingPlace
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import call_records, codec
from metamcp_worker.ipc.call_records import FinishedCall
from metamcp_worker.ipc.errors import Code

LINES = 50
"""Number of past calls to show if the user does not say."""
FOLLOW_S = 0.3
"""Seconds between two checks of the files; fronts write five times a second."""
NAME_CHARACTERS_MAX = 48
COLUMNS = ("TIME", "ID", "SERVER", "NAME", "OUTCOME", "TOOK", "IN", "OUT", "ENDPOINT")

state_option = click.option(
    "--state-dir", metavar="PATH", help="Of the gateway; else as its configuration says."
)
config_option = click.option(
    "--config", "path", type=click.Path(path_type=Path), help="The configuration of the gateway."
)


@click.command()
@click.argument("word", metavar="[ID]", required=False)
@click.option("--server", metavar="NAME", help="Only calls of this server.")
@click.option("--tool", metavar="NAME", help="Only of this tool, prompt or resource.")
@click.option("--errors", is_flag=True, help="Only those that failed.")
@click.option(
    "--since",
    "since_s",
    type=Duration(past=True),
    metavar="DURATION",
    help="Not older than this: 10m, 2d.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LINES,
    show_default=True,
    help="The last so many.",
)
@click.option("-f", "--follow", is_flag=True, help="And every one that comes, until interrupted.")
@json_option
@state_option
@config_option
def calls(
    word: str | None,
    server: str | None,
    tool: str | None,
    errors: bool,
    since_s: float | None,
    limit: int,
    follow: bool,
    as_json: bool,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Show recorded calls that are over, the newest last; with an ID, all about a single call.

    Calls are recorded where [recording] says so. 'metamcp ctl calls' shows calls that are still
    under way.
    """
    since = None if since_s is None else datetime.fromtimestamp(time.time() - since_s).astimezone()

    def fits(call: FinishedCall) -> bool:
        return (
            (server is None or call.server == server)
            and (tool is None or call.name == tool)
            and (not errors or call.failed)
            and (since is None or datetime.fromisoformat(call.time) >= since)
        )

    def work() -> int:
        where = recordings.place(state_dir, path)
        if word is not None:
            _one(recordings.find(where, word), as_json=as_json)
        else:
            _many(where, fits, limit, as_json=as_json, follow=follow)
        return Exit.OK

    recordings.ending(work)


def _many(
    where: RecordingPlace,
    fits: Callable[[FinishedCall], bool],
    limit: int,
    *,
    as_json: bool,
    follow: bool,
) -> None:
    """Show all calls that fit. Raises Failed."""
    if not (follow and where.folder.parent.is_dir()):  # else calls may be recorded soon
        where.check()
    following = recordings.Following(where.folder)
    lost = 0

    def fitting() -> Iterator[tuple[str, bytes, FinishedCall]]:
        nonlocal lost
        for line in following.news():
            lost += line.lost
            if line.call is not None and fits(line.call):
                yield line.call.id, line.raw, line.call

    newest = heapq.nlargest(limit, fitting(), key=lambda found: found[0])[::-1]
    if as_json:
        for _, raw, _ in newest:
            click.echo(raw, nl=False)
        if notes := told_of(lost) if lost else "" if where.any else where.why_none:
            click.echo(f"metamcp: {notes}", err=True)
    else:
        rows = [row(call) for _, _, call in newest]
        shown = show.Picture(
            COLUMNS if rows else ("",), rows, foot=foot(where, len(rows), lost),
            right=frozenset({"TOOK", "IN", "OUT"}), sentences=False,
            spared=("IN", "OUT", "ENDPOINT", "TOOK"),
        )  # fmt: skip
        show.picture(shown)
    while follow:
        for line in following.news():
            follow_line(line, fits, as_json=as_json)
        time.sleep(FOLLOW_S)


def follow_line(line: RecordedLine, fits: Callable[[FinishedCall], bool], *, as_json: bool) -> None:
    """Print a new line, if it fits. Lost calls always fit, because their servers are not known."""
    if line.call is not None and not fits(line.call):
        return
    if as_json:
        click.echo(line.raw, nl=False)
    elif line.call is not None:
        click.echo(show.printable("  ".join(row(line.call)).rstrip()))
    else:
        click.echo(f"… {told_of(line.lost)}")


def row(call: FinishedCall) -> tuple[str, ...]:
    return (
        _when(call),
        call.id,
        call.server,
        columns.cut(call.name, NAME_CHARACTERS_MAX) or call.method,
        outcome(call),
        columns.latency(call.duration_ms / 1000),
        str(call.arguments_bytes),
        str(call.result_bytes),
        call.endpoint or columns.NONE,
    )


def foot(where: RecordingPlace, count: int, lost: int) -> str:
    parts = [told_of(lost)] if lost else []
    if not count:
        found = f"no recorded call fits in {where.folder}" if where.any else where.why_none
        parts.insert(0, f"{found}; 'metamcp ctl calls' shows what is under way")
    return "; ".join(parts)


def told_of(lost: int) -> str:
    """Return the sentence about calls that could not be recorded."""
    return f"{lost} more could not be written"


def outcome(call: FinishedCall) -> str:
    """Return how a call ended, with the name of the error code if the code is known."""
    known = {str(int(code)): code.name.lower() for code in Code}
    return f"{call.outcome} {known[call.outcome]}" if call.outcome in known else call.outcome


def _one(call: FinishedCall, *, as_json: bool) -> None:
    if as_json:
        click.echo(codec.dump(call))
        return
    click.echo(show.printable(f"{call.method} {call.name}"))
    known = {
        "id": call.id,
        "time": call.time,
        "server": f"{call.server}, generation {call.generation}",
        "endpoint": call.endpoint or columns.NONE,
        "protocol": call.protocol or columns.NONE,
        "front": f"{call.front}, as call {call.call}",
        "outcome": outcome(call),
        "took": columns.latency(call.duration_ms / 1000),
    }
    for key, value in known.items():
        click.echo(show.printable(f"  {key:<10}  {value}"))
    _body(call, call_records.ARGUMENTS, call.arguments, call.arguments_bytes)
    _body(call, call_records.RESULT, call.result, call.result_bytes)


def _body(call: FinishedCall, what: str, body: Raw | UnsetType, size: int) -> None:
    marks = [word for word, where in (("cut", call.cut), ("masked", call.masked)) if what in where]
    if body is UNSET and size:
        marks.append("not recorded")
    click.echo(f"\n{what} ({', '.join([f'{size} bytes', *marks])})")
    if body is not UNSET:
        for line in pretty(body):
            click.echo(f"  {show.printable(line)}")


def pretty(body: Raw) -> list[str]:
    """Return JSON as lines for people, with members in a fixed order. A text, or JSON that cannot
    be decoded (1e999), stays as it is."""
    try:
        found = codec.value(body)
    except codec.Malformed:
        return bytes(body).decode("utf-8", "replace").splitlines()
    if isinstance(found, str):
        return found.splitlines()
    return json.dumps(found, indent=2, ensure_ascii=False, sort_keys=True).splitlines()


def _when(call: FinishedCall) -> str:
    """Return the time of a call, with the date if the call was not today."""
    found = datetime.fromisoformat(call.time).astimezone()
    today = found.date() == datetime.now().astimezone().date()
    return found.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]
