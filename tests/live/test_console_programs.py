"""Verbs of the control socket over the console, by an API key: who gets an answer, and which."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_supervisor.console.site import OWN_STREAMS_MAX
from metamcp_supervisor.verbs import Exit
from tests.live.console import Steered
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M107")]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Steered]:
    with Steered() as running:
        yield running


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_verb_has_the_role_of_its_key_and_the_answer_of_the_control_socket(
    gateway: Steered,
) -> None:
    keys = {role: gateway.key(role, role)["key"] for role in ("viewer", "operator", "admin")}
    status, text, headers = gateway.post(keys["viewer"], {"id": 7, "method": "status"})
    (answer,) = read(text)
    assert (status, answer["id"], headers["content-type"]) == (200, 7, "application/x-ndjson")
    assert answer["result"]["pid"] == gateway.pid
    order = {"method": "restart", "params": {"names": ["git"]}}
    status, text, _ = gateway.post(keys["viewer"], order)
    assert (status, read(text)[0]["error"]["code"]) == (403, Exit.DENIED)
    assert gateway.post(keys["operator"], order)[0] == 200
    gateway.wait("git")
    status, text, _ = gateway.post(keys["viewer"], {"method": "events", "params": {"n": 2}})
    assert [line.get("method") for line in read(text)] == ["event", "event", None]
    unknown = {"method": "restart", "params": {"names": ["gti"]}}
    status, text, _ = gateway.post(keys["operator"], unknown)
    assert (status, read(text)[0]["error"]["code"]) == (200, Exit.UNKNOWN_NAME)
    for method in ("console", "upgrade", "sandbox-trial"):
        status, text, _ = gateway.post(keys["admin"], {"method": method})
        assert status == 403
        assert "is for users of the gateway's machine" in text
    assert gateway.ask("console-sessions")["sessions"] == []


def test_the_end_of_a_key_ends_what_it_follows(gateway: Steered) -> None:
    made = gateway.key("follows", "viewer")
    connection = http.client.HTTPConnection("127.0.0.1", gateway.console_port, timeout=30)
    body = {"method": "events", "params": {"n": 0, "follow": True}}
    headers = {"Authorization": f"Bearer {made['key']}"}
    connection.request("POST", "/control", json.dumps(body), headers)
    answer = connection.getresponse()
    assert "result" in json.loads(answer.readline())
    gateway.run("keys", "expire", made["id"])
    assert read(answer.read().decode())[-1] == {"jsonrpc": "2.0", "method": "ended", "params": {}}
    connection.close()


def test_the_end_of_a_key_ends_a_wait_with_the_sentence_for_programs(gateway: Steered) -> None:
    made = gateway.key("awaits", "viewer")
    connection = http.client.HTTPConnection("127.0.0.1", gateway.console_port, timeout=30)
    wait = {"method": "wait", "params": {"names": ["git"], "for": "error", "timeout_s": 3600}}
    headers = {"Authorization": f"Bearer {made['key']}"}
    connection.request("POST", "/control", json.dumps(wait), headers)
    until(lambda: gateway.streams == 1, "it waits")
    gateway.run("keys", "expire", made["id"])
    (line,) = read(connection.getresponse().read().decode())
    assert line["error"] == {"code": Exit.DENIED, "message": "this API key has ended"}
    connection.close()


def test_waits_count_among_the_streams_of_a_key_and_leave_room_for_short_verbs(
    gateway: Steered,
) -> None:
    key = gateway.key("waits", "viewer")["key"]
    wait = {"method": "wait", "params": {"names": ["git"], "for": "error", "timeout_s": 3600}}
    connections: list[http.client.HTTPConnection] = []
    try:
        for _ in range(OWN_STREAMS_MAX):
            connection = http.client.HTTPConnection("127.0.0.1", gateway.console_port, timeout=30)
            connections.append(connection)
            headers = {"Authorization": f"Bearer {key}"}
            connection.request("POST", "/control", json.dumps(wait), headers)
        until(lambda: gateway.streams == OWN_STREAMS_MAX, "all of them wait")
        status, text, _ = gateway.post(key, wait)
        assert (status, "follow the gateway for you already" in text) == (503, True)
        assert gateway.post(key, {"method": "status"})[0] == 200
    finally:
        for connection in connections:
            connection.close()
    until(lambda: gateway.streams == 0, "none of them waits")


def test_all_that_is_wrong_with_a_key_gets_one_answer_and_is_counted(gateway: Steered) -> None:
    body = {"method": "status"}
    ended = gateway.key("ended", "admin")
    gateway.run("keys", "revoke", ended["id"])
    made = gateway.run("keys", "create", "calls", "--scope", "mcp:call", "--json").stdout
    answers = [gateway.post(key, body)[:2] for key in ("x", ended["key"], json.loads(made)["key"])]
    assert {status for status, _ in answers} == {401}
    assert len({text for _, text in answers}) == 1
    assert gateway.post("", body)[0] == 401
    for _ in range(10):
        status, text, headers = gateway.post("x", body)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "too many failed logins came from this address" in text
    valid = gateway.key("valid", "viewer")["key"]
    assert gateway.post(valid, body)[0] == 200, "a valid key is always accepted"
    assert "this API key does not open the console" in gateway.journal()


def test_browsers_and_other_requests_get_nothing(gateway: Steered) -> None:
    key = gateway.key("browses", "admin")["key"]
    body = {"method": "stop", "params": {"names": ["git"]}}
    url = gateway.console_url
    for headers in ({"Origin": url}, {"Sec_Fetch_Site": "same-origin"}, {"Origin": "null"}):
        status, text, _ = gateway.post(key, body, **headers)
        assert (status, "programs" in text) == (403, True)
    assert gateway.post(key, body, Host="evil.example")[0] == 421
    assert gateway.post(key, body, method="PUT")[0] == 405
    bodies: list[object] = [[], "stop", {"params": {}}, {**body, "params": "git"}]
    for wrong in bodies:
        assert gateway.post(key, wrong)[0] == 400
    too_large = {"method": "stop", "params": {"names": "x" * 1024 * 1024}}
    status, text, headers = gateway.post(key, too_large)
    assert (status, headers["content-type"]) == (413, "application/x-ndjson")
    assert "the limit is 1048576" in read(text)[0]["error"]["message"]
    status, text, _ = gateway.post(key, {"id": "a", "method": "none", "params": {"a": "\n"}})
    assert (status, json.loads(text)["id"]) == (200, "a")
    assert gateway.server("git")["pid"], "nobody stopped it"
