"""`metamcp backup`, `metamcp restore` and `metamcp store`: copies of what a gateway stores.

Owns: these verbs at the prompt, which files of the state directory count, finding the state
directory, the passphrase, sentences about what a copy has and has not, a copy of tables to another
database. Never: copying files and encrypting (`store.copies`), tables (`store.database`,
`store.postgres`).
"""

import asyncio
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, structs

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.certificates import authority
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import gateway_options, say, state_option
from metamcp_supervisor.cli.keys import claim_state_dir, load_config
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.config import confirmation_io, files, places
from metamcp_supervisor.config import show as show_settings
from metamcp_supervisor.config.config import GatewayConfig
from metamcp_supervisor.config.references import Unresolved
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.keys.key_rules import HANDLE_KEY, PEPPER
from metamcp_supervisor.keys.peppers import PepperUnfit
from metamcp_supervisor.servers import decisions, tokens
from metamcp_supervisor.store import copies, database
from metamcp_supervisor.store.database import SCHEMA, StoreError, make_database
from metamcp_supervisor.verbs import VERSION, Exit, GatewayStatus
from metamcp_worker.ipc import audit_records, codec, engine_runs

if TYPE_CHECKING:
    from metamcp_supervisor.store.postgres import PostgresDatabase

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
    state = StatePlace(Path(state_dir)) if state_dir else find_state(path, runtime_dir)
    directory = state.directory
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
    if state.store:
        say(f"the tables in {state.store} are not in it: 'pg_dump --schema {SCHEMA}' copies them")
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
    state = StatePlace(Path(state_dir)) if state_dir else find_state(path, runtime_dir)
    directory, remedy = state.directory, ""
    if not state_dir:
        remedy = f" with --state-dir {directory}" if state.runs else ""
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
    if state.store:
        say(f"the gateway does not use {database.FILE}: its tables are in {state.store}")
    if manifest.audit:
        say(f"its audit was in {manifest.audit}, and is not in the backup")
    if manifest.content.keys:
        say("keys that were revoked since the backup are valid again: see 'metamcp keys list'")
        if not (directory / PEPPER).exists():
            say(f"no API key is valid before {PEPPER} of the backed-up gateway is in {directory}")


@contextmanager
def _as_failures() -> Generator[None]:
    """Raise Failed in place of StoreError and PepperUnfit."""
    try:
        yield
    except (StoreError, PepperUnfit) as error:
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


class StatePlace(Struct, frozen=True):
    """Where a gateway has its state. `store`: URL of its database in PostgreSQL, without the
    password; empty for a file in the directory. `runs`: whether the gateway runs."""

    directory: Path
    store: str = ""
    runs: bool = False


def find_state(config: Path | None, runtime_dir: str | None) -> StatePlace:
    """Return the place of the gateway that runs, or else of the configuration. Raises Failed."""
    directory = runtime_dir
    if directory is None and config is not None:
        directory = str(load_config(config).gateway.runtime_dir)
    try:
        with client.connect(directory) as gateway:
            status = codec.decode_as(GatewayStatus, gateway.call("status"))
    except Failed as failed:
        if failed.exit != Exit.NOT_RUNNING or runtime_dir is not None:
            raise
    else:
        if status.state_dir:
            return StatePlace(Path(status.state_dir), status.store, runs=True)
    return _find_state_in_config(config)


def _find_state_in_config(path: Path | None) -> StatePlace:
    """Return the place that the configuration says. Raises Failed."""
    home = Path.home()
    main = places.find(path, environ=os.environ, cwd=Path.cwd(), home=home)
    of_service = places.service_state(main, os.environ, home)
    try:
        gateway = load_config(path).gateway
    except Failed:
        if of_service is None:
            raise
        return StatePlace(of_service)
    store = show_settings.masked_url(gateway.store.url_written) if gateway.store else ""
    return StatePlace(of_service or gateway.state_dir, store)


def _format_content(manifest: copies.BackupManifest) -> str:
    """Return the numbers as a list of words."""
    content, names = manifest.content, manifest.files
    counts = {
        "tool set": content.toolsets, "view": content.views, "API key": content.keys,
        "file": len(names),
    }  # fmt: skip
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())


@click.group(cls=errors.Group)
def store() -> None:
    """Look at the database of the gateway, and copy it to PostgreSQL."""


@store.command("status")
@gateway_options("path")
@json_option
def store_status(path: Path | None, as_json: bool) -> None:
    """Show where tool sets, views, keys, scripts, quotas and consent are, and how many."""
    gateway = load_config(path).gateway
    base = make_database(gateway)
    with _as_failures():
        content = asyncio.run(base.describe())
    _print_store(_name_store(gateway), content, as_json=as_json)


@store.command("copy")
@click.option("--to", "url", metavar="URL", help="The database; else the `store` in [gateway].")
@gateway_options("path")
@json_option
def store_copy(url: str | None, path: Path | None, as_json: bool) -> None:
    """Copy the database file of a gateway that does not run to a database in PostgreSQL.

    All of it is copied, or nothing, and only to where nothing is stored. The secret of API keys is
    encrypted with cluster_secret. The file stays. In URL, ${env:NAME} is resolved as in the file.
    """
    gateway = load_config(path, {"store": url} if url else {}).gateway
    if gateway.store is None:
        raise Failed(Exit.USAGE, "name the database: --to URL, or 'store' in [gateway]")
    directory = find_state(path, None).directory
    source = database.DatabaseFile(directory)
    if not source.path.exists():
        raise Failed(Exit.FAILED, f"{source.path} does not exist, so there is nothing to copy")
    from metamcp_supervisor.store import postgres

    target = postgres.PostgresDatabase(
        gateway.store.url, gateway.cluster_secret, directory, answer_s=postgres.COPY_S_MAX
    )

    async def copy() -> database.StoreContent:
        try:
            await target.open()
            return await copy_file(source, target, [PEPPER, HANDLE_KEY])
        finally:
            await target.close()
            await source.close()

    claim_fd = claim_state_dir(directory, "stop it first ('metamcp down')")
    try:
        with _as_failures(), progress("copies the database"):
            content = asyncio.run(copy())
    finally:
        os.close(claim_fd)
    _print_store(_name_store(gateway), content, as_json=as_json)
    if (directory / engine_runs.JOURNAL).exists():
        say(f"runs of workflows stay in {directory / engine_runs.JOURNAL}")


async def copy_file(
    source: database.DatabaseFile, target: "PostgresDatabase", secret_files: Iterable[str]
) -> database.StoreContent:
    """Copy the tables of a file, and the secrets in these files beside it, into tables without any
    row, whole or not at all. Return what is there now. Raises StoreError and OSError."""

    def read_tables(rows: database.Rows) -> dict[str, list[tuple[Any, ...]]]:
        return {table: list(rows.read(database.select("*", table))) for table in database.TABLES}

    none: dict[str, list[tuple[Any, ...]]] = {}
    tables = await source.read(read_tables, none)
    paths = [source.state_dir / name for name in secret_files]
    sealed = {path.name: _read_keys(path) for path in paths if path.exists()}

    def write_tables(rows: database.Rows) -> None:
        if sum(database.count_rows(rows).values()):
            raise StoreError(
                "the store in PostgreSQL has rows already, and a copy would mix them with others;"
                " to begin anew,"
                f" end the gateway that uses it and run DROP SCHEMA {SCHEMA} CASCADE"
            )
        for table, records in tables.items():
            if records:
                marks = ", ".join("?" * len(records[0]))
                rows.change(f"INSERT INTO {table} VALUES ({marks})", records)  # noqa: S608 - of TABLES
        target.secrets.put(rows, sealed)

    await target.write(write_tables)
    return await target.describe()


def _read_keys(path: Path) -> bytes:
    """Return the lines of a file of keys. Raises StoreError if one is damaged, and OSError."""
    lines = path.read_bytes()
    try:
        bytes.fromhex(lines.decode())
    except ValueError:
        raise StoreError(f"{path} is damaged; restore it, or remove it") from None
    return lines


def _name_store(gateway: GatewayConfig) -> str:
    if gateway.store is not None:
        return show_settings.masked_url(gateway.store.url_written)
    return str(gateway.state_dir / database.FILE)


def _print_store(name: str, content: database.StoreContent, *, as_json: bool) -> None:
    newest = len(database.STEPS)
    if as_json:
        answer = {"v": VERSION, "store": name, **structs.asdict(content), "newest": newest}
        click.echo(codec.dump(answer))
        return
    use = ", a gateway uses it" if content.in_use else ""
    click.echo(show.printable(f"{name}: version {content.version} of {newest}{use}"))
    for table, count in content.rows.items():
        click.echo(f"  {count:>8}  {_TABLE_WORDS[table]}")


_TABLE_WORDS = {
    "toolset": "tool sets", "view": "views", "api_key": "API keys", "quota": "quotas of today",
    "script": "versions of scripts", "consent": "grants of consent",
}  # fmt: skip
