"""Requests through the process of a middleware: what it sees, and what its failures cost."""

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.middleware_calls import EXIT_MEMORY
from metamcp_worker.middleware.chain import HookAnswer
from tests.supervisor.stage import until
from tests.worker.middleware.hosts import Host, Tool, opened_tool

pytestmark = [pytest.mark.process, pytest.mark.promise("M100")]


@contextmanager
def host(folder: Path, entry: str, **options: object) -> Generator[Host]:
    running = Host(folder, entry, **options)
    try:
        yield running
    finally:
        running.stop()


async def test_it_changes_arguments_and_results(tmp_path: Path) -> None:
    with host(tmp_path, "shout", prefix="> ") as shout:
        async with opened_tool() as tool:
            tool.lines.configure([shout.spec(tool.connectors)])
            assert await tool.text({"text": "b", "n": 1}, "shout") == "A"
            assert tool.calls == [{"text": "> b", "n": 1}]
            assert tool.lines.counts() == {"shout": {"ok": 1}}


async def test_what_it_does_not_change_stays_the_same_bytes(tmp_path: Path) -> None:
    raw = b'{ "content" : [ ], "later": 1.0e3 }'

    with host(tmp_path, "watch", path=str(tmp_path / "seen")) as watch:
        async with opened_tool() as tool:
            tool.lines.configure([watch.spec(tool.connectors)])
            tool.answer = HookAnswer(raw)
            _, done = tool.begin({"b": 1}, "watch")
            assert (await done).body == raw
            tool.answer = HookAnswer(b'{"code":-32602,"message":"no such tool"}', -32602)
            facts = {
                "caller": Raw(b'{"clientInfo":{"name":"c"}}'),
                "endpoint": "e",
                "principal": "p",
            }
            _, done = tool.begin({}, "watch", workspace="w", **facts)
            assert await done == tool.answer
        assert (tmp_path / "seen").read_text().splitlines() == [
            "call s t    None {'b': 1}",
            "call s t e w p c {}",
            "error -32602 no such tool",
        ]


async def test_hooks_that_a_middleware_does_not_define_are_left_out(tmp_path: Path) -> None:
    with host(tmp_path, "shout") as shout:
        async with opened_tool() as tool:
            tool.lines.configure([shout.spec(tool.connectors)])
            tool.answer = HookAnswer(b'{"messages":[]}')
            assert await tool.call({}, "shout", hook="on_get_prompt") == {"messages": []}
            assert tool.lines.select_lines(["shout"], "on_get_prompt") == []


BEFORE = "it did not reach its server."
AFTER = "its tool may have run."


@pytest.mark.parametrize(
    ("what", "words", "outcome"),
    [
        ("before raise", f"raised ValueError, so this request has no result; {BEFORE}", "failed"),
        ("after raise", f"raised ValueError, so this request has no result; {AFTER}", "failed"),
        (
            "before wait",
            f"took more than 0.3 s, so this request has no result; {BEFORE}",
            "timeout",
        ),
        ("after wait", f"took more than 0.3 s, so this request has no result; {AFTER}", "timeout"),
        ("after return", "returned dict and not ToolResult", "failed"),
        ("before die", "lost its process", "gone"),
        ("after exit", "lost its process", "gone"),
    ],
)
async def test_a_failure_ends_the_call_where_it_is_enforced_and_else_changes_nothing(
    tmp_path: Path, what: str, words: str, outcome: str
) -> None:
    arguments = {"text": what.replace("after return", "x return")}

    async def enforced(tool: Tool, bad: Host) -> None:
        tool.lines.configure([bad.spec(tool.connectors)])
        found = await tool.call(arguments, "bad")
        assert found["isError"] is True
        text = found["content"][0]["text"]
        assert text.startswith(f"The middleware 'bad' {words}")
        assert "secret" not in text
        assert len(tool.calls) == (not text.endswith(BEFORE))
        assert tool.lines.counts() == {"bad": {outcome: 1}}

    async def permitted(tool: Tool, bad: Host) -> None:
        tool.lines.configure([bad.spec(tool.connectors, enforce=False)])
        assert await tool.text(arguments, "bad") == "a"
        assert tool.calls == [arguments]
        assert tool.lines.counts() == {"bad": {outcome: 1}}

    for test in (enforced, permitted):
        with host(tmp_path / test.__name__, "bad") as bad:
            async with opened_tool() as tool:
                await test(tool, bad)


async def test_one_that_reads_what_readers_take_differently_refuses_in_any_mode(
    tmp_path: Path,
) -> None:
    with host(tmp_path, "shout") as shout:
        async with opened_tool() as tool:
            tool.lines.configure([shout.spec(tool.connectors, enforce=False)])
            found = await tool.call(Raw(b'{"text":"ls","text":"rm"}'), "shout")
            assert found["isError"] is True
            assert found["content"][0]["text"] == (
                "The middleware 'shout' cannot read the arguments (an object has a name twice),"
                " so this request has no result; it did not reach its server."
            )
            assert tool.calls == []
            assert await tool.text({"text": "b"}, "shout") == "A"


@pytest.mark.parametrize(
    ("what", "code"),
    [("spin", -signal.SIGALRM), ("block", -signal.SIGALRM), ("leak", EXIT_MEMORY)],
)
async def test_one_that_hangs_or_leaks_ends_and_the_next_process_goes_on(
    tmp_path: Path, what: str, code: int
) -> None:
    with host(tmp_path, "bad") as bad:
        async with opened_tool() as tool:
            tool.lines.configure(
                [bad.spec(tool.connectors, timeout_ms=20_000 if what == "leak" else 300)]
            )
            found = await tool.call({"text": f"before {what}"}, "bad")
            assert found["isError"] is True
            assert await asyncio.to_thread(bad.ended) == code
            bad.start()
            assert await tool.text({"text": "a"}, "bad") == "a"


async def test_the_time_of_what_is_within_does_not_count(tmp_path: Path) -> None:
    with host(tmp_path, "shout") as shout:
        async with opened_tool() as tool:
            tool.lines.configure([shout.spec(tool.connectors, timeout_ms=250)])
            answer, tool.answer = tool.answer, None
            assert answer is not None
            request, done = tool.begin({"text": "b"}, "shout")
            await until(lambda: tool.calls, "it is called")
            await asyncio.wait([done], timeout=0.5)
            assert not done.done()
            request.chain.on_answer(answer, final=True)
            assert codec.value((await done).body)["content"][0]["text"] == "A"


async def test_a_client_that_leaves_ends_the_hook(tmp_path: Path) -> None:
    with host(tmp_path, "watch", path=str(tmp_path / "seen")) as watch:
        async with opened_tool() as tool:
            tool.lines.configure([watch.spec(tool.connectors)])
            tool.answer = None
            request, done = tool.begin({}, "watch")
            await until(lambda: tool.calls, "it is called")
            request.chain.cancel("the client left")
            assert tool.left == ["the client left"]
            seen = tmp_path / "seen"
            await until(lambda: "cancelled t" in seen.read_text(), "the hook is cancelled")
            assert not done.done()


async def test_several_stand_around_each_other_in_their_order(tmp_path: Path) -> None:
    with (
        host(tmp_path / "1", "shout", prefix="> ") as first,
        host(tmp_path / "2", "watch", path=str(tmp_path / "seen")) as second,
        host(tmp_path / "3", "bad") as bad,
    ):
        async with opened_tool() as tool:
            tool.lines.configure(
                [
                    first.spec(tool.connectors),
                    second.spec(tool.connectors),
                    bad.spec(tool.connectors, enforce=False),
                ]
            )
            names = ("shout", "watch", "bad")
            assert await tool.text({"text": "before raise"}, *names) == "A"
            assert tool.calls == [{"text": "> before raise"}]
            assert "{'text': '> before raise'}" in (tmp_path / "seen").read_text()
            assert tool.lines.counts()["bad"] == {"ok": 1}  # `>` is not a place where it fails


async def test_requests_wait_for_a_process_that_starts_and_not_for_one_that_is_away(
    tmp_path: Path,
) -> None:
    with host(tmp_path, "shout") as shout:
        async with opened_tool(ready_s=0.5) as tool:
            os.kill(shout.process.pid, signal.SIGKILL)
            await asyncio.to_thread(shout.ended)
            tool.lines.configure(
                [shout.spec(tool.connectors, enforce=False), shout.spec(tool.connectors, name="x")]
            )
            slow = asyncio.ensure_future(tool.text({"text": "b"}, "x"))
            assert await tool.text({"text": "b"}, "shout") == "a"
            assert "has no process that runs" in await slow
            assert "has no process that runs" in await tool.text({"text": "b"}, "x")
            shout.start()
            await until(
                lambda: tool.lines.select_lines(["x"], "on_get_prompt") == [], "it is there"
            )
            assert await tool.text({"text": "b"}, "x") == "A"


async def test_a_process_that_is_replaced_ends_what_it_has_and_the_next_one_gets_the_rest(
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    with host(tmp_path, "watch", path=str(seen)) as watch:
        async with opened_tool() as tool:
            tool.lines.configure([watch.spec(tool.connectors)])
            answer, tool.answer = tool.answer, None
            assert answer is not None
            request, done = tool.begin({"n": 1}, "watch")
            await until(lambda: tool.calls, "it is called")
            old, control = watch.process, watch.control
            watch.start()
            control.close()
            tool.answer = answer
            for _ in range(20):  # through the old one, or through the next one
                assert (await tool.call({"n": 2}, "watch"))["content"]
            request.chain.on_answer(answer, final=True)
            assert await done == answer
            await until(lambda: old.poll() is not None, "the old one ends")
            old.communicate()
            assert (await tool.call({"n": 3}, "watch"))["content"]
            assert tool.lines.counts() == {"watch": {"ok": 22}}


async def test_one_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with host(tmp_path, "bad", broken=True) as bad:
        async with opened_tool() as tool:
            tool.lines.configure([bad.spec(tool.connectors)])
            said = await tool.text({}, "bad")
            assert "'bad' cannot be loaded: ValueError: it has no such option, so" in said
            assert tool.calls == []


async def test_it_hears_of_lists_that_have_changed(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with host(tmp_path, "watch", path=str(seen)) as watch:
        async with opened_tool() as tool:
            tool.lines.configure([watch.spec(tool.connectors)])
            await tool.call({}, "watch")
            tool.lines.tell("s")
            await until(lambda: "changed s" in seen.read_text(), "it hears of it")
