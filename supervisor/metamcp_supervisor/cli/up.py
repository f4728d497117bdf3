"""`metamcp up` and `metamcp serve`: find the configuration, run the gateway, show what happens.

Owns: the options, the place where a failure to start becomes a sentence and an exit code, which
events a terminal shows. Never: the gateway itself (`gateway`), finding files (`sources`), the first
screen and lines of a service (`output`).
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from metamcp_supervisor import VERSION, runtime
from metamcp_supervisor.cli.output import LogOutput
from metamcp_supervisor.config import places
from metamcp_supervisor.processes.nursery_start import HANDOVER
from metamcp_supervisor.verbs import Exit, JournalEvent
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.runtime import logs, memory

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config
    from metamcp_supervisor.gateway.gateway import Gateway
    from metamcp_worker.ipc.spec import LogSpec

PORT_MAX = 65535
TRIM_S = 30.0
"""Seconds between two times that free memory is given back."""
CLIENTS_S = 1.0
"""Seconds between two checks whether a gateway that ends with its last client has clients."""
CLIENTS_GONE_S = 5.0
"""Seconds without a client until such a gateway ends; a client that restarts is back sooner."""

#: Parts of events that a terminal shows, in addition to events of the gateway itself.
_TOLD = ("→ready", "→error", "→quarantined", "→stopped", "error", "bug",
         "note", "left out", "lists changed", "tools drifted", "tools released", "kill",
         "heartbeat", "unroutable")  # fmt: skip
_KNOWN = frozenset({"starting", "listening", "error→warming"})
"""Events that a terminal does not show: the first screen shows the addresses, and the line before
says that a server is tried again."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of both verbs. Settings of the gateway given here win over its file."""
    for option in (
        click.option("--log-format", metavar="FORM", help="`auto`, `text` or `json`."),
        click.option("--drain-delay", metavar="TIME", help="How long a stop is told in advance."),
        click.option("--runtime-dir", metavar="PATH", help="Control socket and lock."),
        click.option("--state-dir", metavar="PATH", help="What is remembered over restarts."),
        click.option("--watch", metavar="BOOLEAN", help="Reload when the configuration changes."),
        click.option("--fronts", metavar="N", help="Processes that speak to clients."),
        click.option("--workers", metavar="WORD", help="A worker for each server, or shared."),
        click.option("--socket", metavar="PATH", help="A unix socket where clients connect, too."),
        click.option("--ops-listen", metavar="HOST:PORT|unix:PATH", help="Metrics and health."),
        click.option("--naming", metavar="STYLE", help="How every endpoint calls its tools."),
        click.option("--exposure", metavar="WORD", help="How much every endpoint shows at first."),
        click.option("--builtins", metavar="NAME,…", help="Further tools of every endpoint."),
        click.option("--port", metavar="PORT", help="As --listen 127.0.0.1:PORT."),
        click.option("--health-listen", metavar="HOST:PORT", help="Health pages for probes."),
        click.option("--console-listen", metavar="HOST:PORT", help="Web console."),
        click.option("--allowed-hosts", metavar="NAME,…", help="Further names in Host and Origin."),
        click.option("--trusted-proxies", metavar="NET,…", help="Proxies that name the client."),
        click.option("--store", metavar="URL", help="PostgreSQL for what the gateway remembers."),
        click.option("--behind-proxy", metavar="BOOLEAN", help="A proxy speaks TLS to clients."),
        click.option("--tls", metavar="WORD", help="`off`, `local` or `required`."),
        click.option("--auth", metavar="WORD,…", help="`none`, or `keys` for every endpoint."),
        click.option("--listen", metavar="HOST:PORT", help="Where clients connect."),
        click.option(
            "--config",
            "path",
            type=click.Path(path_type=Path),
            help="The configuration; without it the usual places are searched.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@_options
@click.option("--from", "word", metavar="CLIENT|PATH", help="The servers of a client, or a file.")
@click.option("--yes", is_flag=True, help="Start the commands of a file found here unasked.")
def up(path: Path | None, word: str | None, yes: bool, **flags: str | None) -> None:
    """Start the gateway in the foreground. The gateway ends with its terminal.

    Without --config or --from, use metamcp.toml or the .mcp.json of this directory.
    """
    _keep_standard_streams()
    path = path if word is None else _origin(path, word)
    command_line = CommandLineConfig(path, flags, watch=True, any_port=True)
    command_line.confirm(yes=yes, ask=ask if sys.stdin.isatty() and sys.stderr.isatty() else None)
    logs.begin(command_line.log_spec())
    outlet = LogOutput(1)
    try:
        _run(command_line, partial(_friendly, outlet), hangup_ends=_ends_with_its_terminal())
    finally:
        outlet.close()


@click.command()
@_options
@click.option("--any-port", is_flag=True, help="Take the next free ports if those are taken.")
@click.option("--while-used", is_flag=True, help="End when the last client has gone.")
def serve(path: Path | None, any_port: bool, while_used: bool, **flags: str | None) -> None:
    """Run the gateway as a service: with its log on stderr, and without questions."""
    from metamcp_supervisor.cli.output import ServiceLines

    _keep_standard_streams()
    command_line = CommandLineConfig(path, flags, any_port=any_port)
    command_line.confirm(yes=False, ask=None)
    lines = ServiceLines(2, command_line.log_spec())
    try:
        _run(command_line, partial(_as_lines, lines), while_used=while_used)
    finally:
        lines.close()


def _origin(path: Path | None, word: str) -> Path:
    from metamcp_supervisor.cli import import_servers
    from metamcp_supervisor.cli.errors import CommandRefused

    if path is not None:
        raise click.UsageError("--from names a configuration, and so does --config; use one")
    try:
        return import_servers.origin(word)
    except CommandRefused as refusal:
        _say(str(refusal))
        raise SystemExit(refusal.code) from None


# From the command line to a running gateway


class CommandLineConfig:
    """Configuration of this command line: as it was read at the start, how to read it again, and
    whether its commands may be started. With an invalid configuration the command ends, or goes on
    with the configuration of the gateway that it takes over (`outdated`). `watch`: whether to watch
    the files if no source says it; `any_port`: see `sources.load`."""

    def __init__(
        self,
        path: Path | None,
        flags: dict[str, str | None],
        *,
        watch: bool = False,
        any_port: bool = False,
    ) -> None:
        self._path = path
        self._watch, self._any_port = watch, any_port
        self._flags = {key: value for key, value in flags.items() if value is not None}
        if (port := self._flags.pop("port", None)) is not None:
            if "listen" in self._flags:
                raise click.UsageError("--listen has a port already: leave --port out.")
            if not port.isdecimal() or int(port) > PORT_MAX:
                raise click.UsageError(f"--port is a number from 0 to {PORT_MAX}, not {port!r}")
            self._flags["listen"] = f"127.0.0.1:{port}"
        self._environ, self._cwd, self._home = dict(os.environ), Path.cwd(), Path.home()
        self.outdated = False
        self.config = self._first(self._load)

    def load(self) -> "Config":
        """Read the configuration; the programs of its references run unless they still have to be
        confirmed. Raises config.ConfigInvalid."""
        return self._load(self._may_run)

    def _may_run(self, config: "Config") -> bool:
        from metamcp_supervisor.config.confirmation import NotConfirmed

        try:
            self.permit(config, False)
        except NotConfirmed:
            return False
        return True

    def _load(self, may_run: "Callable[[Config], bool] | None" = None) -> "Config":
        from metamcp_supervisor.config.sources import load

        return load(
            self._path,
            environ=self._environ,
            cwd=self._cwd,
            home=self._home,
            flags=self._flags,
            watch=self._watch,
            any_port=self._any_port,
            may_run=may_run,
        )

    def log_spec(self) -> "LogSpec":
        """Return the log settings of this process. A nursery that is started later logs in the same
        format before it gets its own settings."""
        from metamcp_supervisor.servers.specs import own_log_spec

        os.environ[logs.FORMAT] = self.config.log.format
        return own_log_spec(self.config)

    def confirm(self, *, yes: bool, ask: Callable[[str], bool] | None) -> None:
        """Have a configuration confirmed that was only found in this directory, before its commands
        start; then the programs of its references run. Without a yes, end the command or go on with
        the configuration in force."""
        main = self._discovered_file(self.config)
        if main is not None:
            self._ensure(main, yes=yes, ask=ask)
        if self.config.unrun:
            self.config = self._printed_before() or self._first(self.load, printed=self.config)
        if self.config.unrun:
            _say("the configuration changed while it was confirmed; start again")
            self.config = self._before(Exit.NO_PERMISSION)

    def _printed_before(self) -> "Config | None":
        """Return the configuration with the values that programs printed for the gateway which is
        taken over, if it is the same configuration; the one without them, if this program is only
        tried."""
        from metamcp_supervisor.config.reload import fingerprint
        from metamcp_supervisor.gateway import upgrade_exec

        if self._environ.get(HANDOVER) == upgrade_exec.TRIAL:
            return replace(self.config, unrun=False)
        before = upgrade_exec.before(self._environ)
        same = before is not None and fingerprint(before) == fingerprint(self.config)
        return before if same else None

    def _ensure(self, main: Path, *, yes: bool, ask: Callable[[str], bool] | None) -> None:
        from metamcp_supervisor.config import confirmation_io
        from metamcp_supervisor.config.confirmation import NotConfirmed

        state_dir = self._state_dir(self.config)
        try:
            warning = confirmation_io.ensure(self.config, main, state_dir, yes=yes, ask=ask)
        except NotConfirmed as refusal:
            _for_programs(Exit.NO_PERMISSION, str(refusal))
            _say(str(refusal))
            self.config = self._before(Exit.NO_PERMISSION)
            return
        if warning:
            _say(f"warning: {warning}")

    def permit(self, new: "Config", yes: bool) -> None:
        """Check the same for a reload. `yes`: the caller of the reload confirms. Raises
        confirmation.NotConfirmed."""
        from metamcp_supervisor.config import confirmation_io

        main = self._discovered_file(new)
        if main is not None:
            state_dir = self._state_dir(new)
            confirmation_io.check(new, main, state_dir, running=self.config, yes=yes)

    def _first(self, load: "Callable[[], Config]", printed: "Config | None" = None) -> "Config":
        """Load the configuration and print what is wrong with it. `printed`: configuration whose
        errors and warnings were printed."""
        from metamcp_supervisor.config.config import ConfigInvalid

        try:
            config = load()
        except ConfigInvalid as invalid:
            _for_programs(Exit.CONFIG, None, map(str, invalid.problems))
            for problem in invalid.problems:
                _say(str(problem))
            return self._before(Exit.CONFIG)
        messages = () if printed is None else (*printed.problems, *printed.warnings)
        for problem in (each for each in config.problems if each not in messages):
            _say(str(problem))
        for warning in (each for each in config.warnings if each not in messages):
            _say(f"warning: {warning}")
        if spoilt := self._config_to_keep(config):
            self.outdated = True
            return spoilt
        if printed is not None:
            return config
        if before := places.earlier_state(config.gateway.state_dir, self._home):
            _say(
                f"warning: this project keeps its state in {config.gateway.state_dir} from now on;"
                f' to go on with {before}, set state_dir = "{before}" in [gateway]'
            )
        return config

    def _config_to_keep(self, config: "Config") -> "Config | None":
        """Return the configuration in force in the program before this one, if `config` would stop
        servers of it because of errors; else None."""
        from metamcp_supervisor.config.reload import find_stopping_errors
        from metamcp_supervisor.gateway import upgrade_exec

        before = upgrade_exec.before(self._environ) if config.problems else None
        return before if before is not None and find_stopping_errors(before, config) else None

    def _before(self, code: Exit) -> "Config":
        """Return the configuration in force in the program before this one; without such a program,
        end the command with `code`."""
        from metamcp_supervisor.gateway import upgrade_exec

        config = upgrade_exec.before(self._environ)
        if config is None:
            raise SystemExit(code)
        self.outdated = True
        return config

    def _discovered_file(self, config: "Config") -> Path | None:
        """Return the main file if it was only found in this directory, and not named."""
        from metamcp_supervisor.config.sources import was_found_in

        main = config.files[0] if config.files else None
        if main is None or not was_found_in(
            self._cwd, main, named_path=self._path, environ=self._environ
        ):
            return None
        return main

    def _state_dir(self, config: "Config") -> Path:
        from metamcp_supervisor.config.sources import trusted_state_dir

        return trusted_state_dir(config, environ=self._environ, home=self._home, flags=self._flags)


def ask(question: str) -> bool:
    """Show what a configuration starts, and ask for a yes or no on the terminal."""
    if HANDOVER in os.environ:  # an upgrade: the gateway goes on, and cannot wait for an answer
        return False
    click.echo(question, err=True)
    try:
        return click.confirm("Start them?", default=False, err=True)
    except click.Abort:
        return False


def _for_programs(code: Exit, message: str | None, details: Iterable[str] = ()) -> None:
    """End a verb that was called with `--json` by an object. `message`: None for errors of the
    configuration."""
    from metamcp_supervisor.cli import errors

    if errors.json_asked():
        errors.fail(code, message or errors.UNFIT, tuple(details), as_json=True)


def _ends_with_its_terminal() -> bool:
    """Whether the gateway ends with its terminal: not under `nohup`, which ignores hang-ups."""
    on_terminal = any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return on_terminal and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


def _keep_standard_streams() -> None:
    """Open the null device for each closed standard stream. Otherwise the next socket would get its
    number, and printed lines would go into the socket."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _run(
    command_line: CommandLineConfig,
    watch: Callable[["Gateway"], Callable[[], None]],
    *,
    hangup_ends: bool = False,
    while_used: bool = False,
) -> None:
    """Run the gateway until it ends. `watch` gets the gateway before the start and returns what to
    do once the gateway is up."""
    from metamcp_supervisor.gateway import upgrade_exec, upgrade_state
    from metamcp_supervisor.gateway.gateway import CannotStart, Gateway
    from metamcp_supervisor.systemd import sd_sockets
    from metamcp_supervisor.systemd.sd_notify import SystemdNotifier

    order = upgrade_exec.told_to(os.environ)
    if order == upgrade_exec.TRIAL:
        click.echo(codec.dump(upgrade_state.program(VERSION)))
        raise SystemExit(Exit.OK)
    faulthandler.enable(2)  # a process that the watchdog aborts prints where it hung
    memory.share_one_heap()
    memory.give_back_large_blocks(memory.RARE_BYTES, memory.RARE_BYTES)
    notify = SystemdNotifier.take(os.environ, os.getpid())
    try:
        sockets = sd_sockets.take(os.environ, os.getpid())
    except sd_sockets.SocketUnusable as failure:
        _say(str(failure))
        raise SystemExit(Exit.CANNOT_BIND) from None

    async def main() -> int:
        handed = upgrade_exec.read_state(order) if order else None
        ends = hangup_ends if handed is None else handed.gateway.hangup_ends
        gateway = Gateway(
            upgrade_state.in_force(command_line.config, handed), command_line.load,
            command_line.permit, dict(os.environ), VERSION,
            hangup_ends=ends, notify=notify, inherited=sockets, handed=handed,
        )  # fmt: skip
        del handed  # it may be large
        if command_line.outdated:
            gateway.upgrade_handover.read_again()
        works = (logs.count_every_second(), memory.trim_every(TRIM_S))
        tasks = [asyncio.create_task(work) for work in works]
        on_up = watch(gateway)

        def risen() -> None:
            on_up()
            if while_used:
                tasks.append(asyncio.create_task(_end_with_clients(gateway)))
            memory.trim()  # half a MiB, taken by reading code and the configuration

        try:
            return await gateway.run(risen)
        finally:
            for task in tasks:
                task.cancel()

    try:
        code = asyncio.run(main())
    except (CannotStart, upgrade_state.StateUnreadable) as failure:
        _say(str(failure))
        code = failure.code if isinstance(failure, CannotStart) else Exit.INTERNAL
    raise SystemExit(code)


async def _end_with_clients(gateway: "Gateway") -> None:
    """End the gateway after CLIENTS_GONE_S without use: no bridge has joined it, and no client has
    a connection."""
    clients = runtime.Clients(str(gateway.config.gateway.runtime_dir))
    looks = 0
    try:
        while True:
            await asyncio.sleep(CLIENTS_S)
            last = looks * CLIENTS_S >= CLIENTS_GONE_S
            connected = any(front.connections for front in gateway.status().fronts)
            if connected or not clients.none_left(and_none_more=last):
                looks = 0
            elif last:
                gateway.journal.add("gateway", "unused", "the last client has gone")
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()  # until this task is cancelled
            looks += 1
    finally:
        clients.close()


def _say(sentence: str) -> None:
    """Print on stderr. A full disk or a missing reader loses the sentence, not the gateway."""
    from metamcp_supervisor.cli.show import printable

    line = f"metamcp: {printable(sentence)}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode(sys.stderr.encoding, "backslashreplace"))


# As a service


def _as_lines(lines: Any, gateway: "Gateway") -> Callable[[], None]:
    lines.is_server = lambda who: process_names.base(who) in gateway.config.servers
    gateway.journal.sink = lines.event
    gateway.logs.sink = lines.log_line
    lines.server_max = lambda: gateway.config.log.server_max
    gateway.upgrade_handover.flush = lines.flush
    return lambda: None


# On a terminal


def _friendly(outlet: "LogOutput", gateway: "Gateway") -> Callable[[], None]:
    """Print a line for each event, and the first screen when every server had its chance. All
    output goes through the outlet, because a terminal that is gone or stopped (^S) must not hold up
    the gateway."""
    from metamcp_supervisor.cli import show
    from metamcp_supervisor.cli.output import EventLines, FirstScreen, StartLine, TerminalQuestions

    def write_stdout(text: str) -> None:
        outlet.put(text.encode(sys.stdout.encoding, "backslashreplace"))

    lines = EventLines(write_stdout, terminal=show.on_terminal())

    def tell(event: JournalEvent) -> None:
        is_notable = event.who == "gateway" or any(word in event.what for word in _TOLD)
        if is_notable and event.what not in _KNOWN:
            lines.tell(event)

    def watch() -> None:
        if gateway.upgrade_handover.upgrades:
            return  # the screen goes on as it is
        count = len(gateway.config.servers)
        servers = f"{count} server" if count == 1 else f"{count} servers"
        write_stdout(f"MetaMCP {gateway.version} starts {servers} …\n")
        put = (
            StartLine(gateway, write_stdout).put
            if show.on_terminal() and show.can_redraw()
            else write_stdout
        )
        lines.out = put
        screen = FirstScreen(gateway, put)

        def tell_and_look(event: JournalEvent) -> None:
            tell(event)
            screen.look()

        gateway.journal.sink = tell_and_look

    gateway.journal.sink = tell
    gateway.upgrade_handover.flush = outlet.flush
    if sys.stdin.isatty() and sys.stdout.isatty():
        gateway.ask_with(TerminalQuestions(gateway, write_stdout))
    return watch
