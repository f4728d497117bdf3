"""HTTP as the bridge speaks it: what is a whole answer, however it comes, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.bridge.http_requests import (
    ASIDE_BYTES_MAX,
    HeaderUnfit,
    HttpAnswer,
    HttpAnswerReader,
    MalformedAnswer,
    request,
)

MEASURED = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type:  a/b \r\n\r\n"
    b"2;name=x\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"
OPEN_ENDED = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nhello"
ANSWERS = [MEASURED, CHUNKED, INTERIM + MEASURED, INTERIM + CHUNKED]


def fed(data: bytes, size: int) -> tuple[HttpAnswerReader, HttpAnswer]:
    reader = HttpAnswerReader()
    answer = reader.expect()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader, answer


@pytest.mark.parametrize("data", ANSWERS)
@given(size=st.integers(1, 200))
def test_how_an_answer_is_cut_never_matters(data: bytes, size: int) -> None:
    reader, answer = fed(data, size)
    assert (answer.whole, answer.status, answer.take()) == (True, 200, b"hello")
    assert (answer.header("content-type"), answer.header("trailer")) == ("a/b", "")
    assert reader.reusable


@pytest.mark.parametrize("data", ANSWERS)
def test_an_answer_that_ends_too_soon_is_none(data: bytes) -> None:
    for size in range(len(data)):
        reader, answer = fed(data[:size], 50)
        assert not answer.whole
        with pytest.raises(MalformedAnswer):
            reader.on_eof()
        assert not reader.reusable


@given(size=st.integers(1, 200))
def test_an_answer_without_a_length_ends_with_its_connection(size: int) -> None:
    reader, answer = fed(OPEN_ENDED, size)
    assert (answer.begun, answer.whole) == (True, False)
    reader.on_eof()
    assert (answer.whole, answer.take(), reader.reusable) == (True, b"hello", False)


def test_one_connection_brings_one_answer_after_the_other() -> None:
    reader = HttpAnswerReader()
    empty = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    for data in (*ANSWERS, empty, *ANSWERS):
        answer = reader.expect()
        reader.feed(data)
        assert answer.whole
        assert reader.reusable
        assert answer.take() == (b"" if data is empty else b"hello")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_that_has_no_body_is_whole_at_once(status: bytes) -> None:
    reader, answer = fed(b"HTTP/1.1 " + status + b"\r\n\r\n", 7)
    assert answer.whole
    assert reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx\0",
    ],
)
def test_a_connection_that_closes_or_says_more_is_not_used_again(data: bytes) -> None:
    reader, answer = fed(data, len(data))
    assert (answer.whole, answer.take(), reader.reusable) == (True, b"x", False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        fed(data, 9)


def test_what_nobody_asked_for_is_refused() -> None:
    with pytest.raises(MalformedAnswer):
        HttpAnswerReader().feed(MEASURED)


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: ", b"bbbbbbb"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"A: b\r\n"),
    ],
)
def test_what_comes_without_end_and_is_no_body_is_refused(begin: bytes, again: bytes) -> None:
    with pytest.raises(MalformedAnswer, match="more than"):
        fed(begin + again * (2 * ASIDE_BYTES_MAX // len(again)), 1000)


def test_a_long_body_is_no_long_head() -> None:
    _, answer = fed(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 1000)
    assert answer.whole
    assert answer.held_bytes == 300_000


def test_a_request_says_all_that_it_was_told() -> None:
    said = request("POST", "/mcp?k=1", "[::1]:80", {"A": "ü", "B": b"\xff"}, b"{}")
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /mcp?k=1 HTTP/1.1",
        b"Host: [::1]:80",
        b"Accept-Encoding: identity",
        b"A: \xc3\xbc",
        b"B: \xff",
        b"Content-Length: 2",
    ]
    assert body == b"{}"
    assert b"Content-Length" not in request("GET", "/", "h", {}, b"")


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\nb", "\0", b"\x7f"])
def test_a_header_that_would_end_its_line_is_refused_and_its_value_is_not_told(
    value: str | bytes,
) -> None:
    with pytest.raises(HeaderUnfit) as refused:
        request("POST", "/", "h", {"Name": value}, b"")
    assert str(refused.value) == "the header Name does not fit into HTTP"
