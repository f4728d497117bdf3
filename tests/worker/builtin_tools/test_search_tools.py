"""The built-in tools that find, load and call tools: what they order, say and pass on."""

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.builtin_tools import search_tools
from metamcp_worker.builtin_tools.builtin import Forward, ToolReply
from metamcp_worker.builtin_tools.tool_text import ANSWER_BYTES_MAX
from metamcp_worker.ipc.disclosure import Load, Save, ToolSet, Unload, ViewContent
from tests.worker.front.offers import offer, tool
from tests.worker.front.places import Place, sent, structured, toolset

NAMES = [
    "search_tools",
    "load_tool",
    "unload_tool",
    "load_tool_set",
    "save_tool_set",
    "list_loaded_tools",
    "describe_tool",
    "call_tool",
]
COMMIT, PUSH, QUERY = ("git", "commit"), ("git", "push"), ("db", "query")
WORK = toolset("git-workflow", COMMIT, QUERY)


def place(*toolsets: ToolSet, **more: Any) -> Place:
    return Place(
        "search",
        *toolsets,
        style="namespaced",
        git=offer(
            tool("commit", description="Record changes to the repository."),
            tool("push", description="Send commits to a remote."),
        ),
        db=offer(tool("query", description="Ask the database something, in SQL.")),
        **more,
    )


@pytest.mark.promise("M36")
def test_at_first_only_the_built_in_tools_are_in_view() -> None:
    assert place().listed == NAMES
    assert [item.key for item in search_tools.FAMILY.items] == NAMES
    assert len(NAMES) <= 13


@pytest.mark.promise("M36")
@pytest.mark.parametrize("query", ["git", "commit", "record my changes", "git__commit"])
def test_a_tool_is_found_by_its_name_its_server_and_what_it_does(query: str) -> None:
    reply = place().reply("search_tools", query=query)
    assert "- `git__commit`: Record changes to the repository." in reply.text
    assert "git__commit" in [one["name"] for one in structured(reply)["tools"]]


def test_a_search_has_a_limit_a_detail_and_a_server() -> None:
    here = place()
    assert len(structured(here.reply("search_tools", query="", limit=1))["tools"]) == 1
    assert len(structured(here.reply("search_tools", query="", limit=-7))["tools"]) == 1
    assert len(structured(here.reply("search_tools", query="", limit=10**9))["tools"]) == 3
    (only,) = structured(here.reply("search_tools", query="", server="db", detail="full"))["tools"]
    assert only["definition"]["name"] == "db__query"
    unknown = here.reply("search_tools", query="x", server="svn")
    assert unknown.failed
    assert "There is no server 'svn'" in unknown.text
    deep = here.reply("search_tools", query="x", detail="all")
    assert deep.text.endswith("; it takes: query, limit, detail (brief, detailed, full), server.")
    wrong = here.reply("search_tools", query="x", detail="all")
    assert wrong.failed


@pytest.mark.promise("M30")
def test_a_search_finds_what_is_away_and_what_is_not_loaded() -> None:
    here = place()
    here.down("git")
    here.show(ViewContent((QUERY,)))
    found = structured(here.reply("search_tools", query="commit"))["tools"]
    assert "git__commit" in [one["name"] for one in found]


@pytest.mark.promise("M36")
@pytest.mark.parametrize("name", ["git__commit", "git.commit"])
def test_a_tool_is_loaded_by_either_of_its_names(name: str) -> None:
    here = place()
    ask = here.ask("load_tool", name=name)
    assert ask.order == Load((COMMIT,))
    reply = here.done(ask, ViewContent((COMMIT,)))
    assert here.listed == [*NAMES, "git__commit"]
    assert reply.text == "Loaded; in the list of tools now: git__commit."
    assert structured(reply)["registeredTools"] == {
        "git__commit": {
            "serverName": "git", "originalName": "commit", "namespacedName": "git.commit",
        }
    }  # fmt: skip


def test_several_tools_are_loaded_at_once_or_none_of_them() -> None:
    here = place()
    names = ["git__commit", "db.query", "git.commit"]
    assert here.ask("load_tool", name=names).order == Load((COMMIT, QUERY))
    reply = here.reply("load_tool", name=["git__commit", "git__psh"])
    assert reply.failed
    assert reply.text == (
        "Failed to load: there is no tool 'git__psh' behind this endpoint, did you mean git__push?"
    )
    for verb in ("load", "unload"):
        none = here.reply(f"{verb}_tool", name=[])
        why = "no name was given; search_tools tells the names of tools"
        assert none.text == f"Failed to {verb}: {why}"


def test_names_that_are_nobodys_are_told_up_to_a_limit() -> None:
    reply = place().reply("load_tool", name=[f"x{n}" * 1000 for n in range(100)])
    assert reply.text.count("there is no tool") == 5
    assert reply.text.endswith("; nor any of 95 more; search_tools tells which there are")
    assert len(reply.text) < 1500
    misspelt = place().reply("load_tool", name=["git__comit", "git__psh", "db__qery"])
    assert misspelt.text.count("did you mean") == 2


def test_a_tool_whose_server_is_away_is_loaded_and_comes_with_it() -> None:
    here = place()
    here.down("git")
    reply = here.done(here.ask("load_tool", name="git__commit"), ViewContent((COMMIT,)))
    assert not reply.failed
    assert "in the list of tools now: nothing yet.\n" in reply.text
    assert "Warning: git server unavailable, skipping tools: git.commit" in reply.text
    assert here.listed == NAMES
    here.up("git")
    assert here.listed == [*NAMES, "git__commit"]


def test_what_is_loaded_can_be_unloaded_also_when_its_server_is_gone() -> None:
    here = place()
    here.show(ViewContent((COMMIT, ("old", "t"))))
    ask = here.ask("unload_tool", name=["git__commit", "old.t"])
    assert ask.order == Unload((COMMIT, ("old", "t")))
    assert here.done(ask, ViewContent()).text == "Unloaded: git.commit, old.t."
    reply = here.reply("unload_tool", name="git__commit")
    assert reply.failed
    assert reply.text == (
        "Failed to unload: not loaded: 'git__commit'; list_loaded_tools tells what is"
    )


@pytest.mark.promise("M36")
def test_a_tool_set_is_loaded_beside_what_is_loaded_already() -> None:
    here = place(WORK)
    ask = here.ask("load_tool_set", name="git-workflow")
    assert ask.order == Load((COMMIT, QUERY))
    reply = here.done(ask, ViewContent((PUSH, COMMIT, QUERY)))
    assert reply.text == (
        'Tool set "git-workflow" is loaded; in the list of tools now: git__commit, db__query.'
    )


def test_of_a_tool_set_only_what_can_be_in_view_is_loaded_and_the_rest_is_named() -> None:
    here = place(toolset("mixed", COMMIT, QUERY, ("git", "blame"), ("svn", "log")))
    here.down("db")
    ask = here.ask("load_tool_set", name="mixed")
    assert ask.order == Load((COMMIT, QUERY))
    assert structured(here.done(ask, ViewContent((COMMIT, QUERY))))["warnings"] == [
        "db server unavailable, skipping tools: db.query",
        "git server has no such tools here, skipping tools: git.blame",
        "svn server is not behind this endpoint, skipping tools: svn.log",
    ]


def test_a_tool_set_that_is_not_there_or_has_nothing_here_is_not_loaded() -> None:
    here = place(WORK, toolset("gone", ("svn", "log")))
    unknown = here.reply("load_tool_set", name="git-flow")
    assert unknown.failed
    assert unknown.text == (
        'Failed to load tool set: there is no tool set "git-flow"; there are: git-workflow, gone'
    )
    assert "nothing of it can be in view here" in here.reply("load_tool_set", name="gone").text
    assert "there are: none yet" in place().reply("load_tool_set", name="x").text


@pytest.mark.promise("M36")
def test_what_is_loaded_is_saved_as_a_tool_set() -> None:
    here = place()
    here.show(ViewContent((COMMIT, QUERY)))
    ask = here.ask("save_tool_set", name="git-workflow", description="For git.")
    assert ask.order == Save("git-workflow", "For git.")
    reply = here.done(ask, ViewContent((COMMIT, QUERY)), WORK)
    assert reply.text == 'Tool set "git-workflow" is saved with 2 tools.'
    assert structured(reply)["toolset"]["toolCount"] == 2


@pytest.mark.parametrize(
    ("name", "arguments", "what"),
    [
        ("load_tool", {"name": "git__commit"}, "load"),
        ("unload_tool", {"name": "git__push"}, "unload"),
        ("load_tool_set", {"name": "git-workflow"}, "load tool set"),
        ("save_tool_set", {"name": "x"}, "save tool set"),
    ],
)
def test_a_refusal_says_what_failed_and_why(name: str, arguments: Any, what: str) -> None:
    here = place(WORK)
    here.show(ViewContent((PUSH,)))
    reply = here.refused(here.ask(name, **arguments), "the disk is full")
    assert reply.failed
    assert reply.text == f"Failed to {what}: the disk is full"
    assert structured(reply) == {"success": False, "error": reply.text}


def test_either_all_of_several_tools_are_unloaded_or_none() -> None:
    here = place()
    here.show(ViewContent((COMMIT,)))
    reply = here.reply("unload_tool", name=["git__commit", "git__push"])
    assert reply.failed
    assert "not loaded: 'git__push';" in reply.text


def test_a_server_that_was_activated_under_another_exposure_has_nothing_loaded() -> None:
    here = place()
    here.show(ViewContent((COMMIT,), servers=("git", "db")))
    told = structured(here.reply("list_loaded_tools"))
    assert [one["exposedName"] for one in told["tools"]] == ["git__commit"]
    assert structured(here.reply("describe_tool", name="git.push"))["loaded"] is False
    assert here.listed[len(NAMES) :] == ["git__commit"]


@pytest.mark.promise("M38")
def test_what_is_loaded_is_told_with_its_cost_and_what_is_saved() -> None:
    here = place(WORK)
    here.show(ViewContent((COMMIT, QUERY)))
    here.down("db")
    reply = here.reply("list_loaded_tools")
    lines = reply.text.splitlines()
    told = structured(reply)
    cost = told["tokens"]
    assert lines[0] == (
        f"1 of 3 tools loaded; the list of tools is about {cost['inView']} tokens,"
        f" everything {cost['everything']}."
    )
    assert lines[1].startswith("- `git.commit` as `git__commit` (")
    assert lines[2:] == [
        "Warning: db server unavailable, skipping tools: db.query",
        "Saved tool sets: git-workflow.",
    ]
    assert (told["loaded"], told["available"]) == (1, 3)
    assert told["toolsets"] == ["git-workflow"]
    assert [one["exposedName"] for one in told["tools"]] == ["git__commit"]


def test_many_loaded_tools_are_told_in_portions_that_come_to_the_end() -> None:
    many = [tool(f"t{n}", description="word " * 100) for n in range(300)]
    here = Place("search", a=offer(*many))
    here.show(ViewContent(tuple(("a", f"t{n}") for n in range(300))))
    found: list[str] = []
    offset: int | None = 0
    while offset is not None:
        reply = here.reply("list_loaded_tools", offset=offset)
        assert len(reply.text) < ANSWER_BYTES_MAX + 300
        told = structured(reply)
        found += [one["originalName"] for one in told["tools"]]
        offset = told.get("nextOffset")
    assert found == [f"t{n}" for n in range(300)]


@pytest.mark.promise("M36")
def test_a_tool_is_described_with_its_whole_definition_under_its_exposed_name() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "default": 1.0}}}
    raw = Raw(json.dumps({"x-own": [1.0], "name": "t", "inputSchema": schema}).encode())
    here = Place("search", style="namespaced", a=offer(raw))
    reply = here.reply("describe_tool", name="a.t")
    assert json.loads(reply.text) == {"x-own": [1.0], "name": "a__t", "inputSchema": schema}
    told = structured(reply)
    assert told["definition"] == json.loads(reply.text)
    assert (told["available"], told["loaded"]) == (True, False)
    here.down("a")
    assert here.reply("describe_tool", name="a__t").text.endswith("Warning: a server unavailable")
    assert here.reply("describe_tool", name="a__u").text.startswith("Failed to describe: ")


def test_a_definition_that_is_too_large_to_describe_is_said_to_be_so() -> None:
    here = Place("search", a=offer(tool("t", description="x" * search_tools.DEFINITION_BYTES_MAX)))
    reply = here.reply("describe_tool", name="a.t")
    assert reply.failed
    assert "bytes; load_tool brings it into the list" in reply.text


@pytest.mark.promise("M37")
@pytest.mark.parametrize("name", ["git__commit", "git.commit"])
def test_any_tool_can_be_called_loaded_or_not(name: str) -> None:
    decision = place().decide("call_tool", name=name, arguments={"message": "a", "n": [1.0]})
    assert decision == Forward("git__commit", Raw(b'{"message":"a","n":[1.0]}'))
    assert place().decide("call_tool", name=name) == Forward("git__commit", Raw(b"{}"))


def test_arguments_of_a_call_cross_as_the_bytes_that_they_came_in() -> None:
    here = place()
    raw = b'{ "name" : "db.query", "arguments" : {"n" : 1.50, "s":"\\u00e9"} }'
    decision = search_tools.FAMILY.tools["call_tool"].decide(raw, here.context())
    assert isinstance(decision, Forward)
    assert bytes(decision.arguments) == b'{"n" : 1.50, "s":"\\u00e9"}'


@pytest.mark.promise("M37")
def test_only_what_is_loaded_is_called_where_the_operator_wants_that() -> None:
    here = place()
    here.configure(replace(here.spec, call_hidden=False))
    reply = here.reply("call_tool", name="git.commit")
    assert reply.failed
    assert reply.text == (
        "Failed to call: git__commit is not loaded, and only loaded tools may be called here"
    )
    here.show(ViewContent((COMMIT,)))
    assert isinstance(here.decide("call_tool", name="git.commit"), Forward)
    here.show(ViewContent((QUERY,), servers=("git",)))
    assert isinstance(here.decide("call_tool", name="db__query"), Forward)
    assert here.reply("call_tool", name="git.commit").failed


@pytest.mark.parametrize("name", NAMES)
def test_no_built_in_tool_is_called_through_another_one(name: str) -> None:
    reply = place().reply("call_tool", name=name, arguments={})
    assert reply.failed
    assert reply.text == (
        f"Failed to call: {name} is not a tool of a server; call it by its own name"
    )


@pytest.mark.parametrize("arguments", [[], "{}", 1, None])
def test_arguments_of_a_call_are_an_object_or_it_is_said(arguments: Any) -> None:
    reply = place().reply("call_tool", name="git__commit", arguments=arguments)
    assert reply.failed
    assert "arguments must be an object, as git__commit takes it" in reply.text


def test_a_call_of_nobodys_tool_tells_the_names_that_are_like_it() -> None:
    reply = place().reply("call_tool", name="comit")
    assert reply.failed
    assert "did you mean git__commit?" in reply.text
    long = place(a_server_with_a_long_name=offer("rebase")).reply("call_tool", name="rebse")
    assert "did you mean a_server_with_a_long_name__rebase?" in long.text
    assert "did you mean" not in place().reply("call_tool", name="").text


@pytest.mark.promise("M36")
def test_a_tool_is_searched_for_loaded_and_called_by_its_name() -> None:
    here = place()
    found = structured(here.reply("search_tools", query="git"))["tools"]
    name = next(one["name"] for one in found if one["name"].endswith("commit"))
    here.done(here.ask("load_tool", name=name), ViewContent((COMMIT,)))
    owner = here.view.merged.tool(name)
    assert owner is not None
    assert (owner.server, owner.original) == ("git", b'"commit"')


def test_a_tool_of_a_server_never_takes_the_name_of_a_built_in_one() -> None:
    here = Place("search", style="bare", a=offer("call_tool", "t"))
    exposed = [entry.key for entry in here.context().everything.offered]
    assert exposed[0].startswith("call_tool_")
    decision = here.decide("call_tool", name="a.call_tool")
    assert decision == Forward(exposed[0], Raw(b"{}"))
    refused = here.decide("call_tool", name="call_tool")
    assert isinstance(refused, ToolReply)
    assert sent(refused).failed
