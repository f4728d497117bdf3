"""Handshakes with a legacy server that go wrong, and what is said in a session meanwhile."""

import json

import pytest

from metamcp_worker.child import jsonrpc_lines
from tests.fakes.http_server import Server, running
from tests.worker.child.far import can, far, met_server
from tests.worker.rawhttp import until
from tests.worker.scripted import Request, Wire

pytestmark = pytest.mark.process


class Odd(Server):
    """It does something else with these messages: a status, or a whole answer. `endless`: after
    that it leaves the connection open."""

    endless = False

    odd: dict[str, int | bytes] = {}  # noqa: RUF012 - each test sets its own

    async def post(self, wire: Wire, request: Request) -> bool:
        found = self.odd.get(json.loads(request.body).get("method", "answer"))
        if isinstance(found, int):
            await wire.answer(b"", status=f"{found} X")
            return True
        if found is not None:
            await wire.write(found)
            if self.endless:
                await wire.closed()
            return False
        return await super().post(wire, request)


def odd(server: Server, **methods: int | bytes) -> None:
    assert isinstance(server, Odd)
    server.odd = {name.replace("__", "/"): found for name, found in methods.items()}


async def test_a_session_id_that_fits_into_no_header_is_refused() -> None:
    async with running(kind=Odd, era="legacy") as (server, url), far(url) as there:
        body = b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nMcp-Session-Id: a b\r\n\r\n"
        odd(server, initialize=head % len(body) + body)
        found = await there.ask("initialize", own=True)
        assert "session id" in found["failed"]["message"]


async def test_a_refusal_that_nothing_heals_is_the_answer_to_the_handshake() -> None:
    async with running(kind=Odd, era="legacy") as (server, url), far(url) as there:
        odd(server, initialize=422)
        found = await there.ask("initialize", own=True)
        assert found["failed"]["data"]["status"] == 422
        assert there.ear.losses == []


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


UNKNOWN = rb'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1\\r\\nX: y"}}'


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (503, -32603, "HTTP 503"),
        (b"", -10001, ""),
        (whole(b"{}"), -32603, ""),
        (whole(b'{"jsonrpc":"2.0","id":1,"error":"no"}'), -32603, ""),
        (whole(b'{"jsonrpc":"2.0","id":1,"error":null}'), -32603, ""),
        (whole(b'{"jsonrpc":"2.0","id":1,"error":7}'), -32603, ""),
        (whole(UNKNOWN), -32603, "could be understood"),
    ],
    ids=["status", "closed", "no answer", "error text", "error null", "error number", "revision"],
)
async def test_a_further_session_that_cannot_be_opened_fails_the_call_and_is_tried_again(
    answer: int | bytes, code: int, words: str
) -> None:
    async with met_server(kind=Odd, era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        odd(server, initialize=answer)
        found = await there.outcome(there.call("echo", can("roots"), text="hi"))
        assert (found["failed"]["code"], words in found["failed"]["message"]) == (code, True)
        odd(server)
        assert await there.text(there.call("echo", can("roots"), text="hi")) == "hi"
        assert there.ear.losses == []


async def test_a_session_whose_settings_are_refused_is_used_all_the_same() -> None:
    async with met_server(kind=Odd, era="legacy") as (server, there):
        await there.ask("logging/setLevel", {"level": "debug"}, own=True)
        server.sessions.clear()
        odd(server, logging__setLevel=500)
        assert await there.text(there.call("echo", text="hi")) == "hi"
        (log,) = there.transport.take_log_lines()
        assert "could not be set up" in log.lines[0]


@pytest.mark.parametrize("answer", [400, b""])
async def test_a_notification_that_is_refused_or_lost_is_logged(answer: int | bytes) -> None:
    async with met_server(kind=Odd, era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        odd(server, notifications__x=answer)
        assert there.transport.write(jsonrpc_lines.notification("notifications/x"))
        logged: list[str] = []

        def warned() -> bool:
            logged.extend(line for log in there.transport.take_log_lines() for line in log.lines)
            return bool(logged)

        await until(warned)
        assert "answer to it" in logged[0]


async def test_an_answer_to_a_session_that_is_over_is_not_said_in_another() -> None:
    async with met_server(era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        server.sessions.clear()
        assert there.transport.write(jsonrpc_lines.answer(b'"q"', b"{}"))
        await until(lambda: b'"q"' in server.seen[-1].body)
        assert await there.text(there.call("echo", text="hi")) == "hi"
        (session,) = server.sessions.values()
        assert [one.get("method") for one in session.told] == [
            "notifications/initialized", "tools/call",
        ]  # fmt: skip
        assert not there.transport.write(jsonrpc_lines.answer(b'"q"', b"{}"), 7)


async def test_a_notification_is_answered_with_as_much_as_the_server_likes() -> None:
    async with met_server(kind=Odd, era="legacy") as (server, there):
        head = b"HTTP/1.1 202 Accepted\r\nContent-Length: 3000000\r\n\r\n"
        odd(server, notifications__x=head + b"x" * 3_000_000)
        assert there.transport.write(jsonrpc_lines.notification("notifications/x"))
        await until(lambda: b"notifications/x" in server.seen[-1].body)
        assert await there.text(there.call("echo", text="hi")) == "hi"
        assert there.transport.take_log_lines() == []


async def test_many_cancellations_at_once_reach_the_server() -> None:
    async with met_server(era="legacy") as (server, there):
        keys = [there.call("wait") for _ in range(300)]
        await until(lambda: len(server.calls) == 300)
        assert all(there.drop(key) for key in keys)
        await until(lambda: len(server.cancelled) == 300)
        assert sorted(server.cancelled) == sorted(int(key) for key in keys)
