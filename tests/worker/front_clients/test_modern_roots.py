"""Clients of 2026-07-28 that are asked for their roots by the answer to their call."""

import pytest
from msgspec import Raw

from metamcp_worker.front_calls import mrtr
from metamcp_worker.front_calls.mrtr import ROOTS_KEY as KEY
from metamcp_worker.front_calls.request_facts import McpRequest
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError

pytestmark = pytest.mark.promise("M23")

ROOTED = b'{"clientCapabilities":{"roots":{}}}'
HERE = b'{"roots":[{"uri":"file:///here"}]}'


def request(method: str = "tools/call", caller: bytes = ROOTED, who: str = "0a") -> McpRequest:
    return McpRequest(method, {}, {}, caller, modern=True, who=who, unasked=True)


def placed(caller: bytes = ROOTED, answer: bytes = b"", directory: str = "") -> McpRequest:
    found = request(caller=caller)
    assert mrtr.place_roots(found, "local", answer, directory)
    assert not found.unasked
    return found


def test_only_who_has_roots_and_can_be_asked_is_asked() -> None:
    assert not mrtr.place_roots(request(), "local", b"", "/x")
    assert mrtr.place_roots(request("completion/complete"), "local", b"", "")
    assert mrtr.place_roots(request(caller=b"{}"), "local", b"", "")


def test_the_roots_tell_two_apart_that_say_the_same_of_themselves() -> None:
    here, there = placed(answer=HERE), placed(answer=HERE.replace(b"here", b"there"))
    assert here.rooted != there.rooted
    assert here.rooted == placed(answer=HERE).rooted != here.who
    assert (here.roots, bool(here.project)) == (HERE, True)


def test_a_project_is_its_roots_or_else_the_folder_of_its_client() -> None:
    nothing = placed(b"{}")
    assert (nothing.rooted, nothing.project, nothing.roots) == ("", "", b"")
    by_folder = placed(b"{}", directory="/here")
    assert by_folder.project == placed(answer=HERE, directory="/elsewhere").project
    assert by_folder.rooted == ""


def test_a_broken_answer_is_refused() -> None:
    with pytest.raises(ProtocolError, match=KEY):
        mrtr.place_roots(request(), "local", b"[]", "")


def test_our_answer_is_taken_out_of_those_for_the_server() -> None:
    both = {"inputResponses": Raw(codec.dump({KEY: Raw(HERE), "k1": 1})), "name": Raw(b'"x"')}
    left, found = mrtr.extract_roots(both)
    assert (found, bytes(left["inputResponses"])) == (HERE, b'{"k1":1}')
    alone = {"inputResponses": Raw(codec.dump({KEY: Raw(HERE)}))}
    assert mrtr.extract_roots(alone) == ({}, HERE)
    broken = {"inputResponses": Raw(b"1")}
    assert mrtr.extract_roots(broken) == (broken, b"")


def test_with_the_questions_of_a_modern_server_ours_is_asked_again() -> None:
    body = (
        b'{"resultType":"input_required","inputRequests":{"a":{"method":"m"}},"requestState":"s"}'
    )
    asked = mrtr.parse(mrtr.ask_roots_too(body))
    assert asked is not None
    assert set(asked.requests) == {"a", KEY}
    assert asked.state is not None
    assert mrtr.ask_roots_too(b'{"content":[]}') == b'{"content":[]}'
