"""Workflows of the engine: orders about them, runs under way, runs of an engine that ended.

Owns: which runs go on, whose turn it is, who sees a run, the age of ended ones. Never: the steps of
a run (`workflow_run_io`), words and decisions (`workflow_run`), rows (`journal`).
"""

import asyncio
import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from metamcp_worker.cel.expressions_io import Evaluator
from metamcp_worker.engine import models_io, workflow_run
from metamcp_worker.engine.definition import parse
from metamcp_worker.engine.host import FrontLinks, OrderHost
from metamcp_worker.engine.models_io import Models
from metamcp_worker.engine.run_journal import Executor, JournalError, RunJournal
from metamcp_worker.engine.workflow import Workflow, duration_ms, graph, with_defaults, wrong_inputs
from metamcp_worker.engine.workflow_run import (
    OPEN,
    RUNS_SHOWN_MAX,
    STEPS_SHOWN_MAX,
    GraphQuestion,
    RunAnswer,
    RunDecision,
    RunList,
    RunQuestion,
    RunRecord,
    StepRecord,
)
from metamcp_worker.engine.workflow_run_io import RunningWorkflow, RunTrace
from metamcp_worker.http import mcp_headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import (
    PARKED,
    PARKED_SHOWN_MAX,
    STEP_SHOWN_CHARACTERS_MAX,
    EngineOn,
    EngineOrder,
    OrderDone,
    ReportedRun,
    RunOrder,
    WorkflowGraph,
)
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.runtime.loop import BackgroundTasks

log = logging.getLogger("metamcp.engine")
T = TypeVar("T")
Tell = Callable[[float, float, str], None]

OPEN_MAX = 10_000
"""Maximum runs that have not ended; each takes some kilobytes of memory."""
OPEN_S_MAX = 35.0
"""Seconds that an order waits for the journal, which an engine before this one may still have."""
LOOK_S = 1.0
"""Seconds between two looks at a run that somebody waits for, and that another engine may have."""
SWEEP_S = 3600.0
"""Seconds between two searches for runs that are too old."""


class OrderRefused(MetaMCPError):
    """Raised for an order that is not carried out. The text is a sentence for its client."""


class Workflows:
    """`configure` comes first, and again with other settings. `failed`: called when the journal
    cannot be written; then the process is to end, and the next one goes on."""

    def __init__(
        self,
        fronts: FrontLinks,
        models: Models,
        chores: BackgroundTasks,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._fronts = fronts
        self._models = models
        self._chores = chores
        self._failed = failed
        self._spec = EngineOn(journal="")
        self._journal: Executor | None = None
        self._opened = asyncio.Event()
        self._evaluator = Evaluator()
        self._open: dict[str, RunningWorkflow] = {}
        self._new: set[str] = set()
        """Runs whose row may not be there yet."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._halts = False
        self._due = False

    def configure(self, spec: EngineOn) -> None:
        """Begin, or go on with other settings."""
        self._spec = spec
        if self._journal is None and (spec.journal or spec.database):
            self._journal = _executor(spec, self._failed)
            self._chores.begin(self._live(self._journal))
        self._schedule_next()

    def halt(self) -> None:
        """Begin no further step."""
        self._halts = True
        for run in self._open.values():
            run.halts = True

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return any(run.busy for run in self._open.values())

    @property
    def statuses(self) -> dict[str, int]:
        """Runs that have not ended, by status."""
        return dict(Counter(run.record.status for run in self._open.values()))

    @property
    def parked_runs(self) -> tuple[ReportedRun, ...]:
        """The newest runs that wait for a person, the oldest of them first."""
        records = [run.record for run in self._open.values() if run.record.status in PARKED]
        return tuple(
            ReportedRun(run.id, run.name, run.status, run.step[:STEP_SHOWN_CHARACTERS_MAX])
            for run in records[-PARKED_SHOWN_MAX:]
        )

    @property
    def trouble(self) -> str:
        """Sentence why runs cannot be used yet; empty if they can."""
        return "" if self._journal is None else self._journal.trouble

    async def close(self) -> None:
        """Let go of all runs; the next engine goes on with them."""
        for run in self._open.values():
            if run.trace is not None:
                run.trace.sends = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._evaluator.close()
        if self._journal is not None:
            self._journal.close()

    # Orders

    async def run(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/run`: begin a run and wait for its end as long as is wanted."""
        arguments = _arguments(RunOrder, order)
        wait_s = _to_seconds(arguments.wait)
        data, workflow = self._definition(order, arguments)
        if problem := wrong_inputs(workflow, arguments.inputs):
            raise OrderRefused(f"The workflow '{workflow.name}' cannot run: {problem}.")
        journal = await self._ready()
        if len(self._open) >= OPEN_MAX:
            raise OrderRefused(f"{OPEN_MAX:,} runs have not ended; cancel some of them.")
        inputs = with_defaults(workflow, codec.value(arguments.inputs))
        stored = {name: value for name, value in inputs.items() if name not in workflow.secrets}
        record = RunRecord(
            id=uuid.uuid4().hex[:16], name=workflow.name, hash=hashlib.sha256(data).hexdigest(),
            owner=order.owner, inputs=json.encode(stored), created=time.time(),
        )  # fmt: skip
        run = self._under_way(record, workflow, inputs, host, journal)
        run.order, run.asks, run.samples = order.id, order.asks, order.samples
        if (context := mcp_headers.parsed_traceparent(order.trace)) is not None:
            run.trace = RunTrace(context, record, host.send_span)
        self._open[record.id] = run
        self._new.add(record.id)
        noted = journal.put_run(record, data)
        noted.add_done_callback(lambda _: self._on_run_stored(record.id))
        await asyncio.shield(noted)
        self._start(run, resumes=False)
        try:
            if wait_s != 0.0:
                await self._wait_for_run(run, tell, wait_s)
        finally:
            run.leave()
        return await self._describe_run(order, run.record, journal)

    async def status(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/status`."""
        journal = await self._ready()
        arguments = _arguments(RunQuestion, order)
        record = await self._find_visible_run(order, host, arguments.run, journal)
        if arguments.ask and order.asks and (run := self._open.get(record.id)) is not None:
            await self._ask_client(order, host, run)
            record = run.record
        while arguments.wait and record.status in OPEN:
            if (run := self._open.get(record.id)) is not None:
                await asyncio.wait([run.ended], timeout=LOOK_S)
            else:
                await asyncio.sleep(LOOK_S)
            record = await self._find_visible_run(order, host, arguments.run, journal)
        return await self._describe_run(order, record, journal, failure=False)

    async def _ask_client(self, order: EngineOrder, host: OrderHost, run: RunningWorkflow) -> None:
        """Ask a client what its run waits for, unless another one is asked already."""
        for row in run.parked_steps:
            if row.status != "needs_answer" or row.path in run.asking:
                continue
            asking = run.ask_client(row.path, order.owner, host, order.id, cancels=False)
            task = run.asking[row.path] = asyncio.ensure_future(asking)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()

    async def cancel(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/cancel`: calls under way are dropped."""
        journal = await self._ready()
        record = await self._find_visible_run(
            order, host, _arguments(RunQuestion, order).run, journal
        )
        if record.status not in OPEN:
            raise OrderRefused(f"Run {record.id} has ended already: it is {record.status}.")
        record = await self._changed_by(record, "", None, journal)
        return await self._describe_run(order, record, journal, failure=False)

    async def decide(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/decide`: the run goes on by itself, also after a crash."""
        arguments = _arguments(RunDecision, order)
        journal = await self._ready()
        record = await self._find_visible_run(order, host, arguments.run, journal)
        await self._find_parked_step(record, arguments.step, journal, answer=False)
        record = await self._changed_by(record, arguments.step, arguments.decision, journal)
        return await self._describe_run(order, record, journal, failure=False)

    async def answer(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/answer`: the first answer counts, and the run goes on by itself."""
        arguments = _arguments(RunAnswer, order)
        journal = await self._ready()
        record = await self._find_visible_run(order, host, arguments.run, journal)
        row = await self._find_parked_step(record, arguments.step, journal, answer=True)
        if arguments.action == "accept" and (
            problem := workflow_run.wrong_answer(row, arguments.content)
        ):
            raise OrderRefused(f"The answer is wrong: {problem}.")
        run = self._open.get(record.id) if arguments.wait else None
        waits = run is not None and not run.order
        if run is not None and waits:
            run.order, run.host, run.asks, run.samples = order.id, host, False, False
        try:
            record = await self._changed_by(record, arguments.step, arguments.text, journal)
            if run is not None:
                await self._wait_for_run(run, tell, None)
                record = run.record
        finally:
            if run is not None and waits:
                run.leave()
        return await self._describe_run(order, record, journal, failure=arguments.wait)

    async def runs(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/runs`: the latest runs that the client sees."""
        arguments = _arguments(RunList, order)
        if not 1 <= arguments.limit <= RUNS_SHOWN_MAX:
            raise OrderRefused(
                f"The arguments are wrong: limit is a number from 1 to {RUNS_SHOWN_MAX}."
            )
        journal = await self._ready()
        owner = None if host.operator else order.owner
        records = await journal.runs(arguments.limit, owner, arguments.status)
        lines = [workflow_run.line(record) for record in records]
        rendered = [workflow_run.describe_run(record) for record in records]
        text = "\n".join(lines) or "No run is recorded."
        return OrderDone(id=order.id, text=text, structured=Raw(json.encode({"runs": rendered})))

    async def workflows(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflows`: definitions with their inputs."""
        entries: list[dict[str, object]] = []
        for data in self._spec.definitions.get(order.owner.workspace, {}).values():
            workflow, _ = parse(codec.value(data))
            if workflow is not None:
                inputs = {
                    name: workflow_input.schema
                    | (
                        {}
                        if workflow_input.is_required
                        else {"default": None if workflow_input.secret else workflow_input.default}
                    )
                    | ({"secret": True} if workflow_input.secret else {})
                    for name, workflow_input in workflow.inputs.items()
                }
                about = {"name": workflow.name, "description": workflow.description}
                entries.append({**about, "inputs": inputs})
        lines = [f"{entry['name']}: {entry['description']}" for entry in entries]
        text = "\n".join(lines) or "No workflow is configured; name files with 'workflows'."
        return OrderDone(
            id=order.id, text=text, structured=Raw(json.encode({"workflows": entries}))
        )

    async def graph(self, order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        """Carry out `workflow/graph`: the steps of a workflow, or of a run as it began."""
        arguments = _arguments(GraphQuestion, order)
        if bool(arguments.name) is bool(arguments.run):
            raise OrderRefused("The arguments are wrong: give either 'name' or 'run'.")
        if arguments.name:
            _, workflow = self._definition(order, RunOrder(name=arguments.name))
        else:
            journal = await self._ready()
            run = await self._find_visible_run(order, host, arguments.run, journal)
            parsed, _ = parse(codec.value(await journal.definition(run.hash)))
            if parsed is None:
                raise OrderRefused(
                    f"This version of MetaMCP cannot read the definition of {run.id}."
                )
            workflow = parsed
        drawn = WorkflowGraph(
            name=workflow.name, description=workflow.description, steps=graph(workflow.steps)
        )
        return OrderDone(id=order.id, text=workflow.name, structured=Raw(json.encode(drawn)))

    # Runs

    def has(self, run: str) -> bool:
        return run in self._open

    async def take(self, run: str) -> None:
        journal, under_way = self._journal, self._open.get(run)
        assert journal is not None
        try:
            if under_way is None and (record := await journal.run(run)) and not record.ended:
                under_way = await self._gone_on_with(record, journal)
                self._schedule_next()
        except Exception as error:
            self._failed(error)
            raise
        if under_way is not None:
            await asyncio.shield(under_way.ended)

    async def obey(self, run: str, step: str, decision: str | None) -> None:
        running = self._open[run]
        if decision is not None:
            await running.decide(step, decision)
            return
        if (task := self._tasks.get(run)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if not running.record.ended:
            await running.end("cancelled")
        self._open.pop(run, None)

    async def _changed_by(
        self, run: RunRecord, step: str, decision: str | None, journal: Executor
    ) -> RunRecord:
        """Return a run after a decision or an answer, or without one after its end. Raises
        Refused."""
        if (running := self._open.get(run.id)) is not None:
            await self.obey(run.id, step, decision)
            return running.record
        if not await journal.pass_on(run.id, step, decision):
            raise OrderRefused(
                f"The engine that has run {run.id} does not answer; try again later."
            )
        return await journal.run(run.id) or run

    async def _live(self, journal: Executor) -> None:
        """Open the journal, go on with the runs in it, and forget old ones. Raises JournalError."""
        await journal.open(self._spec.sync, self)
        for record in await journal.open_runs():
            await self._gone_on_with(record, journal)
        self._opened.set()
        self._schedule_next()
        while True:
            await asyncio.shield(journal.forget(time.time() - self._spec.keep_s))
            await asyncio.sleep(SWEEP_S)

    async def _gone_on_with(self, record: RunRecord, journal: Executor) -> RunningWorkflow | None:
        """Go on with a run of an engine that ended; return None if that cannot be."""
        workflow, _ = parse(codec.value(await journal.definition(record.hash)))
        if workflow is None:
            error = "this version of MetaMCP cannot read its definition; run it again"
            failed = replace(record, status="failed", error=error, ended=time.time())
            await asyncio.shield(journal.set_run(failed))
            return None
        inputs = with_defaults(workflow, codec.value(record.inputs))
        run = self._under_way(record, workflow, inputs, OrderHost(self._fronts), journal)
        self._open[record.id] = run
        if record.status != "queued":
            self._start(run, resumes=True, at_once=True)
        return run

    def _under_way(
        self, record: RunRecord, workflow: Workflow, inputs: dict[str, object], host: OrderHost,
        journal: Executor,
    ) -> RunningWorkflow:  # fmt: skip
        run = RunningWorkflow(
            record, workflow, inputs, host, journal, self._evaluator, self._complete
        )
        run.halts = self._halts
        run.changed = self._schedule_next
        return run

    def _on_run_stored(self, run: str) -> None:
        self._new.discard(run)
        self._schedule_next()

    def _start(self, run: RunningWorkflow, *, resumes: bool, at_once: bool = False) -> None:
        """Let a run go on as soon as there is a place. `resumes`: its journal may have steps."""
        under_way = sum(open_run.record.status == "running" for open_run in self._open.values())
        if run.record.id in self._tasks or (under_way >= self._spec.runs_max and not at_once):
            return
        task = asyncio.get_running_loop().create_task(self._execute_run(run, resumes=resumes))
        self._tasks[run.record.id] = task
        run.begin()

    async def _execute_run(self, run: RunningWorkflow, *, resumes: bool) -> None:
        assert self._journal is not None
        number = run.record.id
        try:
            await run.run(await self._journal.steps(number) if resumes else ())
            self._open.pop(number, None)
        except JournalError as error:
            self._failed(error)
        except Exception as error:  # a fault of ours is not to end all runs at each start
            log.exception("run %s has a fault of the engine", number)
            await run.end("failed", error=f"the engine has a fault: {type(error).__name__}")
            self._open.pop(number, None)
        finally:
            self._tasks.pop(number, None)
            self._schedule_next()

    def _schedule_next(self) -> None:
        """Begin runs that wait for a place, soon."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        if not self._halts and self._opened.is_set():
            for run in list(self._open.values()):
                if run.record.status == "queued" and run.record.id not in self._new:
                    self._start(run, resumes=True)

    async def _complete(self, prompt: str, schema: Raw | None, run: RunningWorkflow) -> Raw:
        return await models_io.complete(
            prompt, schema, run.record.owner, run.order, run.host, self._models,
            samples=run.samples,
        )  # fmt: skip

    async def _wait_for_run(self, run: RunningWorkflow, tell: Tell, within_s: float | None) -> None:
        """Wait for the end of a run, or until it needs somebody else, and report its progress."""
        run.watchers.add(tell)
        try:
            async with asyncio.timeout(within_s):
                while (run.record.status not in PARKED or run.asking) and not run.ended.done():
                    await run.wait_for_change()
        except TimeoutError:
            pass
        finally:
            run.watchers.discard(tell)

    # Answers

    async def _ready(self) -> Executor:
        assert self._journal is not None
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                await self._journal.tried.wait()
                if self.trouble:
                    raise OrderRefused(f"{self.trouble[0].upper()}{self.trouble[1:]}.")
                await self._opened.wait()
        except TimeoutError:
            raise OrderRefused("The journal of workflows is not open; the log says why.") from None
        return self._journal

    def _definition(self, order: EngineOrder, arguments: RunOrder) -> tuple[bytes, Workflow]:
        if (arguments.definition is UNSET) == (not arguments.name):
            raise OrderRefused("The arguments are wrong: give either 'name' or 'definition'.")
        if isinstance(arguments.definition, Raw):
            data = bytes(arguments.definition)
        else:
            definitions = self._spec.definitions.get(order.owner.workspace, {})
            if arguments.name not in definitions:
                names = ", ".join(sorted(definitions)[:20]) or "none"
                raise OrderRefused(
                    f"No workflow is named '{arguments.name[:64]}'; there are: {names}."
                )
            data = bytes(definitions[arguments.name])
        workflow, problems = parse(codec.value(data))
        if workflow is None:
            faults = "; ".join(
                f"{problem.path or 'it'} {problem.message}" for problem in problems[:10]
            )
            raise OrderRefused(f"The definition is wrong: {faults}.")
        return data, workflow

    async def _find_visible_run(
        self, order: EngineOrder, host: OrderHost, run: str, journal: Executor
    ) -> RunRecord:
        """Return a run that the client may see. Raises Refused."""
        under_way = self._open.get(run)
        record = under_way.record if under_way is not None else await journal.run(run)
        if record is None or not (host.operator or workflow_run.sees(order.owner, record)):
            raise OrderRefused(f"No run has the id '{run[:64]}'.")
        return record

    async def _find_parked_step(
        self, run: RunRecord, step: str, journal: Executor, *, answer: bool
    ) -> StepRecord:
        """Return a step that waits for an answer, or else for a decision. Raises Refused."""
        if (under_way := self._open.get(run.id)) is not None:
            rows = under_way.parked_steps
        else:
            rows = await journal.steps(run.id, outputs=False) if run.status in OPEN else []
        status = "needs_answer" if answer else "needs_decision"
        parked = {row.path: row for row in rows if row.status == status}
        if step not in parked:
            others = f"; these do: {', '.join(parked)}" if parked else ""
            noun = "an answer" if answer else "a decision"
            about = f"The step '{step[:100]}' of run {run.id}"
            raise OrderRefused(f"{about} does not wait for {noun}{others}.")
        return parked[step]

    async def _describe_run(
        self, order: EngineOrder, run: RunRecord, journal: Executor, *, failure: bool = True
    ) -> OrderDone:
        steps = await journal.steps(run.id, STEPS_SHOWN_MAX, outputs=False)
        done = workflow_run.answer(order.id, run, steps)
        return (
            done if failure else OrderDone(id=done.id, text=done.text, structured=done.structured)
        )


def catch_refusals(
    work: Callable[[EngineOrder, OrderHost, Tell], Awaitable[OrderDone]],
) -> Callable[[EngineOrder, OrderHost, Tell], Awaitable[OrderDone]]:
    """Return the handler of an order, whose refusals are its failure."""

    async def handler(order: EngineOrder, host: OrderHost, tell: Tell) -> OrderDone:
        try:
            return await work(order, host, tell)
        except (OrderRefused, JournalError, codec.Malformed) as error:
            return OrderDone(id=order.id, text=str(error), failed=True)

    return handler


def _executor(spec: EngineOn, failed: Callable[[BaseException], None]) -> Executor:
    if not spec.database:
        return RunJournal(spec.journal, failed)
    from metamcp_worker.engine.dbos_executor import DbosExecutor  # 60 MiB, and an extra

    return DbosExecutor(spec.database, failed)


def _to_seconds(wait: bool | str) -> float | None:
    """Return how long to wait for the end of a run; None for any time. Raises OrderRefused."""
    if isinstance(wait, bool):
        return None if wait else 0.0
    if (wait_ms := duration_ms(wait)) is None:
        message = 'The arguments are wrong: wait is true, false or a duration such as "30s".'
        raise OrderRefused(message)
    return wait_ms / 1000


def _arguments(kind: type[T], order: EngineOrder) -> T:
    try:
        return codec.decode_as(kind, order.params)
    except codec.Malformed as error:
        raise OrderRefused(f"The arguments are wrong: {error}.") from None
