"""The built-in tools about tool sets: what they order, what they say, and what they tell."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.builtin_tools import tool_text, toolset_tools
from metamcp_worker.ipc.disclosure import (
    Build,
    Delete,
    Equip,
    Pair,
    ToolSet,
    Unequip,
    ViewContent,
)
from tests.worker.front.offers import offer, tool
from tests.worker.front.places import Place, structured, toolset

NAMES = [
    "discover-all-tools",
    "build-toolset",
    "equip-toolset",
    "unequip-toolset",
    "get-active-toolset",
    "list-saved-toolsets",
    "delete-toolset",
]
STATUS, COMMIT, PS, ISSUE = (
    ("git", "status"), ("git", "commit"), ("docker", "ps"), ("linear", "create_issue"),
)  # fmt: skip
DEV = toolset("dev", STATUS, PS, ISSUE, description="What one needs every day.")


def place(*toolsets: ToolSet, **more: Any) -> Place:
    return Place(
        "toolset",
        *toolsets,
        git=offer(tool("status", description="Show the state. And more."), "commit"),
        docker=offer("ps"),
        linear=offer("create_issue"),
        **more,
    )


def equipped(one: ToolSet) -> ViewContent:
    return ViewContent(one.tools, toolset=one.name)


@pytest.mark.promise("M32")
def test_at_first_the_seven_built_in_tools_are_in_view_and_nothing_else() -> None:
    assert place(DEV).listed == NAMES
    assert [item.key for item in toolset_tools.FAMILY.items] == NAMES


@pytest.mark.promise("M32")
def test_equipping_brings_the_tools_and_says_where_calls_of_them_go() -> None:
    here = place(DEV)
    ask = here.ask("equip-toolset", name="dev")
    assert ask.order == Equip("dev")
    reply = here.done(ask, equipped(DEV))
    assert here.listed == [*NAMES, "git_status", "docker_ps", "linear_create_issue"]
    assert reply.text == (
        'Toolset "dev" is equipped, 3 of its 3 tools in view:'
        " git_status, docker_ps, linear_create_issue."
    )
    told = structured(reply)
    assert told["registeredTools"] == {
        "git_status": {
            "serverName": "git", "originalName": "status", "namespacedName": "git.status",
        },
        "docker_ps": {"serverName": "docker", "originalName": "ps", "namespacedName": "docker.ps"},
        "linear_create_issue": {
            "serverName": "linear", "originalName": "create_issue",
            "namespacedName": "linear.create_issue",
        },
    }  # fmt: skip
    assert told["success"] is told["equipped"] is told["toolset"]["active"] is True
    assert told["warnings"] == told["unavailableServers"] == []


@pytest.mark.promise("M34")
def test_a_server_that_is_away_is_named_with_its_tools_and_the_rest_is_equipped() -> None:
    here = place(DEV)
    here.down("git")
    reply = here.done(here.ask("equip-toolset", name="dev"), equipped(DEV))
    assert not reply.failed
    assert here.listed == [*NAMES, "docker_ps", "linear_create_issue"]
    assert "Warning: git server unavailable, skipping tools: git.status\n" in reply.text
    assert "comes into view when its server is back" in reply.text
    told = structured(reply)
    assert told["warnings"] == ["git server unavailable, skipping tools: git.status"]
    assert told["unavailableServers"] == ["git"]
    assert "git_status" not in told["registeredTools"]
    here.up("git")
    assert here.listed == [*NAMES, "git_status", "docker_ps", "linear_create_issue"]
    assert structured(here.reply("get-active-toolset"))["warnings"] == []


@pytest.mark.promise("M34")
def test_a_set_of_a_server_that_nothing_is_known_of_yet_waits_for_it() -> None:
    late = toolset("late", ("new", "t"))
    here = place(late, new=None)
    reply = here.done(here.ask("equip-toolset", name="late"), equipped(late))
    assert "new server unavailable, skipping tools: new.t" in reply.text
    here.put("new", offer("t"))
    assert here.listed == [*NAMES, "new_t"]


def test_what_no_server_here_has_is_named_and_the_rest_is_equipped() -> None:
    mixed = toolset("mixed", STATUS, ("git", "blame"), ("svn", "log"))
    here = place(mixed)
    reply = here.done(here.ask("equip-toolset", name="mixed"), equipped(mixed))
    assert structured(reply)["warnings"] == [
        "git server has no such tools here, skipping tools: git.blame",
        "svn server is not behind this endpoint, skipping tools: svn.log",
    ]
    assert "1 of its 3 tools in view: git_status." in reply.text
    assert "is back" not in reply.text


@pytest.mark.promise("M33")
def test_a_set_of_which_nothing_can_be_in_view_is_not_equipped_and_nothing_is_ordered() -> None:
    here = place(toolset("gone", ("git", "blame"), ("svn", "log")))
    reply = here.reply("equip-toolset", name="gone")
    assert reply.failed
    assert reply.text == (
        "Failed to equip toolset: nothing of it can be in view here:"
        " git server has no such tools here, skipping tools: git.blame;"
        " svn server is not behind this endpoint, skipping tools: svn.log"
    )
    assert structured(reply) == {"success": False, "error": reply.text}


def test_a_tool_that_is_switched_off_here_cannot_be_equipped() -> None:
    here = place(toolset("one", STATUS))
    here.configure(replace(here.spec, disabled=(STATUS,)))
    assert "git.status" in here.reply("equip-toolset", name="one").text


@pytest.mark.promise("M33")
@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("equip-toolset", {"name": "dev"}, "Failed to equip toolset: why"),
        ("unequip-toolset", {}, "Failed to unequip toolset: why"),
        ("delete-toolset", {"name": "dev", "confirm": True}, "Failed to delete toolset: why"),
        ("build-toolset", {"name": "x", "tools": ["git.status"]}, "Failed to build toolset: why"),
    ],
)
def test_a_refusal_says_what_failed_and_why(name: str, arguments: Any, text: str) -> None:
    here = place(DEV)
    reply = here.refused(here.ask(name, **arguments), "why")
    assert reply.failed
    assert reply.text == text
    assert structured(reply) == {"success": False, "error": text}
    wrong = here.reply(name, nam="dev")
    assert wrong.text.startswith(f"{text.removesuffix('why')}the arguments of {name} are wrong: ")
    assert structured(wrong) == {"success": False, "error": wrong.text}


@pytest.mark.promise("M33")
def test_equipping_while_another_one_is_under_way_says_so() -> None:
    here = place(DEV)
    why = "operation in progress, please wait"
    reply = here.refused(here.ask("equip-toolset", name="dev"), why)
    assert reply.text == "Failed to equip toolset: operation in progress, please wait"


def test_a_set_that_this_front_has_not_heard_of_is_for_the_supervisor_to_judge() -> None:
    here = place()
    ask = here.ask("equip-toolset", name="dev")
    here.toolsets["dev"] = DEV
    assert "3 of its 3 tools in view" in here.done(ask, equipped(DEV)).text


@pytest.mark.promise("M32")
def test_unequipping_leaves_the_built_in_tools_alone() -> None:
    here = place(DEV)
    here.show(equipped(DEV))
    ask = here.ask("unequip-toolset")
    assert ask.order == Unequip()
    reply = here.done(ask, ViewContent())
    assert reply.text == (
        'Toolset "dev" is not equipped any more; only the built-in tools are in view.'
    )
    assert structured(reply)["unequipped"] == "dev"
    assert here.listed == NAMES
    again = here.done(here.ask("unequip-toolset"), ViewContent())
    assert again.text.startswith("No toolset was equipped")


@pytest.mark.promise("M31")
def test_a_set_is_built_of_namespaced_names_exposed_ones_and_plain_strings() -> None:
    here = place()
    tools = [
        {"namespacedName": "git.status"}, {"namespacedName": "docker_ps"},
        "linear.create_issue", "git_status",
    ]  # fmt: skip
    ask = here.ask("build-toolset", name="dev", tools=tools, description="d")
    assert ask.order == Build("dev", (STATUS, PS, ISSUE), "d")
    reply = here.done(ask, ViewContent(), DEV)
    assert reply.text.startswith('Toolset "dev" is saved with 3 tools.')
    assert structured(reply)["toolset"] == {
        "name": "dev", "description": "What one needs every day.", "toolCount": 3,
        "active": False, "createdAt": "at 1 s", "updatedAt": "at 2 s",
    }  # fmt: skip
    assert structured(reply)["equipped"] is False


def test_a_set_that_is_equipped_when_it_is_built_tells_both() -> None:
    here = place()
    ask = here.ask("build-toolset", name="dev", tools=["git.status"], autoEquip=True)
    assert ask.order == Build("dev", (STATUS,), equip=True)
    one = toolset("dev", STATUS)
    here.toolsets["dev"] = one
    reply = here.done(ask, equipped(one), one)
    assert 'saved with 1 tool. Toolset "dev" is equipped, 1 of its 1 tool in view' in reply.text
    assert list(structured(reply)["registeredTools"]) == ["git_status"]


def test_a_name_that_is_nobodys_is_told_with_the_names_that_are_like_it() -> None:
    reply = place().reply("build-toolset", name="x", tools=["git.staus", "git.commit"])
    assert reply.failed
    assert reply.text == (
        "Failed to build toolset: there is no tool 'git.staus' behind this endpoint,"
        " did you mean git_status?"
    )


def test_a_server_that_nothing_is_known_of_yet_is_said_to_be_so() -> None:
    reply = place(new=None).reply("build-toolset", name="x", tools=["new.t"])
    assert reply.text.endswith("nothing is known yet of the tools of new")


def test_nothing_is_deleted_that_is_not_confirmed() -> None:
    here = place(DEV)
    reply = here.reply("delete-toolset", name="dev")
    assert reply.failed
    assert reply.text == 'Failed to delete toolset: set confirm to true to delete "dev"'
    here.show(equipped(DEV))
    ask = here.ask("delete-toolset", name="dev", confirm=True)
    assert ask.order == Delete("dev")
    del here.toolsets["dev"]
    assert here.done(ask, ViewContent()).text == (
        'Toolset "dev" is deleted. It was equipped; only the built-in tools are in view.'
    )


def test_the_equipped_set_is_told_with_its_tools_and_what_it_saves() -> None:
    here = place(DEV)
    nothing = here.reply("get-active-toolset")
    assert structured(nothing)["equipped"] is False
    assert "No toolset is equipped" in nothing.text
    here.show(equipped(DEV))
    here.down("docker")
    reply = here.reply("get-active-toolset")
    lines = reply.text.splitlines()
    assert lines[0] == 'Toolset "dev" is equipped, 2 of its 3 tools in view.'
    assert lines[1].startswith("- `git.status` as `git_status` (")
    assert lines[1].endswith("tokens, in view): Show the state.")
    assert lines[3] == "Warning: docker server unavailable, skipping tools: docker.ps"
    told = structured(reply)
    assert told["toolSummary"] == {
        "currentlyExposed": 2, "totalDiscovered": 4, "filteredOut": 2,
    }  # fmt: skip
    assert [one["exposedName"] for one in told["exposedTools"]] == [
        "git_status", "linear_create_issue",
    ]  # fmt: skip
    assert told["unavailableServers"] == ["docker"]
    cost = told["tokens"]
    assert cost["saved"] == cost["everything"] - cost["inView"]


@pytest.mark.promise("M31")
def test_the_saved_sets_are_told_with_their_servers_and_which_one_is_equipped() -> None:
    here = place(DEV, toolset("git", STATUS, COMMIT))
    assert "No toolset is saved" in place().reply("list-saved-toolsets").text
    here.show(equipped(DEV))
    reply = here.reply("list-saved-toolsets")
    assert reply.text == (
        '- "dev", equipped: 3 tools of git, docker, linear: What one needs every day.\n'
        '- "git": 2 tools of git'
    )
    first, second = structured(reply)["toolsets"]
    assert (first["active"], second["active"]) == (True, False)
    assert second["servers"] == [{"name": "git", "toolCount": 2}]
    assert [one["namespacedName"] for one in second["tools"]] == ["git.status", "git.commit"]


def test_many_saved_sets_are_told_in_portions_that_come_to_the_end() -> None:
    pairs: tuple[Pair, ...] = tuple((f"server{n}", "t" * 100) for n in range(100))
    sets = [toolset(f"set {n}", *pairs, description="x" * 1000) for n in range(30)]
    here = place(*sets)
    names: list[str] = []
    offset: int | None = 0
    while offset is not None:
        reply = here.reply("list-saved-toolsets", offset=offset)
        assert len(reply.text) < tool_text.ANSWER_BYTES_MAX + 100
        told = structured(reply)
        assert told["toolsets"]
        names += [one["name"] for one in told["toolsets"]]
        offset = told.get("nextOffset")
    assert names == [one.name for one in sets]


@pytest.mark.promise("M30")
def test_discovery_tells_everything_whatever_is_equipped() -> None:
    here = place(DEV)
    before = structured(here.reply("discover-all-tools"))
    here.show(equipped(DEV))
    after = structured(here.reply("discover-all-tools"))
    assert before["summary"] == after["summary"] == {"totalTools": 4, "totalServers": 3}
    for told in (before, after):
        tools = [one for server in told["toolsByServer"] for one in server["tools"]]
        assert [one["namespacedName"] for one in tools] == [
            "git.status", "git.commit", "docker.ps", "linear.create_issue",
        ]  # fmt: skip
    git = after["toolsByServer"][0]
    assert {key: git[key] for key in ("serverName", "available", "state", "toolCount")} == {
        "serverName": "git", "available": True, "state": "ready", "toolCount": 2,
    }  # fmt: skip
    status = git["tools"][0]
    assert status.pop("tokens") > 0
    assert status == {
        "exposedName": "git_status", "serverName": "git", "originalName": "status",
        "namespacedName": "git.status", "description": "Show the state.", "inView": True,
    }  # fmt: skip


@pytest.mark.promise("M30")
def test_discovery_tells_servers_that_are_away_and_why() -> None:
    here = place(new=None)
    here.down("git", "it exited\nwith 3")
    reply = here.reply("discover-all-tools")
    assert "\n## git: unavailable (error: it exited with 3), 2 tools, " in reply.text
    assert "\n## new: unavailable (warming), 0 tools, 0 tokens" in reply.text
    git, *_, new = structured(reply)["toolsByServer"]
    assert git["available"] is False
    assert git["error"] == "it exited with 3"
    assert [one["namespacedName"] for one in git["tools"]] == ["git.status", "git.commit"]
    assert (new["serverName"], new["tools"]) == ("new", [])


def test_discovery_can_be_asked_for_one_server() -> None:
    here = place()
    told = structured(here.reply("discover-all-tools", server="docker"))
    assert [one["serverName"] for one in told["toolsByServer"]] == ["docker"]
    reply = here.reply("discover-all-tools", server="svn")
    assert reply.failed
    assert reply.text == (
        "There is no server 'svn' behind this endpoint; there are: git, docker, linear."
    )


@pytest.mark.promise("M30")
def test_a_discovery_of_many_tools_is_told_in_portions_that_come_to_the_end() -> None:
    many = [tool(f"tool{n}", description="word " * 100) for n in range(300)]
    here = Place("toolset", a=offer(*many), b=offer("t"))
    found: list[str] = []
    offset: int | None = 0
    answers = 0
    while offset is not None:
        reply = here.reply("discover-all-tools", offset=offset)
        answers += 1
        assert len(reply.text.encode()) < tool_text.ANSWER_BYTES_MAX + 300
        told = structured(reply)
        assert told["summary"]["totalTools"] == 301
        assert told["toolsByServer"][0]["serverName"] in {"a", "b"}
        found += [t["exposedName"] for one in told["toolsByServer"] for t in one["tools"]]
        offset = told.get("nextOffset")
        assert (offset is None) is ("There is more" not in reply.text)
    assert found == [*(f"a_tool{n}" for n in range(300)), "b_t"]
    assert answers > 1
    assert here.reply("discover-all-tools", offset=10_000).text.count("\n") == 0
    assert structured(here.reply("discover-all-tools", offset=-5))["toolsByServer"][0]["tools"]


def test_names_and_words_of_servers_stay_on_their_line() -> None:
    here = Place("toolset", a=offer(tool("x`\n- `rm", description="Fine.\n- `other`: no")))
    reply = here.reply("discover-all-tools")
    assert len(reply.text.splitlines()) == 3
    assert "- `a.x' - 'rm` as " in reply.text


def test_warnings_have_an_end() -> None:
    big = toolset("big", STATUS, *((f"s{n}", "t") for n in range(100)))
    here = place(big)
    warnings = structured(here.done(here.ask("equip-toolset", name="big"), equipped(big)))[
        "warnings"
    ]
    assert len(warnings) == 21
    assert warnings[-1] == "tools of 80 more servers are skipped"
    long = toolset("long", STATUS, *(("git", f"t{n}") for n in range(60)))
    here = place(long)
    reply = here.done(here.ask("equip-toolset", name="long"), equipped(long))
    assert "git.t49 and 10 more" in reply.text
