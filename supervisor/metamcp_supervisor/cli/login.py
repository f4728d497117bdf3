"""`metamcp login` and `metamcp logout`: tokens for a remote server, got by a person, and removed.

Owns: the options, the link on the terminal and in the browser, telling the running gateway,
sentences and exit codes. Never: OAuth and where tokens are kept (`metamcp_worker.oauth`).
"""

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metamcp_supervisor.cli.show import printable
from metamcp_supervisor.verbs import Exit
from metamcp_supervisor.watched import client
from metamcp_supervisor.watched.client import Failed
from metamcp_worker import codec
from metamcp_worker.errors import MetaMCPError

if TYPE_CHECKING:
    from metamcp_supervisor.cli.up import Found
    from metamcp_worker.spec import ServerSpec

MARGIN_S = 10.0
"""How much longer than a server may take to start we wait for the gateway's word on it."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--state-dir", metavar="PATH", help="Where the gateway keeps its tokens."),
        click.option("--runtime-dir", metavar="PATH", help="Where its control socket is."),
        click.option(
            "--config",
            "path",
            type=click.Path(path_type=Path),
            help="The configuration of the gateway; without it the usual places are searched.",
        ),
        click.argument("server"),
    ):
        command = option(command)
    return command


@click.command()
@_options
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def login(
    server: str, path: Path | None, runtime_dir: str | None, state_dir: str | None, no_browser: bool
) -> None:
    """Get the gateway authorized to use SERVER, which is configured with `oauth`.

    Prints a link to open in a browser, and ends when you have agreed there. A running gateway then
    starts the server anew.
    """
    _ended(lambda: _login(server, path, runtime_dir, state_dir, open_it=not no_browser))


@click.command()
@_options
def logout(server: str, path: Path | None, runtime_dir: str | None, state_dir: str | None) -> None:
    """Remove the tokens for SERVER, and what its authorization server knows the gateway as."""
    _ended(lambda: _logout(server, path, runtime_dir, state_dir))


def _ended(run: Callable[[], None]) -> None:
    """The one place where a failure becomes an exit code."""
    try:
        run()
    except Failed as failed:
        for line in (str(failed), *failed.details):
            _say(line)
        raise SystemExit(failed.exit) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # as every shell says it: 128 and the number of SIGINT


def _login(
    name: str, path: Path | None, runtime_dir: str | None, state_dir: str | None, *, open_it: bool
) -> None:
    from metamcp_worker.oauth import login as worker
    from metamcp_worker.oauth.callback import PERSON_S_MAX
    from metamcp_worker.oauth.challenge import NotAuthorized

    found, spec = _found(name, path, runtime_dir, state_dir)
    assert spec.oauth is not None
    if spec.oauth.grant == "client_credentials":
        _say(f"server '{name}' gets its tokens by itself; nobody has to log in")
        return

    def show(link: str) -> None:
        if link:
            _say("open this link in a browser on this machine:")
            click.echo(link)
            if open_it and _has_browser():
                threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    try:
        asyncio.run(worker.login(spec, show, person_s=PERSON_S_MAX))
    except NotAuthorized as error:
        raise Failed(Exit.FAILED, f"server '{name}' {error}") from None
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, f"there is no way to log in: {error}") from None
    _say(f"the gateway is authorized to use '{name}'")
    _restart(name, found, spec.start_timeout_s)


def _logout(name: str, path: Path | None, runtime_dir: str | None, state_dir: str | None) -> None:
    from metamcp_worker.oauth import login as worker

    found, spec = _found(name, path, runtime_dir, state_dir)
    try:
        removed = worker.logout(spec)
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, str(error)) from None
    if not removed:
        _say(f"nothing is stored for '{name}'")
        return
    _say(f"the tokens for '{name}' are removed")
    _restart(name, found, None)


def _found(
    name: str, path: Path | None, runtime_dir: str | None, state_dir: str | None
) -> tuple["Found", "ServerSpec"]:
    """The configuration, and what the worker of this server is told. Raises Failed."""
    from metamcp_supervisor.cli.up import Found
    from metamcp_supervisor.lives.specs import server_spec
    from metamcp_supervisor.lives.tokens import KeyUnfit, Tokens
    from metamcp_supervisor.watched.steering import UnknownName

    found = Found(path, {"runtime_dir": runtime_dir, "state_dir": state_dir})
    # What it names is sent to its URL: the same question as before its commands are started.
    found.confirm(yes=False, ask=None)
    config = found.config
    server = config.servers.get(name)
    if server is None:
        raise Failed(Exit.UNKNOWN_NAME, str(UnknownName([name], config.servers)))
    if server.oauth is None:
        why = f"server '{name}' has no `oauth` in its configuration, so there are no tokens for it"
        raise Failed(Exit.USAGE, why)
    try:
        oauth = Tokens(config.gateway.state_dir, os.environ).spec(server.oauth)
    except KeyUnfit as error:
        raise Failed(Exit.FAILED, str(error)) from None
    return found, server_spec(server, {}, probe=True, oauth=oauth)


def _restart(name: str, found: "Found", start_s: float | None) -> None:
    """Have a running gateway start the server anew, and wait until it is ready if it has `start_s`
    for that. Raises Failed."""
    try:
        with client.connect(str(found.config.gateway.runtime_dir)) as gateway:
            ordered = codec.value(gateway.call("restart", {"names": [name]}))
            if start_s is None:
                return
            asked = {"names": [name], "for": "ready", "timeout_s": start_s}
            asked["above"] = ordered["above"]
            gateway.call("wait", asked, timeout_s=start_s + MARGIN_S)
    except Failed as failed:
        if failed.exit == Exit.NOT_RUNNING:
            _say("no gateway is running; the next one will know it")
            return
        if failed.exit == Exit.UNKNOWN_NAME:
            _say(f"the running gateway does not know '{name}' yet: run 'metamcp ctl reload'")
            return
        raise
    _say(f"'{name}' is ready")


def _has_browser() -> bool:
    """One in a window of its own: one in the terminal would take it over."""
    windows = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    return sys.platform == "darwin" or bool(windows)


def _say(sentence: str) -> None:
    click.echo(f"metamcp: {printable(sentence)}", err=True)
