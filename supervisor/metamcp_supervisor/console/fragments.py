"""Parts of the console's pages: tables, forms, links, states, and texts of servers made harmless.

Owns: how each part is marked up, which characters of a foreign text a browser shows as escapes, and
which lines and words of two texts count as different.
Never: what a page shows (the modules of the pages), the address of a page (`pages`).

Texts are escaped by htpy. No part has a style, a script or a handler: the policy of the page
forbids them.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal
from urllib.parse import quote, urlencode

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.wording import columns

TEXT_CHARS_MAX = 20_000
"""Maximum characters of one text of a server on a page; the rest is counted."""

LINES_MAX = 3000
"""Maximum lines of each text that are compared; the rest counts as changed."""
LINE_CHARACTERS_MAX = 2000
"""Maximum characters of a line that are shown."""
WORDS_MAX = 200
"""Maximum words of a changed part that are compared; the time grows with their square."""
WORD_PARTS_MAX = 20
"""Maximum changed parts that are compared word by word; further ones are shown line by line."""
CONTEXT_LINES = 3
_WORD = re.compile(r"\s+|\w+|[^\w\s]")

Tone = Literal["ok", "warn", "bad", "off"]
Sorted = Literal["none", "ascending", "descending"]
"""Order of a column, as a screen reader says it."""
Attrs = Mapping[str, str | bool | None]

_PLAIN = {9, 10}
_HIDDEN = [
    *range(32), *range(0x7F, 0xA0), 0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5,
    *range(0x180B, 0x180F), *range(0x200B, 0x2010), 0x2028, 0x2029, *range(0x202A, 0x202F),
    *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080), *range(0xE0100, 0xE01F0),
]  # fmt: skip
#: Controls, characters that change the direction of a text, and characters that nobody sees.
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{{{code:x}}}"
    for code in [*_HIDDEN, *range(0xD800, 0xE000)]
    if code not in _PLAIN
}
_FIRST_TONE: dict[str, Tone] = {
    "ready": "ok", "active": "ok", "idle": "off", "warming": "warn", "draining": "warn",
    "stopped": "off", "error": "bad", "quarantined": "bad", "starting": "warn",
}  # fmt: skip


def shorten(text: str, limit: int = TEXT_CHARS_MAX) -> str:
    """Return a foreign text as a page shows it: characters that nobody sees as escapes, and at most
    `limit` characters of it, with the number of the others."""
    more = len(text) - limit
    beginning = text[:limit].translate(_ESCAPES)
    return f"{beginning}… ({amount(more)} more)" if more > 0 else beginning


def address(*parts: str, query: Mapping[str, str] = {}) -> str:
    """Return the path of a page from its parts, which are encoded: ("servers", "a b") becomes
    `/servers/a%20b`. `query`: empty values are left out."""
    query_string = urlencode(
        {key: value for key, value in query.items() if value}, errors="replace"
    )
    return (
        "/"
        + "/".join(quote(segment, safe="", errors="replace") for segment in parts)
        + (f"?{query_string}" if query_string else "")
    )


def link(path: str, text: Node, **attrs: str | bool | None) -> Element:
    """Return a link to a page of the console. `path`: as `address` returns it."""
    return h.a(href=path, **attrs)[text]


def action(
    path: str,
    label: str,
    values: Mapping[str, str] = {},
    *,
    confirm: str = "",
    danger: bool = False,
) -> Element:
    """Return a button that changes something: it posts `values` to a page. `confirm`: the question
    before it, which names the object."""
    return h.form(_post(path, confirm), class_="action")[
        [h.input(type="hidden", name=name, value=value) for name, value in values.items()],
        h.button(type="submit", class_="danger" if danger else None)[label],
    ]


def form(path: str, *fields: Node, submit: str, confirm: str = "") -> Element:
    """Return a form whose fields are posted to a page. `submit`: text of its button."""
    return h.form(_post(path, confirm), class_="fields")[
        fields, h.p[h.button(type="submit")[submit]]
    ]


def field(label: str, control: Node, hint: str = "") -> Element:
    """Return a control of a form with its label, and a sentence below it."""
    return h.label[h.span[label], control, hint and h.small[hint]]


def search(
    path: str, query: Mapping[str, str], label: str, *controls: Node, name: str = "q"
) -> Element:
    """Return the form that filters a page: `controls` beside a text with this name.
    Only the address of the page changes."""
    return h.form(action=path, method="get", role="search", class_="search")[
        h.label[
            h.span[label],
            h.input(type="search", name=name, value=query.get(name, ""), maxlength=200),
        ],
        controls,
        h.button(type="submit")["Filter"],
    ]


def choice(
    name: str, options: Sequence[tuple[str, str]], chosen: str = "", **attrs: str | bool | None
) -> Element:
    """Return a control with which one of `options` (value and text) is chosen."""
    return h.select(name=name, **attrs)[
        [h.option(value=value, selected=value == chosen)[text] for value, text in options]
    ]


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Node]],
    *,
    empty: str,
    numbers: Iterable[str] = (),
    head: int = 0,
    orders: Mapping[str, tuple[str, Sorted]] = {},
) -> Element:
    """Return a table, whose first column names the row, or else the column `head`; without rows,
    the sentence `empty`. `numbers`: heads of columns that are aligned to the right; `orders`: heads
    that order the table, each with the path of that page and the order of the column now."""
    all_rows, right = list(rows), set(numbers)
    if not all_rows:
        return h.p(class_="empty")[empty]
    kinds = ["number" if head in right else None for head in heads]
    cells = [
        h.th(scope="row") if number == head else h.td(class_=kind)
        for number, kind in enumerate(kinds)
    ]
    # A name says nothing about columns that are wide: the reader may scroll the table by keyboard.
    return h.div(class_="table", tabindex="0", role="region", aria_label=caption)[
        h.table[
            h.caption[caption],
            h.thead[
                h.tr[
                    [
                        _head(head, kind, *orders.get(head, ("", None)))
                        for head, kind in zip(heads, kinds, strict=True)
                    ]
                ]
            ],
            h.tbody[[_row(cells, row) for row in all_rows]],
        ]
    ]


def state(word: str, tone: Tone | None = None) -> Element:
    """Return a state: its word, and a dot whose colour repeats it. `tone`: that of a server in this
    state, unless it is given."""
    return h.span(class_=f"state {tone or _FIRST_TONE.get(word, 'off')}")[shorten(word, 80)]


def notice(text: str, tone: Tone = "ok", details: Sequence[str] = ()) -> Element:
    """Return a sentence about what happened, which a screen reader says at once."""
    urgent = tone in ("warn", "bad")
    return h.div(class_=f"notice {tone}", role="alert" if urgent else "status")[
        h.p[shorten(text)], details and h.ul[[h.li[shorten(detail)] for detail in details]]
    ]


def needs(activity: str, role: Role) -> Element:
    """Return the sentence in place of a control that the role of the session does not have."""
    return h.p(class_="empty")[f"To {activity} needs the role {role}."]


def pairs(rows: Iterable[tuple[str, Node]]) -> Element:
    """Return a list of names, each with its value."""
    return h.dl[[h.div[h.dt[name], h.dd[value]] for name, value in rows]]


def code(text: str, *, copy: bool = False, label: str = "") -> Element:
    """Return a text as it is written, with a button that copies it. `label`: of the text."""
    return h.figure(class_="code")[
        label and h.figcaption[label],
        h.pre(tabindex="0", aria_label=label or "text")[h.code[shorten(text)]],
        copy and h.button(type="button", data_copy=True)["Copy"],
    ]


def tabs(here: str, items: Sequence[tuple[str, str]]) -> Element:
    """Return the links to a page's parts, each with path and title. `here`: path of the part that
    is shown."""
    return h.nav(class_="tabs", aria_label="Parts of this page")[
        [link(path, title, aria_current="page" if path == here else None) for path, title in items]
    ]


def build_heading(title: Node, *beside: Node) -> Element:
    """Return the heading of a page, and what stands beside it."""
    return h.header(class_="page")[h.h1(tabindex="-1")[title], beside]


def data(name: str, value: object) -> Element:
    """Return a value for the script of the console; nobody sees it."""
    return h.data(id=name, value=json.dumps(value), hidden=True)


def render_time(seconds: float) -> Element:
    """Return a moment, in seconds since the epoch, which the browser writes in its own time."""
    return moment(instant(seconds))


def moment(written: str) -> Element:
    """Return a moment that is written as ISO 8601, which the browser writes in its own time."""
    return h.time(datetime=written)[written]


def instant(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, in UTC with milliseconds."""
    date_time = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{date_time}.{int(seconds * 1000) % 1000:03}Z"


def ago(seconds: float) -> str:
    """Return a duration in two units at most: 8s, 2m11s, 5h07m."""
    return columns.span(seconds)


def amount(number: float) -> str:
    """Return a number with separators between thousands."""
    rounded = round(number)
    return f"{rounded:,}" if rounded == number or abs(number) >= 100 else f"{number:,.1f}"


def size(count: int) -> str:
    """Return a number of bytes in three digits at most: 812K, 71M, 1.2G."""
    return columns.size(count)


def _post(path: str, confirm: str) -> Attrs:
    return {
        "hx-post": f"/f{path}",
        "hx-target": "main",
        "hx-swap": "innerMorph",
        "hx-confirm": shorten(confirm, 500) if confirm else None,
    }


def _head(head: str, kind: str | None, path: str, order: Sorted | None) -> Element:
    return h.th(scope="col", class_=kind, aria_sort=order)[link(path, head) if path else head]


def _row(cells: Sequence[Element], row: Sequence[Node]) -> str:
    """Return a row as text. `cells`: element of each column. Written at once, because htpy passes
    each piece of a page through a generator for each element around it."""
    return h.tr[[cell[value] for cell, value in zip(cells, row, strict=True)]].__html__()


def diff(before: str, after: str, label: str) -> Element:
    """Return both texts as one, with what was removed and what was added. `label`: of the text."""
    old, new = before.split("\n")[:LINES_MAX], after.split("\n")[:LINES_MAX]
    return h.figure(class_="code")[
        h.figcaption[label],
        h.pre(tabindex="0", aria_label=label, class_="diff")[h.code[list(_parts(old, new))]],
    ]


def _parts(old: Sequence[str], new: Sequence[str]) -> Iterator[Node]:
    remaining = WORD_PARTS_MAX
    position = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES):
        yield _left_out(group[0][1] - position)
        position = group[-1][2]
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield _text(old[a:b])
                continue
            if kind == "replace" and remaining:
                words = _words(old[a:b], new[c:d])
                if words is not None:
                    remaining -= 1
                    yield words
                    continue
            if b > a:
                yield h.del_[_text(old[a:b])]
            if d > c:
                yield h.ins[_text(new[c:d])]
    if position:
        yield _left_out(len(old) - position)


def _left_out(lines: int) -> str:
    """Return the mark of lines that are the same in both texts and not shown."""
    return f"⋯ {lines} equal {'line' if lines == 1 else 'lines'}\n" if lines else ""


def _words(old: Sequence[str], new: Sequence[str]) -> Node:
    """Return changed lines word by word; None if they have too many words."""
    before, after = _WORD.findall(_text(old)), _WORD.findall(_text(new))
    if max(len(before), len(after)) > WORDS_MAX:
        return None
    nodes: list[Node] = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        removed, added = "".join(before[a:b]), "".join(after[c:d])
        if kind == "equal":
            nodes.append(removed)
            continue
        nodes += [removed and h.del_[removed], added and h.ins[added]]
    return nodes


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{shorten(line, LINE_CHARACTERS_MAX)}\n" for line in lines)
