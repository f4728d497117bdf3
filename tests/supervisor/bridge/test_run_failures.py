"""The bridge when its client or its gateway leaves in the middle, or has little room."""

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import tty
from typing import Any

import pytest

from metamcp_supervisor.bridge.run import READS_MAX
from tests.supervisor.bridge.client import Client, connected
from tests.supervisor.bridge.talk import line, modern, result
from tests.worker.rawhttp import WAIT_S, until
from tests.worker.scripted import Request, Wire, serving

pytestmark = pytest.mark.process

DOWN = -10001
JSON = "Content-Type: application/json"
BRIDGE = "from metamcp_supervisor.bridge import run; run.run({url!r}, lambda: {url!r})"


class Gateway:
    """Answers calls when it is told to, and everything else at once. `seen`: the methods."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.hold = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        while request := await wire.request():
            message: dict[str, Any] = json.loads(request.body or b"{}")
            self.seen.append(message.get("method", request.line.partition(" ")[0]))
            await self.answer(wire, request, message)

    async def answer(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
        number = message.get("id")
        if message.get("method") == "tools/call":
            await self.hold.wait()
        if number is None:
            await wire.answer(b"", status="202 Accepted" if request.body else "405 No")
        else:
            session = "Mcp-Session-Id: s"
            await wire.answer(result(number, protocolVersion="2025-11-25"), JSON, session)


async def heard(client: Client, count: int) -> dict[int, int]:
    """The ids of that many answers, and the codes of those that are errors."""
    answers = [await client.hear() for _ in range(count)]
    return {one["id"]: one.get("error", {}).get("code", 0) for one in answers}


async def test_what_is_open_when_the_input_ends_is_answered_with_an_error() -> None:
    async with serving(Gateway()) as url, connected(url) as client:
        client.say(line("initialize", 0), *[line("tools/call", n) for n in range(1, 6)])
        client.hang_up()
        assert await client.running == 0
        assert await heard(client, 6) == {0: 0, **dict.fromkeys(range(1, 6), DOWN)}


async def test_what_nobody_had_time_for_when_the_input_ends_is_answered_too() -> None:
    class Slow(Gateway):
        async def answer(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            if message.get("method") == "notifications/slow":
                await wire.closed()  # and nothing else is sent meanwhile
            else:
                await super().answer(wire, request, message)

    async with serving(Slow()) as url, connected(url) as client:
        client.say(line("initialize", 0))
        await client.hear()
        client.say(line("notifications/slow"), *[line("ping", n) for n in range(1, 500)])
        client.hang_up()
        assert await client.running == 0
        assert await heard(client, 499) == dict.fromkeys(range(1, 500), DOWN)


async def test_a_gateway_that_moved_still_answers_what_it_has() -> None:
    old, new = Gateway(), Gateway()
    wires: list[asyncio.Task[None]] = []

    async def converse(wire: Wire) -> None:
        await old(wire)
        await wire.shut()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.append(asyncio.ensure_future(converse(Wire(reader, writer))))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    async with serving(new) as url, connected(f"http://127.0.0.1:{port}/mcp") as client:
        client.say(modern("tools/call", 1))
        await until(lambda: "tools/call" in old.seen)
        server.close()  # as who lets its calls end
        client.location = url
        client.say(modern("ping", 2))
        assert await heard(client, 1) == {2: 0}
        old.hold.set()
        assert await heard(client, 1) == {1: 0}
    await asyncio.gather(*wires)
    assert new.seen == ["ping"]


async def test_large_answers_wait_with_the_gateway_for_a_client_that_does_not_read() -> None:
    count, taken = 12, 0
    hold = asyncio.Event()

    async def script(wire: Wire) -> None:
        nonlocal taken
        while request := await wire.request():
            await hold.wait()
            number = json.loads(request.body)["id"]
            await wire.answer(result(number, text="x" * 14 * 1024 * 1024), JSON)
            taken += 1

    async with serving(script) as url, connected(url) as client:
        client.hold(on=True)
        client.say(*[modern("tools/call", number) for number in range(count)])
        hold.set()
        await until(lambda: taken > 2)
        for _ in range(500):
            await asyncio.to_thread(lambda: None)
        assert taken <= READS_MAX + 4
        client.hold(on=False)
        assert await heard(client, count) == dict.fromkeys(range(count), 0)


async def test_a_client_that_allows_few_descriptors_has_all_its_requests_answered() -> None:
    count = 100

    class Crowded(Gateway):
        async def answer(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            if len(self.seen) == count:
                self.hold.set()
            await super().answer(wire, request, message)

    async with serving(Crowded()) as url:
        few = ("sh", "-c", f'ulimit -Sn 64 && exec {sys.executable} -c "$0"')
        pipe = asyncio.subprocess.PIPE
        bridge = await asyncio.create_subprocess_exec(
            *few, BRIDGE.format(url=url), stdin=pipe, stdout=pipe
        )
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        said = [modern("tools/call", number) for number in range(count)]
        bridge.stdin.write(b"\n".join(said) + b"\n")
        try:
            answers = [json.loads(await bridge.stdout.readline()) for _ in said]
        finally:
            bridge.kill()
            await bridge.wait()
        assert [one for one in answers if "error" in one] == []


def at_terminal(url: str, fd: int) -> subprocess.Popen[bytes]:
    """Not by asyncio, which would make it blocking again for the new process."""
    return subprocess.Popen([sys.executable, "-c", BRIDGE.format(url=url)], stdin=fd, stdout=fd)


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], WAIT_S)[0])


async def test_a_terminal_that_somebody_made_non_blocking_is_waited_for() -> None:
    near, far = pty.openpty()
    tty.setraw(far)
    os.set_blocking(far, False)
    async with serving(Gateway()) as url:
        with at_terminal(url, far) as bridge:
            os.close(far)
            try:
                for number in range(3):
                    os.write(near, modern("ping", number) + b"\n")
                    assert await asyncio.to_thread(readable, near)
                    assert json.loads(os.read(near, 4096))["id"] == number
            finally:
                bridge.kill()
    os.close(near)
