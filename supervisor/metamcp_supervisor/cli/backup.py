"""`metamcp backup` and `metamcp restore`: copies of what a gateway stores.

Owns: these verbs at the prompt, finding the state directory, sentences about what a copy has and
has not. Never: copying (`store.copies`).
"""

import os
import time
from pathlib import Path

import click

from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import gateway_options, say, state_option
from metamcp_supervisor.cli.keys import claim_state_dir, load_config
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import places
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.keys.key_rules import PEPPER
from metamcp_supervisor.store import copies
from metamcp_supervisor.verbs import VERSION, Exit, GatewayStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError


@click.command(cls=errors.Command)
@click.argument("file", type=click.Path(path_type=Path))
@gateway_options()
@state_option
@json_option
def backup(
    file: Path, path: Path | None, state_dir: str | None, runtime_dir: str | None, as_json: bool
) -> None:
    """Copy tool sets, views, scripts and API keys to a new FILE, while the gateway runs or not.

    Keys are in it as digests, which need the file keys.pepper of the state directory: copy that
    file once, to a place for secrets.
    """
    directory = Path(state_dir) if state_dir else _find_state_dir(path, runtime_dir)
    try:
        with progress("copies the database"):
            content = copies.backup(directory, file)
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, str(error)) from None
    if as_json:
        click.echo(codec.dump({"v": VERSION, "file": str(file), "content": content}))
    else:
        click.echo(show.printable(f"{file}: {_format_counts(content)}"))
    if content.keys:
        pepper = directory / PEPPER
        say(f"its API keys need {pepper}, a secret and left out here; keep a copy of it, too")


@click.command(cls=errors.Command)
@click.argument("file", type=click.Path(path_type=Path))
@gateway_options("path", "state_dir")
@json_option
def restore(file: Path, path: Path | None, state_dir: str | None, as_json: bool) -> None:
    """Put a FILE of 'backup' in the place of the database of a gateway that does not run.

    The database that was there stays beside it. Root restores the service of the machine, too.
    """
    directory = Path(state_dir) if state_dir else _state_dir_of_config(path)
    claim_fd = claim_state_dir(
        directory, "stop it first ('metamcp down'), and start it after that", gives=True
    )
    try:
        with progress("checks the copy and puts it in place"):
            done = copies.restore(directory, file, time.time())
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, str(error)) from None
    finally:
        os.close(claim_fd)
    if as_json:
        click.echo(codec.dump({"v": VERSION, "content": done.content, "replaced": done.replaced}))
    else:
        click.echo(show.printable(f"{directory}: {_format_counts(done.content)}"))
    if done.replaced:
        say(f"the database before it is {done.replaced}")
    if done.content.keys:
        say("keys that were revoked since the backup are valid again: see 'metamcp keys list'")
        if not (directory / PEPPER).exists():
            say(f"no API key is valid before {PEPPER} of the backed-up gateway is in {directory}")


def _find_state_dir(config: Path | None, runtime_dir: str | None) -> Path:
    """Return the state directory of the gateway that runs, or else of the configuration. Raises
    Failed."""
    directory = runtime_dir
    if directory is None and config is not None:
        directory = str(load_config(config).gateway.runtime_dir)
    try:
        with client.connect(directory) as gateway:
            state_dir = codec.decode_as(GatewayStatus, gateway.call("status")).state_dir
    except Failed as failed:
        if failed.exit != Exit.NOT_RUNNING or runtime_dir is not None:
            raise
        state_dir = ""
    return Path(state_dir) if state_dir else _state_dir_of_config(config)


def _state_dir_of_config(path: Path | None) -> Path:
    """Return the state directory of the configuration. Raises Failed."""
    home = Path.home()
    main = places.find(path, environ=os.environ, cwd=Path.cwd(), home=home)
    of_service = places.service_state(main, os.environ, home)
    return of_service or load_config(path).gateway.state_dir


def _format_counts(content: copies.DatabaseContent) -> str:
    """Return the numbers as a list of words."""
    names = ("tool set", content.toolsets), ("view", content.views), ("API key", content.keys)
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in names)
