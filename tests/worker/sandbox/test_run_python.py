"""Python in sandboxes, with the true interpreter."""

from collections.abc import Iterator

import pytest
from msgspec import json

from metamcp_worker.ipc.code_runs import CodeLimits, HostCall, HostReply
from tests.waiting import until
from tests.worker.sandbox.sandboxes import Front, Sandboxes, denos, sandboxes, text_result

pytestmark = [pytest.mark.process, pytest.mark.promise("M45")]

LIMITS = CodeLimits(timeout_ms=1000, memory_bytes=64 * 1024 * 1024, calls=50)


@pytest.fixture(scope="module")
def running() -> Iterator[Sandboxes]:
    with sandboxes() as made:
        yield made


@pytest.fixture
def front(running: Sandboxes) -> Iterator[Front]:
    made = running.front()
    yield made
    made.close()


def test_python_calls_tools_one_after_the_other_and_together(front: Front) -> None:
    code = """
import asyncio
print("first", args["n"])
one = await mcp.call("a_tool", {"x": "ä"})
many = await asyncio.gather(*[mcp.servers.files.get(i=i) for i in range(args["n"])])
whole = await mcp.raw("a_tool", {})
await mcp.tools("find")
return [one, many, whole["content"][0]["type"]]
"""
    ended = front.run(code, language="python", args={"n": 3}, limits=LIMITS)
    assert (ended.failure, ended.logs) == ("", ("first 3",)), ended
    assert json.decode(ended.value) == [{"x": "ä"}, [{"i": 0}, {"i": 1}, {"i": 2}], "text"]
    kinds = [(one.kind, one.server, one.name) for one in front.calls]
    assert kinds == [
        ("call", "", "a_tool"), *[("server", "files", "get")] * 3, ("call", "", "a_tool"),
        ("tools", "", "find"),
    ]  # fmt: skip


def test_calls_of_python_run_at_once_up_to_their_limit(front: Front) -> None:
    held: list[HostCall] = []
    most = 0

    def answer(call: HostCall) -> None:
        nonlocal most
        held.append(call)
        most = max(most, len(held))
        if len(held) == 4 or call.call == 10:
            for one in held:
                front.send(HostReply(run=one.run, call=one.call, result=text_result(str(one.call))))
            held.clear()

    code = "import asyncio\nreturn await asyncio.gather(*[mcp.call('x') for i in range(10)])"
    run = front.start(code, language="python", limits=CodeLimits(parallel=4))
    ended = front.end(run, answer)
    assert json.decode(ended.value) == list(range(1, 11)), ended
    assert most == 4


def test_an_error_of_a_tool_is_an_exception_of_python(front: Front) -> None:
    def answer(call: HostCall) -> HostReply:
        return HostReply(run=call.run, call=call.call, error="the tool is gone")

    code = "try:\n  await mcp.call('x')\nexcept RuntimeError as error:\n  return str(error)"
    ended = front.run(code, language="python", answer=answer)
    assert json.decode(ended.value) == "the tool is gone", ended


@pytest.mark.parametrize(
    ("code", "failure", "message", "place"),
    [
        ("x = = 1", "syntax", "Expected an expression", (1, 5)),
        ("def f():\n  1 / 0\nf()", "exception", "ZeroDivisionError: division by zero", (2, 3)),
        ("await mcp.call(1)", "exception", "the name of a tool is a string", (1, 7)),
        ("mcp.other()", "exception", "other is not a function here", (1, 1)),
    ],
)
def test_a_failure_of_python_has_its_words_and_its_place(
    front: Front, code: str, failure: str, message: str, place: tuple[int, int]
) -> None:
    ended = front.run(code, language="python", limits=LIMITS)
    assert (ended.failure, (ended.line, ended.column)) == (failure, place), ended
    assert message in ended.message


def test_both_languages_take_turns(running: Sandboxes, front: Front) -> None:
    assert json.decode(front.run("return 1").value) == 1
    assert json.decode(front.run("return 2", language="python").value) == 2
    running.news(lambda figures: figures.warm == 4, "two of each wait")
    until(lambda: len(denos(running.process.pid)) == 2, "the one that ran is gone")
