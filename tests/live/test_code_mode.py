"""Code mode with the true binary, real Deno and real servers: code of a client calls tools."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from metamcp_worker.ipc import builtin_definitions, codec
from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.raw import Raw
from tests.live.test_audit import records
from tests.live.test_keys import keys
from tests.live.test_parked import Asked
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M45")]

EXTRA = """
[code]
timeout = "20s"

[audit]
level = "metadata"

[endpoints.default]
namespace = "default"
exposure = "code"

[endpoints.find]
namespace = "default"
exposure = "search"

[endpoints.brief]
namespace = "default"
exposure = "code"
code = { timeout = "2s", calls_max = 3 }
"""
NOTES = {"command": [sys.executable, str(ROOT / "tests" / "fakes" / "notes_server.py")]}
GUIDE = (ROOT / "docs" / "code-mode.md").read_text()
EXAMPLES = re.findall(r"```ts\n(.*?)```\n+```json\n(.*?)```", GUIDE, re.DOTALL)
SERVERS = {
    "notes": NOTES,
    "old": fake("--era", "legacy"),
    "new-one": fake("--era", "modern"),
    "asks": fake("--era", "legacy"),
    "few": {**fake("--era", "modern"), "limits": {"calls_per_day": 2}},
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=EXTRA) as found:
        yield found


@pytest.fixture(params=[LEGACY, MODERN])
def client(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Client]:
    with closing(Client(gateway.port, request.param)) as found:
        yield found


def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    """The result of `run_code`."""
    answer = client.call("run_code", code=code, **arguments)
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


def value(client: Client, code: str, **arguments: Any) -> Any:
    result = run(client, code, **arguments)
    assert not result["isError"], result
    return result["structuredContent"]["value"]


def test_an_endpoint_lists_the_tools_for_code_alone(client: Client) -> None:
    own = [tool.name for tool in builtin_definitions.of("code")]
    assert client.tools() == own
    assert {"search_tools", "describe_tool", "run_code"} <= set(own)


def test_code_returns_a_value_and_what_it_logged(client: Client) -> None:
    code = "console.log('a', {b: 1}); const n: number = args.n; return {sum: n + 1};"
    result = run(client, code, args={"n": 2})
    found = result["structuredContent"]
    assert found["value"] == {"sum": 3}
    assert found["logs"] == ['a {"b":1}']
    assert found["calls"] == 0
    assert found["ms"] > 0
    assert json.loads(result["content"][0]["text"]) == found


@pytest.mark.parametrize("server", ["old", "new-one"])
def test_code_calls_tools_of_servers_of_both_eras(client: Client, server: str) -> None:
    code = "return await mcp.servers[args.server].echo({text: 'x'})"
    found = run(client, code, args={"server": server})["structuredContent"]
    assert (found["value"], found["calls"]) == ({"text": "x", "x": 1}, 1)


def test_a_tool_is_called_by_its_name_and_by_server_and_tool(client: Client) -> None:
    code = """
        const one = await mcp.call('old__echo', {text: 'a'});
        const two = await mcp.servers.new_one.echo({text: 'b'});
        const raw = await mcp.raw('old__echo', {text: 'c'});
        return [one.text, two.text, raw.content[0].text];
    """
    assert value(client, code) == ["a", "b", "c"]


def test_a_text_is_parsed_if_it_is_json(client: Client) -> None:
    code = "return [await mcp.call('old__client'), await mcp.call('old__sleep', {ms: 1})]"
    parsed, text = value(client, code)
    assert parsed["clientInfo"]
    assert text == "slept 1 ms"


def test_a_failing_tool_throws_in_the_code(client: Client) -> None:
    caught = "try { await mcp.call('old__fail') } catch (error) { return error.message }"
    assert value(client, caught) == "it did not work"
    assert value(client, caught.replace("old__fail", "new-one__error")) == "a failure"
    thrown = run(client, "\n  await mcp.call('old__fail')")
    assert thrown["isError"]
    failed = thrown["structuredContent"]
    assert (failed["failure"], failed["line"]) == ("exception", 2)
    assert "it did not work" in failed["message"]


def test_an_unknown_tool_throws_with_the_nearest_name(client: Client) -> None:
    code = "try { await mcp.call('old_ech') } catch (error) { return error.message }"
    assert "did you mean old__echo" in value(client, code)


def test_calls_at_the_same_time_take_the_time_of_one(client: Client) -> None:
    code = """
        const all = Array.from({length: 8}, () => mcp.call('old__sleep', {ms: 400}));
        return (await Promise.all(all)).length;
    """
    began = time.monotonic()
    assert value(client, code) == 8
    assert time.monotonic() - began < 8 * 0.4


def test_the_tools_are_listed_and_found_from_code(client: Client) -> None:
    every, hits = value(client, "return [await mcp.tools(), await mcp.tools('sleep')]")
    assert {"old__echo", "new-one__echo"} <= {one["name"] for one in every}
    assert hits[0]["tool"] == "sleep"
    assert set(every[0]) == {"name", "server", "tool", "description"}


def test_code_does_not_run_code(client: Client) -> None:
    code = "try { await mcp.call('run_code', {code: '1'}) } catch (e) { return e.message }"
    assert "cannot be called from code" in value(client, code)


def test_what_is_wrong_with_the_code_is_told_with_its_place(client: Client) -> None:
    failed = run(client, "const a = 1;\nreturn a +;")["structuredContent"]
    assert (failed["failure"], failed["line"]) == ("syntax", 2)


def test_the_limits_of_an_endpoint_count(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN, "/metamcp/brief/mcp")) as client:
        endless = run(client, "while (true) {}")["structuredContent"]
        assert endless["failure"] == "timeout"
        many = "for (let i = 0; i < 9; i++) await mcp.call('old__echo', {text: 'x'})"
        assert run(client, many)["structuredContent"]["failure"] == "calls"


def test_a_call_can_lower_the_time(client: Client) -> None:
    began = time.monotonic()
    failed = run(client, "while (true) {}", timeout_ms=300)["structuredContent"]
    assert failed["failure"] == "timeout"
    assert time.monotonic() - began < 15


def test_search_has_run_code_too_and_describes_tools_as_typescript(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN, "/metamcp/find/mcp")) as client:
        assert "run_code" in client.tools()
        assert value(client, "return (await mcp.call('old__echo', {text: 'x'})).text") == "x"
        described = client.call("describe_tool", name="old__echo")["result"]
        assert 'function call(name: "old__echo"' in described["content"][0]["text"]
        found = described["structuredContent"]
        assert found["typescript"] in described["content"][0]["text"]


@pytest.mark.parametrize(("code", "returned"), EXAMPLES)
def test_the_examples_of_the_guide_return_what_it_says(
    client: Client, code: str, returned: str
) -> None:
    assert value(client, code) == json.loads(returned)


def test_the_program_in_python_of_the_guide_returns_the_notes_that_it_looks_for(
    client: Client,
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    found = run(client, code, language="python")["structuredContent"]
    assert (found["value"], found["logs"]) == (["buy milk", "no milk left"], ["3"])


@pytest.mark.promise("M46")
@pytest.mark.parametrize("language", ["python", "javascript"])
def test_a_run_leaves_no_process_behind(gateway: Gateway, language: str) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        for code in ("1 + 1", "while True: pass", "(") * 2:
            run(client, code, language=language, timeout_ms=500)
    (pid,) = (one["pid"] for one in gateway.status()["roles"] if one["role"] == "code")
    until(lambda: not processes.zombies(pid), "all processes of the runs are reaped")


def test_the_guide_shows_a_tool_as_describe_tool_does(client: Client) -> None:
    assert len(EXAMPLES) >= 4
    described = client.call("describe_tool", name="notes__read_note")["result"]
    assert described["content"][0]["text"] in GUIDE


@pytest.mark.promise("M47")
def test_limits_of_use_count_calls_of_code(gateway: Gateway) -> None:
    code = """
        let ok = 0;
        try { for (;;) { await mcp.call('few__echo', {text: 'x'}); ok++ } }
        catch (error) { return [ok, error.message] }
    """
    with closing(Client(gateway.port, MODERN)) as client:
        calls, why = value(client, code)
    assert (calls, "limit calls_per_day of the server few" in why) == (2, True)


@pytest.mark.promise("M47")
def test_the_audit_has_the_run_and_its_calls_below_it(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        code = "await mcp.call('old__echo', {text: 'audited'}); await mcp.call('nothing')"
        assert run(client, code)["isError"]

    def found() -> bool:
        rows = [row for _, row in records(gateway)]
        runs = [one for one in rows if one.tool == "run_code"]
        below = [one for one in rows if runs and one.parent == runs[-1].run]
        return [(one.server, one.tool, one.outcome) for one in below] == [
            ("old", "echo", "ok"), ("", "", "refused"),
        ]  # fmt: skip

    until(found, "the audit has the run, its call, and the call that was refused")


@pytest.mark.promise("M47")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_client_that_goes_away_or_cancels_ends_its_run_and_the_calls(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era)
    code = b"await mcp.call('old__sleep', {ms: 60000})"
    params = b'{"name":"run_code","arguments":{"code":"%b"}}' % code
    started = client.start("tools/call", params, b"7")
    until(lambda: under_way(gateway) == {"run_code", "old__sleep"}, "the code waits for its call")
    if era == LEGACY:
        client.tell("notifications/cancelled", b'{"requestId":7}')
    started.close()
    until(lambda: not under_way(gateway), "the run and its call are over")


def under_way(gateway: Gateway) -> set[str]:
    found = json.loads(gateway.ctl("calls", "--json"))
    return {one["name"] for one in found["calls"]}


ELICITS = b"""
    try { return await mcp.call('SERVER__elicit') } catch (error) { return error.message }
"""


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_question_that_cannot_be_passed_on_is_a_sentence_for_the_code(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era, capabilities={"elicitation": {}})
    arguments = {"code": ELICITS.decode().replace("SERVER", "new-one")}
    result = client.result("tools/call", codec.dump({"name": "run_code", "arguments": arguments}))
    told = json.dumps(result["structuredContent"])
    assert "call it without code" in told


def test_a_question_between_requests_reaches_the_client_with_the_next_of_them(
    gateway: Gateway,
) -> None:
    client = Asked(gateway, elicitation={"form": {}})
    arguments = {"code": ELICITS.decode().replace("SERVER", "asks")}
    params: dict[str, Any] = {"name": "run_code", "arguments": arguments}
    asked = client.ask(params)
    assert asked["resultType"] == "input_required"
    assert "Ada" in json.dumps(client.ask(params, asked)["structuredContent"])
    client.close()


def test_a_question_between_sessions_reaches_the_client_while_the_code_waits(
    gateway: Gateway,
) -> None:
    client = Raw(gateway.port, LEGACY, capabilities={"elicitation": {}})
    arguments = {"code": ELICITS.decode().replace("SERVER", "asks")}
    params = codec.dump({"name": "run_code", "arguments": arguments})
    with client.ask("tools/call", params, b"7") as stream:
        question = stream.next()
        assert question.method == "elicitation/create"
        client.reply(bytes(question.id), b'{"action":"accept","content":{"name":"Ann"}}')
        _, answer = stream.until(b"7")
    assert "Ann" in bytes(answer.result).decode()


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_each_call_that_ends_is_progress(gateway: Gateway, era: str) -> None:
    client = Raw(gateway.port, era)
    code = b"for (const text of 'ab') await mcp.call('old__echo', {text})"
    params = b'{"name":"run_code","arguments":{"code":"%b"}}' % code
    with client.ask("tools/call", params, b"7", b'"progressToken":"p"') as stream:
        before, _ = stream.until(b"7")
    told = [json.loads(bytes(one.params)) for one in before]
    assert told == [{"progressToken": "p", "progress": n, "message": "old__echo"} for n in (1, 2)]


def test_a_process_of_the_sandboxes_that_dies_fails_its_runs_and_the_next_run_works(
    gateway: Gateway,
) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        assert value(client, "return 1") == 1
        results: list[dict[str, Any]] = []

        def wait() -> None:
            with closing(Client(gateway.port, MODERN)) as other:
                results.append(run(other, "await mcp.call('old__sleep', {ms: 60000})"))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: "old__sleep" in under_way(gateway), "the code waits for its call")
        pid = next(one["pid"] for one in gateway.status()["roles"] if one["role"] == "code")
        os.kill(pid, signal.SIGKILL)
        thread.join(60)
        assert results[0]["structuredContent"]["failure"] == "crashed"
        assert value(client, "return 2") == 2
        until(lambda: not under_way(gateway), "its call is cancelled")


WITH_KEYS = """
[gateway]
auth = "keys"

[code]

[endpoints.default]
namespace = "default"
exposure = "code"
"""


class WithKey(Client):
    """A client with an API key."""

    def __init__(self, port: int, era: str, key: str) -> None:
        self._key = key
        super().__init__(port, era)

    def headers(self, method: str = "", name: str = "") -> dict[str, str]:
        return {**super().headers(method, name), "Authorization": f"Bearer {self._key}"}


@pytest.mark.promise("M47")
def test_code_of_a_key_calls_what_the_key_may_call_and_ends_when_it_is_revoked() -> None:
    servers = {"one": fake("--era", "modern"), "two": fake("--era", "modern")}
    with Gateway(servers, extra=WITH_KEYS) as gateway:
        made = keys(gateway, "create", "part", "--scope", "mcp:call:one", "--scope", "mcp:list")
        lists = keys(gateway, "create", "reader", "--scope", "mcp:list")
        with closing(WithKey(gateway.port, MODERN, made["key"])) as client:
            assert value(client, "return (await mcp.call('one__echo', {text: 'x'})).text") == "x"
            for code in ("mcp.call('two__echo')", "mcp.servers.two.echo({})"):
                failed = run(client, f"return await {code}")["structuredContent"]
                assert failed["failure"] == "exception", failed
                assert "two" in failed["message"]
            names = value(client, "return (await mcp.tools()).map(tool => tool.server)")
            assert set(names) == {"one"}
        with closing(WithKey(gateway.port, MODERN, lists["key"])) as client:
            assert "mcp:call" in json.dumps(client.call("run_code", code="return 1"))
        with closing(WithKey(gateway.port, MODERN, made["key"])) as client:
            ended: list[dict[str, Any]] = []

            def wait() -> None:
                ended.append(
                    client.call("run_code", code="await mcp.call('one__sleep', {ms: 60000})")
                )

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: under_way(gateway) == {"run_code", "one__sleep"}, "the code waits")
            keys(gateway, "revoke", made["id"])
            thread.join(60)
            assert "error" in ended[0]
            until(lambda: not under_way(gateway), "the run and its call are over")
