"""What a client gets through the gateway is what the server said, byte for byte.

Between peers of one era nothing may be different, between the eras only what the other era has no
word for. What is said is in `odd`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.live import odd
from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw

pytestmark = pytest.mark.live

EXTRA = """
[namespaces]
default = { servers = ["*"] }
old = { servers = ["old"] }
new = { servers = ["new"] }
[endpoints]
default = { namespace = "default" }
old = { namespace = "old", naming = { style = "bare" } }
new = { namespace = "new", naming = { style = "bare" } }
"""
CELLS = {"L->L": (LEGACY, "old"), "M->M": (MODERN, "new"),
         "L->M": (LEGACY, "new"), "M->L": (MODERN, "old")}  # fmt: skip
cells = pytest.mark.parametrize("cell", CELLS)
same_era = pytest.mark.parametrize("cell", ["L->L", "M->M"])
where = pytest.mark.parametrize("alone", [True, False], ids=["alone", "among others"])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("scripts")
    servers = {
        "old": odd.entry(folder / "old.json", "legacy"),
        "new": odd.entry(folder / "new.json", "modern"),
    }
    with Gateway(servers, extra=EXTRA) as running:
        yield running


def client(gateway: Gateway, cell: str, *, alone: bool) -> Raw:
    """Of the cell's era; on the endpoint of the cell's server alone, or on that of both."""
    era, server = CELLS[cell]
    return Raw(gateway.port, era, f"/metamcp/{server}/mcp" if alone else "/mcp")


def asked(params: dict[str, Any], cell: str, *, alone: bool) -> bytes:
    """The parameters with the names that the endpoint exposes. Both servers have the same URIs, and
    the first one keeps them."""
    server = CELLS[cell][1]
    if alone:
        return codec.dump(params)
    if "name" in params:
        params = {**params, "name": f"{server}__{params['name']}"}
    raw = codec.dump(params)
    return raw.replace(b"odd://", b"odd://new/") if server == "new" else raw


def across(raw: bytes, cell: str, method: str) -> bytes:
    """The result as a client of the other era has to get it."""
    if cell == "L->M":
        return raw.replace(b', "structuredContent":[1.0,{"a":null}]', b"")
    if cell != "M->L":
        return raw
    wanted = {"resultType": b'"complete"'}
    if method == "resources/read":
        wanted |= {"ttlMs": b"0", "cacheScope": b'"private"'}
    have = codec.level(raw)
    return codec.splice(raw, {name: hint for name, hint in wanted.items() if name not in have})


@pytest.mark.promise("M22")
@pytest.mark.parametrize("what", odd.RESULTS)
@cells
@where
def test_a_result_is_the_servers_own_bytes(
    gateway: Gateway, cell: str, what: str, alone: bool
) -> None:
    method, params, raw = odd.RESULTS[what]
    asking = client(gateway, cell, alone=alone)
    found = asking.answer(method, asked(params, cell, alone=alone))
    if method == "resources/read" and CELLS[cell][1] == "new" and not alone:
        # Its URI is the one that the client asked for, so members and not bytes are the same.
        expected = across(raw.replace(b'"uri":"odd://', b'"uri":"odd://new/'), cell, method)
        assert codec.level(found.result) == codec.level(expected)
        return
    assert bytes(found.result) == across(raw, cell, method), bytes(found.error)


@pytest.mark.promise("M22")
@pytest.mark.parametrize("what", odd.ERRORS)
@cells
@where
def test_an_error_is_the_servers_own_bytes_and_stays_an_error(
    gateway: Gateway, cell: str, what: str, alone: bool
) -> None:
    method, params, raw = odd.ERRORS[what]
    asking = client(gateway, cell, alone=alone)
    found = asking.answer(method, asked(params, cell, alone=alone))
    assert bytes(found.error) == raw, bytes(found.result)


@pytest.mark.promise("M22")
@cells
def test_what_the_only_server_does_not_list_it_refuses_in_its_own_words(
    gateway: Gateway, cell: str
) -> None:
    error = client(gateway, cell, alone=True).answer("tools/call", b'{"name":"unlisted"}').error
    assert bytes(error) == b'{"code":-32601,"message":"not in the script","x-error": {"n":1.0}}'


@pytest.mark.promise("M22", "M21")
@cells
def test_a_method_that_nobody_knows_is_the_servers_own(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell, alone=True)
    params = b'{"name":"x","n":[1.0,1e2],"e":"\\u00e9", "o":{ } }'
    found = asking.answer("example.com/custom", params)
    assert bytes(found.result) == across(odd.CUSTOM, cell, "example.com/custom")
    heard = codec.level(codec.level(asking.answer("example.com/raw", params).result)["params"])
    heard.pop("_meta", None)
    assert {name: bytes(raw) for name, raw in heard.items()} == {
        name: bytes(raw) for name, raw in codec.level(params).items()
    }
    assert codec.value(asking.answer("example.com/none").error)["x-error"] == {"n": 1.0}


@pytest.mark.promise("M22")
@cells
@where
def test_arguments_reach_the_server_as_the_client_wrote_them(
    gateway: Gateway, cell: str, alone: bool
) -> None:
    arguments = b'{"z": [1.0,1e400,123456789012345678901234567890],"m":{"_meta":{}},"e":"\\u00e9"}'
    name = asked({"name": "raw"}, cell, alone=alone)[1:-1]
    params = b'{%b,"arguments":%b,"x-own":[ ]}' % (name, arguments)
    meta = b'"example.com/m":{"k": 1.0},"traceparent":"00-1"'
    found = client(gateway, cell, alone=alone).answer("tools/call", params, meta=meta)
    heard = codec.level(codec.level(found.result)["params"])
    assert bytes(heard["arguments"]) == arguments
    assert bytes(heard["x-own"]) == b"[ ]"
    kept = codec.level(heard["_meta"])
    assert bytes(kept["example.com/m"]) == b'{"k": 1.0}'
    assert bytes(kept["traceparent"]) == b'"00-1"'
    assert bytes(kept["progressToken"]).isdigit()  # the gateway's own


@pytest.mark.promise("M22", "M24")
def test_a_task_is_the_servers_own_bytes_where_its_id_can_be(gateway: Gateway) -> None:
    found = client(gateway, "M->M", alone=True).answer("tools/call", b'{"name":"task"}')
    assert bytes(found.result) == odd.TASK


LISTS = {
    "tools/list": ("tools", odd.TOOLS),
    "prompts/list": ("prompts", odd.PROMPTS),
    "resources/list": ("resources", odd.RESOURCES),
    "resources/templates/list": ("resourceTemplates", odd.TEMPLATES),
}


@pytest.mark.promise("M22", "M20")
@pytest.mark.parametrize("method", LISTS)
@same_era
def test_a_definition_is_the_servers_own_bytes(gateway: Gateway, cell: str, method: str) -> None:
    kind, definitions = LISTS[method]
    found = codec.level(client(gateway, cell, alone=True).answer(method).result)
    ours = tuple(bytes(one) for one in codec.items(found[kind]))
    if cell == "L->L" and kind == "tools":  # its revision has no array as an output
        ours, definitions = (ours[0], *ours[2:]), (definitions[0], *definitions[2:])
    assert ours[: len(definitions)] == definitions
    if cell == "M->M":
        assert (bytes(found["ttlMs"]), bytes(found["cacheScope"])) == (b"5", b'"public"')


@pytest.mark.promise("M22", "M20")
@cells
def test_among_others_a_definition_changes_in_nothing_but_its_name(
    gateway: Gateway, cell: str
) -> None:
    found = client(gateway, cell, alone=False).answer("tools/list")
    exposed = codec.dump(f"{CELLS[cell][1]}__odd")
    (ours,) = [
        tool
        for tool in map(codec.level, codec.items(codec.level(found.result)["tools"]))
        if bytes(tool["name"]) == exposed
    ]
    theirs = codec.level(odd.TOOLS[0])
    assert list(ours) == list(theirs)
    assert {name for name in ours if bytes(ours[name]) != bytes(theirs[name])} == {"name"}


@pytest.mark.promise("M20")
@cells
def test_an_output_schema_that_a_client_cannot_know_costs_it_no_list_nor_the_tool(
    gateway: Gateway, cell: str
) -> None:
    tools = client(gateway, cell, alone=True).result("tools/list")["tools"]
    found = ["outputSchema" in one for one in tools if one["name"] == "array"]
    assert found == {"L->L": [False], "L->M": [False]}.get(cell, [True])


@pytest.mark.promise("M20")
@cells
def test_the_only_server_declares_itself_in_its_own_words(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell, alone=True)
    if asking.era == MODERN:
        declared = codec.level(asking.answer("server/discover").result)["capabilities"]
        assert bytes(declared) == odd.CAPABILITIES
    else:
        assert asking.initialized["capabilities"] == codec.value(odd.CAPABILITIES)


@pytest.mark.promise("M20")
def test_what_may_be_kept_is_what_the_strictest_server_says(gateway: Gateway) -> None:
    def kept(cell: str, method: str, *, alone: bool) -> tuple[object, object]:
        found = client(gateway, cell, alone=alone).result(method)
        return found["ttlMs"], found["cacheScope"]

    assert kept("M->M", "server/discover", alone=True) == (7, "public")
    assert kept("M->M", "prompts/list", alone=True) == (5, "public")
    for method in ("server/discover", "tools/list"):
        assert kept("M->L", method, alone=True) == (0, "private")
        assert kept("M->M", method, alone=False) == (0, "private")


@pytest.mark.promise("M21")
@same_era
def test_both_servers_with_the_same_uri_can_be_read(gateway: Gateway, cell: str) -> None:
    listed = client(gateway, cell, alone=False).result("resources/list")["resources"]
    assert [one["uri"] for one in listed] == [
        "odd://one", "odd://bad", "odd://new/one", "odd://new/bad"
    ]  # fmt: skip
