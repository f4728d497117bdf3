"""The tasks extension of 2026-07-28: calls that go on after they were answered.

A task outlives its request, not its process. Its questions travel in `tasks/get`, the answers in
`tasks/update`.
"""

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import Field

from tests.fakes.everything_calls import (
    Context,
    answered,
    capabilities_of,
    missing_capability,
    modern,
)
from tests.fakes.everything_steps import STEPS, Ask, Json, Step, Turn, text

EXTENSION = "io.modelcontextprotocol/tasks"

#: How long a task can be asked for; longer than a run of the suite takes.
TTL_MS = 600_000
POLL_MS = 100

#: What a failing job takes, so that it is seen working before it fails.
JOB_S = 0.2
TERMINAL = ("completed", "failed", "cancelled")

TOOLS = (
    "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input",
    "test_tool_with_task",
)  # fmt: skip

#: What cannot be done without a task.
TASK_ONLY = ("failing_job", "protocol_error_job", "test_tool_with_task")


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] = Field(default_factory=dict[str, Any], alias="inputResponses")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass
class Task:
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    status: str = "working"
    created: str = field(default_factory=now)
    updated: str = field(default_factory=now)
    requests: Json = field(default_factory=dict[str, Any])
    answers: Json = field(default_factory=dict[str, Any])
    outcome: Json = field(default_factory=dict[str, Any])
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    complete: anyio.Event = field(default_factory=anyio.Event)

    def become(self, status: str, **outcome: Any) -> None:
        if self.status not in TERMINAL:
            self.status, self.updated, self.outcome = status, now(), outcome

    def shown(self) -> Json:
        return {
            "taskId": self.number,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttlMs": TTL_MS,
            "pollIntervalMs": POLL_MS,
        }


class Tasks:
    """All tasks of the process; they run in the task group of the server's lifespan."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    def register(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    # --- tools --------------------------------------------------------------------------------

    async def call(self, ctx: Context, name: str, arguments: Json) -> Json:
        seconds = float(arguments.get("seconds", 0))
        if not knows_tasks(ctx):
            if name in TASK_ONLY:
                raise without_tasks()
            return await self.finished(ctx, name, arguments, seconds)
        if name == "slow_compute" and not seconds:
            return computed(arguments)
        if name == "test_tool_with_task":
            result = await answered(ctx, STEPS[name], arguments)
            if result.get("resultType") == "input_required":
                return result
            return self.start(ctx, Task(), lambda _: result, JOB_S)
        step = STEPS.get(name, lambda turn: job(name, turn.arguments))
        return self.start(ctx, Task(), step, seconds or JOB_S, arguments)

    async def finished(self, ctx: Context, name: str, arguments: Json, seconds: float) -> Json:
        """The same without a task."""
        if name in STEPS:
            return await answered(ctx, STEPS[name], arguments)
        await anyio.sleep(seconds)
        return job(name, arguments)

    def start(
        self, ctx: Context, task: Task, step: Step, seconds: float, arguments: Json | None = None
    ) -> Json:
        self.tasks[task.number] = task
        turn = Turn(arguments or {}, capabilities_of(ctx))
        group: anyio.abc.TaskGroup = ctx.lifespan_context
        group.start_soon(self.run, task, step, turn, seconds)
        return {"resultType": "task", **task.shown()}

    async def run(self, task: Task, step: Step, turn: Turn, seconds: float) -> None:
        with task.scope:
            if step not in STEPS.values():
                await anyio.sleep(seconds)
            try:
                while isinstance(outcome := step(turn), Ask):
                    task.requests, task.answers = dict(outcome.requests), {}
                    task.complete = anyio.Event()
                    task.become("input_required")
                    await task.complete.wait()
                    task.become("working")
                    turn = Turn(turn.arguments, turn.capabilities, task.answers, outcome.state)
                task.become("completed", result=outcome)
            except MCPError as error:
                data = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
                task.become("failed", error=data)

    # --- methods ------------------------------------------------------------------------------

    def find(self, ctx: Context, params: TaskParams) -> Task:
        if not modern(ctx):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not knows_tasks(ctx):
            raise without_tasks()
        header = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if ctx.request is not None and header != params.task_id:
            raise MCPError(types.HEADER_MISMATCH, "Mcp-Name differs from params.taskId")
        if params.task_id not in self.tasks:
            raise MCPError(types.INVALID_PARAMS, f"There is no task {params.task_id}")
        return self.tasks[params.task_id]

    async def get(self, ctx: Context, params: TaskParams) -> Json:
        task = self.find(ctx, params)
        asked = {"inputRequests": task.requests} if task.status == "input_required" else {}
        return {**task.shown(), **asked, **task.outcome}

    async def update(self, ctx: Context, params: TaskParams) -> Json:
        task = self.find(ctx, params)
        for key, answer in params.input_responses.items():
            if task.requests.pop(key, None) is not None:
                task.answers[key] = answer
        if not task.requests:
            task.complete.set()
        return {}

    async def cancel(self, ctx: Context, params: TaskParams) -> Json:
        task = self.find(ctx, params)
        task.become("cancelled")
        task.scope.cancel()
        return {}


def knows_tasks(ctx: Context) -> bool:
    return modern(ctx) and EXTENSION in capabilities_of(ctx).get("extensions", {})


def without_tasks() -> MCPError:
    error = missing_capability(EXTENSION)
    error.error.data = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return error


def computed(arguments: Json) -> Json:
    return text(f"Computed {arguments.get('label', 'something')}")


def job(name: str, arguments: Json) -> Json:
    """What a job without questions comes to."""
    if name == "failing_job":
        return text("The job failed", error=True)
    if name == "protocol_error_job":
        raise MCPError(types.INTERNAL_ERROR, "The job broke down")
    return computed(arguments)
