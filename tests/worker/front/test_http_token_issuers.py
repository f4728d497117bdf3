"""A front that asks an issuer about tokens, over real sockets: who can make it ask."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from metamcp_worker.access.door import FAILURES_MAX
from metamcp_worker.access.token_issuers import ANSWERS_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.spec import EndpointSpec, IssuerSpec, NamingSpec

from ..rawhttp import listener, until
from .door import OFF, Door, modern, opened_door

PATH = "/metamcp/sso/mcp"
AUDIENCE = f"https://gateway.example{PATH}"


@asynccontextmanager
async def asking_door(
    hold: asyncio.Event | None = None,
) -> AsyncGenerator[tuple[Door, list[str]]]:
    """A front whose issuer knows all tokens that begin with `good`, and with the
    tokens that the issuer was asked about. `hold`: the issuer answers when this is set."""
    sock = listener()
    issuer = f"http://127.0.0.1:{sock.getsockname()[1]}"
    rules = IssuerSpec(
        issuer=issuer, audience=AUDIENCE, introspection=f"{issuer}/", client_id="c",
        client_secret="s", allow_private=True,
    )  # fmt: skip
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        form = (await reader.readexactly(int(length[1]))).decode()
        asked.append(form.partition("token=")[2].partition("&")[0])
        if hold is not None:
            await hold.wait()
        active = {"active": asked[-1].startswith("good"), "aud": AUDIENCE, "sub": "ann"}
        body = codec.dump(active | {"scope": "mcp:list mcp:call"})
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    sso = EndpointSpec(
        name="sso", servers=("s",), naming=NamingSpec(style="bare"), disabled=OFF,
        auth=("oauth",), oauth=rules,
    )  # fmt: skip
    async with opened_door(sso) as door, await asyncio.start_server(answer, sock=sock):
        yield door, asked


async def status(door: Door, token: str, address: str = "127.0.0.1") -> int:
    client = await door.connect(address)
    request = modern("tools/list", {}, f"Authorization: Bearer {token}", path=PATH)
    return (await client.ask(request)).status


async def test_an_address_with_many_failures_makes_the_front_ask_no_issuer() -> None:
    async with asking_door() as (door, asked):
        assert await status(door, "good") == 200
        for number in range(FAILURES_MAX):
            assert await status(door, f"wrong{number}") == 401
        assert await status(door, "wrong0") == 429
        assert len(asked) == 1 + FAILURES_MAX
        assert await status(door, "more") == 429
        assert await status(door, "good2") == 429
        assert len(asked) == 1 + FAILURES_MAX
        assert await status(door, "good") == 200
        assert await status(door, "good2", "127.0.0.2") == 200
        assert asked[-1] == "good2"


async def test_the_call_of_a_client_that_left_while_its_token_was_judged_does_not_run() -> None:
    hold = asyncio.Event()
    async with asking_door(hold) as (door, asked):

        def call(text: str) -> bytes:
            params = {"name": "t", "arguments": {"text": text}}
            return modern("tools/call", params, "Authorization: Bearer good", path=PATH)

        leaving, staying = await door.connect(), await door.connect()
        leaving.send(call("left"))
        await until(lambda: len(asked) == 1)
        await leaving.close()
        staying.send(call("stayed"))
        await until(lambda: len(asked) == 2)
        await until(lambda: door.server.connections == 1)
        hold.set()
        frame = await door.peer.call()
        assert codec.value(frame.params)["arguments"] == {"text": "stayed"}
        door.peer.write(Result(frame.id, b'{"content":[]}'))
        assert (await staying.reply()).status == 200
        assert door.peer.quiet()


async def test_tokens_that_are_not_valid_push_out_no_answer_about_a_valid_one() -> None:
    async with asking_door() as (door, asked):
        assert await status(door, "good") == 200
        for number in range(ANSWERS_MAX + 1):
            address = f"127.0.1.{number // FAILURES_MAX + 1}"
            assert await status(door, f"wrong{number}", address) == 401
        assert await status(door, "good") == 200
        assert asked.count("good") == 1
        assert len(asked) == ANSWERS_MAX + 2
