"""Notifications of a server: to the one call that they belong to, or to everybody."""

from typing import Any

import pytest

from metamcp_worker.child.actions import CountOnce, ReplyToFront, TellFronts
from metamcp_worker.child.server_calls import LINGER_S_MAX
from metamcp_worker.ipc.frames import Notice
from tests.worker.child.talk import Talk, ready_legacy, ready_modern

LOG = "notifications/message"
OWN = "notifications/example.com/own"
LOGS = b'{"clientInfo":{"name":"c"},"logLevel":"info"}'
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def said(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":{"data": 1.0}}' % method.encode()


def noticed(front: int, call: int, method: str) -> list[Any]:
    return [ReplyToFront(front, Notice(method, b'{"data": 1.0}', call))]


@pytest.mark.promise("M23")
@pytest.mark.parametrize("method", [LOG, OWN])
@pytest.mark.parametrize("ready", [ready_legacy, ready_modern])
def test_what_comes_on_the_stream_of_a_call_belongs_to_it(method: str, ready: Any) -> None:
    talk: Talk = ready()
    talk.call(1, 10)
    talk.call(2, 20)
    assert talk.says(said(method), talk.keys()[0]) == noticed(1, 10, method)
    assert talk.says(said(method), talk.keys()[1]) == noticed(2, 20, method)


@pytest.mark.promise("M23")
@pytest.mark.parametrize("stream", [None, b""])
def test_a_log_message_on_a_shared_stream_goes_to_the_newest_call_of_the_only_caller(
    stream: bytes | None,
) -> None:
    talk = ready_legacy()
    talk.call(1, 10, peer=5)
    talk.call(1, 11, peer=5)
    assert talk.says(said(LOG), stream) == noticed(1, 11, LOG)


def test_a_log_message_that_several_can_have_caused_is_dropped_and_counted() -> None:
    talk = ready_legacy(timeout_s=1000.0)
    talk.call(1, 10, peer=5)
    talk.call(1, 11, peer=6)
    assert talk.says(said(LOG)) == [CountOnce("unattributed_log")]
    talk.cancel(1, 10)
    assert talk.says(said(LOG)) == [CountOnce("unattributed_log")]
    talk.tick(LINGER_S_MAX)
    assert talk.says(said(LOG), b"999") == [CountOnce("unattributed_log")]
    assert talk.says(said(LOG)) == noticed(1, 11, LOG)


def test_a_legacy_server_at_rest_logs_for_everybody() -> None:
    talk = ready_legacy()
    assert talk.says(said(LOG)) == [TellFronts(Notice(LOG, b'{"data": 1.0}'))]


def test_a_modern_server_logs_for_those_who_asked_for_it() -> None:
    talk = ready_modern()
    assert talk.says(said(LOG)) == [CountOnce("unattributed_log")]
    talk.call(1, 10, peer=5)
    assert talk.says(said(LOG)) == [CountOnce("unattributed_log")]
    talk.call(1, 11, peer=5, caller=LOGS)
    talk.call(1, 12, peer=5, caller=b"nonsense")
    assert talk.says(said(LOG)) == noticed(1, 11, LOG)
    talk.call(2, 20, caller=LOGS)
    assert talk.says(said(LOG)) == [CountOnce("unattributed_log")]


@pytest.mark.promise("M60")
@pytest.mark.parametrize("ready", [ready_legacy, ready_modern])
def test_an_unknown_notification_goes_to_the_only_caller_or_without_calls_to_everybody(
    ready: Any,
) -> None:
    talk = ready()
    everybody = [TellFronts(Notice(OWN, b'{"data": 1.0}'))]
    assert talk.says(said(OWN)) == everybody
    talk.call(1, 10)
    assert talk.says(said(OWN)) == noticed(1, 10, OWN)
    talk.call(1, 11)
    assert talk.says(said(OWN)) == [CountOnce("unattributed_log")]
    talk.cancel(1, 10)
    talk.cancel(1, 11)
    assert talk.says(said(OWN)) == [CountOnce("unattributed_log")]
    talk.tick(LINGER_S_MAX)
    assert talk.says(said(OWN)) == everybody
    assert talk.tells("x" * 300) == [CountOnce("broken_notification")]


@pytest.mark.parametrize(
    "method",
    [
        "notifications/resources/updated",
        "notifications/elicitation/complete",
        "notifications/tasks/status",
        "notifications/tasks",
    ],
)
def test_what_names_its_object_goes_to_all_fronts(method: str) -> None:
    talk = ready_legacy()
    talk.call(1, 10)
    assert talk.says(said(method), talk.keys()[0]) == [TellFronts(Notice(method, b'{"data": 1.0}'))]


def test_updates_of_a_resource_between_two_ticks_are_told_as_one() -> None:
    talk = ready_legacy()
    method = "notifications/resources/updated"
    one, other = (TellFronts(Notice(method, b'{"uri": "%b"}' % uri)) for uri in (b"a:", b"b:"))
    assert talk.tells(method, uri="a:") == [one]
    for _ in range(1000):
        assert talk.tells(method, uri="a:") == []
    assert talk.tells(method, uri="b:") == [other]
    assert talk.tick(0.25) == [one]
    assert talk.tick(0.25) == []
    assert talk.tells(method, uri="a:") == [one]


def test_the_id_of_our_subscription_is_taken_out_and_nothing_else() -> None:
    talk = ready_modern()
    method = "notifications/resources/updated"
    head = b'{"jsonrpc":"2.0","method":"%b","params":' % method.encode()
    own = b'"%b":2' % SUBSCRIPTION.encode()
    for params, left in (
        (b'{"_meta":{%b},"uri":"a://b", "n":1.0e1}', b'{"uri":"a://b","n":1.0e1}'),
        (b'{"uri":"a://b","_meta":{%b,"v/x":[1.0 ]}}', b'{"uri":"a://b","_meta":{"v/x":[1.0 ]}}'),
    ):
        found = talk.says(head + params % own + b"}")
        assert found == [TellFronts(Notice(method, left))]
    for odd in (b'{"subscriptionId": 1}', b'{"_meta":[ "subscriptionId"]}'):
        assert talk.says(head + odd + b"}") == [TellFronts(Notice(method, odd))]


def test_notifications_of_clients_reach_a_legacy_server_as_they_are() -> None:
    talk = ready_legacy()
    assert talk.tell(1, OWN, b'{"a":1.50}') == []
    assert talk.tell(1, OWN) == []
    assert talk.wrote[-2:] == [
        {"jsonrpc": "2.0", "method": OWN, "params": {"a": 1.5}},
        {"jsonrpc": "2.0", "method": OWN},
    ]


@pytest.mark.parametrize(
    "method",
    ["notifications/cancelled", "notifications/initialized", "notifications/roots/list_changed"],
)
def test_what_is_the_gateways_own_to_say_no_client_says(method: str) -> None:
    talk = ready_legacy()
    before = len(talk.wrote)
    talk.call(2, 2)
    params = b'{"requestId":%b}' % talk.keys()[0]
    assert talk.tell(1, method, params) == [CountOnce("untold_notification")]
    assert len(talk.wrote) == before + 1


def test_a_modern_or_unready_server_is_told_nothing_by_clients() -> None:
    for talk in (Talk(), ready_modern()):
        before = len(talk.wrote)
        assert talk.tell(1, OWN, b"{}") == [CountOnce("untold_notification")]
        assert len(talk.wrote) == before
