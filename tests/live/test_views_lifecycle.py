"""The life of an equipped tool set, example by example: before, in force, with a server away,
replaced, deleted, over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.named_server import definition
from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw
from tests.live.viewed import (
    CHANGED,
    SETS,
    called,
    done,
    endpoint,
    eras,
    heard,
    listeners,
    named,
    names,
    opened_client,
    refused,
    said,
    tools_of,
)
from tests.waiting import until

pytestmark = pytest.mark.live

FLAT = endpoint("default", exposure='"toolset"', naming='{ style = "flat" }')
ABOUT = {
    "git_status": "Show git repository status",
    "git_commit": "Commit changes to git repository",
    "docker_ps": "List running Docker containers",
    "linear_create_issue": "Create a new Linear issue",
}
ESSENTIALS = ["git.status", "git.commit", "docker.ps", "linear.create_issue"]
SERVERS = {
    "git": named(*(f"{name}={ABOUT[f'git_{name}']}" for name in ("status", "commit")), "log"),
    "docker": named(f"ps={ABOUT['docker_ps']}", "build_image"),
    "linear": named(f"create_issue={ABOUT['linear_create_issue']}"),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SERVERS, extra=FLAT) as running:
        yield running


@pytest.fixture(autouse=True)
def begin(request: pytest.FixtureRequest) -> None:
    """Two tool sets, nothing equipped."""
    if "gateway" in request.fixturenames:
        running: Gateway = request.getfixturevalue("gateway")
        client = Raw(running.port, MODERN)
        for one in called(client, "list-saved-toolsets")["structuredContent"]["toolsets"]:
            called(client, "delete-toolset", name=one["name"], confirm=True)
        built(client)


def built(client: Raw) -> None:
    for name, tools in (("dev-essentials", ESSENTIALS), ("data", ["git.log"])):
        made = called(client, "build-toolset", name=name, tools=tools_of(tools))
        assert not made["isError"], made


@pytest.mark.promise("M32")
@eras
async def test_a_client_sees_the_tools_of_the_set_between_equipping_and_unequipping(
    gateway: Gateway, mode: str
) -> None:
    async with opened_client(gateway, mode) as client:
        assert await names(client) == SETS
        idle = await done(client, "get-active-toolset")
        assert (idle["equipped"], idle["toolSummary"]["currentlyExposed"]) == (False, 0)
        equipped = await client.call_tool("equip-toolset", {"name": "dev-essentials"})
        assert said(equipped) == (
            'Toolset "dev-essentials" is equipped, 4 of its 4 tools in view: git_status,'
            " git_commit, docker_ps, linear_create_issue."
        )
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == [*SETS, *ABOUT]
        assert {tool.name: tool.description for tool in listed[len(SETS) :]} == ABOUT
        active = await done(client, "get-active-toolset")
        assert active["toolset"]["name"] == "dev-essentials"
        assert active["toolSummary"] == {
            "currentlyExposed": 4, "totalDiscovered": 6, "filteredOut": 2,
        }  # fmt: skip
        assert [tool["exposedName"] for tool in active["exposedTools"]] == list(ABOUT)
        over = await done(client, "unequip-toolset")
        assert over["unequipped"] == "dev-essentials"
        assert await names(client) == SETS


@pytest.mark.promise("M22", "M32")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_equipped_tools_are_defined_as_their_servers_define_them_but_for_the_name(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era)
    called(client, "equip-toolset", name="dev-essentials")
    listed = client.result("tools/list")["tools"][len(SETS) :]
    assert listed == [
        {**definition("", about), "name": name, "title": listed[at]["title"]}
        for at, (name, about) in enumerate(ABOUT.items())
    ]
    assert [tool["title"] for tool in listed] == [
        "The status", "The commit", "The ps", "The create_issue",
    ]  # fmt: skip


@pytest.mark.promise("M37")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("at_first", [[], SETS], ids=["never lists", "lists once"])
def test_a_client_that_ignores_changes_of_the_list_calls_every_equipped_tool(
    gateway: Gateway, era: str, at_first: list[str]
) -> None:
    client = Raw(gateway.port, era)
    if at_first:
        assert client.names() == at_first
    equipped = called(client, "equip-toolset", name="dev-essentials")["structuredContent"]
    assert list(equipped["registeredTools"]) == list(ABOUT)
    for name, route in equipped["registeredTools"].items():
        found = called(client, name, query="typescript")
        assert found["structuredContent"] == {
            "name": route["originalName"], "arguments": {"query": "typescript"},
        }  # fmt: skip
    called(Raw(gateway.port, era), "unequip-toolset")
    assert not called(client, "git_status")["isError"], "although somebody else unequipped it"


@pytest.mark.promise("M28", "M32")
def test_everybody_hears_once_of_each_change_of_the_list_and_of_nothing_else() -> None:
    with Gateway(SERVERS, extra=FLAT) as gateway:
        client = Raw(gateway.port, LEGACY)
        built(client)
        with listeners(gateway) as streams:
            for tool, arguments, changes in (
                ("equip-toolset", {"name": "dev-essentials"}, True),
                ("equip-toolset", {"name": "dev-essentials"}, False),
                ("equip-toolset", {"name": "nothing"}, False),
                ("build-toolset", {"name": "more", "tools": ["git.log"]}, False),
                ("equip-toolset", {"name": "data"}, True),
                ("delete-toolset", {"name": "more", "confirm": True}, False),
                ("delete-toolset", {"name": "data", "confirm": True}, True),
                ("unequip-toolset", {}, False),
                ("build-toolset", {"name": "b", "tools": ["docker.ps"], "autoEquip": True}, True),
                ("unequip-toolset", {}, True),
            ):  # fmt: skip
                called(client, tool, **arguments)
                if changes:
                    heard(streams)
            assert client.names() == SETS
            assert gateway.stop() == 0
            left = [raw for stream in streams for raw in stream.rest() if CHANGED.encode() in raw]
            assert left == []


@pytest.mark.promise("M34")
@eras
async def test_with_a_server_that_does_not_come_up_the_others_are_equipped_and_it_follows(
    tmp_path: Path, mode: str
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    git = named("--gate", str(gate), "status", "commit", "log")
    servers = {**SERVERS, "git": {**git, "strict_listing": True}}
    with Gateway(servers, extra=FLAT, wait=False) as gateway:
        gateway.wait_ready()
        built(Raw(gateway.port, MODERN))
        assert gateway.stop() == 0
        gate.unlink()
        gateway.start()
        until(gateway.answers, "it answers again")
        gateway.wait("docker", "linear")
        async with opened_client(gateway, mode) as client:
            equipped = await client.call_tool("equip-toolset", {"name": "dev-essentials"})
            warning = "git server unavailable, skipping tools: git.status, git.commit"
            assert f"\nWarning: {warning}\n" in said(equipped)
            assert equipped.structured_content is not None
            assert equipped.structured_content["warnings"] == [warning]
            assert equipped.structured_content["unavailableServers"] == ["git"]
            assert await names(client) == [*SETS, "docker_ps", "linear_create_issue"]
            with listeners(gateway) as streams:
                gate.touch()
                heard(streams)
            assert await names(client) == [*SETS, *ABOUT]
            assert (await done(client, "git_commit"))["name"] == "commit"
            assert (await done(client, "get-active-toolset"))["warnings"] == []


@pytest.mark.promise("M31")
@eras
async def test_a_tool_set_that_is_equipped_can_be_deleted_and_leaves_the_list(
    gateway: Gateway, mode: str
) -> None:
    async with opened_client(gateway, mode) as client:
        await done(client, "equip-toolset", name="dev-essentials")
        assert "confirm" in await refused(client, "delete-toolset", name="dev-essentials")
        assert await names(client) == [*SETS, *ABOUT]
        await done(client, "delete-toolset", name="dev-essentials", confirm=True)
        assert await names(client) == SETS
        again = await refused(client, "equip-toolset", name="dev-essentials")
        assert again.startswith("Failed to equip toolset: there is no tool set 'dev-essentials'")
        assert again.endswith("there are: data")


@pytest.mark.promise("M31")
@pytest.mark.parametrize("tools", [ESSENTIALS, tools_of(ESSENTIALS), list(ABOUT)])
def test_the_tools_of_a_set_are_named_in_any_of_three_ways(
    gateway: Gateway, tools: list[object]
) -> None:
    client = Raw(gateway.port, MODERN)
    called(client, "build-toolset", name="mine", tools=tools, description="work", autoEquip=True)
    assert client.names() == [*SETS, *ABOUT]
    (saved,) = [
        one
        for one in called(client, "list-saved-toolsets")["structuredContent"]["toolsets"]
        if one["name"] == "mine"
    ]
    assert [tool["namespacedName"] for tool in saved["tools"]] == ESSENTIALS
    assert (saved["description"], saved["active"], saved["toolCount"]) == ("work", True, 4)
    assert saved["createdAt"] == saved["updatedAt"] != ""


@pytest.mark.promise("M30")
def test_discovery_tells_everything_whatever_is_equipped_and_who_is_away(
    gateway: Gateway,
) -> None:
    client = Raw(gateway.port, MODERN)

    def discovered() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        offset: int | None = 0
        while offset is not None:
            told = called(client, "discover-all-tools", offset=offset)["structuredContent"]
            for server in told["toolsByServer"]:
                tools = [tool["namespacedName"] for tool in server["tools"]]
                found.setdefault(server["serverName"], []).extend(tools)
            offset = told.get("nextOffset")
        return found

    before = discovered()
    assert list(before) == ["git", "docker", "linear"]
    assert "git.status" in before["git"]
    called(client, "equip-toolset", name="data")
    assert discovered() == before
    gateway.ctl("stop", "git", "--wait")
    try:
        assert discovered() == before
        told = called(client, "discover-all-tools", server="git")["structuredContent"]
        assert told["toolsByServer"][0]["available"] is False
    finally:
        gateway.ctl("start", "git", "--wait")
