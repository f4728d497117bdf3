"""The table of flattened names over the true gateway: what tools are called, and where calls go."""

import json
from collections.abc import Iterator

import pytest

from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw
from tests.live.viewed import (
    SETS,
    called,
    done,
    endpoint,
    eras,
    named,
    names,
    opened_client,
    said,
    tools_of,
)

pytestmark = pytest.mark.live

FLAT = {"exposure": '"toolset"', "naming": '{ style = "flat" }'}
UNDERSCORE = {"exposure": '"toolset"', "naming": '{ style = "flat", hyphens = "underscore" }'}

#: Server, its own name of the tool, and the two exposed names.
TABLE = [
    ("git", "status", "git_status", "git_status"),
    ("git", "search_repositories", "git_search_repositories", "git_search_repositories"),
    ("git", "search-commits", "git_search-commits", "git_search_commits"),
    ("docker", "ps", "docker_ps", "docker_ps"),
    ("docker", "build_image", "docker_build_image", "docker_build_image"),
    ("linear", "create_issue", "linear_create_issue", "linear_create_issue"),
    (
        "context7", "resolve-library-id",
        "context7_resolve-library-id", "context7_resolve_library_id",
    ),
    ("task-master", "get_tasks", "task-master_get_tasks", "task_master_get_tasks"),
    (
        "server", "tool.with.multiple.dots",
        "server_tool_with_multiple_dots", "server_tool_with_multiple_dots",
    ),
    ("s3", "2nd copy/größe", "s3_2nd_copy_grosse", "s3_2nd_copy_grosse"),
]  # fmt: skip
PAIRS = [f"{server}.{tool}" for server, tool, _, _ in TABLE]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers: dict[str, list[str]] = {}
    for server, tool, _, _ in TABLE:
        servers.setdefault(server, []).append(tool)
    # Their names would be one: a server "a" with "b_c", and a server "a_b" with "c".
    colliding = {"a": named("b_c"), "a_b": named("c")}
    extra = endpoint("default", **FLAT) + endpoint("underscore", **UNDERSCORE)
    entries = {server: named(*tools) for server, tools in servers.items()}
    with Gateway({**entries, **colliding}, extra=extra) as running:
        client = Raw(running.port, MODERN)
        for name, tools in (("table", PAIRS), ("both", ["a.b_c", "a_b.c"])):
            built = called(client, "build-toolset", name=name, tools=tools_of(tools))
            assert not built["isError"], built
        yield running


@pytest.mark.promise("M26", "M32")
@eras
@pytest.mark.parametrize(("path", "column"), [("/mcp", 2), ("/metamcp/underscore/mcp", 3)])
async def test_each_tool_of_the_table_is_in_the_list_under_its_flat_name_and_called_by_it(
    gateway: Gateway, mode: str, path: str, column: int
) -> None:
    async with opened_client(gateway, mode, path) as client:
        equipped = await done(client, "equip-toolset", name="table")
        exposed = [row[column] for row in TABLE]
        assert set(await names(client)) == {*SETS, *exposed}
        assert equipped["registeredTools"] == {
            row[column]: {
                "serverName": row[0],
                "originalName": row[1],
                "namespacedName": f"{row[0]}.{row[1]}",
            }
            for row in TABLE
        }
        for row in TABLE:
            arguments = {"query": "typescript"}
            result = await client.call_tool(row[column], arguments)
            assert result.structured_content == {"name": row[1], "arguments": arguments}
            assert json.loads(said(result)) == result.structured_content
        await done(client, "unequip-toolset")
        assert await names(client) == SETS


@pytest.mark.promise("M26")
def test_every_tool_that_there_is_has_a_route_whatever_is_equipped(gateway: Gateway) -> None:
    told = called(Raw(gateway.port, MODERN), "discover-all-tools")["structuredContent"]
    routes = {
        tool["namespacedName"]: (tool["serverName"], tool["originalName"], tool["exposedName"])
        for server in told["toolsByServer"]
        for tool in server["tools"]
    }
    assert {pair: routes[pair] for pair in PAIRS} == {
        pair: row[:3] for pair, row in zip(PAIRS, TABLE, strict=True)
    }


@pytest.mark.promise("M25")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_two_tools_that_would_have_one_name_are_both_called_each_at_its_server(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era)
    equipped = called(client, "equip-toolset", name="both")["structuredContent"]
    routes = equipped["registeredTools"]
    assert client.names() == [*SETS, *routes]
    assert len(routes) == 2
    assert all(name.startswith("a_b_c_") for name in routes)
    for name, route in routes.items():
        found = called(client, name)["structuredContent"]
        assert found["name"] == route["originalName"]
    assert {one["serverName"] for one in routes.values()} == {"a", "a_b"}
    called(client, "unequip-toolset")
