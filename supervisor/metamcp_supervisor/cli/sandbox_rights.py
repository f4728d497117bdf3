"""`metamcp sandbox learn`: the lines that a confined server needs in its table.

Owns: where complaints of a server are looked for, the calls that are made again, the proposal.
Never: the patterns of complaints (`confinement.denials` of the worker), changing the configuration.
"""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.cli import recordings, replay, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration, complete_names, json_option
from metamcp_supervisor.cli.errors import Group
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.cli.recordings import config_option, state_option
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import VERSION, Description, Exit
from metamcp_worker.confinement.denials import DeniedRight, denials
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import FinishedCall
from metamcp_worker.ipc.spec import ConfinementSpec

CALLS_MAX = 200
"""Maximum recorded calls that are made again, the newest of each tool and arguments."""
TEXT_CHARACTERS_MAX = 64 * 1024
"""Maximum characters of a result that are searched."""


@click.group(cls=Group)
def sandbox() -> None:
    """Find out what a confined server needs."""


@sandbox.command()
@click.argument("name", shell_complete=complete_names)
@click.option("--replay", "again", is_flag=True, help="Make its recorded calls again first.")
@click.option("--yes", is_flag=True, help="Also calls of tools that may change something.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="1m", show_default=True, metavar="DURATION",
    help="How long each answer may take.",
)  # fmt: skip
@click.option("--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket.")
@credential_options
@json_option
@state_option
@config_option
def learn(
    name: str,
    again: bool,
    yes: bool,
    timeout_s: float,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    as_json: bool,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Propose the lines that server NAME needs, from what it complained of.

    Use the server first, or give --replay. The log, the exits and the recorded answers of the
    server are searched. The configuration stays as it is: add the lines that you agree with to the
    table of the server, and reload.
    """

    def work() -> int:
        place = recordings.place(state_dir, path)
        calls = _calls(place, name) if place.any else []
        texts = [text for call in calls if (text := _recorded(call))]
        if again:
            from metamcp_supervisor.cli.connect import trust_of

            trust = trust_of(key_env, key_file, ca, runtime_dir or client.meant())
            texts += [_made_again(one, runtime_dir, timeout_s, trust, yes=yes) for one in calls]
        with client.connect(runtime_dir) as gateway:
            found = codec.typed(Description, gateway.call("describe", {"name": name}))
        if not found.server.sandbox or found.server.sandbox == "none":
            raise Failed(Exit.USAGE, f"{name} is not confined, so it lacks no right")
        texts += [line.text for line in found.log]
        texts += [ended.message for ended in found.exits]
        spec = spec_of(found)
        lines = [line for text in texts for line in text.splitlines()]
        proposed = proposal(denials(lines, spec, _readable(found.config)), spec)
        if as_json:
            click.echo(codec.dump({"v": VERSION, "server": name, "lines": proposed}))
        else:
            _print(name, proposed, len(calls))
        return Exit.OK

    recordings.ending(work)


def spec_of(found: Description) -> ConfinementSpec:
    """Return the confinement of a server, as far as complaints depend on it."""
    network: Any = found.config.get("network", "host")
    if network not in ("host", "none"):
        return ConfinementSpec(profile="basic", tcp_ports=tuple(network["tcp_ports"]))
    none = network == "none" or (found.server.sandbox == "strict" and "network" not in found.config)
    return ConfinementSpec(profile="basic", network="none" if none else "host")


def proposal(denied: Iterable[DeniedRight], spec: ConfinementSpec) -> list[str]:
    """Return lines of TOML that give these rights. A path below another one needs no line."""
    rights = list(denied)
    found: list[str] = []
    written = _outermost(path for right, path in rights if right == "write")
    read = _outermost(path for right, path in rights if right == "read")
    read = [path for path in read if not _below(path, written)]
    for key, paths in (("read", read), ("write", written)):
        if paths:
            found.append(f"{key} = {codec.dump(paths).decode()}")
    if any(right == "needs" for right, _ in rights):
        found.append('needs = ["processes"]')
    if ports := {int(path) for right, path in rights if right == "tcp_ports"}:
        listed = ", ".join(map(str, sorted(ports | set(spec.tcp_ports))))
        found.append(f"network = {{ tcp_ports = [{listed}] }}")
    return found


def _outermost(paths: Iterable[str]) -> list[str]:
    every = sorted(set(paths))
    return [path for path in every if not _below(path, [one for one in every if one != path])]


def _below(path: str, others: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{one.rstrip('/')}/") for one in others)


def _readable(config: dict[str, Any]) -> Iterator[str]:
    yield from config.get("read", ())
    if folder := config.get("cwd"):
        yield str(folder)


def _calls(place: recordings.RecordingPlace, name: str) -> list[FinishedCall]:
    """Return the newest recorded call of each tool and arguments of a server."""
    found: dict[tuple[str, str, bytes], FinishedCall] = {}
    for line in recordings.lines(place.folder):
        call = line.call
        if call is not None and call.server == name:
            key = call.method, call.name, bytes(call.arguments or b"")
            found.pop(key, None)
            found[key] = call
    return list(found.values())[-CALLS_MAX:]


def _recorded(call: FinishedCall) -> str:
    return _text(bytes(call.result or b""))


def _text(result: bytes) -> str:
    """Return the text of a result in JSON, line by line."""
    return result.decode(errors="replace")[:TEXT_CHARACTERS_MAX].replace("\\n", "\n")


def _made_again(
    call: FinishedCall, runtime_dir: str | None, timeout_s: float, trust: Any, *, yes: bool
) -> str:
    """Return the text of the answer to this call, made again; empty if it is not to be made."""
    try:
        params = replay.params(call)
        url = replay.url_of(call.endpoint, runtime_dir)
        return _text(asyncio.run(_answer(call, params, url, trust, timeout_s, yes=yes)))
    except Failed as failed:
        click.echo(f"metamcp: {show.printable(str(failed))}", err=True)
        return str(failed)


async def _answer(
    call: FinishedCall, params: Any, url: str, trust: Any, timeout_s: float, *, yes: bool
) -> bytes:
    """Return the raw answer to this call; empty if it is not to be made. Raises Failed."""
    async with replay.client_for(call, url, trust, timeout_s) as asker:
        called = call.method == tool_call.CALL
        tool = await asker.tool(call.name) if called else None
        if called and not yes and not tool_call.reads_only(tool or {}):
            text = f"{call.name} may change something, and is not called without --yes"
            click.echo(f"metamcp: {text}", err=True)
            return b""
        with progress(f"calls {call.name}"):
            _, result = tool_call.outcome_of(await asker.ask(call.method, params, tool))
        return bytes(result)


def _print(name: str, lines: list[str], calls: int) -> None:
    if not lines:
        click.echo(f"{name} complained of no right; {calls} recorded calls were looked at")
        return
    click.echo(f"# {name} complained of these rights; add to [servers.{name}] what you agree with:")
    for line in lines:
        click.echo(show.printable(line))
