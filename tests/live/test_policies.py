"""Policies with the true binary: what clients see and may call, whoever makes the call."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_audit import records
from tests.live.test_code_mode import WithKey
from tests.live.test_keys import keys
from tests.live.test_metrics import total
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M100"), pytest.mark.timeout(180)]

EXTRA = """
workflows = ["flows"]
[code]
[audit]

[endpoints.default]
namespace = "default"
builtins = ["workflows", "catalog"]
[endpoints.find]
namespace = "default"
exposure = "search"
[endpoints.programs]
namespace = "default"
exposure = "code"
[endpoints.closed]
namespace = "default"
auth = "keys"
[endpoints.counted]
namespace = "default"
limits = { in_flight = 2 }

[[policies]]
name = "no-error"
match = "two/error"
effect = "deny"
message = "Errors are made elsewhere."

[[policies]]
name = "short"
match = "*/echo"
when = "size(mcp.tool.arguments.text) > 10"
effect = "deny"

[[policies]]
name = "robots"
match = "one/pid"
when = "source == 'code' || source == 'workflow'"
effect = "deny"

[[policies]]
name = "later"
match = "one/*"
when = "mcp.tool.name == 'environ'"
effect = "deny"
mode = "permissive"

[[policies]]
name = "seen"
match = "one/environ"
effect = "log"

[[policies]]
name = "files"
match = ["two/greet", "two/fake://two", "two/fake://item/*"]
effect = "deny"

[[policies]]
name = "careful"
match = "two/environ"
effect = "ask"

[[policies]]
name = "counted-alone"
match = "one/progress"
when = "endpoint.name == 'counted' && endpoint.namespace == 'default'"
effect = "deny"

[[policies]]
name = "admins"
match = "two/fail"
when = "principal.name != 'admin'"
effect = "deny"
"""
FLOW = """
name: flow
steps:
  - id: pid
    call: one.pid
    may_fail: true
  - output: "${{ steps.pid.error }}"
"""


def made(extra: str = EXTRA) -> Gateway:
    servers = {"one": fake(), "two": fake("--prompts", "--resources", "--completions")}
    found = Gateway(servers, extra=extra)
    (found.folder / "flows").mkdir()
    (found.folder / "flows" / "flow.yaml").write_text(FLOW)
    top, _, rest = extra.partition("\n[")
    found.extra = f"\n[{rest}"
    found.write(servers)
    found.config.write_text(f"{top}\n{found.config.read_text()}")
    return found


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with made() as found:
        yield found


def refused(answer: dict[str, Any]) -> str:
    """The sentence of a call that was refused."""
    result = answer["result"]
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_what_is_denied_is_in_no_list_and_a_call_of_it_gets_the_message(
    gateway: Gateway, era: str
) -> None:
    with closing(Client(gateway.port, era)) as client:
        assert {"two__error", "two__fail"} & set(client.tools()) == set()
        assert {"one__error", "two__echo"} <= set(client.tools())
        assert refused(client.call("two__error")) == "Errors are made elsewhere."
        assert refused(client.call("two__fail")) == "The policy 'admins' denies this call."
        for method, kind, left in (
            ("prompts/list", "prompts", 0), ("resources/list", "resources", 1),
            ("resources/templates/list", "resourceTemplates", 0),
        ):  # fmt: skip
            assert len(client.request(method)["result"][kind]) == left, method
        for method, params in (
            ("prompts/get", {"name": "two__greet"}), ("resources/read", {"uri": "fake://two"}),
            ("resources/read", {"uri": "fake://item/7"}),
        ):  # fmt: skip
            error = client.request(method, params)["error"]
            assert error["message"] == "The policy 'files' denies this call.", (method, params)
        answer = client.request("resources/read", {"uri": "fake://one"})
        assert "contents" in answer.get("result", answer), answer
        reference = {"ref": {"type": "ref/prompt", "name": "two__greet"}}
        argument = {"argument": {"name": "who", "value": "A"}}
        error = client.request("completion/complete", {**reference, **argument})["error"]
        assert error["message"] == "Unknown prompt: two__greet"
        client.end()


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_a_rule_about_arguments_hides_nothing_and_decides_at_each_call(
    gateway: Gateway, era: str
) -> None:
    with closing(Client(gateway.port, era)) as client:
        assert client.text("two__echo", text="short") == "short"
        assert refused(client.call("two__echo", text="x" * 11)) == (
            "The policy 'short' denies this call."
        )
        assert "fails for this call" in refused(client.call("two__echo"))
        client.end()
    assert "policy 'short' fails for two/echo: " in gateway.log.read_text()
    told = "metamcp_policy_matches_total"
    until(lambda: total(gateway, told, policy="short", outcome="denied") >= 1, "it is counted")
    until(lambda: total(gateway, told, policy="short", outcome="failed") >= 1, "and so is this")


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_arguments_that_readers_take_differently_are_refused_and_count_at_no_limit(
    gateway: Gateway, era: str
) -> None:
    deep = b"[" * 900 + rb'"\ud83d"' + b"]" * 900
    spellings = {
        b'{"text":"x","text":"x but longer than ten"}': "an object has a name twice",
        b'{"text":"x", "t\\u0065xt":"x but longer than ten"}': "an object has a name twice",
        rb'{"text":"x \ufdd0long\ufdd0 \ud83d"}': "a text has half of a surrogate pair",
        b'{"text":%b}' % deep: "a text has half of a surrogate pair",
    }
    with closing(Client(gateway.port, era, "/metamcp/counted/mcp")) as client:
        for raw, why in 3 * list(spellings.items()):
            params: dict[str, Any] = {"name": "one__echo", "arguments": "RAW"}
            if era == MODERN:
                params["_meta"] = client.meta()
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            body = json.dumps(message).encode().replace(b'"RAW"', raw)
            answer = json.loads(client.post(body, "tools/call", "one__echo"))
            told = refused(answer)
            assert told == f"The policy 'short' cannot judge this call: in its arguments {why}."
        assert client.text("one__echo", text="x") == "x"
        client.end()


def test_a_rule_that_asks_needs_a_person_who_can_be_asked(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        assert "two__environ" in client.tools()
        why = refused(client.call("two__environ"))
        assert "needs the consent of a person" in why
        assert "environ" in client.text("one__environ")


def test_discovery_finds_nothing_that_is_denied(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN, "/metamcp/find/mcp")) as client:
        found = client.call("search_tools", query="error", limit=20)["result"]
        names = {one["name"] for one in found["structuredContent"]["tools"]}
        assert "one__error" in names
        assert "two__error" not in names
        described = client.call("describe_tool", name="two__error")["result"]
        assert described["isError"]
        assert "definition" not in described["structuredContent"]
        loaded = client.call("load_tool", name="two__error")["result"]
        assert loaded["isError"]
        assert refused(client.call("call_tool", name="two__error")) == "Errors are made elsewhere."
    with closing(Client(gateway.port, MODERN)) as client:
        catalogue = json.dumps(client.call("get_catalog")["result"]["structuredContent"])
        assert "fake://one" in catalogue
        for name in ("fake://two", "greet"):
            assert f'"{name}' not in catalogue, name


def test_calls_of_code_and_workflows_are_decided_on_like_those_of_clients(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN, "/metamcp/programs/mcp")) as client:
        code = "return [await mcp.tools(), await mcp.call('one__echo', {text: 'x'})]"
        done = client.call("run_code", code=code)["result"]["structuredContent"]
        assert "value" in done, done
        tools, echoed = done["value"]
        assert echoed["text"] == "x"
        assert "two__error" not in json.dumps(tools)
        for call, why in (
            ("'two__error', {}", "Errors are made elsewhere."),
            ("'one__pid', {}", "The policy 'robots' denies this call."),
            ("'one__echo', {text: 'x'.repeat(11)}", "The policy 'short' denies this call."),
        ):
            result = client.call("run_code", code=f"return await mcp.call({call})")["result"]
            assert why in result["structuredContent"]["message"], result
    with closing(Client(gateway.port, MODERN)) as client:
        assert client.text("one__pid").isdigit()
        run = client.call("run_workflow", name="flow")["result"]["structuredContent"]
        assert "The policy 'robots' denies this call." in run["output"]


def test_a_permissive_rule_and_a_log_are_in_the_record_of_the_call(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        assert "environ" in client.text("one__environ")
        assert refused(client.call("two__error"))

    def recorded(server: str, tool: str) -> set[str]:
        found = (one for _, one in records(gateway) if (one.server, one.tool) == (server, tool))
        return {one.text for one in found}

    until(
        lambda: recorded("one", "environ") == {"policies: later would deny, seen logged"},
        "the record",
    )
    until(
        lambda: "policies: no-error denied" in recorded("two", "error"), "the record of the refusal"
    )
    outcomes = {one.outcome for _, one in records(gateway) if one.tool == "error"}
    assert outcomes == {"refused"}


def test_each_key_sees_what_policies_allow_it(gateway: Gateway) -> None:
    path = "/metamcp/closed/mcp"
    admin, guest = (keys(gateway, "create", name)["key"] for name in ("admin", "guest"))
    for era in (MODERN, LEGACY):
        seen: dict[str, set[str]] = {}
        for key in (admin, guest):
            with closing(AtPath(gateway.port, era, key, path)) as client:
                seen[key] = set(client.tools())
                answer = client.call("two__fail")
                if key == guest:
                    assert refused(answer) == "The policy 'admins' denies this call."
                else:
                    assert answer["result"]["isError"]
                    assert "policy" not in json.dumps(answer)
                client.end()
        assert seen[admin] - seen[guest] == {"two__fail"}
        assert seen[guest] < seen[admin]


def test_an_endpoint_can_have_rules_of_its_own(gateway: Gateway) -> None:
    for path, is_denied in (("/mcp", False), ("/metamcp/counted/mcp", True)):
        for era in (MODERN, LEGACY):
            with closing(AtPath(gateway.port, era, "", path)) as client:
                assert ("one__progress" in client.tools()) is not is_denied
                answer = client.call("one__progress", n=1)
                assert ("counted-alone" in json.dumps(answer)) is is_denied
                client.end()


class AtPath(WithKey):
    """A client with a key at an endpoint."""

    def __init__(self, port: int, era: str, key: str, path: str) -> None:
        self._where = path
        super().__init__(port, era, key)

    @property
    def path(self) -> str:
        return self._where

    @path.setter
    def path(self, value: str) -> None:
        pass


def test_a_reload_of_policies_changes_lists_at_once_and_stops_nothing() -> None:
    extra = '[endpoints.default]\nnamespace = "default"\n'
    rule = '[[policies]]\nname = "no-pid"\nmatch = "one/pid"\neffect = "{}"\n'
    with Gateway({"one": fake()}, extra=extra) as gateway:
        pid = gateway.server("one")["pid"]
        with closing(Client(gateway.port)) as client:
            assert "one__pid" in client.tools()
            gateway.extra = extra + rule.format("deny")
            gateway.write({"one": fake()})
            plan = gateway.ctl("reload", "--dry-run")
            assert "[policies]" in plan
            assert "no-pid changed" in plan
            gateway.ctl("reload")
            until(lambda: "one__pid" not in client.tools(), "it is hidden")
            gateway.extra = extra + rule.format("allow")
            gateway.write({"one": fake()})
            gateway.ctl("reload")
            until(lambda: client.tools() == ["one__pid"], "the rest is denied")
            gateway.extra = extra + rule.format("alow")
            gateway.write({"one": fake()})
            refusal = gateway.ctl("reload", ok=(65,))
            assert client.tools() == ["one__pid"], refusal
        assert gateway.server("one")["pid"] == pid
