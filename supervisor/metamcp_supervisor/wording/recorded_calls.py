"""Recorded calls that are over, from the files that the fronts write to the state directory.

Owns: finding the files, reading them in order, following new calls, why there are none, the words
for how a call ended, the request that repeats a call. Never: writing the files (the fronts), calls
under way (`metamcp ctl calls`), tables and pages (`cli.recordings`, `console.calls_page`).

The files are read directly, so this works without a gateway.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET, Raw, Struct

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.records import ARGUMENTS, FOLDER, FinishedCall, Gap, is_file_name
from metamcp_worker.runtime.masking import MASK

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


def outcome(call: FinishedCall) -> str:
    """Return how a call ended, with the name of the error code if the code is known."""
    code_names = {str(int(code)): code.name.lower() for code in Code}
    return (
        f"{call.outcome} {code_names[call.outcome]}" if call.outcome in code_names else call.outcome
    )


def describe_generation(call: FinishedCall) -> str:
    """Return which start of its server had a call."""
    return f"generation {call.generation}" if call.generation else "which did not get the call"


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


def params(call: FinishedCall) -> dict[str, object]:
    """Return the parameters of the request. Raises Failed for a call whose arguments are not fully
    known."""
    reason = ""
    if call.arguments is UNSET and call.arguments_bytes:
        reason = 'its arguments were not recorded; [recording] calls = "full" records them'
    elif ARGUMENTS in call.masked or MASK in call.name:
        reason = "a secret was taken out of its arguments"
    elif ARGUMENTS in call.cut:
        reason = "its arguments were cut; a larger 'body_max' in [recording] keeps them"
    if reason:
        raise Failed(Exit.FAILED, f"{call.id} cannot be replayed: {reason}")
    if call.method == "resources/read":
        return {"uri": call.name}
    arguments = Raw(b"{}") if call.arguments is UNSET else call.arguments
    return {"name": call.name, "arguments": arguments}
