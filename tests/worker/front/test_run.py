"""A front as a process: driven over its control socket, asked over HTTP."""

import resource

import pytest
from msgspec import structs

from metamcp_worker.front import run
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.disclosure import OrderOutcome
from metamcp_worker.ipc.embedding import Embedded, Vectors
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Result, ServerGone
from metamcp_worker.ipc.messages import (
    AttachFailed,
    AttachServer,
    DisclosureUpdate,
    Figures,
    ForgetServer,
    FrontReady,
    FrontStats,
    Heartbeat,
    OrderReply,
    OrderRequest,
    Reconfigure,
    ServeOn,
    ServerWanted,
    Stop,
    ToolStats,
)
from tests.waiting import until

from .offers import endpoint
from .process import front, spec

pytestmark = pytest.mark.process


@pytest.mark.promise("M79")
def test_the_first_request_to_a_front_finds_the_servers_that_were_there_already() -> None:
    with front() as one:
        one.serve()
        waiting = one.early("tools/call", name="git__status", arguments={"a": 1.0})
        one.offer("git", "status")
        worker = one.attach("git")
        one.listen()
        asked = worker.call()
        assert asked.params == b'{"name":"status","arguments":{"a":1.0}}'
        worker.write(Result(asked.id, b'{"content":[]}'))
        assert waiting.answer()["result"] == {"resultType": "complete", "content": []}
        one.heard(FrontReady)
        assert one.tools() == ["git__status"]


@pytest.mark.promise("M79")
def test_a_stopped_front_answers_what_it_has_and_leaves_the_listener_to_others() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        worker = one.attach("git")
        running = one.post("tools/call", name="git__status")
        asked = worker.call()
        one.send(Stop(grace_s=10.0))
        one.send(Stop(grace_s=10.0))
        worker.write(Result(asked.id, b'{"content":[]}'))
        assert running.answer()["result"]["content"] == []
        assert one.ended() == run.EXIT_STOPPED
        later = one.post("tools/list")
        with front() as two:
            two.listener.close()
            two.listener = one.listener.dup()
            two.serve()
            two.listen()
            assert later.answer()["result"]["tools"] == []


def test_a_front_ends_with_its_supervisor() -> None:
    with front() as one:
        one.serve()
        one.heard(FrontReady)
        one.sock.close()
        assert one.ended() == run.EXIT_SUPERVISOR_GONE


def test_a_front_ends_when_its_orders_cannot_be_read() -> None:
    with front() as one:
        one.send(ServeOn(front=0), [packets.blob(b"{}")])
        assert one.ended() == run.EXIT_FAILED


def test_beats_and_figures_tell_what_the_front_does() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        worker = one.attach("git")
        first, second = (one.post("tools/call", name="git__status") for _ in range(2))
        worker.write(Result(worker.call().id, b'{"isError":true}'))
        open_call = worker.call()
        beat = one.heard(Heartbeat)
        while not beat.inflight:
            beat = one.heard(Heartbeat)
        assert (beat.inflight, beat.queued) == (1, 0)
        figures = one.heard(FrontStats)
        assert figures.connections >= 1
        assert b"git" not in messages.pack(figures), "a thousand servers would not fit"
        counted = codec.decode_as(Figures, one.blob)
        assert counted.inflight == {"git": 1}
        (calls,) = counted.calls
        assert (calls.server, calls.method, calls.count) == ("git", "tools/call", 1)
        assert (calls.error_type, calls.version) == ("tool_error", "2026-07-28")
        assert counted.tools == (ToolStats("git", ("status",), (1,), (1,)),)
        worker.write(Result(open_call.id, b"{}"))
        worker.write(Result(open_call.id, b"{}"))
        assert "result" in first.answer()
        assert "result" in second.answer()
        one.send(Stop(grace_s=1.0))
        while not counted.late_replies:
            one.heard(FrontStats)
            counted = codec.decode_as(Figures, one.blob)
        assert counted.late_replies == {"git": 1}


@pytest.mark.promise("M75")
def test_a_dead_server_is_told_and_its_next_generation_takes_over() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        worker = one.attach("git")
        lost = one.post("tools/call", name="git__status")
        worker.call()
        worker.write(ServerGone(b'{"reason":"exit","message":"It ended with code 1."}'))
        error = lost.answer()["error"]
        assert (error["code"], error["data"]["may_have_run"]) == (Code.SERVER_DOWN, True)
        waiting = one.post("tools/call", name="git__status")
        again = one.attach("git", generation=2)
        again.write(Result(again.call().id, b"{}"))
        assert "result" in waiting.answer()


def test_a_call_to_an_idle_server_wants_it() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status", state="idle")
        waiting = one.post("tools/call", name="git__status")
        assert one.heard(ServerWanted).server == "git"
        worker = one.attach("git")
        worker.write(Result(worker.call().id, b"{}"))
        assert "result" in waiting.answer()


@pytest.mark.promise("M78")
def test_a_new_configuration_changes_names_and_servers_in_place() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        one.offer("time", "now")
        worker = one.attach("git")
        one.heard(FrontReady)
        assert one.tools() == ["git__status"]
        bare = endpoint("time", "git", style="bare")
        one.send(Reconfigure(), [spec(bare)])
        until(lambda: one.tools() == ["now", "status"], "the new names")
        one.send(ForgetServer(server="time"))
        until(lambda: one.tools() == ["status"], "the list without the forgotten server")
        running = one.post("tools/call", name="status")
        worker.write(Result(worker.call().id, b"{}"))
        assert "result" in running.answer()


@pytest.mark.promise("M98")
def test_what_cannot_be_read_changes_nothing() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        one.heard(FrontReady)
        packets.send(one.sock, b'{"type":"Unheard"}')
        one.send(Reconfigure(), [packets.blob(b"[]")])
        one.send(Reconfigure())
        one.send(ServeOn(front=0), [packets.blob(b"[]")])
        one.send(ServeOn(front=0), [spec(endpoint("time"))])
        one.send(AttachServer(server="last", generation=1))
        one.heard(AttachFailed)
        assert one.tools() == ["git__status"]


def test_a_pipe_that_cannot_be_opened_is_reported() -> None:
    with front() as one:
        one.serve()
        one.send(AttachServer(server="git", generation=3), [packets.blob(b"no pipe")])
        failed = one.heard(AttachFailed)
        assert (failed.what, failed.number) == ("git", 3)
        one.send(AttachServer(server="git", generation=4))
        failed = one.heard(AttachFailed)
        assert (failed.what, failed.number) == ("git", 4)


def test_a_front_without_free_descriptors_says_what_it_could_not_take() -> None:
    with front() as one:
        one.serve()
        one.heard(FrontReady)
        usual = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        one.attach("git", generation=5)
        failed = one.heard(AttachFailed)
        assert (failed.what, failed.number) == ("git", 5)
        one.offer("git", "status")
        assert one.heard(AttachFailed).what == "git"
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, usual)
        one.offer("git", "status")
        until(one.tools, "the tools of the server")


def test_without_a_free_descriptor_an_order_has_an_answer_and_the_front_lives_on() -> None:
    with front() as one:
        one.serve(structs.replace(endpoint("git"), exposure="toolset"))
        one.heard(FrontReady)
        asked = one.post("tools/call", name="unequip-toolset", arguments={})
        ticket = one.heard(OrderRequest).ticket
        usual = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        one.send(Embedded(ticket=7), [packets.blob(codec.dump(Vectors()))])
        one.send(OrderReply(ticket=ticket), [packets.blob(codec.dump(OrderOutcome()))])
        result = asked.answer()["result"]
        assert result["isError"]
        assert run.UNREAD in result["content"][0]["text"]
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, usual)
        assert "equip-toolset" in one.tools()


def test_a_front_that_cannot_read_what_is_in_view_ends_as_it_is_told_only_what_changes() -> None:
    with front() as one:
        one.serve()
        one.heard(FrontReady)
        one.send(DisclosureUpdate(number=1, whole=False), [packets.blob(b"[]")])
        assert one.ended() == run.EXIT_FAILED
