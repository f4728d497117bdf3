"""Steps of calls come with the settings that need them, and what is off is not even loaded."""

import subprocess
import sys
from typing import Any

import pytest

from metamcp_worker.ipc.frames import Notice
from metamcp_worker.ipc.messages import NOTICE, ServerCallTimes, pack_leg
from metamcp_worker.ipc.middleware_calls import MiddlewareSpec
from metamcp_worker.ipc.spec import AuditSpec, ConsentRule, ConsentSpec, FrontSpec

from ..rawhttp import until
from .called import opened_front
from .offers import endpoint, offer

OFF = ("audit_link", "consent_io", "front_records", "held_calls", "middleware.")
STEPS = ("code_calls", "engine_calls", "guarded_calls")
PLAIN = FrontSpec(version="1", endpoints=(endpoint("git"),), hosts=())
ASKS = ConsentSpec(rules=(ConsentRule(match=("git/push",), effect="ask"),))
LATE = MiddlewareSpec(name="late", match=("*/*",), timeout_ms=10)


def with_settings(**settings: Any) -> FrontSpec:
    return FrontSpec(version="1", endpoints=PLAIN.endpoints, hosts=(), **settings)


@pytest.mark.process
def test_a_front_loads_no_step_before_a_setting_needs_it() -> None:
    program = "import metamcp_worker.front.run, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    modules = [name for name in loaded.decode().split() if name.startswith("metamcp_")]
    assert "metamcp_worker.front_steps.builtin_calls" in modules
    assert [name for name in modules if any(word in name for word in (*OFF, *STEPS))] == []


@pytest.mark.parametrize(
    "settings", [{"consent": ASKS}, {"middleware": (LATE,)}], ids=["consent", "middleware"]
)
async def test_rules_and_middleware_bring_their_step_which_stays(settings: dict[str, Any]) -> None:
    async with opened_front(git=offer("push")) as front:
        before = front.calls.guard
        front.steps.configure(with_settings(**settings))
        guard = front.calls.guard
        assert (before, guard) == (None, front.steps.guard)
        assert (front.calls.lists is None) is ("middleware" not in settings)
        front.steps.configure(PLAIN)
        assert front.calls.guard is guard
        assert front.calls.steps == [guard]


async def test_the_auditor_is_the_last_observer_as_long_as_calls_are_audited() -> None:
    async with opened_front(git=offer("push")) as front:
        before = front.calls.observers
        audited = with_settings(audit=AuditSpec(level="metadata", required=False), traced=1.0)
        front.steps.configure(audited)
        tracer, auditor = front.calls.observers
        assert before == ()
        assert auditor is front.calls.audit
        assert tracer is not auditor
        front.steps.configure(PLAIN)
        assert not front.calls.observers
        assert front.calls.audit is None


async def test_times_of_a_call_that_an_earlier_front_traced_are_for_no_client() -> None:
    async with opened_front(git=offer("push")) as front:
        methods: list[str] = []
        front.calls.notified = lambda server, method, params: methods.append(method)
        times = ServerCallTimes(1, 0.0, 0.1, far=False)
        front.peers["git"].write(Notice(NOTICE, pack_leg(times)))
        front.peers["git"].write(Notice("notifications/other", b"{}"))
        await until(lambda: bool(methods))
        assert methods == ["notifications/other"]
