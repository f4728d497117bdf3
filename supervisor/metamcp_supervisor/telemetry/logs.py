"""Log lines of the servers: the last megabyte of each server in memory, and less of it in files,
for the programs after this one; and how much of them the log of the gateway may have.

Owns: the rings, the numbering of lines, how followers get lines; the files of lines and of events,
their limits, and what follows if the disk refuses them. Never: reading a stderr or limiting its
rate (the worker does both), printing.

The files are in the folder `journal` of the state directory. Each write is one system call, without
`fsync`: what was written outlasts a killed process, and the end of the machine by luck.
"""

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from metamcp_supervisor.telemetry.journal import Feed, Follower
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.process_names import MARK, base

T = TypeVar("T")
FOLDER = "journal"
"""Folder in the state directory for events and lines."""

RING_BYTES_MAX = 1024 * 1024
"""Maximum bytes in memory per server: all that `ctl logs` can show of this program's past."""
LINE_BYTES_EXTRA = 200
"""Bytes that a line counts beside its text, so that empty lines do not fill the memory."""
LINE_CHARS_MAX = 16 * 1024
"""Maximum characters of a line; longer lines are cut, because a message on the control socket must
have room for a line many times over."""
BLOCK_LINES = 64
"""Number of lines that are packed into one block: single objects would take four times the memory,
and lines that come and go all day would fragment it."""
LAST_LINES = 10
"""Number of last lines in the description of a server; `logs` shows all kept lines."""

EVENT_FILES_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of the files with events; 20,000 usual ones take 4 MiB."""
SERVER_FILES_BYTES_MAX = 512 * 1024
"""Maximum bytes of the files with the lines of one server: thousands of lines."""
LOG_FILES_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the files with the lines of all servers together; beyond that the server with
most loses its older ones, so a server that writes much costs others nothing."""
USUAL_BYTES = 1024
"""Bytes that a line of a file seldom has: the last lines are looked for in so many for each."""
LINES_MAX = 1_000_000
"""Number of lines that no file has."""
_ENDING = ".jsonl"

_read = codec.reader(list[tuple[int, float, str, str]])
_encode_lines = msgspec.json.Encoder().encode_lines
_read_event = codec.reader(JournalEvent)
_read_line = codec.reader(LogLine)


class LineFile(Generic[T]):
    """The last items of one kind, as lines of JSON: newer ones in PATH.jsonl, older ones in
    PATH.1.jsonl, with `bytes_max` bytes together. `read_item`: reads an item from a line, and
    raises codec.Malformed. `on_trouble`: gets a sentence if the disk refuses something."""

    def __init__(
        self,
        path: str,
        bytes_max: int,
        read_item: Callable[[bytes], T],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._newer, self._older = path + _ENDING, f"{path}.1{_ENDING}"
        self._bytes_max = bytes_max // 2
        self._read_item = read_item
        self._on_trouble = on_trouble

    def read(self, count: int = LINES_MAX) -> Iterator[T]:
        """Return the last `count` items, oldest first. Lines that are torn or something else are
        left out."""
        lines = self._lines(self._newer, count)
        if len(lines) < count:
            lines = self._lines(self._older, count) + lines
        for line in lines[-count:]:
            try:
                item = self._read_item(line)
            except codec.Malformed:
                continue
            yield item

    def append(self, items: Iterable[T], *, rotate: bool = False) -> int:
        """Add items. Return by how many bytes the files grew. `rotate`: begin the next file. Items
        with half of a surrogate pair, as in the name of a file that is not text, are left out."""
        try:
            return self._write(_encode_lines(items), rotate=rotate)
        except UnicodeEncodeError:
            return 0
        except OSError as error:
            self._report(self._newer, error)
            return 0

    def shrink(self) -> int:
        """Remove the older file, or the newer one if it is alone. Return the bytes that remain."""
        with contextlib.suppress(OSError):
            if os.path.lexists(self._older):
                os.unlink(self._older)
                return _size(self._newer)
            os.unlink(self._newer)
        return 0

    def _lines(self, path: str, count: int) -> list[bytes]:
        """Return the last lines of a file, `count` or more, unless it has fewer."""
        try:
            fd = _open(path, os.O_RDONLY)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._report(path, error)
            return []
        try:
            size, lines = os.fstat(fd).st_size, list[bytes]()
            for length in (min(count * USUAL_BYTES, self._bytes_max), self._bytes_max):
                if len(lines) < count:
                    data = os.pread(fd, length, max(0, size - length))
                    lines = [line for line in data.split(b"\n") if line]
            return lines
        finally:
            os.close(fd)

    def _write(self, data: bytes, *, rotate: bool) -> int:
        size, dropped = _size(self._newer), 0
        if size and (rotate or size + len(data) > self._bytes_max):
            dropped = _size(self._older)
            os.replace(self._newer, self._older)
        fd = _open(self._newer, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # after a line that was cut
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
        return len(data) - dropped

    def _report(self, path: str, error: OSError) -> None:
        self._on_trouble(
            f"{path}: {error.strerror}; events and lines of servers that cannot be kept do not"
            " outlast this gateway"
        )


def event_file(state_dir: Path, on_trouble: Callable[[str], None]) -> LineFile[JournalEvent]:
    path = os.path.join(state_dir, FOLDER, "events")
    return LineFile(path, EVENT_FILES_BYTES_MAX, _read_event, on_trouble)


class LogFiles:
    """The files with the last lines of each server."""

    def __init__(self, state_dir: Path, on_trouble: Callable[[str], None]) -> None:
        self._folder = os.path.join(state_dir, FOLDER, "servers")
        self._on_trouble = on_trouble
        self._sizes: dict[str, int] = {}
        """Bytes by server."""

    def begin(self, servers: Collection[str]) -> int:
        """Remove the lines of all other servers. Return the number of the newest line."""
        with contextlib.suppress(OSError):  # the first line that is written reports it
            for name in os.listdir(self._folder):
                path, server = os.path.join(self._folder, name), name.partition(".")[0]
                if server in servers:
                    self._sizes[server] = self._sizes.get(server, 0) + _size(path)
                elif name.endswith(_ENDING):
                    os.unlink(path)
        files = map(self.of, self._sizes)
        return max((line.seq for file in files for line in file.read(LAST_LINES)), default=0)

    def of(self, server: str) -> LineFile[LogLine]:
        path = os.path.join(self._folder, server)
        return LineFile(path, SERVER_FILES_BYTES_MAX, _read_line, self._on_trouble)

    def append(self, server: str, lines: Sequence[LogLine]) -> None:
        """Keep lines of a server; not those of a process for one client, which does not come
        back."""
        if MARK in server or not lines:
            return
        self._sizes[server] = self._sizes.get(server, 0) + self.of(server).append(lines)
        if sum(self._sizes.values()) > LOG_FILES_BYTES_MAX:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._sizes[largest] = self.of(largest).shrink()

    def forget(self, server: str) -> None:
        if self._sizes.pop(server, None) is not None and self.of(server).shrink():
            self.of(server).shrink()


def _open(path: str, flags: int) -> int:
    """Open a regular file, and never wait for anybody. Raises OSError."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(0, "it is not a regular file")


def _size(path: str) -> int:
    """Return the bytes of a file; 0 if it does not exist. Raises OSError."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class _Ring:
    """The lines of one server, limited by the memory that they take."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._oldest: deque[LogLine] = deque()
        self._blocks: deque[bytes] = deque()
        self._latest: list[LogLine] = []
        self._cost = 0
        self.last = 0
        """Number of the newest line."""

    def add(self, line: LogLine) -> None:
        self.last = line.seq
        self._latest.append(line)
        self._cost += _cost(line)
        if len(self._latest) >= BLOCK_LINES:
            self._blocks.append(_block(self._latest))
            self._latest = []
        while self._cost > RING_BYTES_MAX:
            if not self._oldest:
                self._oldest.extend(self._next())
            self._cost -= _cost(self._oldest.popleft())

    def newest(self) -> Iterator[LogLine]:
        """Iterate over all lines, newest first."""
        yield from reversed(self._latest)
        for block in reversed(self._blocks):
            yield from reversed(self._lines(block))
        yield from reversed(self._oldest)

    def _next(self) -> list[LogLine]:
        """Remove and return the oldest block of lines, or the unpacked lines without a block."""
        if self._blocks:
            return self._lines(self._blocks.popleft())
        latest, self._latest = self._latest, []
        return latest

    def _lines(self, block: bytes) -> list[LogLine]:
        return [
            LogLine(seq=seq, time=time, server=self._server, stream=stream, text=text)
            for seq, time, stream, text in _read(block)
        ]


class ServerLogs:
    """Lines of all servers. `now`: returns seconds since the epoch. `sink`: gets every line at
    once, for printing; may be set later and must not raise. `files`: keep lines over restarts."""

    def __init__(
        self,
        now: Callable[[], float],
        sink: Callable[[LogLine], None] | None = None,
        files: LogFiles | None = None,
    ) -> None:
        self._now = now
        self._files = files
        self._rings: dict[str, _Ring] = {}
        self._feeds: dict[str, Feed[LogLine]] = {}
        self._last = 0
        self.sink = sink

    def add(self, server: str, stream: str, lines: Sequence[str], dropped: int = 0) -> None:
        """Keep lines of a server. `dropped`: number of lines before them that its worker
        dropped."""
        texts = [f"[{dropped} lines suppressed: too many per second]"] if dropped else []
        added = [self._keep(server, stream, text) for text in (*texts, *lines)]
        if self._files is not None:
            self._files.append(server, added)

    def tail(self, server: str, n: int, *, earlier: bool = False) -> list[LogLine]:
        """Return the last `n` lines of a server, oldest first. `earlier`: also those of the program
        before this one, if they are not in memory."""
        ring = self._rings.get(server)
        lines = [*islice(ring.newest(), max(0, n))][::-1] if ring is not None else []
        if earlier and len(lines) < n:
            lines = [*self._earlier(server, lines, n), *lines][-n:]
        return lines

    def past(self, server: str, seconds: float | None = None) -> list[LogLine]:
        """Return all lines of a server, or those of the last `seconds`; oldest first."""
        ring = self._rings.get(server)
        oldest = float("-inf") if seconds is None else self._now() - seconds
        lines = [*ring.newest()][::-1] if ring is not None else []
        lines = [*self._earlier(server, lines, LINES_MAX), *lines]
        return [line for line in lines if line.time >= oldest]

    def _earlier(self, server: str, lines: Sequence[LogLine], n: int) -> Iterator[LogLine]:
        """Return the last `n` lines that the files have from before these lines, or more."""
        if self._files is None:
            return iter(())
        first = lines[0].seq if lines else self._last + 1
        stored = self._files.of(server).read(len(lines) + n)
        return takewhile(lambda line: line.seq < first, stored)

    def follow(self, server: str, wake: Callable[[], None]) -> Follower[LogLine]:
        return self._feeds.setdefault(server, Feed()).follow(wake)

    def unfollow(self, server: str, follower: Follower[LogLine]) -> None:
        self._feeds.setdefault(server, Feed()).unfollow(follower)

    def newest(self, cost_max: int) -> list[LogLine]:
        """Return the newest lines of each server that fit into its equal share of `cost_max` bytes;
        oldest first."""
        lines: list[LogLine] = []
        share = cost_max // max(1, len(self._rings))
        for ring in self._rings.values():
            room = share
            for line in ring.newest():
                room -= _cost(line)
                if room < 0:
                    break
                lines.append(line)
        return sorted(lines, key=lambda line: line.seq)

    def lasts(self) -> dict[str, int]:
        """Return the number of the newest line, by server."""
        return {name: ring.last for name, ring in self._rings.items()}

    @property
    def last(self) -> int:
        """The number of the newest line, 0 before the first."""
        return self._last

    def begin(self, servers: Collection[str], lines: Sequence[LogLine] = (), last: int = 0) -> None:
        """Continue after the lines in the files, and after those that the program before this one
        handed over, with the number of its newest one."""
        stored = self._files.begin(servers) if self._files is not None else 0
        self._last = max(last, stored)
        for line in lines:
            self._ring(line.server).add(line)
            if self._files is not None and line.seq > stored:
                self._files.append(line.server, [line])

    def forget(self, server: str) -> None:
        """Remove the lines of a server that was removed from the configuration. Followers stay,
        because the server may come back."""
        self._rings.pop(server, None)
        if self._files is not None:
            self._files.forget(server)

    def _ring(self, server: str) -> _Ring:
        ring = self._rings.get(server)
        if ring is None:
            ring = self._rings[server] = _Ring(server)
        return ring

    def _keep(self, server: str, stream: str, text: str) -> LogLine:
        if len(text) > LINE_CHARS_MAX:
            text = text[:LINE_CHARS_MAX] + f"… [{len(text) - LINE_CHARS_MAX} more characters]"
        self._last += 1
        line = LogLine(seq=self._last, time=self._now(), server=server, stream=stream, text=text)
        self._ring(server).add(line)
        if server in self._feeds:
            self._feeds[server].push(line)
        if self.sink is not None:
            self.sink(line)
        return line


def _block(lines: Sequence[LogLine]) -> bytes:
    return codec.dump([(line.seq, line.time, line.stream, line.text) for line in lines])


def _cost(line: LogLine) -> int:
    # Four bytes for a character that is not ASCII is what the interpreter may need at most.
    return LINE_BYTES_EXTRA + len(line.text) * (1 if line.text.isascii() else 4)


MINUTE_S = 60.0


class _Minute(Struct):
    """Use of the log by a server. `ends`: by the monotonic clock; `written`, `left_out`: bytes."""

    ends: float
    written: int = 0
    lines: int = 0
    left_out: int = 0


class ServerBudgets:
    """Bytes of the log that each server has used in its minute. A server's processes for single
    clients share its budget."""

    def __init__(self, minute_s: float = MINUTE_S) -> None:
        self.minute_s = minute_s
        self._minutes: dict[str, _Minute] = {}

    def admit(self, server: str, size: int, bytes_max: int, now: float) -> bool:
        """Whether to write a line of so many bytes; if not, it is counted."""
        name = base(server)
        minute = self._minutes.get(name)
        if minute is None or (now >= minute.ends and not minute.lines):
            minute = self._minutes[name] = _Minute(now + self.minute_s)
        if minute.written < bytes_max and not minute.lines:
            minute.written += size
            return True
        minute.lines += 1
        minute.left_out += size
        return False

    @property
    def has_left_out(self) -> bool:
        """Whether lines were left out that `take_over` has not returned."""
        return any(minute.lines for minute in self._minutes.values())

    def take_over(self, now: float) -> list[tuple[str, str]]:
        """Forget the minutes that are over. Return the servers of which lines were left out, each
        with a sentence."""
        over = [name for name, minute in self._minutes.items() if now >= minute.ends]
        ended = [(name, self._minutes.pop(name)) for name in over]
        return [(name, self._describe(name, minute)) for name, minute in ended if minute.lines]

    def _describe(self, server: str, minute: _Minute) -> str:
        return (
            f"… {minute.lines:,} more lines ({minute.left_out:,} bytes) in the last"
            f" {self.minute_s:g} s are left out here; 'metamcp ctl logs {server}' has the newest"
        )
