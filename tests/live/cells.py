"""The four combinations of a client's era and a server's, over one gateway, and how one talks in
each of them."""

import json
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw, Stream

CELLS = {"L->L": (LEGACY, "old"), "M->M": (MODERN, "new"),
         "L->M": (LEGACY, "new"), "M->L": (MODERN, "old")}  # fmt: skip
cells = pytest.mark.parametrize("cell", CELLS)

ABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
"""A client that can be asked everything."""
FLAGS = ("--prompts", "--resources", "--logging", "--tools", "30", "--page", "7")


def servers(*more: str) -> dict[str, dict[str, Any]]:
    """One of each era, with these flags as well."""
    return {
        "old": fake("--era", "legacy", *FLAGS, *more),
        "new": fake("--era", "modern", *FLAGS, *more),
    }


def client(
    gateway: Gateway,
    cell: str,
    capabilities: dict[str, Any] | None = None,
    *,
    log_level: str | None = None,
) -> Raw:
    """Of the cell's era, on the endpoint of all servers."""
    return Raw(gateway.port, CELLS[cell][0], "/mcp", capabilities, log_level=log_level)


def called(cell: str, tool: str, **arguments: object) -> bytes:
    """The parameters of a call of this tool of the cell's server."""
    return codec.dump({"name": f"{CELLS[cell][1]}__{tool}", "arguments": arguments})


def text(asking: Raw, cell: str, tool: str, **arguments: object) -> str:
    """The first text that the tool answers."""
    return asking.text(f"{CELLS[cell][1]}__{tool}", **arguments)


def state(asking: Raw, cell: str) -> dict[str, Any]:
    """What the cell's server knows of its client."""
    found: dict[str, Any] = json.loads(text(asking, cell, "state"))
    return found


class Asked:
    """A call in the middle of which the client is asked one thing. `key`, `state`: of the question,
    as a modern client gets it."""

    def __init__(self, asking: Raw, params: bytes, raw_id: bytes = b"1") -> None:
        self._asking = asking
        self._params = params
        self._raw_id = raw_id
        self._stream: Stream | None = None
        self.key = ""
        self.state = ""

    def question(self) -> tuple[str, dict[str, Any]]:
        """The first question: its method and its params."""
        self._stream = self._asking.ask("tools/call", self._params, self._raw_id)
        message = self._stream.next()
        if self._asking.era != MODERN:
            assert message.method is not None, bytes(message.result or message.error)
            self._question_id = bytes(message.id)
            return message.method, codec.value(message.params)
        assert message.result, bytes(message.error)
        self._stream.close()
        result = codec.value(message.result)
        assert result["resultType"] == "input_required", result
        self.state = result.get("requestState", "")
        ((self.key, wanted),) = result["inputRequests"].items()
        return wanted["method"], wanted["params"]

    def answer(self, answer: dict[str, Any]) -> Any:
        """The result of the call, once this was answered."""
        if self._asking.era != MODERN:
            assert self._stream is not None
            self._asking.reply(self._question_id, codec.dump(answer))
            _, last = self._stream.until(self._raw_id)
            self._stream.close()
            assert last.result, bytes(last.error)
            return codec.value(last.result)
        more: dict[str, Any] = {"inputResponses": {self.key: answer}}
        if self.state:
            more["requestState"] = self.state
        params = {**codec.value(self._params), **more}
        return self._asking.result("tools/call", codec.dump(params))

    def close(self) -> None:
        """Go away."""
        if self._stream is not None:
            self._stream.close()
