"""`metamcp explain` and `metamcp policy`: what would happen to a call, and which rule decides.

Owns: these verbs at the prompt, and what `policy check` finds in a file. Never: the path of a call
(a front knows it), the rules themselves (`metamcp_worker.guard`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import click
from msgspec import Raw

from metamcp_supervisor.cli import errors, offers, show
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import Command, Group, args_option, gateway_options
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, PathShown
from metamcp_worker.ipc import codec, process_names, server_catalog
from metamcp_worker.ipc.spec import PolicySpec

WORDS = {
    "validate": "did you mean 'check'?",
    "test": "did you mean 'explain'?",
    "list": "the rules are shown by 'metamcp config show'",
    "show": "the rules are shown by 'metamcp config show'",
    "why": "did you mean 'explain'?",
}
Thing = tuple[str, str]
"""Server and name of a tool, prompt or resource."""


def of_a_call(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments of a verb about a call that is not made."""
    for option in reversed((
        click.argument("tool", metavar="TOOL"),
        click.option("--key", cls=errors.RenamedOption, before=("--as",), default="", metavar="KEY",
                     help="For this API key."),
        click.option("--endpoint", default="", metavar="NAME", help="Else the default one."),
        args_option("arguments", "Arguments of the call."),
        gateway_options("runtime_dir"),
        json_option,
    )):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command)
@of_a_call
def explain(
    tool: str, key: str, endpoint: str, arguments: bytes | None, runtime_dir: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the way of a call, and what would happen to it now, without calling.

    TOOL is a name that clients see, or SERVER.TOOL, SERVER/TOOL or SERVER__TOOL. Exit 0 if the call
    would run, 1 if it would be refused, 8 for an unknown name.
    """
    raw = _ask_gateway(runtime_dir, tool, endpoint, key, arguments)
    call_path = codec.decode_as(PathShown, raw)
    if as_json:
        click.echo(raw)
    else:
        rows = [(step.step, f"{step.text}{'  <- ends here' if step.stops else ''}")
                for step in call_path.steps]  # fmt: skip
        foot = f"{_would(call_path)} at the endpoint {call_path.endpoint}"
        printable = [tuple(map(show.printable, row)) for row in rows]
        show.picture(show.PrintedTable(("STEP", tool), printable, foot=foot))
    raise SystemExit(Exit.OK if call_path.runs else Exit.FAILED)


def _would(call_path: PathShown) -> str:
    if not call_path.runs:
        return "the call would be refused"
    return (
        "the call would run if a person agrees"
        if call_path.effect == "ask"
        else "the call would run"
    )


@click.group(cls=Group, words=WORDS)
def policy() -> None:
    """Check policies, and see which one decides."""


@policy.command("explain")
@of_a_call
def explain_(
    tool: str, key: str, endpoint: str, arguments: bytes | None, runtime_dir: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show each policy that concerns a tool with its value, and which one decides.

    Exit 0 if policies allow the call, 1 if they deny it or the endpoint refuses the caller, 8 for
    an unknown name.
    """
    raw = _ask_gateway(runtime_dir, tool, endpoint, key, arguments)
    call_path = codec.decode_as(PathShown, raw)
    refused = next(
        (step.text for step in call_path.steps if step.step == "gate" and step.stops), ""
    )
    if as_json:
        click.echo(raw)
    elif refused:
        raise Failed(Exit.FAILED, f"the policies are not asked: {refused}")
    else:
        rows = [
            (rule.policy, rule.effect if rule.mode == "enforce" else f"{rule.effect} (permissive)",
             rule.value, rule.when or "always")
            for rule in call_path.policies
        ]  # fmt: skip
        decides = call_path.decides or ("none of them" if rows else "none concerns it")
        printable_rows = [tuple(map(show.printable, row)) for row in rows]
        show.picture(show.PrintedTable(
            ("POLICY", "EFFECT", "VALUE", "WHEN") if rows else ("",), printable_rows,
            foot=f"{call_path.effect}; decides: {decides}",
        ))  # fmt: skip
    raise SystemExit(Exit.FAILED if refused or call_path.effect == "deny" else Exit.OK)


def _ask_gateway(
    runtime_dir: str | None, tool: str, endpoint: str, key: str, arguments: bytes | None
) -> bytes:
    """Ask the running gateway for the path of a call. Raises Failed."""
    params: dict[str, object] = {"tool": tool, "endpoint": endpoint, "key": key}
    if arguments is not None:
        params["arguments"] = Raw(arguments)
    with client.connect(runtime_dir) as gateway:
        return gateway.call("explain", params)


@policy.command()
@gateway_options("path", "state_dir")
@json_option
@click.option("--strict", is_flag=True, help="A warning is an error.")
def check(path: Path | None, state_dir: str | None, as_json: bool, strict: bool) -> None:
    """Check the policies of a configuration, also against what its servers offered last.

    A mistake ends with 65. A rule that concerns nothing, or only what another one always denies,
    is a warning. The gateway need not run.
    """

    def work() -> int:
        stored = offers.read_offers(path, state_dir, None)
        things = set(_things(stored.catalogues))
        warnings = list(_doubts(stored.config.policies, things))
        if as_json:
            errors.tell(ok=not (strict and warnings), policies=len(stored.config.policies),
                        warnings=warnings)  # fmt: skip
        else:
            for sentence in warnings:
                click.echo(f"warning: {show.printable(sentence)}", err=True)
        if strict and warnings:
            return Exit.CONFIG
        if not as_json:
            count = len(stored.config.policies)
            count_text = "1 policy" if count == 1 else f"{count} policies"
            click.echo(f"ok: {count_text}, {len(things)} tools, prompts and resources known")
        return Exit.OK

    errors.run_and_exit(work)


def _things(catalogues: Mapping[str, server_catalog.ServerCatalogue | None]) -> Iterator[Thing]:
    for name, each in catalogues.items():
        for kind in server_catalog.KINDS if each is not None else ():
            assert each is not None
            yield from (
                (name, definition.key)
                for definition in server_catalog.iter_definitions(kind, each.of(kind))
            )


def _doubts(policies: tuple[PolicySpec, ...], things: set[Thing]) -> Iterator[str]:
    """Yield sentences about rules without effect."""
    always = [rule for rule in policies if rule.effect == "deny" and not rule.when
              and rule.mode == "enforce"]  # fmt: skip
    for rule in policies:
        mine = {thing for thing in things if _concerns(rule, thing)}
        if things and not mine:
            globs = json.dumps(list(rule.match))
            yield f"policy '{rule.name}' concerns nothing that the servers offered last: {globs}"
            continue
        for other in always:
            theirs = {thing for thing in mine if _concerns(other, thing)}
            if mine and other is not rule and theirs == mine and not _first(rule, other, policies):
                yield f"policy '{rule.name}' has no effect: '{other.name}' denies all of it"
                break


def _first(rule: PolicySpec, other: PolicySpec, policies: tuple[PolicySpec, ...]) -> bool:
    """Whether the first of two rules that deny the same is this one."""
    same = rule.effect == "deny" and not rule.when
    return same and policies.index(rule) < policies.index(other)


def _concerns(rule: PolicySpec, thing: Thing) -> bool:
    server, name = thing
    names = {server, process_names.label(server)}
    for glob in rule.match:
        server_glob, _, name_glob = glob.partition("/")
        if fnmatchcase(name, name_glob) and any(
            fnmatchcase(server_name, server_glob) for server_name in names
        ):
            return True
    return False
