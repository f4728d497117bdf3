"""The load generator in C says the same as the one in Python, and believes as little."""

import shutil
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from benchmarks import load, load_c
from benchmarks.load import ANSWERS_MAX, Figures, Speech, speech

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("cc") is None, reason="it needs a C compiler"),
]

SECONDS = 0.05
WAIT_S = 10.0
Answer = Callable[[bytes], list[bytes]]
"""What a server sends for the body of a request, each part by itself; the rest is missing."""


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def result(request: bytes) -> bytes:
    """The right answer."""
    name = request.partition(b'"id":')[2].partition(b",")[0]
    text = request.partition(b'"text":"')[2].partition(b'"')[0]
    return b'{"jsonrpc":"2.0","id":%b,"result":{"text":"%b"}}' % (name, text)


@contextmanager
def served(answer: Answer, callers: int = 1) -> Generator[tuple[int, list[list[bytes]]]]:
    """A port, and the requests of each connection, in the order of the connections."""
    heard: list[list[bytes]] = [[] for _ in range(callers)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)

        def serve(sock: socket.socket, requests: list[bytes]) -> None:
            reader = sock.makefile("rb")
            head = b""
            while line := reader.readline():
                head += line
                if line != b"\r\n":
                    continue
                size = int(head.partition(b"Content-Length: ")[2].split()[0])
                body = reader.read(size)
                requests.append(head + body)
                head = b""
                parts = answer(body)
                for part in parts:
                    sock.sendall(part)
                if not parts:
                    break
            reader.close()
            sock.close()

        def accept() -> None:
            threads: list[threading.Thread] = []
            for requests in heard:
                sock, _ = server.accept()
                sock.settimeout(WAIT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threads.append(threading.Thread(target=serve, args=(sock, requests)))
                threads[-1].start()
            for thread in threads:
                thread.join(WAIT_S)

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join(WAIT_S)


def called(answer: Answer, said: Speech | None = None) -> Figures:
    with served(answer) as (port, _):
        return load.call(port, [said or speech(port, {}, "echo")], 1, SECONDS)


def test_every_answer_has_its_latency() -> None:
    found = called(lambda request: [whole(result(request))])
    assert found.calls == len(found.latencies_s) > 1
    assert found.wrong == 0
    assert found.seconds >= SECONDS
    assert sum(found.latencies_s) <= found.seconds


@pytest.mark.parametrize(
    "said",
    [
        speech(1, {"A": "b"}, "echo", meta={"share": "5 %"}),
        Speech(b"POST / HTTP/1.1\r\n", b'{"id":%(id)d,"t":"%(text)b%(filling)b"}', filling=399),
        Speech(b"POST / HTTP/1.1\r\n", b'{"id":%(id)d,"text":"%(text)b"}', traced=True),
    ],
    ids=["plain", "filling", "traced"],
)
def test_both_generators_send_the_same_bytes(said: Speech) -> None:
    proven = Speech(said.head, said.body, b"HTTP", said.filling, said.traced)
    with served(lambda request: [whole(request)], 2) as (port, heard):
        assert load.call(port, [proven], 2, SECONDS).wrong == 0
    for caller, requests in enumerate(heard):
        for sequence, request in enumerate(requests, 1):
            text = b"T%d-%dT" % (caller, sequence)
            assert request == proven.request(caller * ANSWERS_MAX + sequence, text)


def test_callers_go_from_one_speech_to_the_next_or_keep_their_own() -> None:
    said = [speech(1, {"Name": name}, "echo") for name in ("x", "y")]
    for own, names in ((False, {b"x", b"y"}), (True, {b"x"})):
        with served(lambda request: [whole(result(request))]) as (port, heard):
            load.call(port, said, 1, SECONDS, own=own)
        (requests,) = heard
        assert {one.partition(b"Name: ")[2].split()[0] for one in requests} == names


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "status": lambda body: whole(body, b"202 Accepted"),
    "another id": lambda body: whole(body.replace(b'"id":', b'"id":9')),
    "a longer id": lambda body: whole(body.replace(b',"result"', b'0,"result"')),
    "text": lambda body: whole(body.replace(b"T0-", b"T1-")),
    "proof": lambda body: whole(body.replace(b"result", b"error")),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_is_not_the_right_one_is_counted(what: str) -> None:
    found = called(lambda request: [WRONG[what](result(request))])
    assert found.wrong == found.calls > 0


def test_a_stream_of_events_is_whole_with_its_empty_chunk() -> None:
    def streamed(request: bytes) -> list[bytes]:
        event = b"data: " + result(request) + b"\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        return [head, b"%x\r\n%b" % (len(event), event[:9]), event[9:] + b"\r\n0\r\n", b"\r\n"]

    found = called(streamed)
    assert found.wrong == 0
    assert found.calls > 0


ENDS: dict[str, Answer] = {
    "a connection ended before its answer was whole": lambda _: [],
    "an answer does not say how long it is": lambda _: [b"HTTP/1.1 200 OK\r\n\r\n"],
    "an answer has 4 bytes too many": lambda body: [whole(result(body)) + b"more"],
}


@pytest.mark.parametrize("why", ENDS)
def test_a_load_that_cannot_go_on_says_why(why: str) -> None:
    with pytest.raises(ConnectionError, match=why):
        called(ENDS[why])


def test_without_a_compiler_there_is_no_program_and_python_does_the_same() -> None:
    assert load_c.compiled("no-such-compiler") is None
    with served(lambda request: [whole(result(request))]) as (port, _):
        found = load.call_by_python(port, [speech(port, {}, "echo")], 1, SECONDS)
    assert found.wrong == 0
    assert found.calls > 0
