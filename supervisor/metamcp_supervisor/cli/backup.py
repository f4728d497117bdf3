"""`metamcp backup` and `metamcp restore`: copies of what a gateway stores.

Owns: these verbs at the prompt, which files of the state directory count, finding the state
directory, the passphrase, sentences about what a copy has and has not. Never: copying and
encrypting (`store.copies`).
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.certificates import authority
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import gateway_options, say, state_option
from metamcp_supervisor.cli.keys import claim_state_dir, load_config
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import confirmation_io, files, places
from metamcp_supervisor.config.references import Unresolved
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.keys.key_rules import HANDLE_KEY, PEPPER
from metamcp_supervisor.servers import decisions, tokens
from metamcp_supervisor.store import copies, database
from metamcp_supervisor.store.database import StoreError
from metamcp_supervisor.verbs import VERSION, Exit, GatewayStatus
from metamcp_worker.ipc import audit_records, codec, engine_runs

PLAIN = (database.FILE, lock_io.SEEN, decisions.FILE, confirmation_io.FILE)
"""Files of the state directory that every backup has."""
TOKENS = f"{tokens.STORE}/*.token"
SECRETS = (
    PEPPER, HANDLE_KEY, tokens.FILE, TOKENS, f"{Path(authority.CA).parent}/*",
    f"{audit_records.FOLDER}/{audit_records.SALT}", engine_runs.JOURNAL,
)  # fmt: skip
"""Files that only an encrypted backup has. Runs have arguments and answers of calls."""
PASSPHRASE_CHARACTERS_MIN = 8


def passphrase_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed((
        click.option("--passphrase-env", metavar="NAME", help="Variable with the passphrase."),
        click.option("--passphrase-file", metavar="FILE",
                     help="File with the passphrase, for this user alone."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=errors.Command)
@click.argument("file", type=click.Path(path_type=Path))
@passphrase_options
@click.option("--without-secrets", is_flag=True, help="Leave out what needs a passphrase.")
@gateway_options()
@state_option
@json_option
def backup(
    file: Path,
    passphrase_env: str | None,
    passphrase_file: str | None,
    without_secrets: bool,
    path: Path | None,
    state_dir: str | None,
    runtime_dir: str | None,
    as_json: bool,
) -> None:
    """Copy what counts of the state directory to a new FILE, while the gateway runs or not.

    Secrets are encrypted to a passphrase: API keys work only with keys.pepper, tokens for remote
    servers only with their key. Also the certificate authority and the runs of workflows are in
    it. The audit is not: the verb says where it is.
    """
    directory = Path(state_dir) if state_dir else find_state_dir(path, runtime_dir)[0]
    with _as_failures():
        names, private = copies.list_files(directory, PLAIN), copies.list_files(directory, SECRETS)
    passphrase = b""
    if private and not without_secrets:
        passphrase = _get_passphrase(passphrase_env, passphrase_file, new=True)
        names, private = (*names, *private), ()
    audit = directory / audit_records.FOLDER
    audited = str(audit) if any(audit.glob(f"*{audit_records.SUFFIX}")) else ""
    with _as_failures(), progress("copies the state"):
        manifest = copies.backup(directory, file, names, passphrase, audited)
    if as_json:
        answer = {
            "v": VERSION, "file": str(file), "content": manifest.content, "files": names,
            "encrypted": bool(passphrase), "left_out": private, "audit": audited,
        }  # fmt: skip
        click.echo(codec.dump(answer))
    else:
        how = "encrypted" if passphrase else "not encrypted"
        click.echo(show.printable(f"{file}: {_format_content(manifest)}, {how}"))
    if private:
        say(f"left out: {', '.join(private)}")
    if audited:
        say(f"the audit is not in it; copy {audited} as well")
    if tokens.FILE not in names and copies.list_files(directory, [TOKENS]) and not private:
        say("the key of its tokens for remote servers is not in it: it is not in a file there")


@click.command(cls=errors.Command)
@click.argument("file", type=click.Path(path_type=Path))
@passphrase_options
@gateway_options()
@state_option
@json_option
def restore(
    file: Path,
    passphrase_env: str | None,
    passphrase_file: str | None,
    path: Path | None,
    state_dir: str | None,
    runtime_dir: str | None,
    as_json: bool,
) -> None:
    """Put a FILE of 'backup' into the state directory of a gateway that does not run.

    All files of it are replaced, or none. The replaced files stay in a folder beside them. A
    FILE without secrets leaves the secrets as they are. Root restores the service of the machine,
    too.
    """
    if state_dir:
        directory, remedy = Path(state_dir), ""
    else:
        directory, runs = find_state_dir(path, runtime_dir)
        remedy = f" with --state-dir {directory}" if runs else ""
    claim_fd = claim_state_dir(
        directory, f"stop it first ('metamcp down'), then restore{remedy}", gives=True
    )
    try:
        with _as_failures():
            needs_passphrase = copies.is_encrypted(file)
        passphrase = b""
        if needs_passphrase:
            passphrase = _get_passphrase(passphrase_env, passphrase_file, new=False)
        with _as_failures(), progress("checks the copy and puts it in place"):
            manifest, replaced = copies.restore(
                directory, file, PLAIN, SECRETS, passphrase, time.time()
            )
    finally:
        os.close(claim_fd)
    if as_json:
        answer = {
            "v": VERSION, "content": manifest.content, "files": manifest.files,
            "replaced": replaced, "audit": manifest.audit,
        }  # fmt: skip
        click.echo(codec.dump(answer))
    else:
        click.echo(show.printable(f"{directory}: {_format_content(manifest)}"))
    if replaced:
        say(f"what was there before is in {replaced}")
    if manifest.audit:
        say(f"its audit was in {manifest.audit}, and is not in the backup")
    if manifest.content.keys:
        say("keys that were revoked since the backup are valid again: see 'metamcp keys list'")
        if not (directory / PEPPER).exists():
            say(f"no API key is valid before {PEPPER} of the backed-up gateway is in {directory}")


@contextmanager
def _as_failures() -> Generator[None]:
    """Raise Failed in place of StoreError."""
    try:
        yield
    except StoreError as error:
        raise Failed(Exit.FAILED, str(error)) from None


def _get_passphrase(variable: str | None, file: str | None, *, new: bool) -> bytes:
    """Return the passphrase from where the user says it is, or ask for it. `new`: whether it is
    for a new file. Raises Failed and click.UsageError."""
    if variable and file:
        raise click.UsageError("give either --passphrase-env or --passphrase-file, not both.")
    if variable:
        text = os.environ.get(variable, "")
        if not text:
            raise Failed(Exit.USAGE, f"the environment variable {variable} is not set")
    elif file:
        try:
            text = files.secret(Path(file))
        except Unresolved as error:
            raise Failed(Exit.USAGE, f"--passphrase-file: {error}") from None
    elif errors.at_terminal():
        text = click.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True)
    else:
        ways = "--passphrase-file FILE or --passphrase-env NAME"
        choice = ", or leave the secrets out with --without-secrets" if new else ""
        raise Failed(Exit.USAGE, f"the backup needs a passphrase: name it by {ways}{choice}")
    if new and len(text) < PASSPHRASE_CHARACTERS_MIN:
        raise Failed(
            Exit.USAGE, f"a passphrase has at least {PASSPHRASE_CHARACTERS_MIN} characters"
        )
    return text.encode()


def find_state_dir(config: Path | None, runtime_dir: str | None) -> tuple[Path, bool]:
    """Return the state directory of the gateway that runs, or else of the configuration, and
    whether one runs. Raises Failed."""
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
    return (Path(state_dir), True) if state_dir else (_state_dir_of_config(config), False)


def _state_dir_of_config(path: Path | None) -> Path:
    """Return the state directory of the configuration. Raises Failed."""
    home = Path.home()
    main = places.find(path, environ=os.environ, cwd=Path.cwd(), home=home)
    of_service = places.service_state(main, os.environ, home)
    return of_service or load_config(path).gateway.state_dir


def _format_content(manifest: copies.BackupManifest) -> str:
    """Return the numbers as a list of words."""
    content, names = manifest.content, manifest.files
    counts = {
        "tool set": content.toolsets, "view": content.views, "API key": content.keys,
        "file": len(names),
    }  # fmt: skip
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
