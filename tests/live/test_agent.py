"""Agents and suggestions of real clients: a scripted model, real servers behind the gateway, code
in its sandboxes."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_code_mode import NOTES
from tests.worker.engine.model_server import KEY, Fails, Line, ModelServer, Says, call, run

pytestmark = pytest.mark.live
BOTH = pytest.mark.parametrize(
    ("provider", "era"), [("openai", MODERN), ("anthropic", LEGACY)], ids=["openai", "anthropic"]
)

EXTRA = """[code]

[endpoints.default]
namespace = "default"
exposure = "code"
builtins = ["catalog", "agent"]
"""
MILK = """
const names = await mcp.servers.notes.list_notes();
const texts = await Promise.all(names.map((name) => mcp.servers.notes.read_note({ name })));
return names.filter((_, at) => texts[at].includes("milk"));
"""


def asked(
    tool: str,
    task: str,
    server: ModelServer | None = None,
    provider: str = "openai",
    era: str = MODERN,
    then: str = "",
) -> dict[str, Any]:
    """The structured result of a tool that a client calls with a task; or of `run_code`, with the
    code that `then` names in that result."""
    ai = ""
    if server is not None:
        ai = f'[ai]\nprovider = "{provider}"\nurl = "{server.base}"\nmodel = "small"\n'
        ai += 'key = "${env:A_KEY}"\n'
    gateway = Gateway({"notes": NOTES, "other": fake()}, extra=f"{EXTRA}{ai}")
    gateway.environ["A_KEY"] = KEY
    with gateway, closing(Client(gateway.port, era)) as client:
        result = client.call(tool, task=task)["result"]
        if then:
            code = "\n".join(
                line
                for line in result["structuredContent"]["code"].splitlines()
                if f"{then} =" in line
            )
            result = client.call("run_code", code=f"{code}\nreturn {then};")["result"]
        assert KEY not in gateway.log.read_text()
        found: dict[str, Any] = result["structuredContent"]
        return found


@pytest.mark.promise("M49")
@BOTH
def test_an_agent_works_with_real_servers_and_code(provider: str, era: str) -> None:
    script: list[Line] = [
        Fails(429, headers={"Retry-After": "0"}), call("search_tools", query="text of a note"),
        call("describe_tool", name="notes__read_note"),
        run('return await mcp.call("notes__read_notes", {})'), run(MILK), call("finish"),
    ]  # fmt: skip
    with ModelServer(script) as server:
        found = asked("run_agent", "milk?", server, provider, era)
        told = [codec.dump(body["messages"][-1]).decode() for body in server.asked]
    assert (found["ended"], found["result"], found["steps"]) == (
        "finished", ["monday", "tuesday"], 5,
    )  # fmt: skip
    assert "notes__read_note: " in told[2]
    assert "function call(name:" in told[3]
    assert "did you mean notes__read_note" in told[4]


@pytest.mark.promise("M49")
@pytest.mark.parametrize("action", ["accept", "decline", None])
def test_a_user_agrees_before_an_agent_calls_what_may_destroy_something(
    tmp_path: Path, action: str | None
) -> None:
    """`action`: of the user, None if the client cannot ask."""
    words = tmp_path / "words"
    words.write_bytes(codec.dump({"echo": {"annotations": {}}}))
    code = 'return (await mcp.servers.other.echo({ text: "hi" })).text'
    script: list[Line] = [run(code), call("finish")]
    params: dict[str, Any] = {"name": "run_agent", "arguments": {"task": "say hi"}}
    with ModelServer(script) as server:
        ai = f'[ai]\nurl = "{server.base}"\nmodel = "small"\nkey = "${{env:A_KEY}}"\n'
        running = Gateway({"other": fake("--words", str(words))}, extra=f"{EXTRA}{ai}")
        running.environ["A_KEY"] = KEY
        with running, closing(Client(running.port, MODERN)) as client:
            if action is not None:
                able = "io.modelcontextprotocol/clientCapabilities"
                params["_meta"] = {able: {"elicitation": {"form": {}}}}
                asked = client.request("tools/call", params)["result"]
                ((key, question),) = asked["inputRequests"].items()
                assert "May the agent call other__echo?" in question["params"]["message"]
                params["inputResponses"] = {key: {"action": action}}
                params["requestState"] = asked["requestState"]
            found = client.request("tools/call", params)["result"]["structuredContent"]
    if action == "accept":
        assert (found["ended"], found["result"]) == ("finished", "hi")
    else:
        assert (found["ended"], found["result"], found["code"]) == ("consent", None, code)


@pytest.mark.promise("M49")
def test_without_a_model_the_program_to_begin_with_runs() -> None:
    assert "monday" in asked("run_agent", "list my notes", then="result1")["value"]


@pytest.mark.promise("M51")
@BOTH
def test_a_suggested_workflow_names_tools_that_are_there(provider: str, era: str) -> None:
    steps = [{"call": "notes.raed_note", "with": {"name": "monday"}}]
    wrong = {"name": "monday", "steps": steps}
    right = {"name": "monday", "steps": [{**steps[0], "call": "notes.read_note"}]}
    script = [Says(codec.dump(one).decode()) for one in (wrong, right)]
    with ModelServer(script) as server:
        found = asked("suggest_workflow", "monday's note", server, provider, era)
        assert "did you mean 'notes.read_note'?" in codec.dump(server.asked[1]).decode()
    assert found["definition"] == right


@pytest.mark.promise("M51")
def test_the_best_tools_are_a_workflow_whose_inputs_they_require() -> None:
    found = asked("suggest_workflow", "read the text of a note")
    assert found["source"] == "tools"
    first = found["definition"]["steps"][0]
    assert first == {
        "id": "step1", "call": "notes.read_note", "with": {"name": "${{ inputs.name }}"},
    }  # fmt: skip
    assert found["definition"]["inputs"]["name"]["type"] == "string"
