"""The list of tools for people: every tool of an endpoint with its state, or those that match."""

from typing import Any

import pytest
from msgspec import structs

from metamcp_worker.builtin_tools import tool_list
from metamcp_worker.builtin_tools.builtin import ToolSearch
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import ViewContent
from metamcp_worker.ipc.figures import TOOLS_SHOWN_MAX, ShownTools, ToolQuery
from metamcp_worker.ipc.spec import FrontSpec
from tests.worker.front.offers import offer, tool
from tests.worker.front.places import Place, structured

pytestmark = pytest.mark.promise("M108")


def place(exposure: Any = "search") -> Place:
    return Place(
        exposure,
        style="namespaced",
        git=offer(
            tool("commit", description="Record changes to the repository. Then more."),
            tool("push", description="Send commits.", annotations={"readOnlyHint": True}),
        ),
        db=offer(tool("query", description="Ask the database something, in SQL.")),
    )


def listed(at: Place, **wanted: Any) -> ShownTools:
    found = tool_list.list_tools(ToolQuery(**wanted), at.view, at.context())
    if isinstance(found, ToolSearch):
        found = found.then((), at.context())
    return codec.decode_as(ShownTools, codec.dump(found.structured))


def states(found: ShownTools) -> dict[str, str]:
    return {one.name: one.state for one in found.tools if one.server}


@pytest.mark.parametrize(
    ("exposure", "state"), [("all", "listed"), ("search", "callable"), ("toolset", "callable")]
)
def test_each_tool_is_listed_with_where_it_is_visible(exposure: str, state: str) -> None:
    found = listed(place(exposure))
    assert states(found) == dict.fromkeys(["db__query", "git__commit", "git__push"], state)
    own = [one.name for one in found.tools if not one.server]
    assert ("search_tools" in own) is (exposure == "search")


def test_a_tool_says_what_it_does_costs_and_whether_it_only_reads() -> None:
    commit, push = listed(place(), server="git").tools
    assert (commit.tool, commit.description) == ("commit", "Record changes to the repository.")
    assert commit.tokens > 0
    assert (commit.reads, push.reads) == (False, True)
    assert bytes(commit.definition) == b"{}"


def test_a_loaded_tool_is_in_the_list_and_one_of_a_server_that_is_away_says_so() -> None:
    at = place()
    at.show(ViewContent((("git", "commit"),)))
    at.down("db")
    found = {one.name: (one.state, one.available) for one in listed(at).tools if one.server}
    assert found["git__commit"] == ("listed", True)
    assert found["db__query"] == ("callable", False)


def test_where_hidden_tools_cannot_be_called_they_are_out_of_view() -> None:
    at = place()
    at.configure(structs.replace(at.spec, call_hidden=False))
    assert set(states(listed(at)).values()) == {"out of view"}


def test_a_tool_in_quarantine_is_withheld_with_the_reason() -> None:
    at = place()
    held = (("git", "push", "It is not as approved."),)
    spec = FrontSpec(version="1", endpoints=(at.spec,), hosts=(), quarantined=held)
    at.viewers.configure(spec)
    at.viewers.refresh()
    found = {one.name: one for one in listed(at).tools}
    assert (found["git__push"].state, found["git__commit"].state) == ("withheld", "callable")
    assert "It is not as approved." in found["git__push"].why
    assert listed(at, name="git__push").tools[0].why


def test_a_query_finds_what_search_tools_finds() -> None:
    at = place()
    found = listed(at, query="record changes")
    assert found.tools[0].name == "git__commit"
    assert [one.name for one in listed(at, query="commits", server="db").tools] == []
    theirs = structured(at.reply("search_tools", query="record changes"))["tools"]
    assert [one["name"] for one in theirs] == [one.name for one in found.tools]


@pytest.mark.parametrize("query", ["", "commits"])
def test_tools_come_in_the_order_of_their_tokens_or_names(query: str) -> None:
    dear = tool("amend", description="Changes the last commits of a repository. " * 9)
    at = Place(
        "search",
        style="bare",
        git=offer(tool("push", description="Send commits."), dear),
        db=offer(tool("query", description="Ask a database about commits.")),
    )
    by_name, by_tokens = (
        [one for one in listed(at, query=query, order=order).tools if one.server]
        for order in ("name", "tokens")
    )
    assert [one.name for one in by_name] == ["amend", "push", "query"]
    assert [one.name for one in by_tokens] == ["amend", "query", "push"]
    assert by_tokens[0].tokens > by_tokens[1].tokens > by_tokens[2].tokens


def test_one_tool_comes_with_its_definition_and_a_wrong_name_with_all_names() -> None:
    (one,) = listed(place(), name="git__commit").tools
    assert codec.value(one.definition)["name"] == "git__commit"
    (own,) = listed(place(), name="search_tools").tools
    assert codec.value(own.definition)["inputSchema"]["required"] == ["query"]
    found = listed(place(), name="git__comit")
    assert not found.tools
    assert {"git__commit", "db__query", "search_tools"} <= set(found.names)


def test_a_long_list_comes_in_parts_that_follow_each_other() -> None:
    names = [f"t{number:04}" for number in range(TOOLS_SHOWN_MAX + 3)]
    at = Place("all", style="namespaced", many=offer(*(tool(name) for name in names)))
    first = listed(at)
    assert (len(first.tools), first.more) == (TOOLS_SHOWN_MAX, 3)
    rest = listed(at, offset=TOOLS_SHOWN_MAX)
    assert [one.tool for one in (*first.tools, *rest.tools)] == names
    assert rest.more == 0
