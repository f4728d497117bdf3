"""What a client says within its session, over real sockets and a real pipe."""

from typing import Any

import pytest
from msgspec import Raw, structs

from metamcp_worker.front_calls.client_questions import LEVELS
from metamcp_worker.front_clients.client_sessions import INFLIGHT_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import CallFrame, ClientNotice, Error, Notice, Result
from tests.worker.front.door import Door, legacy, opened_door, opened_session
from tests.worker.front.offers import endpoint, offer, resource

from ..rawhttp import Client

pytestmark = pytest.mark.process

LOG = "notifications/message"
UPDATED = "notifications/resources/updated"


def log(level: str) -> bytes:
    return b'{"level":"%b","data":{"x":1.0}}' % level.encode()


async def last(stream: Client) -> bool:
    """Is the next event the notification that `mark` makes?"""
    message = await stream.event()
    return bool(message["method"] == "example.com/last")


def mark(door: Door) -> None:
    door.peer.write(Notice("example.com/last", b"{}"))


async def set_level(door: Door, session: str, level: str) -> Any:
    reply = await door.ask(legacy("logging/setLevel", {"level": level}, session=session))
    assert reply.status == 200
    return reply.json


@pytest.mark.promise("M23")
async def test_the_level_that_a_client_sets_is_answered_at_once_and_told_to_every_server() -> None:
    async with opened_session() as (door, session):
        assert await set_level(door, session, "error") == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert await door.peer.read() == ClientNotice("logging/setLevel", b'{"level":"error"}')
        await door.call(session)
        assert codec.value((await door.peer.call()).caller)["logLevel"] == "error"
        assert door.kept[-1].level == "error"


@pytest.mark.parametrize("params", [{"level": "loud"}, {"level": 1}, {}])
async def test_a_level_that_does_not_exist_is_refused(params: dict[str, object]) -> None:
    async with opened_session() as (door, session):
        refused = legacy("logging/setLevel", params, session=session)
        assert (await door.ask(refused)).outcome == (200, -32602)
        assert door.peer.quiet()


@pytest.mark.promise("M23")
@pytest.mark.parametrize("level", ["", *LEVELS])
async def test_log_messages_of_a_call_reach_its_client_from_the_level_on_that_it_wants(
    level: str,
) -> None:
    async with opened_session() as (door, session):
        if level:
            await set_level(door, session, level)
            assert isinstance(await door.peer.read(), ClientNotice)
        client = await door.call(session)
        call = await door.peer.call()
        for one in LEVELS:
            door.peer.write(Notice(LOG, log(one), call.id))
        door.peer.write(Result(call.id, b"{}"))
        await client.head()
        heard: list[str] = []
        while "result" not in (message := await client.event()):
            assert (message["method"], message["params"]["data"]) == (LOG, {"x": 1.0})
            heard.append(message["params"]["level"])
        assert heard == list(LEVELS[LEVELS.index(level) if level else 0 :])


@pytest.mark.promise("M23")
async def test_log_messages_of_no_call_reach_the_sessions_that_have_set_a_level() -> None:
    async with opened_door() as door:
        wants, silent = await door.initialize(), await door.initialize()
        await set_level(door, wants, "warning")
        assert isinstance(await door.peer.read(), ClientNotice)
        told, untold = await door.news(wants), await door.news(silent)
        door.peer.write(Notice(LOG, log("info")))
        door.peer.write(Notice(LOG, log("error")))
        mark(door)
        assert (await told.event())["params"] == codec.value(log("error"))
        assert await last(told)
        assert await last(untold)


@pytest.mark.promise("M23")
async def test_any_other_notification_of_a_call_goes_where_its_answer_goes() -> None:
    async with opened_session() as (door, session):
        client = await door.call(session)
        call = await door.peer.call()
        door.peer.write(Notice("example.com/x", b'{"a": 1.0}', call.id))
        await client.head()
        assert await client.event() == {
            "jsonrpc": "2.0", "method": "example.com/x", "params": {"a": 1.0},
        }  # fmt: skip


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/roots/list_changed", None),
        ("notifications/roots/list_changed", {"_meta": {"a/b": 1}}),
        ("example.com/x", {"a": [1.5]}),
    ],
)
async def test_what_a_client_tells_reaches_the_only_server_of_its_endpoint(
    method: str, params: dict[str, Any] | None
) -> None:
    async with opened_session() as (door, session):
        for told in ("notifications/initialized", method):
            assert (await door.ask(legacy(told, params, id=None, session=session))).status == 202
        body = b"" if params is None else codec.dump(params)
        assert await door.peer.read() == ClientNotice(method, body)


@pytest.mark.promise("M98")
async def test_a_progress_token_is_an_id() -> None:
    async with opened_session() as (door, session):
        client = await door.call(session, _meta={"progressToken": [1]})
        assert (await client.reply()).outcome == (400, -32602)


@pytest.mark.promise("M98")
async def test_one_session_has_only_so_many_requests_in_flight() -> None:
    async with opened_session() as (door, session):
        client = await door.connect()
        requests = (
            legacy("tools/call", {"name": "t"}, id=number, session=session)
            for number in range(INFLIGHT_MAX)
        )
        clients = [await door.connect() for _ in range(INFLIGHT_MAX)]
        for one, request in zip(clients, requests, strict=True):
            one.send(request)
            await door.peer.call()
        client.send(legacy("tools/list", id="more", session=session))
        assert (await client.reply()).outcome == (200, -10002)
        ping = legacy("ping", id="p", session=session)
        assert (await door.ask(ping)).outcome == (200, 0)


@pytest.mark.promise("M24")
async def test_a_session_is_told_how_the_tasks_go_on_that_it_began() -> None:
    async with opened_door() as door:
        capabilities = Raw(b'{"tasks":{"requests":{"tools":{"call":{}}}}}')
        door.offer(structs.replace(offer("t"), capabilities=capabilities))
        session, other = await door.initialize(), await door.initialize()
        news, of_other = await door.news(session), await door.news(other)
        client = await door.call(session, task={"ttl": 1000})
        task = b'{"task":{"taskId":"k","status":"working"}}'
        door.peer.write(Result((await door.peer.call()).id, task))
        created = (await client.reply()).json["result"]["task"]
        assert created["taskId"] != "k"
        status = b'{"taskId":"k","status":"completed","x":1.0}'
        door.peer.write(Notice("notifications/tasks/status", status))
        mark(door)
        about = {"taskId": created["taskId"], "status": "completed", "x": 1.0}
        assert (await news.event())["params"] == about
        assert await last(news)
        assert await last(of_other)


@pytest.mark.promise("M60")
@pytest.mark.parametrize("method", ["notifications/message", "example.com/x"])
async def test_what_is_told_of_a_task_outside_of_calls_reaches_the_session_that_began_it(
    method: str,
) -> None:
    async with opened_door() as door:
        capabilities = Raw(b'{"tasks":{"requests":{"tools":{"call":{}}}},"logging":{}}')
        door.offer(structs.replace(offer("t"), capabilities=capabilities))
        session, other = await door.initialize(), await door.initialize()
        for one in (session, other):
            await set_level(door, one, "debug")
            assert isinstance(await door.peer.read(), ClientNotice)
        news, of_other = await door.news(session), await door.news(other)
        client = await door.call(session, task={"ttl": 1000})
        task = b'{"task":{"taskId":"k","status":"working"}}'
        door.peer.write(Result((await door.peer.call()).id, task))
        known = (await client.reply()).json["result"]["task"]["taskId"]
        for own in (b"k", b"another"):
            meta = b'{"io.modelcontextprotocol/related-task":{"taskId":"%b"}}' % own
            params = b'{"_meta":%b,"level":"error","data":"x"}' % meta
            door.peer.write(Notice(method, params))
        mark(door)
        told = await news.event()
        assert told["method"] == method
        related = told["params"]["_meta"]["io.modelcontextprotocol/related-task"]
        assert related == {"taskId": known}
        assert await last(news)
        assert await last(of_other)


class Watching:
    """A session on an endpoint with two resources."""

    def __init__(self, door: Door, session: str) -> None:
        self.door = door
        self.session = session

    @classmethod
    async def open(cls, door: Door) -> "Watching":
        door.offer(offer("t", resources=[resource("r:1"), resource("r:2")]))
        return cls(door, await door.initialize())

    async def ask(self, method: str, uri: object = "r:1") -> Client:
        client = await self.door.connect()
        client.send(legacy(method, {"uri": uri}, id="w", session=self.session))
        return client

    async def asked(self, method: str) -> CallFrame:
        call = await self.door.peer.call()
        assert (call.method, call.params) == (method, b'{"uri":"r:1"}')
        return call

    async def watch(self) -> None:
        client = await self.ask("resources/subscribe")
        self.door.peer.write(Result((await self.asked("resources/subscribe")).id, b"{}"))
        assert (await client.reply()).json["result"] == {}


@pytest.mark.promise("M23")
async def test_a_client_is_told_of_updates_of_what_it_watches_until_it_does_not() -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        news = await door.news(one.session)
        await one.watch()
        assert [record.subscriptions for record in door.kept] == [(), ("r:1",)]
        for uri in (b"r:2", b"r:1"):
            door.peer.write(Notice(UPDATED, b'{"uri":"%b", "x":1.0}' % uri))
        assert await news.event() == {
            "jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "r:1", "x": 1.0},
        }  # fmt: skip
        client = await one.ask("resources/unsubscribe")
        door.peer.write(Result((await one.asked("resources/unsubscribe")).id, b"{}"))
        assert (await client.reply()).json["result"] == {}
        assert [record.subscriptions for record in door.kept] == [(), ("r:1",), ()]
        door.peer.write(Notice(UPDATED, b'{"uri":"r:1"}'))
        mark(door)
        assert await last(news)


async def test_updates_without_a_stream_are_told_on_the_next_one() -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        await one.watch()
        for _ in range(3):
            door.peer.write(Notice(UPDATED, b'{"uri":"r:1"}'))
        client = await door.call(one.session)  # behind the updates
        door.peer.write(Result((await door.peer.call()).id, b"{}"))
        await client.reply()
        news = await door.news(one.session)
        mark(door)
        assert (await news.event())["params"] == {"uri": "r:1"}
        assert await last(news)


async def test_a_subscription_that_the_server_refuses_is_none() -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        client = await one.ask("resources/subscribe")
        call = await one.asked("resources/subscribe")
        door.peer.write(Error(call.id, b'{"code":-9,"message":"no", "x":1.0}'))
        reply = await client.reply()
        assert (reply.status, reply.json["error"]) == (200, {"code": -9, "message": "no", "x": 1.0})
        assert door.kept[-1].subscriptions == ()


@pytest.mark.parametrize("uri", [None, 1, "r:1" * 1000])
async def test_a_subscription_needs_a_uri(uri: object) -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        for method in ("resources/subscribe", "resources/unsubscribe"):
            client = await one.ask(method, uri)
            assert (await client.reply()).outcome == (200, -32602)


async def test_an_id_stays_in_use_while_a_subscription_is_asked_for() -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        first = await one.ask("resources/subscribe")
        call = await one.asked("resources/subscribe")
        second = await one.ask("resources/subscribe")
        assert (await second.reply()).outcome == (400, -32600)
        cancel = legacy("notifications/cancelled", {"requestId": "w"}, id=None, session=one.session)
        assert (await door.ask(cancel)).status == 202  # too late for that
        door.peer.write(Result(call.id, b"{}"))
        assert (await first.reply()).json["result"] == {}


async def test_the_end_of_a_session_ends_its_subscriptions() -> None:
    async with opened_door() as door:
        one = await Watching.open(door)
        await one.watch()
        door.serve_only("dev")
        assert await one.asked("resources/unsubscribe")
        assert door.over == [one.session]


@pytest.mark.parametrize("method", ["metamcp/tasks", "logging/setLevel"])
async def test_a_client_cannot_tell_a_worker_what_only_the_gateway_tells_it(method: str) -> None:
    async with opened_session() as (door, session):
        params: dict[str, object] = {"taskIds": [], "level": "debug"}
        told = await door.ask(legacy(method, params, id=None, session=session))
        assert told.status == 202
        assert door.stats.refusals == {"reserved_notification": 1}
        assert door.peer.quiet()


@pytest.mark.promise("M60")
async def test_notifications_of_no_call_do_not_come_from_a_server_that_workspaces_share() -> None:
    ours = structs.replace(endpoint("s", style="bare"), default=True)
    async with opened_door(
        ours, structs.replace(ours, name="acme", default=False, workspace="acme")
    ) as door:
        one = await Watching.open(door)
        await set_level(door, one.session, "debug")
        assert isinstance(await door.peer.read(), ClientNotice)
        news = await door.news(one.session)
        await one.watch()
        for method, params in ((LOG, log("error")), ("example.com/x", b"{}")):
            door.peer.write(Notice(method, params))
        door.peer.write(Notice(UPDATED, b'{"uri":"r:1"}'))
        assert (await news.event())["method"] == UPDATED
