"""A server that wants to be authorized before it has shown what it offers."""

import json
from typing import Any

import pytest

from metamcp_worker.child.actions import Fail
from metamcp_worker.child.jsonrpc_lines import describe_auth_error
from tests.worker.child.talk import Talk, legacy

Json = dict[str, Any]


def opened(method: str, message: str, data: Json) -> Fail:
    """What becomes of a start in which this request meets this error."""
    talk = Talk(url="https://mcp.example/")
    if method != "server/discover":
        talk.refuses("server/discover", -32601)
    if method == "tools/list":
        talk.answers("initialize", legacy())
    key = talk.requests[-1].key
    assert talk.requests[-1].method == method
    error = {"code": -10005, "message": message, "data": {"server": "fake", **data}}
    (failed,) = talk.session.on_request_failed(key, json.dumps(error).encode(), talk.now)
    assert isinstance(failed, Fail)
    return failed


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
def test_a_server_that_needs_a_person_at_its_start_is_down_and_says_what_to_run(
    method: str,
) -> None:
    data: Json = {"authorization_url": "https://as.example/x"}
    failed = opened(method, "server 'fake' needs authorization: open https://…", data)
    assert failed == Fail("authorization", "it needs authorization: run 'metamcp login fake'")


def test_a_server_that_cannot_be_authorized_says_why() -> None:
    failed = opened("initialize", "server 'fake' was not authorized: access_denied", {})
    assert failed == Fail("authorization", "it was not authorized: access_denied")


@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-10001,"message":"server \'fake\' needs authorization"}',
        b'{"code":-32001,"message":"x","data":{"authorization_url":"https://as.example"}}',
        b'{"code":-10005,"message":"x","data":[]}',
        b'{"code":"-10005"}',
        b"[]",
    ],
)
def test_other_errors_are_about_something_else(error: bytes) -> None:
    assert describe_auth_error(error, "fake") == ""
