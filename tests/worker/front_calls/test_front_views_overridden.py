"""Overridden tools where views are built, searched and told, and as plain HTTP."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.builtin_tools.builtin import Forward
from metamcp_worker.catalog.tool_overrides import ORIGINAL
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Exposure, Load, ViewContent
from metamcp_worker.ipc.spec import FrontSpec, ToolOverride
from tests.worker.front.door import Door, bodiless, opened_door
from tests.worker.front.offers import offer, tool
from tests.worker.front.places import HERE, Place, structured, toolset

from ..rawhttp import post

RESET, STATUS, SECRET = ("git", "reset"), ("git", "status"), ("git", "secret")
OVERRIDES = (
    ToolOverride(
        server="git",
        tool="reset",
        name="forget_changes",
        aliases=("undo",),
        description="Throws everything away that is not kept.",
        fixed={"hard": "true"},
    ),
    ToolOverride(server="git", tool="secret", hidden=True, aliases=("whisper",)),
)


def schema(**properties: object) -> Raw:
    members = {"name": "reset", "description": "Reset the index."}
    return Raw(codec.dump({**members, "inputSchema": {"type": "object", "properties": properties}}))


def place(exposure: Exposure, *toolsets: Any, call_hidden: bool = True) -> Place:
    here = Place(
        exposure,
        *toolsets,
        style="namespaced",
        git=offer(
            schema(hard={"type": "boolean"}, path={"type": "string"}),
            tool("status", description="What is other than before."),
            tool("secret", description="Never found by its description."),
        ),
        db=offer("query"),
    )
    here.configure(replace(here.spec, overrides=OVERRIDES, call_hidden=call_hidden))
    return here


@pytest.mark.promise("M27", "M36")
@pytest.mark.parametrize(
    "query", ["forget_changes", "throw away", "please forget it", "forget changes"]
)
def test_a_search_finds_a_tool_by_its_new_name_and_description(query: str) -> None:
    found = structured(place("search").reply("search_tools", query=query))["tools"]
    assert found[0]["name"] == "forget_changes"
    assert found[0]["description"] == "Throws everything away that is not kept."


@pytest.mark.promise("M27")
def test_a_search_finds_nothing_that_is_hidden_and_no_old_description() -> None:
    here = place("search")
    for query in ("", "secret", "never found by its description", "whisper"):
        found = structured(here.reply("search_tools", query=query))["tools"]
        assert "git__secret" not in [one["name"] for one in found]
    assert structured(here.reply("search_tools", query="index"))["tools"] == []


@pytest.mark.promise("M27")
@pytest.mark.parametrize("name", ["forget_changes", "git.reset", "undo"])
def test_a_tool_is_described_loaded_and_called_under_any_of_its_names(name: str) -> None:
    here = place("search")
    found = structured(here.reply("describe_tool", name=name))
    assert (found["exposedName"], found["namespacedName"]) == ("forget_changes", "git.reset")
    definition = found["definition"]
    assert definition["name"] == "forget_changes"
    assert definition["description"] == "Throws everything away that is not kept."
    assert list(definition["inputSchema"]["properties"]) == ["path"]
    assert definition["_meta"][ORIGINAL] == {"server": "git", "name": "reset"}
    assert here.ask("load_tool", name=name).order == Load((RESET,))
    forward = here.decide("call_tool", name=name)
    assert isinstance(forward, Forward)
    owner = here.view.merged.tool(forward.name)
    assert owner is not None
    assert owner.mend is not None


@pytest.mark.promise("M27")
@pytest.mark.parametrize("name", ["git__secret", "whisper"])
def test_a_hidden_tool_is_called_and_nothing_else(name: str) -> None:
    here = place("search")
    assert here.decide("call_tool", name=name) == Forward(name, Raw(b"{}"))
    for built_in in ("describe_tool", "load_tool"):
        reply = here.reply(built_in, name=name)
        assert f"there is no tool {name!r} behind this endpoint" in reply.text
    assert here.reply("call_tool", name="git.secret").failed, "that is what a search would tell"
    strict = place("search", call_hidden=False)
    assert "is not loaded" in strict.reply("call_tool", name=name).text
    assert strict.view.merged.tool(name) is None


def test_a_tool_in_quarantine_is_not_had_by_an_alias() -> None:
    here = place("search")
    quarantined = ((*RESET, "It drifted."),)
    spec = FrontSpec(version="1", endpoints=(here.spec,), hosts=(), quarantined=quarantined)
    here.viewers.configure(spec)
    here.viewers.refresh()
    for built_in in ("call_tool", "load_tool", "describe_tool"):
        assert "It drifted." in here.reply(built_in, name="undo").text


@pytest.mark.promise("M27", "M31")
def test_tool_sets_go_by_server_and_own_name() -> None:
    here = place("toolset", toolset("work", RESET, STATUS, SECRET), toolset("dark", SECRET))
    here.show(ViewContent((RESET, STATUS, SECRET), toolset="work"))
    assert here.listed[7:] == ["forget_changes", "git__status"]
    (told,) = structured(here.reply("get-active-toolset"))["warnings"]
    assert told == "git server has no such tools here, skipping tools: git.secret"
    dark = here.reply("equip-toolset", name="dark")
    assert dark.text.startswith("Failed to equip toolset: nothing of it can be in view here")


@pytest.mark.promise("M27", "M30")
def test_discovery_tells_tools_as_they_are_overridden() -> None:
    found = structured(place("toolset").reply("discover-all-tools", server="git"))
    assert found["summary"]["totalTools"] == 2
    (git,) = found["toolsByServer"]
    assert {one["exposedName"]: one["originalName"] for one in git["tools"]} == {
        "forget_changes": "reset", "git__status": "status",
    }  # fmt: skip
    assert git["tools"][0]["description"] == "Throws everything away that is not kept."


@pytest.mark.promise("M27", "M35")
def test_a_hidden_tool_does_not_come_into_view_with_its_server() -> None:
    here = place("servers")
    reply = here.done(here.ask("gateway_activate", name="git"), ViewContent(servers=("git",)))
    assert reply.text == "git is active: its 2 tools are in view: forget_changes, git__status."
    assert here.listed[3:] == ["forget_changes", "git__status"]


@pytest.mark.promise("M27")
def test_only_the_endpoints_whose_lists_changed_are_told_of_other_overrides() -> None:
    here = place("all")
    other = replace(here.spec, name="other", overrides=())

    def configured(*overrides: ToolOverride) -> dict[str, frozenset[str]]:
        spec = replace(here.spec, overrides=overrides)
        here.viewers.configure(FrontSpec(version="1", endpoints=(spec, other), hosts=()))
        return {whose.endpoint: kinds for whose, kinds in here.viewers.refresh().items()}

    tools = frozenset({"tools"})
    configured(*OVERRIDES)
    assert configured(OVERRIDES[0]) == {"default": tools}
    assert configured(replace(OVERRIDES[0], aliases=(), fixed={"hard": "false"})) == {}
    assert configured() == {"default": tools}
    assert configured() == {}
    assert here.viewers.get(HERE.endpoint) is not None


def test_what_could_not_be_is_noted_once() -> None:
    here = place("all")
    spec = replace(here.spec, overrides=(ToolOverride(server="git", tool="reste", hidden=True),))
    here.viewers.take_omissions()
    here.configure(spec)
    said = "endpoint default: git has no tool 'reste', which is overridden here"
    assert here.viewers.take_omissions() == [said]
    here.down("db")
    assert here.viewers.take_omissions() == []


API = "/metamcp/default/api"


def overridden(door: Door) -> None:
    said = ToolOverride(
        server="s", tool="t", name="tee", aliases=("old",), description="A tee.",
        fixed={"x": "1"}, defaults={"y": "2"},
    )  # fmt: skip
    first = replace(
        door.spec.endpoints[0],
        overrides=(said, ToolOverride(server="s", tool="u", hidden=True)),
    )
    door.steps.configure(replace(door.spec, endpoints=(first, *door.spec.endpoints[1:])))
    properties = {"x": {}, "y": {"type": "integer"}, "z": {}}
    definition = {
        "name": "t", "inputSchema": {"type": "object", "properties": properties,
        "required": ["x", "y", "z"]},
    }  # fmt: skip
    door.offer(offer(Raw(codec.dump(definition)), "u"))


@pytest.mark.promise("M4", "M27")
async def test_rest_lists_and_describes_tools_as_they_are_overridden() -> None:
    async with opened_door() as door:
        overridden(door)
        (listed,) = codec.value((await door.ask(bodiless("GET", path=API))).body)["tools"]
        schema = {
            "type": "object",
            "properties": {"y": {"type": "integer", "default": 2}, "z": {}},
            "required": ["z"],
        }
        assert listed == {"name": "tee", "description": "A tee.", "inputSchema": schema}
        reply = await door.ask(bodiless("GET", path=f"{API}/openapi.json"))
        document = codec.value(reply.body)
        assert list(document["paths"]) == ["/tee"]
        assert document["components"]["schemas"]["tee.input"] == schema
        dev = bodiless("GET", path="/metamcp/dev/api")
        names = [one["name"] for one in codec.value((await door.ask(dev)).body)["tools"]]
        assert names == ["t", "u"]


@pytest.mark.promise("M4", "M27")
@pytest.mark.parametrize(
    ("path", "body", "arguments"),
    [
        ("tee", b'{"x":7, "z":0.0}', {"z": 0.0, "x": 1, "y": 2}),
        ("old", b'{"y":3}', {"y": 3, "x": 1}),
        ("tee", b"", {"x": 1, "y": 2}),
        ("u", b'{"x":7}', {"x": 7}),
    ],
)
async def test_rest_calls_obey_overrides(
    path: str, body: bytes, arguments: dict[str, object]
) -> None:
    async with opened_door() as door:
        overridden(door)
        client = await door.connect()
        client.send(post(body, "Accept", path=f"{API}/{path}"))
        call = await door.peer.call()
        assert codec.value(codec.level(call.params)["arguments"]) == arguments


@pytest.mark.promise("M27")
async def test_rest_does_not_know_a_renamed_tool_by_its_old_name() -> None:
    async with opened_door() as door:
        overridden(door)
        assert (await door.ask(post(b"{}", "Accept", path=f"{API}/t"))).status == 404
