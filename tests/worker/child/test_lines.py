"""Cutting bytes into lines: whole, in pieces, and without end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.child.lines import LineCutter, LogCutter
from metamcp_worker.errors import TooLarge

LIMIT = 64

lines_of = st.lists(
    st.binary(min_size=1, max_size=LIMIT).filter(
        lambda line: b"\n" not in line and line == line.strip(b" \t\r")
    ),
    max_size=20,
)
cuts_of = st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=50)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` cut into pieces of these sizes, over and over."""
    found: list[bytes] = []
    while data:
        size = sizes[len(found) % len(sizes)]
        found.append(data[:size])
        data = data[size:]
    return found


@given(lines_of, cuts_of, st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"]))
def test_the_same_lines_come_out_however_the_bytes_come_in(
    lines: list[bytes], cuts: list[int], end: bytes
) -> None:
    cutter = LineCutter(LIMIT + len(end))
    data = b"".join(line + end for line in lines)
    assert [line for piece in pieces(data, cuts) for line in cutter.feed(piece)] == lines
    assert cutter.held_bytes == 0


@given(cuts_of)
def test_a_line_above_the_limit_is_refused_before_it_ends(cuts: list[int]) -> None:
    cutter = LineCutter(LIMIT)

    def feed_all() -> None:
        for piece in pieces(b"x" * (LIMIT + 1), cuts):
            cutter.feed(piece)

    with pytest.raises(TooLarge):
        feed_all()
    assert cutter.held_bytes <= LIMIT + max(cuts)


def test_a_line_above_the_limit_inside_one_read_is_refused() -> None:
    with pytest.raises(TooLarge):
        LineCutter(LIMIT).feed(b"a\n" + b"x" * (LIMIT + 1) + b"\nb\n")


def test_a_line_of_the_limit_passes() -> None:
    assert LineCutter(LIMIT).feed(b"x" * LIMIT + b"\n") == [b"x" * LIMIT]


@given(st.lists(st.text(alphabet="abcé \t", max_size=40), max_size=20), cuts_of)
def test_log_lines_survive_any_cut_even_inside_a_character(
    words: list[str], cuts: list[int]
) -> None:
    cutter = LogCutter(1000)
    data = "".join(word + "\n" for word in words).encode()
    found = [line for piece in pieces(data, cuts) for line in cutter.feed(piece)]
    assert found == [word.rstrip() for word in words if word.strip()]


def test_a_long_log_line_loses_its_end_and_nothing_else() -> None:
    cutter = LogCutter(8)
    found = cutter.feed(b"123456789") + cutter.feed(b"0\nnext\n")
    assert found == ["12345678", "next"]


def test_bad_utf8_in_a_log_line_is_replaced() -> None:
    assert LogCutter().feed(b"caf\xff!\n") == ["caf\N{REPLACEMENT CHARACTER}!"]


def test_passing_over_lines_keeps_the_start_of_the_next() -> None:
    cutter = LogCutter()
    assert cutter.feed(b"held") == []
    assert cutter.skip(b" back\nlost\nkept ") == 2
    assert cutter.skip(b"whole ") == 0
    assert cutter.feed(b"line\n") == ["kept whole line"]


def test_the_last_line_needs_no_newline() -> None:
    cutter = LogCutter()
    assert cutter.feed(b"last words") == []
    assert cutter.rest() == ["last words"]
    assert cutter.rest() == []
