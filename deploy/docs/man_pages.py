"""Man pages as text: metamcp(1), one page for each group of verbs, and metamcp.toml(5).

Owns: the form of the pages. Never: the words, which are those of the program (`commands`,
`metamcp_supervisor.config.options`), and files (`man`).
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploy.docs.commands import Paragraph, Verb
from deploy.docs.notes import Note
from metamcp_supervisor.config import places
from metamcp_supervisor.config.options import all_options
from metamcp_supervisor.config.tables import Option, Section

ABOUT = "one MCP endpoint in front of many supervised MCP servers"


def pages(metamcp: Verb, exits: Iterable[Note], version: str, day: str) -> dict[str, str]:
    """Return the text of each page by the name of its file. `day`: as in 2026-11-27."""
    groups = [each for each in metamcp.below if each.below]
    named = [*(f"metamcp-{each.words[-1]}(1)" for each in groups), "metamcp.toml(5)"]
    found = {"metamcp.1": _program(metamcp, exits, version, day, named)}
    for group in groups:
        name = f"metamcp-{group.words[-1]}"
        others = ["metamcp(1)", "metamcp.toml(5)"]
        found[f"{name}.1"] = _page(
            name, 1, version, day, group.short, [*_group(group), *_see(others)]
        )
    file = [*_file(), *_see(["metamcp(1)", "metamcp-config(1)"])]
    found["metamcp.toml.5"] = _page(
        "metamcp.toml", 5, version, day, "configuration of metamcp(1)", file
    )
    return found


def _page(name: str, part: int, version: str, day: str, about: str, body: Iterable[str]) -> str:
    head = f'.TH {name.upper()} {part} "{day}" "MetaMCP {version}" "MetaMCP"'
    short = f"{_text(name)} \\- {_text(about.removesuffix('.'))}"
    return "\n".join([head, ".SH NAME", short, *body]) + "\n"


def _program(
    metamcp: Verb, exits: Iterable[Note], version: str, day: str, named: Iterable[str]
) -> str:
    body = [*_synopsis(metamcp), ".SH DESCRIPTION", *_prose(metamcp.paragraphs)]
    body += [*_options(metamcp.options), ".SH COMMANDS"]
    for verb in metamcp.below:
        body += [".SS " + _text(verb.name)]
        if verb.below:
            body += [_text(verb.short), "See", f".BR metamcp\\-{_text(verb.words[-1])} (1)."]
        elif verb.same:
            body += [_text(verb.short), "Same as", f".BR {_quoted(' '.join(verb.same))} ;"]
            body += ["see", ".BR metamcp\\-ctl (1)."]
        else:
            body += _verb(verb)
    body += [".SH EXIT STATUS"]
    for note in exits:
        body += [".TP", f".B {note.value}", _text(note.text)]
    body += [".SH FILES", ".TP", ".I metamcp.toml", "Configuration of the gateway, see"]
    body += [".BR metamcp.toml (5)."]
    return _page("metamcp", 1, version, day, ABOUT, [*body, *_see(named)])


def _group(group: Verb) -> Iterator[str]:
    yield from _synopsis(group)
    yield ".SH DESCRIPTION"
    yield from _prose(group.paragraphs)
    yield from _options(group.options)
    yield ".SH COMMANDS"
    yield from _commands(group)


def _commands(group: Verb) -> Iterator[str]:
    for verb in group.below:
        yield ".SS " + _text(verb.name)
        yield from _verb(verb)
        yield from _commands(verb)


def _synopsis(verb: Verb) -> list[str]:
    return [".SH SYNOPSIS", f".B {_text(verb.name)}", _text(verb.usage)]


def _verb(verb: Verb) -> Iterator[str]:
    yield f".B {_text(verb.name)}"
    yield _text(verb.usage)
    for paragraph in verb.paragraphs:
        yield ".PP"
        yield from _prose([paragraph])
    yield from _definitions(verb.options)


def _options(options: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield ".SH OPTIONS"
    yield from _definitions(options)


def _definitions(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in rows:
        yield ".TP"
        yield f".B {_text(name)}"
        yield _text(text) if text else "\\&"


def _prose(paragraphs: Iterable[Paragraph]) -> Iterator[str]:
    for number, each in enumerate(paragraphs):
        if number:
            yield ".PP"
        if each.verbatim:
            yield from (".nf", *map(_text, each.text.splitlines()), ".fi")
        else:
            yield _text(each.text)


def _file() -> Iterator[str]:
    yield ".SH DESCRIPTION"
    yield from (
        "The gateway reads one file and each file that",
        ".B include",
        "names.",
        ".B metamcp config check",
        "names every error with its line, and",
        ".B metamcp config show",
        "prints the configuration in effect.",
        "All keys are optional.",
    )
    yield ".SH FILES"
    yield "Without \\-\\-config, the gateway takes the first of these files."
    found = (Path("./metamcp.toml"), places.own_file(Path("~")), places.SYSTEM_FILE)
    for path, whose in zip(found, ("project", "user", "machine"), strict=True):
        yield from (".TP", f".I {_text(str(path))}", f"Of the {whose}.")
    section: str | None = None
    for each in all_options():
        if each.section != section:
            section = each.section
            yield f".SH {_quoted(table(each.section))}"
        yield from (".TP", f'.BR {_text(each.key)} " ({_kind(each)})"', _text(each.why))
        if each.choices:
            yield f"Values: {_text(', '.join(each.choices))}."
        if each.default:
            yield f"Default: {_text(each.default)}."
        elif example := each.example:
            yield f"Example: {_text(example)}."
        yield f"Reload: {each.effect}."


def table(section: Section) -> str:
    """Return the head of a table as a user writes it, such as `[servers.NAME]`."""
    if not section:
        return "Top of the file"
    tool = "TOOL" if section.startswith("servers.") else '"server.tool"'
    name = section.removesuffix("[]").replace("tools.*", f"tools.{tool}").replace("*", "NAME")
    return f"[[{name}]]" if section.endswith("[]") else f"[{name}]"


def _kind(option: Option) -> str:
    return "choice" if option.choices and option.kind == "choice" else _text(option.kind)


def _see(names: Iterable[str]) -> Iterator[str]:
    yield ".SH SEE ALSO"
    listed = [re.fullmatch(r"(.+)(\(\d\))", name) for name in sorted(names)]
    for number, found in enumerate(listed, 1):
        assert found is not None
        yield f".BR {_text(found[1])} {found[2]}" + ("" if number == len(listed) else ",")


def _quoted(text: str) -> str:
    return '"' + _text(text).replace('"', "\\(dq") + '"'


def _text(text: str) -> str:
    """Return one line of roff: without Markdown, and without anything that roff would obey."""
    plain = re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", text)
    escaped = plain.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    bold = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped)
    ascii_only = re.sub(r"[^\x20-\x7e]", lambda found: f"\\[u{ord(found[0]):04X}]", bold)
    return "\\&" + ascii_only if ascii_only.startswith(".") else ascii_only
