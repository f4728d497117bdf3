"""The main job on the true binary: several servers behind one endpoint, in both eras."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from mcp.client.client import Client as SdkClient

from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

ERAS = ["2025-03-26", "2025-06-18", LEGACY, MODERN]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    words = tmp_path_factory.mktemp("words") / "words.json"
    words.write_text(r'{"echo": {"description": "cut \ud83d"}}')
    servers = {
        "alpha": fake("--era", "legacy", "--words", str(words)),
        "beta": fake("--era", "modern", "--words", str(words)),
        "gamma": fake("--era", "both", "--tools", "30", "--page", "7"),
    }
    with Gateway(servers) as running:
        yield running


@pytest.fixture(params=ERAS)
def client(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[Client]:
    opened = Client(gateway.port, request.param)
    yield opened
    opened.close()


@pytest.mark.promise("M1", "M20")
def test_every_era_sees_the_tools_of_every_server_in_one_order(client: Client) -> None:
    names = client.tools()
    assert names == client.tools()
    assert {"alpha__echo", "beta__echo", "gamma__echo", "gamma__t029"} <= set(names)
    assert [name.partition("__")[0] for name in names] == sorted(
        name.partition("__")[0] for name in names
    )


@pytest.mark.promise("M10", "M21")
@pytest.mark.parametrize("server", ["alpha", "beta", "gamma"])
def test_a_call_reaches_the_right_server_and_its_answer_comes_back(
    client: Client, server: str
) -> None:
    assert client.text(f"{server}__echo", text=f"for {server}") == f"for {server}"


@pytest.mark.promise("M21")
def test_an_unknown_tool_is_an_invalid_parameter(client: Client) -> None:
    error = client.call("alpha__nothing")["error"]
    assert error["code"] == -32602
    assert "alpha__nothing" in error["message"]
    assert client.status == (400 if client.era == MODERN else 200)


@pytest.mark.promise("M21")
def test_a_tools_own_failure_and_a_servers_error_stay_what_they_are(client: Client) -> None:
    assert client.call("alpha__fail")["result"]["isError"] is True
    error = client.call("alpha__error")["error"]
    assert {"code", "message", "data"} <= set(error)
    assert set(error) - {"code", "message", "data"}, "an unknown member of the error is kept"


@pytest.mark.promise("M22")
def test_arguments_reach_the_server_as_the_bytes_they_were(client: Client) -> None:
    raw = b'{ "z":1.0,"a" :123456789012345678901234567890, "n":null,"u":"\\u00e9\\/", "z":2 }'
    params = b'{"name":"alpha__raw","arguments":' + raw
    if client.era == MODERN:
        params += b',"_meta":' + json.dumps(client.meta()).encode()
    body = b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":' + params + b"}}"
    answer = json.loads(client.post(body, "tools/call", "alpha__raw"))
    assert raw.decode() in answer["result"]["content"][0]["text"]


@pytest.mark.promise("M98")
def test_half_of_a_surrogate_pair_in_a_description_takes_no_list_from_anybody(
    client: Client,
) -> None:
    tools = client.request("tools/list")["result"]["tools"]
    words = {tool["name"]: tool["description"] for tool in tools if "__echo" in tool["name"]}
    assert words["alpha__echo"] == words["beta__echo"] == "cut \N{REPLACEMENT CHARACTER}"


@pytest.mark.promise("M22")
@pytest.mark.parametrize("server", ["alpha", "beta"])
def test_half_of_a_surrogate_pair_passes_as_the_bytes_it_is(client: Client, server: str) -> None:
    raw = rb'{"text":"ok \ud83d"}'
    meta = b',"_meta":' + json.dumps(client.meta()).encode() if client.era == MODERN else b""
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s__%s","arguments":'
    for tool in ("echo", "raw"):
        name = f"{server}__{tool}"
        body = head % (server.encode(), tool.encode()) + raw + meta + b"}}"
        got = client.post(body, "tools/call", name)
        assert (rb"ok \ud83d" if tool == "echo" else json.dumps(raw.decode())[1:-1].encode()) in got


@pytest.mark.promise("M22")
def test_the_id_comes_back_with_its_type(client: Client) -> None:
    for raw in (b"7", b'"7"', b'"\\u0041"', b"-3", b"9007199254740993", b"-18446744073709551617"):
        meta = b',"_meta":' + json.dumps(client.meta()).encode() if client.era == MODERN else b""
        params = b'{"name":"alpha__echo","arguments":{"text":"x"}' + meta + b"}"
        head = b'{"jsonrpc":"2.0","id":' + raw + b',"method":"tools/call","params":'
        got = client.post(head + params + b"}", "tools/call", "alpha__echo")
        assert b'"id":' + raw + b"," in got


@pytest.mark.promise("M1")
@pytest.mark.parametrize("mode", ["legacy", "auto", MODERN])
def test_the_official_client_lists_and_calls(gateway: Gateway, mode: str) -> None:
    async def talk() -> str:
        async with asyncio.timeout(30), SdkClient(gateway.url, mode=mode) as client:
            assert "beta__echo" in {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("beta__echo", {"text": "hello"})
            return getattr(result.content[0], "text", "")

    assert asyncio.run(talk()) == "hello"


@pytest.mark.promise("M2")
def test_the_default_endpoint_answers_at_both_of_its_paths(gateway: Gateway) -> None:
    short = Client(gateway.port, LEGACY)
    long = Client(gateway.port, LEGACY, "/metamcp/default/mcp")
    assert short.tools() == long.tools()
    short.close()
    long.close()


@pytest.mark.promise("M23")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize(("server", "steps"), [("alpha", 3), ("beta", 3), ("alpha", 1000)])
async def test_progress_reaches_the_caller_that_asked_for_it(
    gateway: Gateway, mode: str, server: str, steps: int
) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with asyncio.timeout(30), SdkClient(gateway.url, mode=mode) as client:
        await client.call_tool(f"{server}__progress", {"n": steps}, progress_callback=note)
    assert seen == list(range(1, steps + 1))
