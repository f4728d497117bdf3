"""A person agrees before a call runs: the official client of both eras, operators, code."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from metamcp_worker.ipc.audit_records import AuditRecord
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_audit import records
from tests.live.test_parked import Asked
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M97")]

SERVERS = {
    "old": fake("--era", "legacy"),
    "new": fake("--era", "modern"),
}
RULES = """
[audit]
[code]
[endpoints.default]
namespace = "default"
[endpoints.programs]
namespace = "default"
exposure = "code"
[consent]
timeout = "20s"
on_no_elicitation = "{}"
rules = [
    {{ match = ["*/echo", "*/elicit"], effect = "ask" }},
    {{ match = "*/sleep", effect = "deny" }},
]
"""
ERAS = pytest.mark.parametrize("era", [LEGACY, MODERN])
BOTH = pytest.mark.parametrize("server", [*SERVERS])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=RULES.format("deny")) as running:
        yield running


class Person:
    """Who is asked, and answers `action` with `content`. `told`: the questions."""

    def __init__(self, action: str, content: dict[str, Any]) -> None:
        self.action: Any = action
        self.content: Any = content
        self.told: list[str] = []

    async def answer(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        self.told.append(params.message)
        if self.told[-1].startswith("May this call run?"):
            content = self.content if self.action == "accept" else None
            return ElicitResult(action=self.action, content=content)
        return ElicitResult(action="accept", content={"name": "Ada"})


def called(
    gateway: Gateway, era: str, person: Person, *calls: tuple[str, dict[str, Any]]
) -> list[tuple[bool, str]]:
    """The calls of one official client, one after the other: whether each failed, and its text."""

    async def talk() -> list[tuple[bool, str]]:
        mode: Any = MODERN if era == MODERN else "legacy"
        client = Sdk(gateway.url, mode=mode, elicitation_callback=person.answer)
        found: list[tuple[bool, str]] = []
        async with asyncio.timeout(60), client:
            for tool, arguments in calls:
                result = await client.call_tool(tool, arguments)
                block = result.content[0]
                assert isinstance(block, TextContent)
                found.append((bool(result.is_error), block.text))
        return found

    return asyncio.run(talk())


def consent(gateway: Gateway, *words: str, ok: int = 0) -> str:
    done = gateway.run("consent", *words, ok=(ok,))
    return done.stderr if ok else done.stdout


LONG = f"password=hunter{'2' * 9000}"
"""An argument of which an operator sees all."""


def listed(gateway: Gateway) -> Any:
    return json.loads(consent(gateway, "list", "--json"))


@ERAS
@BOTH
def test_the_official_client_is_asked_about_the_very_call(
    gateway: Gateway, era: str, server: str
) -> None:
    person = Person("accept", {"consent": "once"})
    text = "a\u202eb password=hunter22"
    call = f"{server}__echo", {"text": text}
    assert called(gateway, era, person, call, call) == [(False, text)] * 2
    assert len(person.told) == 2
    lines = person.told[0].splitlines()
    assert lines[:3] == ["May this call run?", f"Tool: {server}/echo", "Workspace: default"]
    assert "\\u202e" in lines[3]
    assert "password=hunter22" in lines[3]


@ERAS
@pytest.mark.parametrize(
    ("action", "content"), [("decline", {}), ("cancel", {}), ("accept", {"consent": "deny"})]
)
def test_a_no_refuses_the_call(
    gateway: Gateway, era: str, action: str, content: dict[str, Any]
) -> None:
    person = Person(action, content)
    ((failed, why),) = called(gateway, era, person, ("new__echo", {"text": "x"}))
    assert failed
    assert "new/echo" in why


@ERAS
def test_consent_for_the_session_covers_this_tool_and_no_other(gateway: Gateway, era: str) -> None:
    person = Person("accept", {"consent": "session"})
    echo = "old__echo", {"text": "x"}
    found = called(gateway, era, person, echo, echo, ("new__echo", {"text": "y"}), echo)
    assert found == [(False, "x"), (False, "x"), (False, "y"), (False, "x")]
    assert len(person.told) == 2


@ERAS
@BOTH
def test_a_server_that_asks_itself_is_answered_and_the_call_is_asked_about_once(
    gateway: Gateway, era: str, server: str
) -> None:
    person = Person("accept", {"consent": "once"})
    ((failed, text),) = called(gateway, era, person, (f"{server}__elicit", {}))
    assert not failed
    assert "Ada" in text
    assert [told.startswith("May this call run?") for told in person.told] == [True, False]


@ERAS
def test_what_a_rule_denies_is_refused_and_a_client_that_cannot_ask_is_told(
    gateway: Gateway, era: str
) -> None:
    with closing(Client(gateway.port, era)) as client:
        denied = client.call("new__sleep", ms=1)["result"]
        unasked = client.call("new__echo", text="x")["result"]
    assert "do not allow new/sleep" in denied["content"][0]["text"]
    assert "cannot ask" in unasked["content"][0]["text"]
    assert denied["isError"]
    assert unasked["isError"]


def test_an_answer_fits_the_call_that_was_shown_alone_and_once(gateway: Gateway) -> None:
    with closing(Asked(gateway, elicitation={"form": {}})) as client:
        params: dict[str, Any] = {"name": "new__echo", "arguments": {"text": "shown"}}
        asked = client.request("tools/call", params)["result"]
        (key,) = asked["inputRequests"]
        again = {
            "inputResponses": {key: {"action": "accept", "content": {"consent": "once"}}},
            "requestState": asked["requestState"],
        }
        other = {"name": "new__echo", "arguments": {"text": "another"}}
        assert "another request" in client.request("tools/call", other | again)["error"]["message"]
        with closing(Client(gateway.port, MODERN)) as stranger:  # the same principal, without it
            assert stranger.request("tools/call", other)["result"]["isError"]
        result = client.request("tools/call", params | again)["result"]
        assert result["content"][0]["text"] == "shown"
        assert "of no use" in client.request("tools/call", params | again)["error"]["message"]
        made_up = {"requestState": "state", "inputResponses": {"k": {"action": "accept"}}}
        refusal = client.request("tools/call", params | made_up)["error"]
        assert "The requestState is not valid" in refusal["message"]


def test_code_asks_its_client_and_stands_still_meanwhile(gateway: Gateway) -> None:
    code = 'return await mcp.call("new__echo", { text: "from code" })'
    with closing(Asked(gateway, elicitation={"form": {}})) as client:
        client.path = "/metamcp/programs/mcp"
        params: dict[str, Any] = {"name": "run_code", "arguments": {"code": code}}
        asked = client.request("tools/call", params)["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert "made by code" in question["params"]["message"]
        again = {
            "inputResponses": {key: {"action": "accept"}}, "requestState": asked["requestState"],
        }  # fmt: skip
        result = client.request("tools/call", params | again)["result"]
    assert "from code" in json.dumps(result["structuredContent"])


@pytest.mark.parametrize("scope", ["once", "24h"])
def test_an_operator_answers_for_clients_that_cannot_ask(scope: str) -> None:
    with Gateway(SERVERS, extra=RULES.format("queue")) as gateway:
        answers: list[dict[str, Any]] = []
        waiting = threading.Thread(target=_call, args=(gateway, answers))
        waiting.start()
        until(lambda: listed(gateway)["questions"], "the call waits")
        (question,) = listed(gateway)["questions"]
        assert (question["server"], question["tool"], question["asked"]) == ("new", "echo", False)
        one_waits = 'metamcp_waiting_for_people{kind="consent"} 1.0'
        until(lambda: one_waits in gateway.ops("/metrics")[1], "the metric says so")
        assert question["id"] in consent(gateway, "list")
        (event,) = [each for each in gateway.events() if each["what"] == "waiting"]
        assert event["cause"].endswith(f"'metamcp consent approve {question['id']}'")
        assert LONG in consent(gateway, "list")
        assert LONG in question["arguments"]
        said = consent(gateway, "approve", question["id"], "--for", scope)
        assert "new.echo approved" in said
        waiting.join(30)
        assert answers[0]["result"]["content"][0]["text"] == LONG
        assert "no question" in consent(gateway, "approve", question["id"], ok=8)
        assert listed(gateway)["questions"] == []
        if scope == "24h":
            gateway.stop()
            gateway.start()
            _call(gateway, answers)
            assert answers[1]["result"]["content"][0]["text"] == LONG
            (grant,) = listed(gateway)["grants"]
            assert "revoked" in consent(gateway, "revoke", grant["id"])
        denied = threading.Thread(target=_call, args=(gateway, answers))
        denied.start()
        until(lambda: listed(gateway)["questions"], "it waits again")
        consent(gateway, "deny", listed(gateway)["questions"][0]["id"])
        denied.join(30)
        assert answers[-1]["result"]["isError"]
        calls = len(answers)
        until(lambda: len(_recorded(gateway)) == calls, "all calls are recorded")
        recorded = _recorded(gateway)
        assert [one.outcome for one in recorded] == ["ok"] * (len(recorded) - 1) + ["refused"]
        assert "did not agree to this call of new/echo" in recorded[-1].consent
        agreed = [one.consent for one in recorded[:-1]]
        assert agreed[0].endswith(f" {scope}")
        assert agreed[1:] == ["granted"] * (scope == "24h")


def test_a_key_that_ends_takes_its_calls_and_what_was_agreed_to_with_it() -> None:
    keyed = RULES.format("queue").replace(
        "[endpoints.default]\n", '[endpoints.default]\nauth = "keys"\n'
    )
    with Gateway(SERVERS, extra=keyed) as gateway:
        made = json.loads(gateway.run("keys", "create", "desk", "--json").stdout)
        answers: list[dict[str, Any]] = []

        def call() -> None:
            with closing(Keyed(gateway.port, made["key"])) as client:
                answers.append(client.call("new__echo", text="x"))

        first = threading.Thread(target=call)
        first.start()
        until(lambda: listed(gateway)["questions"], "the call waits")
        consent(gateway, "approve", listed(gateway)["questions"][0]["id"], "--for", "24h")
        first.join(30)
        assert answers[0]["result"]["content"][0]["text"] == "x"
        (grant,) = listed(gateway)["grants"]
        assert grant["holder"] == f"keys:{made['id']}"
        gateway.extra = keyed.replace('"*/echo"', '"*/echo", "*/other"')
        gateway.write(SERVERS)
        gateway.ctl("reload")
        second = threading.Thread(target=call)
        second.start()
        until(lambda: listed(gateway)["questions"], "the call waits, by the new rules")
        gateway.run("keys", "revoke", made["id"])
        second.join(30)
        assert "error" in answers[1]
        assert listed(gateway) == {"v": 1, "questions": [], "grants": []}


def test_a_changed_rule_voids_what_was_agreed_to() -> None:
    with Gateway(SERVERS, extra=RULES.format("deny")) as gateway:
        person = Person("accept", {"consent": "24h"})
        call = "new__echo", {"text": "x"}
        assert called(gateway, MODERN, person, call, call) == [(False, "x")] * 2
        assert len(person.told) == 1
        until(lambda: listed(gateway)["grants"], "the gateway has it")
        gateway.extra = RULES.format("deny").replace("20s", "21s")
        gateway.write(SERVERS)
        gateway.ctl("reload")
        assert called(gateway, MODERN, person, call) == [(False, "x")]
        assert len(person.told) == 2


def _recorded(gateway: Gateway) -> list[AuditRecord]:
    return [one for _, one in records(gateway) if one.event == "call"]


class Keyed(Client):
    """A client of the earlier era with an API key."""

    def __init__(self, port: int, key: str) -> None:
        self.key = key
        super().__init__(port, LEGACY)

    def headers(self, method: str = "", name: str = "") -> dict[str, str]:
        return super().headers(method, name) | {"Authorization": f"Bearer {self.key}"}


def _call(gateway: Gateway, answers: list[dict[str, Any]]) -> None:
    with closing(Client(gateway.port, LEGACY)) as client:
        answers.append(client.call("new__echo", text=LONG))
