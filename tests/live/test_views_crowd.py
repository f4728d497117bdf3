"""A thousand clients of one principal on two fronts: each change of the view is told to every one
of them once, when it can be seen wherever they ask, and to nobody else."""

import asyncio
from collections.abc import AsyncIterable, Iterator
from functools import partial
from threading import Event, Thread
from typing import Any, Self

import pytest
from mcp.client.client import Client as Sdk
from mcp.client.subscriptions import ServerEvent, ToolsListChanged

from metamcp_worker.ipc import messages
from tests.live import processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.crowd import Crowd, Ear
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

CLIENTS = 1000
ELSEWHERE = 20
ASKERS_MAX = 64
GROWTH_BYTES_MAX = 24 * 1024 * 1024
"""Of a front, when a thousand clients have come and gone: what its heap keeps of them."""
CHANGED = b"notifications/tools/list_changed"
EXTRA = """
[gateway]
fronts = 2

[endpoints.default]
namespace = "default"
exposure = "toolset"

[endpoints.other]
namespace = "default"
exposure = "toolset"
"""
OTHER = "/metamcp/other/mcp"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({"a": fake(), "b": fake()}, extra=EXTRA) as running:
        client = Client(running.port, MODERN)
        for name in ("a", "b"):
            done(client, "build-toolset", name=name, tools=[f"{name}.echo"])
        client.close()
        yield running


def done(client: Client, tool: str, **arguments: Any) -> None:
    answer = client.call(tool, **arguments)
    assert not answer["result"]["isError"], answer


def askers(port: int) -> list[Ear]:
    """Sessions with a connection each, of which every front has made some."""
    found: list[Ear] = []
    while len({messages.maker(ear.session.decode()) for ear in found}) < 2:
        assert len(found) < ASKERS_MAX, "one front takes all connections"
        found.append(Ear(port, LEGACY, "/mcp").opened())
    return found


def sizes(gateway: Gateway) -> dict[int, tuple[int, int]]:
    """Descriptors and memory of each front."""
    pids = [front["pid"] for front in gateway.status()["fronts"]]
    return {pid: (processes.descriptors(pid), processes.memory(pid, "Pss_Anon")) for pid in pids}


@pytest.mark.promise("M32")
def test_a_thousand_clients_hear_of_each_change_exactly_once_and_find_it_wherever_they_ask(
    gateway: Gateway,
) -> None:
    before = sizes(gateway)
    asking = askers(gateway.port)
    client = Client(gateway.port, MODERN)
    here = ears(gateway.port, "/mcp", CLIENTS)
    there = ears(gateway.port, OTHER, ELSEWHERE)

    def equip(name: str) -> None:
        done(client, "equip-toolset", name=name)
        done(client, "equip-toolset", name=name)  # which changes nothing

    def visible(name: str) -> None:
        for ear in asking:
            assert ear.names()[-1] == f"{name}__echo", "it was told before it was in force"

    with Crowd(here) as crowd, Crowd(there) as others, Sdks(gateway.url) as official:
        for count, name in enumerate(("a", "b", "a", "b"), 1):
            equip(name)
            crowd.hear(partial(has_heard, count), partial(visible, name))
            assert {len(ear.heard) for ear in here} == {count}
            until(lambda: {*map(len, official.heard)} == {count}, "the official clients")  # noqa: B023 - it is called now
        elsewhere = Client(gateway.port, MODERN, OTHER)
        done(elsewhere, "equip-toolset", name="b")
        others.hear(partial(has_heard, 1))
        elsewhere.close()
        goodbye(gateway.port, [*here, *there, *asking])
        crowd.hear(lambda ear: ear.ended_s > 0 or ear.era == MODERN)
        for ear in (*here, *there):
            ear.take()
        assert {tuple(ear.heard) for ear in here} == {(CHANGED,) * 4}
        assert {tuple(ear.heard) for ear in there} == {(CHANGED,)}
        assert {tuple(heard) for heard in official.heard} == {(CHANGED.decode(),) * 4}
    client.close()
    for ear in asking:
        ear.sock.close()
    until(lambda: settled(gateway, before), "nothing is left of a thousand clients")


def ears(port: int, path: str, count: int) -> list[Ear]:
    """Half of them of each era."""
    return [Ear(port, (LEGACY, MODERN)[number % 2], path) for number in range(count)]


def has_heard(count: int, ear: Ear) -> bool:
    return len(ear.heard) >= count


def goodbye(port: int, ears: list[Ear]) -> None:
    """All sessions end, and their streams with them."""
    for ear in ears:
        if ear.session:
            last = Ear(port, LEGACY, ear.path)
            last.session = ear.session
            last.goodbye()
            last.sock.close()


def settled(gateway: Gateway, before: dict[int, tuple[int, int]]) -> bool:
    fronts = gateway.status()["fronts"]
    if any(front["sessions"] or front["streams"] for front in fronts):
        return False
    return all(
        descriptors <= before[pid][0] + 2 and memory <= before[pid][1] + GROWTH_BYTES_MAX
        for pid, (descriptors, memory) in sizes(gateway).items()
    )


class Sdks:
    """An official client of each era, which listens in a thread of their own. `heard`: what each
    of them was told."""

    def __init__(self, url: str) -> None:
        self.heard: tuple[list[str], list[str]] = ([], [])
        self._url = url
        self._ready, self._over = Event(), Event()
        self._thread = Thread(target=lambda: asyncio.run(self._live()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    async def _live(self) -> None:
        legacy, modern = self.heard

        async def hear(message: Any) -> None:
            legacy.append(str(message.method))

        async with (
            Sdk(self._url, mode="legacy", message_handler=hear),
            Sdk(self._url, mode=MODERN) as client,
            client.listen(tools_list_changed=True) as news,
        ):
            told = asyncio.create_task(_take(news, modern))
            self._ready.set()
            await asyncio.to_thread(self._over.wait, 120)
            told.cancel()


async def _take(news: AsyncIterable[ServerEvent], heard: list[str]) -> None:
    async for event in news:
        assert isinstance(event, ToolsListChanged)
        heard.append(CHANGED.decode())
