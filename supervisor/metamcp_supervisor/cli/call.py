"""`metamcp call`: call a tool of the running gateway, as a client does; and the search of `metamcp
tools` at the running gateway.

Owns: the options, the arguments as a user writes them, questions on a terminal, the output, exit
codes, the table of hits. Never: the call (`calls.endpoint_client`), the values of arguments
(`calls.tool_form`).
"""

import asyncio
import mimetypes
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Raw

from metamcp_supervisor.calls import tool_call, tool_form
from metamcp_supervisor.calls.endpoint_client import EndpointClient
from metamcp_supervisor.calls.tool_call import ELICIT, InputQuestion, RequestForm, ResultPart
from metamcp_supervisor.calls.tool_form import ArgumentsUnfit, FormField
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.connect import (
    await_serving,
    credential_options,
    explained_key,
    locate_endpoint,
    trust_of,
)
from metamcp_supervisor.cli.ctl import Duration, complete_endpoints, json_option, runtime_dir_of
from metamcp_supervisor.cli.errors import Command, args_option, gateway_options
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, ToolList
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.figures import KEY_NEEDED, ShownTool

if TYPE_CHECKING:
    from metamcp_supervisor.bridge.http_client import Trust

ASKABLE: Mapping[str, object] = {"elicitation": {"form": {}, "url": {}}}
"""Capabilities of a client with a terminal, on which a person answers questions."""
_EXITS = {
    Code.TIMED_OUT: Exit.TIMEOUT,
    Code.SERVER_DOWN: Exit.SERVER_NOT_RUNNING,
    Code.AUTHORIZATION_NEEDED: Exit.DENIED,
    Code.INVALID_PARAMS: Exit.USAGE,
}

_HINTS = {int(Code.MISSING_CAPABILITY): "; on a terminal you can answer what the server asks"}


def _complete_tools(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.cli.completion import tools

    names = tools(runtime_dir_of(ctx), ctx.params.get("endpoint") or "")
    return [name for name in names if name.startswith(incomplete)]


def _complete_arguments(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metamcp_supervisor.cli.completion import arguments

    target = runtime_dir_of(ctx), ctx.params.get("endpoint") or ""
    completions = arguments(*target, ctx.params.get("tool") or "")
    if "=" not in incomplete:
        typed_names = {word.partition("=")[0] for word in ctx.params.get("words") or ()}
        names = dict.fromkeys(word.partition("=")[0] for word in completions)
        return [
            f"{name}=" for name in names if name.startswith(incomplete) and name not in typed_names
        ]
    return [word for word in completions if word.startswith(incomplete) and not word.endswith("=")]


@click.command(cls=Command)
@click.argument("tool", metavar="TOOL", shell_complete=_complete_tools)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE…]", shell_complete=_complete_arguments)
@args_option("given", "An object; '-' reads it from stdin.")
@click.option("--endpoint", metavar="NAME", help="Which endpoint; without it the default one.",
              shell_complete=complete_endpoints)  # fmt: skip
@click.option("--url", metavar="URL", help="Of an endpoint; no gateway is looked for then.")
@click.option(
    "-o", "--out", "output", cls=errors.RenamedOption, before=("--output",),
    type=click.Path(path_type=Path), metavar="PATH",
    help="File or folder for the result: images and other files, or else the text.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, metavar="DURATION",
    help="How long an answer may take.",
)  # fmt: skip
@gateway_options("runtime_dir")
@credential_options
@json_option
def call(
    tool: str,
    words: tuple[str, ...],
    given: str | None,
    endpoint: str | None,
    url: str | None,
    output: Path | None,
    timeout_s: float,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    as_json: bool,
) -> None:
    """Call a tool through an endpoint, and print what it returns.

    The tool's schema says what kind of value each argument has. A list is a key that is given
    several times, or JSON. Exit code 1 if the tool reports an error.

    \b
    metamcp call notes__add_note text='buy milk'
    metamcp call git.git_log max_count=3
    metamcp call api__query --args '{"filter": {"open": true}}'
    """
    if url is not None and endpoint is not None:
        raise click.UsageError("--url says it all: it does not go with --endpoint.")

    def work() -> int:
        base = None if given is None else Raw(given)
        directory = runtime_dir or ("" if url is not None else client.find_runtime_dir())
        trust = trust_of(key_env, key_file, ca, directory, url)
        if url is None:
            await_serving(directory)
        endpoint_url = url if url is not None else locate_endpoint(endpoint, directory)

        def find() -> Mapping[str, Any]:
            return definition_of(tool, endpoint or "", directory)

        request = _Call(tool, words, base, None if url is not None else find)
        with explained_key(trust, directory):
            answer = asyncio.run(
                _answer_of(endpoint_url, trust, timeout_s, request, read_stored=not as_json)
            )
        return _print(answer, output, as_json=as_json)

    errors.run_and_exit(work)


class _Call:
    """Call as the user wrote it. `base`: raw arguments of `--args`; `find`: looks for a tool that
    the endpoint does not list. Raises Failed."""

    def __init__(
        self,
        tool: str,
        words: tuple[str, ...],
        base: Raw | None,
        find: Callable[[], Mapping[str, Any]] | None,
    ) -> None:
        self.tool = tool
        self.words = words
        self.base = base
        self.find = find

    async def definition(self, asker: EndpointClient) -> Mapping[str, Any]:
        try:
            tool: Mapping[str, Any] = await asker.find_tool(self.tool)
        except Failed as failed:
            if failed.exit != Exit.UNKNOWN_NAME or self.find is None:
                raise
            tool = self.find()
        self.tool = str(tool.get("name"))
        return tool

    def arguments(self, definition: Mapping[str, Any]) -> object:
        if not self.words and self.base is not None:
            return self.base
        members = codec.level(self.base or b"{}")
        schema = tool_form.table(definition.get("inputSchema"))
        try:
            values = tool_form.arguments(schema, tool_form.split(self.words), members)
        except ArgumentsUnfit as unfit:
            message = f"the arguments of {self.tool} are wrong"
            raise Failed(
                Exit.USAGE, message, (*unfit.problems, tool_form.usage(f"call {self.tool}", schema))
            ) from None
        return {**members, **values}


async def _answer_of(
    url: str, trust: "Trust", timeout_s: float, request: _Call, *, read_stored: bool
) -> Envelope:
    """Make the call. `read_stored`: read a result that the gateway keeps. Raises Failed."""
    form = RequestForm(capabilities=ASKABLE if errors.at_terminal() else {})
    progress = _Progress()
    async with EndpointClient(url, trust, form, timeout_s) as asker:
        definition = await request.definition(asker)
        arguments = request.arguments(definition)
        try:
            answer = await asker.call(
                request.tool,
                arguments,
                definition,
                progress.wrap_ask(ask_person),
                progress.on_notification,
            )
            return await asker.whole(answer) if read_stored else answer
        finally:
            progress.clear()


def definition_of(tool: str, endpoint: str, directory: str) -> Mapping[str, Any]:
    """Return the definition of a tool that is not in the list of its endpoint. Raises Failed."""
    with client.connect(directory) as gateway:
        params = {"endpoint": endpoint, "name": tool}
        listing = codec.decode_as(ToolList, gateway.call("tools", params, timeout_s=SEARCH_S))
    if not listing.tools:
        if listing.refused == KEY_NEEDED:  # the call has a key; the control socket does not
            advice = f"'metamcp explain {tool} --key KEY' says why"
            raise Failed(Exit.UNKNOWN_NAME, f"no tool is named {tool!r} for this key; {advice}")
        raise Failed(Exit.UNKNOWN_NAME, f"no tool is named {tool!r}: {listing.refused}")
    if listing.tools[0].why:
        raise Failed(Exit.DENIED, listing.tools[0].why)
    definition: Mapping[str, Any] = codec.value(listing.tools[0].definition)
    return {"name": listing.tools[0].name, **definition}  # a hidden tool has no definition


# Questions and progress


class _Progress:
    """Line on a terminal that shows how far a call is."""

    def __init__(self) -> None:
        self._shown = False

    def on_notification(self, method: str, params: Raw) -> None:
        if method != "notifications/progress" or not sys.stderr.isatty():
            return
        text = show.printable(columns.cut(tool_call.progress_text(params), 100))
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = False

    def wrap_ask(self, ask: Callable[[InputQuestion], object]) -> Any:
        """Return a function that answers questions, without the line."""

        async def answer(question: InputQuestion) -> object:
            self.clear()
            return ask(question)

        return answer


def ask_person(question: InputQuestion, asker: str = "The server") -> Mapping[str, object]:
    """Return a person's answer to a question. Raises Failed."""
    if question.method != ELICIT or not errors.at_terminal():
        raise Failed(Exit.FAILED, f"the server asks for {question.method}, which is not answered")
    _say(f"{asker} asks: {question.message}")
    try:
        if question.url:
            _say(f"It wants you to visit {question.url}")
            agreed = click.confirm("Did you?", default=False, err=True)
            return {"action": "accept" if agreed else "decline"}
        if not click.confirm("Answer it?", default=True, err=True):
            return {"action": "decline"}
        content: dict[str, object] = {}
        for field in tool_form.fields(question.schema):
            content |= _field(field, question.schema)
    except click.Abort:
        return {"action": "cancel"}
    return {"action": "accept", "content": content}


def _field(field: FormField, schema: dict[str, Any]) -> dict[str, object]:
    """Ask for one field until its value fits. Returns nothing for a field that is left empty."""
    about = f" ({field.description})" if field.description else ""
    need = "" if field.required else ", empty for none"
    label = show.printable(f"{field.title or field.name}{about}, {field.type}{need}")
    field_schema = {
        "properties": {field.name: schema["properties"][field.name]},
        "$defs": schema.get("$defs"),
    }
    while True:
        default, has_default = field.default or "", bool(field.default)
        text: str = click.prompt(label, default=default, show_default=has_default, err=True)
        if not text and not (field.required and field.kind == "text"):
            if not field.required:
                return {}
            _say("An answer is needed here.")
            continue
        try:
            return tool_form.arguments(
                field_schema, tool_form.collect_texts(field_schema, {field.name: text})
            )
        except ArgumentsUnfit as unfit:
            _say(str(unfit))


def _say(sentence: str) -> None:
    click.echo(show.printable(sentence), err=True)


# The result


def _print(answer: Envelope, output: Path | None, *, as_json: bool) -> int:
    """Print the result of a call. Return the exit code."""
    outcome, result = tool_call.outcome_of(answer)
    if as_json:
        click.echo(bytes(result))
    if bytes(answer.error):
        code = int(outcome)
        if not as_json:
            code_names = {int(member): member.name.lower() for member in Code}
            name = f" {code_names[code]}" if code in code_names else ""
            message = codec.error_object(answer.error).message
            _say(f"metamcp: error {code}{name}: {message}{_HINTS.get(code, '')}")
        return _EXITS.get(Code(code), Exit.FAILED) if code in {*Code} else Exit.FAILED
    failed = outcome != "ok"
    if not as_json:
        _contents(list(tool_call.parts(result)), output, failed=failed)
    return Exit.FAILED if failed else Exit.OK


def _contents(parts: list[ResultPart], output: Path | None, *, failed: bool) -> None:
    files = [content for content in parts if content.data]
    texts = [content.text for content in parts if content.text]
    if output is not None and not failed:
        if files:
            for path, content in zip(_paths(output, files), files, strict=True):
                path.write_bytes(content.data)
                _say(f"{path}: {content.media_type or content.kind}, {len(content.data)} bytes")
        else:
            _text_path(output).write_text("\n".join(texts) + "\n", encoding="utf-8")
            return
    for text in texts:
        _echo(text, failed=failed)
    if output is None:
        for content in files:
            kind = ", ".join(filter(None, [content.media_type, f"{len(content.data)} bytes"]))
            _say(f"metamcp: {content.kind} ({kind}) is not shown; -o PATH writes it to a file")


def _echo(text: str, *, failed: bool) -> None:
    """Print a text as it is, or on a terminal with an escape for what the terminal would obey."""
    stream = sys.stderr if failed else sys.stdout
    if stream.isatty():
        text = "\n".join(map(show.printable, text.splitlines()))
    click.echo(text.encode("utf-8", "replace"), err=failed)


def _text_path(output: Path) -> Path:
    return output / "result.txt" if output.is_dir() else output


def _paths(output: Path, files: list[ResultPart]) -> list[Path]:
    """Return a path for each file: in the folder `output`, or `output` itself and names like it."""
    if not output.is_dir():
        more = range(2, len(files) + 1)
        return [output, *(output.with_stem(f"{output.stem}-{n}") for n in more)]
    ends = [mimetypes.guess_extension(content.media_type) or ".bin" for content in files]
    return [output / f"result-{n}{end}" for n, end in enumerate(ends, 1)]


# Search


COLUMNS = ("TOOL", "SERVER", "STATE", "TOKENS", "CALLS", "DESCRIPTION")
DESCRIPTION_CHARACTERS_MAX = 80
"""Maximum characters of a description in the table; `--json` has the whole first sentence."""
SEARCH_S = 15.0
"""Seconds for an answer; a search may wait for an index."""


def runs(runtime_dir: str | None) -> bool:
    """Whether a gateway runs that can be asked."""
    try:
        client.connect(runtime_dir).close()
    except Failed:
        return False
    return True


def search(runtime_dir: str | None, params: Mapping[str, str], *, as_json: bool) -> int:
    """Print the tools that match, or the page of the tool that is named. Return the exit code.
    Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("tools", params, timeout_s=SEARCH_S)
        listing = codec.decode_as(ToolList, raw)
        word = params.get("query", "")
        named = (
            tool.name for tool in listing.tools if is_named(word, tool.server, tool.tool, tool.name)
        )
        name = next(named, "")
        if name and not as_json:
            raw = gateway.call("tools", {**params, "query": "", "name": name}, timeout_s=SEARCH_S)
            _page(codec.decode_as(ToolList, raw).tools[0])
            return Exit.OK
    if as_json:
        click.echo(raw)
    elif listing.refused:
        raise Failed(Exit.DENIED, listing.refused)
    else:
        rows = [row(tool) for tool in listing.tools]
        picture = show.PrintedTable(
            COLUMNS if rows else ("",), rows, foot=_foot(listing),
            right=frozenset({"TOKENS", "CALLS"}), spared=("CALLS", "TOKENS", "STATE"),
        )  # fmt: skip
        show.picture(picture)
    return Exit.OK


def show_page(runtime_dir: str | None, word: str) -> bool:
    """Print the page of a tool of the running gateway, and return whether it has the tool."""
    try:
        with client.connect(runtime_dir) as gateway:
            raw = gateway.call("tools", {"name": word}, timeout_s=SEARCH_S)
    except Failed:
        return False
    tools = [tool for tool in codec.decode_as(ToolList, raw).tools if tool.definition]
    for tool in tools:
        _page(tool)
    return bool(tools)


def row(tool: ShownTool) -> tuple[str, ...]:
    about = tool.why or tool.description
    return (
        tool.name,
        tool.server or "metamcp",
        state(tool),
        str(tool.tokens),
        str(tool.calls),
        columns.cut(about, DESCRIPTION_CHARACTERS_MAX),
    )


def state(tool: ShownTool) -> str:
    """Return the state of a tool in words."""
    words = [tool.state if tool.available else "server away", tool.drift]
    return ", ".join(filter(None, words))


def _foot(listing: ToolList) -> str:
    if not listing.tools:
        return f"no tool of the endpoint {listing.endpoint} matches"
    more = f"{listing.more} more; " if listing.more else ""
    return f"{more}'metamcp tools TOOL' shows the arguments of one, 'metamcp call TOOL' calls it"


def _page(tool: ShownTool) -> None:
    definition: dict[str, Any] = codec.value(tool.definition)
    about = definition.get("description")
    click.echo(show.printable(f"{tool.name}: {state(tool)}, {tool.tokens} tokens"))
    for line in about.splitlines() if isinstance(about, str) else ():
        click.echo(show.printable(f"  {line}"))
    if tool.why:
        click.echo(show.printable(tool.why))
    schema = tool_form.table(definition.get("inputSchema"))
    rows = list(_arguments(schema))
    click.echo()
    if rows:
        show.picture(show.PrintedTable(("ARGUMENT", "TYPE", "DEFAULT", ""), rows, sentences=True))
    click.echo(show.printable(tool_form.usage(f"call {tool.name}", schema)))


def _arguments(schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for field in tool_form.fields(schema):
        default = "required" if field.required else field.default or columns.NONE
        yield field.name, field.type, default, " ".join(field.description.split())
