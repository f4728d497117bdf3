"""`metamcp ctl set`, `signal`, `drain`, `undrain`, `quarantine`, `clear`, `roll`, `upgrade` and
`dump-stacks`: orders that are rarely needed; `metamcp down`: end the gateway of this folder.

Never: carrying the orders out (`control.orders`), how a gateway ends (`gateway`).
"""

import os
import signal
import time

import click

from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import (
    Duration,
    complete_names,
    json_option,
    names_argument,
    tell_ordered,
    tell_warning,
)
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus, OverriddenSetting, Upgrade
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

ROLL_S_MAX = 900.0
"""Seconds to wait for a roll; enough for sixteen fronts that each wait half a minute for their last
calls."""
AGAIN_S = 0.05
"""Seconds between two checks whether the new program is there, or the gateway is gone."""


@click.command()
@names_argument
@json_option
@click.pass_obj
def drain(runtime_dir: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Keep new calls from servers, which go on running and finish the calls they have."""
    _order(runtime_dir, "drain", names, as_json=as_json)


@click.command()
@names_argument
@json_option
@click.pass_obj
def undrain(runtime_dir: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Let new calls come to servers again."""
    _order(runtime_dir, "undrain", names, as_json=as_json)


@click.command()
@names_argument
@click.option("--why", default="", metavar="TEXT", help="What people are told.")
@json_option
@click.pass_obj
def quarantine(runtime_dir: str | None, names: tuple[str, ...], why: str, as_json: bool) -> None:
    """Stop servers; nothing starts them again but 'clear' and 'start'."""
    _order(runtime_dir, "quarantine", names, as_json=as_json, why=why)


@click.command()
@names_argument
@json_option
@click.pass_obj
def clear(runtime_dir: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Let servers out of quarantine, and start them."""
    _order(runtime_dir, "clear", names, as_json=as_json)


@click.command()
@json_option
@click.pass_obj
def roll(runtime_dir: str | None, as_json: bool) -> None:
    """Replace the process of each front, one after the other; no client is refused."""
    with client.connect(runtime_dir) as gateway, progress("replaces the fronts"):
        gateway.call("roll", timeout_s=ROLL_S_MAX)
    if as_json:
        errors.tell(verb="roll")
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
    with progress("starts the new program"):
        with client.connect(runtime_dir) as gateway:
            before = codec.decode_as(GatewayStatus, gateway.call("status"))
            report = _request_upgrade(gateway, end)
        begun = time.monotonic()
        after = _next(runtime_dir, before, end)
        took_s = time.monotonic() - begun
    if as_json:
        errors.tell(
            before=before.version, after=after.version, took_s=round(took_s, 3),
            servers=report.servers, sessions=report.sessions,
        )  # fmt: skip
        return
    took = f"{took_s:.1f} s"
    servers = "1 server" if report.servers == 1 else f"{report.servers} servers"
    sessions = "1 session" if report.sessions == 1 else f"{report.sessions} sessions"
    click.echo(
        f"upgraded: {before.version} → {after.version} in {took}; {servers} and {sessions} kept"
    )


def _request_upgrade(gateway: client.ControlClient, end: float) -> Upgrade:
    """Return what is taken over. Raises Failed if nothing is."""
    report: Upgrade | None = None
    try:
        for _, raw in gateway.stream("upgrade", timeout_s=max(1.0, end - time.monotonic())):
            report = codec.decode_as(Upgrade, raw)
    except Failed as failed:
        if report is None or failed.exit != Exit.NOT_RUNNING:
            raise
    if report is None:
        raise Failed(Exit.FAILED, "the gateway said nothing of an upgrade")
    return report


def _next(runtime_dir: str | None, before: GatewayStatus, end: float) -> GatewayStatus:
    """Return the status as soon as the new program answers. Raises Failed."""
    while (left_s := end - time.monotonic()) > 0:
        with client.connect(runtime_dir, timeout_s=left_s) as gateway:
            status = codec.decode_as(GatewayStatus, gateway.call("status", timeout_s=left_s))
        if status.pid == before.pid and status.upgrades > before.upgrades:
            return status
        time.sleep(AGAIN_S)
    raise Failed(Exit.TIMEOUT, "the new program does not answer yet; 'metamcp events' shows it")


@click.command("dump-stacks")
@click.argument("name", shell_complete=complete_names)
@json_option
@click.pass_obj
def dump_stacks(runtime_dir: str | None, name: str, as_json: bool) -> None:
    """Show what the worker of a server is doing at this moment. The worker goes on."""
    with client.connect(runtime_dir) as gateway:
        reply = codec.value(gateway.call("dump-stacks", {"name": name}))
    if as_json:
        errors.tell(name=name, stacks=reply["stacks"])
    else:
        click.echo(reply["stacks"])


def _order(
    runtime_dir: str | None,
    verb: str,
    names: tuple[str, ...],
    *,
    as_json: bool,
    **more: str,
) -> None:
    with client.connect(runtime_dir) as gateway:
        ordered = codec.value(gateway.call(verb, {"names": names, **more}))
    tell_ordered(verb, names, ordered, as_json=as_json)


_LOG = "log."
"""Prefix of the settings of the log; names of servers do not contain a dot."""


def _complete_signals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.control.set_signal import SIGNALS

    return [name for name in SIGNALS if name.startswith(incomplete.upper())]


def _complete_set(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.config.overrides import KEYS

    own = [key for key in KEYS if key.startswith(incomplete)] if incomplete else []
    return [*complete_names(ctx, param, incomplete), *own]


def _complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.config.overrides import PREFIX, SETTINGS, WORDS

    if str(ctx.params.get("name") or "").startswith(PREFIX):
        return [word for word in WORDS if word.startswith(incomplete)]
    return [f"{key}=" for key in SETTINGS if key.startswith(incomplete)]


@click.command("set")
@click.argument("name", metavar="NAME|log.KEY", shell_complete=_complete_set)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE…]", shell_complete=_complete_settings)
@click.option(
    "--until",
    "for_s",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long; then it is as in the file again. At most 24h.",
)
@click.option("--clear", is_flag=True, help="Everything as in the file again, now.")
@json_option
@click.pass_obj
def set_(
    runtime_dir: str | None,
    name: str,
    settings: tuple[str, ...],
    for_s: float,
    clear: bool,
    as_json: bool,
) -> None:
    """Change settings of a server for a time, without changing the file.

    'set log.level debug' and 'set log.levels.front debug' are for the log of the gateway; they also
    end with the next reload.
    """
    words = (name, *settings)
    own = name.startswith(_LOG)
    who = "log" if own else name
    params = {
        "name": "" if own else name,
        "settings": _levels(words, clear=clear) if own else _pairs(settings),
        "for_s": for_s,
        "clear": clear,
    }
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("set", params)
    if as_json:
        click.echo(raw)
        return
    overrides = codec.decode_as(list[OverriddenSetting], codec.level(raw)["overrides"])
    tell_warning(codec.value(raw))
    for each in overrides:
        text = columns.override_text(each, columns.clock(each.until))
        click.echo(f"{who}: {show.printable(text)}")
    if clear:
        click.echo(f"{who}: as in the file")


@click.command("signal")
@click.argument("name", shell_complete=complete_names)
@click.argument("sig", metavar="SIGNAL", shell_complete=_complete_signals)
@json_option
@click.pass_obj
def signal_(runtime_dir: str | None, name: str, sig: str, as_json: bool) -> None:
    """Send a signal to a server's own process: HUP, SIGUSR1, 15, …"""
    with client.connect(runtime_dir) as gateway:
        params = {"name": name, "signal": sig}
        raw = gateway.call("signal", params)
    if as_json:
        click.echo(raw)
        return
    reply = codec.value(raw)
    click.echo(f"{name}: {reply['signal']} sent to process {reply['pid']}")


def _levels(words: tuple[str, ...], *, clear: bool) -> dict[str, str]:
    """Return the levels of the log: `log.level debug` is the same as `log.level=debug`. `clear`
    ends all levels that were set."""
    if clear:
        if surplus := [word for word in words if "=" in word or not word.startswith(_LOG)]:
            raise click.UsageError(f"{surplus[0]!r} is too much: --clear is for all levels")
        return {}
    pairs: list[str] = []
    for word in words:
        if word.startswith(_LOG) or not pairs:
            pairs.append(word)
        elif "=" in pairs[-1]:
            raise click.UsageError(f"{word!r} is not a level of the log, such as log.level=debug")
        else:
            pairs[-1] = f"{pairs[-1]}={word}"
    if bare := [pair for pair in pairs if "=" not in pair]:
        raise click.UsageError(f"{bare[0]} has no level; say it as in: log.level debug")
    return _pairs(tuple(pairs))


def _pairs(settings: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{setting!r} is not KEY=VALUE, such as timeout=5s")
        if key.strip() in pairs:
            raise click.UsageError(f"{key.strip()!r} is there twice")
        pairs[key.strip()] = value.strip()
    return pairs


@click.command()
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="90s", show_default=True,
    help="How long to wait.",
)  # fmt: skip
@errors.yes_option
@json_option
@click.pass_obj
def down(runtime_dir: str | None, timeout_s: float, yes: bool, as_json: bool) -> None:
    """End the gateway of this folder, and its servers after their calls. Exit 5 if none runs."""
    with client.connect_here(runtime_dir) as gateway:
        pid = gateway.pid()
        if pid <= 0:
            pid = codec.decode_as(GatewayStatus, gateway.call("status")).pid
    errors.confirm(f"End the gateway (process {pid}) and its servers?", yes=yes)
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        text = f"the gateway (process {pid}) belongs to another user; run this as that user"
        raise Failed(Exit.DENIED, text) from None
    except ProcessLookupError:
        pass  # it was about to end
    end = time.monotonic() + timeout_s
    with progress(f"the gateway (process {pid}) ends its servers after their calls"):
        while _runs(pid):
            if time.monotonic() > end:
                text = f"the gateway (process {pid}) is still ending after {timeout_s:g} s"
                raise Failed(Exit.TIMEOUT, f"{text}; 'metamcp status' shows what it waits for")
            time.sleep(AGAIN_S)
    if as_json:
        errors.tell(pid=pid, ended=True)
    else:
        click.echo(f"the gateway (process {pid}) has ended")


def _runs(pid: int) -> bool:
    """Whether the process runs. A dead process that its parent has not waited for has ended."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # just gone, as the next check finds, or a system without /proc
        return True
