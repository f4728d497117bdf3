"""`metamcp calls` shows recorded calls; `metamcp replay` makes one once more, and compares.

Owns: the options, which calls fit, the table and the page of one call, the question before a tool
that may change something, the words about the difference. Never: the files
(`wording.recorded_calls`), making the call (`calls.endpoint_client`).
"""

import asyncio
import difflib
import heapq
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET, Raw, UnsetType

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.calls.tool_call import CALL, MODERN, RequestForm
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.cli.errors import Command, add_json_option, gateway_options, run_and_exit
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_supervisor.wording import columns, recorded_calls
from metamcp_supervisor.wording.recorded_calls import (
    RecordedLine,
    RecordingFollower,
    RecordingPlace,
    describe_generation,
    outcome,
    params,
    pretty,
)
from metamcp_worker.ipc import codec, records
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.records import RESULT, FinishedCall

if TYPE_CHECKING:
    from metamcp_supervisor.bridge.http_client import Trust
    from metamcp_supervisor.calls.endpoint_client import EndpointClient

DIFF_LINES_MAX = 40
"""Maximum lines of a difference to print; beyond them the result is simply another one."""
LINES = 50
"""Number of past calls to show if the user does not say."""
FOLLOW_S = 0.3
"""Seconds between two checks of the files; fronts write five times a second."""
NAME_CHARACTERS_MAX = 48
COLUMNS = ("TIME", "ID", "SERVER", "NAME", "OUTCOME", "TOOK", "IN", "OUT", "ENDPOINT")


@click.command(cls=Command)
@click.argument("word", metavar="[ID]", required=False)
@click.option("--server", metavar="NAME", help="Only calls of this server.")
@click.option("--tool", metavar="NAME", help="Only of this tool, prompt or resource.")
@click.option("--key", metavar="ID", help="Only calls with this API key.")
@click.option("--errors", is_flag=True, help="Only those that failed.")
@click.option(
    "--since",
    "since_s",
    type=Duration(past=True),
    metavar="DURATION",
    help="Not older than this: 10m, 2d.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=LINES,
    show_default=True,
    help="The last so many.",
)
@click.option("-f", "--follow", is_flag=True, help="And every one that comes, until interrupted.")
@json_option
@gateway_options("path", "state_dir")
def calls(
    word: str | None,
    server: str | None,
    tool: str | None,
    key: str | None,
    errors: bool,
    since_s: float | None,
    limit: int,
    follow: bool,
    as_json: bool,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Show recorded calls that are over, the newest last; with an ID, all about a single call.

    Calls are recorded where [recording] says so. 'metamcp ctl calls' shows calls that are still
    under way.
    """
    since = None if since_s is None else datetime.fromtimestamp(time.time() - since_s).astimezone()

    def fits(call: FinishedCall) -> bool:
        return (
            (server is None or call.server == server)
            and (tool is None or is_named(tool, call.server, call.name, call.name))
            and (key is None or call.key == key)
            and (not errors or call.has_failed)
            and (since is None or datetime.fromisoformat(call.time) >= since)
        )

    def work() -> int:
        location = recorded_calls.place(state_dir, path)
        if word is not None:
            _one(recorded_calls.find(location, word), as_json=as_json)
        else:
            _many(location, fits, limit, as_json=as_json, follow=follow)
        return Exit.OK

    run_and_exit(work)


def _many(
    location: RecordingPlace,
    fits: Callable[[FinishedCall], bool],
    limit: int,
    *,
    as_json: bool,
    follow: bool,
) -> None:
    """Show all calls that fit. Raises Failed."""
    if not (follow and location.folder.parent.is_dir()):  # else calls may be recorded soon
        location.check()
    following = RecordingFollower(location.folder)
    lost = 0

    def iter_matching_calls() -> Iterator[tuple[str, bytes, FinishedCall]]:
        nonlocal lost
        for line in following.news():
            lost += line.lost
            if line.call is not None and fits(line.call):
                yield line.call.id, line.raw, line.call

    newest = heapq.nlargest(limit, iter_matching_calls(), key=lambda entry: entry[0])[::-1]
    if as_json:
        for _, raw, _ in newest:
            click.echo(raw, nl=False)
        if notes := told_of(lost) if lost else "" if location.any else location.why_none:
            click.echo(f"metamcp: {notes}", err=True)
    else:
        rows = [row(call) for _, _, call in newest]
        picture = show.PrintedTable(
            COLUMNS if rows else ("",), rows, foot=foot(location, len(rows), lost),
            right=frozenset({"TOOK", "IN", "OUT"}), sentences=False,
            spared=("IN", "OUT", "ENDPOINT", "TOOK"),
        )  # fmt: skip
        show.picture(picture)
    while follow:
        for line in following.news():
            follow_line(line, fits, as_json=as_json)
        time.sleep(FOLLOW_S)


def follow_line(line: RecordedLine, fits: Callable[[FinishedCall], bool], *, as_json: bool) -> None:
    """Print a new line, if it fits. Lost calls always fit, because their servers are not known."""
    if line.call is not None and not fits(line.call):
        return
    if as_json:
        click.echo(line.raw, nl=False)
    elif line.call is not None:
        click.echo(show.printable("  ".join(row(line.call)).rstrip()))
    else:
        click.echo(f"… {told_of(line.lost)}")


def row(call: FinishedCall) -> tuple[str, ...]:
    return (
        _format_time(call),
        call.id,
        call.server,
        columns.cut(call.name, NAME_CHARACTERS_MAX) or call.method,
        outcome(call),
        columns.latency(call.duration_ms / 1000),
        str(call.arguments_bytes),
        str(call.result_bytes),
        call.endpoint or columns.NONE,
    )


def foot(location: RecordingPlace, count: int, lost: int) -> str:
    parts = [told_of(lost)] if lost else []
    if not count:
        reason = (
            f"no recorded call fits in {location.folder}" if location.any else location.why_none
        )
        parts.insert(0, f"{reason}; 'metamcp ctl calls' shows what is under way")
    return "; ".join(parts)


def told_of(lost: int) -> str:
    """Return the sentence about calls that could not be recorded."""
    return f"{lost} more could not be written"


def _one(call: FinishedCall, *, as_json: bool) -> None:
    if as_json:
        click.echo(codec.dump(call))
        return
    click.echo(show.printable(f"{call.method} {call.name}"))
    facts = {
        "id": call.id,
        "time": call.time,
        "server": f"{call.server}, {describe_generation(call)}",
        "endpoint": call.endpoint or columns.NONE,
        "key": call.key or columns.NONE,
        "client": call.client or columns.NONE,
        "protocol": call.protocol or columns.NONE,
        "front": f"{call.front}, as call {call.call}",
        "outcome": outcome(call),
        "took": columns.latency(call.duration_ms / 1000),
    }
    for key, value in facts.items():
        click.echo(show.printable(f"  {key:<10}  {value}"))
    _body(call, records.ARGUMENTS, call.arguments, call.arguments_bytes)
    _body(call, records.RESULT, call.result, call.result_bytes)


def _body(call: FinishedCall, name: str, body: Raw | UnsetType, size: int) -> None:
    marks = [
        word for word, affected in (("cut", call.cut), ("masked", call.masked)) if name in affected
    ]
    if body is UNSET and size:
        marks.append("not recorded")
    click.echo(f"\n{name} ({', '.join([f'{size} bytes', *marks])})")
    if body is not UNSET:
        for line in pretty(body):
            click.echo(f"  {show.printable(line)}")


def _format_time(call: FinishedCall) -> str:
    """Return the time of a call, with the date if the call was not today."""
    local_time = datetime.fromisoformat(call.time).astimezone()
    today = local_time.date() == datetime.now().astimezone().date()
    return local_time.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]


@click.command(cls=Command)
@click.argument("word", metavar="ID")
@click.option("--endpoint", metavar="NAME", help="Another one than that of the recorded call.")
@click.option("--yes", is_flag=True, help="Also a tool that may change something, unasked.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, metavar="DURATION",
    help="How long the answer may take.",
)  # fmt: skip
@credential_options
@gateway_options("path", "runtime_dir", "state_dir")
@add_json_option
def replay(
    word: str,
    endpoint: str | None,
    yes: bool,
    timeout_s: float,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    state_dir: str | None,
    path: Path | None,
) -> None:
    """Make a recorded call once more, with the same arguments, and compare the results.

    Exit code 1 if the result differs. 'metamcp calls' shows what is recorded.
    """

    from metamcp_supervisor.cli.call import definition_of
    from metamcp_supervisor.cli.connect import explained_key, trust_of

    def work() -> int:
        call = recorded_calls.find(recorded_calls.place(state_dir, path), word)
        request_params = params(call)
        endpoint_name, directory = (
            endpoint or call.endpoint,
            runtime_dir or client.find_runtime_dir(),
        )
        url = url_of(endpoint_name, runtime_dir)
        trust = trust_of(key_env, key_file, ca, directory)

        async def tool(asker: "EndpointClient") -> Mapping[str, Any]:
            # As for 'metamcp call': a tool that is in no list may be callable.
            definition = await asker.tool(call.name) or definition_of(
                call.name, endpoint_name, directory
            )
            return _confirm_call(definition, call.name, yes=yes)

        with explained_key(trust, directory):
            again = asyncio.run(_repeat_call(call, request_params, url, trust, timeout_s, tool))
        return _print_comparison(call, *again)

    run_and_exit(work)


async def _repeat_call(
    call: FinishedCall,
    request_params: Mapping[str, object],
    url: str,
    trust: "Trust",
    timeout_s: float,
    tool: Callable[["EndpointClient"], Awaitable[Mapping[str, Any]]],
) -> tuple[str, Raw]:
    """Make the call, and return how it ended. `tool`: returns its definition. Raises Failed."""
    async with client_for(call, url, trust, timeout_s) as asker:
        definition = await tool(asker) if call.method == CALL else None
        with progress(f"calls {call.name}"):
            return tool_call.outcome_of(await asker.ask(call.method, request_params, definition))


def client_for(call: FinishedCall, url: str, trust: "Trust", timeout_s: float) -> "EndpointClient":
    """Return a client that speaks as the recorded call did."""
    from metamcp_supervisor.calls.endpoint_client import EndpointClient

    form = RequestForm(protocol=call.protocol or MODERN, name="metamcp replay")
    return EndpointClient(url, trust, form, timeout_s)


def url_of(endpoint: str, runtime_dir: str | None) -> str:
    """Return the URL of the endpoint. Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        status = codec.decode_as(GatewayStatus, gateway.call("status"))
    if endpoint not in status.endpoints:
        names = ", ".join(status.endpoints) or "none"
        text = f"no endpoint is named {endpoint!r}; say --endpoint with one of: {names}"
        raise Failed(Exit.UNKNOWN_NAME, text)
    return status.endpoints[endpoint]


def _confirm_call(tool: Mapping[str, Any], name: str, *, yes: bool) -> Mapping[str, Any]:
    """Return the definition of the tool. Ask first if the tool may change something, unless `yes`.
    Raises Failed if the user does not agree."""
    if yes or tool_call.reads_only(tool):
        return tool
    warning = f"{name} does not say that it only reads: calling it again may change something"
    nobody = Failed(Exit.USAGE, f"{warning}; say --yes to call it")
    errors.confirm(f"{warning}. Call it?", yes=yes, refusal=nobody)
    return tool


def _print_comparison(call: FinishedCall, ended: str, result: Raw) -> int:
    """Print the result, and how it differs from the recorded one. Return the exit code."""
    for line in pretty(result):
        click.echo(show.printable(line))
    if ended != call.outcome:
        click.echo(f"\ndiffers: it ended with {ended}, the recorded call with {call.outcome}")
        return Exit.FAILED
    flaw = "not recorded" if call.result is UNSET else ""
    flaw = flaw or ("cut" if RESULT in call.cut else "masked" if RESULT in call.masked else "")
    if flaw:
        click.echo(
            f"\nit ended as before ({ended}); the recorded result is {flaw}, so no more is said"
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
    diff = difflib.unified_diff(pretty(before), pretty(now), n=1, lineterm="")
    for number, line in enumerate(diff):
        if number > 1:  # the first two lines name files, but these are not files
            yield columns.cut(line, 200)
