"""The gate knows every method that the front can answer, and what each of them needs."""

import pytest

from metamcp_worker.access import gate
from metamcp_worker.access.gate import Principal, ScopeMissing
from metamcp_worker.catalog.views import LIST_METHODS
from metamcp_worker.front_calls import mcp_request, mrtr
from metamcp_worker.front_clients import dialogue
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.spec import EndpointSpec

NOBODY = Principal(name="key:a", scopes=frozenset())
ALL = Principal(name="key:b")


def test_every_method_that_the_front_answers_has_a_row() -> None:
    answered = {*LIST_METHODS, *mcp_request.METHODS, *mrtr.METHODS, *dialogue.OURS}
    answered |= {mcp_request.COMPLETE, "initialize", "ping", "server/discover"}
    answered |= {"subscriptions/listen"}
    assert sorted(answered - gate.TABLE.keys()) == []


@pytest.mark.parametrize(
    "method", ["x/custom", "sampling/createMessage", "notifications/x", "Tools/list"]
)
def test_a_method_without_a_row_does_not_exist_for_a_credential(method: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        gate.authorize(ALL, "dev", method, "")
    assert refused.value.code == Code.METHOD_NOT_FOUND
    gate.authorize(gate.USER, "dev", method, "")


@pytest.mark.parametrize(("method", "scope"), gate.TABLE.items())
def test_a_message_needs_the_scope_of_its_row(method: str, scope: str) -> None:
    gate.authorize(ALL, "dev", method, "")
    gate.authorize(Principal(name="key:c", scopes=frozenset({scope})), "dev", method, "")
    others = frozenset(gate.SCOPES) - {scope}
    if scope == gate.ANY:
        gate.authorize(NOBODY, "dev", method, "")
        return
    with pytest.raises(ScopeMissing) as refused:
        gate.authorize(Principal(name="key:d", scopes=others), "dev", method, "")
    assert refused.value.scope == scope


def test_scopes_are_all_without_a_list_and_unknown_ones_grant_nothing() -> None:
    assert gate.parse_scopes(()) == (None, None)
    assert gate.parse_scopes(("mcp:list", "admin:*")) == (frozenset({"mcp:list"}), None)
    assert gate.parse_scopes(("admin:*",)) == (frozenset(), None)


def test_a_scope_for_one_server_shows_this_server_alone() -> None:
    scopes, servers = gate.parse_scopes(("mcp:list", "mcp:call:git"))
    assert scopes == frozenset({"mcp:list", "mcp:call"})
    assert servers == frozenset({"git"})
    assert gate.parse_scopes(("mcp:call", "mcp:call:git")) == (frozenset({"mcp:call"}), None)


def test_scopes_for_servers_that_an_endpoint_does_not_have_count_for_nothing_there() -> None:
    whole = EndpointSpec(name="dev", servers=("acme:git", "time"))
    assert gate.select_servers(whole, frozenset({"git", "gone"})) == frozenset({"git"})
    assert gate.select_servers(whole, frozenset({"git,time"})) == frozenset()


def test_a_part_of_an_endpoint_has_the_paths_of_the_whole() -> None:
    whole = EndpointSpec(name="dev", servers=("acme:git", "acme:time"))
    part = gate.EndpointPart("dev", frozenset({"git"})).of(whole)
    assert part.servers == ("acme:git",)
    assert part.base == whole.base
    assert part.name == "dev[git]"
    assert part.part_of == "dev"
