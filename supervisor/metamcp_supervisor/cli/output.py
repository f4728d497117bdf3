"""Output of the gateway: the log of a service, and the terminal of `metamcp up`.

Owns: the shape of lines, and the thread that writes them; the first screen, events as they come,
and the question about a reload that has to be confirmed. Never: the choice of the lines, what has
to be confirmed (`config.confirmation`).

The reader may stop reading (`^S` on a terminal, a pager) or be gone, and a disk may be full: the
gateway then goes on, and lines are lost.
"""

import asyncio
import contextlib
import math
import os
import queue
import shlex
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from metamcp_supervisor import signals
from metamcp_supervisor.cli import show
from metamcp_supervisor.config.config import UNIX, ConfigInvalid, Log
from metamcp_supervisor.control.services import NotNow, ReloadRefused
from metamcp_supervisor.telemetry.journal import NEXT
from metamcp_supervisor.telemetry.logs import MINUTE_S, ServerBudgets
from metamcp_supervisor.verbs import GatewayStatus, JournalEvent, LogLine
from metamcp_supervisor.views import tool_costs
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import LogRecord
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs

if TYPE_CHECKING:
    from metamcp_supervisor.gateway.gateway import Gateway

LINES_MAX = 10_000
"""Maximum lines that wait to be written: seconds of the worst flood, a few megabytes."""
CLOSE_S_MAX = 2.0
"""Seconds to wait at the end for the last lines; after that they are lost."""
FLUSH_S_MAX = 0.5
"""Seconds to wait for lines before another program takes over; the gateway does nothing else during
this time."""


class LogOutput:
    """Writer of lines to descriptor `fd`, until `close`. `lost`: number of lines lost since the
    owner set it to 0."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[bytes | threading.Event | None] = queue.Queue(LINES_MAX)
        self.lost = 0
        self._cut = False
        self._thread = threading.Thread(target=self._write, name="lines", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self.lost += 1

    def flush(self) -> None:
        """Wait until all lines so far are written, or FLUSH_S_MAX seconds are over."""
        written = threading.Event()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(written)
            written.wait(FLUSH_S_MAX)

    def close(self) -> None:
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S_MAX)
            except queue.Full:
                return
            self._thread.join(CLOSE_S_MAX)

    def _write(self) -> None:
        signals.hold()
        while (data := self._queue.get()) is not None:
            if isinstance(data, threading.Event):
                data.set()
                continue
            try:
                self._write_whole(data)
            except OSError:
                self.lost += 1

    def _write_whole(self, data: bytes) -> None:
        """Write everything, on a new line if the line before was cut. Raises OSError."""
        data = b"\n" * self._cut + data
        while data:
            data = data[os.write(self._fd, data) :]
            self._cut = bool(data)


RECORD_BYTES = 200
"""Bytes that a line of a server has in the log beside its text, such as its time."""
LOOKS = 60
"""Number of looks in a minute whether one is over of which lines were left out."""
EVENTS, SERVER = "events", "server"
"""Rooms of lines that do not come from a logger."""
_ERRORS = frozenset({"error", "bug"})
_WARNINGS = ("→quarantined", "→error", "left out", "refused", "kill", "unroutable")
"""Parts of the name of an event that make it a warning."""


class ServiceLines:
    """Writer of events, lines of servers and records of loggers of this process to descriptor `fd`,
    until `close`, or to the journal of systemd. `server_max`: returns the bytes a minute for the
    lines of one server; `is_server`: whether an event is about a server."""

    def __init__(self, fd: int, spec: LogSpec, minute_s: float = MINUTE_S) -> None:
        self.is_server: Callable[[str], bool] = lambda who: False
        self._outlet = LogOutput(fd)
        self._own = logs.begin(spec, self._put)
        self.budgets = ServerBudgets(minute_s)
        self._timer: asyncio.TimerHandle | None = None
        self.server_max: Callable[[], int] = lambda: Log().server_max

    def event(self, event: JournalEvent) -> None:
        message = ": ".join(filter(None, [f"{event.who} {event.what}", event.cause]))
        level, generation = level_of(event.what), event.generation
        when = logs.stamp(event.time)
        if self._own.text:
            record = LogRecord(
                time=when, level=level, room=EVENTS, message=message, generation=generation
            )
            members = {"who": event.who, "event": event.what, "cause": event.cause}
            if self.is_server(event.who):
                members["server"] = event.who
            self._own.say(record, members)
            return
        line: dict[str, object] = {
            "time": when, "level": level, "room": EVENTS, "message": message, "who": event.who,
            "what": event.what,
        }  # fmt: skip
        if event.cause:
            line["cause"] = event.cause
        if generation:
            line["generation"] = generation
        self._put(codec.dump(line) + b"\n")

    def log_line(self, line: LogLine) -> None:
        when = logs.stamp(line.time)
        if self._own.text:
            mark = "" if line.stream == "stderr" else f"[{line.stream}] "
            message = f"{mark}{line.text}"
            record = LogRecord(
                time=when, level="info", room=SERVER, message=message, server=line.server
            )
            if self._admits(line.server, len(message.encode()) + RECORD_BYTES):
                self._own.say(record, {"stream": line.stream})
            return
        members = {
            "time": when, "level": "info", "room": SERVER, "message": line.text,
            "server": line.server, "stream": line.stream,
        }  # fmt: skip
        data = codec.dump(members) + b"\n"
        if self._admits(line.server, len(data)):
            self._put(data)

    def _admits(self, server: str, size_bytes: int) -> bool:
        """Whether a line of a server is within its bytes of this minute; it is counted."""
        if self.budgets.admit(server, size_bytes, self.server_max(), time.monotonic()):
            return True
        if self._timer is None:
            self._look_later()
        return False

    def _look_later(self) -> None:
        look_s = self.budgets.minute_s / LOOKS
        self._timer = asyncio.get_running_loop().call_later(look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._say_left_out(time.monotonic())
        if self.budgets.has_left_out:
            self._look_later()

    def _say_left_out(self, now: float) -> None:
        """Write how much was left out in the minutes that are over."""
        for server, sentence in self.budgets.take_over(now):
            record = LogRecord(
                time=logs.stamp(time.time()), level="warning", room=SERVER, message=sentence,
                server=server,
            )  # fmt: skip
            self._own.say(record)

    def flush(self) -> None:
        self._say_left_out(math.inf)
        self._outlet.flush()

    def close(self) -> None:
        self._say_left_out(math.inf)
        self._own.close()
        self._outlet.close()

    def _put(self, data: bytes) -> None:
        if lost := self._outlet.lost:
            self._outlet.lost = 0
            note = LogRecord(
                time=logs.stamp(time.time()), level="warning", room="log",
                message=f"{lost} lines lost",
            )  # fmt: skip
            self._outlet.put(self._own.render_record(note))
        self._outlet.put(data)


def level_of(description: str) -> str:
    if description in _ERRORS:
        return "error"
    return "warning" if any(word in description for word in _WARNINGS) else "info"


SETTLE_S_MAX = 15.0
"""Seconds that the first screen waits for servers that are still starting."""
#: Phases in which the first start of a server is decided.
_DECIDED = frozenset({"ready", "backoff", "failed", "disabled", "quarantined"})
_DOWN = frozenset({"error", "quarantined", "stopped"})


class EventLines:
    """Writer of events, a line each. On a terminal words stay whole, and an event that a server
    repeats is shown only the first, second, fourth, eighth time and so on, with the number."""

    def __init__(self, out: Callable[[str], None], *, terminal: bool) -> None:
        self.out = out
        self._terminal = terminal
        self._last: dict[str, tuple[str, int]] = {}

    def tell(self, event: JournalEvent) -> None:
        # Only how long it will take differs from one time to the next.
        same = f"{event.what} {event.cause.partition(NEXT)[0]}"
        last_text, before = self._last.get(event.who, ("", 0))
        times = before + 1 if last_text == same else 1
        self._last[event.who] = (same, times)
        if self._terminal and times & (times - 1):
            return
        clock = time.strftime("%H:%M:%S", time.localtime(event.time))
        if self._terminal and times > 1:
            event = structs.replace(event, what=f"{event.what} (\N{MULTIPLICATION SIGN}{times})")
        line = show.printable(columns.event_text(event, clock))
        self.out(show.wrap_line(line, " " * len(f"{clock}  ")) + "\n")


class FirstScreen:
    """First screen, shown once: when every server is ready or failed, at the latest after
    SETTLE_S_MAX."""

    def __init__(self, gateway: "Gateway", out: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._out = out
        self._timer = asyncio.get_running_loop().call_later(SETTLE_S_MAX, self._show)
        self._shown = False

    def look(self) -> None:
        if self._shown:
            return
        status = self._gateway.status()
        decided = all(server.phase in _DECIDED for server in status.servers)
        if status.state == "draining":
            self._timer.cancel()
            self._shown = True
        elif status.state == "active" and decided:
            self._show()

    def _show(self) -> None:
        self._timer.cancel()
        if not self._shown:
            self._shown = True
            self._out(first_screen(self._gateway.status()))


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
"""Frames of the sign that the start goes on."""
FRAME_S = 0.25
ERASE = "\r\x1b[K"
"""Begin the line of the terminal again."""


class StartLine:
    """Last line of a terminal, which shows how the start goes on: from the second second on, until
    the start of each server is decided. `put` writes other text above it.

    rich is not used: the process stays, and would keep it."""

    def __init__(self, gateway: "Gateway", out: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._out = out
        self._begun = time.monotonic()
        self._is_drawn = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(show.SHOWN_AFTER_S, self._draw)

    def put(self, text: str) -> None:
        self._erase()
        self._out(text)

    def _draw(self) -> None:
        status = self._gateway.status()
        waited = [server.name for server in status.servers if server.phase not in _DECIDED]
        if not waited or status.state == "draining":
            self._erase()
            return
        seconds = time.monotonic() - self._begun
        lines = {name: self._gateway.logs.tail(name, 1) for name in waited[: show.NAMES_MAX]}
        last_lines = {name: line[0].text.strip() for name, line in lines.items() if line}
        frame = FRAMES[int(seconds / FRAME_S) % len(FRAMES)]
        text = f"{frame} {start_text(status, last_lines, round(seconds))}"
        try:
            width = os.get_terminal_size(1).columns
        except OSError:
            return  # the terminal is gone
        self._out(ERASE + columns.cut(text, width - 1))
        self._is_drawn = True
        self._timer = self._loop.call_later(FRAME_S, self._draw)

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._out(ERASE)


def start_text(status: GatewayStatus, last_lines: Mapping[str, str], seconds: int) -> str:
    """Return how the start goes on. `last_lines`: the newest line of stderr of servers that start:
    npx and uvx say there what they download."""
    waited = [server for server in status.servers if server.phase not in _DECIDED]
    decided = len(status.servers) - len(waited)
    names = [
        f"{server.name} ({show.printable(last_lines[server.name])})" if server.name in last_lines
        else server.name
        for server in waited[: show.NAMES_MAX]
    ]  # fmt: skip
    if len(waited) > show.NAMES_MAX:
        names.append(f"{len(waited) - show.NAMES_MAX} more")
    return f"{decided} of {len(status.servers)} started, {seconds} s; waits for {', '.join(names)}"


def first_screen(status: GatewayStatus) -> str:
    """Return the first screen: servers, where to connect, and what to paste."""
    rows = [
        (
            server.name,
            server.state,
            str(server.tools) if server.tools else "-",
            str(server.token_cost) if server.token_cost else "-",
            f"{server.start_s:.2f}s" if server.start_s else "-",
            f"{server.reason}: {server.message}" if server.state in _DOWN and server.reason else "",
        )
        for server in status.servers
    ]
    tokens = sum(server.token_cost for server in status.servers)
    tools = sum(server.tools for server in status.servers)
    picture = show.PrintedTable(
        columns=("SERVER", "STATE", "TOOLS", "TOKENS", "START", ""),
        rows=rows,
        foot=f"{tools} tools, about {tokens} tokens of definitions{_less(tokens)}",
        right=frozenset({"TOOLS", "TOKENS", "START"}),
        spared=("TOKENS", "START"),
    )
    lines = [f"{show.printable(line)}\n" for line in _how_to_connect(status)]
    return "".join(["\n", show.text(picture), *lines])


def _less(tokens: int) -> str:
    """Return a hint how to save tokens; empty if there is little to save."""
    worth = tokens > tool_costs.at_start("search", ())
    return "; 'metamcp tools --tokens' says what would save most of them" if worth else ""


def _metrics(ops_url: str) -> str:
    """Return the URL of the metrics; for a unix socket, which browsers cannot open, a command."""
    if not ops_url.startswith(UNIX):
        return f"{ops_url}/metrics"
    path = shlex.quote(ops_url.removeprefix(UNIX))
    return f"curl --unix-socket {path} http://localhost/metrics"


def _how_to_connect(status: GatewayStatus) -> list[str]:
    others = [
        f"  {name:<12} {url}" for name, url in status.endpoints.items() if len(status.endpoints) > 1
    ]
    return [
        "",
        f"Endpoint     {status.url}",
        *others,
        f"Metrics      {_metrics(status.ops_url)}",
        f"Claude Code  claude mcp add --transport http metamcp {status.url}",
        "Other clients:",
        '  {"mcpServers": {"metamcp":',
        '    {"type": "http", "url": "' + status.url + '"}}}',
        "",
        *_started_twice(status),
        "Ctrl-C or 'metamcp down' ends it, 'metamcp status' looks at it from elsewhere.",
    ]


def _started_twice(status: GatewayStatus) -> list[str]:
    """Return a sentence about servers that a client starts as well, because this is its file."""
    from metamcp_supervisor.client_files.clients import CLIENTS

    main = Path(status.config_files[0]) if status.config_files else Path()
    client = next((each for each in CLIENTS.values() if main.match(each.project or "/")), None)
    names = [server.name for server in status.servers]
    if client is None or not names:
        return []
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    sentence = (
        f"{client.title} starts {', '.join(names[:NAMED_MAX])}{more} a second time, from"
        f" {main.name}: 'metamcp install {client.name} --take-over' moves them here."
    )
    return [*textwrap.wrap(sentence, COLUMNS, break_on_hyphens=False), ""]


COLUMNS = 80
"""Characters of a line on a usual terminal."""
NAMED_MAX = 10
"""Maximum number of servers that a sentence names."""
KEYBOARD = 0
"""Descriptor from which answers are read."""
ANSWER_BYTES_MAX = 1024
_YES = (b"y", b"yes")


class TerminalQuestions:
    """Questions to the user at the terminal of a gateway in the foreground; a `reload.Ask`. `out`
    prints.

    The gateway goes on during a question. Keys that were typed before the question are ignored.
    """

    def __init__(self, gateway: "Gateway", out: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._out = out
        self._loop = asyncio.get_running_loop()
        self._plan = ""
        self._task: asyncio.Task[None] | None = None

    def __call__(self, question: str, plan: str) -> None:
        if not in_foreground():
            return  # the journal says what to do
        import termios

        termios.tcflush(KEYBOARD, termios.TCIFLUSH)
        self._plan = plan
        self._out(f"{question}\nApply it? [y/N]: ")
        self._loop.add_reader(KEYBOARD, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(KEYBOARD)
        if not in_foreground():
            return
        with contextlib.suppress(OSError):
            answer = os.read(KEYBOARD, ANSWER_BYTES_MAX)
            if answer.strip().lower() in _YES:
                self._task = self._loop.create_task(self._apply(self._plan), name="confirmed")
            else:
                self._out("not confirmed: nothing is changed; 'metamcp confirm' asks again\n")

    async def _apply(self, plan: str) -> None:
        try:
            await self._gateway.reload(dry_run=False, expect=plan, yes=True)
        except (ConfigInvalid, NotNow, ReloadRefused) as error:
            self._out(f"{error}\n")


def in_foreground() -> bool:
    """Whether this process may read from its terminal; in the background it would be stopped."""
    try:
        return os.tcgetpgrp(KEYBOARD) == os.getpgrp()
    except OSError:
        return False
