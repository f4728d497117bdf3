"""`metamcp ctl set` and `signal`: what is done to one server, and to the levels of the log.

Owns: these verbs at the prompt. Never: what can be set and sent (`adjusting`, `overrides`,
`levels`).
"""

import click

from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import Duration, complete_names, json_option, key_option
from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import Overridden
from metamcp_worker.ipc import codec

_LOG = "log."
"""Before what is set of the log; no name of a server has a dot."""


def _complete_signals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.control.adjusting import SIGNALS

    return [name for name in SIGNALS if name.startswith(incomplete.upper())]


def _complete_set(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.config.levels import KEYS

    own = [key for key in KEYS if key.startswith(incomplete)] if incomplete else []
    return [*complete_names(ctx, param, incomplete), *own]


def _complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.config.levels import PREFIX, WORDS
    from metamcp_supervisor.config.overrides import SETTINGS

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
@key_option
@click.pass_obj
def set_(
    runtime_dir: str | None,
    name: str,
    settings: tuple[str, ...],
    for_s: float,
    clear: bool,
    as_json: bool,
    key: str,
) -> None:
    """Other settings for a server than in the file, for a time.

    'set log.level debug' and 'set log.levels.front debug' are for the log of the gateway; they are
    over with the next reload, too.
    """
    words = (name, *settings)
    own = name.startswith(_LOG)
    who = "log" if own else name
    asked = {
        "name": "" if own else name,
        "settings": _levels(words, clear=clear) if own else _pairs(settings),
        "for_s": for_s,
        "clear": clear,
        "key": key,
    }
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("set", asked)
    if as_json:
        click.echo(raw)
        return
    found = codec.typed(list[Overridden], codec.level(raw)["overrides"])
    for each in found:
        text = columns.override_text(each, show.clock(each.until))
        click.echo(f"{who}: {show.printable(text)}")
    if clear:
        click.echo(f"{who}: as in the file")


@click.command("signal")
@click.argument("name", shell_complete=complete_names)
@click.argument("sig", metavar="SIGNAL", shell_complete=_complete_signals)
@json_option
@key_option
@click.pass_obj
def signal_(runtime_dir: str | None, name: str, sig: str, as_json: bool, key: str) -> None:
    """Send a signal to a server's own process: HUP, SIGUSR1, 15, …"""
    with client.connect(runtime_dir) as gateway:
        asked = {"name": name, "signal": sig, "key": key}
        raw = gateway.call("signal", asked)
    if as_json:
        click.echo(raw)
        return
    found = codec.value(raw)
    click.echo(f"{name}: {found['signal']} sent to process {found['pid']}")


def _levels(words: tuple[str, ...], *, clear: bool) -> dict[str, str]:
    """`log.level debug` is the same as `log.level=debug`. With `clear` all of them are over."""
    if clear:
        if given := [word for word in words if "=" in word or not word.startswith(_LOG)]:
            raise click.UsageError(f"{given[0]!r} is too much: --clear is for all levels")
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
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{setting!r} is no KEY=VALUE, such as timeout=5s")
        if key.strip() in found:
            raise click.UsageError(f"{key.strip()!r} is there twice")
        found[key.strip()] = value.strip()
    return found
