"""What an endpoint costs is the same for whoever reckons it: the lists that are sent, the figures
that a front tells, and what follows from the configuration alone."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from metamcp_supervisor.views import tool_costs
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import stats
from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.front_calls.stats import ListTokens
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.disclosure import Exposure, ViewContent, ViewOwner, ViewStats
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, NamingSpec, ToolOverride
from tests.worker.front.offers import MODERN, endpoint, offer, tool

GIT = offer(tool("status", description="Shows it."), tool("log"), protocol=MODERN)
DB = offer(tool("query", description="Asks."), tool("log"), protocol=MODERN)
"""Compact, as nearly all servers send them."""


def viewers(*specs: EndpointSpec, **offers: ServerCatalogue) -> Viewers:
    found = Viewers()
    found.configure(FrontSpec(version="1", endpoints=specs, hosts=()))
    for server, each in offers.items():
        found.put(server, each)
        found.set_listed(server, True)
    found.refresh()
    return found


def sent(found: Viewers, session: str = "") -> list[bytes]:
    """The definitions in the list, as a client of the newest revision gets them."""
    whole = found.get("default")
    assert whole is not None
    view = found.own(whole, session)
    page = codec.level(Raw(view.page("tools/list", {}, modern=True)))
    return [bytes(raw) for raw in codec.items(page["tools"])]


def told(found: Viewers) -> dict[ViewOwner, ViewStats]:
    return {ViewOwner(one.endpoint, one.principal, one.session): one for one in found.stats()}


@pytest.mark.promise("M38")
@pytest.mark.parametrize("style", ["namespaced", "flat", "dotted", "bare"])
@pytest.mark.parametrize("exposure", tool_costs.EXPOSURES)
def test_what_is_reckoned_from_the_configuration_is_what_a_client_gets(
    style: str, exposure: Exposure
) -> None:
    spec = replace(
        endpoint("git", "db", style=style, disabled=(("git", "status"),)), exposure=exposure
    )
    offers = {"git": GIT, "db": DB}
    found = viewers(spec, **offers)
    tools = tool_costs.tools(spec, offers)
    assert tool_costs.at_start(exposure, tools) == builtin_definitions.tokens_of_all(sent(found))
    if exposure == "all":
        assert [one.size for one in tools] == [len(raw) for raw in sent(found)]
        assert [one.exposed for one in tools] == [json.loads(raw)["name"] for raw in sent(found)]
    else:
        assert sent(found) == [one.definition() for one in builtin_definitions.of(exposure)]
    view = told(found)[ViewOwner("default", "local")]
    assert (view.tools, view.tokens) == (
        len(sent(found)),
        builtin_definitions.tokens_of_all(sent(found)),
    )
    assert (view.offered, view.everything) == (len(tools), tool_costs.at_start("all", tools))


@pytest.mark.promise("M38")
@pytest.mark.parametrize("code", [None, CodeLimits()])
@pytest.mark.parametrize("exposure", tool_costs.EXPOSURES)
def test_further_tools_of_the_gateway_are_reckoned_too(
    exposure: Exposure, code: CodeLimits | None
) -> None:
    families = tuple(builtin_definitions.families())
    spec = replace(endpoint("git"), exposure=exposure, builtins=families, code=code)
    found = viewers(spec, git=GIT)
    tools = tool_costs.tools(spec, {"git": GIT})
    start = tool_costs.at_start(exposure, tools, code=code is not None, builtins=families)
    assert start == builtin_definitions.tokens_of_all(sent(found))
    assert start == told(found)[ViewOwner("default", "local")].tokens


@given(
    names=st.lists(st.text(max_size=80), max_size=6),
    style=st.sampled_from(["namespaced", "flat", "dotted", "bare"]),
)
def test_whatever_tools_are_called_both_reckon_the_same(names: list[str], style: str) -> None:
    schema = {"type": "object"}
    named = [Raw(codec.dump({"name": name, "inputSchema": schema, "x": name})) for name in names]
    spec = EndpointSpec(
        name="default", servers=("a", "b"), naming=NamingSpec(style=style, length_max=24)
    )
    broken = Raw(b'{"x":1}'), Raw(b'{"name":"no"}')
    offers = {"a": offer(*named, protocol=MODERN), "b": offer(*named, *broken)}
    found = viewers(spec, **offers)
    assert [one.size for one in tool_costs.tools(spec, offers)] == [len(raw) for raw in sent(found)]


def test_tools_that_are_withheld_or_hidden_cost_nothing_and_keep_their_names() -> None:
    spec = endpoint("git", "db", style="bare")
    whole = {(one.server, one.name): one for one in tool_costs.tools(spec, {"git": GIT, "db": DB})}
    left = tool_costs.tools(spec, {"git": GIT, "db": DB}, withheld={("git", "log")})
    assert left == [one for pair, one in whole.items() if pair != ("git", "log")]
    assert tool_costs.tools(spec, {}) == []
    hidden = ToolOverride(server="git", tool="log", hidden=True)
    named = ToolOverride(server="db", tool="query", name="ask")
    spec = replace(spec, overrides=(hidden, named))
    listed = [json.loads(raw)["name"] for raw in sent(viewers(spec, git=GIT, db=DB))]
    assert [one.exposed for one in tool_costs.tools(spec, {"git": GIT, "db": DB})] == listed
    assert "ask" in listed


@pytest.mark.promise("M38")
def test_what_comes_into_view_is_counted_for_whom_it_does() -> None:
    spec = replace(endpoint("git", "db"), exposure="toolset", per_session=True)
    found = viewers(spec, git=GIT, db=DB)
    ann, own = ViewOwner("default", "ann"), ViewOwner("default", "local", "8a")
    found.show({
        ann: ViewContent((("git", "status"), ("db", "query")), toolset="dev"),
        own: ViewContent((("db", "log"),)),
    })  # fmt: skip
    found.refresh()
    views = told(found)
    start = builtin_definitions.tokens_of_bytes(builtin_definitions.size("toolset"))
    assert (views[ViewOwner("default", "local")].tokens, views[ann].toolset) == (start, "dev")
    assert views[own].tokens == builtin_definitions.tokens_of_all(sent(found, "8a"))
    assert [views[one].tools for one in (ann, own)] == [7 + 2, 7 + 1]
    found.set_listed("git", False)
    found.refresh()
    assert told(found)[ann].tools == 7 + 1
    assert told(found)[ann].offered == 4, "what is away is still behind the endpoint"


class Looked(tuple[ListEntry, ...]):  # noqa: SLOT001 - it counts
    """A list that knows how often somebody went through it."""

    times = 0

    def __iter__(self) -> Iterator[ListEntry]:
        self.times += 1
        return super().__iter__()


def test_a_list_is_summed_once_however_often_it_is_told() -> None:
    spec = replace(endpoint("git"), exposure="servers")
    merged = viewers(spec, git=GIT).find_merged("default")
    listed, offered = Looked(merged.lists["tools"]), Looked(merged.offered)
    merged = replace(merged, lists={**merged.lists, "tools": listed}, offered=offered)
    views = {ViewOwner("default", name): View(merged, spec, "1", name) for name in ("local", "ann")}
    counting = ListTokens()
    first = counting.stats(views, {"default": merged})
    assert counting.stats(views, {"default": merged}) == first
    assert (listed.times, offered.times) == (1, 1)
    counting.stats({}, {})
    counting.stats(views, {"default": merged})
    assert (listed.times, offered.times) == (2, 2), "of a list that is gone nothing is kept"


def test_of_very_many_views_the_first_are_told() -> None:
    found = viewers(replace(endpoint("git"), exposure="toolset"), git=GIT)
    many = stats.VIEWS_TOLD_MAX + 10
    found.show({ViewOwner("default", f"p{n}"): ViewContent((("git", "log"),)) for n in range(many)})
    found.refresh()
    views = found.stats()
    assert len(views) == stats.VIEWS_TOLD_MAX
    assert views[0].principal == "local"
