"""`metamcp scripts`: programs that a workspace keeps, of a gateway or of its state directory.

Owns: these verbs at the prompt, files of scripts, the table, a run of a script through an endpoint.
Never: the rules of scripts (`views.ledger`), the form of a file
(`metamcp_worker.ipc.saved_scripts`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Raw, Struct

from metamcp_supervisor.cli import keys, show
from metamcp_supervisor.cli.connect import credential_options
from metamcp_supervisor.cli.ctl import Duration, begin, json_option, look_options
from metamcp_supervisor.cli.errors import (
    Group,
    add_json_option,
    args_option,
    confirm,
    gateway_options,
    state_option,
    tell,
    yes_option,
)
from metamcp_supervisor.cli.keys import GatewayPlace
from metamcp_supervisor.cli.progress import progress
from metamcp_supervisor.code_mode import script_orders
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.services import ScriptStore
from metamcp_supervisor.verbs import (
    ConfigTree,
    Exit,
    GatewayStatus,
    ScriptChanged,
    ScriptList,
    ScriptShown,
)
from metamcp_supervisor.wording import columns
from metamcp_supervisor.wording.recorded_calls import pretty
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.disclosure import DeleteScript, SaveScript
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.process_names import DEFAULT
from metamcp_worker.ipc.saved_scripts import (
    CODE_BYTES_MAX,
    SUFFIXES,
    Script,
    file_read,
    format_script,
)

if TYPE_CHECKING:
    from metamcp_supervisor.bridge.http_client import Trust

RUN_SCRIPT = "run_script"
LIST = ("NAME", "VERSION", "LANGUAGE", "TOOL", "SAVED", "DESCRIPTION")
DESCRIPTION_CHARACTERS_MAX = 60
"""Maximum characters of a description in the table; `show` and `--json` show all of it."""
FILE_BYTES_MAX = 2 * CODE_BYTES_MAX
"""Maximum bytes of a file that is read; its code has fewer."""
WORDS = {
    "ls": "did you mean 'list'?",
    "rm": "a script ends with 'metamcp scripts delete NAME'",
    "add": "a script is saved with 'metamcp scripts save FILE'",
    "create": "a script is saved with 'metamcp scripts save FILE'",
    "cat": "its code is printed by 'metamcp scripts show NAME'",
    "call": "a script is run with 'metamcp scripts run NAME'",
}


class _WorkspaceTarget(Struct):
    """Workspace that the verbs are for, and its gateway or state directory."""

    place: GatewayPlace
    workspace: str


@click.group(cls=Group, words=WORDS)
@look_options
@gateway_options()
@state_option
@click.option(
    "--workspace", default=DEFAULT, show_default=True, metavar="NAME", help="Of this workspace."
)
@click.pass_context
def scripts_(
    ctx: click.Context,
    runtime_dir: str | None,
    no_color: bool,
    quiet: bool,
    path: Path | None,
    state_dir: str | None,
    workspace: str,
) -> None:
    """Save, list and run scripts, of a running gateway or before its first start."""
    begin(ctx, runtime_dir, no_color=no_color, quiet=quiet)
    ctx.obj = _WorkspaceTarget(GatewayPlace(runtime_dir, state_dir, path), workspace)


name_argument = click.argument("name")


@scripts_.command("list")
@json_option
@click.pass_obj
def list_(location: _WorkspaceTarget, as_json: bool) -> None:
    """List all scripts of the workspace."""
    raw = _list_scripts(location)
    if as_json:
        click.echo(raw)
        return
    rows = [_row(script) for script in codec.decode_as(ScriptList, raw).scripts]
    foot = "" if rows else "nothing is saved yet; 'metamcp scripts save FILE' saves a script"
    show.picture(
        show.PrintedTable(LIST if rows else ("",), rows, foot=foot, right=frozenset({"VERSION"}))
    )


@scripts_.command("show")
@name_argument
@click.option("--version", type=click.IntRange(1), default=None, metavar="N", help="An older one.")
@json_option
@click.pass_obj
def show_(location: _WorkspaceTarget, name: str, version: int | None, as_json: bool) -> None:
    """Print a script as a file, in its newest version."""
    raw = _fetch_script(location, name, version or 0)
    if as_json:
        click.echo(raw)
        return
    (script,) = codec.decode_as(ScriptList, raw).scripts
    versions = ", ".join(map(str, script.versions))
    about = f"{script.name}: version {script.version}, saved {script.savedAt}"
    click.echo(show.printable(f"{about}; versions kept: {versions}"), err=True)
    for line in format_script(_of(script)).removesuffix("\n").split("\n"):
        click.echo(show.printable(line))


@scripts_.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Else the name of the file, without its end.")
@click.option("--language", type=click.Choice([*SUFFIXES]), help="Else that of the file's end.")
@click.option("--description", metavar="TEXT", help="What it does.")
@click.option(
    "--parameters", metavar="FILE", type=click.Path(path_type=Path), help="JSON Schema of its args."
)
@click.option("--expose/--hide", default=None, help="As a tool of its own in lists, or not.")
@json_option
@click.pass_obj
def save(
    location: _WorkspaceTarget,
    file: Path,
    name: str | None,
    language: Language | None,
    description: str | None,
    parameters: Path | None,
    expose: bool | None,
    as_json: bool,
) -> None:
    """Save a file as a script, or as a new version of one.

    Everything that neither options nor the first line of the file say stays as it is.
    """
    order = _order(file, language)
    raw = _apply_order(
        location,
        SaveScript(
            name or order.script,
            order.code,
            order.language,
            order.description if description is None else description,
            order.parameters if parameters is None else _text(parameters),
            order.expose if expose is None else expose,
        ),
    )
    _say(raw, as_json=as_json)


@scripts_.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@json_option
@click.pass_obj
def import_(location: _WorkspaceTarget, files: tuple[Path, ...], as_json: bool) -> None:
    """Save files as scripts of their names, as 'export' writes them, one after the other."""
    for order in [_order(file) for file in files]:
        _say(_apply_order(location, order), as_json=as_json)


@scripts_.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.pass_obj
@add_json_option
def export(location: _WorkspaceTarget, folder: Path) -> None:
    """Write each script into a file of its name, in this folder or DIR."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in codec.decode_as(ScriptList, _list_scripts(location)).scripts:
        (script,) = codec.decode_as(ScriptList, _fetch_script(location, each.name)).scripts
        path = folder / f"{script.name}{SUFFIXES[_of(script).language]}"
        path.write_bytes(format_script(_of(script)).encode("utf-8", "replace"))
        click.echo(str(path))


@scripts_.command()
@name_argument
@yes_option
@json_option
@click.pass_obj
def delete(location: _WorkspaceTarget, name: str, yes: bool, as_json: bool) -> None:
    """Delete a script with all of its versions."""
    confirm(f"Delete the script {name} with all of its versions?", yes=yes)
    raw = _apply_order(location, DeleteScript(name))
    click.echo(raw if as_json else show.printable(f"script {name} is deleted"))


@scripts_.command()
@name_argument
@args_option("given", "An object, as its parameters say.")
@click.option("--endpoint", metavar="NAME", help="Else one of the workspace that has code mode.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="5m",
    show_default=True,
    help="How long to wait for the end.",
)
@credential_options
@json_option
@click.pass_obj
def run(
    location: _WorkspaceTarget,
    name: str,
    given: bytes | None,
    endpoint: str | None,
    timeout_s: float,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    as_json: bool,
) -> None:
    """Run a script at an endpoint of the running gateway, and print what it returns."""
    from metamcp_supervisor.cli.connect import explained_key, trust_of

    runtime_dir = location.place.directory()
    directory = runtime_dir or client.find_runtime_dir()
    trust = trust_of(key_env, key_file, ca, directory)
    params = {"name": RUN_SCRIPT, "arguments": {"name": name, "args": Raw(given or b"{}")}}
    for url in _urls(location.workspace, endpoint, runtime_dir):
        with explained_key(trust, directory):
            answer = asyncio.run(_ran(url, params, trust, timeout_s))
        if answer is not None:
            raise SystemExit(_outcome(answer, as_json=as_json))
    where_to = endpoint or f"workspace {location.workspace}"
    problem = f"{where_to} has no {RUN_SCRIPT}: set [code] in the configuration and its exposure"
    raise Failed(Exit.FAILED, f'{problem} to "code" or "search"')


async def _ran(
    url: str, params: Mapping[str, object], trust: "Trust", timeout_s: float
) -> Envelope | None:
    """Return the answer of the endpoint; None if it has no scripts. Raises Failed."""
    from metamcp_supervisor.calls.endpoint_client import EndpointClient
    from metamcp_supervisor.calls.tool_call import CALL, RequestForm

    form = RequestForm(name="metamcp scripts")
    async with EndpointClient(url, trust, form, timeout_s) as asker:
        tool = await asker.tool(RUN_SCRIPT)
        if tool is None:
            return None
        with progress("the script runs"):
            return await asker.ask(CALL, params, tool)


def _outcome(answer: Envelope, *, as_json: bool) -> int:
    """Print the result of a run. Return the exit code."""
    if bytes(answer.error):
        raise Failed(Exit.FAILED, str(codec.value(answer.error).get("message", "")))
    result: dict[str, Any] = codec.value(answer.result)
    failed = result.get("isError") is True
    structured: dict[str, Any] | None = result.get("structuredContent")
    text = "\n".join(str(content.get("text", "")) for content in result.get("content", ()))
    if as_json and structured is None:
        raise Failed(Exit.FAILED, text)
    if as_json:
        tell(**(structured or {}))
    elif failed or structured is None:
        for line in text.splitlines():
            click.echo(show.printable(line), err=failed)
    else:
        for line in structured.get("logs", ()):
            click.echo(show.printable(str(line)), err=True)
        for line in pretty(Raw(codec.dump(structured.get("value")))):
            click.echo(show.printable(line))
    return Exit.FAILED if failed else Exit.OK


def _urls(workspace: str, endpoint: str | None, runtime_dir: str | None) -> list[str]:
    """Return the URL of the endpoint, or those of all endpoints of the workspace. Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        if endpoint is not None:
            endpoints = codec.decode_as(GatewayStatus, gateway.call("status")).endpoints
        else:
            tree = codec.decode_as(ConfigTree, gateway.call("tree"))
            ours = [
                tree_workspace
                for tree_workspace in tree.workspaces
                if tree_workspace.name == workspace
            ]
            endpoints = dict[str, str]()
            for each in (each for tree_workspace in ours for each in tree_workspace.namespaces):
                endpoints |= each.endpoints
    if endpoint is None:
        return list(endpoints.values())
    if endpoint not in endpoints:
        raise Failed(
            Exit.UNKNOWN_NAME, f"no endpoint is named {endpoint!r}; {hint(endpoint, endpoints)}"
        )
    return [endpoints[endpoint]]


# Files


def _order(file: Path, language: Language | None = None) -> SaveScript:
    """Return the order to save this file under its name. `language`: None for that of the file's
    end. Raises Failed."""
    languages: dict[str, Language] = {suffix: name for name, suffix in SUFFIXES.items()}
    suffix = {".mjs": ".js"}.get(file.suffix, file.suffix)
    if language is None and suffix and suffix not in languages:
        ends = ", ".join(languages)
        problem = (
            f"{file} has none of the ends {ends}; 'save --language' says what it is written in"
        )
        raise Failed(Exit.USAGE, problem)
    try:
        head, code = file_read(_text(file))
    except codec.Malformed as error:
        raise Failed(Exit.FAILED, f"the first line of {file}: {error}") from None
    return SaveScript(
        file.stem,
        code,
        language or languages.get(suffix),
        head.description,
        bytes(head.parameters).decode() or None,
        head.expose,
    )


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise Failed(Exit.FAILED, f"{file} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failed(Exit.FAILED, f"{file} is not UTF-8") from None


def _of(script: ScriptShown) -> Script:
    schema = bytes(script.parameters).decode()
    schema = "" if schema == "{}" else schema
    return Script(
        script.name,
        script.version,
        script.code,
        script.language,
        script.description,
        schema,
        script.expose,
    )


# Asking and saying


def _list_scripts(location: _WorkspaceTarget) -> bytes:
    with keys.connect_if_running(location.place) as gateway:
        if gateway is not None:
            return gateway.call("scripts", script_orders.ScriptsParams(location.workspace))

    async def answer(store: ScriptStore) -> object:
        return await script_orders.list_scripts(store, location.workspace)

    return _at_rest(location, answer)


def _fetch_script(location: _WorkspaceTarget, name: str, version: int = 0) -> bytes:
    params = script_orders.ScriptWanted(location.workspace, name, version)
    with keys.connect_if_running(location.place) as gateway:
        if gateway is not None:
            return gateway.call("scripts-show", params)
    return _at_rest(location, lambda store: script_orders.find_script(store, params))


def _apply_order(location: _WorkspaceTarget, order: SaveScript | DeleteScript) -> bytes:
    params = script_orders.ScriptsChange(order=order, workspace=location.workspace)
    with keys.connect_if_running(location.place) as gateway:
        if gateway is not None:
            return gateway.call("scripts-change", params)
    return _at_rest(location, lambda store: script_orders.carry_out_order(store, params))


def _at_rest(location: _WorkspaceTarget, ask: Callable[[ScriptStore], Awaitable[object]]) -> bytes:
    """Return the answer of the scripts in the state directory of a gateway that does not run.
    Raises Failed."""
    from metamcp_supervisor.config import workspaces
    from metamcp_supervisor.store.database import Database, DatabaseFile, make_database
    from metamcp_supervisor.views.ledger_io import LedgerKeeper
    from metamcp_supervisor.views.store import Store

    if location.place.state_dir is not None:
        database: Database = DatabaseFile(Path(location.place.state_dir))
    else:
        config = keys.load_config(location.place.config)
        database = make_database(config.gateway)
        tree = workspaces.tree(config, {}, {})
        script_orders.check_workspace(
            location.workspace, [workspace.name for workspace in tree.workspaces]
        )
    notes: list[str] = []

    async def answer() -> object:
        keeper = LedgerKeeper(Store(database), lambda _: None, notes.append, time.time)
        await keeper.begin(())
        if notes:
            raise Failed(Exit.FAILED, notes[0])
        return await ask(keeper)

    return keys.at_rest(database, answer)


def _say(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        click.echo(raw)
        return
    script = codec.decode_as(ScriptChanged, raw).script
    assert script is not None
    click.echo(show.printable(f"script {script.name} is saved as version {script.version}"))


def _row(script: ScriptShown) -> tuple[str, ...]:
    about = columns.cut(" ".join(script.description.split()), DESCRIPTION_CHARACTERS_MAX)
    tool = "yes" if script.expose else "no"
    return script.name, str(script.version), script.language, tool, script.savedAt, about
