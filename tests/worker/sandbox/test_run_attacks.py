"""Code that wants out of its sandbox, or more than its limits, with the true Deno and Monty."""

from collections.abc import Iterator

import pytest
from msgspec import json, structs

from metamcp_worker.ipc.code_runs import CodeLimits, HostCall, HostReply, Language, RunEnded
from tests.worker.sandbox.attacks import ENDLESS, HUNGRY, OTHERS, PYTHON, SEARCHES
from tests.worker.sandbox.sandboxes import Front, Sandboxes, echo, peak_kb, sandboxes

pytestmark = [pytest.mark.process, pytest.mark.promise("M46")]

LIMITS = CodeLimits(timeout_ms=1000, memory_bytes=64 * 1024 * 1024)
PATIENT_MS = 50_000
"""Time for code whose end is not the end of its time, on a machine with other load: 1 s of
computing takes 20 s where twenty others compute."""
LATE_MS = 500
BESIDE_KB = 40 * 1024
"""Memory of the sandbox itself, beside what the code has."""


@pytest.fixture(scope="module")
def running() -> Iterator[Sandboxes]:
    with sandboxes(memory_bytes=LIMITS.memory_bytes) as made:
        yield made


@pytest.fixture
def front(running: Sandboxes) -> Iterator[Front]:
    made = running.front()
    yield made
    made.close()


def attacked(
    running: Sandboxes, front: Front, code: str, limits: CodeLimits,
    language: Language = "typescript",
) -> RunEnded:  # fmt: skip
    """The end of a run, which came in time and with memory within bounds."""
    most = [0]

    def measure() -> None:
        most.append(peak_kb(running.process.pid))

    def answer(call: HostCall) -> HostReply | None:
        measure()
        return None if call.name == "never" else echo(call)

    ended = front.end(front.start(code, limits=limits, language=language), answer, measure)
    assert ended.ms <= limits.timeout_ms + LATE_MS
    assert max(most) <= limits.memory_bytes // 1024 + BESIDE_KB
    return ended


def patient(failures: str) -> CodeLimits:
    timeout_ms = LIMITS.timeout_ms if "timeout" in failures else PATIENT_MS
    return structs.replace(LIMITS, timeout_ms=timeout_ms, calls=200)


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_code_that_does_not_end_is_killed_in_time(
    running: Sandboxes, front: Front, code: str
) -> None:
    ended = attacked(running, front, code, LIMITS)
    assert ended.failure == "timeout", ended


@pytest.mark.parametrize("code", HUNGRY.values(), ids=HUNGRY)
def test_code_that_wants_all_memory_gets_its_share(
    running: Sandboxes, front: Front, code: str
) -> None:
    ended = attacked(running, front, code, structs.replace(LIMITS, timeout_ms=PATIENT_MS))
    assert ended.failure == "memory", ended


@pytest.mark.parametrize(("code", "failures"), OTHERS.values(), ids=OTHERS)
def test_what_is_not_allowed_ends_the_run(
    running: Sandboxes, front: Front, code: str, failures: str
) -> None:
    ended = attacked(running, front, code, patient(failures))
    assert ended.failure in failures.split(), ended
    assert "file:///" not in ended.stack


@pytest.mark.parametrize(("code", "failures"), PYTHON.values(), ids=PYTHON)
def test_python_gets_no_more_than_it_may(
    running: Sandboxes, front: Front, code: str, failures: str
) -> None:
    ended = attacked(running, front, code, patient(failures), "python")
    assert ended.failure in failures.split(), ended


@pytest.mark.parametrize("code", SEARCHES.values(), ids=SEARCHES)
def test_what_code_looks_for_is_not_there(front: Front, code: str) -> None:
    ended = front.run(code, limits=LIMITS)
    assert (ended.failure, json.decode(ended.value)) == ("", True), ended


def test_what_a_run_changes_is_gone_with_it(front: Front) -> None:
    changes = (
        "Object.prototype.toJSON = () => 1; Array.prototype.push = JSON.stringify = () => '2';"
        "Promise.prototype.then = (f) => f(3); globalThis.seen = 4; return {};"
    )
    assert json.decode(front.run(changes, limits=LIMITS).value) == 3
    looks = "const a = []; a.push(1); return [await mcp.call('x', {}), a, typeof seen];"
    assert json.decode(front.run(looks, limits=LIMITS).value) == [{}, [1], "undefined"]


def test_a_compiler_does_not_bring_webassembly() -> None:
    """The module has one function, and the import would return it."""
    module = "AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKBgEEAEEqCw=="
    with sandboxes(jit=True) as compiled:
        front = compiled.front()
        ended = front.run(f"return (await import('data:application/wasm;base64,{module}')).f();")
        assert ended.failure == "exception", ended
        assert json.decode(front.run("return 1;").value) == 1
