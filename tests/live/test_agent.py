"""Agents and suggestions of the true engine process, with real servers behind the true gateway and
code in its sandboxes. Requests of the engine go to an endpoint of the gateway."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AiSettings, Done, EngineOn, HostDone, Kind, Method, Owner
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_code_mode import NOTES
from tests.worker.engine.engine_process import connected, engine
from tests.worker.engine.model_server import KEY, Fails, Line, ModelServer, Says, call, run

pytestmark = pytest.mark.live
BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])

EXTRA = '[code]\n\n[endpoints.default]\nnamespace = "default"\nexposure = "code"\n'
MILK = """
const names = await mcp.servers.notes.list_notes();
const texts = await Promise.all(names.map((name) => mcp.servers.notes.read_note({ name })));
return names.filter((_, at) => texts[at].includes("milk"));
"""


class EndpointHost:
    """Makes what the engine asks for at an endpoint with code mode."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(
        self, owner: Owner, kind: Kind, *, name: str = "", arguments: bytes = b"{}", order: int = 0
    ) -> HostDone:
        given: dict[str, Any] = codec.value(arguments)
        if kind == "tools":
            given = {"code": "return await mcp.tools(args.query)", "args": {"query": name}}
        tool = "describe_tool" if kind == "describe" else "run_code"
        named = {"name": name} if kind == "describe" else given
        answer = await asyncio.to_thread(lambda: self._client.call(tool, **named))
        result = answer["result"]
        if result["isError"] and kind != "code":
            return HostDone(call=0, trouble="error", error=result["content"][0]["text"])
        found = result["structuredContent"]
        found = found["value"] if kind == "tools" else found
        return HostDone(call=0, result=Raw(codec.dump(found)))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    servers = {"notes": NOTES, "other": fake()}
    with Gateway(servers, extra=EXTRA) as gateway, closing(Client(gateway.port, MODERN)) as found:
        yield found


def ordered(
    client: Client,
    folder: Path,
    method: Method,
    task: str,
    server: ModelServer | None = None,
    provider: Any = "openai",
) -> Done:
    """What the engine answers to an order for a task."""
    ai = None
    if server is not None:
        ai = AiSettings(provider=provider, url=server.base, model="small", key=KEY)

    async def main(path: str) -> Done:
        async with connected(path, EndpointHost(client)) as front:
            return await front.order(method, {"task": task})

    with engine(folder, EngineOn(journal=str(folder / "workflows.db"), ai=ai)) as running:
        return asyncio.run(main(running.path))


@pytest.mark.promise("M49")
@BOTH
def test_an_agent_works_with_real_servers_and_code(
    client: Client, tmp_path: Path, provider: str
) -> None:
    script: list[Line] = [
        Fails(429, headers={"Retry-After": "0"}), call("search_tools", query="text of a note"),
        call("describe_tool", name="notes__read_note"),
        run('return await mcp.call("notes__read_notes", {})'), run(MILK), call("finish"),
    ]  # fmt: skip
    with ModelServer(script) as server:
        done = ordered(client, tmp_path, "agent", "milk?", server, provider)
        told = [codec.dump(body["messages"][-1]).decode() for body in server.asked]
    found = codec.value(done.structured)
    assert (found["ended"], found["result"], found["steps"]) == (
        "finished", ["monday", "tuesday"], 5,
    )  # fmt: skip
    assert "notes__read_note: " in told[2]
    assert "function call(name:" in told[3]
    assert "did you mean notes__read_note" in told[4]


@pytest.mark.promise("M49")
def test_without_a_model_the_program_to_begin_with_runs(client: Client, tmp_path: Path) -> None:
    done = ordered(client, tmp_path, "agent", "list my notes")
    found = codec.value(done.structured)
    assert found["tools"][0]["name"] == "notes__list_notes"
    first = "\n".join(line for line in found["code"].splitlines() if "result1 =" in line)
    result = client.call("run_code", code=f"{first}\nreturn result1;")["result"]
    assert "monday" in result["structuredContent"]["value"]


@pytest.mark.promise("M51")
@BOTH
def test_a_suggested_workflow_names_tools_that_are_there(
    client: Client, tmp_path: Path, provider: str
) -> None:
    steps = [{"call": "notes.raed_note", "with": {"name": "monday"}}]
    wrong = {"name": "monday", "steps": steps}
    right = {"name": "monday", "steps": [{**steps[0], "call": "notes.read_note"}]}
    script = [Says(codec.dump(one).decode()) for one in (wrong, right)]
    with ModelServer(script) as server:
        done = ordered(client, tmp_path, "suggest", "monday's note", server, provider)
        assert "did you mean 'notes.read_note'?" in codec.dump(server.asked[1]).decode()
    assert codec.value(done.structured)["definition"] == right


@pytest.mark.promise("M51")
def test_the_best_tools_are_a_workflow_whose_inputs_they_require(
    client: Client, tmp_path: Path
) -> None:
    done = ordered(client, tmp_path, "suggest", "read the text of a note")
    found = codec.value(done.structured)
    assert found["source"] == "tools"
    first = found["definition"]["steps"][0]
    assert first == {
        "id": "step1", "call": "notes.read_note", "with": {"name": "${{ inputs.name }}"},
    }  # fmt: skip
    assert found["definition"]["inputs"]["name"]["type"] == "string"
