"""Verbs that fail: a sentence on stderr and an exit code.

Owns: `CommandRefused`, the place where a failure of a verb becomes a sentence and an exit code (or,
with `--json`, an object on stderr), groups that suggest a verb for a wrong word, the options that
name a gateway, the question before what cannot be taken back, and `add_json_option`, which adds
`--json` to a verb that prints sentences. Never: reasons to refuse (the verbs)."""

import contextlib
import functools
import importlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import click

from metamcp_supervisor.cli import show
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import VERSION, Exit, GatewayStatus
from metamcp_worker.ipc import codec

T = TypeVar("T", bound=Callable[..., Any] | click.Command)

_JSON_ASKED = "metamcp.json"
"""Key of `click.Context.meta`: whether the command line has `--json`."""
_WORDS = {int(code): code.name.lower() for code in Exit}
"""Words for exit codes, in errors for programs."""
UNFIT = "the configuration has errors"
ARGUMENTS_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of arguments: a gateway takes no larger message."""
INTERRUPTED = 130
"""Exit code of an interrupted verb, as in every shell: 128 plus the number of SIGINT."""
_PLACE_NAMES = {"--config", "--runtime-dir", "--state-dir"}
_NOTHING: Mapping[str, str] = MappingProxyType({})


class CommandRefused(Exception):
    """Failure of a verb, with a sentence for the user, further lines and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


def json_asked() -> bool:
    """Whether the command line that runs has `--json`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_JSON_ASKED))


def is_json(words: Sequence[str]) -> bool:
    """Whether these words of a command line ask for JSON."""
    return "--json" in itertools.takewhile(lambda word: word != "--", words)


def fail(code: int, message: str, details: Sequence[str] = (), *, as_json: bool) -> NoReturn:
    """Print why a verb failed, and end the program with `code`. With `as_json` one JSON object is
    printed."""
    if as_json:
        error = {"code": _WORDS.get(code, "failed"), "message": message, "details": details}
        click.echo(codec.dump({"v": VERSION, "error": error}), err=True)
    else:
        for line in (message, *details):
            say(line)
    raise SystemExit(code)


class _Refusing(click.Command):
    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = is_json(args)
        try:
            made = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if as_json and not extra.get("resilient_parsing"):
                fail(error.exit_code, error.format_message(), as_json=True)
            raise
        if as_json:
            made.meta[_JSON_ASKED] = True
        return made

    def invoke(self, ctx: click.Context) -> object:
        as_json = bool(ctx.meta.get(_JSON_ASKED))
        try:
            result: object = super().invoke(ctx)
        except CommandRefused as refusal:
            fail(refusal.code, str(refusal), refusal.details, as_json=as_json)
        except Failed as failed:
            fail(failed.exit, str(failed), failed.details, as_json=as_json)
        except click.UsageError as error:
            if not as_json:
                raise
            fail(error.exit_code, error.format_message(), as_json=True)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # click ends a command whose reader is gone, without a message
        except OSError as error:
            message = f"{error.filename or 'a file'}: {error.strerror}"
            fail(Exit.FAILED, message, as_json=as_json)
        return result


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a verb by each of their names."""
    options: dict[str, click.Option] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            before = option.before if isinstance(option, RenamedOption) else ()
            options |= dict.fromkeys((*option.opts, *option.secondary_opts, *before), option)
    return options


class Command(_Refusing):
    """Verb that may be refused."""


class Group(_Refusing, click.Group):
    """Group of verbs that may be refused. `elsewhere`: verbs in files of their own, imported when
    the verb is called; `words`: words of other programs, each with the sentence that answers it."""

    def __init__(
        self,
        *arguments: Any,
        elsewhere: Mapping[str, str] = _NOTHING,
        words: Mapping[str, str] = _NOTHING,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.elsewhere = elsewhere
        self.words = words

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        return import_command(self.elsewhere[cmd_name])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the options of the group from behind the verb, too, unless the verb has them, and
        those that name a gateway from before a verb that has them alone."""
        own, others, words = options_of(self), dict[str, click.Option](), [*args]
        ahead, behind, has_verb = list[str](), list[str](), False
        while words and words[0] != "--":
            word = words.pop(0)
            if not has_verb and not word.startswith("-"):
                verb, has_verb = self.get_command(ctx, word), True
                others = options_of(verb) if verb is not None else {}
                behind.insert(0, word)
                continue
            name, equals, _ = word.partition("=")
            option = others.get(name) or own.get(name)
            count = int(name in _PLACE_NAMES) if option is None else option.nargs
            count = 0 if equals or (option is not None and option.is_flag) else count
            is_own = name not in others if name in own else not (has_verb or name in _PLACE_NAMES)
            (ahead if is_own else behind).extend([word, *words[:count]])
            del words[:count]
        behind += words
        return super().parse_args(ctx, [*ahead, *behind])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        wrong = not word.startswith("-") and self.get_command(ctx, word) is None
        if wrong and not ctx.resilient_parsing:
            raise click.UsageError(
                f"no command is named {word!r}; {self.suggest_verb(ctx, word)}", ctx
            )
        return super().resolve_command(ctx, args)

    def suggest_verb(self, ctx: click.Context, word: str) -> str:
        """Return the second half of the sentence about an unknown verb."""
        return self.words.get(word) or hint(word, self.list_commands(ctx))


state_option = click.option(
    "--state-dir", metavar="PATH", help="Of the gateway; else as its configuration says."
)
_PLACE = (
    click.option(
        "--config",
        "path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration of the gateway; else the one that `metamcp up` takes here.",
    ),
    click.option(
        "--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket."
    ),
)


def gateway_options(*members: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds `--config` and `--runtime-dir`, which name a gateway.

    `members`: those of `path`, `runtime_dir` and `state_dir` that the verb gets, all of the same
    gateway, whichever of them the user typed; without any, it gets the first two as they were
    typed. The third adds `--state-dir`.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(
            *arguments: Any,
            path: Path | None,
            runtime_dir: str | None,
            state_dir: str | None = None,
            **others: Any,
        ) -> None:
            values = {"path": path, "runtime_dir": runtime_dir, "state_dir": state_dir}
            if path is None and runtime_dir is not None and {"path", "state_dir"} & {*members}:
                values |= _place_of(runtime_dir, state_dir)
            elif path is not None and runtime_dir is None and "runtime_dir" in members:
                values["runtime_dir"] = client.directory_of(path)
            command(*arguments, **others, **{name: values[name] for name in members})

        decorated = call if members else command
        for option in (*([state_option] if "state_dir" in members else []), *reversed(_PLACE)):
            decorated = option(decorated)
        return decorated

    return add


def _place_of(runtime_dir: str, state_dir: str | None) -> dict[str, Any]:
    """Return main file and state directory of the gateway that runs there. Raises Failed."""
    with client.connect(runtime_dir) as gateway:
        status = codec.decode_as(GatewayStatus, gateway.call("status"))
    path = Path(status.config_files[0]) if status.config_files else None
    return {"path": path, "state_dir": state_dir or status.state_dir or None}


def args_option(name: str, about: str, **more: Any) -> Callable[[T], T]:
    """Return a decorator that adds `--args`: an object in JSON, in a file or on standard input. The
    verb gets it as bytes, None without it."""
    form = "JSON|@FILE|-"
    return click.option("--args", name, metavar=form, callback=_object, help=about, **more)


def _object(_context: click.Context, _option: click.Parameter, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        if text == "-":
            raw = sys.stdin.buffer.read(ARGUMENTS_BYTES_MAX)
        elif text.startswith("@"):
            with open(text[1:], "rb") as file:
                raw = file.read(ARGUMENTS_BYTES_MAX)
        else:
            raw = text.encode("utf-8", "surrogateescape")
        codec.level(raw)
    except OSError as error:
        raise click.UsageError(f"--args: {text[1:]}: {error.strerror}") from None
    except codec.Malformed as malformed:
        raise click.UsageError(f"--args is not a JSON object: {malformed}") from None
    return raw


class RenamedOption(click.Option):
    """Option with names from earlier versions, which work, and which nothing shows."""

    def __init__(self, *arguments: Any, before: Sequence[str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.before = before

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        names = self.opts
        self.opts = [*names, *self.before]
        super().add_to_parser(parser, ctx)
        self.opts = names


yes_option = click.option("--yes", is_flag=True, help="Unasked.")


def at_terminal() -> bool:
    """Whether a person can be asked here."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool, refusal: Failed | None = None) -> None:
    """Ask a person, unless `yes`, before something is done for good. Raises Failed after a no;
    where nobody can be asked, go on, or raise `refusal`."""
    if yes:
        return
    if not at_terminal():
        if refusal is not None:
            raise refusal
        return
    with contextlib.suppress(click.Abort):
        if click.confirm(show.printable(question), default=False, err=True):
            return
    raise Failed(Exit.FAILED, "not confirmed: nothing is changed")


def import_command(reference: str) -> click.Command:
    """Import and return the verb at `package.module:name`."""
    module, _, name = reference.partition(":")
    command = getattr(importlib.import_module(module), name)
    assert isinstance(command, click.Command)
    return command


def add_json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--json` to a verb that prints sentences; its output is then the object
    `{"v": 1, "said": […]}`."""

    @click.option("--json", "as_json", is_flag=True, help="For programs.")
    @functools.wraps(command)
    def run_command(*arguments: Any, as_json: bool, **options: Any) -> None:
        if not as_json:
            command(*arguments, **options)
            return
        code: object = Exit.OK
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                command(*arguments, **options)
        except SystemExit as end:
            code = end.code
        if output.getvalue() or code in (None, Exit.OK):
            tell(said=output.getvalue().splitlines())
        raise SystemExit(code)

    return run_command


def tell(**members: object) -> None:
    """Print one JSON object for programs."""
    click.echo(codec.dump({"v": VERSION, **members}))


def say(sentence: str) -> None:
    click.echo(f"metamcp: {show.printable(sentence)}", err=True)


def run_and_exit(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, and end with its exit code. Raises Failed."""
    try:
        code = work()
    except BrokenPipeError:  # the user has left the pager
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.OK
    raise SystemExit(code)
