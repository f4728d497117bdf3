"""The files of recorded calls: one open for each front, a bounded number of them all together.

Owns: which file is written to, its end, who may read it, removing the oldest. Never: what a line
says, when it is written, threads.

A front holds a lock on its file for as long as it lives. So the one that comes after it goes on
with the same file, and nobody removes a file that is still written to.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import stat
import threading
import time
from typing import Self

from msgspec import Raw

from metamcp_worker.front.call_log import CallLog, Slice
from metamcp_worker.front.server_links import Call, CallAnswer
from metamcp_worker.ipc import call_records
from metamcp_worker.ipc.spec import RecordingSpec
from metamcp_worker.runtime import logs

_HOW = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""What is no file makes nobody wait; of a file O_NONBLOCK says nothing."""


class CallFiles:
    """`folder`: made when something is written. `file_bytes`: after so many another file is begun;
    `files`: so many stay. `front`: for the names."""

    def __init__(self, folder: str, *, file_bytes: int, files: int, front: int) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._files = files
        self._front = front
        self._fd = -1
        self._torn = False

    def write(self, data: bytes, now_ms: int) -> None:
        """Append whole lines. Raises OSError; then the end of the file may be half of a line,
        and what comes next begins on another one."""
        size = self._size()
        if self._fd < 0 or (size and size + len(data) > self._file_bytes):
            self._next(len(data), now_ms)
        if self._torn:
            os.write(self._fd, b"\n")
            self._torn = False
        self._torn = True
        while data:
            data = data[os.write(self._fd, data) :]
        self._torn = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _size(self) -> int:
        """Of the file; a file that somebody has removed is none any more."""
        if self._fd < 0:
            return 0
        state = os.fstat(self._fd)
        if not state.st_nlink:
            self.close()
            return 0
        return state.st_size

    def _next(self, room: int, now_ms: int) -> None:
        """Open a file with so much room: one that a front which is gone has left, or a new one."""
        self.close()
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        names = sorted(filter(call_records.is_file_name, os.listdir(self._folder)))
        for name in reversed(names):
            if self._take(name, room):
                break
        else:
            while (name := call_records.file_name(now_ms, self._front)) in names:
                now_ms += 1
            path = os.path.join(self._folder, name)
            self._fd = os.open(path, _HOW | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._torn = False
            names.append(name)
        left = len(names)
        for name in names:  # those of other fronts stay while these live
            if left > self._files and self._remove(name):
                left -= 1

    def _take(self, name: str, room: int) -> bool:
        """Go on with this file, unless it is full, in use, or none that we would have made."""
        path = os.path.join(self._folder, name)
        try:
            fd = os.open(path, _HOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = os.fstat(fd)
            size = state.st_size
            if _is_private(state) and size + room <= self._file_bytes:
                self._torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                self._fd = fd
                return True
        except OSError:
            pass
        os.close(fd)
        return False

    def _remove(self, name: str) -> bool:
        """Remove this file, unless it is in use."""
        path = os.path.join(self._folder, name)
        with contextlib.suppress(OSError):
            fd = os.open(path, _HOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                return True
            finally:
                os.close(fd)
        return False


def _is_private(state: os.stat_result) -> bool:
    """A file that nobody else can open, as those are that are made here."""
    private = not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(state.st_mode) and private and state.st_uid == os.geteuid()


BATCH_S = 0.2
"""How long a call that is over may wait to be written."""
SLICE_LINES_MAX = 16
"""Made in one turn of the loop; fewer where bodies are large (`recording.SLICE_BYTES_MAX`)."""
QUEUE_MAX = 512
"""Slices that wait for the disk: seconds of the busiest front."""
QUEUE_BYTES_MAX = 16 * 1024 * 1024
"""Of their lines."""
CLOSE_S_MAX = 1.0
"""For the last lines of a front that ends; then they are lost."""

WRITTEN, LOST = "written", "lost"
"""What became of the line of a call."""

log = logging.getLogger("metamcp.recording")


class Recorder:
    """`front`: its number. `adjust` before anything else."""

    def __init__(self, front: int) -> None:
        self._front = front
        self._loop = asyncio.get_running_loop()
        self._recording = CallLog(RecordingSpec(), front, logs.stamp)
        self._spec = RecordingSpec()
        self._due: asyncio.Handle | None = None
        self._queue: queue.Queue[Slice | CallFiles | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        # Counters with one writer each: the loop has those of what is given, the thread the rest.
        self._given_bytes = self._given = self._not_given = 0
        self._written_bytes = self._written = self._failed = 0

    def adjust(self, spec: RecordingSpec) -> Self | None:
        """As this configuration says. Nothing, if nothing is to be recorded."""
        if spec != self._spec:
            self._spec = spec
            self._recording.adjust(spec)
            if spec.servers:
                self._begin()
        return self if spec.servers else None

    def begun(self, call: Call, subject: str, arguments: Raw | None) -> None:
        self._recording.begun(call, subject, arguments)

    def finished(self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str) -> None:
        """The clock of the wall is for those who read it."""
        now_ms = time.time_ns() // 1_000_000
        if self._recording.finished(call, answer, seconds, outcome, now_ms) and self._due is None:
            self._due = self._loop.call_later(BATCH_S, self._batch)

    def counts(self) -> dict[str, int]:
        """Calls since the front began, by what became of their lines."""
        lost = self._recording.overrun + self._not_given + self._failed
        return {WRITTEN: self._written, LOST: lost}

    @property
    def idle(self) -> bool:
        """Is everything written, or lost?"""
        return self._due is None and self._queue.unfinished_tasks == 0

    @property
    def waits(self) -> bool:
        """Are there calls that are no lines yet?"""
        return self._due is not None

    @property
    def waiting_bytes(self) -> int:
        """Of lines that are not written yet."""
        return self._given_bytes - self._written_bytes

    async def close(self) -> None:
        """Write the rest, for as long as CLOSE_S_MAX."""
        if self._due is not None:
            self._due.cancel()
        while self._recording.waits:
            self._put()
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S_MAX)
            # Of a thread whose disk hangs nobody hears any more.
            self._not_given += self._given - self._written - self._failed

    def _batch(self) -> None:
        self._put()
        self._due = self._loop.call_soon(self._batch) if self._recording.waits else None

    def _put(self) -> None:
        found = self._recording.take(SLICE_LINES_MAX)
        try:
            if self.waiting_bytes > QUEUE_BYTES_MAX:
                raise queue.Full
            self._queue.put_nowait(found)
            self._given_bytes += len(found.data)
            self._given += found.calls
        except queue.Full:
            self._not_given += found.calls
            self._recording.lose(found.lost + found.calls)

    def _begin(self) -> None:
        spec = self._spec
        files = CallFiles(
            spec.folder, file_bytes=spec.file_bytes, files=spec.files, front=self._front
        )
        with contextlib.suppress(queue.Full):  # then it goes on with the old ones
            self._queue.put_nowait(files)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
            self._thread.start()

    # --- in the thread ------------------------------------------------------------------------

    def _write(self) -> None:
        files: CallFiles | None = None
        lost = 0
        while (found := self._queue.get()) is not None:
            if isinstance(found, CallFiles):
                if files is not None:
                    files.close()
                files = found
            elif files is not None:
                lost = self._write_down(files, found, lost)
                self._written_bytes += len(found.data)
            self._queue.task_done()
        if files is not None:
            files.close()

    def _write_down(self, files: CallFiles, found: Slice, lost: int) -> int:
        """Write this. `lost`: how many calls were until now; how many are now."""
        try:
            files.write(found.data, time.time_ns() // 1_000_000)
        except OSError as error:
            if not lost:
                what = "calls are not recorded: %s; they go on, and their lines are lost"
                log.error(what, error.strerror)
            self._failed += found.calls
            return lost + found.lost + found.calls
        self._written += found.calls
        if lost:
            log.warning("calls are recorded again; lost meanwhile: %d", lost)
            self._loop.call_soon_threadsafe(self._recording.lose, lost)
        return 0
