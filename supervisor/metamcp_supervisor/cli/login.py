"""`metamcp login` and `metamcp logout`: get tokens for a remote server, with the consent of a
person, and remove them.

Owns: the options, the link on the terminal and in the browser, notifying the running gateway,
sentences and exit codes. Never: OAuth and the store of tokens (`metamcp_worker.oauth`).
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

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import gateway_options, state_option
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError

if TYPE_CHECKING:
    from metamcp_supervisor.cli.up import CommandLineConfig
    from metamcp_worker.ipc.spec import ServerSpec

MARGIN_S = 10.0
"""Seconds to wait for the gateway beyond the time that a server may take to start."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        state_option,
        gateway_options(),
        json_option,
        click.argument("server"),
    ):
        command = option(command)
    return command


@click.command(cls=errors.Command)
@_options
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def login(
    server: str,
    path: Path | None,
    runtime_dir: str | None,
    state_dir: str | None,
    as_json: bool,
    no_browser: bool,
) -> None:
    """Get the gateway authorized to use SERVER, which is configured with `oauth`.

    Prints a link to open in a browser, and ends when you have agreed there. A running gateway then
    restarts the server.
    """
    command_line, spec = _find_server(server, path, runtime_dir, state_dir)
    _login(server, command_line, spec, open_it=not no_browser, as_json=as_json)
    if as_json:
        errors.tell(server=server, authorized=True)


@click.command(cls=errors.Command)
@_options
def logout(
    server: str, path: Path | None, runtime_dir: str | None, state_dir: str | None, as_json: bool
) -> None:
    """Remove the tokens for SERVER, and the identity of the gateway at its authorization server."""
    removed = _logout(server, path, runtime_dir, state_dir)
    if as_json:
        errors.tell(server=server, removed=removed)


def _login(
    name: str,
    command_line: "CommandLineConfig",
    spec: "ServerSpec",
    *,
    open_it: bool,
    as_json: bool,
) -> None:
    from metamcp_worker.oauth import WHOLE_SDK
    from metamcp_worker.runtime import lazy_import

    lazy_import.import_from(WHOLE_SDK, "metamcp_worker.oauth.flow")
    from metamcp_worker.oauth import flow
    from metamcp_worker.oauth.callback import PERSON_S_MAX
    from metamcp_worker.oauth.challenge import NotAuthorized

    assert spec.oauth is not None
    if spec.oauth.grant == "client_credentials":
        errors.say(f"server '{name}' gets its tokens by itself; nobody has to log in")
        return

    def show(link: str) -> None:
        if link:
            errors.say("open this link in a browser on this machine:")
            if as_json:
                errors.tell(server=name, link=link)
            else:
                click.echo(link)
            if open_it and _has_browser():
                threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    try:
        asyncio.run(flow.login(spec, show, person_s=PERSON_S_MAX))
    except NotAuthorized as error:
        raise Failed(Exit.FAILED, f"server '{name}' {error}") from None
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, f"cannot log in: {error}") from None
    errors.say(f"the gateway is authorized to use '{name}'")
    _restart(name, command_line, spec.start_timeout_s)


def _logout(name: str, path: Path | None, runtime_dir: str | None, state_dir: str | None) -> bool:
    """Remove the tokens, and return whether there were any. Raises Failed."""
    from metamcp_worker.oauth.vault import vault_of

    command_line, spec = _find_server(name, path, runtime_dir, state_dir)
    try:
        removed = vault_of(spec).forget(name) > 0
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, str(error)) from None
    if not removed:
        errors.say(f"nothing is stored for '{name}'")
        return False
    errors.say(f"the tokens for '{name}' are removed")
    _restart(name, command_line, None)
    return True


def _find_server(
    name: str, path: Path | None, runtime_dir: str | None, state_dir: str | None
) -> tuple["CommandLineConfig", "ServerSpec"]:
    """Return the configuration, and the specification for the worker of this server. Raises
    Failed."""
    from metamcp_supervisor.cli.up import CommandLineConfig
    from metamcp_supervisor.control.services import UnknownName
    from metamcp_supervisor.servers.specs import server_spec
    from metamcp_supervisor.servers.tokens import KeyUnfit, TokenKeys

    command_line = CommandLineConfig(path, {"runtime_dir": runtime_dir, "state_dir": state_dir})
    # Secrets that it names go to its URLs, so it has to be confirmed as before commands start.
    command_line.confirm(yes=False, ask=None)
    config = command_line.config
    server = config.servers.get(name)
    if server is None:
        raise Failed(Exit.UNKNOWN_NAME, str(UnknownName([name], config.servers)))
    if server.oauth is None:
        problem = (
            f"server '{name}' has no `oauth` in its configuration, so there are no tokens for it"
        )
        raise Failed(Exit.USAGE, problem)
    try:
        oauth = TokenKeys(config.gateway.state_dir, os.environ).spec(server.oauth)
    except KeyUnfit as error:
        raise Failed(Exit.FAILED, str(error)) from None
    return command_line, server_spec(server, {}, probe=True, oauth=oauth)


def _restart(name: str, command_line: "CommandLineConfig", start_s: float | None) -> None:
    """Restart the server of a running gateway, and wait `start_s` seconds for it to be ready, if
    that is given. Raises Failed."""
    try:
        with client.connect(str(command_line.config.gateway.runtime_dir)) as gateway:
            ordered = codec.value(gateway.call("restart", {"names": [name]}))
            if start_s is None:
                return
            params = {"names": [name], "for": "ready", "timeout_s": start_s}
            params["above"] = ordered["above"]
            with progress(f"waits for {name} to be ready"):
                gateway.call("wait", params, timeout_s=start_s + MARGIN_S)
    except Failed as failed:
        if failed.exit == Exit.NOT_RUNNING:
            errors.say("no gateway is running; the next one will know it")
            return
        if failed.exit == Exit.UNKNOWN_NAME:
            errors.say(f"the running gateway does not know '{name}' yet: run 'metamcp reload'")
            return
        raise
    errors.say(f"'{name}' is ready")


def _has_browser() -> bool:
    """Whether a browser can open in its own window; a browser in the terminal would take over the
    terminal."""
    windows = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    return sys.platform == "darwin" or bool(windows)
