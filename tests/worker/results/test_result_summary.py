"""Large results: what is kept of them, its shape, and the short result."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.ipc.spec import RESULT_BYTES_MIN, ResultLimits
from metamcp_worker.results.result_summary import (
    COMMAS_MAX,
    CUT_BYTES,
    META,
    KeptResult,
    LargeResult,
    Piece,
    ResultOwner,
    cut,
    folder,
    large,
    place,
    shape,
    short,
    text_pieces,
)

ABOUT = KeptResult(
    handle="ab" * 12, endpoint="dev", principal="key:ci", workspace="default", key="k",
    server="git", tool="log", size_bytes=90_000, result_bytes=95_000, shape="text of 9 lines",
    kept=0.0, until=3600.0,
)  # fmt: skip
LIMITS = ResultLimits(folder="/r", max_bytes=65536, keep_s=60.0, total_bytes=1 << 20)


def text(words: str, **more: Any) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": words}], **more}).encode()


def found(result: bytes) -> LargeResult:
    one = large(result)
    assert one is not None
    return one


def told(answer: bytes) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(answer)
    return members


def test_a_single_text_is_kept_without_quotes_and_escapes() -> None:
    one = found(text('say "hi"\n' * 100))
    assert one.text
    assert b"".join(text_pieces(one.raw)).decode() == 'say "hi"\n' * 100


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.booleans())
def test_pieces_of_a_text_are_the_text(words: str, ascii_only: bool) -> None:
    raw = Raw(json.dumps(words * 40, ensure_ascii=ascii_only).encode())
    assert b"".join(text_pieces(raw)).decode() == words * 40


def test_half_a_surrogate_pair_becomes_a_replacement() -> None:
    pieces = list(text_pieces(Raw(b'"a\\ud83d b\\ud83d\\ude00"')))
    assert b"".join(pieces).decode() == "a� b😀"


def test_the_json_of_a_result_is_kept_where_a_text_says_little_of_it() -> None:
    rows = [{"id": number} for number in range(1000)]
    result = text("1000 rows", structuredContent={"rows": rows})
    one = found(result)
    assert not one.text
    assert bytes(one.raw) == result


def test_structured_content_that_says_the_same_changes_nothing() -> None:
    assert found(text("x" * 500, structuredContent={"result": "x" * 500})).text


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required", "inputRequests": {}},
        {"task": {"taskId": "1"}},
        {"content": "no list"},
        {"content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}]},
        {"content": [{"type": "text", "text": "a"}, {"type": "audio", "data": "eA=="}]},
    ],
)
def test_what_clients_must_have_whole_passes(result: dict[str, Any]) -> None:
    assert large(json.dumps(result).encode()) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b'{"rows": [{"id": 1}, {"id": 2}], "total": 2}',
            "object {rows: array of 2, each object, total: number}",
        ),
        (b'[{"id": 1, "name": "a"}]', "array of 1, each object {id: number, name: text}"),
        (b"[]", "array of 0"),
        (b"[true, null]", "array of 2, each boolean"),
        (b"[2026-01-01] a log", "text of 7 lines"),
        (b"words", "text of 7 lines"),
    ],
)
def test_a_shape_names_members_and_lengths_on_two_levels(data: bytes, words: str) -> None:
    assert shape(data, 7, text=True) == words


def test_a_shape_names_few_members_and_short_names() -> None:
    data = json.dumps({f"{'n' * 60}{number}": 1 for number in range(50)}).encode()
    words = shape(data, 1, text=False)
    assert words.endswith("and 38 more}")
    assert len(words) < 1000


def test_arrays_of_very_many_items_are_not_counted() -> None:
    data = b"[%b1]" % (b"1," * (COMMAS_MAX + 1))
    assert shape(data, 1, text=False) == "array"


def test_a_short_result_shows_the_head_and_how_to_read_on() -> None:
    head = "first line\nsecond"
    members = told(short(ABOUT, found(text("x" * 200, isError=True)), head, links=True))
    words, link = members["content"]
    assert words["text"].endswith(f"The first {len(head)} bytes:\n\n{head}")
    assert f'{{"handle": "{ABOUT.handle}", "offset": {len(head)}}}' in words["text"]
    assert link["uri"] == f"metamcp-result://{ABOUT.handle}"
    assert (link["type"], link["size"], link["mimeType"]) == ("resource_link", 90_000, "text/plain")
    assert members["isError"] is True
    assert members["_meta"][META]["bytes"] == 90_000
    assert "structuredContent" not in members


def test_a_short_result_keeps_its_type_and_small_meta_and_no_link_for_older_clients() -> None:
    result = text("x", resultType="complete", structuredContent={"a": 1}, _meta={"related": 1})
    members = told(short(ABOUT, found(result), "", links=False))
    assert len(members["content"]) == 1
    assert members["resultType"] == "complete"
    assert members["_meta"]["related"] == 1
    large_meta = text("x", _meta={"note": "n" * 5000})
    assert set(told(short(ABOUT, found(large_meta), "", links=False))["_meta"]) == {META}


def test_a_short_result_is_short_whatever_its_head_is() -> None:
    assert len(short(ABOUT, found(text("x")), "\x00" * 2048, links=True)) <= RESULT_BYTES_MIN


@given(st.text(max_size=60), st.integers(0, 80), st.integers(1, 20))
def test_a_piece_has_whole_characters_and_pieces_join(words: str, start: int, length: int) -> None:
    data = words.encode("utf-8", "replace")
    whole, at = "", 0
    while at < len(data):
        one = cut(data[at : at + length + CUT_BYTES], at, length, len(data))
        assert one.start == at
        assert one.end > at
        assert "�" not in one.text or "�" in words
        whole, at = whole + one.text, one.end
    assert whole.encode("utf-8", "replace") == data
    inside = cut(data[start : start + length + CUT_BYTES], start, length, len(data))
    assert inside.text in words or not inside.text


def test_a_piece_behind_the_end_is_empty() -> None:
    assert cut(b"", 9, 4, 5) == Piece("", 9, 9, 5)


def test_each_principal_has_a_folder_of_its_own_at_each_endpoint() -> None:
    owners = [
        ResultOwner("default", "dev", "key:a"),
        ResultOwner("default", "dev", "key:b"),
        ResultOwner("default", "ops", "key:a"),
        ResultOwner("acme", "dev", "key:a"),
    ]
    assert len({folder(LIMITS, one) for one in owners}) == 4
    assert json.loads(place(LIMITS, owners[0], "k", True))["limits"]["folder"] == folder(
        LIMITS, owners[0]
    )
