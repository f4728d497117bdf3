"""Subscriptions over real pipes, with the workers played by the test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_clients.resource_subscriptions import (
    UNATTENDED_MAX,
    UPDATED,
    ResourceSubscriptions,
)
from metamcp_worker.front_clients.watches import WATCHER_URIS_MAX
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import Error, Notice, Result
from metamcp_worker.ipc.messages import ServerState
from tests.worker.front.called import Front, opened_front
from tests.worker.front.callers import Watcher, answer_of
from tests.worker.front.offers import endpoint, offer, resource, template
from tests.worker.front.peers import Peer

from ..rawhttp import until

OFFER = offer(resources=[resource("file:///a"), resource("file:///b")])


@asynccontextmanager
async def opened_subscriptions() -> AsyncGenerator[tuple[Front, ResourceSubscriptions]]:
    notes = offer(templates=[template("note:{n}")])
    async with opened_front(endpoint("a", "b"), a=OFFER, b=notes) as front:
        yield front, ResourceSubscriptions(front.calls)


async def watched(front: Front, subs: ResourceSubscriptions, uri: str, *clients: Watcher) -> None:
    """The first of them makes the server hear of it."""
    first = asyncio.create_task(subs.watch(front.view, uri, clients[0]))
    await answer(front.peers["a"], "resources/subscribe", uri)
    assert await first == CallAnswer(b"{}")
    for client in clients[1:]:
        assert await subs.watch(front.view, uri, client) == CallAnswer(b"{}")


async def answer(peer: Peer, method: str, uri: str, body: bytes = b"{}") -> None:
    call = await peer.call()
    assert (call.method, call.params, call.peer) == (method, b'{"uri":"%b"}' % uri.encode(), 0)
    peer.write(Result(call.id, body))


@pytest.mark.promise("M21", "M23")
async def test_the_first_watcher_gets_the_servers_answer_and_all_of_them_the_updates() -> None:
    async with opened_subscriptions() as (front, subs):
        one, two, peer = Watcher(), Watcher(), front.peers["a"]
        first = asyncio.create_task(subs.watch(front.view, "file:///a", one))
        await answer(peer, "resources/subscribe", "file:///a", b'{"x": 1.0}')
        assert await first == CallAnswer(b'{"x": 1.0}')
        assert await subs.watch(front.view, "file:///a", two) == CallAnswer(b"{}")
        params = b'{"uri": "file:///a","title":"\\u00e9","_meta":{"v": 1}}'
        peer.write(Notice(UPDATED, params))
        assert [await one.told.get(), await two.told.get()] == [params, params]
        assert await subs.unwatch(front.view, "file:///a", one) == CallAnswer(b"{}")
        last = asyncio.create_task(subs.unwatch(front.view, "file:///a", two))
        await answer(peer, "resources/unsubscribe", "file:///a", b'{"y":2}')
        assert await last == CallAnswer(b'{"y":2}')


@pytest.mark.promise("M21")
async def test_a_uri_that_two_servers_have_is_told_as_the_client_knows_it() -> None:
    async with opened_front(a=OFFER, b=OFFER) as front:
        subs, one = ResourceSubscriptions(front.calls), Watcher()
        asking = asyncio.create_task(subs.watch(front.view, "file://b//a", one))
        await answer(front.peers["b"], "resources/subscribe", "file:///a")
        assert await asking == CallAnswer(b"{}")
        front.peers["a"].write(Notice(UPDATED, b'{"uri":"file:///a"}'))
        front.peers["b"].write(Notice(UPDATED, b'{"uri":"file:///a/x","n": 1.0}'))
        assert await one.told.get() == b'{"uri":"file://b//a/x","n":1.0}'


async def test_a_refusal_of_the_server_is_what_the_client_gets() -> None:
    async with opened_subscriptions() as (front, subs):
        one = Watcher()
        first = asyncio.create_task(subs.watch(front.view, "file:///a", one))
        call = await front.peers["a"].call()
        front.peers["a"].write(Error(call.id, b'{"code":-32002,"message":"no","x":1}'))
        assert await first == CallAnswer(b'{"code":-32002,"message":"no","x":1}', -32002)
        assert await subs.unwatch(front.view, "file:///a", one) == CallAnswer(b"{}")
        await watched(front, subs, "file:///a", one)


async def test_what_nobody_has_cannot_be_watched() -> None:
    async with opened_subscriptions() as (front, subs):
        for ask in (subs.watch, subs.unwatch):
            with pytest.raises(ProtocolError, match="Unknown resource: gone:z") as refusal:
                await ask(front.view, "gone:z", Watcher())
            assert refusal.value.code == -32002
        assert front.peers["a"].quiet()


async def test_one_client_cannot_watch_without_end() -> None:
    async with opened_subscriptions() as (front, subs):
        greedy = Watcher()
        asking = [
            asyncio.create_task(subs.watch(front.view, f"note:{number}", greedy))
            for number in range(WATCHER_URIS_MAX)
        ]
        for _ in asking:
            call = await front.peers["b"].call()
            front.peers["b"].write(Result(call.id, b"{}"))
        await asyncio.gather(*asking)
        with pytest.raises(ProtocolError) as refusal:
            await subs.watch(front.view, "note:more", greedy)
        assert refusal.value.code == Code.OVERLOADED


@pytest.mark.promise("M23")
async def test_a_client_that_is_gone_is_forgotten_at_the_server_too() -> None:
    async with opened_subscriptions() as (front, subs):
        one, two = Watcher(), Watcher()
        await watched(front, subs, "file:///a", one, two)
        await watched(front, subs, "file:///b", one)
        subs.forget(one)
        await answer(front.peers["a"], "resources/unsubscribe", "file:///b")
        subs.forget(one)
        subs.forget(two)
        await answer(front.peers["a"], "resources/unsubscribe", "file:///a")


async def test_goodbyes_leave_room_for_calls() -> None:
    async with opened_subscriptions() as (front, subs):
        one, peer = Watcher(), front.peers["b"]
        uris = [f"note:{number}" for number in range(2 * UNATTENDED_MAX)]
        asking = [asyncio.create_task(subs.watch(front.view, uri, one)) for uri in uris]
        for _ in uris:
            peer.write(Result((await peer.call()).id, b"{}"))
        await asyncio.gather(*asking)
        subs.forget(one)
        first = [await peer.call() for _ in range(UNATTENDED_MAX)]
        marker = front.calls.ask("b", "x/marker", b"{}")
        assert (await peer.call()).method == "x/marker"
        for call in first:
            peer.write(Result(call.id, b"{}"))
        rest = [await peer.call() for _ in range(UNATTENDED_MAX)]
        assert {call.params for call in first + rest} == {
            b'{"uri":"%b"}' % u.encode() for u in uris
        }
        marker.cancel("enough")


@pytest.mark.promise("M23")
async def test_a_server_that_comes_back_is_told_what_is_watched() -> None:
    async with opened_subscriptions() as (front, subs):
        one = Watcher()
        await watched(front, subs, "file:///a", one)
        front.peers["a"].close()
        new = await front.attach("a", 2)
        await answer(new, "resources/subscribe", "file:///a")
        new.write(Notice(UPDATED, b'{"uri":"file:///a"}'))
        assert await one.told.get() == b'{"uri":"file:///a"}'


async def test_a_server_that_dies_while_it_is_asked_answers_everybody() -> None:
    async with opened_subscriptions() as (front, subs):
        asking = [
            asyncio.create_task(subs.watch(front.view, "file:///a", Watcher())) for _ in range(2)
        ]
        await front.peers["a"].call()
        front.peers["a"].close()
        answers = await asyncio.gather(*asking)
        assert [one.code for one in answers if one is not None] == [Code.SERVER_DOWN] * 2
        new = await front.attach("a", 2)
        late = front.calls.ask("a", "x/marker", b"{}")
        assert (await new.call()).method == "x/marker", "nobody watches, so nothing is asked"
        late.cancel("enough")


async def test_a_request_that_waited_for_the_new_process_is_not_made_twice() -> None:
    async with opened_subscriptions() as (front, subs):
        front.peers["a"].close()
        assert (await answer_of(front.calls.ask("a", "x/marker", b"{}"))).code == Code.SERVER_DOWN
        asking = asyncio.create_task(subs.watch(front.view, "file:///a", Watcher()))
        new = await front.attach("a", 2)
        await answer(new, "resources/subscribe", "file:///a", b'{"x":1}')
        assert await asking == CallAnswer(b'{"x":1}')
        marker = front.calls.ask("a", "x/marker", b"{}")
        assert (await new.call()).method == "x/marker"
        marker.cancel("enough")


async def test_a_client_that_goes_while_its_request_is_on_the_way_watches_nothing() -> None:
    async with opened_subscriptions() as (front, subs):
        gone, quit_ = Watcher(), Watcher()
        forgotten = asyncio.create_task(subs.watch(front.view, "file:///a", gone))
        cancelled = asyncio.create_task(subs.watch(front.view, "file:///a", quit_))
        call = await front.peers["a"].call()
        subs.forget(gone)
        assert await forgotten is None
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        front.peers["a"].write(Result(call.id, b"{}"))
        await answer(front.peers["a"], "resources/unsubscribe", "file:///a")


async def test_what_a_client_waited_for_that_is_gone_is_asked_of_no_later_process() -> None:
    async with opened_subscriptions() as (front, subs):
        front.peers["a"].close()
        assert (await answer_of(front.calls.ask("a", "x/marker", b"{}"))).code == Code.SERVER_DOWN
        gone, stays = Watcher(), Watcher()
        uris = {"file:///a": (gone,), "file:///b": (gone, stays)}
        asking = [
            asyncio.create_task(subs.watch(front.view, uri, one))
            for uri, clients in uris.items()
            for one in clients
        ]
        await until(lambda: front.calls.count_held_calls() == len(uris))
        subs.forget(gone)
        assert front.calls.count_held_calls() == 1
        new = await front.attach("a", 2)
        await answer(new, "resources/subscribe", "file:///b")
        assert await asyncio.gather(*asking) == [None, None, CallAnswer(b"{}")]
        marker = front.calls.ask("a", "x/marker", b"{}")
        assert (await new.call()).method == "x/marker"
        marker.cancel("enough")


async def test_the_end_of_a_subscription_at_a_server_that_is_away_is_nothing_to_wait_for() -> None:
    async with opened_subscriptions() as (front, subs):
        one = Watcher()
        await watched(front, subs, "file:///a", one)
        front.peers["a"].close()
        assert (await answer_of(front.calls.ask("a", "x/marker", b"{}"))).code == Code.SERVER_DOWN
        assert await subs.unwatch(front.view, "file:///a", one) == CallAnswer(b"{}")


async def test_an_update_loses_the_gateways_own_subscription_id_and_nothing_else() -> None:
    async with opened_subscriptions() as (front, subs):
        one = Watcher()
        await watched(front, subs, "file:///a", one)
        meta = b'{"io.modelcontextprotocol/subscriptionId":"7","v":1.0}'
        for broken in (b"[]", b'{"uri":7}', b'{"uri":"file:///a","_meta":[]}'):
            front.peers["a"].write(Notice(UPDATED, broken))
        front.peers["a"].write(Notice(UPDATED, b'{"_meta":%b,"uri":"file:///a/b"}' % meta))
        assert await one.told.get() == b'{"_meta":{"v":1.0},"uri":"file:///a/b"}'


@pytest.mark.promise("M79")
async def test_what_a_session_watched_elsewhere_it_watches_here() -> None:
    async with opened_subscriptions() as (front, subs):
        one = Watcher()
        subs.adopt(front.view, "file:///a", one)
        subs.adopt(front.view, "gone:z", one)
        await answer(front.peers["a"], "resources/subscribe", "file:///a")
        front.peers["a"].write(Notice(UPDATED, b'{"uri":"file:///a"}'))
        assert await one.told.get() == b'{"uri":"file:///a"}'


async def test_what_is_taken_over_while_its_server_is_away_is_asked_for_when_it_is_back() -> None:
    async with opened_subscriptions() as (front, subs):
        front.peers["a"].close()
        assert (await answer_of(front.calls.ask("a", "x/marker", b"{}"))).code == Code.SERVER_DOWN
        subs.adopt(front.view, "file:///a", Watcher())
        await answer(await front.attach("a", 2), "resources/subscribe", "file:///a")


@pytest.mark.promise("M82")
async def test_what_a_client_watched_before_it_got_a_process_of_its_own_it_watches_there() -> None:
    async with opened_subscriptions() as (front, subs):
        one, two = Watcher(), Watcher()
        two.who = ""  # of clients that do not say who they are the server itself serves all
        await watched(front, subs, "file:///a", one, two)
        divided = ServerState(server="a", state="ready", listed=True, by="client")
        front.calls.server_state(divided)
        own = await front.attach("a@someone", 1)
        await answer(own, "resources/subscribe", "file:///a")
        own.write(Notice(UPDATED, b'{"uri":"file:///a"}'))
        assert await one.told.get() == b'{"uri":"file:///a"}'
        front.peers["a"].write(Notice(UPDATED, b'{"uri":"file:///a","n":1}'))
        assert await two.told.get() == b'{"uri":"file:///a","n":1}'
        assert one.told.empty()
