"""`metamcp ctl drain`, `undrain`, `quarantine`, `clear`, `roll`, `dump-stacks`: rarely needed.

Owns: these verbs at the prompt. Never: what they do (`orders`), how they do it (the gateway).
"""

import click

from metamcp_supervisor.cli.ctl import complete_names, key_option, names_argument
from metamcp_supervisor.watched import client
from metamcp_worker import codec

ROLL_S_MAX = 900.0
"""Sixteen fronts that each wait half a minute for their last calls."""


@click.command()
@names_argument
@key_option
@click.pass_obj
def drain(runtime_dir: str | None, names: tuple[str, ...], key: str) -> None:
    """Keep new calls from servers. They run on, and finish what they have."""
    _order(runtime_dir, "drain", names, key)


@click.command()
@names_argument
@key_option
@click.pass_obj
def undrain(runtime_dir: str | None, names: tuple[str, ...], key: str) -> None:
    """Let calls come again."""
    _order(runtime_dir, "undrain", names, key)


@click.command()
@names_argument
@click.option("--why", default="", metavar="TEXT", help="What people are told.")
@key_option
@click.pass_obj
def quarantine(runtime_dir: str | None, names: tuple[str, ...], why: str, key: str) -> None:
    """Stop servers; nothing starts them again but 'clear' and 'start'."""
    _order(runtime_dir, "quarantine", names, key, why=why)


@click.command()
@names_argument
@key_option
@click.pass_obj
def clear(runtime_dir: str | None, names: tuple[str, ...], key: str) -> None:
    """Let servers out of quarantine, and start them."""
    _order(runtime_dir, "clear", names, key)


@click.command()
@key_option
@click.pass_obj
def roll(runtime_dir: str | None, key: str) -> None:
    """Another process for each front, one after the other; no client is refused."""
    with client.connect(runtime_dir) as gateway:
        gateway.call("roll", {"key": key}, timeout_s=ROLL_S_MAX)
    click.echo("fronts: rolled")


@click.command("dump-stacks")
@click.argument("name", shell_complete=complete_names)
@click.pass_obj
def dump_stacks(runtime_dir: str | None, name: str) -> None:
    """What the worker of a server is doing at this moment. It goes on."""
    with client.connect(runtime_dir) as gateway:
        found = codec.value(gateway.call("dump-stacks", {"name": name}))
    click.echo(found["stacks"])


def _order(
    runtime_dir: str | None, verb: str, names: tuple[str, ...], key: str, **more: str
) -> None:
    with client.connect(runtime_dir) as gateway:
        gateway.call(verb, {"names": names, "key": key, **more})
    for name in dict.fromkeys(names):
        click.echo(f"{name}: {verb} requested")
