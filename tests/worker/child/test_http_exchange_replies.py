"""What an HTTP answer says about the request."""

import json
from typing import Any

import pytest

from metamcp_worker.child import http_exchange
from metamcp_worker.child.http_exchange import RefusalMeaning
from metamcp_worker.child.jsonrpc_lines import ServerErrors
from metamcp_worker.ipc import codec

KEY = b"7"


def refused(status: int, body: object, *, in_session: bool = False) -> Any:
    """The refusal as JSON, or the word that it comes down to."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = http_exchange.refusal(status, raw, KEY, in_session=in_session)
    return found if isinstance(found, RefusalMeaning) else json.loads(found)


def error(code: int, message: str = "no", id: object = 7) -> Any:  # noqa: A002 - the wire's own name
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, "x": 1.0}}


def test_a_session_that_is_over_is_told_from_a_request_that_took_too_long() -> None:
    raw = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"%b"}}'
    assert http_exchange.session_over(raw % b"Session not found")
    assert not http_exchange.session_over(raw % b"Request timed out")
    assert not http_exchange.session_over(
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"-32001 session"}}'
    )


@pytest.mark.parametrize("id", [b'"7"', b"7"])
def test_an_answer_on_a_stream_is_taken_if_its_id_is_the_number_or_the_number_as_a_string(
    id: bytes,  # noqa: A002 - the wire's own name
) -> None:
    raw = b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id
    assert http_exchange.answer(raw, KEY, streamed=True) == b'{"jsonrpc":"2.0","id":7,"result":{}}'
    assert http_exchange.with_number_id(raw) == b'{"jsonrpc":"2.0","id":7,"result":{}}'


@pytest.mark.parametrize("id", [b'"8"', b"8", b"null", b'"x"', b'"7.0"', b'""'])
def test_an_answer_on_a_stream_with_another_id_is_not_taken(
    id: bytes,  # noqa: A002 - the wire's own name
) -> None:
    raw = b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id
    assert http_exchange.answer(raw, KEY, streamed=True) is None
    asked = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % id
    assert http_exchange.with_number_id(asked) == asked


def test_an_answer_stays_as_it_came() -> None:
    for raw in (
        b'{"jsonrpc":"2.0","id":7,"result":{"a": 1.0}}',
        b'{"id":7,"result":{},"jsonrpc":"2.0"}',
    ):
        assert http_exchange.answer(raw, KEY) is raw


@pytest.mark.parametrize("id", [b'"7"', b"null", b"7.0", b'"server-error"', b"8"])
def test_an_answer_with_another_id_gets_that_of_its_request(id: bytes) -> None:  # noqa: A002 - as above
    raw = b'{"jsonrpc": "2.0", "id": %b, "result": {"a": 1.0, "b":null}}' % id
    assert (
        http_exchange.answer(raw, KEY) == b'{"jsonrpc":"2.0","id":7,"result":{"a": 1.0, "b":null}}'
    )


def test_an_answer_without_id_gets_that_of_its_request() -> None:
    raw = b'{"jsonrpc":"2.0","error":{"code":-1,"x":1.0}}'
    assert http_exchange.answer(raw, KEY) == b'{"jsonrpc":"2.0","id":7,"error":{"code":-1,"x":1.0}}'


def test_strings_that_nobody_has_looked_into_stand_behind_the_id() -> None:
    raw = b'{"result":{"a":"\xff"},"id":7,"jsonrpc":"2.0"}'
    assert http_exchange.answer(raw, KEY) == b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff"}}'


def test_requests_and_notifications_are_no_answers() -> None:
    assert http_exchange.answer(b'{"jsonrpc":"2.0","method":"m"}', KEY) is None
    assert http_exchange.answer(b'{"jsonrpc":"2.0","id":7,"method":"m"}', KEY) is None


@pytest.mark.parametrize(
    "raw", [b"", b"<html>", b"[]", b'{"id":7,"result":{}}', b'{"jsonrpc":"1.0"}']
)
def test_what_is_no_message_is_malformed(raw: bytes) -> None:
    with pytest.raises(codec.Malformed):
        http_exchange.answer(raw, KEY)


def test_a_message_becomes_one_line() -> None:
    assert http_exchange.one_line(b'\n{\r\n  "a":\n1}\n') == b'{    "a": 1}'
    assert http_exchange.one_line(b'\xef\xbb\xbf{"a":1}') == b'{"a":1}'


def test_an_error_whose_members_are_of_other_types_is_still_the_answer() -> None:
    strange = {"jsonrpc": "2.0", "id": 7, "error": {"code": "x"}}
    assert refused(400, strange) == refused(404, strange, in_session=True) == strange


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_an_error_of_the_server_is_the_answer_whatever_the_status(status: int) -> None:
    found = refused(status, error(-32601))
    assert found == error(-32601)
    assert refused(status, error(-32022, id=None)) == error(-32022)


@pytest.mark.parametrize("body", [b"", b"<html>", {"error": {"code": 1}}, {"jsonrpc": "2.0"}, []])
def test_without_a_json_rpc_error_only_the_status_says_something(body: object) -> None:
    assert refused(502, body) is RefusalMeaning.NO_ANSWER
    assert refused(404, body) is RefusalMeaning.NO_ANSWER


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (404, error(-32600, "Session not found", id="server-error")),
        (404, error(-32001, "Session not found", id=None)),
        (404, error(-32001, "Session not found", id=7)),
        (400, error(-32000, "Bad Request: No valid session ID provided", id=None)),
        (400, error(-32000, "Bad Request: Server not initialized", id=None)),
    ],
)
def test_a_forgotten_session_is_recognised_in_every_form_that_servers_give_it(
    status: int, body: object
) -> None:
    assert refused(status, body, in_session=True) is RefusalMeaning.SESSION_OVER
    assert refused(status, body) is not RefusalMeaning.SESSION_OVER


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, error(-32601)),
        (400, error(-32602, "no such session argument")),
        (400, error(-32600, "other", id=None)),
        (500, error(-32603, "session", id=None)),
    ],
)
def test_an_error_about_the_request_does_not_end_the_session(status: int, body: Any) -> None:
    assert refused(status, body, in_session=True)["error"] == body["error"]


@pytest.mark.parametrize(
    ("status", "words", "may_have_run"),
    [
        (401, "set `headers` or `oauth`", False),
        (403, "check `headers` or `oauth`", False),
        (404, "check the path", False),
        (408, "HTTP 408 Request Timeout", True),
        (502, "HTTP 502 Bad Gateway", True),
        (599, "HTTP 599", True),
        (202, "not an answer", True),
    ],
)
def test_a_status_becomes_a_sentence_with_what_to_do(
    status: int, words: str, may_have_run: bool
) -> None:
    found = json.loads(http_exchange.trouble(ServerErrors("far"), status))
    assert found["message"].startswith("server 'far' answered HTTP")
    assert words in found["message"]
    assert found["data"] == {"server": "far", "status": status, "may_have_run": may_have_run}


def test_the_challenge_of_a_server_is_kept_up_to_its_limit() -> None:
    found = json.loads(
        http_exchange.trouble(ServerErrors("far"), 401, 'Bearer resource_metadata="u"')
    )
    assert found["data"]["www_authenticate"] == 'Bearer resource_metadata="u"'
    found = json.loads(http_exchange.trouble(ServerErrors("far"), 401, "x" * 5000))
    assert len(found["data"]["www_authenticate"]) == http_exchange.CHALLENGE_CHARS_MAX


def test_objections_to_how_the_gateway_speaks_are_told_from_other_errors() -> None:
    assert http_exchange.objection(json.dumps(error(-32020)).encode()) == -32020
    assert http_exchange.objection(json.dumps(error(-32022)).encode()) == -32022
    assert http_exchange.objection(json.dumps(error(-32021)).encode()) == 0
    assert http_exchange.objection(b'{"jsonrpc":"2.0","id":7,"result":{"text":"-32020"}}') == 0


def test_a_refusal_that_names_the_request_is_about_it() -> None:
    assert http_exchange.about(json.dumps(error(-1)).encode(), KEY)
    assert not http_exchange.about(json.dumps(error(-1, id=None)).encode(), KEY)
    assert not http_exchange.about(b"<html>", KEY)


@pytest.mark.parametrize("bad", ["a b", "é", "a\n", "x" * 2000])
def test_a_session_id_must_fit_into_a_header(bad: str) -> None:
    assert not http_exchange.session_id_ok(bad)
    assert http_exchange.session_id_ok("s-1~")
    assert http_exchange.session_id_ok("")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("86400", http_exchange.RETRY_AFTER_S_MAX),
        ("9" * 5000, http_exchange.RETRY_AFTER_S_MAX),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", http_exchange.RETRY_AFTER_S_MAX),
        ("-5", 0),
        ("soon", 0),
        ("", 0),
    ],
)
def test_how_long_a_server_wants_to_be_left_alone_is_bounded(value: str, seconds: float) -> None:
    assert http_exchange.retry_after_s(value, now=60.0) == seconds


def test_a_refused_call_says_when_it_may_be_tried_again() -> None:
    told = json.loads(http_exchange.trouble(ServerErrors("far"), 429, "", 2.0))
    assert told["data"]["retry_after_ms"] == 2000
    assert told["data"]["may_have_run"] is False
    assert (
        "retry_after_ms" not in json.loads(http_exchange.trouble(ServerErrors("far"), 429))["data"]
    )
