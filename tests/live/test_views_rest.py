"""REST on endpoints that show less: the list is what is in view, calls are by name as allowed."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.gateway import Gateway
from tests.live.viewed import FIND, SETS, WHOLE, endpoint, named

pytestmark = pytest.mark.live

#: Built-in tools, what brings git.status into view, and what takes it out.
EXPOSURES: dict[str, tuple[list[str], tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "toolset": (SETS, ("equip-toolset", {"name": "dev"}), ("unequip-toolset", {})),
    "servers": (
        WHOLE, ("gateway_activate", {"name": "git"}), ("gateway_deactivate", {"name": "git"}),
    ),
    "search": (
        FIND, ("load_tool", {"name": "git__status"}), ("unload_tool", {"name": "git.status"}),
    ),
}  # fmt: skip
exposures = pytest.mark.parametrize("exposure", list(EXPOSURES))
GIVEN = {"query": "typescript"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    extra = "".join(
        endpoint(f"{exposure}-{suffix}", exposure=f'"{exposure}"', call_hidden=hidden)
        for exposure in EXPOSURES
        for suffix, hidden in (("open", "true"), ("closed", "false"))
    )
    with Gateway({"git": named("status"), "db": named("query")}, extra=extra) as running:
        built = asked(
            running, "toolset-open/api/build-toolset", {"name": "dev", "tools": ["git.status"]}
        )
        assert built[0] == 200, built
        yield running


def asked(gateway: Gateway, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and answer of a GET, or of a POST with this body."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    try:
        if body is None:
            connection.request("GET", f"/metamcp/{path}")
        else:
            head = {"Content-Type": "application/json"}
            connection.request("POST", f"/metamcp/{path}", json.dumps(body), head)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def listed(gateway: Gateway, path: str) -> list[str]:
    status, found = asked(gateway, path)
    assert status == 200
    return [tool["name"] for tool in found["tools"]]


def described(gateway: Gateway, path: str) -> list[str]:
    """The tools of the OpenAPI description."""
    status, found = asked(gateway, f"{path}/openapi.json")
    assert status == 200
    return [name.removeprefix("/") for name in found["paths"] if name != "/"]


@pytest.mark.promise("M4", "M37")
@exposures
@pytest.mark.parametrize("suffix", ["open", "closed"])
def test_the_list_and_the_description_are_what_is_in_view(
    gateway: Gateway, exposure: str, suffix: str
) -> None:
    builtins, (step, given), (back, again) = EXPOSURES[exposure]
    path = f"{exposure}-{suffix}/api"
    assert listed(gateway, path) == described(gateway, path) == builtins
    status, found = asked(gateway, f"{path}/{step}", given)
    assert (status, found["isError"]) == (200, False)
    assert listed(gateway, path) == described(gateway, path) == [*builtins, "git__status"]
    status, found = asked(gateway, f"{path}/git__status", GIVEN)
    assert status == 200
    assert found["structuredContent"] == {"name": "status", "arguments": GIVEN}
    assert asked(gateway, f"{path}/{back}", again)[0] == 200
    assert listed(gateway, path) == described(gateway, path) == builtins


@pytest.mark.promise("M4", "M37")
@exposures
def test_a_tool_out_of_view_is_called_by_its_name_where_the_endpoint_allows_it(
    gateway: Gateway, exposure: str
) -> None:
    assert "db__query" not in listed(gateway, f"{exposure}-open/api")
    status, found = asked(gateway, f"{exposure}-open/api/db__query", GIVEN)
    assert status == 200
    assert found["structuredContent"] == {"name": "query", "arguments": GIVEN}
    status, found = asked(gateway, f"{exposure}-closed/api/db__query", GIVEN)
    assert status == 404
    why = found["error"]["message"]
    assert why.startswith("The tool db__query is not in view, and only what is in view may be")
    assert EXPOSURES[exposure][1][0] in why, "what brings it there"
    status, found = asked(gateway, f"{exposure}-open/api/db__nothing", GIVEN)
    assert status == 404
    assert found["error"]["message"] == (
        "There is no tool db__nothing; a GET of the path above this one tells all that are in view."
    )


@pytest.mark.promise("M4")
@exposures
def test_a_built_in_tool_that_fails_is_told_as_one_of_a_server(
    gateway: Gateway, exposure: str
) -> None:
    _, (step, _), _ = EXPOSURES[exposure]
    status, found = asked(gateway, f"{exposure}-open/api/{step}", {"name": "nothing.there"})
    assert (status, found["isError"]) == (422, True)
    status, found = asked(gateway, f"{exposure}-open/api/{step}", {"nom": "dev"})
    assert (status, found["isError"]) == (422, True)
    assert f"he arguments of {step} are wrong" in found["content"][0]["text"]


@pytest.mark.promise("M36")
def test_call_tool_of_rest_calls_any_tool(gateway: Gateway) -> None:
    given = {"name": "db.query", "arguments": GIVEN}
    status, found = asked(gateway, "search-open/api/call_tool", given)
    assert (status, found["structuredContent"]["name"]) == (200, "query")
    status, found = asked(gateway, "search-closed/api/call_tool", given)
    assert (status, found["isError"]) == (422, True)
    assert "db__query is not loaded" in found["content"][0]["text"]
