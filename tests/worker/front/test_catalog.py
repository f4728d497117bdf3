"""What an endpoint merges of its servers: order, owners, collisions, hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.catalogue import ServerCatalogue
from metamcp_worker.front.catalog import URI_BYTES_MAX, Catalog, Merged, Owner
from metamcp_worker.spec import EndpointSpec

from .offers import MODERN, endpoint, offer, prompt, resource, template


def catalog(**offers: ServerCatalogue) -> Catalog:
    """These servers, all of them listed."""
    found = Catalog()
    for server, catalogue in offers.items():
        found.put(server, catalogue)
        found.set_listed(server, True)
    return found


def merged(spec: EndpointSpec, **offers: ServerCatalogue) -> Merged:
    return catalog(**offers).merge(spec)


def listed(found: Merged, kind: str) -> list[str]:
    return [entry.key for entry in found.lists[kind]]


@pytest.mark.promise("M20")
def test_lists_follow_the_order_of_the_endpoint_and_then_the_servers_own() -> None:
    found = merged(endpoint("b", "a"), a=offer("z", "y"), b=offer("x", "w"))
    assert listed(found, "tools") == ["b__x", "b__w", "a__z", "a__y"]


@pytest.mark.promise("M25")
def test_a_name_leads_to_server_and_original_by_table() -> None:
    found = merged(endpoint("a", style="flat"), a=offer("b_c.d", protocol=MODERN))
    assert found.tool("a_b_c_d") == Owner("a", b'"b_c.d"', legacy=False)
    assert found.tool("a_b_c.d") is None


@pytest.mark.promise("M25")
def test_colliding_tools_and_prompts_both_get_a_tail_and_keep_their_owners() -> None:
    spec = endpoint("a", "b", style="bare")
    found = merged(spec, a=offer("x", prompts=[prompt("p")]), b=offer("x", prompts=[prompt("p")]))
    owners = [owner.server for name in listed(found, "tools") if (owner := found.tool(name))]
    assert owners == ["a", "b"]
    owners = [owner.server for name in listed(found, "prompts") if (owner := found.prompt(name))]
    assert owners == ["a", "b"]


def test_a_disabled_tool_is_neither_listed_nor_found_nor_renames_others() -> None:
    spec = endpoint("a", "b", style="bare", disabled=(("a", "x"),))
    found = merged(spec, a=offer("x", "y"), b=offer("x"))
    assert listed(found, "tools") == ["y", "x"]
    assert found.tool("x") == Owner("b", b'"x"')


def test_a_server_that_is_away_keeps_its_names_and_leaves_the_lists() -> None:
    servers = catalog(a=offer("x"), b=offer("x"))
    before = servers.merge(endpoint("a", "b", style="bare"))
    assert servers.set_listed("a", False)
    assert not servers.set_listed("a", False)
    after = servers.merge(endpoint("a", "b", style="bare"))
    assert listed(after, "tools") == listed(before, "tools")[1:]
    assert after.tools == before.tools


def test_a_forgotten_server_takes_its_names_with_it() -> None:
    servers = catalog(a=offer("x"), b=offer("x"))
    servers.forget("a")
    found = servers.merge(endpoint("a", "b", style="bare"))
    assert listed(found, "tools") == ["x"]
    assert found.unknown == ("a",)


@pytest.mark.promise("M20")
def test_the_first_server_keeps_a_uri_and_the_rest_is_noted() -> None:
    one, other = offer(resources=[resource("file:///x")]), offer(resources=[resource("file:///x")])
    found = merged(endpoint("b", "a"), a=one, b=other)
    assert listed(found, "resources") == ["file:///x"]
    assert found.resource("file:///x") == Owner("b", b'"file:///x"')
    assert found.notes == ("a also lists 'file:///x'; it stays with b",)


def test_a_tool_that_one_server_lists_twice_appears_once() -> None:
    found = merged(endpoint("a"), a=offer("x", "x"))
    assert listed(found, "tools") == ["a__x"]
    assert found.notes == ("a lists tools 'x' twice; the first one counts",)


def test_what_nobody_could_ask_for_is_left_out() -> None:
    long = resource("file:///" + "x" * URI_BYTES_MAX)
    broken = [Raw(b'{"title":"no name"}'), Raw(b'{"name":7}'), Raw(b"[]")]
    found = merged(endpoint("a"), a=offer("x", *broken, resources=[long]))
    assert listed(found, "tools") == ["a__x"]
    assert listed(found, "resources") == []


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("file:///notes/today", "notes"),
        ("file:///notes/2026/today", "files"),
        ("file:///", "files"),
        ("db://main/users?limit=3", "db"),
        ("db://main/users", "db"),
        ("http://elsewhere/", None),
        ("xfile:///notes/today", None),
        ("fixed://one", "db"),
        ("fixed://one/two", None),
    ],
)
def test_a_uri_that_is_not_listed_goes_to_the_most_specific_template(
    uri: str, server: str | None
) -> None:
    found = merged(
        endpoint("files", "notes", "db"),
        files=offer(templates=[template("file:///{+path}")]),
        notes=offer(templates=[template("file:///notes/{day}")]),
        db=offer(templates=[template("db://main/{table}{?limit}"), template("fixed://one")]),
    )
    owner = found.resource(uri)
    assert (owner.server if owner else None) == server


@pytest.mark.promise("M98")
def test_a_hostile_template_does_not_hold_up_matching() -> None:
    evil = template("x:" + "{+a}a" * 200 + "b")
    found = merged(endpoint("a", "b"), a=offer(templates=[evil]), b=offer())
    assert found.resource("x:" + "a" * 2000) is None


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_can_be_a_template_and_a_uri(text: str, uri: str) -> None:
    found = merged(endpoint("a", "b"), a=offer(templates=[template(text)]), b=offer())
    assert found.resource(uri) in {
        None,
        Owner("a", found.lists["resourceTemplates"][0].item.raw_key),
    }
    assert found.resource_or_template(text) is not None


def test_the_only_server_of_an_endpoint_gets_every_other_uri() -> None:
    found = merged(endpoint("a"), a=offer(protocol=MODERN))
    assert found.resource("any://thing") == Owner("a", legacy=False)
    assert merged(endpoint("a", "b"), a=offer(), b=offer()).resource("any://thing") is None


@pytest.mark.promise("M28")
def test_a_hash_moves_only_with_the_list_that_moved() -> None:
    before = merged(endpoint("a"), a=offer("x", prompts=[prompt("p")]))
    after = merged(endpoint("a"), a=offer("x", "y", prompts=[prompt("p")]))
    moved = [kind for kind in before.hashes if before.hashes[kind] != after.hashes[kind]]
    assert moved == ["tools"]


def test_instructions_stand_under_the_names_of_their_servers() -> None:
    def told(text: str) -> ServerCatalogue:
        return ServerCatalogue(protocol=MODERN, instructions=text)

    servers = catalog(a=told("Use A."), b=offer(), c=told("Use C."))
    spec = endpoint("a", "b", "c")
    assert servers.merge(spec).instructions == "# a\n\nUse A.\n\n# c\n\nUse C."
    assert servers.merge(endpoint("c")).instructions == "Use C."
    servers.set_listed("a", False)
    assert servers.merge(spec).instructions == "# c\n\nUse C."
    assert servers.merge(endpoint("b")).instructions is None
