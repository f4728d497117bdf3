"""Tasks of the scripted server: the core ones of 2025-11-25 and the extension of 2026-07-28."""

from tests.fakes.stdio_wire import TASKS, Json, Refused, Wire, content

CREATED = "2026-01-01T00:00:00Z"
ENDED = {"completed", "failed", "cancelled"}


class Tasks(Wire):
    """`tasks`: by their id, each with what it results in under `result`."""

    def begin_tasks(self) -> None:
        self.tasks: dict[str, Json] = {}
        self.task_results: dict[str, object] = {}
        """Calls of `tasks/result` that wait, by task."""

    def tool_task(self, number: object, ms: float = 50, text: str = "done") -> Json:
        """Work that is a task if the client can have one."""
        if "task" not in self.params and not self.modern:
            return content(text)
        if self.modern and TASKS not in self.capabilities_of_client.get("extensions", {}):
            need: Json = {"extensions": {TASKS: {}}}
            raise Refused(-32021, "the client has no tasks", {"requiredCapabilities": need})
        task = f"task-{number}"
        modern = self.modern
        self.tasks[task] = {"status": "working", "result": None}
        self.later(ms, lambda: self.task_ends(task, "completed", content(text), modern=modern))
        shown = self.shown(task, modern=modern)
        return {"resultType": "task", **shown} if modern else {"task": shown}

    def tasked(self, number: object, method: str, params: Json) -> Json | None:
        """A request about tasks."""
        if method == "tasks/list" and not self.modern:
            return {"tasks": [self.shown(task, modern=False) for task in self.tasks]}
        task: str = params.get("taskId", "")
        if task not in self.tasks:
            raise Refused(-32602, f"no task {task}")
        if method == "tasks/cancel":
            self.task_ends(task, "cancelled", content("cancelled"), modern=self.modern)
        if method == "tasks/result" and not self.modern:
            self.task_results[task] = number
            self.give_result(task)
            return None
        if method in {"tasks/get", "tasks/cancel", "tasks/update"}:
            return self.shown(task, modern=self.modern)
        raise Refused(-32601, f"unknown method {method}")

    def task_ends(self, task: str, status: str, result: Json, *, modern: bool) -> None:
        if self.tasks[task]["status"] in ENDED:
            return
        self.tasks[task] = {"status": status, "result": result}
        shown = self.shown(task, modern=modern)
        if not modern:
            self.notify("notifications/tasks/status", **shown)
            self.give_result(task)
        for of, wanted in getattr(self, "listeners", {}).items() if modern else ():
            if task in wanted.get("taskIds", ()):
                self.notify("notifications/tasks", of=of, **shown)

    def give_result(self, task: str) -> None:
        """Answer who waits for the result of this task, if there is one."""
        if self.tasks[task]["status"] in ENDED and task in self.task_results:
            self.reply(self.task_results.pop(task), result=self.tasks[task]["result"])

    def shown(self, task: str, *, modern: bool) -> Json:
        found = self.tasks[task]
        whole: Json = {
            "taskId": task,
            "status": found["status"],
            "createdAt": CREATED,
            "lastUpdatedAt": CREATED,
            "ttlMs" if modern else "ttl": 60_000,
            "x-task": 1.0,
        }
        if modern and found["status"] == "completed":
            whole["result"] = found["result"]
        return whole
