"""Recorded calls, as the fronts have left them in the state directory.

Owns: where they are, reading them in order, what comes while one looks, and why there are none.
Never: writing them
(the fronts do), tables (`call_records`), calling anything again (`replay`).

The files are read as they are, so that this works without a gateway.
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
"""Two bodies of the largest size, in which every character is an escape."""


class RecordedLine(Struct, frozen=True):
    """One line of a file: a call, or how many are missing there."""

    raw: bytes
    call: FinishedCall | None = None
    lost: int = 0


class RecordingPlace(Struct, frozen=True):
    """Where they are. `source`: the configuration that says so, empty if it is not known;
    `records`: does it say that any call is recorded?"""

    folder: Path
    source: str = ""
    records: bool = False

    @property
    def any(self) -> bool:
        """Was anything ever recorded there? Raises Failed."""
        return bool(files(self.folder))

    def check(self) -> None:
        """Raises Failed where nothing was, with what is the matter."""
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
    """For this state directory, or for that of the configuration that `metamcp up` would take.
    Raises Failed."""
    if state_dir is not None and path is None:  # whose it is nobody has said
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
    """All that is there, file by file. Raises Failed."""
    return Following(where).news()


def find(where: RecordingPlace, word: str) -> FinishedCall:
    """The call with this id. Raises Failed."""
    word = word.lower()
    where.check()
    for line in lines(where.folder):
        if line.call is not None and line.call.id == word:
            return line.call
    raise Failed(Exit.UNKNOWN_NAME, f"no recorded call has the id {word!r} in {where.folder}")


def files(where: Path) -> list[Path]:
    """The oldest first; none where nothing was recorded. Raises Failed."""
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"recorded calls cannot be read: {where}: {error.strerror}"
        raise Failed(Exit.DENIED, what) from None
    return [where / name for name in sorted(names) if call_records.is_file_name(name)]


class _Place(Struct):
    """How far a file was read."""

    offset: int = 0


class Following:
    """All that is there, and then what is added to it, each once."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._places: dict[str, _Place] = {}

    def news(self) -> Iterator[RecordedLine]:
        """What came since the last time; the first time everything. Raises Failed."""
        for path in files(self._where):
            yield from _new_lines(path, self._places.setdefault(path.name, _Place()))


def _new_lines(path: Path, place: _Place) -> Iterator[RecordedLine]:
    """Whole lines behind this place; half of one at the end is read when it is whole."""
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
    """None for what a front that was killed has left half written."""
    try:
        return RecordedLine(raw, call=codec.typed(FinishedCall, raw))
    except codec.Malformed:
        try:
            return RecordedLine(raw, lost=codec.typed(Gap, raw).lost)
        except codec.Malformed:
            return None


def ending(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, and end it with its exit code or with that of what failed."""
    from metamcp_supervisor.cli.show import printable

    try:
        code = work()
    except Failed as failed:
        for line in (str(failed), *failed.details):
            click.echo(f"metamcp: {printable(line)}", err=True)
        code = failed.exit
    except KeyboardInterrupt:
        code = 130  # as every shell says it: 128 and the number of SIGINT
    except BrokenPipeError:  # a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.OK
    raise SystemExit(code)
