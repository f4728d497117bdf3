"""Subscriptions of revision 2026-07-28, over a real socket and a real pipe."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.access import gate
from metamcp_worker.front_calls.task_ids import TaskOwner
from metamcp_worker.front_clients import subscriptions_listen
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.header_policy import RequestFacts
from metamcp_worker.front_clients.resource_subscriptions import ResourceSubscriptions
from metamcp_worker.front_clients.streams import Streams
from metamcp_worker.front_clients.tasks import Tasks
from metamcp_worker.http.request_head import Head, MovedConnection
from metamcp_worker.http.requests import HttpRequest
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import CallFrame, ClientNotice, Error, Notice, Result
from tests.worker.front.door import META, Door, modern, opened_door
from tests.worker.front.offers import MODERN, offer, resource

from ..rawhttp import Client, until

HERE = ViewOwner("default", gate.LOCAL)
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
UPDATED = "notifications/resources/updated"


def wish(id: object = "7", meta: dict[str, Any] = META, **notifications: object) -> bytes:  # noqa: A002 - the protocol's word
    return modern("subscriptions/listen", {"notifications": notifications}, id=id, meta=meta)


async def acknowledged(client: Client, tag: object = "7") -> dict[str, Any]:
    """What is honoured."""
    assert (await client.head()).headers["content-type"] == "text/event-stream"
    event = await client.event()
    assert event["method"] == "notifications/subscriptions/acknowledged"
    assert event["params"]["_meta"] == {SUBSCRIPTION: tag}
    honoured: dict[str, Any] = event["params"]["notifications"]
    return honoured


async def subscribed(door: Door, *uris: str) -> None:
    """The server is asked for these, in any order, and agrees."""
    asked = [await door.peer.call() for _ in uris]
    assert {call.method for call in asked} == {"resources/subscribe"}
    assert sorted(codec.value(call.params)["uri"] for call in asked) == sorted(uris)
    for call in asked:
        door.peer.write(Result(call.id, b"{}"))


@pytest.mark.promise("M23")
async def test_a_subscription_is_acknowledged_told_and_ended_under_the_id_of_its_request() -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(wish(toolsListChanged=True, promptsListChanged=False, x=True))
        assert await acknowledged(client) == {"toolsListChanged": True}
        door.app.lists_changed({HERE: frozenset({"prompts", "resources"})})
        door.app.lists_changed({ViewOwner("dev", gate.LOCAL): frozenset({"tools"})})
        door.app.lists_changed({HERE: frozenset({"tools"})})
        tag = {SUBSCRIPTION: "7"}
        assert await client.event() == {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": tag},
        }
        door.serve_only("dev")
        result = {"resultType": "complete", "_meta": tag}
        assert await client.event() == {"jsonrpc": "2.0", "id": "7", "result": result}
        assert await client.event() is None


@pytest.mark.promise("M23")
async def test_updates_of_resources_are_told_to_those_who_subscribed() -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource("a:b"), resource("a:c")]))
        client = await door.connect()
        client.send(wish(7, resourceSubscriptions=["a:b", "a:c", "a:b"], toolsListChanged=True))
        await subscribed(door, "a:b", "a:c")
        honoured = {"toolsListChanged": True, "resourceSubscriptions": ["a:b", "a:c"]}
        assert await acknowledged(client, 7) == honoured
        door.peer.write(Notice(UPDATED, b'{"uri":"a:other"}'))
        door.peer.write(Notice(UPDATED, b'{"uri":"a:b","n":1.0,"_meta":{"x/y":1.0}}'))
        params = {"_meta": {"x/y": 1.0, SUBSCRIPTION: 7}, "uri": "a:b", "n": 1.0}
        assert await client.event() == {"jsonrpc": "2.0", "method": UPDATED, "params": params}
        door.peer.write(Notice(UPDATED, b'{"uri":"a:c"}'))
        assert (await client.event())["params"] == {"_meta": {SUBSCRIPTION: 7}, "uri": "a:c"}
        await client.close()
        ended = [await door.peer.call() for _ in range(2)]
        assert {call.method for call in ended} == {"resources/unsubscribe"}


@pytest.mark.promise("M23")
async def test_the_acknowledgement_names_only_what_servers_agreed_to_and_comes_first() -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource("a:b"), resource("a:c")]))
        client = await door.connect()
        client.send(wish(resourceSubscriptions=["a:b", "a:c", "a:" + "x" * 3000]))
        asked = {codec.value(call.params)["uri"]: call for call in await calls(door, 2)}
        door.peer.write(Result(asked["a:b"].id, b"{}"))
        for _ in range(2):
            door.peer.write(Notice(UPDATED, b'{"uri":"a:b"}'))
        door.peer.write(Error(asked["a:c"].id, b'{"code":-32601,"message":"no"}'))
        assert await acknowledged(client) == {"resourceSubscriptions": ["a:b"]}
        assert (await client.event())["params"]["uri"] == "a:b"
        door.serve_only("dev")
        assert (await client.event())["id"] == "7"


async def calls(door: Door, count: int) -> list[CallFrame]:
    return [await door.peer.call() for _ in range(count)]


async def test_nothing_that_nobody_honours_is_named() -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource("a:b")]))
        client = await door.connect()
        client.send(wish(resourceSubscriptions=["a:b"], toolsListChanged=7))
        (call,) = await calls(door, 1)
        door.peer.write(Error(call.id, b'{"code":-32601,"message":"no"}'))
        assert await acknowledged(client) == {}


async def test_a_client_that_goes_away_before_the_acknowledgement_watches_nothing() -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource("a:b")]))
        client = await door.connect()
        client.send(wish(resourceSubscriptions=["a:b"]))
        (call,) = await calls(door, 1)
        await client.close()
        await until(lambda: door.server.connections == 0)
        door.peer.write(Result(call.id, b"{}"))
        (call,) = await calls(door, 1)
        assert call.method == "resources/unsubscribe"
        assert door.app.counts().streams == 0


@pytest.mark.promise("M21")
async def test_tasks_are_told_of_to_those_who_can_have_tasks() -> None:
    async with opened_door() as door:
        door.offer(offer("t", protocol=MODERN))
        reply = await door.ask(wish(taskIds=["1"]))
        assert reply.outcome == (400, Code.MISSING_CAPABILITY)
        assert reply.json["error"]["data"] == {"requiredCapabilities": TASKS}
        client = await door.connect()
        ids = [TaskOwner(b"", "default", "local").expose_id("s", one) for one in "12"]
        client.send(wish(meta={**META, CAPABILITIES: TASKS}, taskIds=[*ids, "1"]))
        assert await acknowledged(client) == {"taskIds": ids}
        told = await door.peer.read()
        assert isinstance(told, ClientNotice)
        assert codec.value(told.body) == {"taskIds": ["1", "2"]}
        door.peer.write(Notice("notifications/tasks", b'{"taskId":"1","n":1.0}'))
        assert await client.event() == {
            "jsonrpc": "2.0",
            "method": "notifications/tasks",
            "params": {"_meta": {SUBSCRIPTION: "7"}, "taskId": ids[0], "n": 1.0},
        }


class Wire(asyncio.Transport):
    """To a client that reads everything; the `requests.RequestConnection` of its request."""

    transport: asyncio.Transport
    hops = 0
    address = ""
    is_encrypted = False
    tasks: set[asyncio.Task[None]]

    def __init__(self) -> None:
        super().__init__()
        self.transport = self
        self.tasks = set()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def on_answer_sent(self) -> None: ...

    def throttle(self) -> None: ...

    async def writable(self) -> None: ...

    def last_words(self, head: bytes, body: bytes) -> None:
        raise AssertionError("this client does nothing wrong")

    def leave(self, request: HttpRequest, body: bytes) -> MovedConnection | None:
        return None


async def test_a_server_that_does_not_confirm_holds_nobody_up() -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource("a:b")]))
        subscriptions, tasks = ResourceSubscriptions(door.calls), Tasks(door.calls)
        listening = subscriptions_listen.SubscriptionsListen(subscriptions, tasks, ack_s=0.01)
        wire = Wire()
        exchange = Exchange(wire, Head("POST", b"/mcp", ()))
        exchange.facts = RequestFacts("default", accepts_sse=True)
        exchange.streams = Streams(door.stats.count_refusal)
        view = door.calls.view("default")
        assert view is not None
        filters = Raw(b'{"resourceSubscriptions":["a:b"],"toolsListChanged":true}')
        answering = asyncio.ensure_future(listening.answer(exchange, b"7", filters, b"", view, ""))
        await until(lambda: b"acknowledged" in wire.sent)
        assert b'"notifications":{"toolsListChanged":true}' in wire.sent
        exchange.was_lost()
        await answering


async def test_a_subscription_needs_its_wishes_and_a_reader() -> None:
    async with opened_door() as door:
        method = "subscriptions/listen"
        assert (await door.ask(modern(method))).outcome == (400, -32602)
        given: dict[str, Any] = {"notifications": {}}
        reply = await door.ask(modern(method, given, "Accept: application/json"))
        assert reply.outcome == (406, -32600)


@pytest.mark.parametrize(
    "filters",
    [
        [],
        {"resourceSubscriptions": "a:b"},
        {"resourceSubscriptions": ["a:b", 7]},
        {"resourceSubscriptions": [f"a:{at}" for at in range(subscriptions_listen.URIS_MAX + 1)]},
        {"taskIds": {}},
    ],
)
def test_wishes_that_are_none_are_refused(filters: object) -> None:
    with pytest.raises(ProtocolError) as refusal:
        subscriptions_listen.parse_filter(Raw(codec.dump(filters)))
    assert refusal.value.code == Code.INVALID_PARAMS


@pytest.mark.parametrize("ends", ["endpoint", "front"])
async def test_what_ends_while_a_subscription_is_made_ready_ends_that_too(ends: str) -> None:
    async with opened_door() as door:
        door.offer(offer("t", resources=[resource("a:b")]))
        client = await door.connect()
        client.send(wish(resourceSubscriptions=["a:b"]))
        call = await door.peer.call()
        if ends == "endpoint":
            door.serve_only("dev")
        else:
            await door.app.drain(0.01)
        door.peer.write(Result(call.id, b"{}"))
        assert await acknowledged(client) == {"resourceSubscriptions": ["a:b"]}
        assert (await client.event())["result"]["resultType"] == "complete"
        assert await client.event() is None
