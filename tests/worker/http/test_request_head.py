"""Heads that come again, and the bytes of a whole answer, which cross a socket in parts."""

import pytest

from metamcp_worker.http.connection import KNOWN_BYTES_MAX, known_head
from metamcp_worker.http.request_head import Head
from metamcp_worker.http.requests import COPY_BYTES_MAX, HttpRequest, whole
from metamcp_worker.http.serve import HttpServer
from tests.worker.rawhttp import Client, listener, post

OK = b"HTTP/1.1 200 OK\r\n"


def test_a_small_answer_is_one_part_and_a_large_one_is_not_copied() -> None:
    assert whole(OK, (b"a", b"", b"b"), last=False) == (OK + b"content-length: 2\r\n\r\nab",)
    assert whole(OK, (), last=True) == (OK + b"content-length: 0\r\nconnection: close\r\n\r\n",)
    large = b"x" * (COPY_BYTES_MAX + 1)
    parts = whole(OK, (large, b"b"), last=False)
    assert any(part is large for part in parts)
    assert b"".join(parts) == OK + b"content-length: %d\r\n\r\n" % (len(large) + 1) + large + b"b"


LENGTH = (b"content-length", b"2")
READ = b"POST / HTTP/1.1\r\nContent-Length: 2\r\nCookie: x\r\n\r\nab"

READS = {
    "another body": (READ[:-2] + b"cd", b"cd"),
    "another length": (READ.replace(b": 2", b": 12")[:-2] + b"x" * 12, b"x" * 12),
    "no body": (READ.replace(b": 2", b": 0")[:-2], b""),
    "too few bytes": (READ[:-1], None),
    "too many bytes": (READ + b"c", None),
    "another cookie": (READ.replace(b"x", b"y"), None),
    "a further header": (READ.replace(b"x\r", b"x\r\na: b\r"), None),
    "no digits": (READ.replace(b": 2", b": +2"), None),
    "many digits": (READ.replace(b": 2", b": 00000000002"), None),
    "half a head": (READ[:20], None),
    "nothing": (b"", None),
}


@pytest.mark.parametrize("name", [b"Cookie", b"Session"])
@pytest.mark.parametrize("case", READS)
def test_a_known_head_tells_the_body_of_one_whole_request(case: str, name: bytes) -> None:
    read, body = READS[case]
    head = Head("POST", b"/", [(b"content-length", b"2"), (name.lower(), b"x")])
    known = known_head(READ.replace(b"Cookie", name), head, 2)
    assert known is not None
    assert known.secret is (name == b"Cookie")
    found = known.request(read.replace(b"Cookie", name))
    assert found == (None if body is None else (head, body))


TRACE = b"00-%032x-%016x-01"
TRACED = b"POST / HTTP/1.1\r\nTraceparent: " + TRACE % (1, 2) + b"\r\nContent-Length: 2\r\n\r\nab"
BEHIND = b"POST / HTTP/1.1\r\nContent-Length: 2\r\ntraceparent: %b\r\na: b\r\n\r\nab" % (
    TRACE % (1, 2)
)


@pytest.mark.parametrize("read", [TRACED, BEHIND])
def test_each_request_with_a_known_head_may_have_its_own_trace(read: bytes) -> None:
    head = Head("POST", b"/", [LENGTH, (b"traceparent", TRACE % (1, 2))], verdict="passes")
    known = known_head(read, head, 2)
    assert known is not None
    assert known.request(read) == (head, b"ab")
    own = TRACE % (3, 4)
    found = known.request(read.replace(TRACE % (1, 2), own).replace(b": 2", b": 3") + b"c")
    assert found is not None
    assert found[0].headers == [LENGTH, (b"traceparent", own)]
    assert (found[0].verdict, found[1]) == ("passes", b"abc")
    for wrong in (b"0" * 55, own[:-4] + b"\r\nx:", own.upper().replace(b"0", b"F")):
        assert known.request(read.replace(TRACE % (1, 2), wrong)) is None


UNKNOWN = {
    "HTTP/1.0": (READ, Head("POST", b"/", [LENGTH], version="1.0")),
    "the end of the connection": (READ, Head("POST", b"/", [LENGTH], keeps_alive=False)),
    "a wait for the body": (READ, Head("POST", b"/", [LENGTH], awaits=True)),
    "another protocol": (READ, Head("POST", b"/", [LENGTH, (b"upgrade", b"x")])),
    "chunks": (READ, Head("POST", b"/", [LENGTH, (b"transfer-encoding", b"chunked")])),
    "two lengths": (READ, Head("POST", b"/", [LENGTH, LENGTH])),
    "no length": (READ.replace(b"Content-Length", b"X"), Head("POST", b"/", [])),
    "another size": (READ + b"c", Head("POST", b"/", [LENGTH])),
    "blank lines before it": (b"\r\n\r\n" + READ, Head("POST", b"/", [LENGTH])),
    "too many bytes": (
        READ.replace(b"x", b"x" * KNOWN_BYTES_MAX), Head("POST", b"/", [LENGTH]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_head_that_says_more_than_a_length_cannot_be_recognized(case: str) -> None:
    read, head = UNKNOWN[case]
    assert known_head(READ, Head("POST", b"/", [LENGTH]), 2) is not None
    assert known_head(read, head, 2) is None


@pytest.mark.process
@pytest.mark.parametrize("size", [0, 1000, 5_000_000])
async def test_an_answer_in_parts_arrives_whole(size: int) -> None:
    async def app(request: HttpRequest) -> None:
        await request.body()
        request.answer(OK, b"a" * size, b"", b"b" * size)

    server, sock = HttpServer(app), listener()
    client = await Client.connect(sock.getsockname()[1])
    await server.start([sock])
    for headers in ((), ("Connection: close",)):
        assert (await client.ask(post(b"", *headers))).body == b"a" * size + b"b" * size
    await client.close()
    await server.drain(1)
