"""The fixture keeps to the era that it is pinned to, and asks as that era does."""

import http.client
import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conformance.cells import LEGACY, MODERN
from tests.conformance.matrix import FIXTURE, STOP_S, fixture

pytestmark = pytest.mark.process

Json = dict[str, Any]

HELLO: Json = {
    "protocolVersion": LEGACY,
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "raw", "version": "1"},
}
META: Json = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
FORM: Json = {"action": "accept", "content": {"name": "Ada", "response": "Yes"}}


class Stdio:
    """Lines in and out of one fixture."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.into, self.out, self.last = process.stdin, process.stdout, 0

    def send(self, **message: Any) -> None:
        self.into.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.into.flush()

    def read(self) -> Json:
        message: Json = json.loads(self.out.readline())
        return message

    def ask(self, method: str, **params: Any) -> Json:
        """What comes after a request: its answer, or a question."""
        self.last += 1
        self.send(id=self.last, method=method, params=params)
        return self.read()


@contextmanager
def over_stdio(era: str, *flags: str) -> Generator[Stdio, None, None]:
    command, pipe = [*FIXTURE, "--era", era, *flags], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Stdio(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(STOP_S) == 0
        finally:
            process.kill()


def post(url: str, headers: dict[str, str], **message: Any) -> tuple[int, Json]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    types = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, **message})
    connection.request("POST", parts.path, body, {**types, **headers})
    answer = connection.getresponse()
    found: Json = json.loads(answer.read())
    connection.close()
    return answer.status, found


def test_pinned_to_2026_it_refuses_a_handshake_over_stdio_and_goes_on() -> None:
    with over_stdio("modern") as server:
        error = server.ask("initialize", **HELLO)["error"]
        assert (error["code"], error["data"]["supported"]) == (-32022, [MODERN])
        assert server.ask("server/discover", _meta=META)["result"]["supportedVersions"] == [MODERN]


def test_pinned_to_the_handshake_it_knows_no_other_way_over_stdio() -> None:
    with over_stdio("legacy") as server:
        assert server.ask("server/discover", _meta=META)["error"]["code"] == -32601
        assert server.ask("initialize", **HELLO)["result"]["protocolVersion"] == LEGACY


def test_pinned_to_2026_it_refuses_a_handshake_over_http() -> None:
    with fixture("modern") as url:
        status, answer = post(url, {}, method="initialize", params=HELLO)
        assert (status, answer["error"]["code"]) == (400, -32022)


def test_pinned_to_the_handshake_it_misses_a_session_over_http() -> None:
    with fixture("legacy") as url:
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "server/discover"}
        status, answer = post(url, headers, method="server/discover", params={"_meta": META})
        assert (status, answer["error"]["code"]) == (400, -32600)


def test_a_tool_of_2026_asks_by_request_in_a_session() -> None:
    with over_stdio("legacy") as server:
        server.ask("initialize", **HELLO)
        server.send(method="notifications/initialized")
        question = server.ask("tools/call", name="test_input_required_result_elicitation")
        assert question["method"] == "elicitation/create"
        server.send(id=question["id"], result=FORM)
        assert server.read()["result"]["content"][0]["text"] == "Hello, Ada!"


def test_one_that_asks_by_requests_does_so_in_a_session_only() -> None:
    with over_stdio("both", "--push") as server:
        server.ask("initialize", **HELLO)
        server.send(method="notifications/initialized")
        question = server.ask("tools/call", name="test_elicitation")
        assert question["method"] == "elicitation/create"
    with over_stdio("both", "--push") as server:
        result = server.ask("tools/call", name="test_elicitation", _meta=META)["result"]
        assert result["isError"] is True


def test_a_tool_of_the_handshake_era_asks_by_result_in_2026() -> None:
    with over_stdio("modern") as server:
        call: Json = {"name": "test_elicitation", "_meta": META}
        result = server.ask("tools/call", **call)["result"]
        assert result["resultType"] == "input_required"
        answers = dict.fromkeys(result["inputRequests"], FORM)
        result = server.ask("tools/call", **call, inputResponses=answers)["result"]
        assert result["content"][0]["text"].startswith("User response: action=accept")
