"""`metamcp calls`: recorded calls that are over, from the files that the fronts write to the state
directory, as a table, as lines, or a single call.

Owns: finding the files, reading them in order, following new calls, why there are none, the end of
verbs that read such files, the options, which calls fit, the table and the page of one
call. Never: writing the files (the fronts), calls under way (`metamcp ctl calls`), making a call
again (`replay`).

The files are read directly, so this works without a gateway.
"""

import contextlib
import heapq
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import click
from msgspec import UNSET, Raw, Struct, UnsetType

from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.cli.errors import Command, gateway_options
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec, records
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.records import FOLDER, FinishedCall, Gap, is_file_name

LINE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of a line: two bodies of the largest size, in which every character is escaped."""


class RecordedLine(Struct, frozen=True):
    """Line of a file: a call, or the number of calls that are missing there (`lost`)."""

    raw: bytes
    call: FinishedCall | None = None
    lost: int = 0


class RecordingPlace(Struct, frozen=True):
    """Folder of recorded calls. `source`: configuration that names it, empty if that is not known;
    `records`: whether that configuration says that calls are recorded."""

    folder: Path
    source: str = ""
    records: bool = False

    @property
    def any(self) -> bool:
        """Whether calls were ever recorded there. Raises Failed."""
        return bool(files(self.folder))

    def check(self) -> None:
        """Raise Failed, with the reason, if calls were never recorded there."""
        if not self.any:
            raise Failed(Exit.UNKNOWN_NAME, self.why_none)

    @property
    def why_none(self) -> str:
        state = self.folder.parent
        if not state.is_dir():
            finding = f"there are no recorded calls: {state} does not exist"
            return f"{finding}; name the state directory of the gateway with --state-dir"
        finding = f"there are no recorded calls in {self.folder}"
        if self.records:
            on = f"{finding}: recording is on in {self.source}"
            return f"{on}; no call has ended since a gateway read it"
        reason = (
            f"recording is off in {self.source}" if self.source else "is it the right directory?"
        )
        return f'{finding}: {reason}; calls = "metadata" in [recording] turns it on'


def place(state_dir: str | None, path: Path | None) -> RecordingPlace:
    """Return the place for this state directory, or for that of the configuration that `metamcp up`
    would take. Raises Failed."""
    if state_dir is not None and path is None:  # its configuration is not known
        return RecordingPlace(Path(state_dir) / FOLDER)
    from metamcp_supervisor.config import sources
    from metamcp_supervisor.config.config import ConfigInvalid

    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        problems = tuple(map(str, invalid.problems))
        message = "where recorded calls are is not known; name the directory with --state-dir"
        raise Failed(Exit.CONFIG, message, problems) from None
    modes = [config.recording.calls, *(each.recording for each in config.servers.values())]
    return RecordingPlace(
        (config.gateway.state_dir if state_dir is None else Path(state_dir)) / FOLDER,
        ", ".join(map(str, config.files)) or "the configuration",
        any(each not in {None, "off"} for each in modes),
    )


def lines(folder: Path) -> Iterator[RecordedLine]:
    """Yield all lines that are there, file by file. Raises Failed."""
    return RecordingFollower(folder).news()


def find(location: RecordingPlace, word: str) -> FinishedCall:
    """Return the call with this id. Raises Failed."""
    word = word.lower()
    location.check()
    for line in RecordingFollower(location.folder).news(word):
        if line.call is not None and line.call.id == word:
            return line.call
    raise Failed(Exit.UNKNOWN_NAME, f"no recorded call has the id {word!r} in {location.folder}")


def files(folder: Path) -> list[Path]:
    """Return the files, the oldest first; an empty list if calls were never recorded. Raises
    Failed."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"recorded calls cannot be read: {folder}: {error.strerror}"
        raise Failed(Exit.DENIED, message) from None
    return [folder / name for name in sorted(names) if is_file_name(name)]


class _Place(Struct):
    """Position in a file. `offset`: bytes that were read."""

    offset: int = 0


class RecordingFollower:
    """Reader of all lines that are there and then of added lines, each once. `tail_bytes`: of a
    file that is longer at the first look, only so many bytes at its end are read."""

    def __init__(self, folder: Path, tail_bytes: int | None = None) -> None:
        self._where = folder
        self._tail_bytes = tail_bytes
        self._places: dict[str, _Place] = {}

    def news(self, word: str = "") -> Iterator[RecordedLine]:
        """Yield the lines since the last time; the first time, all lines. `word`: only lines with
        this text. Raises Failed."""
        for path in files(self._where):
            if path.name not in self._places:
                self._places[path.name] = self._begin(path)
            yield from _new_lines(path, self._places[path.name], word.encode())

    def _begin(self, path: Path) -> _Place:
        """Return where to begin in a file."""
        if self._tail_bytes is None:
            return _Place()
        with contextlib.suppress(OSError):
            return _Place(max(0, path.stat().st_size - self._tail_bytes))
        return _Place()


def _new_lines(path: Path, position: _Place, word: bytes = b"") -> Iterator[RecordedLine]:
    """Yield the whole lines after this place; a partial line at the end waits until it is whole."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "it is not a regular file")
            file.seek(position.offset)
            while (raw := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
                position.offset += len(raw)
                if word in raw and (line := _read(raw)):
                    yield line
    except FileNotFoundError:
        return  # it was the oldest one, and a front removed it just now
    except OSError as error:
        message = f"recorded calls cannot be read: {path}: {error.strerror}"
        raise Failed(Exit.DENIED, message) from None


def _read(raw: bytes) -> RecordedLine | None:
    """Return the line; None if a front that was killed has left it half written."""
    try:
        return RecordedLine(raw, call=codec.decode_as(FinishedCall, raw))
    except codec.Malformed:
        try:
            return RecordedLine(raw, lost=codec.decode_as(Gap, raw).lost)
        except codec.Malformed:
            return None


def run_and_exit(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, and end with its exit code. Raises Failed."""
    try:
        code = work()
    except BrokenPipeError:  # the user has left the pager
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.OK
    raise SystemExit(code)


LINES = 50
"""Number of past calls to show if the user does not say."""
FOLLOW_S = 0.3
"""Seconds between two checks of the files; fronts write five times a second."""
NAME_CHARACTERS_MAX = 48
COLUMNS = ("TIME", "ID", "SERVER", "NAME", "OUTCOME", "TOOK", "IN", "OUT", "ENDPOINT")


@click.command(cls=Command)
@click.argument("word", metavar="[ID]", required=False)
@click.option("--server", metavar="NAME", help="Only calls of this server.")
@click.option("--tool", metavar="NAME", help="Only of this tool, prompt or resource.")
@click.option("--key", metavar="ID", help="Only calls with this API key.")
@click.option("--errors", is_flag=True, help="Only those that failed.")
@click.option(
    "--since",
    "since_s",
    type=Duration(past=True),
    metavar="DURATION",
    help="Not older than this: 10m, 2d.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=LINES,
    show_default=True,
    help="The last so many.",
)
@click.option("-f", "--follow", is_flag=True, help="And every one that comes, until interrupted.")
@json_option
@gateway_options("path", "state_dir")
def calls(
    word: str | None,
    server: str | None,
    tool: str | None,
    key: str | None,
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
            and (tool is None or is_named(tool, call.server, call.name, call.name))
            and (key is None or call.key == key)
            and (not errors or call.has_failed)
            and (since is None or datetime.fromisoformat(call.time) >= since)
        )

    def work() -> int:
        location = place(state_dir, path)
        if word is not None:
            _one(find(location, word), as_json=as_json)
        else:
            _many(location, fits, limit, as_json=as_json, follow=follow)
        return Exit.OK

    run_and_exit(work)


def _many(
    location: RecordingPlace,
    fits: Callable[[FinishedCall], bool],
    limit: int,
    *,
    as_json: bool,
    follow: bool,
) -> None:
    """Show all calls that fit. Raises Failed."""
    if not (follow and location.folder.parent.is_dir()):  # else calls may be recorded soon
        location.check()
    following = RecordingFollower(location.folder)
    lost = 0

    def iter_matching_calls() -> Iterator[tuple[str, bytes, FinishedCall]]:
        nonlocal lost
        for line in following.news():
            lost += line.lost
            if line.call is not None and fits(line.call):
                yield line.call.id, line.raw, line.call

    newest = heapq.nlargest(limit, iter_matching_calls(), key=lambda entry: entry[0])[::-1]
    if as_json:
        for _, raw, _ in newest:
            click.echo(raw, nl=False)
        if notes := told_of(lost) if lost else "" if location.any else location.why_none:
            click.echo(f"metamcp: {notes}", err=True)
    else:
        rows = [row(call) for _, _, call in newest]
        picture = show.PrintedTable(
            COLUMNS if rows else ("",), rows, foot=foot(location, len(rows), lost),
            right=frozenset({"TOOK", "IN", "OUT"}), sentences=False,
            spared=("IN", "OUT", "ENDPOINT", "TOOK"),
        )  # fmt: skip
        show.picture(picture)
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
        _format_time(call),
        call.id,
        call.server,
        columns.cut(call.name, NAME_CHARACTERS_MAX) or call.method,
        outcome(call),
        columns.latency(call.duration_ms / 1000),
        str(call.arguments_bytes),
        str(call.result_bytes),
        call.endpoint or columns.NONE,
    )


def foot(location: RecordingPlace, count: int, lost: int) -> str:
    parts = [told_of(lost)] if lost else []
    if not count:
        reason = (
            f"no recorded call fits in {location.folder}" if location.any else location.why_none
        )
        parts.insert(0, f"{reason}; 'metamcp ctl calls' shows what is under way")
    return "; ".join(parts)


def told_of(lost: int) -> str:
    """Return the sentence about calls that could not be recorded."""
    return f"{lost} more could not be written"


def outcome(call: FinishedCall) -> str:
    """Return how a call ended, with the name of the error code if the code is known."""
    code_names = {str(int(code)): code.name.lower() for code in Code}
    return (
        f"{call.outcome} {code_names[call.outcome]}" if call.outcome in code_names else call.outcome
    )


def _one(call: FinishedCall, *, as_json: bool) -> None:
    if as_json:
        click.echo(codec.dump(call))
        return
    click.echo(show.printable(f"{call.method} {call.name}"))
    facts = {
        "id": call.id,
        "time": call.time,
        "server": f"{call.server}, {describe_generation(call)}",
        "endpoint": call.endpoint or columns.NONE,
        "key": call.key or columns.NONE,
        "client": call.client or columns.NONE,
        "protocol": call.protocol or columns.NONE,
        "front": f"{call.front}, as call {call.call}",
        "outcome": outcome(call),
        "took": columns.latency(call.duration_ms / 1000),
    }
    for key, value in facts.items():
        click.echo(show.printable(f"  {key:<10}  {value}"))
    _body(call, records.ARGUMENTS, call.arguments, call.arguments_bytes)
    _body(call, records.RESULT, call.result, call.result_bytes)


def describe_generation(call: FinishedCall) -> str:
    """Return which start of its server had a call."""
    return f"generation {call.generation}" if call.generation else "which did not get the call"


def _body(call: FinishedCall, name: str, body: Raw | UnsetType, size: int) -> None:
    marks = [
        word for word, affected in (("cut", call.cut), ("masked", call.masked)) if name in affected
    ]
    if body is UNSET and size:
        marks.append("not recorded")
    click.echo(f"\n{name} ({', '.join([f'{size} bytes', *marks])})")
    if body is not UNSET:
        for line in pretty(body):
            click.echo(f"  {show.printable(line)}")


def pretty(body: Raw) -> list[str]:
    """Return JSON as lines for people, with members in a fixed order. A text, or JSON that cannot
    be decoded (1e999), stays as it is."""
    try:
        value = codec.value(body)
    except codec.Malformed:
        return bytes(body).decode("utf-8", "replace").splitlines()
    if isinstance(value, str):
        return value.splitlines()
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True).splitlines()


def _format_time(call: FinishedCall) -> str:
    """Return the time of a call, with the date if the call was not today."""
    local_time = datetime.fromisoformat(call.time).astimezone()
    today = local_time.date() == datetime.now().astimezone().date()
    return local_time.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]
