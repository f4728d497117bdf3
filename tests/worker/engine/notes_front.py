"""A front for tests of the engine: two tools of a server `notes`, a client that may lend its model,
and code in the true sandbox."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from metamcp_worker.builtin_tools import code_tools, typescript_types
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import HostCall, HostReply
from metamcp_worker.ipc.engine_runs import HostDone, Kind, RunOwner
from tests.worker.sandbox.sandboxes import Front, text_result

NOTES = {"monday": "buy milk", "tuesday": "call the bank", "friday": "milk again"}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "list_notes": {"description": "Return the names of all notes.", "inputSchema": {}},
    "read_note": {
        "description": "Return the text of a note.",
        "inputSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}
OWNER = RunOwner(endpoint="default", name="somebody")


def listed(tool: str) -> dict[str, str]:
    said = str(DEFINITIONS[tool]["description"])
    return {"name": f"notes__{tool}", "server": "notes", "tool": tool, "description": said}


def result(asked: HostCall) -> HostReply:
    """What the server answers to a call of code."""
    given = codec.value(asked.arguments)
    if asked.name.endswith("list_notes"):
        said = text_result(codec.dump(list(NOTES)).decode())
    elif given.get("name") in NOTES:
        said = text_result(NOTES[given["name"]])
    else:
        return HostReply(run=asked.run, call=asked.call, error=f"no note {given.get('name')!r}")
    return HostReply(run=asked.run, call=asked.call, result=said)


class NotesFront:
    """`sandbox`: of code, None if there is none; `model`: answers for the client's own model, from
    params; `asked`: kinds and names of all that was asked; `silent`: kinds that get no answer;
    `troubles`: sentences by kind; `cancelled`: kinds whose asking was cancelled."""

    def __init__(self, sandbox: Front | None = None) -> None:
        self.sandbox = sandbox
        self.model: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self.troubles: dict[str, str] = {}
        self.cancelled: list[str] = []

    async def ask(
        self,
        owner: RunOwner,
        kind: Kind,
        *,
        name: str = "",
        arguments: bytes = b"{}",
        order: int = 0,
        consent: bool = False,
    ) -> HostDone:
        assert owner == OWNER
        self.asked.append((kind, name))
        if kind in self.silent:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(kind)
                raise
        if kind in self.troubles:
            return HostDone(call=1, trouble="error", error=self.troubles[kind])
        return await self.answer(kind, name, codec.value(arguments), order)

    async def answer(self, kind: Kind, name: str, given: Any, order: int) -> HostDone:
        match kind:
            case "tools":
                return done([listed(one) for one in ("list_notes", "read_note")])
            case "describe":
                if name.removeprefix("notes__") not in DEFINITIONS:
                    return HostDone(call=1, trouble="error", error=f"no tool {name}")
                tool = {"name": name, **DEFINITIONS[name.removeprefix("notes__")]}
                typed = typescript_types.declaration(name, codec.dump(tool))
                return done({"exposedName": name, "definition": tool, "typescript": typed})
            case "code":
                assert self.sandbox is not None
                ended = await asyncio.to_thread(self.sandbox.run, given["code"], answer=result)
                return done(code_tools.to_reply(ended).structured)
            case "sample":
                assert self.model is not None
                assert order > 0
                return done(self.model(given))
            case _:
                raise AssertionError(kind)


def done(value: object) -> HostDone:
    return HostDone(call=1, result=Raw(codec.dump(value)))
