"""The files of recorded calls: one open for each front, a bounded number of them all together.

Owns: which file is written to, its end, who may read it, removing the oldest. Never: what a line
says, when it is written, threads.

A front holds a lock on its file for as long as it lives. So the one that comes after it goes on
with the same file, and nobody removes a file that is still written to.
"""

import contextlib
import fcntl
import os
import stat

from metamcp_worker.ipc import call_records

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
