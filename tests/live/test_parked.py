"""Modern clients and servers that ask the legacy way: the call stays open while its client answers.

The text of what the scripted server answers is the JSON of what it was told.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    TextContent,
)

from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
}  # fmt: skip
ACCEPT = {"action": "accept", "content": {"name": "Ada", "n": 1.5}}
MESSAGE = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
ROOTS = {"roots": [{"uri": "file:///tmp", "name": "tmp"}]}
ELICIT: dict[str, Any] = {"name": "old__elicit", "arguments": {}}
ANSWERS = {"elicitation/create": ACCEPT, "sampling/createMessage": MESSAGE, "roots/list": ROOTS}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    old = {**fake("--era", "legacy"), "sharing": "shared"}
    servers = {"old": old, "few": {**old, "concurrency": 4}, "new": fake("--era", "modern")}
    with Gateway(servers) as running:
        yield running


class Asked(Client):
    """A modern client with these capabilities, which answers when it is told to."""

    def __init__(self, gateway: Gateway, **capabilities: Any) -> None:
        super().__init__(gateway.port, MODERN)
        self.capabilities = capabilities
        self.named = "raw"

    def meta(self) -> dict[str, Any]:
        said = {
            "clientCapabilities": self.capabilities,
            "clientInfo": {"name": self.named, "version": "1"},
        }
        prefix = "io.modelcontextprotocol/"
        return {**super().meta(), **{prefix + key: value for key, value in said.items()}}

    def ask(self, params: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result of this call, or of its retry with an answer to everything that the result
        `before` asks."""
        again = dict(params)
        if before is not None:
            requests: dict[str, Any] = before["inputRequests"]
            again["inputResponses"] = {key: ANSWERS[one["method"]] for key, one in requests.items()}
            if "requestState" in before:
                again["requestState"] = before["requestState"]
        result: dict[str, Any] = self.request("tools/call", again)["result"]
        return result

    def rounds(self, tool: str, **arguments: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Call and answer until there is a result: what the server was told, and the questions of
        each round."""
        params = {"name": tool, "arguments": arguments}
        asked: list[dict[str, Any]] = []
        result = self.ask(params)
        while result["resultType"] == "input_required":
            asked.append(result["inputRequests"])
            result = self.ask(params, result)
        text: str = result["content"][0]["text"]
        return json.loads(text) if text[:1] in "[{" else text, asked


@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize(
    ("tool", "arguments", "method"),
    [
        ("elicit", {}, "elicitation/create"),
        ("elicit", {"mode": "url"}, "elicitation/create"),
        ("sample", {}, "sampling/createMessage"),
        ("roots", {}, "roots/list"),
    ],
)
def test_a_server_of_either_era_gets_what_it_asks_for(
    gateway: Gateway, server: str, tool: str, arguments: dict[str, Any], method: str
) -> None:
    client = Asked(gateway, **EVERYTHING)
    told, asked = client.rounds(f"{server}__{tool}", **arguments)
    assert told == ANSWERS[method]
    assert [one["method"] for one in asked[0].values()] == [method]
    assert len(asked) == 1
    client.close()


@pytest.mark.promise("M23")
def test_a_client_that_never_comes_back_keeps_nobody_else_from_being_asked(
    gateway: Gateway,
) -> None:
    gone, client = Asked(gateway, **EVERYTHING), Asked(gateway, **EVERYTHING)
    gone.named = "gone"
    assert gone.ask(ELICIT)["resultType"] == "input_required"
    gone.close()
    for _ in range(2):
        assert client.rounds("old__elicit")[0] == ACCEPT
    client.close()


@pytest.mark.promise("M23")
def test_what_is_asked_at_once_is_one_round_and_what_is_asked_later_another(
    gateway: Gateway,
) -> None:
    client = Asked(gateway, **EVERYTHING)
    told, asked = client.rounds("old__ask_many", n=3)
    assert told == [ACCEPT] * 3
    assert [list(one) for one in asked] == [["k1", "k2", "k3"]]
    told, asked = client.rounds("old__ask_rounds", n=3)
    assert told == "3 rounds"
    assert [list(one) for one in asked] == [["k1"], ["k2"], ["k3"]]
    client.close()


@pytest.mark.promise("M23")
def test_what_is_put_to_the_client_are_the_servers_own_words(gateway: Gateway) -> None:
    client = Asked(gateway, **EVERYTHING)
    _, (form,) = client.rounds("old__elicit")
    assert form["k1"]["params"]["requestedSchema"]["properties"]["name"]["x-kept"] == 1.0
    _, (link,) = client.rounds("old__elicit", mode="url")
    params = {"mode": "url", "message": "Sign in", "url": "https://example.com/in"}
    assert link["k1"]["params"] == params
    client.close()


@pytest.mark.promise("M23")
def test_a_client_is_not_asked_what_it_did_not_declare(gateway: Gateway) -> None:
    client = Asked(gateway, roots={})
    told, asked = client.rounds("old__elicit")
    assert asked == []
    assert told["error"]["code"] == -32601
    client.close()


@pytest.mark.promise("M23")
def test_a_question_that_is_taken_back_does_not_hold_the_call_up(gateway: Gateway) -> None:
    client = Asked(gateway, **EVERYTHING)
    assert client.rounds("old__ask_withdrawn")[0] == "withdrawn"
    client.close()


def refusal(client: Asked, state: str) -> str:
    """Of a retry with this state."""
    params = {**ELICIT, "requestState": state, "inputResponses": {"k1": ACCEPT}}
    error = client.request("tools/call", params)["error"]
    assert error["code"] == -32602
    message: str = error["message"]
    return message


@pytest.mark.promise("M23")
def test_a_state_ends_with_the_server_that_asked(gateway: Gateway) -> None:
    client = Asked(gateway, **EVERYTHING)
    state = client.ask(ELICIT)["requestState"]
    old = gateway.server("old")
    os.kill(old["pid"], signal.SIGKILL)

    def back() -> bool:
        now = gateway.server("old")
        return bool(now["state"] == "active" and now["generation"] > old["generation"])

    until(back, "the server is back")
    assert "the server that asked is gone" in refusal(client, state)
    assert client.rounds("old__elicit")[0] == ACCEPT
    client.close()


@pytest.mark.promise("M23")
def test_a_state_ends_with_the_front_that_gave_it(gateway: Gateway) -> None:
    client = Asked(gateway, **EVERYTHING)
    state = client.ask(ELICIT)["requestState"]
    client.close()
    old = gateway.status()["fronts"][0]["pid"]
    os.kill(old, signal.SIGKILL)

    def back() -> bool:
        now = gateway.status()["fronts"][0]
        return now["pid"] not in (0, old) and now["state"] == "ready"

    until(back, "the front is back")
    client = Asked(gateway, **EVERYTHING)
    assert "has expired: the process" in refusal(client, state)
    assert client.rounds("old__elicit")[0] == ACCEPT
    client.close()


async def elicited(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def sampled(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    content = TextContent(type="text", text="hi")
    return CreateMessageResult(role="assistant", content=content, model="m")


async def roots(context: ClientRequestContext) -> ListRootsResult:
    return ListRootsResult(roots=[])


@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["old", "new"])
async def test_the_official_client_answers_servers_of_both_eras(
    gateway: Gateway, server: str
) -> None:
    client = Sdk(
        gateway.url,
        mode=MODERN,
        elicitation_callback=elicited,
        sampling_callback=sampled,
        list_roots_callback=roots,
    )
    async with asyncio.timeout(60), client:
        for tool, told in (("elicit", "Ada"), ("sample", "hi"), ("roots", '"roots": []')):
            result = await client.call_tool(f"{server}__{tool}", {})
            (content,) = result.content
            assert isinstance(content, TextContent)
            assert told in content.text


@pytest.mark.promise("M98")
def test_a_client_that_parks_calls_and_leaves_takes_no_server_from_others(
    gateway: Gateway,
) -> None:
    leaver = Asked(gateway, **EVERYTHING)
    leaver.named = "leaver"
    for _ in range(10):
        assert leaver.ask({"name": "few__elicit", "arguments": {}})["inputRequests"]
    leaver.close()
    other = Asked(gateway, **EVERYTHING)
    assert other.text("few__echo", text="a") == "a"
    assert other.ask({"name": "few__elicit", "arguments": {}})["inputRequests"]
    other.close()
