"""Streams of a server that end, break, refuse, say too much or stay open."""

import sys
from contextlib import AsyncExitStack

import pytest

from tests.fakes.http_server import Json, Server, Session, event, running, text_result
from tests.worker.child.far import Far, far
from tests.worker.rawhttp import until
from tests.worker.scripted import Request, Wire

pytestmark = pytest.mark.process

HURRY = b"retry: 100\n\n"
NEWS = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})


class Moody(Server):
    """Its GETs are answered with what `moods` says, in turn; then as usual. A status, the bytes of
    a stream that ends after them, or nothing: the connection is closed."""

    moods: tuple[int | bytes, ...] = ()

    async def get(self, wire: Wire, request: Request) -> bool:
        if not self.moods:
            return await super().get(wire, request)
        mood, *rest = self.moods
        self.moods = tuple(rest)
        if isinstance(mood, int):
            await wire.answer(b"", status=f"{mood} X")
            return True
        if mood:
            await wire.stream(mood)
        return False

    async def tool_later(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """The answer is there for whoever takes the stream up from e2."""
        self.calls.append("later")
        answer = {"jsonrpc": "2.0", "id": number, "result": text_result("at last")}
        self.resumed["e2"] = event(answer)
        await wire.stream(b"id: e1\n" + HURRY, b'id: e2\nretry: 100\ndata: {"no":"message"}\n\n')
        return False

    async def tool_open(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """The stream stays open after the answer."""
        answer = {"jsonrpc": "2.0", "id": number, "result": text_result("open")}
        await wire.stream(event(answer))
        await wire.closed()
        return False


def gets(server: Server) -> list[str | None]:
    """The last event ids of all GETs."""
    return [one.headers.get("last-event-id") for one in server.seen if "GET" in one.line]


async def news(there: Far) -> None:
    """Wait until the server has said something on its own."""
    await there.ear.until(lambda: any("method" in one for one, _, _ in there.ear.messages))


@pytest.mark.parametrize("mood", [500, 409, b"", b": hello\n\n"])
async def test_a_stream_that_is_refused_for_now_or_ends_at_once_is_asked_for_again(
    mood: int | bytes,
) -> None:
    async with running(kind=Moody, era="legacy") as (server, url), far(url) as there:
        assert isinstance(server, Moody)
        server.moods = (HURRY, mood, NEWS)
        await there.initialize()
        await news(there)
        assert len(gets(server)) >= 3
        assert there.ear.losses == []


async def test_a_stream_that_cannot_go_on_from_its_last_event_begins_anew() -> None:
    async with running(kind=Moody, era="legacy") as (server, url), far(url) as there:
        assert isinstance(server, Moody)
        server.moods = (b"id: g1\n" + HURRY, 400, NEWS)
        await there.initialize()
        await news(there)
        assert gets(server)[:3] == [None, "g1", None]


async def test_what_is_too_large_on_a_stream_is_passed_over_with_a_warning() -> None:
    async with (
        running(kind=Moody, era="legacy") as (server, url),
        far(url, message_bytes=1024 * 1024) as there,
    ):
        assert isinstance(server, Moody)
        huge = b"data: " + b"x" * 2_000_000
        server.moods = (b"id: g1\n" + HURRY + huge, NEWS)
        await there.initialize()
        await news(there)
        assert gets(server)[:2] == [None, None]
        (log,) = there.transport.take_log_lines()
        assert "passed over" in log.lines[0]
        assert await there.text(there.call("echo", text="hi")) == "hi"


async def test_a_server_that_is_gone_when_its_stream_ends_is_lost_without_any_call() -> None:
    async with AsyncExitStack() as life:
        server, url = await life.enter_async_context(running(era="legacy"))
        async with far(url) as there:
            await there.initialize()
            (session,) = server.sessions.values()
            await until(lambda: session.stream is not None)
            assert session.stream is not None
            await session.stream.write(HURRY)
            await life.aclose()
            await there.ear.until(lambda: there.ear.losses)
            assert there.ear.losses[0].reason == "exit"
            assert "not there any more" in there.ear.losses[0].message


@pytest.mark.parametrize("mood", [503, b"", b"id: e2\nretry: 100\ndata:\n\n"])
async def test_a_call_is_taken_up_again_and_again_until_its_answer(mood: int | bytes) -> None:
    quiet = running(kind=Moody, era="legacy", get=False)
    async with quiet as (server, url), far(url) as there:
        assert isinstance(server, Moody)
        await there.initialize()
        await until(lambda: gets(server) == [None])
        server.moods = (mood,)
        assert await there.text(there.call("later")) == "at last"
        assert gets(server)[1:] == ["e2", "e2"]
        assert server.calls == ["later"]
        (log,) = there.transport.take_log_lines()
        assert log.lines == ('{"no":"message"}',)


async def test_a_call_whose_stream_the_server_has_no_more_fails_and_may_have_run() -> None:
    quiet = running(kind=Moody, era="legacy", get=False)
    async with quiet as (server, url), far(url) as there:
        assert isinstance(server, Moody)
        await there.initialize()
        await until(lambda: gets(server) == [None])
        server.moods = (404,)
        found = await there.outcome(there.call("later"))
        assert found["failed"]["data"]["may_have_run"] is True
        assert there.ear.losses == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_answer_is_not_kept_while_its_stream_stays_open(era: str) -> None:
    async with running(kind=Moody, era=era) as (_, url), far(url) as there:
        if era == "legacy":
            await there.initialize()
        assert await there.text(there.call("open")) == "open"
        references = sys.getrefcount(there.ear.raw[-1])
        assert references <= 2, "the list of the test, and this question"
