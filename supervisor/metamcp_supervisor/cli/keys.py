"""`metamcp keys`: API keys of a gateway, or of its state directory while it does not run.

Owns: these verbs at the prompt, finding the gateway or the state directory, the table. Never: the
rules of keys (`keys.key_rules`), storing them (`keys.api_keys`).
"""

import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from metamcp_supervisor.cli import show
from metamcp_supervisor.cli.ctl import begin, json_option, look_options
from metamcp_supervisor.cli.errors import (
    Group,
    RenamedOption,
    confirm,
    gateway_options,
    say,
    state_option,
    tell,
    yes_option,
)
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.keys.key_rules import KEYS_MAX
from metamcp_supervisor.verbs import Exit, KeyChanged, KeyList, KeyOrder, KeyShown, PepperRotated
from metamcp_worker.access import api_key
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config
    from metamcp_supervisor.keys.api_keys import ApiKeys
    from metamcp_supervisor.store.database import Database

CHANGE_S = 15.0
"""Seconds for a change: fronts have 3 s to confirm it, and the disk may be slow."""
LIST = ("ID", "NAME", "WORKSPACE", "ENDPOINTS", "SCOPES", "EXPIRES", "STATE")
WORDS = {
    "new": "a key is made with 'metamcp keys create NAME'",
    "add": "a key is made with 'metamcp keys create NAME'",
    "ls": "did you mean 'list'?",
    "rm": "a key ends with 'metamcp keys revoke ID'",
    "delete": "a key ends with 'metamcp keys revoke ID'",
}


class GatewayPlace(Struct):
    """Gateway or state directory that verbs are for, as the user said. `quiet`: nothing is printed
    on standard output."""

    runtime_dir: str | None
    state_dir: str | None
    config: Path | None
    quiet: bool = False

    def directory(self) -> str | None:
        """Return the runtime directory, if something was said about it. Raises Failed."""
        if self.runtime_dir is None and self.config is not None:
            return str(load_config(self.config).gateway.runtime_dir)
        return self.runtime_dir


@click.group(cls=Group, words=WORDS)
@look_options
@gateway_options()
@state_option
@click.pass_context
def keys(
    ctx: click.Context,
    runtime_dir: str | None,
    no_color: bool,
    quiet: bool,
    path: Path | None,
    state_dir: str | None,
) -> None:
    """Make, list and end API keys, of a running gateway or before its first start."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)
    ctx.obj = GatewayPlace(runtime_dir, state_dir, path, quiet)


def _id(ctx: click.Context, argument: click.Parameter, word: str) -> str:
    """Return the id in a whole key, whose secret no message may repeat; any other word as it is."""
    match = re.match(rf"{api_key.PREFIX}([^_]{{{api_key.ID_CHARACTERS}}})(?:_|$)", word)
    return match[1] if match else word


key_argument = click.argument("key", metavar="ID", callback=_id)
out_option = click.option(
    "-o", "--out", metavar="FILE", help="Write the key there, for this user alone."
)


@keys.command()
@click.argument("name")
@click.option(
    "--workspace", default="default", show_default=True, metavar="NAME", help="Of this workspace."
)
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME", help="Only there.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="Only this; without it, all at endpoints.",
)
@click.option(
    "--expires", default="90d", show_default=True, metavar="TIME|never", help="When the key ends."
)
@click.option("--principal", default="", metavar="NAME", help="Shares views and sessions with it.")
@click.option("--url", is_flag=True, help="It may stand in a URL, where an endpoint allows that.")
@out_option
@click.option(
    "--quota", "limits", cls=RenamedOption, before=("--limit",), multiple=True, metavar="KEY=N",
    help="As calls_per_minute=60.",
)  # fmt: skip
@json_option
@click.pass_obj
def create(
    location: GatewayPlace,
    name: str,
    workspace: str,
    endpoints: tuple[str, ...],
    scopes: tuple[str, ...],
    expires: str,
    principal: str,
    url: bool,
    out: str | None,
    limits: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a key, and print it this once."""
    order: dict[str, object] = {
        "type": "NewKey", "name": name, "workspace": workspace, "endpoints": endpoints,
        "scopes": scopes, "expires": expires, "principal": principal, "url": url,
        "limits": dict(map(_limit, limits)),
    }  # fmt: skip
    _deliver(location, order, out, "made", as_json=as_json, ends=False)


@keys.command("list")
@json_option
@click.pass_obj
def list_(location: GatewayPlace, as_json: bool) -> None:
    """List all keys, without their secrets."""
    key_list = _all(location)
    if as_json:
        click.echo(codec.dump(key_list))
        return
    foot = "" if key_list.keys else "no key was made yet; 'metamcp keys create NAME' makes one"
    rows = [_row(key) for key in key_list.keys]
    show.picture(show.PrintedTable(LIST if rows else ("",), rows, foot=foot))


@keys.command("show")
@key_argument
@json_option
@click.pass_obj
def show_(location: GatewayPlace, key: str, as_json: bool) -> None:
    """Show one key, by its id or name."""
    raw = _one(location, key)
    if as_json:
        click.echo(raw)
        return
    (record,) = codec.decode_as(KeyList, raw).keys
    for line in _lines(record):
        click.echo(show.printable(line))


@keys.command()
@key_argument
@click.option("--grace", default="", metavar="TIME", help="How long both are valid, as 24h.")
@out_option
@json_option
@click.pass_obj
def rotate(location: GatewayPlace, key: str, grace: str, out: str | None, as_json: bool) -> None:
    """Make a key in place of another one, which ends at once or after --grace."""
    order: dict[str, object] = {"type": "Rotate", "key": key, "grace": grace}
    _deliver(location, order, out, f"made in place of {key}", as_json=as_json, ends=not grace)


@keys.command("rotate-pepper")
@click.option("--grace", default="", metavar="TIME", help="How long keys stay valid, as 7d.")
@yes_option
@json_option
@click.pass_obj
def rotate_pepper(location: GatewayPlace, grace: str, yes: bool, as_json: bool) -> None:
    """Make a new key of the digests; all keys end at once or after --grace.

    A key that 'rotate' makes after that stays valid.
    """
    refusal = Failed(Exit.USAGE, "all keys would end at once; say --grace TIME, or --yes")
    confirm("End all keys at once?", yes=yes or bool(grace), refusal=refusal)
    with connect_if_running(location) as gateway:
        if gateway is not None:
            with progress("waits until every front knows it"):
                raw = gateway.call("keys-rotate-pepper", {"grace": grace}, timeout_s=CHANGE_S)
    if gateway is None:
        raw = _at_rest(location, lambda api_keys: api_keys.rotate_pepper(grace))
    if as_json:
        click.echo(raw)
        return
    rotated = codec.decode_as(PepperRotated, raw)
    verb = "end" if grace else "have ended"
    when = f" at {rotated.until}, or before" if grace else ""
    count = f"{rotated.keys} key{'s' * (rotated.keys != 1)}"
    click.echo(f"the pepper is new; {count} {verb}{when}", err=True)
    for front in rotated.unconfirmed:
        click.echo(f"metamcp: {front} did not confirm this in time", err=True)


@keys.command("rotate-tokens")
@json_option
@click.pass_obj
def rotate_tokens(location: GatewayPlace, as_json: bool) -> None:
    """Make a new key for the tokens of remote servers, and encrypt them again with it.

    A running gateway goes on with its tokens. If this is interrupted, run it again.
    """
    from metamcp_supervisor.cli.backup import find_state
    from metamcp_supervisor.servers.tokens import TokenKeys

    directory = location.state_dir
    if directory is None:
        directory = str(find_state(location.config, location.runtime_dir).directory)
    try:
        names = TokenKeys(Path(directory), os.environ).rotate()
    except MetaMCPError as error:
        raise Failed(Exit.FAILED, f"the key of the tokens is not replaced: {error}") from None
    if as_json:
        tell(files=len(names))
        return
    count = f"{len(names)} file{'s' * (len(names) != 1)}"
    say(f"the key of the tokens is new; {count} encrypted again")


@keys.command()
@key_argument
@json_option
@click.pass_obj
def expire(location: GatewayPlace, key: str, as_json: bool) -> None:
    """End a key now, and keep it in the list."""
    _say(_apply_order(location, {"type": "Expire", "key": key}), "has expired", as_json=as_json)


@keys.command()
@key_argument
@yes_option
@json_option
@click.pass_obj
def revoke(location: GatewayPlace, key: str, yes: bool, as_json: bool) -> None:
    """End a key, its streams, sessions and calls, and forget it."""
    confirm(f"End the key {key}, and forget it?", yes=yes)
    _say(_apply_order(location, {"type": "Revoke", "key": key}), "is revoked", as_json=as_json)


def _limit(text: str) -> tuple[str, float]:
    name, mark, value = text.partition("=")
    if not mark or not (value.isascii() and value.isdigit()):
        raise click.UsageError(f"--quota {text[:64]}: write it like calls_per_minute=60.")
    return name, float(value)


def _deliver(
    location: GatewayPlace,
    order: dict[str, object],
    out: str | None,
    outcome: str,
    *,
    as_json: bool,
    ends: bool,
) -> None:
    """Carry out an order for a new key and print the answer, or write the key to the file `out`. No
    key is created that cannot be delivered."""
    if out is None and location.quiet:
        raise click.UsageError(
            "--quiet would hide the new key: write it to a file with --out FILE."
        )
    if out is None:
        _say(_apply_order(location, order), outcome, as_json=as_json, ends=ends)
        return
    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        message = f"--out: {out} is there already; name another file, or remove that one."
        raise click.UsageError(message) from None
    except OSError as error:
        raise click.UsageError(f"--out: {out!r} cannot be made: {error.strerror}.") from None
    made = ""
    try:
        raw = _apply_order(location, order)
        changed = codec.decode_as(KeyChanged, raw)
        made = changed.id
        os.write(fd, f"{changed.key}\n".encode())
    except (Failed, OSError, KeyboardInterrupt):
        os.unlink(out)
        if made:
            _apply_order(location, {"type": "Revoke", "key": made})
        raise
    finally:
        os.close(fd)
    _say(raw, outcome, as_json=as_json, ends=ends, out=out)


def _say(raw: bytes, outcome: str, *, as_json: bool, ends: bool = True, out: str = "") -> None:
    """Print the answer to an order. `ends`: whether the order ended a key; `out`: file with the new
    key, which is then not printed."""
    changed = codec.decode_as(KeyChanged, raw)
    for doubt in changed.doubts:
        say(f"warning: {doubt}")
    if as_json:
        click.echo(codec.dump(structs.replace(changed, key="")) if out else raw)
        return
    until = f"until {changed.expires}" if changed.expires else "without end"
    valid = f", valid {until}" if changed.key else ""
    click.echo(show.printable(f"key {changed.id} ({changed.name}) {outcome}{valid}"), err=True)
    if changed.old_until:
        click.echo(f"the key before it is valid until {changed.old_until}", err=True)
    for front in changed.unconfirmed:
        then = "and was replaced" if ends else "yet; it knows the key as soon as it answers again"
        click.echo(f"metamcp: {front} did not confirm this in time {then}", err=True)
    if out:
        click.echo(show.printable(f"the key is in {out}; it is shown nowhere else"), err=True)
    elif changed.key:
        click.echo("The key is shown this once; keep it in a safe place:", err=True)
        click.echo(changed.key)


def _row(key: KeyShown) -> tuple[str, ...]:
    return (
        key.id, key.name, key.workspace, ", ".join(key.endpoints) or "all",
        ", ".join(key.scopes) or "all", key.expires or "never", key.state,
    )  # fmt: skip


def _lines(key: KeyShown) -> Iterator[str]:
    yield f"id          {key.id}"
    yield f"name        {key.name}"
    yield f"workspace   {key.workspace}"
    yield f"endpoints   {', '.join(key.endpoints) or 'all'}"
    yield f"scopes      {', '.join(key.scopes) or 'all'}"
    yield f"principal   {key.principal}"
    yield f"expires     {key.expires or 'never'} ({key.state})"
    yield f"in URLs     {'where the endpoint allows it' if key.url else 'no'}"
    yield f"limits      {', '.join(f'{k}={v:g}' for k, v in key.limits.items()) or 'none'}"
    yield f"created     {key.created} by {key.created_by or 'nobody known'}"


def _all(location: GatewayPlace) -> KeyList:
    """Return all keys, the oldest first."""
    keys: list[KeyShown] = []
    with connect_if_running(location) as gateway:
        more = gateway is not None
        while gateway is not None and more:
            raw = gateway.call("keys", {"after": keys[-1].id if keys else ""})
            page = codec.decode_as(KeyList, raw)
            keys += page.keys
            more = page.more > 0
    if gateway is None:
        raw = _at_rest(location, lambda api_keys: api_keys.list_keys([], most=KEYS_MAX))
        keys += codec.decode_as(KeyList, raw).keys
    return KeyList(keys=tuple(sorted(keys, key=lambda key: (key.created, key.id))))


def _one(location: GatewayPlace, name: str) -> bytes:
    with connect_if_running(location) as gateway:
        if gateway is not None:
            return gateway.call("keys", {"names": [name]})
    return _at_rest(location, lambda api_keys: api_keys.list_keys([name]))


def _apply_order(location: GatewayPlace, order: dict[str, object]) -> bytes:
    with connect_if_running(location) as gateway:
        if gateway is not None:
            with progress("waits until every front knows it"):
                return gateway.call("keys-change", {"order": order}, timeout_s=CHANGE_S)
    key_order = codec.decode_as(_Order, codec.dump({"order": order})).order
    by = f"user id {os.geteuid()}"
    return _at_rest(location, lambda api_keys: api_keys.carry_out_order(key_order, by))


class _Order(Struct):
    order: KeyOrder


@contextmanager
def connect_if_running(location: GatewayPlace) -> Generator[client.ControlClient | None]:
    """Yield a connection to the gateway, or None if it does not run. Raises Failed."""
    gateway = None
    if location.state_dir is None:
        directory = location.directory()
        try:
            gateway = client.connect(directory)
        except Failed as failed:
            if failed.exit != Exit.NOT_RUNNING or location.runtime_dir is not None:
                raise
    if gateway is None:
        yield None
        return
    with gateway:
        yield gateway


def _at_rest(location: GatewayPlace, ask: Callable[["ApiKeys"], Awaitable[object]]) -> bytes:
    """Return the answer of the keys in the state directory of a gateway that does not run. Raises
    Failed."""
    from metamcp_supervisor.config import workspaces
    from metamcp_supervisor.keys.api_keys import ApiKeys
    from metamcp_supervisor.store.database import Database, DatabaseFile, make_database

    places: dict[str, str] | None = None
    servers: Collection[str] = ()
    if location.state_dir is not None:
        database: Database = DatabaseFile(Path(location.state_dir))
    else:
        config = load_config(location.config)
        database = make_database(config.gateway)
        places = workspaces.of_endpoints(config)
        servers = workspaces.labels(config)

    async def answer() -> object:
        api_keys = ApiKeys(database, lambda: places, time.time, servers=lambda: servers)
        await api_keys.begin()
        return await ask(api_keys)

    return at_rest(database, answer)


def at_rest(database: "Database", ask: Callable[[], Awaitable[object]]) -> bytes:
    """Return an answer from the database of a gateway that does not run. Raises Failed."""
    import asyncio

    async def answer() -> object:
        try:
            await database.open()
            return await ask()
        finally:
            await database.close()

    claim_fd = claim_state_dir(
        database.state_dir, "to ask it, name its --runtime-dir instead of --state-dir"
    )
    try:
        return codec.dump(asyncio.run(answer()))
    except ProtocolError as error:
        raise Failed(Exit(error.code), error.message) from None
    except MetaMCPError as error:
        raise Failed(Exit.of(error), str(error)) from None
    finally:
        os.close(claim_fd)


def claim_state_dir(state_dir: Path, remedy: str, *, gives: bool = False) -> int:
    """Take the state directory of a gateway that does not run, to write there. `remedy`: what to do
    if it does run; `gives`: for a restore, which gives what it writes to the owner of the
    directory, so root may. Return the descriptor that holds it. Raises Failed and OSError."""
    from metamcp_supervisor import runtime

    is_given = gives and os.geteuid() == 0
    if state_dir.exists() and (owner := state_dir.stat().st_uid) != os.geteuid() and not is_given:
        reason = f"{state_dir} belongs to user id {owner}, who could not read what is written"
        raise Failed(Exit.DENIED, f"{reason}; run this as that user")
    try:
        return runtime.own(str(state_dir), remedy, restores=gives)
    except runtime.AlreadyRunning as error:
        raise Failed(Exit.ALREADY_RUNNING, str(error)) from None
    except runtime.RuntimeDirUnfit as error:
        raise Failed(Exit.FAILED, str(error)) from None


def load_config(main: Path | None, flags: Mapping[str, str] | None = None) -> "Config":
    """Return the configuration whose gateway is meant, of the file `main` or else of this folder.
    `flags`: keys of `[gateway]` that are set over it. Raises Failed."""
    from metamcp_supervisor.config import sources
    from metamcp_supervisor.config.config import ConfigInvalid

    try:
        return sources.load(
            main, environ=os.environ, cwd=Path.cwd(), home=Path.home(), flags=flags or {}
        )
    except ConfigInvalid as invalid:
        advice = "so the state directory is not known; name it with --state-dir"
        first, *more = (*map(str, invalid.problems), advice)
        raise Failed(Exit.CONFIG, first, tuple(more)) from None
