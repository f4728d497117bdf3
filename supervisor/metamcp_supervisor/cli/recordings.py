"""Recorded calls, in the files that the fronts write to the state directory.

Owns: finding the files, reading them in order, following new calls, why there are none, and the end
of verbs that read such files (`ending`). Never: writing the files (the fronts), tables
(`recorded_calls`), making a call again (`replay`).

The files are read directly, so this works without a gateway.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import click
from msgspec import Struct

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import call_records, codec
from metamcp_worker.ipc.call_records import FinishedCall, Gap

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
            what = f"there are no recorded calls: {state} does not exist"
            return f"{what}; name the state directory of the gateway with --state-dir"
        what = f"there are no recorded calls in {self.folder}"
        if self.records:
            on = f"{what}: recording is on in {self.source}"
            return f"{on}; no call has ended since a gateway read it"
        why = f"recording is off in {self.source}" if self.source else "is it the right directory?"
        return f'{what}: {why}; calls = "metadata" in [recording] turns it on'


def place(state_dir: str | None, path: Path | None) -> RecordingPlace:
    """Return the place for this state directory, or for that of the configuration that `metamcp up`
    would take. Raises Failed."""
    if state_dir is not None and path is None:  # its configuration is not known
        return RecordingPlace(Path(state_dir) / call_records.FOLDER)
    from metamcp_supervisor.config import sources
    from metamcp_supervisor.config.config import ConfigInvalid

    try:
        found = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        problems = tuple(map(str, invalid.problems))
        what = "where recorded calls are is not known; name the directory with --state-dir"
        raise Failed(Exit.CONFIG, what, problems) from None
    wanted = [found.recording.calls, *(each.recording for each in found.servers.values())]
    return RecordingPlace(
        (found.gateway.state_dir if state_dir is None else Path(state_dir)) / call_records.FOLDER,
        ", ".join(map(str, found.files)) or "the configuration",
        any(each not in {None, "off"} for each in wanted),
    )


def lines(where: Path) -> Iterator[RecordedLine]:
    """Yield all lines that are there, file by file. Raises Failed."""
    return Following(where).news()


def find(where: RecordingPlace, word: str) -> FinishedCall:
    """Return the call with this id. Raises Failed."""
    word = word.lower()
    where.check()
    for line in lines(where.folder):
        if line.call is not None and line.call.id == word:
            return line.call
    raise Failed(Exit.UNKNOWN_NAME, f"no recorded call has the id {word!r} in {where.folder}")


def files(where: Path) -> list[Path]:
    """Return the files, the oldest first; an empty list if calls were never recorded. Raises
    Failed."""
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"recorded calls cannot be read: {where}: {error.strerror}"
        raise Failed(Exit.DENIED, what) from None
    return [where / name for name in sorted(names) if call_records.is_file_name(name)]


class _Place(Struct):
    """Position in a file. `offset`: bytes that were read."""

    offset: int = 0


class Following:
    """Reader of all lines that are there and then of added lines, each once."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._places: dict[str, _Place] = {}

    def news(self) -> Iterator[RecordedLine]:
        """Yield the lines since the last time; the first time, all lines. Raises Failed."""
        for path in files(self._where):
            yield from _new_lines(path, self._places.setdefault(path.name, _Place()))


def _new_lines(path: Path, place: _Place) -> Iterator[RecordedLine]:
    """Yield the whole lines after this place; a partial line at the end waits until it is whole."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "it is not a regular file")
            file.seek(place.offset)
            while (raw := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
                place.offset += len(raw)
                if line := _read(raw):
                    yield line
    except FileNotFoundError:
        return  # it was the oldest one, and a front removed it just now
    except OSError as error:
        what = f"recorded calls cannot be read: {path}: {error.strerror}"
        raise Failed(Exit.DENIED, what) from None


def _read(raw: bytes) -> RecordedLine | None:
    """Return the line; None if a front that was killed has left it half written."""
    try:
        return RecordedLine(raw, call=codec.typed(FinishedCall, raw))
    except codec.Malformed:
        try:
            return RecordedLine(raw, lost=codec.typed(Gap, raw).lost)
        except codec.Malformed:
            return None


def ending(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, and end with its exit code or with that of its failure."""
    from metamcp_supervisor.cli.show import printable

    try:
        code = work()
    except Failed as failed:
        for line in (str(failed), *failed.details):
            click.echo(f"metamcp: {printable(line)}", err=True)
        code = failed.exit
    except KeyboardInterrupt:
        code = 130  # as in every shell: 128 plus the number of SIGINT
    except BrokenPipeError:  # the user has left the pager
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.OK
    raise SystemExit(code)
