"""JSON with comments, and where its keys stand."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.config import formats
from metamcp_supervisor.config.document import BrokenSyntax

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just('//"/*,]'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+')


def with_comments(text: str, dice: random.Random) -> str:
    """Comments between any two tokens, and commas before closing brackets."""
    pieces: list[str] = []
    before = ""
    for token in TOKEN.findall(text):
        noise = dice.choice(["", " ", "\n", '/* , ] " */', '// } "\n', "/**//***/", "/*\n//*/"])
        comma = "," if token in "]}" and before not in "[{" and dice.random() < 0.5 else ""
        pieces += (comma, noise, token)
        before = token
    return "".join(pieces) + dice.choice(["", "// end", "/* end */"])


@given(VALUES, st.randoms(use_true_random=False))
def test_comments_and_trailing_commas_change_no_value(value: Any, dice: random.Random) -> None:
    noisy = with_comments(json.dumps(value), dice)
    bare = formats.strip(noisy)
    assert json.loads(bare) == value
    assert len(bare) == len(noisy)
    assert bare.count("\n") == noisy.count("\n")


@given(VALUES, st.booleans())
def test_plain_json_is_left_as_it_is(value: Any, readable: bool) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if readable else None)
    assert formats.strip(text) == text


@given(st.text(st.sampled_from(list('{}[]:,"\\/* \na1'))))
def test_any_text_is_an_object_or_broken_syntax(text: str) -> None:
    try:
        assert isinstance(formats.json_loads(text), dict)
        formats.json_lines(text)
    except BrokenSyntax:
        pass


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{"a": 1,\n "b" 2}', 2, "Expecting ':'"),
        ('{"a":\n\n/* b', 3, "has no end"),
        ('{"a": {"b": 1,\n"b": 2}}', 2, "'b' is written twice"),
        ("[1]", None, "must be a JSON object"),
        ('{"a": NaN}', None, "NaN"),
        ('{"a": "x', 1, "Unterminated string"),
        ("[" * 100_000, None, "nested too deeply"),
        (f'{{"a": {"9" * 5000}}}', None, "too many digits"),
    ],
)
def test_broken_json_is_told_with_its_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(BrokenSyntax, match=words) as caught:
        formats.json_loads(text)
    assert caught.value.line == line


def test_a_hostile_text_is_stripped_in_linear_time() -> None:
    """A quote that is never closed, two million times: quadratic work would take hours."""
    text = '"' + '\\"' * 2_000_000
    assert formats.strip(text) == text


def test_every_key_and_item_of_json_has_its_line() -> None:
    text = '{ // one\n "a": {\n  "b": [1,\n   {"c": 2}] },\n "d": "x" }'
    lines = formats.json_lines(text)
    assert lines["a",] == 2
    assert lines["a", "b"] == 3
    assert lines["a", "b", 1] == 4
    assert lines["a", "b", 1, "c"] == 4
    assert lines["d",] == 5


def test_keys_and_tables_of_toml_have_their_lines() -> None:
    text = 'a = 1\n[servers.git]\ncommand = "x"\n["q d"."e"]\ntools."git.x" = 1\n[[l]]\n'
    text += "x = 1\n[[l]]\nx = 2\n"
    lines = formats.toml_lines(text)
    assert lines["a",] == 1
    assert lines["servers", "git", "command"] == 3
    assert lines["q d", "e", "tools", "git.x"] == 5
    assert lines["l",] == 6
    assert (lines["l", 0, "x"], lines["l", 1], lines["l", 1, "x"]) == (7, 8, 9)


LONG = ("\n" + '"a b".' * 700_000 + "a = 1", 2)
"""A key with so many parts that Python's decoder would need days."""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\na = ", 2),
        ('x = 1\na = "b', 2),
        ("a = 1\na = 2", 2),
        ("a = [" + "[" * 100_000, None),
        ("a = " + "9" * 5000, None),
        LONG,
    ],
)
def test_broken_toml_is_told_with_its_line(text: str, line: int | None) -> None:
    with pytest.raises(BrokenSyntax) as caught:
        formats.toml_loads(text)
    assert caught.value.line == line
