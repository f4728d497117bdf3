"""A client of an endpoint does not wait for ever for one that misbehaves."""

import pytest

from metamcp_supervisor.bridge.http_client import Trust
from metamcp_supervisor.calls.endpoint_client import PAGES_MAX, EndpointClient
from metamcp_supervisor.control.client import Failed
from metamcp_worker.ipc import codec
from tests.worker.scripted import Wire, serving


async def test_a_list_of_tools_that_does_not_end_is_refused_and_not_cut_off() -> None:
    async def script(wire: Wire) -> None:
        while (request := await wire.request()) is not None:
            number = codec.value(request.body)["id"]
            page = {"tools": [], "nextCursor": "again"}
            await wire.answer(codec.dump({"jsonrpc": "2.0", "id": number, "result": page}))

    async with serving(script) as url, EndpointClient(url, Trust()) as client:
        with pytest.raises(Failed, match=rf"{url} lists more than {PAGES_MAX:,} pages of tools"):
            await client.tool("echo")
