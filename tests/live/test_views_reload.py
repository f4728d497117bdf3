"""An endpoint whose exposure a reload changes: in view is what the tools of the new one can change,
and going back brings the old state back."""

import json
from typing import Any

import pytest

from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw
from tests.live.viewed import FIND, SETS, WHOLE, called, endpoint, named

pytestmark = pytest.mark.live

SERVERS = {"git": named("status", "log"), "db": named("query")}


def changed_to(gateway: Gateway, exposure: str) -> None:
    gateway.extra = endpoint("default", exposure=f'"{exposure}"')
    gateway.write(SERVERS)
    gateway.ctl("reload")


def listed(gateway: Gateway) -> list[str]:
    return [tool["name"] for tool in Raw(gateway.port, MODERN).result("tools/list")["tools"]]


def equipped(gateway: Gateway) -> list[Any]:
    """What operators are told."""
    out = gateway.run("toolsets", "list", "--json").stdout
    found: list[Any] = json.loads(out)["equipped"]
    return found


@pytest.mark.promise("M35")
def test_what_no_tool_of_the_new_exposure_could_take_away_is_not_in_view() -> None:
    with Gateway(SERVERS, extra=endpoint("default", exposure='"servers"')) as gateway:
        client = Raw(gateway.port, MODERN)
        called(client, "gateway_activate", name="git")
        assert listed(gateway) == [*WHOLE, "git__status", "git__log"]
        changed_to(gateway, "search")
        assert listed(gateway) == FIND
        called(client, "load_tool", name="db__query")
        assert listed(gateway) == [*FIND, "db__query"]
        changed_to(gateway, "servers")
        assert listed(gateway) == [*WHOLE, "git__status", "git__log"]
        changed_to(gateway, "toolset")
        assert listed(gateway) == [*SETS, "db__query"]
        tools = [{"namespacedName": "git.log"}]
        called(client, "build-toolset", name="dev", tools=tools, autoEquip=True)
        assert listed(gateway) == [*SETS, "git__log"]
        assert [one["toolset"] for one in equipped(gateway)] == ["dev"]
        changed_to(gateway, "servers")
        assert listed(gateway) == [*WHOLE]
        assert equipped(gateway) == [], "nothing of it is in view"
        changed_to(gateway, "search")
        assert listed(gateway) == [*FIND, "git__log"]
