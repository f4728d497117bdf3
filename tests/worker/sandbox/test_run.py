"""The process of the sandboxes as a front and the supervisor see it, with the true Deno."""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw, json

from metamcp_worker.ipc.code_runs import CodeLimits, HoldRun, HostCall, HostReply, RunEnded
from metamcp_worker.sandbox.sandbox_process import NODE_MODULES
from tests.waiting import until
from tests.worker.sandbox.sandboxes import (
    DENO,
    Front,
    Sandboxes,
    denos,
    echo,
    sandboxes,
    text_result,
)

pytestmark = pytest.mark.process

TYPESCRIPT = """
interface Shape<T extends number = number> { readonly side: T; area?(): T }
type Named = Shape & { name: string };
enum Kind { Square = 3, Round }
const enum Flag { On = 1 << 2 }
namespace Space { export const depth = 4; export namespace Inner { export const deeper = 5 } }
abstract class Base {
  declare ghost: string;
  static count = 0;
  accessor level = 1;
  constructor(protected readonly name: string, public size?: number) { Base.count++; }
  abstract describe(): string;
}
class Square extends Base implements Shape {
  #secret = 7;
  side = 2 as const;
  override describe(): string { return `${this.name}${this.size ?? 0}${this.#secret}`; }
}
function pick(value: string): string;
function pick(value: number): number;
function pick(value: any): any { return value; }
function isText(value: unknown): value is string { return typeof value === "string"; }
const same = <T,>(value: T): T => value;
const known = { name: "x", side: 1 } satisfies Named;
const angle = <string>("y" as unknown);
const tuple: [first: string, second?: number] = ["z"];
let maybe: string | undefined = known.name!;
const twice = (target: any, _: any) => function (this: any) { return target.call(this) * 2; };
class Decorated { @twice value() { return 21; } }
using resource = { [Symbol.dispose]() {} };
const square = new Square("s", 1);
return [Kind.Round, Kind[3], Flag.On, Space.Inner.deeper + Space.depth, square.describe(),
  Base.count, square.level, pick(1), isText(""), same(known.side), angle, tuple[0], maybe,
  new Decorated().value()];
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Sandboxes]:
    with sandboxes() as made:
        yield made


@pytest.fixture
def front(running: Sandboxes) -> Iterator[Front]:
    made = running.front()
    yield made
    made.close()


def value(ended: RunEnded) -> object:
    assert ended.failure == "", ended
    return json.decode(ended.value)


# The code


@pytest.mark.promise("M45")
def test_all_of_typescript_runs(front: Front) -> None:
    assert value(front.run(TYPESCRIPT)) == [
        4, "Square", 4, 9, "s17", 1, 1, 1, True, 1, "y", "z", "x", 42
    ]  # fmt: skip


def test_javascript_runs_and_has_no_types(front: Front) -> None:
    assert value(front.run("return [1, 2].map((x) => x * 2);", language="javascript")) == [2, 4]
    ended = front.run("const x: number = 1;", language="javascript")
    assert (ended.failure, ended.line, ended.column) == ("syntax", 1, 7)


@pytest.mark.parametrize(
    ("code", "args", "expected"),
    [
        ("return args.a + args['b'];", {"a": 1, "b": 2}, 3),
        ("", {}, None),
        ("return undefined;", {}, None),
        ("return new Date(0);", {}, "1970-01-01T00:00:00.000Z"),
        ("return 'ä\\u{1F600}' + args.x;", {"x": "€"}, "ä😀€"),
        ("return await Promise.all([1, (async () => 2)()]);", {}, [1, 2]),
        ("return new URL('/b?c=d', 'http://a').searchParams.get('c');", {}, "d"),
        ("return new TextDecoder().decode(new TextEncoder().encode(atob(btoa('x'))));", {}, "x"),
        ("return Temporal.Duration.from('PT90M').total('hours');", {}, 1.5),
        ("// a comment at the end", {}, None),
    ],
)
def test_code_gets_arguments_and_returns_json(
    front: Front, code: str, args: object, expected: object
) -> None:
    assert value(front.run(code, args=args)) == expected


def test_lines_of_the_console_are_kept_also_of_a_run_that_fails(front: Front) -> None:
    code = """
        console.log("a", 1, { b: [2] }, undefined, null, 3n);
        for (const level of ["info", "warn", "error", "debug"]) console[level](level);
        await 0;
        while (true) {}"""
    ended = front.run(code, limits=CodeLimits(timeout_ms=300))
    assert ended.failure == "timeout"
    assert ended.logs == ('a 1 {"b":[2]} undefined null 3n', "info", "warn", "error", "debug")


def test_the_time_of_a_run_stands_still_while_its_user_is_asked(front: Front) -> None:
    limits = CodeLimits(timeout_ms=500)
    code = "await mcp.call('x', {}); await mcp.call('y', {}); while (true) {}"
    held = front.start(code, limits=limits)
    asked = front.message()
    assert isinstance(asked, HostCall)
    front.send(HoldRun(run=held, hold=True))
    assert front.run("while (true) {}", limits=limits).failure == "timeout"
    front.send(HoldRun(run=held, hold=False))
    front.send(echo(asked))
    assert front.end(held).failure == "timeout"
    assert front.calls[-1].name == "y"


@pytest.mark.parametrize(
    ("code", "failure", "message", "place"),
    [
        ("let x = ;", "syntax", "Expression expected", (1, 9)),
        ("\nlet a = 1;\n  let a = 2;", "syntax", "already been declared", (3, 7)),
        ("if (true) {", "syntax", "Expected", (1, 12)),
        ("  throw new RangeError('no');", "exception", "RangeError: no", (1, 9)),
        ("enum E { A }\nconst f = () => {\n  null.x;\n};\nf();", "exception", "null", (3, 8)),
        ("await 0;\n\nunknown();", "exception", "unknown is not defined", (3, 1)),
        ("throw 'a word';", "exception", "a word", (0, 0)),
        ("throw { message: 'm', name: 'N' };", "exception", "N: m", (0, 0)),
        ("return 1n;", "exception", "BigInt", (0, 0)),
        ("const a = []; a.push(a); return a;", "exception", "circular", (0, 0)),
        ("await import('node:fs');", "exception", "node:fs", (1, 14)),
        ("  await mcp.call(1);", "exception", "the name of a tool is a string", (1, 13)),
        ("await mcp.call('x', 1);", "exception", "arguments of a tool are an object", (1, 11)),
        ("await 0;\nawait mcp.call('x', {});", "exception", "Error: the tool is gone", (2, 11)),
    ],
)
@pytest.mark.promise("M45")
def test_a_failure_has_its_words_and_its_place_in_the_code(
    front: Front, code: str, failure: str, message: str, place: tuple[int, int]
) -> None:
    ended = front.run(
        code, answer=lambda call: HostReply(run=call.run, call=call.call, error="the tool is gone")
    )
    assert (ended.failure, (ended.line, ended.column)) == (failure, place), ended
    assert message in ended.message
    assert "/dev/fd" not in ended.stack


# Its calls


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"content": [], "structuredContent": {"result": [1]}}, [1]),
        ({"content": [], "structuredContent": {"result": 1, "b": 2}}, {"result": 1, "b": 2}),
        ({"content": [{"type": "text", "text": '{"a": 1}'}]}, {"a": 1}),
        ({"content": [{"type": "text", "text": "words"}]}, "words"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image", "data": "eA=="}]}, [{"type": "image", "data": "eA=="}]),
        ({"content": []}, ""),
    ],
)
@pytest.mark.promise("M45")
def test_a_call_gives_the_value_of_the_result(
    front: Front, result: object, expected: object
) -> None:
    def answer(call: HostCall) -> HostReply:
        return HostReply(run=call.run, call=call.call, result=Raw(json.encode(result)))

    code = "return [await mcp.call('x', {}), await mcp.raw('x')];"
    assert value(front.run(code, answer=answer)) == [expected, result]


def test_an_error_of_a_tool_is_an_error_that_the_code_may_catch(front: Front) -> None:
    failed = {"content": [{"type": "text", "text": "no such file"}], "isError": True}

    def answer(call: HostCall) -> HostReply:
        return HostReply(run=call.run, call=call.call, result=Raw(json.encode(failed)))

    code = """try { await mcp.call("x"); } catch (error) {
      return [error instanceof Error, error.message, error.stack.split("\\n").length > 1];
    }"""
    assert value(front.run(code, answer=answer)) == [True, "no such file", True]
    assert front.run("await mcp.call('x');", answer=answer).message == "Error: no such file"


def test_the_front_hears_which_tool_of_which_server_is_called(front: Front) -> None:
    code = """
      await mcp.call("a_tool", { x: [1, "ä"] });
      await mcp.servers.files.list({ path: "/" });
      await mcp.servers["two words"]["and-more"]();
      await mcp.tools();
      return mcp.tools("find");"""
    front.run(code)
    found = [
        (one.call, one.kind, one.server, one.name, bytes(one.arguments)) for one in front.calls
    ]
    assert found == [
        (1, "call", "", "a_tool", '{"x":[1,"ä"]}'.encode()),
        (2, "server", "files", "list", b'{"path":"/"}'),
        (3, "server", "two words", "and-more", b"{}"),
        (4, "tools", "", "", b"{}"),
        (5, "tools", "", "find", b"{}"),
    ]


@pytest.mark.promise("M45")
def test_calls_run_at_once_up_to_their_limit(front: Front) -> None:
    """The answers are held back until so many calls are there as may be."""
    held: list[HostCall] = []
    most = 0

    def answer(call: HostCall) -> None:
        nonlocal most
        held.append(call)
        most = max(most, len(held))
        if len(held) == 8 or call.call == 20:
            for one in held:
                front.send(HostReply(run=one.run, call=one.call, result=text_result(str(one.call))))
            held.clear()

    code = "return Promise.all(Array.from({ length: 20 }, (_, i) => mcp.call('x', { i })));"
    ended = front.run(code, limits=CodeLimits(parallel=8), answer=answer)
    assert value(ended) == list(range(1, 21))
    assert (most, ended.calls) == (8, 20)


def test_a_large_answer_reaches_the_code(front: Front) -> None:
    def answer(call: HostCall) -> HostReply:
        return HostReply(run=call.run, call=call.call, result=text_result("x" * 5_000_000))

    assert value(front.run("return (await mcp.call('x')).length;", answer=answer)) == 5_000_000


# Runs


def test_two_hundred_runs_in_a_row_all_return(front: Front) -> None:
    code = "return (await mcp.call('x', args)).n;"
    for number in range(200):
        assert value(front.run(code, args={"n": number})) == number


def test_no_run_sees_another(front: Front) -> None:
    code = "const was = globalThis.left; globalThis.left = 1; return was ?? null;"
    assert [value(front.run(code)) for _ in range(3)] == [None] * 3


@pytest.mark.promise("M45")
def test_more_runs_than_may_wait_their_turn_and_connections_alternate() -> None:
    with sandboxes(runs_max=1, warm=0) as one:
        busy, quiet = one.front(), one.front()
        first = busy.start("await mcp.call('x');")
        while not isinstance(held := busy.message(), HostCall):
            assert held is None or not isinstance(held, RunEnded)
        later = [busy.start("return 1;") for _ in range(3)]
        one.news(lambda figures: figures.waiting == 3, "three runs wait")
        other = quiet.start("await mcp.call('y'); return 2;")
        one.news(lambda figures: figures.waiting == 4, "four runs wait")
        busy.send(echo(held))
        assert busy.end(first).failure == ""
        assert value(busy.end(later[0])) == 1
        while not isinstance(quiet.message(), HostCall):
            pass
        assert busy.message(0.2) is None  # the turn is the other's
        quiet.send(HostReply(run=other, call=1, result=text_result("")))
        assert value(quiet.end(other)) == 2
        assert [value(busy.end(run)) for run in later[1:]] == [1, 1]


@pytest.mark.promise("M46")
def test_a_run_that_nobody_waits_for_is_killed(running: Sandboxes) -> None:
    front = running.front()
    run = front.start("await mcp.call('x'); while (true) {}")
    while not isinstance(call := front.message(), HostCall):
        pass
    front.send(echo(call))
    front.kill(run)
    running.news(lambda figures: figures.running == 0, "the run has ended")
    assert value(front.run("return 1;")) == 1
    front.start("while (true) {}")
    running.news(lambda figures: figures.running == 1, "a run")
    front.close()
    running.news(lambda figures: figures.running == 0, "its front has gone, and so has the run")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor alone")
def test_a_busy_run_and_sandboxes_that_start_beside_it_leave_one_processor(
    running: Sandboxes,
) -> None:
    front = running.front()
    ours = os.sched_getaffinity(0)

    def left() -> set[bool]:
        found = [os.sched_getaffinity(pid) for pid in denos(running.process.pid)]
        return {processors == ours - {min(ours)} for processors in found}

    waits = front.start("await mcp.call('x');")
    assert isinstance(front.message(), HostCall)
    busy = front.start("while (true) {}")
    until(lambda: left() == {True, False}, "the busy run leaves one, the run that waits does not")
    front.kill(waits)

    def all_left() -> bool:
        assert value(front.run("return 1;")) == 1
        return left() == {True}

    until(all_left, "sandboxes that are new leave it too")
    front.kill(busy)


def test_a_front_that_sends_nonsense_loses_its_connection_alone(running: Sandboxes) -> None:
    bad, good = running.front(), running.front()
    bad.sock.sendall(b"\x03\0\0\0{}}")
    assert bad.sock.recv(1) == b""
    assert value(good.run("return 1;")) == 1


# Sandboxes


def test_sandboxes_wait_from_the_first_run_on_and_end_when_none_comes() -> None:
    with sandboxes(warm=2, idle_s=1.0) as one:
        assert denos(one.process.pid) == {}
        assert value(one.front().run("return 1;")) == 1
        one.news(lambda figures: figures.warm == 2, "two sandboxes wait")
        one.news(lambda figures: figures.warm == 0, "they are given back")
        until(lambda: not denos(one.process.pid), "their processes end")
        assert value(one.front().run("return 1;")) == 1


@pytest.mark.promise("M46")
def test_a_sandbox_is_confined_and_has_no_environment(running: Sandboxes, front: Front) -> None:
    run = front.start("await mcp.call('x');")
    while not isinstance(call := front.message(), HostCall):
        pass
    running.news(lambda figures: figures.warm == 2, "the others wait")
    for pid, status in denos(running.process.pid).items():
        folder = Path(f"/proc/{pid}")
        assert b"PATH=" not in (folder / "environ").read_bytes()
        assert "NoNewPrivs:\t1" in status
        assert os.getpgid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) > 0
        limits = (folder / "limits").read_text()
        assert "Max file size             0" in limits
        assert "Max core file size        0" in limits
    front.send(echo(call))
    assert front.end(run).failure == ""
    assert running.figures.confined.startswith(("landlock-", "none"))


@pytest.mark.promise("M46")
def test_no_sandbox_outlives_its_process() -> None:
    with sandboxes() as one:
        front = one.front()
        front.run("return 1;")
        front.start("while (true) {}")
        one.news(lambda figures: (figures.running, figures.warm) == (1, 2), "a run, and two wait")
        found = denos(one.process.pid)
        assert len(found) == 3
        os.kill(one.process.pid, signal.SIGKILL)
        until(lambda: ended_all(found), "the sandboxes end")


def ended_all(pids: Iterable[int]) -> bool:
    return not any(map(alive, pids))


def reaped(pids: Iterable[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_sandbox_that_ended_while_it_waited_costs_no_run() -> None:
    with sandboxes() as one:
        front = one.front()
        for _ in range(5):
            assert value(front.run("return 1;")) == 1
            one.news(lambda figures: figures.warm == 2, "two sandboxes wait")
            found = list(denos(one.process.pid))
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            until(partial(reaped, found), "their end is known")


@pytest.mark.promise("M46")
def test_a_sandbox_that_is_killed_is_a_crash_of_its_run_alone() -> None:
    with sandboxes(warm=0) as one:
        front = one.front()
        run = front.start("await mcp.call('x');")
        while not isinstance(front.message(), HostCall):
            pass
        (pid,) = denos(one.process.pid)
        os.kill(pid, signal.SIGKILL)
        ended = front.end(run)
        assert (ended.failure, ended.message) == (
            "crashed", "the sandbox ended with signal 9 before the code returned"
        )  # fmt: skip
        assert value(front.run("return 1;")) == 1


@pytest.mark.parametrize(
    ("program", "why"), [("/nonexistent/deno", "No such file"), ("/bin/false", "")]
)
def test_runs_fail_when_no_sandbox_starts(program: str, why: str) -> None:
    with sandboxes(deno=program) as one:
        front = one.front()
        for _ in range(2):
            ended = front.run("return 1;")
            assert ended.failure == "crashed"
            assert ended.message.startswith("the sandbox does not start: ")
            assert why in ended.message
        assert denos(one.process.pid) == {}


def test_other_limits_hold_from_the_next_order_on() -> None:
    with sandboxes() as one:
        front = one.front()
        assert value(front.run("return typeof WebAssembly;")) == "undefined"
        one.order(jit=True, confinement="off", runs_max=1)
        one.news(lambda figures: figures.confined == "none", "the order is carried out")
        assert value(front.run("return typeof WebAssembly;")) == "undefined"


def test_a_process_that_is_no_longer_wanted_ends_with_its_last_run() -> None:
    with sandboxes() as one:
        front, idle = one.front(), one.front()
        run = front.start("return (await mcp.call('x')) + 1;")
        while not isinstance(call := front.message(), HostCall):
            pass
        one.leave()
        assert idle.sock.recv(1) == b""
        refused = front.start("return 1;")
        assert front.end(refused).failure == "busy"
        front.send(HostReply(run=run, call=call.call, result=text_result("1")))
        assert value(front.end(run)) == 2
        assert one.process.wait(20) == 0


def test_the_modules_of_node_that_are_blocked_are_all_that_deno_has() -> None:
    code = "console.log((await import('node:module')).builtinModules.join(' '))"
    command = [DENO, "run", "--no-prompt", "--quiet", f"data:text/javascript,{code}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {name.removeprefix("node:") for name in told.split()} <= set(NODE_MODULES.split())
