"""Steps of the calls of a front, put together as its settings switch them on.

Owns: which steps there are, their order, what they get from each other. Never: what a step does,
what a call is (`calls`), messages (`run`).

A step is imported when a configuration needs it for the first time, and stays: calls that it has
go on. The sandboxes and the engine are asked for by single calls, so their steps come with the
first one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools.builtin import Decision, EngineWork, Run
from metamcp_worker.front.http import App
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.request_facts import InnerRun
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.front_steps.builtin_calls import BuiltinCalls, Builtins, WorkStep
from metamcp_worker.ipc import audit_records, engine_runs, messages
from metamcp_worker.ipc.consent_records import ConsentGrant
from metamcp_worker.ipc.messages import Figures, Message
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.ipc.spec import ConsentSpec, FrontSpec

if TYPE_CHECKING:
    from metamcp_worker.front_records.call_audit import CallAudit
    from metamcp_worker.front_records.call_log_io import Recorder
    from metamcp_worker.front_records.trace_io import Tracer
    from metamcp_worker.front_steps.code_calls_io import CodeRuns
    from metamcp_worker.front_steps.engine_calls_io import EngineCalls
    from metamcp_worker.front_steps.guarded_calls import GuardedCalls
    from metamcp_worker.middleware.hooked_lists import HookedLists

NO_RECORDS = {"written": 0, "lost": 0}
"""Counts of a front that has recorded no calls."""


class FrontSteps:
    """Calls of a front with their steps. `tell`: sends a message to the supervisor, with its
    descriptors; `queued`: number of messages that wait there. `front`: number of the front; `app`:
    what serves its clients; both are set before the first call."""

    def __init__(
        self,
        stats: Stats,
        tell: Callable[[Message, tuple[int, ...]], None],
        queued: Callable[[], int] = lambda: 0,
    ) -> None:
        self.front = 0
        self.app: App | None = None
        self.connectors = Connectors()
        self.calls = Calls(stats, lambda message: tell(message, ()))
        self.builtins = Builtins(self.calls.viewers, self.calls.states.latest)
        self.builtins.tell = tell
        self.own = BuiltinCalls(self.calls, self.builtins, self._find_step)
        self.calls.own, self.calls.on_views_built = self.own, self.builtins.on_views_built
        # Times of a call that a front before this one traced are for no client.
        self.calls.on_notice(messages.NOTICE, lambda server, notice: None)
        self._recorder: Recorder | None = None
        self._stats = stats
        self._tell = tell
        self._queued = queued
        self._audit: CallAudit | None = None
        self._tracer: Tracer | None = None
        self._code: CodeRuns | None = None
        self._engine: EngineCalls | None = None
        self._engine_at_once = False
        self._listens = False
        self._guard: GuardedCalls | None = None
        self._lists: HookedLists | None = None

    def configure(self, spec: FrontSpec) -> None:
        """Adapt to this configuration, and switch on what it needs."""
        self.connectors.keep(spec.roles)
        self._observe(spec)
        rules = spec.consent != ConsentSpec() or spec.policies or spec.middleware
        if rules or self._guard is not None:
            self.guard.configure(spec)
            self.guard.notes = None if self.calls.audit is None else self._audit
        self.calls.configure(spec)
        self.builtins.seek(spec.meaning)
        if self._code is not None:
            self._code.configure()
        self._engine_at_once = spec.engine_at_once and self.connectors.has(engine_runs.ROLE)
        self._adapt_engine()
        if spec.middleware or self._lists is not None:
            self.lists.recheck_servers()

    def on_listening(self) -> None:
        """Connect to the engine if it goes on with runs: their views are there now."""
        self._listens = True
        self._adapt_engine()

    def _adapt_engine(self) -> None:
        at_once = self._engine_at_once and self._listens
        if at_once or self._engine is not None:
            self.engine.configure(at_once=at_once)

    async def close(self) -> None:
        """Let the rest of the records be written, after the calls were closed."""
        if self._recorder is not None:
            await self._recorder.close()
        if self._tracer is not None:
            self._tracer.close()
        if self._audit is not None:
            await self._audit.close()

    def replace_grants(self, grants: list[ConsentGrant]) -> None:
        """Use these grants from now on; without a rule or a grant there is nothing to do."""
        if grants or self._guard is not None:
            self.guard.consent.replace(grants)

    def count_records(self) -> dict[str, int]:
        """Return the numbers of recorded calls, as `call_log_io.Recorder` counts them."""
        return NO_RECORDS if self._recorder is None else self._recorder.counts()

    def figures(self) -> Figures:
        calls, stats, guard = self.calls, self._stats, self._guard
        return Figures(
            calls=stats.calls(),
            tools=stats.tools(),
            overhead=calls.overhead.figures(),
            inflight={server: count for server, count in calls.inflight().items() if count},
            held=calls.held_by_server(),
            late_replies=stats.late_replies,
            retries=stats.retries,
            views=calls.viewers.stats(),
            limited=calls.meters.count_refusals(),
            policies=stats.policies,
            middleware=guard.lines.counts() if guard is not None else {},
            consent=dict(guard.consent.counts) if guard is not None else {},
        )

    # --- observers ------------------------------------------------------------------------------

    def _observe(self, spec: FrontSpec) -> None:
        tracer = recorder = audit = None
        if spec.traced is not None or self._tracer is not None:
            from metamcp_worker.front_records.trace_io import Tracer

            if self._tracer is None:
                self._tracer = Tracer(self.front, self._tell, self._queued)
                self.calls.on_notice(messages.NOTICE, self._tracer.on_worker_notice)
            audited = spec.audit.level != audit_records.OFF
            tracer = self._tracer.adjust(spec.traced, spec.audit.salt if audited else b"")
        if spec.recording.servers or self._recorder is not None:
            from metamcp_worker.front_records.call_log_io import Recorder

            self._recorder = self._recorder or Recorder(self.front)
            recorder = self._recorder.adjust(spec.recording)
        if spec.audit.level != audit_records.OFF or self._audit is not None:
            from metamcp_worker.front_records.call_audit import CallAudit

            self._audit = self._audit or CallAudit(self.front, self.connectors)
            audit = self._audit.adjust(spec)
        observers = (tracer, recorder, audit)
        self.calls.observers = tuple(each for each in observers if each is not None)
        self.calls.audit, self.calls.traces = audit, tracer
        self.calls.routing.on_asked = None if tracer is None else tracer.on_asked

    # --- steps ----------------------------------------------------------------------------------

    @property
    def code(self) -> "CodeRuns":
        if self._code is None:
            from metamcp_worker.front_steps.code_calls_io import CodeRuns

            self._code = CodeRuns(self.calls, self.builtins, self.connectors)
            self.calls.steps.append(self._code)
        return self._code

    @property
    def engine(self) -> "EngineCalls":
        if self._engine is None:
            from metamcp_worker.front_steps.engine_calls_io import EngineCalls

            self._engine = EngineCalls(self.calls, self.builtins, self.own, self.connectors)
            self.calls.steps.append(self._engine)
            self._engine.front = str(self.front)
            self._engine.still, self._engine.part = self._still, self._part
        return self._engine

    @property
    def guard(self) -> "GuardedCalls":
        if self._guard is None:
            from metamcp_worker.front_steps.guarded_calls import GuardedCalls

            self._guard = GuardedCalls(self.calls, self.connectors)
            self._guard.consent.tell = lambda message: self._tell(message, ())
            self._guard.consent.front = self.front
            self._guard.still = self._still
            self._guard.count = self._stats.policy
            self._guard.pause = self._pause
            self.calls.hold_by(self._guard)
        return self._guard

    @property
    def lists(self) -> "HookedLists":
        if self._lists is None:
            from metamcp_worker.middleware.hooked_lists import HookedLists

            calls = self.calls
            self._lists = HookedLists(self.guard.lines, calls.viewers, calls.refresh)
            calls.lists = self._lists
        return self._lists

    def _find_step(self, decision: Decision) -> WorkStep | None:
        if isinstance(decision, Run):
            return self.code
        return self.engine if isinstance(decision, EngineWork) else None

    def _pause(self, run: InnerRun, on: bool) -> None:
        if self._code is not None:
            self._code.hold(run, on)

    def _part(self, endpoint: str, who: Principal) -> str:
        return endpoint if self.app is None else self.app.part(endpoint, who)

    def _still(self, who: Principal, endpoint: str, now: float) -> bool:
        return self.app is None or self.app.door.still(who, endpoint, now)
