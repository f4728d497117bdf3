"""The address to which the browser comes back."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from metamcp_worker.oauth.callback import HEAD_BYTES_MAX, Callback, CallbackAnswer
from tests.worker.rawhttp import Client, Reply

pytestmark = pytest.mark.process

STATE = "the-right-state"


async def get(callback: Callback, target: str, host: str = "", method: str = "GET") -> Reply:
    netloc = urlsplit(callback.url).netloc
    client = await Client.connect(int(netloc.rpartition(":")[2]))
    try:
        return await client.ask(
            f"{method} {target} HTTP/1.1\r\nHost: {host or netloc}\r\n\r\n".encode()
        )
    finally:
        await client.close()


async def test_the_answer_with_the_right_state_is_taken() -> None:
    callback = Callback(0)
    waiting = asyncio.ensure_future(callback.answer(STATE, wait_s=10))
    page = await get(callback, f"/callback?code=abc&state={STATE}&iss=https%3A%2F%2Fas")
    assert page.status == 200
    assert b"You can close this page" in page.body
    assert page.headers["cache-control"] == "no-store"
    assert await waiting == CallbackAnswer("abc", "https://as")
    callback.close()


async def test_anything_else_is_refused_and_the_wait_goes_on() -> None:
    callback = Callback(0)
    waiting = asyncio.ensure_future(callback.answer(STATE, wait_s=10))
    good = f"/callback?code=abc&state={STATE}"
    for target, host, method, status in (
        ("/callback?code=evil", "", "GET", 400),
        ("/callback?code=evil&state=", "", "GET", 400),
        ("/callback?code=evil&state=wrong", "", "GET", 400),
        (f"/callback?code=evil&state=x&state={STATE}", "", "GET", 400),
        ("/favicon.ico", "", "GET", 404),
        (good, "evil.example", "GET", 404),
        (good, "", "POST", 404),
    ):
        page = await get(callback, target, host, method)
        assert page.status == status, target
        assert b"evil" not in page.body
    assert not waiting.done()
    assert (await get(callback, good)).status == 200
    assert await waiting == CallbackAnswer("abc")
    callback.close()


async def test_a_refusal_of_the_person_comes_back_too() -> None:
    callback = Callback(0)
    waiting = asyncio.ensure_future(callback.answer(STATE, wait_s=10))
    await get(callback, f"/callback?error=access_denied&state={STATE}")
    assert await waiting == CallbackAnswer("", None, "access_denied")
    callback.close()


async def test_nobody_comes_and_the_wait_ends() -> None:
    callback = Callback(0)
    assert await callback.answer(STATE, wait_s=0.01) is None
    callback.close()


async def test_connections_that_say_nothing_or_too_much_delay_nothing() -> None:
    callback = Callback(0)
    port = int(callback.url.rpartition(":")[2].partition("/")[0])
    waiting = asyncio.ensure_future(callback.answer(STATE, wait_s=10))
    silent = [await Client.connect(port) for _ in range(3)]
    silent[0].send(b"x" * (HEAD_BYTES_MAX + 1))
    assert await silent[0].closed() == b""
    assert (await get(callback, f"/callback?code=abc&state={STATE}")).status == 200
    assert await waiting == CallbackAnswer("abc")
    for one in silent:
        await one.close()
    callback.close()


async def test_another_port_is_taken_if_the_usual_one_is_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        callback = Callback(taken)
        assert f":{taken}/" not in callback.url
        assert callback.url.startswith("http://127.0.0.1:")
        callback.close()


def test_the_code_is_not_shown() -> None:
    assert "abc" not in repr(CallbackAnswer("abc"))
