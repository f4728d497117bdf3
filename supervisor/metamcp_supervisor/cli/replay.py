"""`metamcp replay`: a recorded call once more, and whether the same comes of it.

Owns: which calls can be replayed, the question before a tool that may change something, the
comparison. Never: reading recordings (`recorded`), requests (`asking`).
"""

import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import UNSET, Raw

from metamcp_supervisor.cli import columns, recorded, show
from metamcp_supervisor.cli.asking import MODERN, Asker, outcome_of
from metamcp_supervisor.cli.ctl import Duration
from metamcp_supervisor.cli.finished import config_option, pretty, state_option
from metamcp_supervisor.cli.refusing import told
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.finished import ARGUMENTS, RESULT, FinishedCall
from metamcp_worker.runtime.masking import MASK

DIFF_LINES_MAX = 40
"""What differs after so many lines is another result."""


@click.command()
@click.argument("word", metavar="ID")
@click.option("--endpoint", metavar="NAME", help="Another one than that of the recorded call.")
@click.option("--yes", is_flag=True, help="Also a tool that may change something, unasked.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, metavar="DURATION",
    help="How long the answer may take.",
)  # fmt: skip
@click.option("--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket.")
@state_option
@config_option
@told
def replay(
    word: str,
    endpoint: str | None,
    yes: bool,
    timeout_s: float,
    runtime_dir: str | None,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Make a recorded call once more, with the same arguments, and compare what comes of it.

    Exit code 1 if it is something else than before. 'metamcp calls' shows what is recorded.
    """

    def work() -> int:
        call = recorded.find(recorded.place(state_dir, path), word)
        asked = params(call)
        url = _url(endpoint or call.endpoint, runtime_dir)
        with Asker(url, call.protocol or MODERN, timeout_s) as asker:
            called = call.method == "tools/call"
            tool = _ask_first(asker, call.name, yes=yes) if called else None
            ended, result = outcome_of(asker.ask(call.method, asked, tool))
        return _told(call, ended, result)

    recorded.ending(work)


def params(call: FinishedCall) -> dict[str, object]:
    """What is to be asked. Raises Failed for a call of which that is not known."""
    why = ""
    if call.arguments is UNSET and call.arguments_bytes:
        why = 'its arguments were not recorded; [recording] calls = "full" records them'
    elif ARGUMENTS in call.masked or MASK in call.name:
        why = "a secret was taken out of its arguments"
    elif ARGUMENTS in call.cut:
        why = "its arguments were cut; a larger 'body_max' in [recording] keeps them"
    if why:
        raise Failed(Exit.FAILED, f"{call.id} cannot be replayed: {why}")
    if call.method == "resources/read":
        return {"uri": call.name}
    arguments = Raw(b"{}") if call.arguments is UNSET else call.arguments
    return {"name": call.name, "arguments": arguments}


def _url(endpoint: str, runtime_dir: str | None) -> str:
    """Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        status = codec.typed(GatewayStatus, gateway.call("status"))
    if endpoint not in status.endpoints:
        known = ", ".join(status.endpoints) or "none"
        text = f"there is no endpoint {endpoint!r}; say --endpoint with one of: {known}"
        raise Failed(Exit.UNKNOWN_NAME, text)
    return status.endpoints[endpoint]


def _ask_first(asker: Asker, name: str, *, yes: bool) -> Mapping[str, Any]:
    """The definition of the tool. Raises Failed for one that may change something, unless somebody
    says yes."""
    tool = asker.tool(name)
    if tool is None:
        raise Failed(Exit.UNKNOWN_NAME, f"the endpoint has no tool {name!r} now")
    hints: Mapping[str, object] = tool.get("annotations") or {}
    if yes or hints.get("readOnlyHint") is True:
        return tool
    what = f"{name} does not say that it only reads: calling it again may change something"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(Exit.USAGE, f"{what}; say --yes to call it")
    try:
        agreed = click.confirm(show.printable(f"{what}. Call it?"), default=False, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        raise Failed(Exit.FAILED, "nothing was called")
    return tool


def _told(call: FinishedCall, ended: str, result: Raw) -> int:
    """Show what came, and whether it is what came before. The exit code."""
    for line in pretty(result):
        click.echo(show.printable(line))
    if ended != call.outcome:
        click.echo(f"\ndiffers: it ended with {ended}, the recorded call with {call.outcome}")
        return Exit.FAILED
    why = "not recorded" if call.result is UNSET else ""
    why = why or ("cut" if RESULT in call.cut else "masked" if RESULT in call.masked else "")
    if why:
        click.echo(
            f"\nit ended as before ({ended}); the recorded result is {why}, so no more is said"
        )
        return Exit.OK
    assert call.result is not UNSET
    lines = list(_differences(call.result, result))
    if not lines:
        click.echo("\nthe same as before")
        return Exit.OK
    click.echo("\ndiffers from what was recorded:")
    for line in lines[:DIFF_LINES_MAX]:
        click.echo(f"  {show.printable(line)}")
    if len(lines) > DIFF_LINES_MAX:
        click.echo(f"  … {len(lines) - DIFF_LINES_MAX} more lines")
    return Exit.FAILED


def _differences(before: Raw, now: Raw) -> Iterator[str]:
    found = difflib.unified_diff(pretty(before), pretty(now), n=1, lineterm="")
    for number, line in enumerate(found):
        if number > 1:  # the first two name files, and there are none
            yield columns.cut(line, 200)
