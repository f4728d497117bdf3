"""The names of processes that serve one client each."""

import pytest

from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX


def test_a_name_leads_to_its_server_and_to_its_client() -> None:
    who = process_names.of_session("abc")
    name = process_names.own("git", who)
    assert (process_names.base(name), process_names.parse_client(name)) == ("git", who)
    assert (process_names.base("git"), process_names.parse_client("git")) == ("git", "")


def test_the_word_for_a_session_is_always_the_same_and_does_not_tell_its_id() -> None:
    who = process_names.of_session("abc")
    assert who == process_names.of_session("abc")
    assert len(who) == 12
    assert int(who, 16)
    assert who != process_names.of_session("abd")


def test_a_client_without_a_session_is_what_it_says_it_is_at_one_endpoint() -> None:
    words = {
        process_names.of_client(principal, endpoint, identity)
        for principal in ("local", "other")
        for endpoint in ("default", "dev")
        for identity in (b'{"name":"a"}', b'{"name":"b"}')
    }
    assert len(words) == 8
    assert process_names.of_client("local", "dev", b"a") == process_names.of_client(
        "local", "dev", b"a"
    )


@pytest.mark.promise("M82")
def test_the_same_roots_are_the_same_word_in_any_order_for_one_principal() -> None:
    one, other = ("file:///a", "file:///b"), ("file:///b", "file:///a")
    word = process_names.of_project("local", one)
    assert word == process_names.of_project("local", other)
    assert word != process_names.of_project("other", one)
    assert word != process_names.of_project("local", one[:1])
    assert process_names.of_project("local", ()) == ""


@pytest.mark.promise("M77")
def test_nothing_that_a_client_can_say_of_itself_is_the_word_for_a_session() -> None:
    named = {
        process_names.of_client("local", "default", b"%d" % number)[0] for number in range(200)
    }
    assert named.isdisjoint({process_names.of_session(str(number))[0] for number in range(200)})


@pytest.mark.parametrize("identity", [b"", b"x" * (IDENTITY_BYTES_MAX + 1)])
def test_who_does_not_say_who_it_is_is_served_by_the_server_itself(identity: bytes) -> None:
    who = process_names.of_client("local", "default", identity)
    assert process_names.own("git", who) == "git"
