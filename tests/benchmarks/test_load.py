"""What the load generator takes for a whole and right answer."""

from benchmarks.load import Answer, speech

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_an_answer_is_whole_with_its_last_byte_however_it_is_cut() -> None:
    answer, whole = Answer(), HEAD + b"abcde"
    for at in range(1, len(whole)):
        assert answer.take(whole[:at]) is None
        assert answer.take(whole[at:]) == whole
    shorter = HEAD.replace(b"5", b"1") + b"a"
    assert answer.take(shorter) == shorter


def test_an_answer_in_chunks_is_whole_with_the_empty_one() -> None:
    answer = Answer()
    assert answer.take(STREAM) is None
    assert answer.take(b"3\r\nabc\r\n") is None
    assert answer.take(b"0\r\n\r\n") == STREAM + b"3\r\nabc\r\n0\r\n\r\n"


def test_a_call_says_its_length_and_keeps_signs_of_percent() -> None:
    said = speech(1, {"A": "b"}, "echo", arguments={"share": "5 %"}, meta={"n": 1})
    head, _, body = said.request(7, b"T1T").partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b"\r\nA: b\r\n" in head
    assert body == (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo",'
        b'"arguments":{"text":"T1T","share":"5 %"},"_meta":{"n":1}}}'
    )
