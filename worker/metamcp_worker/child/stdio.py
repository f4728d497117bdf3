"""Transport to a server on its standard streams: lines in, lines out, its log, and its end.

Owns: the pipes to the server (`PipeReader`, `Writer`), the meaning of the end of a pipe, the stop
sequence, and the sweep of processes that a server leaves behind. Never: the meaning of a line, why
a server is stopped.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

from metamcp_worker.child.actions import CancelRequest, Fail, ServerRequest
from metamcp_worker.child.jsonrpc_lines import (
    LAST_LINE_CHARACTERS_MAX,
    LAST_LINES,
    LineCutter,
    LogCutter,
    reason,
)
from metamcp_worker.child.server_log import ServerLog
from metamcp_worker.child.transport import Exited, Host, ServerExit, TransportListener
from metamcp_worker.confinement import denials
from metamcp_worker.confinement.launch import ConfinedProcess, remove
from metamcp_worker.ipc.messages import LogLines
from metamcp_worker.ipc.spec import ServerSpec
from metamcp_worker.runtime import orphans

STRAY_BYTES_MAX = 200
"""Maximum bytes that are logged of a line on stdout that is not a message."""
LOG_BYTES_PER_TICK = 4 * 1024 * 1024
"""Bytes of stderr to read between two ticks; a server that writes more waits for the next tick."""
EXIT_S_MAX = 0.5
"""Seconds between the end of a server's stdout and its exit, which are usually one event."""
KILL_S_MAX = 2.0
"""Seconds between SIGKILL and the exit. A process that takes longer hangs in the kernel."""
SWEEP_PAUSE_S = 0.005
"""Seconds between two looks for orphans; most are gone at the first look."""


class StdioTransport:
    """Transport to a started server. `start`: gets the function to call at the exit, and returns
    the host; raises SpawnFailed."""

    def __init__(
        self, spec: ServerSpec, start: Callable[[Exited], Host], listener: TransportListener
    ) -> None:
        self._spec = spec
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._lost = False
        self._unread = 0
        self._paused = False
        self._name = spec.name
        self._last_lines = deque[str](maxlen=LAST_LINES)
        self._lines = LineCutter(spec.message_bytes)
        self._log_lines = LogCutter()
        self._log = ServerLog("stderr")
        self._strays = ServerLog("stdout")
        self._host = start(self._on_exit)
        self._stdin = Writer(self._host.stdin, self._on_stdin_end)
        self._stdout = PipeReader(self._host.stdout, self._on_stdout, self._on_stdout_end)
        self._stderr = PipeReader(self._host.stderr, self._on_stderr, self._on_stderr_end)
        for sentence in (
            self._host.confinement.granted.refused if self._host.confinement is not None else ()
        ):
            self.warn(sentence)

    @property
    def pid(self) -> int:
        return self._host.pid

    @property
    def confinement(self) -> ConfinedProcess | None:
        return self._host.confinement

    @property
    def is_lost(self) -> bool:
        """Whether the server is gone, or about to be ended."""
        return self._lost or self._stdin.is_closed or self._stdout.is_closed

    @property
    def exit(self) -> ServerExit | None:
        return self._host.exit

    @property
    def last_words(self) -> str:
        words = reason(self._last_lines)
        if not words:
            return ""
        confined = self._host.confinement
        readable, refused = (
            ((), ()) if confined is None else (confined.granted.read, confined.granted.refused)
        )
        advice_text = denials.advice(self._last_lines, self._spec.confinement, readable, refused)
        advice = f"; {advice_text}" if advice_text else ""
        return f"{words}{advice}; 'metamcp logs {self._name}' has all of it"

    def stuck(self) -> bool:
        """Whether the server does not read its input."""
        stdin = self._stdin
        too_much = stdin.queued_bytes > QUEUE_BYTES_MAX
        return too_much or (stdin.blocked and stdin.is_stalled(self._loop.time()))

    def request(self, request: ServerRequest) -> bool:
        """Send one request. Returns False if it is lost."""
        return self._stdin.write(request.line)

    def write(self, line: bytes, via: int = 0) -> bool:
        """Send one line. Returns False if it is lost."""
        return self._stdin.write(line)

    def drop(self, drop: CancelRequest) -> bool:
        """Tell the server that no caller waits. Returns False if the server will not learn of
        it."""
        return self._stdin.write(drop.line)

    def pause(self) -> None:
        """Take no more lines for now."""
        self._paused = True
        self._stdout.pause()

    def resume(self) -> None:
        self._paused = False
        self._read_on()

    def stray(self, line: bytes) -> None:
        """Log a line on stdout that was not a message."""
        text = line[:STRAY_BYTES_MAX].decode(errors="replace")
        self._strays.add(text, self._loop.time())

    def warn(self, text: str) -> None:
        """Log a sentence of the gateway's own."""
        self._log.add(f"metamcp: {text}", self._loop.time())

    def take_log_lines(self) -> list[LogLines]:
        """Return the lines that were logged since the last call."""
        return self._log.take() + self._strays.take()

    def tick(self) -> None:
        """Do periodic work; called a few times per second."""
        halted = self._host.halted
        self._host.tick()
        if self._host.halted != halted:
            self.warn("it goes on" if halted else "it was stopped by a signal, SIGSTOP or the like")
        self._unread = 0
        self._stderr.resume()
        self._read_on()

    async def stop(self) -> None:
        """End the server in steps, each with its time: end of input, SIGTERM, SIGKILL."""
        self._lost = True
        self._stdin.close()
        self._stdout.resume()
        if await self._left_within(self._spec.stop_eof_s):
            return
        self.warn(f"still there {self._spec.stop_eof_s:g} s after the end of its input: SIGTERM")
        self._listener.count("stop_SIGTERM")
        self._host.terminate()
        if await self._left_within(self._spec.stop_grace_s):
            return
        self.warn(f"still there {self._spec.stop_grace_s:g} s after SIGTERM: SIGKILL")
        self._listener.count("stop_SIGKILL")
        await self.kill()

    async def kill(self) -> None:
        """End the server at once."""
        self.abort()
        await self._left_within(KILL_S_MAX)

    def abort(self) -> None:
        """Send the signal that ends the server, and wait for nothing."""
        self._lost = True
        self._host.kill()

    async def close(self) -> None:
        """Kill and reap the processes that the server left behind, and close the pipes."""
        sweep = orphans.Sweep(self._host.list_left)
        end = self._loop.time() + orphans.SWEEP_S_MAX
        # No event reports the death of a process that is not known.
        while not sweep.step(()) and self._loop.time() < end:  # noqa: ASYNC110 - see above
            await asyncio.sleep(SWEEP_PAUSE_S)
        if sweep.killed and self._spec.confinement.profile != "strict":  # bubblewrap leaves its own
            self._listener.count("orphan", len(sweep.killed))
            self.warn(f"processes that it had left behind were killed: {len(sweep.killed)}")
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()
        if (confined := self._host.confinement) is not None:
            remove(confined.tmp)

    def _read_on(self) -> None:
        if not self._paused:
            self._stdout.resume()

    async def _left_within(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout(time_s):
                await self._exited.wait()
        except TimeoutError:
            return False
        return True

    # --- news -------------------------------------------------------------------------------

    def _on_exit(self, how: ServerExit) -> None:
        # The last answers may still be in the pipes.
        self._stdout.resume()
        self._stdout.drain()
        self._stderr.resume()
        self._stderr.drain()
        self._exited.set()
        self._lose(Fail(how.reason, how.message))

    def _on_stdout(self, data: bytes) -> None:
        if self._lost:
            return
        lines = self._lines.feed(data)
        if lines:
            self._listener.on_messages(lines)
        if self._lines.is_skipping:
            self._listener.on_skip(len(data))
        for line in self._lines.overlong():
            self._listener.overlong(line)

    def _on_stderr(self, data: bytes) -> None:
        now = self._loop.time()
        if self._log.full(now):
            self._log.drop(self._log_lines.skip(data))
        else:
            for line in self._log_lines.feed(data):
                self._last_lines.append(line[:LAST_LINE_CHARACTERS_MAX])
                self._log.add(line, now)
        self._listener.on_log()
        self._unread += len(data)
        if self._unread > LOG_BYTES_PER_TICK:
            self._stderr.pause()

    def _on_stderr_end(self) -> None:
        for line in self._log_lines.rest():
            self._last_lines.append(line[:LAST_LINE_CHARACTERS_MAX])
            self._log.add(line, self._loop.time())

    def _on_stdout_end(self) -> None:
        self._await_exit("it closed its output but did not exit")

    def _on_stdin_end(self) -> None:
        self._await_exit("it closed its input but did not exit")

    def _await_exit(self, otherwise: str) -> None:
        """Wait a moment for the exit of the process whose pipe ended; the exit says more."""
        if not self._lost:
            self._loop.call_later(EXIT_S_MAX, self._lose, Fail("protocol", otherwise))

    def _lose(self, failure: Fail) -> None:
        if not self._lost:
            self._lost = True
            self._listener.on_server_lost(failure)


READ_BYTES: Final = 64 * 1024
"""Bytes of one read, as many as a pipe holds; with longer reads a noisy server would keep the
loop."""
WRITES_PER_TURN: Final = 16
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes that wait for a server which does not read: two of the largest messages."""
WRITE_S_MAX = 5.0
"""Seconds without reading after which a server gets no more calls until it reads again."""
DRAIN_BYTES_MAX = 1024 * 1024
"""Maximum bytes to read of a pipe after the end of the process; a pipe holds no more."""


class PipeReader:
    """The gateway's end of a server's stdout or stderr."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._paused = False
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    @property
    def is_closed(self) -> bool:
        return self._fd < 0

    def pause(self) -> None:
        """Stop reading, so that the server blocks once its pipe is full."""
        if not self.is_closed and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if not self.is_closed and self._paused:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def drain(self) -> None:
        """Read the bytes that are there now."""
        read = 0
        while not self.is_closed and read < DRAIN_BYTES_MAX:
            got = self._readable()
            if not got:
                return
            read += got

    def close(self) -> None:
        if not self.is_closed:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> int:
        """Read once, and return the number of bytes."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
            self._on_end()
        return len(data)


class Writer:
    """The gateway's end of a server's stdin. All lines of one turn of the loop leave in one
    write. `queued_bytes`: bytes that the server has not taken yet. `blocked`: whether the server
    did not take all of the last write."""

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        self._fd = fd
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.queued_bytes = 0
        self.blocked = False
        self._waiting: list[bytes] = []
        self._current = memoryview(b"")
        self._scheduled = False
        self._moved_at = 0.0
        os.set_blocking(fd, False)

    @property
    def is_closed(self) -> bool:
        return self._fd < 0

    def is_stalled(self, now: float) -> bool:
        """Whether bytes wait, and the server has taken none for WRITE_S_MAX."""
        return self.blocked and now - self._moved_at > WRITE_S_MAX

    def write(self, line: bytes) -> bool:
        """Queue one line. Returns False if it is lost, because the pipe is closed or the queue is
        full."""
        if self._fd < 0 or self.queued_bytes > QUEUE_BYTES_MAX:
            return False
        self._waiting.append(line)
        self.queued_bytes += len(line)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def close(self) -> None:
        """End the input of the server, and drop the bytes that the server does not take at once."""
        if not self.is_closed:
            self._flush()
        self._shut()

    def _flush(self) -> None:
        """Write until the pipe is full, or others should have their turn."""
        if self.is_closed:
            return
        self._scheduled = False
        moved = not self.blocked
        for _ in range(WRITES_PER_TURN):
            if not self._current:
                self._current = memoryview(b"".join(self._waiting))
                self._waiting.clear()
            if not self._current:
                self._unblock()
                return
            try:
                wrote = os.write(self._fd, self._current)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._shut()
                self._on_end()
                return
            moved = True
            self._current = self._current[wrote:]
            self.queued_bytes -= wrote
        if moved:
            self._moved_at = self._loop.time()
        if not self.blocked:
            self.blocked = True
            self._loop.add_writer(self._fd, self._flush)
        self._scheduled = True

    def _unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            self._loop.remove_writer(self._fd)

    def _shut(self) -> None:
        if not self.is_closed:
            self._unblock()
            os.close(self._fd)
            self._fd = -1
        self._waiting.clear()
        self.queued_bytes = 0
        self._current = memoryview(b"")
