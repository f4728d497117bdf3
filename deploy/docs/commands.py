"""The command tree as values: each verb with its help, arguments and options.

Owns: the walk over the tree of click, which loads the file of each verb. Never: the form of a page
(`man_pages`, `reference`).
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from metamcp_supervisor.__main__ import CTL, main, verbs

VERBATIM = "\b"
"""Line that click takes as: do not fill the paragraph below."""


@dataclass(frozen=True)
class Paragraph:
    """Part of a help text. `verbatim`: its lines stay as they are."""

    text: str
    verbatim: bool = False


@dataclass(frozen=True)
class Verb:
    """Command or group. `words`: from `metamcp` to its own name; `usage`: what follows them;
    `options`: each with its name and its help; `same`: words of the verb that it repeats;
    `below`: verbs of a group."""

    words: tuple[str, ...]
    short: str
    paragraphs: tuple[Paragraph, ...]
    usage: str
    options: tuple[tuple[str, str], ...]
    same: tuple[str, ...] = ()
    below: tuple["Verb", ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.words)


def tree() -> Verb:
    """Return `metamcp` with all verbs below it, in the order of its help."""
    return _verb(main, click.Context(main, info_name="metamcp"), ("metamcp",))


def all_below(verb: Verb) -> Iterator[Verb]:
    """Yield each verb below this one, at every level."""
    for each in verb.below:
        yield each
        yield from all_below(each)


def _verb(command: click.Command, context: click.Context, words: tuple[str, ...]) -> Verb:
    help_option = command.get_help_option(context)  # with the names of its first use
    options = [
        (", ".join(context.help_option_names), record[1]) if each is help_option else record
        for each in command.get_params(context)
        if isinstance(each, click.Option) and (record := each.get_help_record(context))
    ]
    alone = len(words) == 2 and verbs()[words[1]][0] == CTL
    return Verb(
        words=words,
        short=verbs()[words[1]][1] if len(words) == 2 else command.get_short_help_str(limit=1000),
        paragraphs=tuple(_paragraphs(command.help or "")),
        usage=" ".join(command.collect_usage_pieces(context)),
        options=tuple(options),
        same=("metamcp", "ctl", words[1]) if alone else (),
        below=tuple(_below(command, context, words)) if isinstance(command, click.Group) else (),
    )


def _below(group: click.Group, context: click.Context, words: tuple[str, ...]) -> Iterator[Verb]:
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is not None and not found.hidden:
            inner = click.Context(found, info_name=name, parent=context)
            yield _verb(found, inner, (*words, name))


def _paragraphs(text: str) -> Iterator[Paragraph]:
    for part in inspect.cleandoc(text).split("\n\n"):
        verbatim = part.startswith(VERBATIM)
        lines = part.removeprefix(VERBATIM).strip("\n").splitlines()
        if lines:
            yield Paragraph("\n".join(lines) if verbatim else " ".join(lines), verbatim)
