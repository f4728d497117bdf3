"""Run of a workflow under way: its steps in turn, with what the journal says of them.

Owns: attempts and pauses, rows of steps, a step that waits for a person. Never: decisions that need
no I/O (`workflow_run`), orders (`workflows_io`), the front.

After a crash the same steps are gone through again: those that have ended give their value from the
journal, so only the first ones without an end do anything.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Raw, json
from msgspec.structs import replace

from metamcp_worker.cel import expressions
from metamcp_worker.cel.expressions import ExpressionError, is_list
from metamcp_worker.cel.expressions_io import Evaluator
from metamcp_worker.engine import workflow_run
from metamcp_worker.engine.definition import FOREACH_ITEMS_MAX
from metamcp_worker.engine.host import OrderHost
from metamcp_worker.engine.models import NoAnswer
from metamcp_worker.engine.run_journal import Executor, JournalError
from metamcp_worker.engine.workflow import (
    AiStep,
    AnyStep,
    CallStep,
    CodeStep,
    ElicitStep,
    ForeachStep,
    OutputStep,
    ParallelStep,
    SwitchStep,
    WaitStep,
    Workflow,
    later_ids,
    walk,
)
from metamcp_worker.engine.workflow_run import (
    INTERRUPTIONS_MAX,
    RESULT_BYTES_MAX,
    RUN_BYTES_MAX,
    Elicitation,
    RunRecord,
    RunStatus,
    Scope,
    StepOutcome,
    StepRecord,
)
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import SPAN_BYTES, TraceContext
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import HostDone, Kind, RunOwner
from metamcp_worker.ipc.messages import INTERNAL, SPAN_KIND, SPAN_STATUS, Span, Value

ANSWER_S_MAX = 5.0
"""Seconds beyond its time limit in which a front reports that a call is over."""
DESCRIBE_S_MAX = 30.0
"""Seconds for a front to describe a tool of a call that was interrupted."""
END_S = 0.5
"""Seconds in which the engine sees that the gateway ends, after something went down with a step:
when all processes are killed, the end of another one may be seen first."""
KEY = "io.metamcp/idempotency-key"

_OPERATION = "invoke_workflow"
_STATUSES = {"failed": "the step failed", "cancelled": "the run was cancelled"}


class Complete(Protocol):
    """Question to a model, see `models_io.complete`, with all but these arguments given."""

    async def __call__(self, prompt: str, schema: Raw | None, run: "RunningWorkflow") -> Raw:
        """Return the answer as JSON. Raises NoAnswer."""
        ...


class StepFailed(Exception):
    """A failure that ends the run. `path`: of the step."""

    def __init__(self, path: str, error: str) -> None:
        super().__init__(error)
        self.path = path
        self.error = error


class RunTrace:
    """Spans of a run, whose order is traced: one of the run, and one of each step as its child.
    `context`: of the order; `send`: takes a span; `sends`: false once another engine is to go on
    with the run, which has not ended then."""

    def __init__(self, context: TraceContext, run: RunRecord, send: Callable[[Span], None]) -> None:
        self._context = context
        self._run = run
        self._send = send
        self.sends = True
        self._id = secrets.token_hex(SPAN_BYTES)
        self._steps: dict[str, str] = {}

    @contextlib.contextmanager
    def trace_run(self) -> Generator[None]:
        """Trace the run, which is what this block does."""
        about: dict[str, Value] = {
            "gen_ai.operation.name": _OPERATION, "gen_ai.workflow.name": self._run.name,
        }  # fmt: skip
        name = f"{_OPERATION} {self._run.name}"
        with self._trace(self._id, self._context.span_id, name, about):
            yield

    @contextlib.contextmanager
    def trace_step(self, path: str) -> Generator[Callable[[str], None]]:
        """Trace a step, which is what this block does; call the result with what was wrong."""
        span_id = self._steps[path] = secrets.token_hex(SPAN_BYTES)
        try:
            with self._trace(span_id, self._id, f"step {path}", {"metamcp.step": path}) as fail:
                yield fail
        finally:
            del self._steps[path]

    def traceparent(self, path: str) -> str:
        """Return the parent of a call that a step makes."""
        return mcp_headers.traceparent(self._context.child(self._steps[path]))

    @contextlib.contextmanager
    def _trace(
        self, span_id: str, parent_id: str, name: str, about: dict[str, Value]
    ) -> Generator[Callable[[str], None]]:
        began, error = time.monotonic(), ""

        def fail(outcome: str) -> None:
            nonlocal error
            error = outcome

        try:
            yield fail
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except JournalError:
            self.sends = False
            raise
        except Exception:
            error = "failed"
            raise
        finally:
            about |= {"metamcp.run": self._run.id, SPAN_KIND: INTERNAL}
            if error:
                about |= {"error.type": error, SPAN_STATUS: _STATUSES[error]}
            span = Span(
                kind="client", name=name, trace_id=self._context.trace_id, span_id=span_id,
                parent_id=parent_id, far=False, flags=self._context.flags, start=began,
                end=time.monotonic(), attributes=about, error=error,
            )  # fmt: skip
            if self.sends:
                self._send(span)


class RunningWorkflow:
    """Run that has not ended. `order`: id of the order that waits for it, 0 without; `asks`,
    `samples`: what its client can; `asking`: steps that ask this client now; `watchers`: called
    with progress, total and a message; `busy`: number of steps that do something now; `halts`: no
    further step begins in this process; `trace`: None for a run that is not traced."""

    def __init__(
        self, record: RunRecord, workflow: Workflow, inputs: Mapping[str, object], host: OrderHost,
        journal: Executor, evaluator: Evaluator, complete: Complete,
    ) -> None:  # fmt: skip
        self.record = record
        self.workflow = workflow
        self.host = host
        self.order = 0
        self.asks = False
        self.samples = False
        self.busy = 0
        self.halts = False
        self.trace: RunTrace | None = None
        self.asking: dict[str, asyncio.Task[None]] = {}
        self.watchers: set[Callable[[float, float, str], None]] = set()
        self.changed: Callable[[], None] = lambda: None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._journal = journal
        self._evaluator = evaluator
        self._complete = complete
        self._inputs = inputs
        secrets = [inputs[name] for name in workflow.secrets if name in inputs]
        self._secrets = workflow_run.secret_texts(secrets)
        self._rows: dict[str, StepRecord] = {}
        self._bytes = 0
        self._begun: set[str] = set()
        self._total = sum(1 for _ in walk(workflow.steps))
        self._waiting: set[str] = set()
        self._parked: dict[str, asyncio.Future[StepRecord]] = {}
        self._branches = 1
        self._failed: StepFailed | None = None
        self._fails = asyncio.Event()
        self._end: RunRecord | None = None
        self._end_noted: asyncio.Future[None] | None = None
        self._settled: asyncio.Future[None] | None = None

    async def run(self, rows: Sequence[StepRecord] = ()) -> None:
        """Go through the steps and note the end. `rows`: from before a crash. Raises
        JournalError. When cancelled, nothing is noted."""
        self._rows = {row.path: row for row in rows}
        self._bytes = sum(len(row.output) for row in rows)
        scope = Scope(self._inputs, later_ids(self.workflow.steps))
        trace = contextlib.nullcontext() if self.trace is None else self.trace.trace_run()
        try:
            with trace:
                output = json.encode(await self._block(self.workflow.steps, scope))
        except StepFailed as failed:
            await self.end("failed", failed.path, failed.error)
        else:
            await self.end("done", output=output)

    def begin(self) -> None:
        """Note that the run is under way, which comes before `run`."""
        self._set("running")

    async def end(
        self, status: RunStatus, step: str = "", error: str = "", output: bytes = b"null"
    ) -> None:
        """Note the end of the run, after which its status is durable. The first end counts."""
        if self._end is None or self._end_noted is None:
            self._end = replace(
                self.record, status=status, step=step, error=error, output=output, ended=time.time()
            )
            self._end_noted = self._journal.set_run(self._end)
        await asyncio.shield(self._end_noted)
        self.record = self._end
        if not self.ended.done():
            self.ended.set_result(None)
        self._tell()

    def leave(self) -> None:
        """Go on without the client that waited: its questions are left to others."""
        self.order = 0
        for task in self.asking.values():
            task.cancel()

    async def decide(self, step: str, decision: str) -> bool:
        """Give a decision or an answer to a step that waits for one, and wait until it is durable;
        return whether there is such a step. Raises JournalError."""
        posted = self._give(step, decision)
        if posted is not None:
            await asyncio.shield(posted)
        return posted is not None

    async def wait_for_change(self) -> None:
        """Wait for the next state of the run."""
        self._settled = self._settled or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._settled)

    @property
    def parked_steps(self) -> list[StepRecord]:
        return [self._rows[path] for path in self._parked]

    # Steps

    async def _block(self, steps: Sequence[AnyStep], scope: Scope) -> object:
        result: object = None
        for step in steps:
            result = await self._step(step, scope)
        return result

    async def _step(self, step: AnyStep, scope: Scope) -> object:
        path = step.at(scope.indices)
        if self._failed is not None:
            raise self._failed
        try:
            value = await self._value(step, path, scope)
        except ExpressionError as error:
            await self._put(StepRecord(path, 1, "failed", error=self._mask_error(str(error))))
            raise self._failure(path, str(error)) from None
        if step.id:
            scope.steps[step.id] = value
        return value["result"]

    async def _value(self, step: AnyStep, path: str, scope: Scope) -> dict[str, object]:
        """Return what `steps.ID` is when the step is over. Raises StepFailed, ExpressionError."""
        if step.when and not await self._true(step.when, scope):
            return workflow_run.absent_value()
        result: object = None
        match step:
            case ParallelStep(steps=steps):
                result = await self._parallel(steps, scope)
            case ForeachStep():
                result = await self._foreach(step, scope)
            case SwitchStep(cases=cases):
                for case in cases:
                    if not case.when or await self._true(case.when, scope):
                        result = await self._block(case.steps, scope)
                        break
            case OutputStep(value=value):
                result = await self._evaluator.replace_expressions(value, scope.variables)
            case _ if self.trace is not None:
                with self.trace.trace_step(path) as fail:
                    step_value = await self._leaf(step, path, scope)
                    if step_value["error"] is not None:  # and the run goes on
                        fail("failed")
                    return step_value
            case _:
                return await self._leaf(step, path, scope)
        return {"result": result, "text": "", "error": None}

    async def _true(self, text: str, scope: Scope) -> bool:
        value = await self._evaluator.condition(text, scope.variables)
        if not isinstance(value, bool):
            raise ExpressionError(f"the condition '{text}' is neither true nor false")
        return value

    async def _parallel(self, steps: Sequence[AnyStep], scope: Scope) -> list[object]:
        """Run steps at the same time. When one fails, the others end the attempt that they have
        begun; pauses end at once."""
        running = len(steps)
        self._branches += running - 1

        async def branch(step: AnyStep) -> object:
            nonlocal running
            try:
                return await self._step(step, scope)
            finally:
                running -= 1
                if running:  # the last one leaves its place to what follows
                    self._branches -= 1
                    self._state()

        tasks = [asyncio.ensure_future(branch(step)) for step in steps]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise self._failed or result
        return list(results)

    async def _foreach(self, step: ForeachStep, scope: Scope) -> list[object]:
        if isinstance(step.items, str):
            items = await self._evaluator.condition(step.items, scope.variables)
        else:
            items = await self._evaluator.replace_expressions(step.items, scope.variables)
        if not is_list(items):
            raise ExpressionError(f"'foreach' of step '{step.path}' is not a list")
        if len(items) > FOREACH_ITEMS_MAX:
            raise ExpressionError(f"'foreach' has more than {FOREACH_ITEMS_MAX:,} items")
        ids = later_ids(step.steps)
        return [
            await self._block(step.steps, scope.within(step.name, item, index, ids))
            for index, item in enumerate(items)
        ]

    async def _leaf(self, step: AnyStep, path: str, scope: Scope) -> dict[str, object]:
        row = self._rows.get(path, StepRecord(path, key=f"{self.record.id}:{path}"))
        if (value := self._read_value(step, row)) is not None:
            return value
        if isinstance(step, ElicitStep):
            return await self._elicit(step, row, scope)
        reason = row.error if row.status == "needs_decision" else ""
        if row.attempt and row.status == "running" and not await self._harmless(step):
            reason = "it was interrupted, may have happened, and is not known to be repeatable"
        lost = 0
        while True:
            if reason:
                row = await self._wait_for_decision(
                    replace(row, status="needs_decision", error=reason)
                )
                if (value := self._read_value(step, row)) is not None:
                    return value
            outcome, row = await self._attempt(step, row, scope)
            if not outcome.trouble:
                return await self._record_value(row, outcome.value)
            if outcome.down:  # if the gateway ends, the step was interrupted, and the next decides
                await asyncio.sleep(END_S)
                await self._unless_halted()
            lost = workflow_run.count_interruptions(lost, outcome)
            reason = ""
            if 0 < lost <= INTERRUPTIONS_MAX:
                if not (outcome.repeatable or await self._harmless(step)):
                    reason = outcome.error
                elif not outcome.lost:
                    await self._pause(lost)
                continue
            pause_ms = workflow_run.next_pause_ms(step, row.attempt, outcome)
            if pause_ms is None:
                return await self._record_failure(step, row, outcome)
            if workflow_run.is_open(step, outcome):
                reason = outcome.error
                continue
            await self._pause(pause_ms / 1000)

    def _read_value(self, step: AnyStep, row: StepRecord) -> dict[str, object] | None:
        """Return the value of a step that is over, None if it is not. Raises StepFailed."""
        if row.status in {"done", "skipped"} or (row.status == "failed" and step.may_fail):
            return json.decode(row.output, type=dict[str, object])
        if row.status == "failed":
            raise self._failure(row.path, row.error)
        return None

    async def _record_value(self, row: StepRecord, value: dict[str, object]) -> dict[str, object]:
        """Note the value of a step. The next transaction is not awaited: nothing that follows is
        durable before it."""
        clean = workflow_run.mask_secrets(value, self._secrets)
        output = json.encode(clean)
        self._bytes += len(output)
        if len(output) > RESULT_BYTES_MAX or self._bytes > RUN_BYTES_MAX:
            most = RESULT_BYTES_MAX if len(output) > RESULT_BYTES_MAX else RUN_BYTES_MAX
            whose = "the result" if most == RESULT_BYTES_MAX else "with its result, the run"
            error = f"{whose} has more than {most:,} bytes; let the step return less"
            await self._put(replace(row, status="failed", error=error))
            raise self._failure(row.path, error)
        self._post(replace(row, status="done", output=output, error=""))
        return json.decode(output, type=dict[str, object])

    async def _record_failure(
        self, step: AnyStep, row: StepRecord, end: StepOutcome
    ) -> dict[str, object]:
        """Note the failure of a step, and go on if it may fail. Raises StepFailed."""
        error = self._mask_error(end.error)
        value = workflow_run.failed_value(error, self._mask_error(str(end.value.get("text", ""))))
        await self._put(replace(row, status="failed", error=error, output=json.encode(value)))
        if step.may_fail:
            return value
        raise self._failure(row.path, error)

    async def _wait_for_decision(self, row: StepRecord) -> StepRecord:
        """Wait for a decision or an answer, and return the row after it."""
        future: asyncio.Future[StepRecord] = asyncio.get_running_loop().create_future()
        self._parked[row.path] = future
        try:
            await self._put(replace(row, error=self._mask_error(row.error)))
            if self._failed is not None:
                self._give(row.path, "fail")
            self._state()
            return await future
        finally:
            self._parked.pop(row.path, None)
            self._state()

    def _give(self, path: str, decision: str) -> asyncio.Future[None] | None:
        """Note a decision or an answer, with which the step goes on once it is durable. Return the
        future of the journal, None if the step does not wait for a person."""
        future = self._parked.pop(path, None)
        if future is None:
            return None
        row = self._rows[path]
        if row.status == "needs_answer":
            row = workflow_run.with_answer(row, decision, self._secrets)
        else:
            row = workflow_run.with_decision(row, decision)
        posted = self._post(row)

        def durable(_: object) -> None:
            if not (posted.cancelled() or posted.exception() or future.done()):
                future.set_result(row)

        posted.add_done_callback(durable)
        self._state()
        return posted

    async def _elicit(self, step: ElicitStep, row: StepRecord, scope: Scope) -> dict[str, object]:
        """Ask the client that waits, if it can be asked, and wait for the answer of anybody. Raises
        StepFailed, ExpressionError."""
        if row.status != "needs_answer":
            await self._unless_halted()
            text = self._clean(
                str(await self._evaluator.replace_expressions(step.message, scope.variables))
            )
            row = workflow_run.build_elicit_row(row, step, text, time.time())
        question = json.decode(row.output, type=Elicitation)
        self._progress(step)
        if self.asks and self.order:
            asking = self.ask_client(row.path, self.record.owner, self.host, self.order)
            self.asking[row.path] = asyncio.ensure_future(asking)
        left_s = None if question.until is None else max(question.until - time.time(), 0.0)
        try:
            async with asyncio.timeout(left_s):
                row = await self._wait_for_decision(row)
        except TimeoutError:
            row = self._rows[row.path]
            if row.status == "needs_answer":
                return await self._record_failure(step, row, workflow_run.build_timeout(step))
            await self._put(row)  # the answer was in time
        finally:
            if (task := self.asking.pop(row.path, None)) is not None:
                task.cancel()
        self._bytes += len(row.output)
        return self._read_value(step, row) or {}

    async def ask_client(
        self, path: str, owner: RunOwner, host: OrderHost, order: int, *, cancels: bool = True
    ) -> None:
        """Have the client of an order answer. If it cannot, the step waits for somebody else, and
        without `cancels` also if its user puts the question aside."""
        question, run = json.decode(self._rows[path].output, type=Elicitation), self.record.id
        params = json.encode(question.params)
        try:
            done = await host.ask(owner, "elicit", arguments=params, run=run, order=order)
        finally:
            self.asking.pop(path, None)
            self._tell()
        answer = bytes(done.result).decode()
        if not done.trouble and (cancels or workflow_run.action(answer) != "cancel"):
            self._give(path, answer)

    async def _harmless(self, step: AnyStep) -> bool:
        """Whether a step that was interrupted may run again, by its tool if need be."""
        harmless = workflow_run.harmless(step)
        if harmless is not None or not isinstance(step, CallStep):
            return bool(harmless)
        done = HostDone(call=0, trouble="unavailable", lost=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DESCRIBE_S_MAX):
                while done.lost:
                    done = await self.host.ask(
                        self.record.owner, "describe", name=step.tool, server=step.server
                    )
        if done.trouble:
            await self._unless_halted()
        return workflow_run.repeatable(done)

    # Attempts

    async def _attempt(
        self, step: AnyStep, row: StepRecord, scope: Scope
    ) -> tuple[StepOutcome, StepRecord]:
        """Note that an attempt begins, and make it. Raises ExpressionError."""
        await self._unless_halted()
        if message := workflow_run.lost_secret(step, self.workflow.secrets, self._inputs):
            raise ExpressionError(message)
        self.busy += 1
        try:
            if isinstance(step, WaitStep):
                return await self._wait(step, row, scope), replace(row, attempt=1)
            filled = await self._evaluate_input(step, scope)
            row = replace(row, attempt=row.attempt + 1, status="running", error="")
            await self._put(row)
            self._progress(step)
            try:
                async with asyncio.timeout(self._limit_s(step)):
                    return await self._make_attempt(step, filled, row), row
            except TimeoutError:
                return workflow_run.build_timeout(step), row
        finally:
            self.busy -= 1

    async def _unless_halted(self) -> None:
        if self.halts:
            await asyncio.get_running_loop().create_future()  # until this process ends

    async def _evaluate_input(self, step: AnyStep, scope: Scope) -> object:
        """Return what an attempt is made with. Raises ExpressionError."""
        match step:
            case CallStep(arguments=value) | CodeStep(arguments=value):
                return await self._evaluator.replace_expressions(value, scope.variables)
            case AiStep(prompt=text):
                return await self._evaluator.replace_expressions(text, scope.variables)
            case _:
                return None

    async def _make_attempt(self, step: AnyStep, filled: object, row: StepRecord) -> StepOutcome:
        """Make an attempt and return its end."""
        match step:
            case CallStep(tool=tool, server=server):
                kind: Kind = "server" if server else "call"
                done = await self._ask(step, kind, filled, row, name=tool, server=server)
                return workflow_run.of_call(done)
            case CodeStep(code=code, language=language):
                arguments = {"code": code, "language": language, "args": filled}
                done = await self._ask(step, "code", arguments, row)
                return workflow_run.of_code(done)
            case AiStep(schema=schema):
                raw_schema = None if schema is None else Raw(json.encode(schema))
                text = filled if isinstance(filled, str) else json.encode(filled).decode()
                try:
                    answer = await self._complete(text, raw_schema, self)
                except NoAnswer as error:
                    lost = error.lost
                    return StepOutcome({}, "error", str(error), True, lost=lost, down=lost)
                return StepOutcome(expressions.step_result(codec.value(answer)), repeatable=True)
            case _:
                raise AssertionError(step)

    async def _ask(
        self, step: AnyStep, kind: Kind, arguments: object, row: StepRecord, *, name: str = "",
        server: str = "",
    ) -> HostDone:  # fmt: skip
        meta = {KEY: row.key}
        if self.trace is not None:
            meta[mcp_headers.TRACEPARENT] = self.trace.traceparent(row.path)
        return await self.host.ask(
            self.record.owner, kind, name=name, server=server, arguments=json.encode(arguments),
            meta=json.encode(meta), run=self.record.id, order=self.order,
            timeout_ms=step.timeout_ms,
        )  # fmt: skip

    async def _wait(self, step: WaitStep, row: StepRecord, scope: Scope) -> StepOutcome:
        """Wait until the time that the journal has. Raises ExpressionError."""
        if row.status == "waiting":
            due = json.decode(row.output, type=float)
        else:
            due = await self._due(step, scope)
            await self._put(replace(row, attempt=1, status="waiting", output=json.encode(due)))
        self.busy -= 1
        self._waiting.add(row.path)
        self._state()
        self._progress(step)
        try:
            await self._pause(max(due - time.time(), 0.0))
        finally:
            self.busy += 1
            self._waiting.discard(row.path)
            self._state()
        return StepOutcome(expressions.step_result(None))

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises StepFailed as soon as the run fails."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._fails.wait()
        if self._failed is not None:
            raise self._failed

    async def _due(self, step: WaitStep, scope: Scope) -> float:
        """Return the seconds since the epoch at which a pause ends. Raises ExpressionError."""
        value = await self._evaluator.replace_expressions(step.pause or step.until, scope.variables)
        if step.pause:
            return time.time() + workflow_run.pause_s(value)
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(str(value))
            return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        raise ExpressionError("'until' is not a time such as 2026-12-01T08:00:00Z")

    def _limit_s(self, step: AnyStep) -> float | None:
        """Return the seconds after which an attempt is given up; a front is to do so before."""
        if not step.timeout_ms:
            return None
        beyond = ANSWER_S_MAX if isinstance(step, CallStep | CodeStep) else 0.0
        return step.timeout_ms / 1000 + beyond

    # State

    def _failure(self, path: str, error: str) -> StepFailed:
        """Note that the run fails: steps that wait for a decision fail too, and pauses end."""
        if self._failed is None:
            self._failed = StepFailed(path, self._mask_error(error))
            self._fails.set()
            for each in list(self._parked):
                self._give(each, "fail")
        return self._failed

    def _clean(self, text: str) -> str:
        return str(workflow_run.mask_secrets(text, self._secrets))

    def _mask_error(self, text: str) -> str:
        return self._clean(text)[: workflow_run.ERROR_CHARACTERS_MAX]

    def _post(self, row: StepRecord) -> asyncio.Future[None]:
        self._rows[row.path] = row
        self.host.send_progress(self.order, row.path, row.status)
        return self._journal.put_step(self.record.id, row)

    async def _put(self, row: StepRecord) -> None:
        """Note the state of a step and wait until it is durable."""
        await asyncio.shield(self._post(row))

    def _state(self) -> None:
        """Report what the run as a whole does now."""
        if self.record.ended:
            return
        if len(self._parked) + len(self._waiting) < self._branches:
            self._set("running")
        elif self._parked:
            row = self._rows[next(iter(self._parked))]
            status, text = workflow_run.waits_for(row)
            self._set(status, row.path, text)
        else:
            self._set("waiting", next(iter(self._waiting)))

    def _set(self, status: RunStatus, step: str = "", error: str = "") -> None:
        if (status, step) != (self.record.status, self.record.step):
            self.record = replace(self.record, status=status, step=step, error=error)
            self._journal.set_run(self.record)
            self._tell()

    def _tell(self) -> None:
        self.changed()
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._settled = None

    def _progress(self, step: AnyStep) -> None:
        if step.path not in self._begun:
            self._begun.add(step.path)
            name = step.id or step.path
            text = f"step {len(self._begun)} of {self._total}: {name}"
            for tell in list(self.watchers):
                tell(len(self._begun), self._total, text)
