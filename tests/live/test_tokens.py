"""What tools cost: the command line, the page of metrics and the lists that clients really get say
the same. `test_demo` has this for real servers."""

from collections.abc import Iterator

import pytest

from metamcp_supervisor.views import tool_costs
from metamcp_worker.ipc import builtin_definitions, codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import MODERN, Raw
from tests.live.tokens import TOKENS_PER_TOOL_MAX, cost, definitions, endpoints, told, views
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M38")]

EXPOSED = "".join(
    f'[endpoints.{exposure}]\nnamespace = "default"\nexposure = "{exposure}"\n'
    for exposure in tool_costs.EXPOSURES
)
EXTRA = f"""
[code]

[namespaces.default]
servers = ["*"]

[namespaces.less]
servers = ["git", "docker"]
tools."git.echo".enabled = false

[endpoints.flat]
namespace = "less"
naming = {{ style = "flat" }}

{EXPOSED}
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {"git": fake("--era", "modern"), "docker": fake("--era", "legacy")}
    with Gateway(servers, extra=EXTRA) as running:
        yield running


def test_what_is_told_of_an_endpoint_is_what_its_client_has_in_context(gateway: Gateway) -> None:
    found = endpoints(gateway)

    def all_told() -> bool:
        told = views(gateway)
        return len(told) == 6 and told["all"]["everything"] == found["all"]["at_start"]

    until(all_told, "the front has told of all views, with both servers")
    now = views(gateway)
    for name in ("toolset", "servers", "search", "code"):
        tokens = cost(gateway, name)
        assert tokens == found[name]["at_start"] == now[name]["tokens"], name
        assert tokens == found["all"]["exposures"][name]
        assert found[name]["all"] == found["all"]["at_start"] == now["all"]["everything"]
    for name in ("all", "flat"):
        sent = definitions(gateway, name)
        over = found[name]["at_start"] - builtin_definitions.tokens_of_all(sent)
        assert 0 <= over <= TOKENS_PER_TOOL_MAX * len(sent), name
        assert found[name]["at_start"] == now[name]["tokens"]
        assert found[name]["tools"] == now[name]["tools"] == len(sent)
    assert found["flat"]["tools"] == found["all"]["tools"] - 1, "one is switched off"
    assert now["all"]["saved"] == 0
    status = {one["name"]: one["token_cost"] for one in gateway.status()["servers"]}
    assert {one["name"]: one["tokens"] for one in told(gateway)["servers"]} == status


def test_what_comes_into_view_is_told_by_ctl_and_metrics(gateway: Gateway) -> None:
    client = Raw(gateway.port, MODERN, "/metamcp/servers/mcp")
    until(lambda: "servers" in views(gateway), "the front has told of this view")
    before = views(gateway)["servers"]
    for tool, tools in (("gateway_activate", before["tools"] + 1), ("gateway_deactivate", 0)):
        arguments = codec.dump({"name": tool, "arguments": {"name": "git"}})
        client.result("tools/call", arguments)
        if tools:
            until(lambda: views(gateway)["servers"]["tools"] > before["tools"], "more is in view")
            after = views(gateway)["servers"]
            spare = TOKENS_PER_TOOL_MAX * after["tools"]
            assert 0 <= after["tokens"] - cost(gateway, "servers") <= spare
            assert after["saved"] == after["everything"] - after["tokens"]
            page = gateway.ops("/metrics")[1]
            assert f'metamcp_view_tokens{{endpoint="servers"}} {after["tokens"]}.0' in page
            assert f'metamcp_endpoint_tokens{{endpoint="servers"}} {after["everything"]}.0' in page
    until(lambda: views(gateway)["servers"] == before, "it is out of view again")


def test_a_gateway_that_is_down_is_reckoned_from_what_it_has_kept() -> None:
    with Gateway({"git": fake()}) as gateway:
        before = told(gateway)
        assert gateway.stop() == 0
        assert told(gateway) == before
        assert before["endpoints"][0]["tools"] > 0
        assert before["unseen"] == []
