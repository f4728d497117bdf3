"""What a client sees of an endpoint: pages, cursors, eras, capabilities, changes."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.catalog import views
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.server_catalog import (
    DISCOVER,
    GATEWAYS,
    CachingHint,
    ServerCatalogue,
    gateway_id,
)
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, ResultLimits
from tests.worker.front.offers import endpoint, offer, prompt, resource, template, tool


def made(*endpoints: EndpointSpec, **offers: ServerCatalogue) -> Viewers:
    """These endpoints over these servers, all of them listed."""
    found = Viewers()
    found.configure(FrontSpec(version="1.2", endpoints=endpoints, hosts=()))
    for server, catalogue in offers.items():
        found.put(server, catalogue)
        found.set_listed(server, True)
    found.refresh()
    return found


def view(spec: EndpointSpec, **offers: ServerCatalogue) -> View:
    found = made(spec, **offers).get(spec.name)
    assert found is not None
    return found


def page(seen: View, method: str, cursor: object = None, *, modern: bool = False) -> dict[str, Any]:
    params = {} if cursor is None else {"cursor": Raw(codec.dump(cursor))}
    result: dict[str, Any] = codec.value(seen.page(method, params, modern=modern))
    return result


@pytest.mark.promise("M22")
def test_a_definition_keeps_every_byte_but_its_name() -> None:
    raw = (
        b'{"description":"caf\\u00e9","x-vendor":[1.0,1e400,123456789012345678901234567890],'
        b'"name":"t","inputSchema":{"type":"object", "x":null},"annotations":{"readOnlyHint":true}}'
    )
    seen = view(endpoint("a"), a=offer(Raw(raw)))
    answer = seen.page("tools/list", {}, modern=False)
    assert answer == b'{"tools":[' + raw.replace(b'"t"', b'"a__t"') + b"]}"
    bare = view(endpoint("a", style="bare"), a=offer(Raw(raw)))
    assert bare.page("tools/list", {}, modern=False) == b'{"tools":[' + raw + b"]}"


@pytest.mark.parametrize("modern", [False, True])
def test_a_list_names_the_gateways_that_it_comes_from(modern: bool) -> None:
    """This one first; those behind a server only as long as the server is in the lists."""
    found = Viewers()
    spec = FrontSpec(version="1.2", endpoints=(endpoint("a", "b"),), hosts=(), handle_key=b"x")
    found.configure(spec)
    for server, ids in {"a": ("far", "farther"), "b": ("far", "other")}.items():
        found.put(server, replace(offer("t"), gateways=ids))
        found.set_listed(server, True)
    own = gateway_id(b"x")
    for listed, those in ((True, ["far", "farther", "other"]), (False, ["far", "farther"])):
        found.set_listed("b", listed)
        found.refresh()
        seen = found.get("default")
        assert seen is not None
        for method in views.LIST_METHODS:
            assert page(seen, method, modern=modern)["_meta"][GATEWAYS] == [own, *those]


@pytest.mark.promise("M20")
def test_all_four_kinds_are_listed_in_both_eras() -> None:
    seen = view(
        endpoint("a"),
        a=offer(
            "t", prompts=[prompt("p")], resources=[resource("r:")], templates=[template("{x}")]
        ),
    )
    for method, kind in views.LIST_METHODS.items():
        legacy, modern = page(seen, method), page(seen, method, modern=True)
        assert list(legacy) == [kind]
        assert legacy[kind] == modern[kind]
        assert len(legacy[kind]) == 1


def test_a_modern_page_says_how_long_it_holds_and_who_made_it() -> None:
    assert page(view(endpoint("a"), a=offer()), "tools/list", modern=True) == {
        "resultType": "complete",
        "tools": [],
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "metamcp", "version": "1.2"}},
    }


@pytest.mark.promise("M20")
def test_a_modern_page_holds_as_long_as_its_servers_say_but_for_the_local_user_only() -> None:
    hints = {"tools": CachingHint(5000, "public"), "discover": CachingHint(9, "public")}
    seen = view(endpoint("a"), a=replace(offer("x", protocol="2026-07-28"), hints=hints))
    answer = page(seen, "tools/list", modern=True)
    assert (answer["ttlMs"], answer["cacheScope"]) == (5000, "public")
    assert seen.hint(DISCOVER) == {"ttlMs": 9, "cacheScope": "public"}
    seen.principal = "somebody"
    assert seen.hint("tools") == {"ttlMs": 5000, "cacheScope": "private"}
    assert "ttlMs" not in page(view(endpoint("a"), a=offer()), "tools/list")


@pytest.mark.promise("M20")
def test_a_resource_that_two_servers_have_is_listed_twice() -> None:
    raw = Raw(b'{"name":"n","uri":"ui://x/1","x":1.0}')
    seen = view(endpoint("a", "b"), a=offer(resources=[raw]), b=offer(resources=[raw]))
    moved = bytes(raw).replace(b"ui://x/1", b"ui://b/x/1")
    expected = b'{"resources":[%b,%b]}' % (bytes(raw), moved)
    assert seen.page("resources/list", {}, modern=False) == expected


@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
def test_legacy_clients_see_object_output_schemas_only(protocol: str) -> None:
    tools = [
        tool("object", outputSchema={"type": "object"}),
        tool("array", outputSchema={"type": "array"}, title="kept"),
        tool("any", outputSchema={}),
    ]
    offers = {"a": offer(*tools, protocol=protocol), "b": offer()}
    for servers in ("a", "b"), ("a",):
        for style in ("bare", "namespaced"):
            seen = view(endpoint(*servers, style=style), **offers)
            legacy = page(seen, "tools/list")["tools"]
            modern = page(seen, "tools/list", modern=True)["tools"]
            assert ["outputSchema" in one for one in modern] == [True] * 3
            assert ["outputSchema" in one for one in legacy] == [True, False, False]
            assert legacy[1]["title"] == "kept"


@pytest.mark.promise("M29")
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("style", ["bare", "namespaced"])
def test_a_tool_is_listed_without_an_output_schema_that_clients_cannot_compile(
    modern: bool, style: str
) -> None:
    tools = [
        tool("broken", outputSchema={"type": "object", "properties": {"x": {"type": "str"}}}),
        tool("fine", outputSchema={"type": "object"}),
    ]
    seen = view(endpoint("a", style=style), a=offer(*tools))
    broken, fine = page(seen, "tools/list", modern=modern)["tools"]
    assert "outputSchema" not in broken
    assert fine["outputSchema"] == {"type": "object"}
    assert not seen.merged.tools[broken["name"]].kept


def test_an_endpoint_with_safe_schemas_lists_them_as_all_clients_take_them() -> None:
    def schema(**x: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": x}}

    tools = [
        Raw(codec.dump({"name": f"t{at}", "inputSchema": one}))
        for at, one in enumerate(
            (schema(type="array"), schema(type="string"), {"type": "object", "required": "x"})
        )
    ]
    plain, spec = endpoint("a"), replace(endpoint("a"), safe_schemas=True)
    lists = {
        one.safe_schemas: page(view(one, a=offer(*tools)), "tools/list")["tools"]
        for one in (plain, spec)
    }
    assert [one["inputSchema"] for one in lists[False]] == [
        schema(type="array"), schema(type="string"),
    ]  # fmt: skip
    assert [one["inputSchema"] for one in lists[True]] == [
        schema(type="array", items={}), schema(type="string"), {"type": "object"},
    ]  # fmt: skip


@pytest.mark.promise("M110")
@pytest.mark.parametrize("modern", [False, True])
def test_an_endpoint_that_keeps_results_lists_no_output_schema(modern: bool) -> None:
    limits = ResultLimits(folder="/r", max_bytes=8192, keep_s=60.0, total_bytes=8192)
    spec = replace(endpoint("a"), results=limits, builtins=("results",))
    seen = view(spec, a=offer(tool("x", outputSchema={"type": "object"}, title="kept")))
    own, theirs = page(seen, "tools/list", modern=modern)["tools"]
    assert own["name"] == "read_result"
    assert "outputSchema" not in theirs
    assert theirs["title"] == "kept"
    assert {"tools", "resources"} <= codec.level(seen.capabilities(modern=modern)).keys()
    assert not seen.spec.needs_index


@pytest.mark.promise("M29")
def test_an_invalid_definition_is_in_no_list_and_its_name_stays_taken() -> None:
    broken = tool("x", title=7)
    partly = Raw(b'{"name":"y","inputSchema":{"type":"object","properties":{"a":true}}}')
    seen = view(endpoint("a", "b", style="bare"), a=offer(broken, partly), b=offer("x", "z"))
    modern = [one["name"] for one in page(seen, "tools/list", modern=True)["tools"]]
    legacy = [one["name"] for one in page(seen, "tools/list")["tools"]]
    assert (modern[0], modern[1:]) == ("y", legacy)
    assert legacy[1] == "z"
    assert legacy[0].startswith("x_")  # as the first x has that name
    owners = {owner.server: owner for name, owner in seen.merged.tools.items() if name[0] == "x"}
    assert "$.title" in owners["a"].kept
    assert (owners["b"].kept, owners["b"].invalid) == ("", "")


@pytest.mark.promise("M20")
@pytest.mark.parametrize("modern", [False, True])
def test_pages_follow_one_another_without_gap_or_overlap(modern: bool) -> None:
    names = [f"t{number}" for number in range(2 * views.PAGE_ITEMS_MAX + 1)]
    seen = view(endpoint("a", style="bare"), a=offer(*names))
    found: list[str] = []
    sizes: list[int] = []
    cursor: object = None
    while True:
        answer = page(seen, "tools/list", cursor, modern=modern)
        found += [one["name"] for one in answer["tools"]]
        sizes.append(len(answer["tools"]))
        cursor = answer.get("nextCursor")
        if cursor is None:
            break
    assert found == names
    assert sizes == [views.PAGE_ITEMS_MAX, views.PAGE_ITEMS_MAX, 1]


def test_a_page_ends_before_its_bytes_do() -> None:
    big = [tool(f"t{number}", description="x" * (views.PAGE_BYTES_MAX // 3)) for number in range(4)]
    huge = tool("huge", description="x" * views.PAGE_BYTES_MAX)
    seen = view(endpoint("a"), a=offer(huge, *big))
    first = page(seen, "tools/list")
    assert [one["name"] for one in first["tools"]] == ["a__huge"]
    assert len(page(seen, "tools/list", first["nextCursor"])["tools"]) == 2


@pytest.mark.promise("M20")
def test_a_cursor_goes_on_behind_its_item_in_the_list_as_it_is_now() -> None:
    names = [f"t{number}" for number in range(views.PAGE_ITEMS_MAX + 2)]
    found = made(endpoint("a", style="bare"), a=offer(*names))
    before = found.get("default")
    assert before is not None
    cursor = page(before, "tools/list")["nextCursor"]
    found.put("a", offer("new", *names[1:]))
    found.refresh()
    after = found.get("default")
    assert after is not None
    assert [one["name"] for one in page(after, "tools/list", cursor)["tools"]] == names[-2:]
    found.put("a", offer("new"))
    found.refresh()
    gone = found.get("default")
    assert gone is not None
    with pytest.raises(ProtocolError) as refusal:
        page(gone, "tools/list", cursor)
    assert refusal.value.code == Code.INVALID_PARAMS


def test_a_cursor_of_another_list_is_refused() -> None:
    names = [f"t{number}" for number in range(views.PAGE_ITEMS_MAX + 1)]
    both = offer(*names, prompts=[prompt(name) for name in names])
    found = made(endpoint("a"), endpoint("a", name="other"), a=both)
    seen, other = found.get("default"), found.get("other")
    assert seen is not None
    assert other is not None
    cursor = page(seen, "tools/list")["nextCursor"]
    for where, method in ((seen, "prompts/list"), (other, "tools/list")):
        with pytest.raises(ProtocolError, match="Invalid cursor"):
            page(where, method, cursor)
    assert len(page(seen, "tools/list", cursor)["tools"]) == 1


@pytest.mark.promise("M98")
@given(
    st.one_of(st.text(), st.binary().map(lambda raw: base64.b64encode(raw).decode()), st.floats())
)
def test_any_other_cursor_is_refused(cursor: object) -> None:
    seen = view(endpoint("a"), a=offer("x"))
    if codec.dump(cursor) == b"null":  # as JSON says "not a number"
        return
    with pytest.raises(ProtocolError) as refusal:
        page(seen, "tools/list", cursor)
    assert refusal.value.code == Code.INVALID_PARAMS


def test_bytes_of_a_page_are_made_once() -> None:
    seen = view(endpoint("a"), a=offer("x"))
    assert seen.page("tools/list", {}, modern=True) is seen.page("tools/list", {}, modern=True)


@pytest.mark.promise("M28")
def test_only_endpoints_whose_lists_became_others_are_told() -> None:
    found = made(endpoint("a", name="one"), endpoint("b", name="two"), a=offer("x"), b=offer("y"))
    assert found.refresh() == {}
    found.put("a", offer("x"))
    assert found.refresh() == {}
    found.put("a", offer("x", "z", prompts=[prompt("p")]))
    assert found.refresh() == {ViewOwner("one", gate.LOCAL): frozenset({"tools", "prompts"})}
    found.set_listed("b", False)
    assert found.refresh() == {ViewOwner("two", gate.LOCAL): frozenset({"tools"})}
    found.set_listed("b", False)
    found.forget("a")
    assert found.refresh() == {ViewOwner("one", gate.LOCAL): frozenset({"tools", "prompts"})}


def test_news_of_a_server_may_wait_until_somebody_asks_for_a_view() -> None:
    found = made(endpoint("a", name="one"), endpoint("b", name="two"), a=offer("x"), b=offer("y"))
    changes = list[object]()
    found.build = lambda: changes.append(found.refresh())
    found.put("a", offer("z"))
    found.defer()
    assert set(found.local) == {"two"}
    assert not changes
    for principal in (gate.LOCAL, "somebody"):
        seen = found.get("one", principal)
        assert seen is not None
        assert [one["name"] for one in page(seen, "tools/list")["tools"]] == ["a__z"]
    assert set(found.local) == {"one", "two"}
    assert changes == [{ViewOwner("one", gate.LOCAL): frozenset({"tools"})}]


@pytest.mark.promise("M28")
def test_a_new_configuration_tells_those_who_see_another_list_now() -> None:
    found = made(endpoint("a", name="one"), endpoint("a", name="two"), a=offer("x"))
    same, renamed = endpoint("a", name="one"), endpoint("a", name="two", style="bare")
    spec = FrontSpec(version="1.2", endpoints=(same, renamed, endpoint("a", name="new")), hosts=())
    found.configure(spec)
    assert found.refresh() == {ViewOwner("two", gate.LOCAL): frozenset({"tools"})}
    assert found.get("new") is not None
    found.configure(FrontSpec(version="1.2", endpoints=(same,), hosts=()))
    assert found.refresh() == {}
    assert found.get("two") is None
