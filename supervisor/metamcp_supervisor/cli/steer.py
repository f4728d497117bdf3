"""`metamcp ctl drain`, `undrain`, `quarantine`, `clear`, `roll`, `dump-stacks`: rarely needed.

Owns: these verbs at the prompt. Never: what they do (`orders`), how they do it (the gateway).
"""

import time

import click

from metamcp_supervisor.cli import refusing
from metamcp_supervisor.cli.ctl import (
    Duration,
    complete_names,
    json_option,
    key_option,
    names_argument,
    tell_ordered,
)
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus, Upgrade
from metamcp_worker.ipc import codec

ROLL_S_MAX = 900.0
"""Sixteen fronts that each wait half a minute for their last calls."""
AGAIN_S = 0.05
"""Between two looks whether the new program is there."""


@click.command()
@names_argument
@json_option
@key_option
@click.pass_obj
def drain(runtime_dir: str | None, names: tuple[str, ...], as_json: bool, key: str) -> None:
    """Keep new calls from servers. They run on, and finish what they have."""
    _order(runtime_dir, "drain", names, key, as_json=as_json)


@click.command()
@names_argument
@json_option
@key_option
@click.pass_obj
def undrain(runtime_dir: str | None, names: tuple[str, ...], as_json: bool, key: str) -> None:
    """Let calls come again."""
    _order(runtime_dir, "undrain", names, key, as_json=as_json)


@click.command()
@names_argument
@click.option("--why", default="", metavar="TEXT", help="What people are told.")
@json_option
@key_option
@click.pass_obj
def quarantine(
    runtime_dir: str | None, names: tuple[str, ...], why: str, as_json: bool, key: str
) -> None:
    """Stop servers; nothing starts them again but 'clear' and 'start'."""
    _order(runtime_dir, "quarantine", names, key, as_json=as_json, why=why)


@click.command()
@names_argument
@json_option
@key_option
@click.pass_obj
def clear(runtime_dir: str | None, names: tuple[str, ...], as_json: bool, key: str) -> None:
    """Let servers out of quarantine, and start them."""
    _order(runtime_dir, "clear", names, key, as_json=as_json)


@click.command()
@json_option
@key_option
@click.pass_obj
def roll(runtime_dir: str | None, as_json: bool, key: str) -> None:
    """Another process for each front, one after the other; no client is refused."""
    with client.connect(runtime_dir) as gateway:
        gateway.call("roll", {"key": key}, timeout_s=ROLL_S_MAX)
    if as_json:
        refusing.tell(verb="roll")
    else:
        click.echo("fronts: rolled")


@click.command()
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="2m", show_default=True,
    help="How long to wait.",
)  # fmt: skip
@json_option
@click.pass_obj
def upgrade(runtime_dir: str | None, timeout_s: float, as_json: bool) -> None:
    """Let the version that is installed now take over. Servers, sessions and connections stay."""
    end = time.monotonic() + timeout_s
    with client.connect(runtime_dir) as gateway:
        before = codec.typed(GatewayStatus, gateway.call("status"))
        told = _told(gateway, end)
    begun = time.monotonic()
    after = _next(runtime_dir, before, end)
    took_s = time.monotonic() - begun
    if as_json:
        refusing.tell(
            before=before.version, after=after.version, took_s=round(took_s, 3),
            servers=told.servers, sessions=told.sessions,
        )  # fmt: skip
        return
    took = f"{took_s:.1f} s"
    servers = "1 server" if told.servers == 1 else f"{told.servers} servers"
    sessions = "1 session" if told.sessions == 1 else f"{told.sessions} sessions"
    click.echo(
        f"upgraded: {before.version} → {after.version} in {took}; {servers} and {sessions} kept"
    )


def _told(gateway: client.Client, end: float) -> Upgrade:
    """What is taken over. Raises Failed when nothing is."""
    told: Upgrade | None = None
    try:
        for _, raw in gateway.stream("upgrade", timeout_s=max(1.0, end - time.monotonic())):
            told = codec.typed(Upgrade, raw)
    except Failed as failed:
        if told is None or failed.exit != Exit.NOT_RUNNING:
            raise
    if told is None:
        raise Failed(Exit.FAILED, "the gateway said nothing of an upgrade")
    return told


def _next(runtime_dir: str | None, before: GatewayStatus, end: float) -> GatewayStatus:
    """The status as soon as the new program answers. Raises Failed."""
    while (left_s := end - time.monotonic()) > 0:
        with client.connect(runtime_dir, timeout_s=left_s) as gateway:
            found = codec.typed(GatewayStatus, gateway.call("status", timeout_s=left_s))
        if found.pid == before.pid and found.upgrades > before.upgrades:
            return found
        time.sleep(AGAIN_S)
    raise Failed(Exit.TIMEOUT, "the new program does not answer yet; 'metamcp events' shows it")


@click.command("dump-stacks")
@click.argument("name", shell_complete=complete_names)
@click.pass_obj
def dump_stacks(runtime_dir: str | None, name: str) -> None:
    """What the worker of a server is doing at this moment. It goes on."""
    with client.connect(runtime_dir) as gateway:
        found = codec.value(gateway.call("dump-stacks", {"name": name}))
    click.echo(found["stacks"])


def _order(
    runtime_dir: str | None,
    verb: str,
    names: tuple[str, ...],
    key: str,
    *,
    as_json: bool,
    **more: str,
) -> None:
    with client.connect(runtime_dir) as gateway:
        gateway.call(verb, {"names": names, "key": key, **more})
    tell_ordered(verb, names, as_json=as_json)
