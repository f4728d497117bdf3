"""A terminal with a screen: runs a program in a pty, and knows what a person sees."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyte

READ_BYTES = 65536
READ_S = 0.1
END_S = 30.0
WAIT_S = 60.0


class Terminal:
    """Program on a screen of `columns` times `lines`. Use it in a `with`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        columns: int = 100,
        lines: int = 30,
    ) -> None:
        self.screen: Any = pyte.Screen(columns, lines)
        self._stream: Any = pyte.ByteStream(self.screen)
        self.raw = b""
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={"TERM": "xterm-256color", "LANG": "C.UTF-8", **environ},
            stdin=far,
            stdout=far,
            stderr=far,
            start_new_session=True,
        )
        os.close(far)

    def text(self) -> str:
        """The screen as it is, without blanks at the ends."""
        lines: list[str] = [line.rstrip() for line in self.screen.display]
        return "\n".join(lines).rstrip()

    def press(self, keys: bytes) -> None:
        os.write(self._near, keys)

    def until(self, fact: Callable[[str], object] | str, within_s: float = WAIT_S) -> str:
        """The first screen for which the fact holds, or that has the text."""

        def holds(text: str) -> object:
            return fact in text if isinstance(fact, str) else fact(text)

        end = time.monotonic() + within_s
        while not holds(self.text()):
            if time.monotonic() > end or not self._read():
                raise AssertionError(
                    f"the screen is, and was not within {within_s} s:\n{self.text()}"
                )
        return self.text()

    def finish(self) -> int:
        """Read until the program has ended; its exit code."""
        while self._read():
            pass
        return self.process.wait(END_S)

    def _read(self) -> bool:
        """Take what has come, for READ_S at most. False: nothing comes any more."""
        ready, _, _ = select.select([self._near], [], [], READ_S)
        if not ready:
            return True
        try:
            data = os.read(self._near, READ_BYTES)
        except OSError:  # Linux says so when the last program has closed the terminal
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._near)
