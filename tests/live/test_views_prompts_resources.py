"""Prompts and resources follow their server into view and out of it, in each exposure; what is out
of view is there by its name, or is not, as the endpoint says."""

from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent, TextResourceContents

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw, Stream
from tests.live.viewed import called, done, endpoint, eras, named, opened_client

pytestmark = pytest.mark.live

IN_VIEW: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "toolset": ("equip-toolset", {"name": "one"}, "unequip-toolset", {}),
    "servers": (
        "gateway_activate", {"name": "files"}, "gateway_deactivate", {"name": "files"},
    ),
    "search": ("load_tool", {"name": "files__echo"}, "unload_tool", {"name": "files__echo"}),
}  # fmt: skip
URIS = ["fake://one", "fake://two"]
KINDS = ("tools", "prompts", "resources")
exposures = pytest.mark.parametrize("exposure", list(IN_VIEW))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    flags = ("--prompts", "--resources", "--completions")
    extra = "".join(
        endpoint(f"{exposure}-{suffix}", exposure=f'"{exposure}"', call_hidden=hidden)
        for exposure in IN_VIEW
        for suffix, hidden in (("open", "true"), ("closed", "false"))
    )
    extra += '[namespaces.default]\nservers = ["*"]\n[namespaces.one]\nservers = ["files"]\n'
    for suffix, hidden in (("open", "true"), ("closed", "false")):
        keys = f'namespace = "one"\nexposure = "servers"\ncall_hidden = {hidden}\n'
        keys += 'view_scope = "principal"\n'
        extra += f"[endpoints.only-{suffix}]\n{keys}"
    with Gateway({"files": fake(*flags), "plain": named("echo")}, extra=extra) as running:
        client = Raw(running.port, MODERN, "/metamcp/toolset-open/mcp")
        assert not called(client, "build-toolset", name="one", tools=["files.echo"])["isError"]
        yield running


@pytest.fixture(autouse=True)
def begin(gateway: Gateway) -> None:
    """Nothing is in view but the built-in tools."""
    for exposure, (_, _, back, again) in IN_VIEW.items():
        for suffix in ("open", "closed"):
            called(Raw(gateway.port, MODERN, path(exposure, suffix)), back, **again)


def path(exposure: str, suffix: str) -> str:
    return f"/metamcp/{exposure}-{suffix}/mcp"


async def offered(client: Sdk) -> tuple[list[str], list[str], list[str]]:
    """Prompts, resources and templates in the lists."""
    return (
        [one.name for one in (await client.list_prompts()).prompts],
        [str(one.uri) for one in (await client.list_resources()).resources],
        [one.uri_template for one in (await client.list_resource_templates()).resource_templates],
    )


async def used(client: Sdk) -> tuple[str, str, str]:
    """A prompt, a resource, and one of a template."""
    prompt = await client.get_prompt("files__greet", {"who": "Ada"})
    words = prompt.messages[0].content
    one = (await client.read_resource("fake://one")).contents[0]
    item = (await client.read_resource("fake://item/7")).contents[0]
    assert isinstance(words, TextContent)
    assert isinstance(one, TextResourceContents)
    assert isinstance(item, TextResourceContents)
    return words.text, one.text, item.text


USED = ("Greet Ada", "one", "item/7")


@pytest.mark.promise("M37")
@exposures
@eras
async def test_they_are_listed_while_something_of_their_server_is_in_view(
    gateway: Gateway, mode: str, exposure: str
) -> None:
    tool, arguments, back, again = IN_VIEW[exposure]

    async with opened_client(gateway, mode, path(exposure, "open")) as client:
        assert await offered(client) == ([], [], [])
        assert await used(client) == USED, "where the endpoint allows it"
        await done(client, tool, **arguments)
        assert await offered(client) == (["files__greet"], URIS, ["fake://item/{id}"])
        assert await used(client) == USED
        await done(client, back, **again)
        assert await offered(client) == ([], [], [])


@pytest.mark.promise("M28")
@exposures
def test_who_watches_the_lists_of_prompts_and_resources_hears_of_it(
    gateway: Gateway, exposure: str
) -> None:
    where = path(exposure, "open")
    tool, arguments, back, again = IN_VIEW[exposure]
    told = {f"notifications/{kind}/list_changed" for kind in KINDS}

    def hears(stream: Stream) -> None:
        assert {stream.next().method for _ in KINDS} == told

    legacy, modern = (Raw(gateway.port, era, where) for era in (LEGACY, MODERN))
    everything = modern.listen(
        toolsListChanged=True, promptsListChanged=True, resourcesListChanged=True
    )
    with legacy.listen() as one, everything as other:
        for step, given in ((tool, arguments), (back, again)):
            assert not called(legacy, step, **given)["isError"]
            hears(one)
            hears(other)


@pytest.mark.promise("M37")
@exposures
@eras
async def test_out_of_view_they_are_nobodys_where_the_endpoint_does_not(
    gateway: Gateway, mode: str, exposure: str
) -> None:
    tool, arguments, back, again = IN_VIEW[exposure]

    async with opened_client(gateway, mode, path(exposure, "closed")) as client:
        with pytest.raises(MCPError) as unknown:
            await client.get_prompt("files__greet", {"who": "Ada"})
        assert unknown.value.code == -32602
        for uri in ("fake://one", "fake://item/7"):
            with pytest.raises(MCPError) as missing:
                await client.read_resource(uri)
            assert missing.value.code == (-32602 if mode == MODERN else -32002)
        await done(client, tool, **arguments)
        assert await used(client) == USED
        await done(client, back, **again)
        with pytest.raises(MCPError):  # the client may keep what it read before
            await client.read_resource("fake://item/8")


@pytest.mark.promise("M37")
@exposures
@eras
async def test_a_tool_that_may_not_be_called_out_of_view_is_refused_with_what_brings_it_there(
    gateway: Gateway, mode: str, exposure: str
) -> None:
    tool, arguments, _, _ = IN_VIEW[exposure]

    async with opened_client(gateway, mode, path(exposure, "closed")) as client:
        with pytest.raises(MCPError) as hidden:
            await client.call_tool("files__echo", {"text": "hello"})
        assert hidden.value.code == -32602
        assert hidden.value.message.startswith("The tool files__echo is not in view, and only")
        assert tool in hidden.value.message
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("files__ecko", {})
        assert unknown.value.message == "Unknown tool: files__ecko"
        await done(client, tool, **arguments)
        assert (await done(client, "files__echo", text="hello"))["text"] == "hello"


@pytest.mark.promise("M37")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_what_nobody_knows_reaches_the_only_server_of_an_endpoint_if_that_may_be_asked(
    gateway: Gateway, era: str
) -> None:
    def asked(suffix: str) -> int:
        """The code of the error, or what the server got."""
        client = Raw(gateway.port, era, f"/metamcp/only-{suffix}/mcp")
        answer = client.answer("example.com/echo", b'{"x":1}')
        if answer.error:
            return int(codec.value(answer.error)["code"])
        return int(codec.value(answer.result)["params"]["x"])

    assert (asked("open"), asked("closed")) == (1, -32601)
    for suffix in ("open", "closed"):
        client = Raw(gateway.port, era, f"/metamcp/only-{suffix}/mcp")
        called(client, "gateway_activate", name="files")
        assert asked(suffix) == 1
        called(client, "gateway_deactivate", name="files")


@pytest.mark.promise("M37")
@exposures
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("kind", "member", "subject"),
    [("prompt", "name", "files__greet"), ("resource", "uri", "fake://item/{id}")],
)
def test_what_is_out_of_view_is_completed_as_the_endpoint_says(
    gateway: Gateway, era: str, exposure: str, kind: str, member: str, subject: str
) -> None:
    params = codec.dump({
        "ref": {"type": f"ref/{kind}", member: subject}, "argument": {"name": "x", "value": "p"},
    })  # fmt: skip
    here = Raw(gateway.port, era, path(exposure, "open"))
    assert here.result("completion/complete", params)["completion"]["values"] == ["pa", "pb"]
    there = Raw(gateway.port, era, path(exposure, "closed"))
    refused = codec.value(there.answer("completion/complete", params).error)
    assert refused["code"] == -32602
