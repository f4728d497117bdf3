"""Handles of one key, tried by another: each is answered as one that nobody has, byte for byte."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import Struct

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw
from tests.live.test_middleware import line
from tests.live.test_owners import ABLE, made_key
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M60")]

CANARY = "canary-of-alice"
EXTRA = """
[gateway]
auth = "keys"
[endpoints.default]
namespace = "default"
builtins = ["workflows"]
results = { max = "8K" }
"""
RUN = {
    "name": "waits",
    "steps": [{"call": "old.echo", "with": {"text": CANARY}}, {"wait": "1h"}],
}
ASKABLE: dict[str, Any] = {**ABLE, "elicitation": {"form": {}}}
ACCEPT = {"action": "accept", "content": {"name": CANARY}}


class Kind(Struct, frozen=True):
    """Kind of handle. `make`: returns one of a client; `use`: the method and the parameters that
    use it; `good`: stands in what its owner gets."""

    era: str
    make: Callable[[Raw], str]
    use: Callable[[str], tuple[str, dict[str, Any]]]
    good: str


def called(client: Raw, tool: str, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if client.era == LEGACY and tool in ("old__task", "run_workflow"):
        params["task"] = {"ttl": 60_000}
    found: dict[str, Any] = client.result("tools/call", codec.dump(params))
    return found


def task(client: Raw) -> str:
    server = "old" if client.era == LEGACY else "new"
    found = called(client, f"{server}__task", ms=60_000, text=CANARY)
    return str(found.get("task", found)["taskId"])


def kept_result(client: Raw) -> str:
    found = called(client, "old__blob", kib=20)
    return str(found["_meta"]["io.metamcp/result"]["handle"])


def run(client: Raw) -> str:
    """A run that has come to its wait."""
    started = called(client, "run_workflow", definition=RUN, wait=False)["structuredContent"]
    handle = str(started["run"])

    def status() -> str:
        structured = called(client, "workflow_status", run=handle)["structuredContent"]
        return str(structured["status"])

    until(lambda: status() == "waiting", "the run waits")
    return handle


def run_as_task(client: Raw) -> str:
    return str(called(client, "run_workflow", definition=RUN)["task"]["taskId"])


def state(tool: str, **arguments: Any) -> Callable[[Raw], str]:
    return lambda client: str(called(client, tool, **arguments)["requestState"])


def brought(tool: str, key: str, **arguments: Any) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """The call that goes on with a state."""
    return lambda handle: ("tools/call", {
        "name": tool, "arguments": arguments, "requestState": handle,
        "inputResponses": {key: ACCEPT},
    })  # fmt: skip


def about(method: str) -> Callable[[str], tuple[str, dict[str, Any]]]:
    return lambda handle: (method, {"taskId": handle})


def tool(name: str, argument: str) -> Callable[[str], tuple[str, dict[str, Any]]]:
    return lambda handle: ("tools/call", {"name": name, "arguments": {argument: handle}})


KINDS = {
    "task": Kind(MODERN, task, about("tasks/get"), '"working"'),
    "task to cancel": Kind(MODERN, task, about("tasks/cancel"), '"cancelled"'),
    "task of a session": Kind(LEGACY, task, about("tasks/get"), '"working"'),
    "task of a session to cancel": Kind(LEGACY, task, about("tasks/cancel"), '"cancelled"'),
    "state of a server": Kind(
        MODERN, state("new__ask_rounds", n=1), brought("new__ask_rounds", "who", n=1), "1 rounds"
    ),
    "state of a parked call": Kind(
        MODERN, state("old__elicit"), brought("old__elicit", "k1"), CANARY
    ),
    "result": Kind(MODERN, kept_result, tool("read_result", "handle"), "xxx"),
    "result of a session": Kind(LEGACY, kept_result, tool("read_result", "handle"), "xxx"),
    "run": Kind(MODERN, run, tool("workflow_status", "run"), "waiting"),
    "run to cancel": Kind(MODERN, run, tool("cancel_workflow", "run"), "waits"),
    "run as a task": Kind(LEGACY, run_as_task, about("tasks/get"), '"working"'),
    "run as a task to cancel": Kind(LEGACY, run_as_task, about("tasks/cancel"), '"cancelled"'),
}  # fmt: skip


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "old": fake("--era", "legacy", "--tasks"),
        "new": fake("--era", "modern", "--tasks"),
    }
    cache = line("cache", "new/client", options={"read_only": False})
    with Gateway(servers, extra=f"{EXTRA}{cache}") as running:
        yield running


@pytest.fixture(scope="module")
def keys(gateway: Gateway) -> tuple[str, str]:
    """Of alice and of bob."""
    return made_key(gateway, "alice"), made_key(gateway, "bob")


def answered(client: Raw, kind: Kind, handle: str) -> bytes:
    """The answer to a use of a handle, without the handle."""
    method, params = kind.use(handle)
    answer = client.answer(method, codec.dump(params))
    said = bytes(answer.result) or bytes(answer.error)
    return said.replace(handle.removeprefix("metamcp-run-").encode(), b"")


def near(handle: str) -> str:
    """A handle of the same form that nobody has."""
    return f"{handle[:-3]}{'a' if handle[-3] != 'a' else 'b'}{handle[-2:]}"


@pytest.mark.parametrize("name", KINDS)
def test_a_foreign_handle_is_an_unknown_handle(
    gateway: Gateway, keys: tuple[str, str], name: str
) -> None:
    kind = KINDS[name]
    able = ASKABLE if kind.era == MODERN else {}
    alice, bob = (Raw(gateway.port, kind.era, "/mcp", able, key=key) for key in keys)
    handle = kind.make(alice)
    foreign = answered(bob, kind, handle)
    assert foreign == answered(bob, kind, near(handle))
    assert CANARY.encode() not in foreign
    assert kind.good not in foreign.decode()
    assert kind.good in answered(alice, kind, handle).decode()


def test_what_a_middleware_keeps_for_one_key_reaches_no_other(
    gateway: Gateway, keys: tuple[str, str]
) -> None:
    seen: list[str] = []
    for key, name in zip(keys, (CANARY, "bob"), strict=True):
        client = Raw(gateway.port, MODERN, "/mcp", {"experimental": {name: {}}}, key=key)
        found = {client.text("new__client") for _ in range(2)}
        assert len(found) == 1
        seen += found
    assert CANARY in seen[0]
    assert CANARY not in seen[1]
    assert "bob" in seen[1]
