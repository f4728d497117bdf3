"""Cutting bytes into lines: whole, in pieces, and without end."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.child.jsonrpc_lines import LineCutter, LogCutter, ServerErrors, reason
from metamcp_worker.ipc.envelope import OverlongLine, ScannedId

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
    assert cutter.overlong() == []


@given(lines_of, cuts_of, st.sampled_from([LIMIT + 1, 3000]))
def test_a_line_above_the_limit_is_passed_over_and_shows_whom_it_is_for(
    lines: list[bytes], cuts: list[int], size: int
) -> None:
    cutter = LineCutter(LIMIT)
    head, tail = b'{"result":"', b'","id":7}'
    long = head + b"x" * (size - len(head) - len(tail)) + tail
    data = b"\n".join([*lines, long, *lines, b""])
    assert [line for piece in pieces(data, cuts) for line in cutter.feed(piece)] == lines * 2
    assert cutter.overlong() == [OverlongLine(size, ScannedId(b"7", answer=True))]
    assert cutter.overlong() == []


def test_a_line_without_end_takes_no_memory() -> None:
    cutter = LineCutter(1024 * 1024)
    piece = b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(200):
            cutter.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


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


PYTHON = """Traceback (most recent call last):
  File "/x/server.py", line 3, in <module>
    import nothing_there
ModuleNotFoundError: No module named 'nothing_there'
npm notice run npm fund"""
NODE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^
Error: Cannot find module '/x/server.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)
{
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}
Node.js v22.11.0"""
NPM = """npm error code E404
npm error 404 Not Found - GET https://registry.example/nope - Not found
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
npm error A complete log of this run can be found in: /root/.npm/_logs/x-debug-0.log"""
UV = """  x No solution found when resolving tool dependencies:
  ╰─▶ Because nope was not found in the package registry and you require nope, we can conclude that
      your requirements are unsatisfiable."""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'nothing_there'"),
        (NODE, "Error: Cannot find module '/x/server.js'"),
        (NPM, "npm error 404 Not Found - GET https://registry.example/nope - Not found"),
        (UV, "╰─▶ Because nope was not found in the package registry and you require nope, we can"),
        ("fatal: not a git repository\nnpm notice fund", "fatal: not a git repository"),
        ("panic: no key\n\ngoroutine 1 [running]:\nmain.main()", "panic: no key"),
        ("sh: 1: nope: not found", "sh: 1: nope: not found"),
        ("one\ntwo\nthree\nfour", "two | three | four"),
        ("", ""),
    ],
)
def test_the_reason_of_an_end_is_the_line_that_tells_it(log: str, told: str) -> None:
    assert reason(log.splitlines()).startswith(told)


REFUSAL = "its sandbox 'basic' does not let it do this: write that"


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[{"type":"text","text":"no"}],"isError":true,"x":1.50}',
        b'{"isError": true, "content": []}',
        b'{"isError": true}',
    ],
)
def test_a_failed_result_gets_the_sentence_about_the_sandbox_behind_its_content(
    result: bytes,
) -> None:
    found, error = ServerErrors("it").with_refusal(result, b"", REFUSAL)
    before, after = json.loads(result), json.loads(found)
    assert error == b""
    last = after["content"].pop()
    assert last["text"] == f"MetaMCP: while server 'it' worked on this, {REFUSAL}"
    assert after == {"content": [], **before}


def test_an_error_gets_the_sentence_about_the_sandbox_behind_its_words() -> None:
    error = b'{"code":-32000,"message":"no","data":{"a":1}}'
    found = json.loads(ServerErrors("it").with_refusal(b"", error, REFUSAL)[1])
    text = f"MetaMCP: while server 'it' worked on this, {REFUSAL}"
    assert found == {"code": -32000, "message": f"no; {text}", "data": {"a": 1}}
    assert json.loads(ServerErrors("it").with_refusal(b"", b"{}", REFUSAL)[1]) == {"message": text}


@pytest.mark.parametrize(
    "result",
    [b'{"content":[],"isError":false}', b'{"content":[]}', b'{"content":7,"isError":true}', b"[1]"],
)
def test_no_other_result_is_changed_by_what_the_sandbox_refused(result: bytes) -> None:
    assert ServerErrors("it").with_refusal(result, b"", REFUSAL) == (result, b"")
