"""Files of recorded calls, and the thread of a front that writes them.

Owns: which file is written to, its permissions, removing the oldest files (`CallFiles`); when
records are written, the queue to the thread and its limits, the count of lost records (`Recorder`).
Never: which calls are recorded and what a line has in it (`call_log`).

A front has one open file and holds a lock on it as long as it lives. So no front removes a file
that is written to, and a later front can go on with the file of a front that is gone.
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
from collections.abc import Mapping
from typing import Self

from msgspec import Raw

from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_records.call_log import CallLog, Slice
from metamcp_worker.ipc import records
from metamcp_worker.ipc.spec import RecordingSpec
from metamcp_worker.runtime import logs

_HOW = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening. With O_NONBLOCK, opening does not wait if the path is not a regular file; for
a regular file the flag changes nothing."""


class CallFiles:
    """Files that one front writes to. `folder`: created when something is written. `file_bytes`:
    maximum bytes of a file; `files`: number of files that are kept. `front`: number of the front,
    for the names."""

    def __init__(self, folder: str, *, file_bytes: int, files: int, front: int) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._files = files
        self._front = front
        self._fd = -1
        self._torn = False

    def write(self, data: bytes, now_ms: int) -> None:
        """Append whole lines. Raises OSError; then the file may end with half of a line, and the
        next write begins on a new line."""
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
        """Return the bytes of the open file; 0 without a file. A file that was removed is
        closed."""
        if self._fd < 0:
            return 0
        state = os.fstat(self._fd)
        if not state.st_nlink:
            self.close()
            return 0
        return state.st_size

    def _next(self, room: int, now_ms: int) -> None:
        """Open a file with room for this many bytes: the file of a front that is gone, or a new
        file. Remove the oldest files that are too many."""
        self.close()
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        names = sorted(filter(records.is_file_name, os.listdir(self._folder)))
        for name in reversed(names):
            if self._take(name, room):
                break
        else:
            while (name := records.file_name(now_ms, self._front)) in names:
                now_ms += 1
            path = os.path.join(self._folder, name)
            self._fd = os.open(path, _HOW | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._torn = False
            names.append(name)
        remaining = len(names)
        for name in names:  # the files of other fronts stay while these fronts live
            if remaining > self._files and self._remove(name):
                remaining -= 1

    def _take(self, name: str, room: int) -> bool:
        """Go on with this file, unless it is full, in use, or not private. Returns whether it was
        taken."""
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
        """Remove this file, unless it is in use. Returns whether it was removed."""
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
    """Whether this is a regular file that only this user can open, as are all files made here."""
    private = not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(state.st_mode) and private and state.st_uid == os.geteuid()


BATCH_S = 0.2
"""Seconds that a finished call waits for other calls before it is given to the thread."""
SLICE_LINES_MAX = 16
"""Maximum number of lines that are built in one turn of the loop; large bodies make it fewer
(`call_log.SLICE_BYTES_MAX`)."""
QUEUE_MAX = 512
"""Maximum number of slices that wait for the disk: some seconds of the busiest front."""
QUEUE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of lines that wait for the disk."""
CLOSE_S_MAX = 1.0
"""Seconds for writing the last lines of a front that ends; then they are lost."""

WRITTEN, LOST = "written", "lost"
"""Keys of `Recorder.counts`: the line of a call was written, or lost."""

log = logging.getLogger("metamcp.recording")


class Recorder:
    """Records the calls of one front. `front`: its number. Call `adjust` before anything else."""

    def __init__(self, front: int) -> None:
        self._front = front
        self._loop = asyncio.get_running_loop()
        self._recording = CallLog(RecordingSpec(), front, logs.stamp)
        self._spec = RecordingSpec()
        self._due: asyncio.Handle | None = None
        self._queue: queue.Queue[Slice | CallFiles | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        # Each counter has one writer: the loop for the first three, the thread for the others.
        self._given_bytes = self._given = self._not_given = 0
        self._written_bytes = self._written = self._failed = 0

    def adjust(self, spec: RecordingSpec) -> Self | None:
        """Apply this configuration. Returns None if there is nothing to record."""
        if spec != self._spec:
            self._spec = spec
            self._recording.adjust(spec)
            if spec.servers:
                self._begin()
        return self if spec.servers else None

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw], run: str
    ) -> None:
        self._recording.on_call_start(call, subject, params.get("arguments"))

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
        """Record a finished call, with wall-clock time because people read the records."""
        now_ms = time.time_ns() // 1_000_000
        if (
            self._recording.on_call_end(call, answer, seconds, outcome, now_ms)
            and self._due is None
        ):
            self._due = self._loop.call_later(BATCH_S, self._batch)

    def counts(self) -> dict[str, int]:
        """Return the number of calls since the front began whose lines were written, or lost."""
        lost = self._recording.overrun + self._not_given + self._failed
        return {WRITTEN: self._written, LOST: lost}

    @property
    def idle(self) -> bool:
        """Whether every record has been written or lost."""
        return self._due is None and self._queue.unfinished_tasks == 0

    @property
    def waits(self) -> bool:
        """Whether there are calls whose lines are not built yet."""
        return self._due is not None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of lines that are not written yet."""
        return self._given_bytes - self._written_bytes

    async def close(self) -> None:
        """Write the rest, for at most CLOSE_S_MAX seconds."""
        if self._due is not None:
            self._due.cancel()
        while self._recording.waits:
            self._put()
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S_MAX)
            # A thread whose disk hangs does not report any more.
            self._not_given += self._given - self._written - self._failed

    def _batch(self) -> None:
        self._put()
        self._due = self._loop.call_soon(self._batch) if self._recording.waits else None

    def _put(self) -> None:
        batch = self._recording.take(SLICE_LINES_MAX)
        try:
            if self.waiting_bytes > QUEUE_BYTES_MAX:
                raise queue.Full
            self._queue.put_nowait(batch)
            self._given_bytes += len(batch.data)
            self._given += batch.calls
        except queue.Full:
            self._not_given += batch.calls
            self._recording.lose(batch.lost + batch.calls)

    def _begin(self) -> None:
        spec = self._spec
        files = CallFiles(
            spec.folder, file_bytes=spec.file_bytes, files=spec.files, front=self._front
        )
        with contextlib.suppress(queue.Full):  # then the thread goes on with the old files
            self._queue.put_nowait(files)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
            self._thread.start()

    # --- in the thread ------------------------------------------------------------------------

    def _write(self) -> None:
        files: CallFiles | None = None
        lost = 0
        while (queued := self._queue.get()) is not None:
            if isinstance(queued, CallFiles):
                if files is not None:
                    files.close()
                files = queued
            elif files is not None:
                lost = self._write_down(files, queued, lost)
                self._written_bytes += len(queued.data)
            self._queue.task_done()
        if files is not None:
            files.close()

    def _write_down(self, files: CallFiles, batch: Slice, lost: int) -> int:
        """Write a slice. `lost`: number of calls lost since the last good write; returns the new
        number."""
        try:
            files.write(batch.data, time.time_ns() // 1_000_000)
        except OSError as error:
            if not lost:
                message = "calls are not recorded: %s; they go on, and their lines are lost"
                log.error(message, error.strerror)
            self._failed += batch.calls
            return lost + batch.lost + batch.calls
        self._written += batch.calls
        if lost:
            log.warning("calls are recorded again; lost meanwhile: %d", lost)
            self._loop.call_soon_threadsafe(self._recording.lose, lost)
        return 0
