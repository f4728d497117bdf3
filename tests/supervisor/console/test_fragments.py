"""Parts of pages: a text of a server stays a text, whatever is in it."""

import hashlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from htpy import Node, fragment

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console import site
from metamcp_supervisor.control.access import Role

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "<hx-partial hx-get=/f/keys hx-trigger=load></hx-partial>",
    "javascript:alert(1)",
    "</title></textarea><style>*{display:none}</style>",
    "\x1b[31mred\x1b[0m",
    "abc\u202edcba\u2066x\u200b\u00ad",
    "\ud800 half a character",
    "a" * 1_000_000,
)
TEXT_CHARS = 30_000


class Elements(HTMLParser):
    """Elements with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text = "".join((self.text, data))  # markup escapes what is added to it


def parsed(node: Node) -> Elements:
    return Elements(str(fragment[node]))


def parts(text: str) -> dict[str, Node]:
    """Every part of a page that takes a text, with this one in it."""
    said = ui.shorten(text)
    return {
        "link": ui.link(ui.address("servers", text, query={"q": text}), said),
        "action": ui.action(ui.address("servers", text), said, {"names": text}, confirm=text),
        "form": ui.form("/x", ui.field(said, said, said), submit=said, confirm=text),
        "search": ui.search("/x", {"q": text}, said),
        "choice": ui.choice("x", [(text, said)], text),
        "table": ui.table(said, ("a",), [[said]], empty="none"),
        "no rows": ui.table("x", ("a",), [], empty=said),
        "state": ui.state(text, "ok"),
        "notice": ui.notice(text, "bad", [text]),
        "pairs": ui.pairs([(said, said)]),
        "code": ui.code(text, copy=True, label=said),
        "tabs": ui.tabs("/x", [(ui.address("x", text), said)]),
        "heading": ui.build_heading(said),
        "data": ui.data("x", text),
    }


@pytest.mark.promise("M107")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_element_and_no_handler_comes_from_a_text(text: str) -> None:
    harmless = parts("harmless")
    for name, node in parts(text).items():
        found, plain = parsed(node).found, parsed(harmless[name]).found
        assert [tag for tag, _ in found] == [tag for tag, _ in plain], name
        assert [sorted(attrs) for _, attrs in found] == [sorted(attrs) for _, attrs in plain], name


def test_no_part_has_what_the_policy_of_the_page_forbids() -> None:
    nodes = [*parts("x").values(), site.shell(), site.frame(Role.ADMIN, "1", "here")]
    for tag, attrs in parsed(nodes).found:
        assert not [name for name in attrs if name.startswith(("on", "hx-on")) or name == "style"]
        assert not [one for one in attrs.values() if one and one.startswith(("js:", "javascript:"))]
        assert tag != "style"
        assert tag != "script" or str(attrs["src"]).startswith("/static/")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb", "a\\u{202e}b"),
        ("\u200b\ufeff", "\\u{200b}\\u{feff}"),
        ("\ud800", "\\u{d800}"),
        ("two\nlines\tand é → 漢", "two\nlines\tand é → 漢"),
    ],
)
def test_characters_that_nobody_sees_are_shown_as_escapes(text: str, seen: str) -> None:
    assert ui.shorten(text) == seen


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    assert ui.shorten("a" * 1_000_000, 10) == "a" * 10 + "… (999,990 more)"
    assert len(parsed(ui.code("a" * 1_000_000)).text) < TEXT_CHARS


def test_an_address_keeps_every_character_of_a_name() -> None:
    assert ui.address("servers", "a/b c?d#é", query={"q": "x&y", "empty": ""}) == (
        "/servers/a%2Fb%20c%3Fd%23%C3%A9?q=x%26y"
    )


def test_the_vendored_script_is_the_one_that_was_published() -> None:
    folder = Path(site.__file__).parent / "static"
    digest = hashlib.sha256((folder / "htmx.js").read_bytes()).hexdigest()
    assert digest == "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
    assert "Zero-Clause BSD" in (folder / "htmx.LICENSE").read_text()


def test_the_own_script_stays_small() -> None:
    folder = Path(site.__file__).parent / "static"
    assert (folder / "console.js").read_text().count("\n") <= 400
