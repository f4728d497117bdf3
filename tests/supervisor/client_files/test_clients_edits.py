"""Files of clients as text: what is not our entry stays as it is, to the byte."""

import json
import random
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types
from hypothesis import assume, example, given
from hypothesis import strategies as st

from metamcp_supervisor.client_files import texts, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config import formats
from metamcp_supervisor.config.document import BrokenSyntax
from tests.supervisor.config.test_formats_jsonc import with_comments

JSON = FileFormat("claude", "json", ("mcpServers",))
TOML = FileFormat("codex", "toml", ("mcp_servers",))
LIST = FileFormat("continue", "yaml-list", ("mcpServers",), "name: Local\n")
MAPPING = FileFormat("goose", "yaml-mapping", ("extensions",))
ENTRY = {"type": "stdio", "command": "/opt/a b/metamcp", "args": ["connect", "--endpoint", "x"]}
NAMED = {"name": "metamcp", **ENTRY}
DUMP: Callable[..., str] = yaml.safe_dump
KEYS = st.text(st.sampled_from("abc-_ é\"'#:"), min_size=1, max_size=4)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=4)
SERVERS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3)
LAYOUTS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda value: json.dumps(value, separators=(",", ":")),
    lambda value: json.dumps(value, indent=2) + "\n",
    lambda value: json.dumps(value, indent="\t", ensure_ascii=False),
    lambda value: json.dumps(value, indent=4).replace("\n", "\r\n") + "\r\n",
]


def both_ways(kept: FileFormat, text: str, entry: dict[str, Any] = ENTRY) -> str:
    """Put in twice and taken out again, also after a change by hand; what it was with the entry."""
    made = texts.put(kept, text, "metamcp", entry)
    assert texts.entries(kept, made)["metamcp"] == entry
    assert texts.put(kept, made, "metamcp", entry) == made
    assert texts.drop(kept, made, "metamcp", text) == text
    note = "// by hand\n" if kept.format == "json" else "# by hand\n"
    assert texts.drop(kept, note + made, "metamcp", text) == note + text
    return made


@given(TABLES, SERVERS | st.none(), st.sampled_from(LAYOUTS))
def test_json_gets_the_entry_and_loses_it_without_a_trace(
    table: dict[str, Any], servers: dict[str, Any] | None, layout: Callable[[Any], str]
) -> None:
    whole = dict(table) if servers is None else {**table, "mcpServers": servers}
    made = both_ways(JSON, layout(whole))
    assert json.loads(made) == {**whole, "mcpServers": {**(servers or {}), "metamcp": ENTRY}}


@given(TABLES, SERVERS, st.randoms(use_true_random=False))
def test_comments_and_trailing_commas_stay_where_they_are(
    table: dict[str, Any], servers: dict[str, Any], dice: random.Random
) -> None:
    text = with_comments(json.dumps({"mcpServers": servers, **table}), dice)
    made = both_ways(JSON, text)
    assert formats.json_loads(made) == {**table, "mcpServers": {**servers, "metamcp": ENTRY}}


@given(TABLES, SERVERS | st.none(), st.sampled_from(LAYOUTS), KEYS)
def test_a_change_by_hand_outlives_the_entry(
    table: dict[str, Any], servers: dict[str, Any] | None, layout: Callable[[Any], str], key: str
) -> None:
    """The same change, made to the file with the entry and to the file without."""
    assume(key not in table)
    whole = dict(table) if servers is None else {"mcpServers": servers, **table}
    text = layout(whole)
    by_hand = FileFormat("claude", "json", ())
    with_it = texts.put(by_hand, texts.put(JSON, text, "metamcp", ENTRY), key, {"by": "hand"})
    without = texts.drop(JSON, with_it, "metamcp", text)
    assert without is not None
    assert formats.json_loads(without) == {**whole, key: {"by": "hand"}}
    if servers is not None and table:  # where the change does not stand beside ours
        assert without == texts.put(by_hand, text, key, {"by": "hand"})


@pytest.mark.promise("M7")
@pytest.mark.parametrize(
    "text",
    [
        "{}", "{ }\n", "{\n}\n", '{"mcpServers": {}}', "{ /* c */ }", "// x\n{ // a\n}",
        '{"a": 1 // n\n}', '{\n  "a": 1, // n\n}\n', '{\r\n  "a": [1, 2] // n  \r\n}\r\n',
        '{\n  "mcpServers": {\n    "x": {"command": "y"}, // z\n    /* more */\n  }\n}',
        '{"mcpServers":{"x":{}}}', "{,}",
    ],
)  # fmt: skip
def test_every_layout_of_json_comes_back(text: str) -> None:
    both_ways(JSON, text)


def test_an_entry_looks_like_those_around_it() -> None:
    text = '{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x"\n\t\t}\n\t}\n}\n'
    made = texts.put(JSON, text, "metamcp", {"command": "m", "args": ["connect"]})
    assert made == (
        '{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x"\n\t\t},\n'
        '\t\t"metamcp": {\n\t\t\t"command": "m",\n\t\t\t"args": ["connect"]\n\t\t}\n\t}\n}\n'
    )


def test_lines_beside_the_entry_stay_when_it_leaves() -> None:
    before = '{\n  "mcpServers": {}\n}\n'
    made = texts.put(JSON, before, "metamcp", ENTRY)
    by_hand = made.replace('  "mcpServers"', '  // mine\n  "mcpServers"')
    assert texts.drop(JSON, by_hand, "metamcp", before) == '{\n  // mine\n  "mcpServers": {}\n}\n'


@given(st.sampled_from(["", "\n", "a = 1", "a = 1\n", "# c\r\na = 1\r\n", "a = 1\n\n\n"]))
@example('[mcp_servers.x]\ncommand = "y"\n[mcp_servers.x.env]\nA = "b" # n')
@example('s = """\n[mcp_servers.metamcp]\n"""\n')
@example("a = [\n 1,\n 2 # ]\n]\n[[z]]\nb = 1\n")
@example('[mcp_servers]\nx = {command="y"}\n')
@example("[mcp_servers.x]\n[[z]]\nb = 1\n[tui]\n[[z]]\n")
def test_toml_gets_the_table_and_loses_it_without_a_trace(text: str) -> None:
    made = both_ways(TOML, text)
    values = tomllib.loads(made)
    assert values["mcp_servers"].pop("metamcp") == ENTRY
    old = tomllib.loads(text)
    assert values == {**old, "mcp_servers": old.get("mcp_servers", {})}


@given(
    values=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), SCALARS),
    ends=st.sampled_from(["", "\n"]),
)
def test_toml_with_other_servers_keeps_them(values: dict[str, Any], ends: str) -> None:
    settings = [f"{key} = {toml_edit.format_value(value or 0)}" for key, value in values.items()]
    text = "\n".join(["[mcp_servers.other] # mine", *settings, "", "[tui]", "theme = 'x'"])
    made = both_ways(TOML, text + ends)
    assert tomllib.loads(made)["tui"] == {"theme": "x"}


def test_a_table_that_moved_and_grew_leaves_whole() -> None:
    text = 'model = "m"\n[[z]]\n'
    made = texts.put(TOML, text, "metamcp", ENTRY)
    more = 'list = [\n[1],\n]\n[mcp_servers.metamcp.env]\nA = "b"\n'
    below = "\n# of the screen\n[tui]\nx = 1\n[[z]]\n"
    assert texts.drop(TOML, made + more + below, "metamcp", text) == text + below
    assert texts.drop(TOML, text[:-1] + made.removeprefix(text)[:-1], "metamcp", None) == text[:-1]


def test_a_table_with_another_target_keeps_its_other_lines() -> None:
    text = '[mcp_servers.metamcp]\n# mine\ncommand = "old"\nenabled = false # yet\n'
    made = texts.put(TOML, text, "metamcp", {"url": "http://127.0.0.1:1/mcp", "enabled": False})
    assert made == (
        '[mcp_servers.metamcp]\n# mine\nenabled = false # yet\nurl = "http://127.0.0.1:1/mcp"\n'
    )


def test_an_inline_table_is_left_alone() -> None:
    text = 'mcp_servers = { x = { command = "y" } }\n'
    with pytest.raises(FileUnfit, match=r"write it as a table \[mcp_servers.metamcp\]"):
        texts.put(TOML, text, "metamcp", ENTRY)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (JSON, '{"a": 1, "mcpServers": {}}'), (JSON, '{"a": 1}'),
        (MAPPING, "extensions:\n  x: {}\n"), (MAPPING, "extensions: {}\n"), (MAPPING, "a: 1\n"),
        (LIST, "a: 1\nmcpServers: []\n"), (LIST, "a: 1\n"),
    ],
)  # fmt: skip
def test_a_file_that_its_client_wrote_again_loses_the_entry(kept: FileFormat, text: str) -> None:
    def written(text: str) -> str:
        values = yaml.safe_load(text)  # JSON, too
        return json.dumps(values, indent=3) if kept.format == "json" else DUMP(values)

    made = texts.put(kept, text, "metamcp", NAMED)
    assert texts.drop(kept, written(made), "metamcp", text) == written(text)


def test_the_entry_of_another_comes_back_beside_changes_by_hand() -> None:
    for kept, text, note in (
        (JSON, '{"mcpServers": {"metamcp": {"url": "u"}, "x": {}}}', "// mine\n"),
        (TOML, "[mcp_servers.metamcp] # n\n# theirs\nurl = 'u'\n\n[tui]\n", "# mine\n"),
        (MAPPING, "extensions:\n  metamcp: # theirs\n    uri: 'u'\n  x: {}\n", "# mine\n"),
    ):
        made = note + texts.put(kept, text, "metamcp", ENTRY)
        assert texts.drop(kept, made, "metamcp", text, restore=True) == note + text


def test_yaml_that_could_be_read_as_another_value_is_in_quotes() -> None:
    env = {"on": "1.0", "A": "\u202e\n"}
    entry: dict[str, Any] = {"name": "yes", "env": env, "args": [], "timeout": 300}
    made = texts.put(MAPPING, "# mine\nextensions:\n    x: {}\n", "metamcp", entry)
    assert made == (
        "# mine\nextensions:\n    x: {}\n    metamcp:\n"
        '      name: "yes"\n      env:\n        "on": "1.0"\n        A: "\\u202e\\n"\n'
        "      args: []\n      timeout: 300\n"
    )


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | WORDS
ITEMS = st.dictionaries(WORDS.filter(bool), PLAIN | st.lists(PLAIN, max_size=3), max_size=3)
STYLES = st.fixed_dictionaries(
    {
        "indent": st.integers(2, 4),
        "default_flow_style": st.just(value=False),
        "allow_unicode": st.booleans(),
        "explicit_start": st.booleans(),
        "width": st.just(10_000),
        "line_break": st.sampled_from(["\n", "\r\n"]),
    }
)


@given(st.dictionaries(WORDS.filter(bool), ITEMS, max_size=3), ITEMS, STYLES)
def test_a_yaml_mapping_gets_the_entry_and_loses_it(
    servers: dict[str, Any], rest: dict[str, Any], style: dict[str, Any]
) -> None:
    whole = {**rest, "extensions": servers, "last": "x"}
    text = DUMP(whole, sort_keys=False, **style)
    assume("metamcp" not in servers)
    made = both_ways(MAPPING, text)
    assert yaml.safe_load(made) == {**whole, "extensions": {**servers, "metamcp": ENTRY}}


@given(st.lists(ITEMS, max_size=3), ITEMS, STYLES)
def test_a_yaml_list_gets_the_entry_and_loses_it(
    servers: list[dict[str, Any]], rest: dict[str, Any], style: dict[str, Any]
) -> None:
    named = [{"name": f"s{at}", **server} for at, server in enumerate(servers)]
    whole = {**rest, "mcpServers": named, "last": "x"}
    text = DUMP(whole, sort_keys=False, **style)
    assume(all(set(server) - {"name"} == set(server) for server in servers))
    made = both_ways(LIST, text, NAMED)
    assert yaml.safe_load(made) == {**whole, "mcpServers": [*named, NAMED]}


@pytest.mark.parametrize(
    "text",
    [
        "a: 1", "a: 1\n", "a: >-\n  b", "extensions:", "extensions:\nb: 1\n",
        "extensions: {}  # none\nb: 2\n", "extensions:\n  1:\n    2: 3\n",
        "extensions:\n  x:\n    type: builtin\n\n  # note\n  y: {a: b}\nz: |\n  extensions:\n  a\n",
        "# c\r\nextensions:\r\n    x:\r\n        args:\r\n        - a\r\n        - 'b'\r\n",
        "extensions:\n  x:\n    about: |\n      several\n\n      # lines\n\n# mine\n",
        "a: \"x\n  y\"\nb: [1,\n  2]\n'extensions':\n  x: {a: b,\n    c: d} # e\n\nz: 1",
        "a: &a {b: c}\nextensions: # mine\n  ? x\n  : *a\n  # deeper\n    # than x\nz: *a\n",
        "---\nextensions: null\n# mine\n...\n", "extensions:\n  x:\n    a: 2020-01-01\nb: ~\n",
    ],
)  # fmt: skip
def test_every_layout_of_yaml_comes_back(text: str) -> None:
    made = both_ways(MAPPING, text)
    values = yaml.safe_load(made)
    assert values["extensions"].pop("metamcp") == ENTRY
    old = yaml.safe_load(text)
    assert values == {**old, "extensions": old.get("extensions") or {}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("extensions: {a: {b: c}}\n", "in brackets"),
        ("extensions: [a]\n", "has no table in 'extensions'"),
        ("  a: 1\n", "cannot be edited safely"),
        ("{a: 1}\n", "cannot be edited safely"),
        ("{extensions: {}}\n", "cannot be edited safely"),
        ("a: &b\n  c: 1\nextensions: *b\n", "cannot be edited safely"),
    ],
)
def test_yaml_that_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(FileUnfit, match=why):
        texts.put(MAPPING, text, "metamcp", ENTRY)


@pytest.mark.parametrize(
    ("kept", "text", "line"),
    [
        (JSON, '{\n  "a": }', 2),
        (JSON, '{"a": 1,\n "a": 2}', 2),
        (TOML, "a = 1\nb = \n", 2),
        (MAPPING, "extensions:\n\ta: b\n", 2),
        (MAPPING, "extensions:\nb: 1\nextensions: geheim\n", 3),
        (MAPPING, "a: 1\n---\nb: 2\n", 2),
        (MAPPING, "a: 1\njust words\n", 2),
        (MAPPING, "a: [\n", 2),
        (MAPPING, "a: 'b\nc: d\n", 1),
        (MAPPING, "- a\n- b\n", None),
        (MAPPING, "a: \0\n", None),
        (MAPPING, "[" * 700, None),
        (MAPPING, "a: !!bool b\n", None),
        (MAPPING, "{a: {b: c}: d}\n", 1),
    ],
)
def test_a_broken_file_is_told_with_its_line(kept: FileFormat, text: str, line: int | None) -> None:
    with pytest.raises(BrokenSyntax) as caught:
        texts.put(kept, text, "metamcp", ENTRY)
    assert caught.value.line == line
    assert caught.value.message.isprintable()
    assert "geheim" not in caught.value.message
