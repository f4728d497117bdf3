"""Tasks over real pipes, with the workers played by the test."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.task_ids import CODE_BYTES, ID_BYTES_MAX, TaskOwner
from metamcp_worker.front_clients.tasks import BYTES_MAX, WATCHER_TASKS_MAX, Tasks
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import ClientNotice, Notice, QuestionFrame, Result
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Caller, Watcher, answer_of
from tests.worker.front.offers import LEGACY, MODERN, endpoint, offer
from tests.worker.front.peers import Peer

CORE = b'{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}'
EXTENSION = b'{"extensions":{"io.modelcontextprotocol/tasks":{}}}'


def tasked(protocol: str) -> ServerCatalogue:
    capabilities = Raw(EXTENSION if protocol == MODERN else CORE)
    return replace(offer("t", protocol=protocol), capabilities=capabilities)


def exposed(endpoint: str, server: str, task: str) -> str:
    """The id of a task of the user of this machine."""
    return TaskOwner(b"", endpoint, "local").expose_id(server, task)


def started(task: str, server: str = "old", endpoint: str = "default") -> bytes:
    """The result that says that a task was started."""
    return codec.dump({"task": {"taskId": exposed(endpoint, server, task)}})


@asynccontextmanager
async def opened_tasks(*servers: str) -> AsyncGenerator[tuple[Front, Tasks]]:
    """Modern ones, but for `old`."""
    offers = {one: tasked(LEGACY if one == "old" else MODERN) for one in servers}
    async with opened_front(endpoint(*servers), **offers) as front:
        yield front, Tasks(front.calls)


async def told(peer: Peer) -> list[str]:
    """The whole set of tasks that a worker is to watch."""
    frame = await peer.read()
    assert isinstance(frame, ClientNotice)
    assert frame.method == "metamcp/tasks"
    found: list[str] = codec.value(frame.body)["taskIds"]
    return found


@pytest.mark.promise("M24")
async def test_a_task_of_one_of_several_servers_is_found_again() -> None:
    async with opened_tasks("new", "other", "old") as (front, _):
        task = exposed("default", "new", "7")
        asked = request("tools/call", b'{"name":"new__t"}')
        answer = await front.answered("new", asked, b'{"resultType":"task","taskId":"7","x": 1.0}')
        assert answer == CallAnswer(b'{"resultType":"task","taskId":"%b","x":1.0}' % task.encode())
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            asked = request(method, b'{"taskId":"%b","inputResponses":{ }}' % task.encode())
            frame = await front.sent("new", asked)
            assert (frame.method, frame.params) == (method, b'{"taskId":"7","inputResponses":{ }}')
        answer = await front.answered("new", asked, b'{"code":-32602,"taskId":"7"}', -32602)
        assert answer.body == b'{"code":-32602,"taskId":"7"}'


@pytest.mark.promise("M24")
async def test_a_task_of_the_handshake_era_is_found_again() -> None:
    async with opened_tasks("new", "old") as (front, _):
        task = exposed("default", "old", "7").encode()
        asked = request("tools/call", b'{"name":"old__t","task":{"ttl": 9}}', modern=False)
        answer = await front.answered("old", asked, b'{"task":{"taskId":"7","status":"working"}}')
        assert answer == CallAnswer(b'{"task":{"taskId":"%b","status":"working"}}' % task)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            frame = await front.sent(
                "old", request(method, b'{"taskId":"%b"}' % task, modern=False)
            )
            assert frame.params == b'{"taskId":"7"}'
        listing = front.refusal(request("tasks/list", b"{}", modern=False))
        assert listing.code == Code.METHOD_NOT_FOUND


@pytest.mark.promise("M24")
async def test_what_a_server_asks_and_tells_of_a_task_names_it_as_the_client_knows_it() -> None:
    async with opened_tasks("new", "old") as (front, _):
        caller = Caller()
        asked = request("tools/call", b'{"name":"old__t"}', modern=False)
        call = front.calls.start(front.view, asked, caller)
        number = (await front.peers["old"].call()).id
        meta = b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"%b"}}}'
        front.peers["old"].write(QuestionFrame(number, 1, "roots/list", meta % b"7"))
        front.peers["old"].write(Result(number, b'{"content":[]}'))
        assert await answer_of(call) == CallAnswer(b'{"content":[]}')
        task = exposed("default", "old", "7")
        assert [one.params for one in caller.questions] == [meta % task.encode()]


@pytest.mark.promise("M24")
@pytest.mark.parametrize(("server", "modern"), [("new", True), ("old", False)])
async def test_a_task_of_the_only_server_has_an_id_for_its_owner_too(
    server: str, modern: bool
) -> None:
    async with opened_tasks(server) as (front, _):
        task = exposed("default", server, "7").encode()
        body = b'{"resultType":"task","taskId":"%b"}' if modern else b'{"task":{"taskId":"%b"}}'
        asked = request("tools/call", b'{"name":"%b__t"}' % server.encode(), modern=modern)
        assert await front.answered(server, asked, body % b"7") == CallAnswer(body % task)
        asked = request("tasks/get", b'{"taskId":"%b"}' % task, modern=modern)
        assert (await front.sent(server, asked)).params == b'{"taskId":"7"}'
        able = b'{"clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'
        asked = request("tasks/get", b'{"taskId":"7"}', modern=modern, caller=able)
        assert front.refusal(asked).message == "Unknown task: 7"


@pytest.mark.promise("M24")
@pytest.mark.parametrize(("server", "modern"), [("new", False), ("old", True)])
async def test_tasks_do_not_cross_the_eras(server: str, modern: bool) -> None:
    async with opened_tasks(server) as (front, _):
        asked = request("tasks/get", b'{"taskId":"7"}', modern=modern)
        assert front.refusal(asked).code == Code.METHOD_NOT_FOUND
    async with opened_tasks(server, "third") as (front, _):
        task = exposed("default", server, "7").encode()
        asked = request("tasks/get", b'{"taskId":"%b"}' % task, modern=modern)
        assert front.refusal(asked).code == Code.METHOD_NOT_FOUND
        name = b'{"name":"%b__t"}' % server.encode()
        body = b'{"resultType":"complete","taskId":"7"}'
        asked = request("tools/call", name, modern=modern)
        assert await front.answered(server, asked, body) == CallAnswer(body)


@pytest.mark.promise("M24")
async def test_a_task_that_nobody_knows_is_refused_as_a_server_with_tasks_would() -> None:
    able = b'{"clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'
    async with opened_tasks("new", "old") as (front, _):
        asked = request("tasks/get", b'{"taskId":"7"}', caller=able)
        assert front.refusal(asked).message == "Unknown task: 7"
        asked.caller = b'{"clientCapabilities":{}}'
        refusal = front.refusal(asked)
        assert refusal.code == Code.MISSING_CAPABILITY
        assert b"io.modelcontextprotocol/tasks" in refusal.data
        asked.modern = False
        assert front.refusal(asked).message == "Unknown task: 7"
    async with opened_front(a=offer("t"), b=tasked(LEGACY)) as front:
        asked = request("tasks/get", b'{"taskId":"7"}', caller=able)
        assert front.refusal(asked).code == Code.METHOD_NOT_FOUND


@pytest.mark.promise("M24")
async def test_a_server_is_told_what_is_watched_and_clients_how_it_goes_on() -> None:
    async with opened_tasks("new", "old") as (front, tasks):
        one, two, peer = Watcher(), Watcher(), front.peers["new"]
        first, second = exposed("default", "new", "1"), exposed("default", "new", "2")
        old = exposed("default", "old", "1")
        assert tasks.watch(front.view, (first, "none", old), one) == (first,)
        assert tasks.watch(front.view, (first, second), two) == (first, second)
        assert await told(peer) == ["1", "2"]
        meta = b'{"io.modelcontextprotocol/subscriptionId":"9","v":1.0}'
        peer.write(Notice("notifications/tasks", b'{"_meta":%b,"taskId":"1","n": 1.0}' % meta))
        expected = b'{"_meta":{"v":1.0},"taskId":"%b","n":1.0}' % first.encode()
        assert [await one.told.get(), await two.told.get()] == [expected, expected]
        tasks.forget(two)
        assert await told(peer) == ["1"]
        new = await front.attach("new", 2)
        assert await told(new) == ["1"]
        tasks.forget(one)
        tasks.forget(one)
        assert await told(new) == []


@pytest.mark.promise("M24")
async def test_a_client_of_the_handshake_era_is_told_of_its_own_tasks_until_they_are_over() -> None:
    async with opened_tasks("old") as (front, tasks):
        mine, other, peer = Watcher(), Watcher(), front.peers["old"]
        tasks.watch_new_task(front.view, started("7"), mine)
        tasks.watch_new_task(front.view, started("8"), other)
        tasks.watch_new_task(front.view, b'{"content":[]}', other)
        for status in (b"working", b"completed", b"working"):
            params = b'{"taskId":"7","status":"%b"}' % status
            peer.write(Notice("notifications/tasks/status", params))
        peer.write(Notice("notifications/tasks/status", b"[]"))
        peer.write(Notice("notifications/tasks/status", b'{"taskId":"8","x": 1}'))
        seven, eight = (exposed("default", "old", one).encode() for one in "78")
        assert await other.told.get() == b'{"taskId":"%b","x":1}' % eight
        assert [mine.told.get_nowait() for _ in range(mine.told.qsize())] == [
            b'{"taskId":"%b","status":"working"}' % seven,
            b'{"taskId":"%b","status":"completed"}' % seven,
        ]


async def test_of_tasks_that_are_over_and_of_clients_that_are_gone_nothing_is_kept() -> None:
    async with opened_tasks("old") as (front, tasks):
        mine, other = Watcher(), Watcher()
        for number in (7, 8):
            tasks.watch_new_task(front.view, started(str(number)), mine)
        assert not tasks.empty()
        over = b'{"taskId":"7","status":"completed"}'
        front.peers["old"].write(Notice("notifications/tasks/status", over))
        assert b'"completed"' in await mine.told.get()
        tasks.watch_new_task(front.view, started("8"), mine)  # the same once more
        tasks.forget(mine)
        assert tasks.empty()
        tasks.watch_new_task(front.view, started("9"), other)
        front.peers["old"].write(Notice("notifications/tasks/status", b'{"taskId":"9"}'))
        nine = exposed("default", "old", "9").encode()
        assert await other.told.get() == b'{"taskId":"%b"}' % nine


async def test_one_client_cannot_watch_without_end() -> None:
    async with opened_tasks("new") as (front, tasks):
        greedy, old = Watcher(), Watcher()
        ids = [exposed("default", "new", f"t{number}") for number in range(WATCHER_TASKS_MAX)]
        assert len(tasks.watch(front.view, ids, greedy)) == WATCHER_TASKS_MAX
        assert tasks.watch(front.view, ids[:1], greedy) == (ids[0],)
        with pytest.raises(ProtocolError) as refusal:
            tasks.watch(front.view, [exposed("default", "new", "more")], greedy)
        assert refusal.value.code == Code.OVERLOADED
        tasks.watch_new_task(front.view, started("7", "new"), old)


async def test_of_very_many_tasks_a_client_is_told_of_the_newest() -> None:
    async with opened_tasks("old") as (front, tasks):
        greedy = Watcher()
        for number in range(WATCHER_TASKS_MAX + 1):
            tasks.watch_new_task(front.view, started(str(number)), greedy)
        for number in (0, WATCHER_TASKS_MAX):
            params = b'{"taskId":"%d"}' % number
            front.peers["old"].write(Notice("notifications/tasks/status", params))
        newest = exposed("default", "old", str(WATCHER_TASKS_MAX)).encode()
        assert await greedy.told.get() == b'{"taskId":"%b"}' % newest


async def test_ids_that_are_no_ids_do_not_crowd_out_those_of_others() -> None:
    async with opened_tasks("new") as (front, tasks):
        greedy, modest = Watcher(), Watcher()
        y, seven = exposed("default", "new", "y"), exposed("default", "new", "7")
        overlong = exposed("default", "new", "x" * ID_BYTES_MAX)
        assert tasks.watch(front.view, (overlong, "y", y), greedy) == (y,)
        assert await told(front.peers["new"]) == ["y"]
        size = ID_BYTES_MAX * 3 // 4 - CODE_BYTES - len("new") - 2
        ids = [
            exposed("default", "new", f"{number:04}".ljust(size, "\0"))
            for number in range(WATCHER_TASKS_MAX)
        ]
        assert len(ids[0]) <= ID_BYTES_MAX
        greedies = [Watcher() for _ in range(BYTES_MAX // (6 * (size - 4) * len(ids)) + 1)]
        for one in greedies[:-1]:
            tasks.watch(front.view, ids, one)
        with pytest.raises(ProtocolError) as refusal:
            tasks.watch(front.view, ids, greedies[-1])
        assert refusal.value.code == Code.OVERLOADED
        for one in greedies:
            tasks.forget(one)
        assert tasks.watch(front.view, (seven,), modest) == (seven,)
        assert await told(front.peers["new"]) == ["y", "7"]


async def test_a_task_that_is_exposed_otherwise_meanwhile_is_watched_under_its_newer_id() -> None:
    places = endpoint("old", name="alone"), endpoint("old", "new", name="among")
    async with opened_front(*places, old=tasked(LEGACY), new=tasked(MODERN)) as front:
        tasks, client = Tasks(front.calls), Watcher()
        alone, among = front.calls.view("alone"), front.calls.view("among")
        assert alone is not None
        assert among is not None
        newer = exposed("among", "old", "7")
        for view in (alone, among):
            tasks.watch_new_task(view, started("7", endpoint=view.whole), client)
        tasks.on_task_status("old", b'{"taskId":"7","status":"completed"}')
        assert codec.value(client.told.get_nowait())["taskId"] == newer
        tasks.forget(client)
        tasks.on_task_status("old", b'{"taskId":"7","status":"working"}')
        assert client.told.empty()
