"""The indexes of the endpoints with a search: always what is behind them, and never all anew."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.ipc.disclosure import ViewContent
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec
from tests.worker.front.offers import endpoint, offer, tool
from tests.worker.front.places import HERE

SERVERS = ("a", "b", "c")


def spec(*servers: str, name: str = "default", style: str = "namespaced") -> EndpointSpec:
    return replace(endpoint(*servers, name=name, style=style), exposure="search")


def made(*specs: EndpointSpec) -> Viewers:
    found = Viewers()
    found.configure(FrontSpec(version="1", endpoints=specs, hosts=()))
    found.refresh()
    return found


def put(viewers: Viewers, server: str, *tools: str) -> int:
    """How many tools were indexed for that."""
    before = viewers.indexes.documents
    viewers.put(server, offer(*tools))
    viewers.set_listed(server, True)
    viewers.refresh()
    while viewers.indexes.behind:
        viewers.indexes.step()
    return viewers.indexes.documents - before


def names(viewers: Viewers, name: str = "default") -> set[str]:
    hits = viewers.index(name).search("", 100).hits
    return {hit.document.exposed for hit in hits}


def test_a_change_costs_what_changed_and_a_search_costs_nothing_of_it() -> None:
    viewers = made(spec(*SERVERS))
    assert put(viewers, "a", "t", "u") == 2
    assert put(viewers, "b", "v") == 1
    assert put(viewers, "a", "t") == 1
    assert put(viewers, "a", "t") == 0
    before = viewers.indexes.documents
    index = viewers.index("default")
    assert names(viewers) == {"a__t", "b__v"}
    viewers.show({HERE: ViewContent((("a", "t"),))})
    viewers.set_listed("b", False)
    viewers.refresh()
    assert viewers.indexes.documents == before
    assert viewers.index("default") is index
    assert names(viewers) == {"a__t", "b__v"}
    viewers.forget("b")
    viewers.refresh()
    assert names(viewers) == {"a__t"}
    assert viewers.indexes.documents == before


def test_a_tool_that_is_called_otherwise_now_is_found_by_its_new_name() -> None:
    viewers = made(spec("a", "b", style="bare"))
    put(viewers, "a", "t", "u")
    assert names(viewers) == {"t", "u"}
    assert put(viewers, "b", "t") == 3
    assert len(names(viewers)) == 3
    assert "t" not in names(viewers)


def test_another_definition_of_the_same_name_is_found_by_its_words() -> None:
    viewers = made(spec("a"))
    put(viewers, "a", "t")
    viewers.put("a", offer(tool("t", description="Sends a letter.")))
    viewers.refresh()
    assert [hit.document.exposed for hit in viewers.index("default").search("letter", 5).hits] == [
        "a__t"
    ]


def test_only_endpoints_with_a_search_have_an_index_and_each_has_its_own() -> None:
    viewers = made(spec("a"), spec("a", "b", name="more"), endpoint("a", name="all"))
    put(viewers, "a", "t")
    put(viewers, "b", "v")
    assert names(viewers) == {"a__t"}
    assert names(viewers, "more") == {"a__t", "b__v"}
    assert names(viewers, "all") == set()
    plain = replace(spec("a"), exposure="toolset")
    viewers.configure(FrontSpec(version="1", endpoints=(plain,), hosts=()))
    viewers.refresh()
    assert names(viewers) == names(viewers, "more") == set()


STEPS = st.tuples(
    st.sampled_from(SERVERS),
    st.sampled_from(["put", "forget", "up", "down"]),
    st.sets(st.sampled_from("tuvw")),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=15))
def test_what_is_found_is_what_is_behind_the_endpoint_whatever_happened(
    steps: list[tuple[str, str, set[str]]],
) -> None:
    viewers = made(spec(*SERVERS))
    expected: dict[str, set[str]] = {}
    for server, step, tools in steps:
        if step == "put":
            viewers.put(server, offer(*sorted(tools)))
            expected[server] = tools
        elif step == "forget":
            viewers.forget(server)
            expected.pop(server, None)
        else:
            viewers.set_listed(server, step == "up")
        viewers.refresh()
        assert names(viewers) == {f"{s}__{t}" for s, found in expected.items() for t in found}
