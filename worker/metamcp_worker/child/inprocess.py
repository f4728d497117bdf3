"""Server object of the `mcp` SDK, hosted in a thread of this worker.

Owns: finding the object that `package.module:object` names, its thread and event loop, the pipes
that stand in for the standard streams. Never: messages, isolation beyond that of the worker.

The worker's own loop stays responsive in the main thread while a tool calculates or an import takes
its time. Real pipes connect both threads, so all limits for a process hold here in the same way.

Prints of the module, on either stream, go to the server's log. Prints never wait: text that the log
does not take at once is lost, because a print that waits while it holds a lock of the logging
module could stop the very loop that would read it.
"""

import asyncio
import contextlib
import faulthandler
import fcntl
import importlib
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

from metamcp_worker.child.transport import Exited, ServerExit, SpawnFailed, prepare
from metamcp_worker.confinement.launch import ConfinedProcess
from metamcp_worker.ipc.packets import blob, close_all
from metamcp_worker.ipc.spec import ServerSpec
from metamcp_worker.runtime import orphans

_THREAD_NAME = "metamcp-server"


def host(spec: ServerSpec, on_exit: Exited) -> "ThreadHost":
    """Start hosting `spec.module`. Raises SpawnFailed; errors of the import come as the exit."""
    prepare()
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
    except OSError as error:
        close_all(ends)
        raise SpawnFailed(f"cannot start {spec.name}: {error.strerror}") from None
    return ThreadHost(spec, ends, on_exit)


class ThreadHost:
    """`Host` of a server in a thread."""

    def __init__(self, spec: ServerSpec, ends: list[int], on_exit: Exited) -> None:
        self.pid = 0
        self.confinement: ConfinedProcess | None = None
        self.halted = False
        input_end, self.stdin, self.stdout, output_end, self.stderr, log_end = ends
        self._spec = spec
        self._input, self._output = input_end, output_end
        self._on_exit = on_exit
        self._exit: ServerExit | None = None
        self._loop = asyncio.get_running_loop()
        self._cancel: Callable[[], object] | None = None
        _print_to(log_end)
        # A daemon: a tool that never returns must not keep the worker from exiting.
        threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True).start()

    @property
    def exit(self) -> ServerExit | None:
        return self._exit

    def terminate(self) -> None:
        """Cancel the server's run."""
        if self._cancel is not None and self._exit is None:
            with contextlib.suppress(RuntimeError):  # Its loop has just ended.
                self._cancel()

    def kill(self) -> None:
        """Cancel the server's run, because a thread cannot be killed; the exit of the worker ends
        it."""
        self.terminate()

    def tick(self) -> None:
        """Do nothing: the module waits for its own processes."""

    def list_left(self) -> set[int]:
        return orphans.children()

    # --- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        exit = self._run_server()  # noqa: A001 - the same word as in Host
        with contextlib.suppress(RuntimeError):  # The worker's loop has ended already.
            self._loop.call_soon_threadsafe(self._report_exit, exit)

    def _run_server(self) -> ServerExit:
        try:
            server = _find(self._spec)
        # Whatever the code of a user raises at import ends here.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a task root
            reason = str(error) if isinstance(error, _NotMcpServer) else _describe_error(error)
            return ServerExit("spawn", f"{self._spec.module} cannot be hosted: {reason}")
        try:
            with (
                open(self._input, encoding="utf-8", errors="replace") as lines_in,
                open(self._output, "w", encoding="utf-8") as lines_out,
            ):
                asyncio.run(self._serve(server, lines_in, lines_out))
        except asyncio.CancelledError:
            return ServerExit("clean", "it was asked to end")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a task root
            return ServerExit("exit", f"its run ended with {_describe_error(error)}")
        return ServerExit("clean", "its run ended")

    async def _serve(self, server: Any, lines_in: TextIO, lines_out: TextIO) -> None:
        import anyio
        from mcp.server.stdio import stdio_server

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        files = anyio.wrap_file(lines_in), anyio.wrap_file(lines_out)
        async with stdio_server(*files) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    def _report_exit(self, exit: ServerExit) -> None:  # noqa: A002 - the same word as in Host
        self._exit = exit
        self._on_exit(exit)


def stacks() -> list[str]:
    """Return the current stacks of all threads of this process, line by line; empty without room
    for a file."""
    with contextlib.suppress(OSError), open(blob(b""), "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace").splitlines()
    return []


class _NotMcpServer(Exception):
    """Object that is not an MCP server; the text says what it is."""


class _Prints(io.RawIOBase):
    """Stream of bytes that never waits: bytes that the pipe does not take are lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            os.write(self._fd, data)
        return len(data)


def _print_to(log_end: int) -> None:
    """Make `log_end` the standard output of this process, and the standard error of its Python
    code. Descriptor 2 stays the gateway's, where a crash of this process is reported."""
    os.set_blocking(log_end, False)
    os.dup2(log_end, 1)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # More room, so that less is lost; it may be refused.
            fcntl.fcntl(log_end, fcntl.F_SETPIPE_SZ, 256 * 1024)
    prints = io.TextIOWrapper(
        io.BufferedWriter(_Prints(log_end)), encoding="utf-8", errors="backslashreplace",
        line_buffering=True,
    )  # fmt: skip
    sys.stdout = sys.stderr = prints


def _find(spec: ServerSpec) -> Any:
    """Return the low-level server of the SDK that `spec.module` names, as it is or created by a
    factory. Raises _Unfit, and whatever the code of the user raises."""
    os.environ.clear()
    os.environ.update(spec.env)
    # The interpreter runs already; what it would have read at its start is read here.
    sys.path[:0] = filter(None, spec.env.get("PYTHONPATH", "").split(os.pathsep))
    if spec.cwd is not None:
        os.chdir(spec.cwd)
        sys.path.insert(0, spec.cwd)
    module, _, name = (spec.module or "").partition(":")
    if not module or not name:
        raise _NotMcpServer("it is not of the form package.module:object")
    candidate: Any = importlib.import_module(module)
    for attribute in name.split("."):
        candidate = getattr(candidate, attribute)
    if callable(candidate) and not _low_level(candidate):
        candidate = candidate()
    server = _low_level(candidate)
    if server is None:
        raise _NotMcpServer(
            f"it is a {type(candidate).__name__}, not an MCPServer or Server of the mcp SDK"
        )
    return server


def _low_level(candidate: object) -> Any:
    from mcp.server import Server

    # MCPServer keeps its low-level server under this name; the SDK's own in-memory client takes it
    # from there too.
    inner: object = getattr(candidate, "_lowlevel_server", candidate)
    return cast(Any, inner) if isinstance(inner, Server) else None


def _describe_error(error: object) -> str:
    return f"{type(error).__name__}: {error}"[:500]
