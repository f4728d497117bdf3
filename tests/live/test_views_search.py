"""Searching, loading and calling, saving and loading tool sets: each example with a true client."""

import json
from collections.abc import Iterator

import pytest

from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw
from tests.live.viewed import (
    FIND,
    SETS,
    WHOLE,
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
)

pytestmark = [pytest.mark.live, pytest.mark.promise("M36")]

GIT = {
    "status": "Show what is changed in the working tree.",
    "commit": "Record changes to the repository.",
    "push": "Send commits to the remote.",
    "log": "List the commits of a branch.",
    "diff": "Compare two revisions line by line.",
}
CROWD = 250
"""Tools of each of two servers that only take room."""
WITH = {"toolset": SETS, "servers": WHOLE, "search": FIND}
FIND_PATH = "/metamcp/search/mcp"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    crowd = [f"tool_{number:03}=Turns knob {number}." for number in range(CROWD)]
    servers = {
        "git": named(*(f"{name}={about}" for name, about in GIT.items())),
        "filesystem": named("list=List the files of a folder.", "read=Read a file."),
        "left": named(*crowd),
        "right": named(*crowd),
    }
    extra = "".join(endpoint(name, exposure=f'"{name}"') for name in ("all", *WITH))
    with Gateway(servers, extra=extra) as running:
        yield running


@pytest.fixture(autouse=True)
def begin(gateway: Gateway) -> None:
    """Nothing is loaded, and no tool set is saved."""
    client = Raw(gateway.port, MODERN, FIND_PATH)
    if loaded := called(client, "list_loaded_tools")["structuredContent"]["tools"]:
        called(client, "unload_tool", name=[one["exposedName"] for one in loaded])
    other = Raw(gateway.port, MODERN, "/metamcp/toolset/mcp")
    for one in called(other, "list-saved-toolsets")["structuredContent"]["toolsets"]:
        called(other, "delete-toolset", name=one["name"], confirm=True)


@pytest.mark.promise("M32", "M35")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_the_definitions_at_start_are_7_3_and_8_whatever_stands_behind_them(
    gateway: Gateway, era: str
) -> None:
    everything = Raw(gateway.port, era, "/metamcp/all/mcp")
    assert len(everything.names()) == 2 * CROWD + len(GIT) + 2
    for exposure, builtins in WITH.items():
        client = Raw(gateway.port, era, f"/metamcp/{exposure}/mcp")
        assert client.names() == builtins
        assert client.names("prompts/list", "prompts") == []
        assert client.names("resources/list", "resources") == []
    assert [len(builtins) for builtins in WITH.values()] == [7, 3, 8]


@eras
async def test_the_tools_for_git_are_found_one_is_loaded_and_it_is_called(
    gateway: Gateway, mode: str
) -> None:
    async with opened_client(gateway, mode, FIND_PATH) as client:
        found = await client.call_tool("search_tools", {"query": "git"})
        assert found.structured_content is not None
        hits = {one["name"]: one["description"] for one in found.structured_content["tools"]}
        assert hits == {f"git__{name}": about for name, about in GIT.items()}
        assert all(f"- `{name}`: {about}" in said(found) for name, about in hits.items())
        assert await names(client) == FIND, "searching loads nothing"
        with listeners(gateway, FIND_PATH) as streams:
            loaded = await client.call_tool("load_tool", {"name": "git__commit"})
            assert said(loaded) == "Loaded; in the list of tools now: git__commit."
            heard(streams)
        assert await names(client) == [*FIND, "git__commit"]
        result = await client.call_tool("git__commit", {"message": "fix: resolve bug"})
        assert json.loads(said(result)) == {
            "name": "commit", "arguments": {"message": "fix: resolve bug"},
        }  # fmt: skip


@eras
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("commit", "git__commit"),
        ("filesystem__list", "filesystem__list"),
        ("compare revisions", "git__diff"),
        ("which files are in this folder?", "filesystem__list"),
        ("send my work to the remote", "git__push"),
    ],
)
async def test_a_tool_is_found_by_its_name_by_its_description_and_by_what_it_is_for(
    gateway: Gateway, mode: str, query: str, first: str
) -> None:
    async with opened_client(gateway, mode, FIND_PATH) as client:
        assert (await done(client, "search_tools", query=query))["tools"][0]["name"] == first


@pytest.mark.promise("M31")
@eras
async def test_what_is_loaded_is_saved_as_a_tool_set_and_loaded_again_later(
    gateway: Gateway, mode: str
) -> None:
    pair = ["git__status", "git__commit"]

    async with opened_client(gateway, mode, FIND_PATH) as client:
        why = await refused(client, "save_tool_set", name="git-workflow")
        assert why == "Failed to save tool set: nothing is loaded that could be saved"
        await done(client, "load_tool", name=pair)
        saved = await done(
            client, "save_tool_set", name="git-workflow", description="Tools for git operations"
        )
        toolset = saved["toolset"]
        assert (toolset["name"], toolset["toolCount"]) == ("git-workflow", 2)
        assert toolset["description"] == "Tools for git operations"
        assert {"createdAt", "updatedAt"} < set(toolset)
        await done(client, "unload_tool", name=pair)
        listed = await done(client, "list_loaded_tools")
        assert (listed["loaded"], listed["toolsets"]) == (0, ["git-workflow"])
        await done(client, "load_tool", name="filesystem.list")
        with listeners(gateway, FIND_PATH) as streams:
            restored = await done(client, "load_tool_set", name="git-workflow")
            heard(streams)
        assert list(restored["registeredTools"]) == pair
        assert await names(client) == [*FIND, *pair, "filesystem__list"]
        listed = await done(client, "list_loaded_tools")
        assert [one["exposedName"] for one in listed["tools"]] == [*pair, "filesystem__list"]
        assert (listed["loaded"], listed["available"]) == (3, 2 * CROWD + len(GIT) + 2)


@pytest.mark.promise("M37")
@eras
async def test_a_tool_that_is_not_loaded_is_described_and_called_by_either_of_its_names(
    gateway: Gateway, mode: str
) -> None:
    async with opened_client(gateway, mode, FIND_PATH) as client:
        for name in ("filesystem__list", "filesystem.list"):
            described = await done(client, "describe_tool", name=name)
            assert (described["exposedName"], described["loaded"]) == ("filesystem__list", False)
            assert described["definition"]["name"] == "filesystem__list"
            assert "outputSchema" in described["definition"]
            asked = {"name": name, "arguments": {"path": "."}}
            result = await client.call_tool("call_tool", asked)
            assert result.structured_content == {"name": "list", "arguments": {"path": "."}}
        assert await names(client) == FIND


@eras
@pytest.mark.parametrize("tool", ["load_tool", "describe_tool", "call_tool"])
async def test_a_name_that_is_nobodys_is_answered_with_the_nearest(
    gateway: Gateway, mode: str, tool: str
) -> None:
    async with opened_client(gateway, mode, FIND_PATH) as client:
        what = tool.partition("_")[0]
        assert (await refused(client, tool, name="git__comit")).startswith(
            f"Failed to {what}: there is no tool 'git__comit' behind this endpoint, did you mean"
            " git__commit"
        )
