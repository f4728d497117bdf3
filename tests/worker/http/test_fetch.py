"""The HTTP client: what it sends, what it bounds, and what it says when it fails."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

import httpx2
import pytest

from metamcp_worker.http import fetch
from metamcp_worker.http.fetch import ConnectionBroken, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc.errors import TooLarge
from tests.worker.scripted import Request, Wire, serving

ANSWER_S = 5.0


@contextlib.asynccontextmanager
async def origin(url: str, limits: FetchLimits | None = None) -> AsyncGenerator[Origin]:
    client = Origin(url, limits=limits)
    try:
        yield client
    finally:
        await client.close()


async def fetched(client: Origin, body: bytes = b"{}") -> bytes:
    async with await client.send("POST", {}, body, answer_s=ANSWER_S) as response:
        return await response.read(wait_s=ANSWER_S)


async def echo(wire: Wire) -> None:
    while request := await wire.request():
        await wire.answer(request.body, "Content-Type: Application/JSON; charset=utf-8")


async def test_a_request_says_what_it_was_told_and_the_body_comes_back() -> None:
    seen: list[Request] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            seen.append(request)
            await wire.answer(b"pong", "X-Blank:  a ")

    async with serving(script) as url:
        client = Origin(url + "?k=1", headers={"Authorization": "Bearer t"})
        headers: dict[str, str | bytes] = {"Mcp-Name": "n", "Last-Event-ID": b"\xc3\xa9"}
        async with await client.send("POST", headers, b"ping", answer_s=ANSWER_S) as response:
            assert (response.status, response.header("x-blank")) == (200, "a")
            assert response.header("absent") == ""
            assert await response.read(wait_s=ANSWER_S) == b"pong"
            assert await response.piece(wait_s=ANSWER_S) == b""
        async with await client.send("DELETE", {}, answer_s=ANSWER_S) as response:
            assert response.status == 200
        await client.close()
    assert [request.line for request in seen] == [
        "POST /mcp?k=1 HTTP/1.1",
        "DELETE /mcp?k=1 HTTP/1.1",
    ]
    assert seen[0].body == b"ping"
    assert seen[0].headers["authorization"] == "Bearer t"
    assert seen[0].headers["mcp-name"] == "n"
    assert seen[0].headers["last-event-id"] == "\xc3\xa9"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert "content-length" not in seen[1].headers


async def test_media_types_are_compared_without_case_and_parameters() -> None:
    async with serving(echo) as url, origin(url) as client:
        response = await client.send("POST", {}, b"{}", answer_s=ANSWER_S)
        assert response.media_type == "application/json"
        await response.close()


async def test_a_connection_is_used_again() -> None:
    connections: list[Wire] = []

    async def script(wire: Wire) -> None:
        connections.append(wire)
        await echo(wire)

    async with serving(script) as url, origin(url) as client:
        for _ in range(5):
            assert await fetched(client, b"x") == b"x"
    assert len(connections) == 1


async def test_many_requests_at_once_share_lanes_and_one_too_many_is_refused() -> None:
    count = 3 * fetch.LANE_REQUESTS_MAX
    async with serving(echo) as url, origin(url, FetchLimits(requests_max=count)) as client:
        sends = [client.send("POST", {}, b"x", answer_s=ANSWER_S) for _ in range(count)]
        responses = await asyncio.gather(*sends)
        with pytest.raises(Unreachable, match="96 requests to answer at once"):
            await client.send("POST", {}, b"x", answer_s=ANSWER_S)
        for response in responses:
            assert await response.read(wait_s=ANSWER_S) == b"x"
            await response.close()
        assert await fetched(client, b"y") == b"y"


async def test_a_stream_is_read_as_it_comes_and_closing_it_tells_the_server() -> None:
    told = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.stream(b"data: 1\n\n")
        await wire.closed()
        told.set()

    async with serving(script) as url, origin(url) as client:
        async with await client.send("GET", {}, answer_s=ANSWER_S) as response:
            assert response.media_type == "text/event-stream"
            assert await response.piece(wait_s=None) == b"data: 1\n\n"
        await told.wait()
        await response.close()


async def test_a_cancelled_request_closes_its_connection() -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        begun.set()
        await wire.closed()
        told.set()

    async with serving(script) as url, origin(url) as client:
        task = asyncio.create_task(client.send("POST", {}, b"{}", answer_s=ANSWER_S))
        await begun.wait()
        task.cancel()
        await told.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with origin(f"http://127.0.0.1:{sock.getsockname()[1]}/secret") as client:
            with pytest.raises(Unreachable, match=r"^http://127.0.0.1:\d+ cannot be reached: "):
                await client.send("POST", {}, b"{}", answer_s=ANSWER_S)


async def test_a_server_that_closes_without_an_answer_may_have_processed_the_request() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()

    async with serving(script) as url, origin(url) as client:
        with pytest.raises(ConnectionBroken, match="disconnected"):
            await client.send("POST", {}, b"{}", answer_s=ANSWER_S)


async def test_a_server_that_does_not_answer_in_time_may_have_processed_the_request() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.closed()

    async with serving(script) as url, origin(url) as client:
        with pytest.raises(ConnectionBroken, match=r"no answer in 0\.5 s"):
            await client.send("POST", {}, b"{}", answer_s=0.5)


async def test_an_answer_that_ends_too_early_or_falls_silent_is_broken() -> None:
    async def script(wire: Wire) -> None:
        request = await wire.request()
        await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123")
        if request and request.line.startswith("GET"):
            await wire.closed()

    async with serving(script) as url, origin(url) as client:
        async with await client.send("POST", {}, b"{}", answer_s=ANSWER_S) as response:
            with pytest.raises(ConnectionBroken, match="in the middle of an answer"):
                await response.read(wait_s=ANSWER_S)
        async with await client.send("GET", {}, answer_s=ANSWER_S) as response:
            with pytest.raises(ConnectionBroken, match=r"sent nothing for 0\.01 s"):
                await response.read(wait_s=0.01)


@pytest.mark.parametrize("head", [b"Content-Length: 9\r\n\r\n", b"\r\n"])
async def test_a_body_above_the_limit_is_refused_whether_announced_or_not(head: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.write(b"HTTP/1.1 200 OK\r\n" + head + b"123456789")

    async with serving(script) as url, origin(url) as client:
        response = await client.send("POST", {}, b"{}", answer_s=ANSWER_S)
        with pytest.raises(TooLarge):
            await response.read(wait_s=ANSWER_S, limit_bytes=8)
        await response.close()


@pytest.mark.parametrize(
    "head",
    [b"X: " + b"x" * 200_000, b"Content-Encoding: gzip", b"no header"],
    ids=["too large", "compressed", "no header"],
)
async def test_an_unfit_head_is_refused(head: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")

    async with serving(script) as url, origin(url) as client:
        with pytest.raises(ConnectionBroken):
            await fetched(client)


async def test_a_header_that_cannot_be_sent_is_not_and_its_value_is_not_told() -> None:
    async with serving(echo) as url, origin(url) as client:
        with pytest.raises(Unreachable, match="does not fit") as caught:
            await client.send("POST", {"X-Key": "secret\r\nX: y"}, b"{}", answer_s=ANSWER_S)
        assert "secret" not in str(caught.value)


async def test_redirects_within_the_origin_are_followed_with_the_same_body() -> None:
    lines: list[str] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            lines.append(request.line)
            if request.line.startswith("POST /mcp "):
                await wire.answer(b"", "Location: /mcp/", status="307 Temporary Redirect")
            else:
                await wire.answer(request.body)

    async with serving(script) as url, origin(url) as client:
        assert await fetched(client) == b"{}"
    assert lines == ["POST /mcp HTTP/1.1", "POST /mcp/ HTTP/1.1"]


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        ("http://elsewhere.test/mcp?k=1", r"on to http://elsewhere\.test, and another origin"),
        ("https://127.0.0.1/", "another origin"),
        ("/mcp", "in a circle"),
        ("/" + "x" * 70_000, "not a URL"),
    ],
)
async def test_a_redirect_that_leads_elsewhere_or_nowhere_is_not_followed(
    location: str, complaint: str
) -> None:
    async def script(wire: Wire) -> None:
        while await wire.request():
            await wire.answer(b"", f"Location: {location}", status="308 Permanent Redirect")

    async with serving(script) as url, origin(url) as client:
        with pytest.raises(Unreachable, match=complaint) as caught:
            await client.send("POST", {}, b"{}", answer_s=ANSWER_S)
        assert "k=1" not in str(caught.value)


def test_a_relative_url_stays_in_the_origin() -> None:
    client = Origin("http://a.test:8080/x/sse")
    assert client.join("messages?session=1") == "http://a.test:8080/x/messages?session=1"
    assert client.join("/m") == "http://a.test:8080/m"
    for other in ("http://a.test/m", "https://a.test:8080/m", "//b.test/m", "file:///etc"):
        with pytest.raises(Unreachable, match="another origin"):
            client.join(other)


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "http://", "//h/x", "http://u:p@h/x"])
def test_an_unfit_url_is_refused_without_telling_a_password(url: str) -> None:
    with pytest.raises(Unreachable) as caught:
        Origin(url)
    assert "p@" not in str(caught.value)


class Challenge(fetch.Auth):
    """Asks for a token on the first refusal, as authorizations do."""

    token = "none"

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        request.headers["Authorization"] = self.token
        response = yield request
        if response.status_code == 401:
            answer = yield httpx2.Request("GET", request.url.join("/token"))
            request.headers["Authorization"] = self.token = (await answer.aread()).decode()
            yield request


async def test_an_authorization_may_ask_on_the_way_and_the_request_is_sent_again() -> None:
    async def script(wire: Wire) -> None:
        while request := await wire.request():
            if request.line.startswith("GET /token"):
                await wire.answer(b"t1", "Set-Cookie: a=b")
            elif request.headers["authorization"] == "t1" and "cookie" not in request.headers:
                await wire.answer(request.body)
            else:
                await wire.answer(b"refused", status="401 Unauthorized")

    async with serving(script) as url:
        client = Origin(url, auth=Challenge())
        assert [await fetched(client), await fetched(client)] == [b"{}", b"{}"]
        await client.close()


async def test_what_an_authorization_reads_is_bounded() -> None:
    async def script(wire: Wire) -> None:
        while request := await wire.request():
            status = "200 OK" if request.line.startswith("GET /token") else "401 Unauthorized"
            await wire.answer(b"x" * (fetch.SIDE_BODY_BYTES_MAX + 1), status=status)

    async with serving(script) as url:
        client = Origin(url, auth=Challenge())
        with pytest.raises(ConnectionBroken, match="more than"):
            await client.send("POST", {}, b"{}", answer_s=ANSWER_S)
        await client.close()
