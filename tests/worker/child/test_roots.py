"""Servers that ask for the roots of their client, which is known for a process of a single one."""

from typing import Any

import pytest

from metamcp_worker.child.actions import CountOnce, Relisted, ReplyToFront
from metamcp_worker.child.server_session import ROOTS_S
from metamcp_worker.ipc import codec, roots
from tests.worker.child.talk import Talk, legacy, ready_legacy

pytestmark = pytest.mark.promise("M23")

HERE = '{"roots":[{"uri":"file:///here"}]}'
THERE = b'{"roots":[{"uri":"file:///there"}]}'
CALLER = '{"clientCapabilities":{"roots":{"listChanged":true},"x":{}},"clientInfo":{"name":"a"}}'


def told(talk: Talk, number: object) -> Any:
    (found,) = talk.answered(number)
    return found["result"]


def test_before_any_client_is_there_there_are_no_roots_and_nothing_is_wrong() -> None:
    talk = Talk(era="legacy")
    talk.answers("initialize", legacy())
    assert talk.asks("s", roots.METHOD) == []
    assert told(talk, "s") == {"roots": []}


def test_that_it_asks_is_part_of_what_it_offers() -> None:
    talk = ready_legacy()
    assert not talk.last_catalogue().catalogue.asksRoots
    (news,) = talk.asks("s", roots.METHOD)
    assert isinstance(news, Relisted)
    assert news.catalogue.asksRoots
    assert talk.asks("t", roots.METHOD) == []
    assert ready_legacy(asks_roots="ahead").last_catalogue().catalogue.asksRoots == "ahead"


def test_a_process_for_all_asks_who_called_and_says_that_it_did_if_it_asks_ahead_too() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    question, news = talk.asks("s", roots.METHOD)
    assert isinstance(question, ReplyToFront)
    assert isinstance(news, Relisted)
    assert news.catalogue.asksRoots == "in calls"
    assert len(talk.asks("t", roots.METHOD)) == 1
    talk.replies(1, 2, THERE)
    talk.answers("tools/call", {"content": []})
    news, count = talk.asks("u", roots.METHOD)
    assert isinstance(news, Relisted)
    assert count == CountOnce("lent_roots")
    assert told(talk, "u") == {"roots": []}
    assert talk.asks("v", roots.METHOD) == []


def test_a_client_without_roots_lends_none() -> None:
    talk = ready_legacy(asks_roots="ahead")
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    talk.replies(1, 1, roots.NONE)
    talk.answers("tools/call", {"content": []})
    assert CountOnce("lent_roots") not in talk.asks("t", roots.METHOD)


def test_a_process_of_one_client_knows_its_roots_and_what_it_can_do() -> None:
    talk = Talk(era="legacy", caller=CALLER, roots=HERE)
    assert talk.asked("initialize")["params"]["capabilities"] == {"roots": {"listChanged": True}}
    talk.answers("initialize", legacy())
    talk.asks("s", roots.METHOD)
    assert told(talk, "s") == codec.value(HERE.encode())


def test_a_call_waits_until_the_server_had_time_for_the_roots() -> None:
    talk = Talk(era="legacy", caller=CALLER, roots=HERE)
    talk.answers("initialize", legacy())
    talk.asks("s", roots.METHOD)
    talk.answers("tools/list", {"tools": []})
    talk.call(1, 5)
    assert not talk.calls()
    talk.tick(ROOTS_S)
    assert len(talk.calls()) == 1


def test_other_roots_are_told_once_and_asked_for_anew() -> None:
    talk = ready_legacy(caller=CALLER, roots=HERE)
    talk.tell(1, roots.TOLD, HERE.encode())
    talk.tell(1, roots.TOLD, THERE)
    talk.tell(2, roots.TOLD, THERE)
    assert [one.get("method") for one in talk.wrote].count(roots.CHANGED) == 1
    talk.asks("s", roots.METHOD)
    assert told(talk, "s") == codec.value(THERE)
