"""The true binary, as an operator has it: a folder, two ports, `metamcp serve`, `metamcp ctl`."""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from metamcp_supervisor import verbs
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import ControlClient, Failed
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec
from tests import programs
from tests.live import processes
from tests.waiting import WAIT_S, until

Completed = subprocess.CompletedProcess[str]
T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
ANSWER_S_MAX = 60.0
"""Seconds for the gateway to answer on its control socket, on a machine with other load."""
IDLE_S_MAX = 30.0
"""Seconds that a connection to the control socket is kept; the gateway closes it after 60."""
SERVER = (sys.executable, str(ROOT / "tests" / "fakes" / "stdio_server.py"))

_reserved: deque[socket.socket] = deque(maxlen=64)
"""Ports of this process. More than one test has; descriptors of their own, so there is an end."""


@atexit.register
def _let_go() -> None:
    while _reserved:
        _reserved.pop().close()


def fake(*flags: str) -> dict[str, Any]:
    """A configuration entry for the scripted server with these flags."""
    return {"command": [*SERVER, *flags]}


def free_port() -> int:
    """A port of this machine that nobody else gets: it stays bound, so the kernel gives it to no
    other test that runs meanwhile, nor twice to this one. Who asks for it by its number, as servers
    do with SO_REUSEADDR, can listen on it, for nobody listens here; until then it is refused."""
    if len(_reserved) == _reserved.maxlen:
        _reserved.popleft().close()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _reserved.append(sock)
    port: int = sock.getsockname()[1]
    return port


def toml(value: object) -> str:
    """A TOML value: JSON's form fits for strings, numbers, booleans and arrays."""
    if isinstance(value, Mapping):
        members = cast(Mapping[str, object], value).items()
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in members) + " }"
    return json.dumps(value)


class Gateway:
    """One running gateway; leaving the `with` block stops it and checks that nothing is left."""

    def __init__(
        self, servers: Mapping[str, Mapping[str, Any]], *, extra: str = "", wait: bool = True
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="metamcp-"))
        self.config = self.folder / "metamcp.toml"
        self.log = self.folder / "log"
        self.port, self.ops_port = free_port(), free_port()
        self.ops_listen = f"127.0.0.1:{self.ops_port}"
        self.mark = f"METAMCP_TEST_MARK={self.folder.name}"
        self.environ = {"METAMCP_TEST_GATEWAY": self.folder.name}
        self.extra = extra
        self.wrapper: tuple[str, ...] = ()
        """A command that becomes the gateway, and changes what it begins with."""
        self.write(servers)
        self.waits = wait
        self._connections: list[tuple[float, ControlClient]] = []
        """Connections to the control socket that nobody uses just now, each with the time when it
        was used last; a thread has its own."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def write(self, servers: Mapping[str, Mapping[str, Any]]) -> None:
        """The configuration anew; every server carries this gateway's mark in its environment."""
        lines: list[str] = []
        name, _, value = self.mark.partition("=")
        for server, entry in servers.items():
            whole = {**entry, "env": {name: value, **entry.get("env", {})}}
            lines.append(f"[servers.{server}]")
            lines += [f"{key} = {toml(item)}" for key, item in whole.items()]
        self.config.write_text("\n".join([*lines, self.extra, ""]))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
            if kind is None:
                until(lambda: not self.left(), "nothing of the gateway is left")
        finally:
            for pid in self.left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if kind is not None:
                sys.stderr.write(self.log.read_text()[-8000:])
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.wrapper,
                    *self.command("serve", "--config", self.config),
                    *("--state-dir", str(self.folder / "state")),
                    *("--listen", f"127.0.0.1:{self.port}"),
                    *("--ops-listen", self.ops_listen),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
                cwd=ROOT,
            )
        if self.waits:
            self.wait_ready()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.hang_up()
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(timeout=30)

    def hang_up(self) -> None:
        """Close the connections to the control socket: a fork has to have its own."""
        while self._connections:
            self._connections.pop()[1].close()

    def command(self, *arguments: str | Path) -> list[str]:
        verb, *rest = map(str, arguments)
        where = ["--runtime-dir", str(self.folder / "run")]
        if verb == "ctl":
            return [sys.executable, "-m", "metamcp_supervisor", "ctl", *where, *rest]
        return [sys.executable, "-m", "metamcp_supervisor", verb, *where, *rest]

    def run(self, *words: str | Path, ok: Sequence[int] = (0,)) -> Completed:
        """One `metamcp` for this gateway; its exit code must be one of `ok`, if there is any."""
        command = self.command(*words)
        done = programs.run(command)
        said = f"{words} -> {done.returncode}: {done.stderr}{done.stdout}"
        assert not ok or done.returncode in ok, said
        return done

    def ctl(self, *arguments: str, ok: Sequence[int] = (0,)) -> str:
        """Standard output of one `metamcp ctl`; its exit code must be one of `ok`."""
        return self.run("ctl", *arguments, ok=ok).stdout

    def ask(self, verb: str, params: object = None) -> Any:
        """The result of a verb of the control socket. Raises Failed."""
        return self._control(
            lambda control: codec.value(control.call(verb, params, timeout_s=ANSWER_S_MAX))
        )

    def status(self) -> dict[str, Any]:
        """The status as `metamcp ctl status --json` prints it."""
        status: dict[str, Any] = self.ask("status")
        return status

    def server(self, name: str) -> dict[str, Any]:
        return next(server for server in self.status()["servers"] if server["name"] == name)

    def describe(self, name: str) -> dict[str, Any]:
        """What `metamcp ctl describe NAME --json` prints."""
        description: dict[str, Any] = self.ask("describe", {"name": name})
        return description

    def logs(self, name: str) -> list[dict[str, Any]]:
        """The lines of a server that the gateway keeps, oldest first."""
        return self._items("logs", {"name": name})

    def events(self, **query: object) -> list[dict[str, Any]]:
        """The events of the journal, oldest first. `query`: parameters of the verb `events`."""
        return self._items("events", query)

    def journal(self) -> str:
        """The lines of `metamcp ctl events`, without their times."""
        events = (codec.decode_as(verbs.JournalEvent, codec.dump(event)) for event in self.events())
        return "\n".join(columns.event_text(event, "") for event in events)

    def wait(self, *names: str, state: str = "ready", timeout_s: float = WAIT_S) -> None:
        """Wait until these servers, or all that should run, are in this state. Raises Failed."""
        params = {"names": names, "for": state, "timeout_s": timeout_s}
        self._control(
            lambda control: control.call("wait", params, timeout_s=timeout_s + ANSWER_S_MAX),
            start_s=timeout_s,
        )

    def _items(self, verb: str, params: object) -> list[dict[str, Any]]:
        return self._control(
            lambda control: [
                codec.value(raw) for _, raw in control.stream(verb, params, timeout_s=ANSWER_S_MAX)
            ]
        )

    def _control(self, use: Callable[[ControlClient], T], start_s: float = 0.0) -> T:
        """Use a connection to the control socket, and keep it for the next verb. `start_s`: seconds
        to wait for a gateway that does not run yet."""
        while True:
            control = self._kept()
            fresh = control is None
            if control is None:
                control = client.connect_within(str(self.folder / "run"), start_s)
            try:
                result = use(control)
            except Failed as failure:
                control.close()
                if fresh or failure.exit != verbs.Exit.NOT_RUNNING:
                    raise
                continue  # the gateway that it led to has ended; perhaps another one runs
            except BaseException:
                control.close()
                raise
            self._connections.append((time.monotonic(), control))
            return result

    def _kept(self) -> ControlClient | None:
        """A connection that the gateway has not closed because nothing came on it."""
        while self._connections:
            used_at, control = self._connections.pop()
            if time.monotonic() - used_at < IDLE_S_MAX:
                return control
            control.close()
        return None

    def wait_ready(self) -> None:
        """Wait until all that should run is ready, and until the supervisor sleeps: a start leaves
        something to do for some milliseconds, such as closing files."""
        until(self.answers, f"the gateway answers; its log: {self.log.read_text()[-3000:]}")
        self.wait(timeout_s=60)
        run_ns = 0

        def sleeps() -> bool:
            nonlocal run_ns
            before, run_ns = run_ns, processes.run_ns(self.pid)
            return run_ns == before

        until(sleeps, "the supervisor sleeps after its start")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return (self.folder / "run" / "control.sock").exists() and self.ops("/livez")[0] == 200

    def ops(self, path: str) -> tuple[int, str]:
        """Status and body of one page of the ops port; 0 if nobody listens."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ops_port}{path}", timeout=10
            ) as got:
                return got.status, got.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def left(self) -> set[int]:
        """Processes of this gateway, wherever they are in the tree."""
        return processes.marked(self.folder.name)
