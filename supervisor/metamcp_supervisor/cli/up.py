"""`metamcp up` and `metamcp serve`: find the configuration, run the gateway, say what goes on.

Owns: the options, the first screen, the one place where a failure to start becomes a sentence and
an exit code. Never: the gateway itself (`run`), looking up files (`sources`), the look of tables
(`show`).
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metamcp_supervisor.verbs import Event, Exit, GatewayStatus

if TYPE_CHECKING:
    from metamcp_supervisor.run import Gateway
    from metamcp_supervisor.wanted.config import Config

SETTLE_S_MAX = 15.0
"""How long the first screen waits for servers that are still starting."""
#: Phases in which the first start of a server is decided.
_DECIDED = frozenset({"ready", "backoff", "failed", "disabled", "quarantined"})
#: Parts of an event that a person at a terminal wants to see at once, beside the gateway's own.
_TOLD = ("→ready", "→backoff", "→failed", "→quarantined", "→disabled", "→error", "error", "bug",
         "note", "lists changed", "kill", "heartbeat")  # fmt: skip


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """What both verbs know. A setting of the gateway given here wins over its file."""
    for option in (
        click.option("--runtime-dir", metavar="PATH", help="Control socket and lock."),
        click.option("--state-dir", metavar="PATH", help="What is remembered over restarts."),
        click.option("--ops-listen", metavar="HOST:PORT", help="Metrics and health."),
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
@click.option("--yes", is_flag=True, help="Start the commands of a file found here unasked.")
def up(path: Path | None, yes: bool, **flags: str | None) -> None:
    """Start the gateway in the foreground.

    Without --config, metamcp.toml or the .mcp.json of this directory will do.
    """
    config, load = _configured(path, flags)
    _confirm(
        config, path, yes=yes, ask=_ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    )
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    _run(config, load, partial(_friendly, len(config.servers)))


@click.command()
@_options
def serve(path: Path | None, **flags: str | None) -> None:
    """Run the gateway as a service: JSON lines on stderr, nothing asked."""
    from metamcp_supervisor.cli.jsonlines import JsonLines

    config, load = _configured(path, flags)
    _confirm(config, path, yes=False, ask=None)
    lines = JsonLines(2)
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    try:
        _run(config, load, partial(_as_lines, lines))
    finally:
        lines.close()


# From the command line to a running gateway


def _configured(
    path: Path | None, flags: dict[str, str | None]
) -> tuple["Config", Callable[[], "Config"]]:
    """The configuration and how to read it again; or every error told, and the end."""
    from metamcp_supervisor.wanted.config import ConfigInvalid
    from metamcp_supervisor.wanted.sources import load

    given = {key: value for key, value in flags.items() if value is not None}
    again = partial(
        load, path, environ=dict(os.environ), cwd=Path.cwd(), home=Path.home(), flags=given
    )
    try:
        config = again()
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            _say(str(problem))
        raise SystemExit(Exit.CONFIG) from None
    for warning in config.warnings:
        _say(f"warning: {warning}")
    return config, again


def _confirm(
    config: "Config", path: Path | None, *, yes: bool, ask: Callable[[str], bool] | None
) -> None:
    """A configuration that merely lies in this directory starts commands only after a yes."""
    from metamcp_supervisor.wanted import confirmed, sources
    from metamcp_supervisor.wanted.confirm import NotConfirmed

    main = config.files[0] if config.files else None
    if main is None or not sources.was_found_in(Path.cwd(), main, given=path, environ=os.environ):
        return
    try:
        warning = confirmed.ensure(config, main, yes=yes, ask=ask)
    except NotConfirmed as refusal:
        _say(str(refusal))
        raise SystemExit(Exit.NO_PERMISSION) from None
    if warning:
        _say(f"warning: {warning}")


def _ask(question: str) -> bool:
    click.echo(question, err=True)
    try:
        return click.confirm("Start them?", default=False, err=True)
    except click.Abort:
        return False


def _run(
    config: "Config", load: Callable[[], "Config"], watch: Callable[["Gateway"], Callable[[], None]]
) -> None:
    """Run to the end. `watch` gets the gateway before it starts and returns what to do once it is
    up."""
    from metamcp_supervisor.run import CannotStart, Gateway

    async def main() -> int:
        gateway = Gateway(config, load, dict(os.environ), _version())
        return await gateway.run(watch(gateway))

    try:
        code = asyncio.run(main())
    except CannotStart as failure:
        _say(str(failure))
        code = failure.code
    raise SystemExit(code)


def _version() -> str:
    try:
        return metadata.version("metamcp")
    except metadata.PackageNotFoundError:
        return "0"


def _say(sentence: str) -> None:
    from metamcp_supervisor.cli.show import printable

    click.echo(f"metamcp: {printable(sentence)}", err=True)


# As a service


def _as_lines(lines: Any, gateway: "Gateway") -> Callable[[], None]:
    gateway.journal.sink = lines.event
    gateway.logs.sink = lines.log_line
    return lambda: None


# For a person


def _friendly(count: int, gateway: "Gateway") -> Callable[[], None]:
    """Lines for what happens, and the first screen when every server had its chance."""
    from metamcp_supervisor.cli import columns

    def show(event: Event) -> None:
        if event.who == "gateway" or any(part in event.what for part in _TOLD):
            clock = time.strftime("%H:%M:%S", time.localtime(event.time))
            _print(columns.event_text(event, clock))

    def watch() -> None:
        servers = f"{count} server" if count == 1 else f"{count} servers"
        _print(f"MetaMCP {gateway.version} starts {servers} …")
        screen = FirstScreen(gateway)

        def show_both(event: Event) -> None:
            show(event)
            screen.look()

        gateway.journal.sink = show_both

    gateway.journal.sink = show
    return watch


class FirstScreen:
    """Shown once: when every server is ready or failed, or at the latest after SETTLE_S_MAX."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
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
            first_screen(self._gateway.status())


def first_screen(status: GatewayStatus) -> None:
    """Servers, where to connect, and what to paste."""
    from metamcp_supervisor.cli import show

    rows = [
        (
            server.name,
            server.state,
            str(server.tools) if server.tools else "-",
            str(server.token_cost) if server.token_cost else "-",
            f"{server.start_s:.2f}s" if server.start_s else "-",
            f"{server.reason}: {server.message}" if server.state == "error" else "",
        )
        for server in status.servers
    ]
    tokens = sum(server.token_cost for server in status.servers)
    tools = sum(server.tools for server in status.servers)
    _print("")
    show.picture(
        show.Picture(
            columns=("SERVER", "STATE", "TOOLS", "TOKENS", "START", ""),
            rows=rows,
            foot=f"{tools} tools, about {tokens} tokens of definitions",
            right=frozenset({"TOOLS", "TOKENS", "START"}),
        )
    )
    for line in _how_to_connect(status):
        _print(line)


def _how_to_connect(status: GatewayStatus) -> list[str]:
    others = [
        f"  {name:<12} {url}" for name, url in status.endpoints.items() if len(status.endpoints) > 1
    ]
    return [
        "",
        f"Endpoint     {status.url}",
        *others,
        f"Metrics      {status.ops_url}/metrics",
        f"Claude Code  claude mcp add --transport http metamcp {status.url}",
        "Other clients:",
        '  {"mcpServers": {"metamcp": {"type": "http", "url": "' + status.url + '"}}}',
        "",
        "Ctrl-C stops it; 'metamcp ctl status' looks at it from elsewhere.",
    ]


def _print(line: str) -> None:
    """A terminal that is gone does not end the gateway."""
    from metamcp_supervisor.cli.show import printable

    try:
        click.echo(printable(line))
    except OSError:
        logging.getLogger("metamcp").debug("standard output is closed")
