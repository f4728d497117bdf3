"""Texts of the answers of built-in tools, for a model and as JSON.

Owns: cutting, quoting and counting words of others; how many rows fit into an answer; hits of a
search in three levels of detail; warnings about tools of a set that are not in view; rows of tools
and tool sets; the tokens that a view saves. Never: searching (`search.index`), the sentences of a
single built-in tool.

A name from a server or a client may hold line ends, quotes and megabytes. An answer holds names on
one line and cut, so that a model sees one name, and not another entry of the list.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from msgspec import Raw, Struct

from metamcp_worker.builtin_tools.builtin import ToolContext
from metamcp_worker.catalog.catalog import ListEntry, sent_bytes
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.builtin_definitions import DETAILS, Detail
from metamcp_worker.ipc.disclosure import Pair, ToolSet, format_pair
from metamcp_worker.search import definitions
from metamcp_worker.search.definitions import read
from metamcp_worker.search.index import HITS_MAX, SearchResult, ToolDocument

NAME_CHARACTERS_MAX = 128
"""Maximum characters of a name; as many as the longest exposed name has, which is never cut."""
NAMES_TOLD_MAX = 50
"""Maximum names in one sentence; the list of tools has all of them."""


def plain(name: str) -> str:
    """Return the name on one line, with at most NAME_CHARACTERS_MAX characters."""
    return line(name, NAME_CHARACTERS_MAX)


def line(text: str, characters: int) -> str:
    """Return the text on one line, valid as UTF-8, with at most `characters` characters."""
    return cut(" ".join(fit(text, 2 * characters).split()), characters)


def fit(text: str, characters: int) -> str:
    """Return the text valid as UTF-8, with at most `characters` characters."""
    return cut(text, characters).encode("utf-8", "replace").decode()


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def code(name: str) -> str:
    """Return the name in backticks, for texts that clients show as Markdown."""
    return f"`{plain(name).replace('`', chr(39))}`"


def join_names(names: Collection[str], most: int = NAMES_TOLD_MAX) -> str:
    """Return a list of names such as `git.status, git.log and 3 more`."""
    remaining = len(names) - most
    return ", ".join(_first(names, most)) + (f" and {remaining} more" if remaining > 0 else "")


def format_count(count: int, noun: str) -> str:
    """Return a count such as `1 tool` or `2 tools`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _first(names: Iterable[str], most: int) -> list[str]:
    return [plain(name) for name in islice(names, most)]


ANSWER_BYTES_MAX = 32 * 1024
"""Maximum bytes of the rows of one answer, both as text and as JSON: about 8,000 tokens."""

T = TypeVar("T")


class Row(Struct, frozen=True):
    """Row of an answer. `text`: for a model; `value`: as JSON."""

    text: str
    value: Mapping[str, object]


class Portion(Struct, frozen=True):
    """Rows that fit into an answer. `end`: number of the first thing that is left out; `left`:
    number of things from there to the last."""

    rows: tuple[Row, ...]
    end: int
    left: int

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def values(self) -> list[Mapping[str, object]]:
        return [row.value for row in self.rows]


def portion(things: Sequence[T], start: int, row: Callable[[T], Row]) -> Portion:
    """Return the rows that fit, from thing number `start` on; rows behind them are not built."""
    start = min(max(start, 0), len(things))
    rows: list[Row] = []
    text_room = value_room = ANSWER_BYTES_MAX
    for at in range(start, len(things)):
        made = row(things[at])
        text_room -= len(made.text.encode()) + 1
        value_room -= len(codec.dump(made.value)) + 1
        if rows and min(text_room, value_room) < 0:
            break
        rows.append(made)
    end = start + len(rows)
    return Portion(tuple(rows), end, len(things) - end)


FOUND_BYTES_MAX = 32 * 1024
"""Maximum bytes of a whole answer to a search: about 8,000 tokens."""
WORDS_BYTES = 512
"""Bytes of an answer to a search that are kept free for the words about hits left out."""
SENTENCE_CHARACTERS_MAX = 200
DESCRIPTION_CHARACTERS_MAX = 4_000
PARAMETER_CHARACTERS_MAX = 400

_SENTENCE = re.compile(
    r"(.+?(?:[。\uff01\uff1f]|(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?](?=\s+[^\sa-z]|\s*\Z)))"
)


def markdown(result: SearchResult, detail: Detail) -> str:
    """Return the hits as Markdown, at most `FOUND_BYTES_MAX` bytes of UTF-8."""
    write = {"brief": _brief, "detailed": _format_details, "full": _full}
    documents = [hit.document for hit in result.hits]
    entries = _fit_entries(
        documents, detail, lambda document, depth: write[depth](document).encode()
    )
    parts = [entry.decode() for entry in entries]
    if words := _explain_missing(result, len(parts)):
        parts.append(words)
    return ("\n" if detail == "brief" else "\n\n").join(parts)


def as_json(result: SearchResult, detail: Detail) -> bytes:
    """Return `{"tools": […], "more": 0, "counted": true, "hint": "…"}`, at most `FOUND_BYTES_MAX`
    bytes. `more`: number of matching tools that are left out; a lower bound unless `counted`."""
    documents = [hit.document for hit in result.hits]
    entries = _fit_entries(
        documents, detail, lambda document, depth: codec.dump(_value(document, depth))
    )
    answer: dict[str, Any] = {
        "tools": [Raw(entry) for entry in entries],
        "more": result.more + len(documents) - len(entries),
        "counted": result.counted,
    }
    if words := _explain_missing(result, len(entries)):
        answer["hint"] = words
    return codec.dump(answer)


def first_sentence(text: str) -> str:
    """Return the first sentence on one line, with at most SENTENCE_CHARACTERS_MAX characters."""
    single_line = line(text, DESCRIPTION_CHARACTERS_MAX)
    match = _SENTENCE.match(single_line)
    return cut(match[1] if match else single_line, SENTENCE_CHARACTERS_MAX)


def _fit_entries(
    documents: Sequence[ToolDocument],
    detail: Detail,
    write: Callable[[ToolDocument, Detail], bytes],
) -> list[bytes]:
    """Return as many entries as there is room for. The first entry gets less detail if it would not
    fit otherwise."""
    room = FOUND_BYTES_MAX - WORDS_BYTES
    entries: list[bytes] = []
    for document in documents:
        entry = write(document, detail)
        depth = DETAILS.index(detail)
        while not entries and depth and len(entry) > room:
            depth -= 1
            entry = write(document, DETAILS[depth])
        room -= len(entry) + 2  # a comma, or an empty line
        if room < 0:
            break
        entries.append(entry)
    return entries


def _explain_missing(result: SearchResult, shown_count: int) -> str:
    """Return the words about hits that are not in the answer, and how to get them."""
    if not result.hits and not result.more:
        servers = "; ".join(_server(*each) for each in result.servers)
        return (
            "No tool matches. Try other words for what it should do, or the name of a server; an"
            " empty query lists all tools by name."
            f"{' The servers are: ' if servers else ''}{servers}"
        )
    words: list[str] = []
    if cut := len(result.hits) - shown_count:
        words.append(
            f"{cut} more {'was' if cut == 1 else 'were'} found and left out, because an answer has"
            f' at most {FOUND_BYTES_MAX // 1024} KiB: ask with a smaller "detail" to see them.'
        )
    if result.more:
        least = "" if result.counted else "At least "
        words.append(
            f"{least}{result.more} more match{'es' if result.more == 1 else ''}: ask with a larger"
            f' "limit" (up to {HITS_MAX}), or in other words.'
        )
    return " ".join(words)


def _server(name: str, count: int, tools: Sequence[str]) -> str:
    more = ", …" if count > len(tools) else ""
    return f"{code(name)} with {', '.join(map(code, tools))}{more}"


def _brief(document: ToolDocument) -> str:
    read = definitions.read(document.definition)
    sentence = first_sentence(read.description or read.title)
    return f"- {code(document.exposed)}{': ' if sentence else ''}{sentence}"


def _format_details(document: ToolDocument) -> str:
    return "\n".join([_head(document), *_format_definition(definitions.read(document.definition))])


def _format_definition(read: definitions.Definition) -> Iterator[str]:
    if description := line(read.description or read.title, DESCRIPTION_CHARACTERS_MAX):
        yield description
    yield "Parameters:" if read.parameters else "No parameters."
    for parameter in read.parameters:
        required = ", required" if parameter.required else ""
        about = line(parameter.description, PARAMETER_CHARACTERS_MAX)
        kind = line(parameter.type, definitions.TYPE_CHARACTERS_MAX)
        yield f"- {code(parameter.name)} ({kind}{required}){': ' if about else ''}{about}"
    if read.more:
        yield '- and further ones, which "detail": "full" shows'


def _full(document: ToolDocument) -> str:
    text = _with_exposed_name(document).decode()
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{_head(document)}\n{fence}json\n{text}\n{fence}"


def _head(document: ToolDocument) -> str:
    return (
        f"### {code(document.exposed)} (server {code(document.pair[0])}, about"
        f" {builtin_definitions.tokens(document.definition)} tokens)"
    )


def _value(document: ToolDocument, detail: Detail) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": fit(document.exposed, NAME_CHARACTERS_MAX),
        "server": fit(document.pair[0], NAME_CHARACTERS_MAX),
    }
    if detail != "brief":
        members["tokens"] = builtin_definitions.tokens(document.definition)
    if detail == "full":
        return {**members, "definition": Raw(_with_exposed_name(document))}
    read = definitions.read(document.definition)
    if detail == "brief":
        return {**members, "description": first_sentence(read.description or read.title)}
    return {
        **members,
        "title": line(read.title, SENTENCE_CHARACTERS_MAX),
        "description": fit(read.description, DESCRIPTION_CHARACTERS_MAX),
        "parameters": [
            {
                "name": fit(parameter.name, NAME_CHARACTERS_MAX),
                "type": parameter.type,
                "required": parameter.required,
                "description": fit(parameter.description, PARAMETER_CHARACTERS_MAX),
            }
            for parameter in read.parameters
        ],
        "parametersLeftOut": read.more,
    }


def _with_exposed_name(document: ToolDocument) -> bytes:
    """Return the definition under its exposed name; `null` if it is not a JSON object in UTF-8."""
    try:
        members = codec.level(document.definition)
        document.definition.decode()
    except (codec.Malformed, UnicodeDecodeError):
        return b"null"
    name = codec.dump(fit(document.exposed, NAME_CHARACTERS_MAX))
    return codec.dump({**members, "name": Raw(name)})


WARNINGS_MAX = 20
"""Maximum warnings in one answer, at first one for each server."""
ROUTES_MAX = 100
"""Maximum tools that one answer names with their routes; counts are always of all tools."""


class ToolAvailability(Struct, frozen=True):
    """Tools by their state behind this endpoint. `here`: available; `away`: available again when
    their servers are back; `gone`: unknown to their servers, or switched off here; `foreign`: of
    servers that are not behind this endpoint; `kept`: in quarantine until an operator approves
    them."""

    here: tuple[Pair, ...]
    away: tuple[Pair, ...]
    gone: tuple[Pair, ...]
    foreign: tuple[Pair, ...]
    kept: tuple[Pair, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Whether any of these tools can ever be in view here."""
        return bool(self.here or self.away or self.kept)


def classify_tools(tools: Iterable[Pair], context: ToolContext) -> ToolAvailability:
    names = context.names()
    here: list[Pair] = []
    away: list[Pair] = []
    missing: list[Pair] = []
    foreign: list[Pair] = []
    quarantined: list[Pair] = []
    for pair in tools:
        server = pair[0]
        if server not in context.spec.servers:
            foreign.append(pair)
        elif pair in names:
            (here if context.listed(server) else away).append(pair)
        elif pair in context.everything.kept:
            quarantined.append(pair)
        else:
            (away if server in context.everything.unknown else missing).append(pair)
    return ToolAvailability(
        tuple(here), tuple(away), tuple(missing), tuple(foreign), tuple(quarantined)
    )


def warnings(tool_standing: ToolAvailability) -> list[str]:
    """Return a sentence without its full stop for each server with tools that are not in view."""
    sentences: list[str] = []
    for pairs, template in (
        (tool_standing.away, "{} server unavailable, skipping tools: {}"),
        (tool_standing.gone, "{} server has no such tools here, skipping tools: {}"),
        (tool_standing.foreign, "{} server is not behind this endpoint, skipping tools: {}"),
        (tool_standing.kept, "{} server has tools in quarantine, skipping tools: {}"),
    ):
        for server, tools in by_server(pairs).items():
            sentences.append(template.format(plain(server), join_names(tools)))
    if len(sentences) <= WARNINGS_MAX:
        return sentences
    return [
        *sentences[:WARNINGS_MAX],
        f"tools of {len(sentences) - WARNINGS_MAX} more servers are skipped",
    ]


def hopeless(tools: Iterable[Pair], context: ToolContext) -> str:
    """Return why none of these tools can ever be in view here; empty if any tool can."""
    tool_standing = classify_tools(tools, context)
    if tool_standing.is_possible:
        return ""
    return f"nothing of it can be in view here: {'; '.join(warnings(tool_standing))}"


def by_server(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the namespaced names of the tools of each server, in their order."""
    grouped: dict[str, list[str]] = {}
    for pair in pairs:
        grouped.setdefault(pair[0], []).append(format_pair(pair))
    return grouped


def in_view(context: ToolContext) -> list[ListEntry]:
    """Return the tools that are in the list of tools now, without the built-in tools."""
    tools, servers = frozenset(context.shown.tools), frozenset(context.shown.servers)
    return [
        entry
        for entry in context.everything.offered
        if entry.server in servers or (entry.server, entry.item.key) in tools
        if context.listed(entry.server)
    ]


def route(pair: Pair) -> dict[str, object]:
    """Return the server and the original name to which a call of this tool goes."""
    server, original = pair
    return {
        "serverName": plain(server),
        "originalName": plain(original),
        "namespacedName": plain(format_pair(pair)),
    }


def routes(pairs: Iterable[Pair], context: ToolContext) -> dict[str, object]:
    """Return the routes of at most `ROUTES_MAX` tools, by exposed name."""
    names = context.names()
    named = [pair for pair in pairs if pair in names]
    return {names[pair]: route(pair) for pair in named[:ROUTES_MAX]}


def row(entry: ListEntry, *, is_in_view: bool) -> Row:
    """Return the row of a tool. `is_in_view`: whether the tool is in view."""
    pair = (entry.server, entry.item.key)
    definition = read(entry.item.raw)
    about = first_sentence(definition.description or definition.title)
    tokens = builtin_definitions.tokens(entry.item.raw)
    name = code(format_pair(pair))
    text = f"- {name} as {code(entry.key)} ({tokens} tokens{', in view' if is_in_view else ''})"
    value = {
        "exposedName": entry.key,
        **route(pair),
        "description": about,
        "tokens": tokens,
        "inView": is_in_view,
    }
    return Row(f"{text}: {about}" if about else text, value)


def summary(toolset: ToolSet, context: ToolContext) -> dict[str, object]:
    """Return the facts about a tool set, without its tools."""
    return {
        "name": toolset.name,
        "description": toolset.description,
        "toolCount": len(toolset.tools),
        "active": toolset.name == context.shown.toolset,
        "createdAt": context.dated(toolset.created),
        "updatedAt": context.dated(toolset.updated),
    }


def estimate_tokens(context: ToolContext) -> dict[str, object]:
    """Return the estimated tokens of all tools behind the endpoint, of the list of tools, and of
    the tools that the list leaves out."""
    spec = context.spec
    own_bytes = builtin_definitions.size(
        spec.exposure, code=spec.code is not None, builtins=spec.builtins
    )
    estimate = builtin_definitions.TokenSavings(
        builtin_definitions.tokens_of_bytes(sum(map(sent_bytes, context.everything.offered))),
        builtin_definitions.tokens_of_bytes(own_bytes + sum(map(sent_bytes, in_view(context)))),
    )
    return {
        "everything": estimate.everything,
        "inView": estimate.shown,
        "saved": estimate.tokens,
        "savedPercent": estimate.percent,
    }
