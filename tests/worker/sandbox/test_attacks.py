"""Code that wants out of its sandbox, or more than its limits, with the true Deno."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import json

from metamcp_worker.ipc.code_runs import CodeLimits
from tests.worker.sandbox.attacks import ENDLESS, HUNGRY, OTHERS, SEARCHES
from tests.worker.sandbox.sandboxes import Front, Sandboxes, denos, rss_kb, sandboxes

pytestmark = [pytest.mark.process, pytest.mark.promise("M46")]

LIMITS = CodeLimits(timeout_ms=1000, memory_bytes=64 * 1024 * 1024)
LATE_MS = 500
BESIDE_KB = 40 * 1024
"""Memory of Deno itself, beside what the code has."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    folder = tmp_path_factory.mktemp("code")
    with sandboxes(folder, memory_bytes=LIMITS.memory_bytes) as made:
        yield made


@pytest.fixture
def front(running: Sandboxes) -> Iterator[Front]:
    made = running.front()
    yield made
    made.close()


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_code_that_does_not_end_is_killed_in_time(front: Front, code: str) -> None:
    ended = front.run(code, limits=LIMITS)
    assert ended.failure == "timeout", ended
    assert ended.ms <= LIMITS.timeout_ms + LATE_MS


@pytest.mark.parametrize("code", HUNGRY.values(), ids=HUNGRY)
def test_code_that_wants_all_memory_gets_its_share(
    running: Sandboxes, front: Front, code: str
) -> None:
    most = [0]

    def measure() -> None:
        found = denos(running.process.pid).values()
        most.append(max(map(rss_kb, found), default=0))

    limits = CodeLimits(timeout_ms=20_000, memory_bytes=LIMITS.memory_bytes)
    ended = front.end(front.start(code, limits=limits), meanwhile=measure)
    # Some errors for lack of memory cannot be told from others.
    assert ended.failure == "memory" or "deserialize" in ended.message, ended
    assert max(most) <= LIMITS.memory_bytes // 1024 + BESIDE_KB


@pytest.mark.parametrize(("code", "failures"), OTHERS.values(), ids=OTHERS)
def test_what_is_not_allowed_ends_the_run(front: Front, code: str, failures: str) -> None:
    limits = CodeLimits(timeout_ms=5000, memory_bytes=LIMITS.memory_bytes, calls=200)
    ended = front.run(code, limits=limits)
    assert ended.failure in failures.split(), ended
    assert ended.ms <= limits.timeout_ms + LATE_MS
    assert "file:///" not in ended.stack


@pytest.mark.parametrize("code", SEARCHES.values(), ids=SEARCHES)
def test_what_code_looks_for_is_not_there(front: Front, code: str) -> None:
    ended = front.run(code, limits=LIMITS)
    assert (ended.failure, json.decode(ended.value)) == ("", True), ended


def test_a_compiler_does_not_bring_webassembly(tmp_path: Path) -> None:
    """The module has one function, and the import would return it."""
    module = "AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKBgEEAEEqCw=="
    with sandboxes(tmp_path, jit=True) as compiled:
        front = compiled.front()
        ended = front.run(f"return (await import('data:application/wasm;base64,{module}')).f();")
        assert ended.failure == "exception", ended
        assert json.decode(front.run("return 1;").value) == 1
