"""Who sees which view: what is shown to whom, what is shared, who is told of a change."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.catalog.views import LIST_METHODS, View
from metamcp_worker.front_calls.front_views import PRINCIPALS_MAX, Viewers, builtin_family
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Exposure, Pair, ViewContent, ViewOwner
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec
from tests.worker.front.offers import endpoint, offer, prompt, resource

ME, YOU = gate.LOCAL, "you"
HERE = ViewOwner("default", ME)
SERVERS = ("a", "b", "c")
TOOLS = ("t", "u")
PAIRS: tuple[Pair, ...] = tuple(product(SERVERS, TOOLS))


def made(*specs: EndpointSpec) -> Viewers:
    """Three servers with two tools, a prompt and a resource each, all of them listed."""
    found = Viewers()
    found.configure(FrontSpec(version="1", endpoints=specs, hosts=()))
    for server in SERVERS:
        found.put(server, offer(*TOOLS, prompts=[prompt("p")], resources=[resource(f"{server}:r")]))
        found.set_listed(server, True)
    found.refresh()
    return found


def spec(exposure: Exposure = "servers", name: str = "default", **changes: Any) -> EndpointSpec:
    return replace(endpoint(*SERVERS), name=name, exposure=exposure, **changes)


def view(viewers: Viewers, principal: str = ME, name: str = "default") -> View:
    found = viewers.get(name, principal)
    assert found is not None
    return found


def listed(seen: View, method: str = "tools/list") -> list[str]:
    names = [entry.key for entry in seen.merged.lists[LIST_METHODS[method]]]
    if seen.principal == gate.LOCAL:  # nobody else may ask yet
        answer: dict[str, Any] = codec.value(seen.page(method, {}, modern=False))
        (items,) = answer.values()
        key = "uri" if method == "resources/list" else "name"
        assert [item[key] for item in items] == names
    return names


def tools(seen: View) -> list[str]:
    """Those of servers."""
    return [name for name in listed(seen) if "__" in name]


@pytest.mark.promise("M35")
def test_at_first_only_the_built_in_tools_are_in_view() -> None:
    seen = view(made(spec()))
    assert listed(seen) == ["gateway_activate", "gateway_deactivate", "gateway_status"]
    assert listed(seen, "prompts/list") == listed(seen, "resources/list") == []
    assert seen.instructions == builtin_family(spec()).guide
    assert b'"tools":{"listChanged":true}' in seen.capabilities(modern=False)


def test_with_everything_exposed_nothing_is_added_and_nothing_hidden() -> None:
    viewers = made(spec("all"))
    viewers.show({HERE: ViewContent(servers=("a",))})
    assert viewers.refresh() == {}
    assert tools(view(viewers)) == listed(view(viewers)) == [f"{s}__{t}" for s, t in PAIRS]


@pytest.mark.promise("M35")
def test_a_server_in_view_brings_its_tools_prompts_and_resources() -> None:
    viewers = made(spec())
    viewers.show({HERE: ViewContent(servers=("b",))})
    kinds = frozenset({"tools", "prompts", "resources"})
    assert viewers.refresh() == {HERE: kinds}
    seen = view(viewers)
    assert tools(seen) == ["b__t", "b__u"]
    assert listed(seen, "prompts/list") == ["b__p"]
    assert listed(seen, "resources/list") == ["b:r"]
    viewers.show({})
    assert viewers.refresh() == {HERE: kinds}
    assert tools(view(viewers)) == []


def test_a_tool_in_view_is_defined_exactly_as_its_server_does() -> None:
    raw = b'{"description":"x","name":"t","inputSchema":{"type":"object","x":[1.0]},"_meta":{}}'
    viewers = Viewers()
    viewers.configure(FrontSpec(version="1", endpoints=(spec("toolset"),), hosts=()))
    viewers.put("a", offer(Raw(raw), "u"))
    viewers.set_listed("a", True)
    viewers.show({HERE: ViewContent((("a", "t"),))})
    viewers.refresh()
    page = view(viewers).page("tools/list", {}, modern=False)
    assert raw.replace(b'"t"', b'"a__t"') in page
    assert b"a__u" not in page


def test_what_is_shown_to_one_principal_no_other_one_sees_or_hears_of() -> None:
    viewers = made(spec())
    assert tools(view(viewers, YOU)) == []
    viewers.show({ViewOwner("default", YOU): ViewContent(servers=("a",))})
    changed = viewers.refresh()
    assert set(changed) == {ViewOwner("default", YOU)}
    assert tools(view(viewers, ME)) == []
    assert tools(view(viewers, YOU)) == ["a__t", "a__u"]
    assert viewers.find_changed_kinds(changed, HERE) == frozenset()
    assert "tools" in viewers.find_changed_kinds(changed, ViewOwner("default", YOU))


def test_equal_views_share_their_bytes_and_different_ones_share_none() -> None:
    viewers = made(spec())
    shown = ViewContent(servers=("a",))
    viewers.show({ViewOwner("default", who): shown for who in ("x", "y")} | {HERE: shown})
    viewers.refresh()
    assert view(viewers, "x").pages is view(viewers, "y").pages
    assert view(viewers, "x").pages is not view(viewers, "z").pages
    assert tools(view(viewers, "z")) == []


def test_a_server_that_is_away_is_out_of_every_list_and_comes_back_by_itself() -> None:
    viewers = made(spec("toolset"))
    viewers.show({HERE: ViewContent((("a", "t"), ("b", "u")), toolset="dev")})
    viewers.refresh()
    viewers.set_listed("a", False)
    assert viewers.refresh() == {HERE: frozenset({"tools", "prompts", "resources"})}
    assert tools(view(viewers)) == ["b__u"]
    viewers.set_listed("a", True)
    viewers.refresh()
    assert tools(view(viewers)) == ["a__t", "b__u"]


def test_a_change_of_what_is_out_of_view_is_told_to_nobody() -> None:
    viewers = made(spec())
    viewers.show({HERE: ViewContent(servers=("b",))})
    viewers.refresh()
    viewers.set_listed("a", False)
    assert viewers.refresh() == {}


@pytest.mark.promise("M37")
def test_a_session_with_a_view_of_its_own_sees_that_and_the_others_their_principals() -> None:
    viewers = made(spec(per_session=True))
    own = ViewOwner("default", ME, "s1")
    viewers.show({own: ViewContent(servers=("a",))})
    changed = viewers.refresh()
    seen = view(viewers)
    assert tools(viewers.own(seen, "s1")) == ["a__t", "a__u"]
    assert viewers.own(seen, "s2") is seen
    assert tools(seen) == []
    assert viewers.find_changed_kinds(changed, own)
    assert not viewers.find_changed_kinds(changed, ViewOwner("default", ME, "s2"))
    viewers.show({HERE: ViewContent(servers=("b",)), own: ViewContent(servers=("a",))})
    changed = viewers.refresh()
    assert not viewers.find_changed_kinds(changed, own)
    assert viewers.find_changed_kinds(changed, ViewOwner("default", ME, "s2"))
    viewers.show({HERE: ViewContent(servers=("b",))})
    changed = viewers.refresh()
    assert viewers.find_changed_kinds(changed, own)
    assert not viewers.find_changed_kinds(changed, ViewOwner("default", ME, "s2"))
    assert tools(viewers.own(view(viewers), "s1")) == ["b__t", "b__u"]


@pytest.mark.promise("M28")
def test_a_session_that_loses_its_view_hears_only_of_what_that_changes_for_it() -> None:
    viewers = made(spec(per_session=True))
    own = ViewOwner("default", ME, "s1")
    viewers.show({own: ViewContent(servers=("a",))})
    viewers.refresh()
    viewers.show({HERE: ViewContent(servers=("a",))})
    changed = viewers.refresh()
    assert viewers.find_changed_kinds(changed, ViewOwner("default", ME, "s2"))
    assert not viewers.find_changed_kinds(changed, own), "it sees what it saw before"


@pytest.mark.promise("M28")
def test_what_a_server_says_of_its_lists_counts_for_those_who_see_it_alone() -> None:
    alone = replace(endpoint("a"), name="alone")
    viewers = made(spec("all"), alone, replace(alone, name="cut", exposure="search"))
    seen = {ViewOwner("alone", gate.LOCAL): frozenset({"tools"})}
    assert viewers.alone("a", ("tools",)) == seen
    assert viewers.alone("b", ("tools",)) == {}


def test_without_views_per_session_that_of_a_session_counts_for_nothing() -> None:
    viewers = made(spec())
    viewers.show({ViewOwner("default", ME, "s1"): ViewContent(servers=("a",))})
    assert viewers.refresh() == {}
    assert tools(viewers.own(view(viewers), "s1")) == []


@pytest.mark.promise("M37")
def test_what_is_out_of_view_is_found_by_its_name_where_that_is_allowed() -> None:
    open_, shut = made(spec()), made(spec(call_hidden=False))
    for viewers, found in ((open_, True), (shut, False)):
        merged = view(viewers).merged
        assert (merged.tool("a__t") is not None) is found
        assert (merged.prompt("a__p") is not None) is found
        assert (merged.resource("a:r") is not None) is found
    shut = made(spec("search", call_hidden=False))
    shut.show({HERE: ViewContent((("a", "t"),))})
    shut.refresh()
    merged = view(shut).merged
    assert merged.tool("a__t") is not None
    assert merged.tool("a__u") is None
    assert merged.resource("a:r") is not None
    assert merged.resource("b:r") is None
    shut.set_listed("a", False)  # it is away, not unknown
    shut.refresh()
    assert view(shut).merged.tool("a__t") is not None


def test_no_tool_of_a_server_takes_the_name_of_a_built_in_one() -> None:
    viewers = Viewers()
    one = replace(endpoint("a", style="bare"), name="default", exposure="servers")
    viewers.configure(FrontSpec(version="1", endpoints=(one,), hosts=()))
    viewers.put("a", offer("gateway_status", "t"))
    viewers.set_listed("a", True)
    viewers.show({HERE: ViewContent(servers=("a",))})
    viewers.refresh()
    names = listed(view(viewers))
    assert len(names) == len(set(names)) == 5
    assert names[2] == "gateway_status"
    assert names[3].startswith("gateway_status_")
    owner = view(viewers).merged.tool("gateway_status")
    assert owner is not None
    assert owner.server == ""


def test_another_exposure_of_an_endpoint_is_told_as_a_change() -> None:
    viewers = made(spec())
    viewers.configure(FrontSpec(version="1", endpoints=(spec("all"),), hosts=()))
    assert viewers.refresh() == {HERE: frozenset({"tools", "prompts", "resources"})}
    viewers.configure(FrontSpec(version="1", endpoints=(), hosts=()))
    assert viewers.refresh() == {}
    assert viewers.get("default") is None
    assert viewers.get("default", YOU) is None


@pytest.mark.promise("M35")
def test_only_what_the_tools_of_an_exposure_can_change_is_in_view_and_the_rest_comes_back() -> None:
    viewers = made(spec("servers", per_session=True))
    own = ViewOwner("default", ME, "s1")
    viewers.show(
        {HERE: ViewContent((("b", "t"),), ("a",), "dev"), own: ViewContent(servers=("c",))}
    )
    viewers.refresh()
    steps: tuple[tuple[Exposure, list[str], list[str]], ...] = (
        ("servers", ["a__t", "a__u"], ["c__t", "c__u"]),
        ("search", ["b__t"], []),
        ("toolset", ["b__t"], []),
        ("servers", ["a__t", "a__u"], ["c__t", "c__u"]),
    )
    for exposure, seen, session in steps:
        wanted = spec(exposure, per_session=True)
        viewers.configure(FrontSpec(version="1", endpoints=(wanted,), hosts=()))
        viewers.refresh()
        found = view(viewers)
        assert tools(found) == seen
        assert listed(found, "prompts/list") == [f"{seen[0][0]}__p"]
        assert tools(viewers.own(found, "s1")) == session
        assert {stat.toolset for stat in viewers.stats() if not stat.session} == {
            "" if exposure == "servers" else "dev"
        }


WHOSE = st.builds(ViewOwner, st.just("default"), st.sampled_from([ME, YOU, "x"]))
SHOWN = st.builds(
    ViewContent,
    st.lists(st.sampled_from(PAIRS), unique=True).map(tuple),
    st.lists(st.sampled_from(SERVERS), unique=True).map(tuple),
)


EXPOSURES: tuple[Exposure, ...] = ("servers", "search")


@given(
    st.sampled_from(EXPOSURES),
    st.lists(st.tuples(WHOSE, SHOWN, st.sampled_from(SERVERS), st.booleans()), max_size=12),
)
def test_every_view_is_what_is_shown_in_it_and_there(
    exposure: Exposure, steps: list[tuple[ViewOwner, ViewContent, str, bool]]
) -> None:
    viewers = made(spec(exposure))
    shown: dict[ViewOwner, ViewContent] = {}
    there = set[str](SERVERS)
    before: dict[str, list[str]] = {who: [] for who in (ME, YOU, "x")}
    for whose, what, server, up in steps:
        for who in before:
            before[who] = listed(view(viewers, who))
        shown[whose] = what
        (there.add if up else there.discard)(server)
        viewers.show(dict(shown))
        viewers.set_listed(server, up)
        changed = viewers.refresh()
        for who, earlier in before.items():
            now = shown.get(ViewOwner("default", who), ViewContent())
            expected = [
                f"{pair[0]}__{pair[1]}"
                for pair in PAIRS
                if pair[0] in there
                and (pair[0] in now.servers if exposure == "servers" else pair in now.tools)
            ]
            assert tools(view(viewers, who)) == expected
            told = "tools" in viewers.find_changed_kinds(changed, ViewOwner("default", who))
            assert told is (listed(view(viewers, who)) != earlier)


def test_principals_beyond_the_limit_hear_of_changes_like_all_others() -> None:
    viewers = made(spec("all"), spec("all", name="quiet"))
    everybody = [f"key:{number}" for number in range(PRINCIPALS_MAX + 3)]
    for principal in everybody:
        view(viewers, principal)
    late = everybody[-1]
    view(viewers, late, "quiet")
    viewers.shift([(ViewContent(toolset="own"), (ViewOwner("default", everybody[-2]),))])
    viewers.refresh()
    for server in SERVERS:
        viewers.put(server, offer("new"))
        changed = viewers.refresh()
        for principal in (everybody[0], everybody[-2], late):
            assert "tools" in viewers.find_changed_kinds(
                changed, ViewOwner("default", principal)
            ), principal
        assert "tools" in viewers.find_changed_kinds(changed, ViewOwner("quiet", late))
    assert viewers.find_changed_kinds(viewers.refresh(), ViewOwner("default", late)) == frozenset()


def test_what_the_only_server_says_is_told_to_principals_beyond_the_limit_too() -> None:
    viewers = made(replace(endpoint("a"), exposure="all"))
    for number in range(PRINCIPALS_MAX + 1):
        view(viewers, f"key:{number}")
    changed = viewers.alone("a", ["prompts"])
    for number in (0, PRINCIPALS_MAX):
        assert viewers.find_changed_kinds(changed, ViewOwner("default", f"key:{number}")) == {
            "prompts"
        }
