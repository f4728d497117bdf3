"""What a search found, as text for a model or as JSON.

Owns: the two forms and three details of an answer, its limit in bytes, and the words that say what
is not in it. Never: searching, sending.

`brief` is a tool's name and the first sentence about it; `detailed` has the whole description and
the parameters; `full` has the definition as its server gives it, under its exposed name. What comes
from servers stands on one line and in quotes of code, so that it cannot pass for another tool.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Raw

from metamcp_worker.builtin_tools.wording import NAME_CHARACTERS_MAX, code, cut, fit, line
from metamcp_worker.ipc import codec, token_cost
from metamcp_worker.ipc.builtin_definitions import DETAILS, Detail
from metamcp_worker.search import definitions
from metamcp_worker.search.index import HITS_MAX, Document, Found

ANSWER_BYTES_MAX = 32 * 1024
"""Of a whole answer: about 8,000 tokens."""
WORDS_BYTES = 512
"""Of it, what is kept free for the words about what is left out."""
SENTENCE_CHARACTERS_MAX = 200
DESCRIPTION_CHARACTERS_MAX = 4_000
PARAMETER_CHARACTERS_MAX = 400

_SENTENCE = re.compile(
    r"(.+?(?:[。\uff01\uff1f]|(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?](?=\s+[^\sa-z]|\s*\Z)))"
)


def markdown(found: Found, detail: Detail) -> str:
    """At most `ANSWER_BYTES_MAX` bytes of UTF-8."""
    write = {"brief": _brief, "detailed": _detailed, "full": _full}
    documents = [hit.document for hit in found.hits]
    entries = _fitting(documents, detail, lambda document, depth: write[depth](document).encode())
    parts = [entry.decode() for entry in entries]
    if words := _missing(found, len(parts)):
        parts.append(words)
    return ("\n" if detail == "brief" else "\n\n").join(parts)


def as_json(found: Found, detail: Detail) -> bytes:
    """`{"tools": […], "more": 0, "counted": true, "hint": "…"}`, at most `ANSWER_BYTES_MAX` bytes.
    `more`: tools that match and are not in it; not `counted`: that is the least it can be."""
    documents = [hit.document for hit in found.hits]
    entries = _fitting(
        documents, detail, lambda document, depth: codec.dump(_value(document, depth))
    )
    answer: dict[str, Any] = {
        "tools": [Raw(entry) for entry in entries],
        "more": found.more + len(documents) - len(entries),
        "counted": found.counted,
    }
    if words := _missing(found, len(entries)):
        answer["hint"] = words
    return codec.dump(answer)


def first_sentence(text: str) -> str:
    """On one line, and not longer than such a line should be."""
    whole = line(text, DESCRIPTION_CHARACTERS_MAX)
    match = _SENTENCE.match(whole)
    return cut(match[1] if match else whole, SENTENCE_CHARACTERS_MAX)


def _fitting(
    documents: Sequence[Document], detail: Detail, write: Callable[[Document, Detail], bytes]
) -> list[bytes]:
    """As many entries as there is room for. The first one has less detail if it needs that."""
    room = ANSWER_BYTES_MAX - WORDS_BYTES
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


def _missing(found: Found, shown: int) -> str:
    """What is not in the answer, and how to get it."""
    if not found.hits and not found.more:
        return (
            "No tool matches. Try other words for what it should do, or the name of a server; an"
            " empty query lists all tools by name."
        )
    words: list[str] = []
    if cut := len(found.hits) - shown:
        words.append(
            f"{cut} more {'was' if cut == 1 else 'were'} found and left out, because an answer has"
            f' at most {ANSWER_BYTES_MAX // 1024} KiB: ask with a smaller "detail" to see them.'
        )
    if found.more:
        least = "" if found.counted else "At least "
        words.append(
            f"{least}{found.more} more match{'es' if found.more == 1 else ''}: ask with a larger"
            f' "limit" (up to {HITS_MAX}), or in other words.'
        )
    return " ".join(words)


def _brief(document: Document) -> str:
    read = definitions.read(document.definition)
    said = first_sentence(read.description or read.title)
    return f"- {code(document.exposed)}{': ' if said else ''}{said}"


def _detailed(document: Document) -> str:
    return "\n".join([_head(document), *_told(definitions.read(document.definition))])


def _told(read: definitions.Definition) -> Iterator[str]:
    if said := line(read.description or read.title, DESCRIPTION_CHARACTERS_MAX):
        yield said
    yield "Parameters:" if read.parameters else "No parameters."
    for parameter in read.parameters:
        required = ", required" if parameter.required else ""
        about = line(parameter.description, PARAMETER_CHARACTERS_MAX)
        kind = line(parameter.type, definitions.TYPE_CHARACTERS_MAX)
        yield f"- {code(parameter.name)} ({kind}{required}){': ' if about else ''}{about}"
    if read.more:
        yield '- and further ones, which "detail": "full" shows'


def _full(document: Document) -> str:
    text = _renamed(document).decode()
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{_head(document)}\n{fence}json\n{text}\n{fence}"


def _head(document: Document) -> str:
    return (
        f"### {code(document.exposed)} (server {code(document.pair[0])}, about"
        f" {token_cost.tokens(document.definition)} tokens)"
    )


def _value(document: Document, detail: Detail) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": fit(document.exposed, NAME_CHARACTERS_MAX),
        "server": fit(document.pair[0], NAME_CHARACTERS_MAX),
    }
    if detail != "brief":
        said["tokens"] = token_cost.tokens(document.definition)
    if detail == "full":
        return {**said, "definition": Raw(_renamed(document))}
    read = definitions.read(document.definition)
    if detail == "brief":
        return {**said, "description": first_sentence(read.description or read.title)}
    return {
        **said,
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


def _renamed(document: Document) -> bytes:
    """The definition under its exposed name; `null` if it is none."""
    try:
        members = codec.level(document.definition)
        document.definition.decode()
    except (codec.Malformed, UnicodeDecodeError):
        return b"null"
    name = codec.dump(fit(document.exposed, NAME_CHARACTERS_MAX))
    return codec.dump({**members, "name": Raw(name)})
