"""What servers ask of a client crosses the bridge in the way of each era, and so do the answers."""

import asyncio
import os
import sys
from collections.abc import Iterator

import mcp_types as types
import pytest
from mcp.client.client import Client as SdkClient
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.live.bridge import Bridge
from tests.live.client import MODERN
from tests.live.gateway import ROOT, Gateway

pytestmark = pytest.mark.live

EVERYTHING = {"command": [sys.executable, str(ROOT / "tests" / "fakes" / "everything.py")]}
EXTRA = """
[endpoints.default]
namespace = "default"
naming = { style = "bare" }
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"everything": EVERYTHING}, extra=EXTRA) as running:
        yield running


async def elicited(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada", "response": "yes"})


async def sampled(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


@pytest.mark.promise("M5")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("test_elicitation", {"message": "Who?"}, "accept"),
        ("test_sampling", {"prompt": "Say it."}, "a sample"),
        ("test_input_required_result_elicitation", {}, "Ada"),
    ],
)
def test_a_client_behind_the_bridge_is_asked_and_answers(
    gateway: Gateway, mode: str, tool: str, arguments: dict[str, str], words: str
) -> None:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "metamcp_supervisor", "connect", "--runtime-dir", f"{gateway.folder}/run"],
        cwd=ROOT,
        env=dict(os.environ),
    )

    async def talk() -> str:
        client = SdkClient(
            stdio_client(parameters),
            mode=mode,
            elicitation_callback=elicited,
            sampling_callback=sampled,
        )
        async with asyncio.timeout(30), client:
            result = await client.call_tool(tool, arguments)
            return getattr(result.content[0], "text", "")

    assert words in asyncio.run(talk())


def test_arguments_that_a_tool_wants_in_headers_need_no_care_of_the_client(
    gateway: Gateway,
) -> None:
    where = ("--runtime-dir", str(gateway.folder / "run"))
    with Bridge(*where, folder=gateway.folder, era=MODERN, forked=True) as one:
        assert one.text("test_x_mcp_header", region="é") == "region=é"
        assert one.text("test_x_mcp_header", region="us west") == "region=us west"
