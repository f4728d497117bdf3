"""`metamcp replay`: make a recorded call once more, and compare the outcomes.

Owns: which calls can be replayed, the question before a tool that may change something, the words
about the difference. Never: the recordings (`recordings`), the call (`calls.endpoint_client`).
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET, Raw

from metamcp_supervisor.calls import tool_call
from metamcp_supervisor.calls.tool_call import CALL, MODERN, RequestForm
from metamcp_supervisor.cli import columns, errors, recordings, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration
from metamcp_supervisor.cli.errors import Command, add_json_option, gateway_options
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.cli.recordings import pretty
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import ARGUMENTS, RESULT, FinishedCall
from metamcp_worker.runtime.masking import MASK

if TYPE_CHECKING:
    from metamcp_supervisor.calls.endpoint_client import EndpointClient
    from metamcp_worker.bridge.http_client import Trust

DIFF_LINES_MAX = 40
"""Maximum lines of a difference to print; beyond them the result is simply another one."""


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
        call = recordings.find(recordings.place(state_dir, path), word)
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

    recordings.run_and_exit(work)


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


def params(call: FinishedCall) -> dict[str, object]:
    """Return the parameters of the request. Raises Failed for a call whose arguments are not fully
    known."""
    reason = ""
    if call.arguments is UNSET and call.arguments_bytes:
        reason = 'its arguments were not recorded; [recording] calls = "full" records them'
    elif ARGUMENTS in call.masked or MASK in call.name:
        reason = "a secret was taken out of its arguments"
    elif ARGUMENTS in call.cut:
        reason = "its arguments were cut; a larger 'body_max' in [recording] keeps them"
    if reason:
        raise Failed(Exit.FAILED, f"{call.id} cannot be replayed: {reason}")
    if call.method == "resources/read":
        return {"uri": call.name}
    arguments = Raw(b"{}") if call.arguments is UNSET else call.arguments
    return {"name": call.name, "arguments": arguments}


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
