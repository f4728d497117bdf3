"""Searches by meaning through the true gateway, with vectors of a real endpoint over HTTP."""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client.client import Client as Official
from mcp_types import TextContent

from tests.live.embeddings import Embeddings
from tests.live.gateway import Gateway, fake, free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M36"), pytest.mark.timeout(120)]

TOKEN = "of-the-endpoint-alone"
SERVERS = {"one": fake(), "two": fake("--era", "modern")}
SEARCH = """
[endpoints.default]
namespace = "default"
exposure = "search"
view_scope = "principal"
"""


def section(url: str) -> str:
    return f"""
[embeddings]
url = "{url}"
model = "words"
key = "${{env:METAMCP_TEST_EMBEDDINGS}}"
timeout = "120s"
{SEARCH}"""


def gateway_with(url: str) -> Gateway:
    made = Gateway(SERVERS, extra=section(url))
    made.environ["METAMCP_TEST_EMBEDDINGS"] = TOKEN
    return made


@pytest.fixture
def endpoint() -> Iterator[Embeddings]:
    with Embeddings() as found:
        yield found


def found(gateway: Gateway, query: str) -> list[str]:
    """The names of the tools, the best first, as the official client gets them."""

    async def main() -> list[str]:
        async with asyncio.timeout(60), Official(gateway.url) as client:
            result = await client.call_tool("search_tools", {"query": query})
            assert isinstance(result.content[0], TextContent)
            assert result.structured_content is not None
            tools: list[dict[str, Any]] = result.structured_content["tools"]
            return [tool["name"] for tool in tools]

    return asyncio.run(main())


def texts(gateway: Gateway) -> dict[str, float]:
    """What became of texts."""
    family = "metamcp_embedded_texts_total"
    lines = [line for line in gateway.ops("/metrics")[1].splitlines() if line.startswith(family)]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}


def whole(gateway: Gateway) -> None:
    """Every tool has its vector, so the next search asks only for that of its query."""
    tools = sum(server["tools"] for server in gateway.status()["servers"])

    def all_of_them() -> bool:
        counts = texts(gateway)
        made = counts["embedded"] + counts["late"] + counts["kept"]
        return bool(found(gateway, "macaw")) and made > tools

    until(all_of_them, "a search finds by meaning, among all tools")


def test_a_tool_is_found_by_its_meaning_alone_and_its_vector_outlasts_a_restart(
    endpoint: Embeddings,
) -> None:
    with gateway_with(endpoint.url) as gateway:
        whole(gateway)
        assert "one__echo" in found(gateway, "macaw")[:3]
        assert found(gateway, "one__echo")[0] == "one__echo"
        assert {headers["authorization"] for headers in endpoint.headers} == {f"Bearer {TOKEN}"}
        assert endpoint.texts.count("macaw") == 1
        asked = set(endpoint.texts)
        assert gateway.stop() == 0
        endpoint.texts.clear()
        gateway.start()
        whole(gateway)
        assert "one__echo" in found(gateway, "macaw")[:3]
        assert endpoint.texts == ["macaw"]
        until(lambda: texts(gateway).get("kept"), "what was kept is counted")
        assert texts(gateway)["failed"] == 0
        kept = (gateway.folder / "state" / "vectors.db").read_bytes()
        assert not any(text.encode() in kept for text in asked)
        assert TOKEN not in gateway.log.read_text() + gateway.ctl("describe", "one")
        assert (gateway.folder / "state" / "vectors.db").stat().st_mode & 0o077 == 0


def test_no_search_waits_for_an_endpoint_that_does_not_answer(endpoint: Embeddings) -> None:
    with gateway_with(endpoint.url) as gateway:
        whole(gateway)
        endpoint.open.clear()
        assert found(gateway, "echo")[0] in {"one__echo", "two__echo"}
        assert not endpoint.open.is_set()  # it was answered although the endpoint never did
        assert found(gateway, "cockatoo") == []
        endpoint.open.set()
        until(lambda: found(gateway, "cockatoo"), "the vector came later, and is there now")
        assert endpoint.texts.count("cockatoo") == 1
        until(lambda: texts(gateway)["late"], "that it came too late is counted")


def test_an_endpoint_that_is_down_is_said_once_and_words_go_on(endpoint: Embeddings) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/v1/embeddings"
    with gateway_with(nobody) as gateway:
        assert found(gateway, "echo")[0] in {"one__echo", "two__echo"}
        until(lambda: texts(gateway).get("failed"), "it is counted")
        until(lambda: "makes no vectors" in gateway.log.read_text(), "it is said")
        assert found(gateway, "macaw") == []
        lines = [line for line in gateway.log.read_text().splitlines() if "no vectors" in line]
        assert len(lines) == 1
        assert "searches go by words alone" in lines[0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "its answer is none of the API for embeddings"),
        (b'{"data":[]}', "vectors and sent 0"),
        (json.dumps({"data": [{"embedding": [1]}] * 99}).encode(), "vectors and sent 99"),
    ],
)
def test_a_wrong_answer_is_one_sentence_and_words_go_on(
    endpoint: Embeddings, body: bytes, said: str
) -> None:
    endpoint.body = body
    with gateway_with(endpoint.url) as gateway:
        until(lambda: said in gateway.log.read_text(), "it is said")
        assert found(gateway, "echo")[0] in {"one__echo", "two__echo"}
        endpoint.body = None
        whole(gateway)
        until(lambda: "vectors are made again" in gateway.log.read_text(), "that is said, too")


def test_an_upgrade_goes_on_with_what_is_kept(endpoint: Embeddings) -> None:
    with gateway_with(endpoint.url) as gateway:
        whole(gateway)
        endpoint.texts.clear()
        before = gateway.journal().count("embedder")
        gateway.ctl("upgrade")
        until(lambda: found(gateway, "cockatoo"), "there is one of the new program")
        assert set(endpoint.texts) == {"cockatoo"}
        assert gateway.journal().count("embedder") > before


def test_a_killed_process_of_vectors_is_replaced_and_makes_nothing_anew(
    endpoint: Embeddings,
) -> None:
    with gateway_with(endpoint.url) as gateway:
        whole(gateway)
        endpoint.texts.clear()
        os.kill(embedder(gateway), 9)
        until(lambda: found(gateway, "cockatoo"), "there is another one")
        assert set(endpoint.texts) == {"cockatoo"}


def test_the_process_of_vectors_is_shown_as_every_other_one_and_ends_with_its_section(
    endpoint: Embeddings,
) -> None:
    with gateway_with(endpoint.url) as gateway:
        whole(gateway)
        pid = embedder(gateway)
        assert pid > 0
        assert f"embedder: ready, process {pid}" in gateway.ctl("status")
        until(lambda: len(measured(gateway)) == 6, "all that is measured of processes")
        assert all(measured(gateway).values())
        gateway.extra = SEARCH
        gateway.write(SERVERS)
        gateway.ctl("reload")
        until(lambda: not embedder(gateway), "nobody needs it")
        until(lambda: not os.path.exists(f"/proc/{pid}"), "it ends")
        assert "embedder" not in gateway.ctl("status")
        assert found(gateway, "echo")[0] in {"one__echo", "two__echo"}
        assert found(gateway, "macaw") == []


def embedder(gateway: Gateway) -> int:
    """The process of vectors, 0 while there is none."""
    return next((one["pid"] for one in gateway.status()["roles"] if one["role"] == "embedder"), 0)


def measured(gateway: Gateway) -> dict[str, float]:
    """What the page says of the process of vectors, by family."""
    lines = gateway.ops("/metrics")[1].splitlines()
    mine = [line for line in lines if 'role="embedder"' in line]
    return {
        line.partition("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in mine
        if line.startswith("metamcp_process_")
    }
