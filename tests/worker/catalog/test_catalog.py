"""What an endpoint merges of its servers: order, owners, collisions, hashes."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.catalog.catalog import Catalog, MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.ipc.exposed_names import is_switched_on
from metamcp_worker.ipc.server_catalog import CachingHint, ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec
from tests.worker.front.offers import MODERN, endpoint, offer, prompt, resource, tool


def catalog(**offers: ServerCatalogue) -> Catalog:
    """These servers, all of them listed."""
    found = Catalog()
    for server, catalogue in offers.items():
        found.put(server, catalogue)
        found.set_listed(server, True)
    return found


def merged(spec: EndpointSpec, **offers: ServerCatalogue) -> MergedCatalog:
    return catalog(**offers).merge(spec)


def listed(found: MergedCatalog, kind: str) -> list[str]:
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


def test_a_pattern_takes_tools_out_of_lists_and_calls_before_and_after_they_appear() -> None:
    switches = {"a": ({"*": False, "read_*": True, "read_secret": False},)}
    servers = catalog(a=offer("read_one", "read_secret", "wipe"), b=offer("wipe"))
    spec = replace(endpoint("a", "b", style="bare"), switches=switches)
    assert listed(servers.merge(spec), "tools") == ["read_one", "wipe"]
    servers.put("a", offer("read_two", "wipe_more"))
    assert listed(servers.merge(spec), "tools") == ["read_two", "wipe"]
    alone = replace(endpoint("a", style="bare"), switches=switches)
    assert servers.merge(alone).tool("not_listed_yet") is None


@pytest.mark.parametrize(
    ("layers", "tool", "on"),
    [
        ([], "x", True),
        ([{"y": False}], "x", True),
        ([{"*": False, "x": True}], "x", True),
        ([{"*": False, "x*": True}], "x1", True),
        ([{"x*": True, "*1": False}], "x1", False),
        ([{"x?": False, "x1": True}], "x1", True),
        ([{"*": False}, {"x": True}], "x", True),
        ([{"x": True}, {"*": False}], "x", False),
        ([{"x": False}, {"y": True}], "x", False),
    ],
)
def test_the_last_layer_wins_and_in_it_the_name_then_a_pattern_that_switches_off(
    layers: list[dict[str, bool]], tool: str, on: bool
) -> None:
    assert is_switched_on(layers, tool) is on


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


def test_a_tool_that_one_server_lists_twice_appears_once() -> None:
    found = merged(endpoint("a"), a=offer("x", "x"))
    assert listed(found, "tools") == ["a__x"]


def test_what_nobody_could_ask_for_is_left_out() -> None:
    broken = [Raw(b'{"title":"no name"}'), Raw(b'{"name":7}'), Raw(b"[]")]
    assert listed(merged(endpoint("a"), a=offer("x", *broken)), "tools") == ["a__x"]


def app(uri: str, name: str = "show", **more: object) -> Raw:
    """A tool with a user interface."""
    return tool(name, _meta={"ui": {"resourceUri": uri, "x": 1.0}, **more}, x=[1.0])


@pytest.mark.promise("M20")
def test_the_script_of_an_app_calls_tools_by_the_names_of_its_server() -> None:
    found = merged(
        endpoint("a", "b", "c"),
        a=offer("both", "own", app("ui://a/x")),
        b=offer("both", "other", resources=[resource("ui://b/x")]),
        c=offer("plain", "own"),
    )
    assert found.tool("own") == Owner("a", b'"own"')
    assert found.tool("other") == Owner("b", b'"other"')
    assert found.tool("both") is None, "two servers have it"
    assert found.tool("plain") is None, "no app can mean it"
    assert "own" not in listed(found, "tools")


def test_a_disabled_tool_is_no_apps_either() -> None:
    spec = endpoint("a", "b", disabled=(("a", "own"),))
    assert merged(spec, a=offer("own", app("ui://a/x")), b=offer()).tool("own") is None


@pytest.mark.promise("M22")
def test_a_tool_names_its_interface_as_the_endpoint_exposes_it() -> None:
    own = tool("plain", _meta={"ui": {"resourceUri": "ui://x/other"}})
    flat = {"ui/resourceUri": "ui://x/1"}
    second = offer(own, app("ui://x/1", **flat), resources=[resource("ui://x/1")])
    found = merged(endpoint("a", "b"), a=offer(app("ui://x/1")), b=second)
    plain, moved = (entry.item.raw for entry in found.lists["tools"][1:])
    assert plain == bytes(own)
    assert moved == bytes(app("ui://x/1", **flat)).replace(b"ui://x/1", b"ui://b/x/1")
    assert found.resource("ui://x/1") == Owner("a")
    assert found.resource("ui://b/x/1") == Owner("b", b'"ui://x/1"')


@pytest.mark.parametrize("broken", [b'{"ui":[]}', b'{"ui":{"resourceUri":7}}', b"{}"])
def test_what_is_no_link_of_a_tool_is_left_alone(broken: bytes) -> None:
    schema = b'{"type":"object","title":"resourceUri"}'
    raw = Raw(b'{"name":"t","inputSchema":%b,"_meta":%b}' % (schema, broken))
    found = merged(endpoint("a"), a=offer(raw))
    assert found.lists["tools"][0].item.raw == bytes(raw)
    assert found.resource("ui://x") == Owner("a")


@pytest.mark.promise("M20")
def test_a_list_holds_as_long_as_its_strictest_server_says() -> None:
    def kept(server: ServerCatalogue, **hints: CachingHint) -> ServerCatalogue:
        return replace(server, hints=hints)

    hour, minute = CachingHint(3600_000, "public"), CachingHint(60_000, "private")
    servers = catalog(
        a=kept(offer("x", protocol=MODERN), tools=hour, discover=hour),
        b=kept(offer("y", prompts=[prompt("p")], protocol=MODERN), tools=minute, prompts=hour),
        c=kept(offer("z"), tools=hour),
    )
    assert servers.merge(endpoint("a")).hints["tools"] == hour
    assert servers.merge(endpoint("a", "b")).hints == {
        "tools": CachingHint(60_000, "private"), "prompts": hour, "resources": CachingHint(),
        "resourceTemplates": CachingHint(), "discover": CachingHint(),
    }  # fmt: skip
    assert servers.merge(endpoint("a", "c")).hints["tools"] == CachingHint()
    servers.set_listed("a", False)
    assert servers.merge(endpoint("a")).hints["tools"] == CachingHint(), (
        "it may come back at any moment"
    )
    assert servers.merge(endpoint("b", "z")).hints["prompts"] == CachingHint()


@pytest.mark.promise("M83")
def test_clients_of_each_era_see_what_a_server_offers_in_it() -> None:
    servers = catalog(a=offer("x", "new", protocol=MODERN), b=offer("y"))
    spec = endpoint("a", "b")
    assert not servers.two(spec)
    servers.put("a@legacy", offer("x", "old"))
    assert servers.two(spec)
    assert not servers.two(endpoint("b"))
    now, before = servers.merge(spec), servers.merge(spec, legacy=True)
    assert [entry.key for entry in now.lists["tools"]] == ["a__x", "a__new", "b__y"]
    assert [entry.key for entry in before.lists["tools"]] == ["a__x", "a__old", "b__y"]
    assert (now.eras, before.eras) == ({"a": False, "b": True}, {"a": True, "b": True})
    servers.put("a@legacy", offer("x", "new"))
    same = servers.merge(spec, legacy=True)
    assert all(
        one.item is other.item
        for one, other in zip(now.lists["tools"], same.lists["tools"], strict=True)
    ), "what both offer is there once"
    servers.keep_back({("a@legacy", "x"): "Why not."})
    assert servers.merge(spec).kept == {}
    assert servers.merge(spec, legacy=True).kept == {("a", "x"): "Why not."}


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
