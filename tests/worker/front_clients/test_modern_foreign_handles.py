"""Every method with every handle of somebody else, over every transport, with every kind of
credential: about three thousand requests, and none of them is answered as its owner would be."""

import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metamcp_worker.access import api_key, gate
from metamcp_worker.access.door import FAILURES_MAX
from metamcp_worker.catalog.views import PAGE_ITEMS_MAX
from metamcp_worker.front_clients.modern import KEPT_PARAMS_BYTES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Result
from metamcp_worker.ipc.key_table import KeyChanges
from tests.worker.front.door import MODERN, Door, bodiless, legacy, modern, opened_door
from tests.worker.front.offers import offer
from tests.worker.front.test_http_keys import (
    FAR,
    FOREIGN,
    HERE,
    KEY,
    OTHER,
    PEPPER,
    STREAM,
    endpoint,
    spec,
)

from ..rawhttp import Client, Reply, post

REVOKED = api_key.make(bytes(range(5, 45)))
#: Kinds of credentials at the endpoint `dev`, and what a request with each of them gets.
CREDENTIALS = {
    "own": f"Authorization: Bearer {KEY}",
    "other principal": f"X-API-Key: {OTHER}",
    "other workspace": f"Authorization: Bearer {FOREIGN}",
    "revoked": f"Authorization: Bearer {REVOKED}",
    "garbage": f"Authorization: Bearer {KEY[:-1]}",
    "none": "X-Nothing: here",
}
STATUS = {"other workspace": 404, "revoked": 401, "garbage": 401, "none": 401}
CANARY = "canary-of-the-owner"
NEAR = "/metamcp/near/mcp"
PARAMS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "t"},
    "prompts/get": {"name": "p"},
    "resources/read": {"uri": "file:///x"},
    "resources/subscribe": {"uri": "file:///x"},
    "resources/unsubscribe": {"uri": "file:///x"},
    "tasks/get": {"taskId": "x"},
    "tasks/result": {"taskId": "x"},
    "tasks/update": {"taskId": "x"},
    "tasks/cancel": {"taskId": "x"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {}},
    "subscriptions/listen": {"notifications": {}},
    "logging/setLevel": {"level": "error"},
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}},
}
METHODS = sorted(method for method in gate.TABLE if method)


def handles(session: str) -> dict[str, str]:
    """The session of the owner, and ids that look like it."""
    last = "a" if session[-1] != "a" else "b"
    return {
        "owner's": session, "neighbour": f"{session[:-1]}{last}", "short": session[:-1],
        "garbage": "x", "none": "",
    }  # fmt: skip


def requests(session: str, header: str) -> Iterator[tuple[str, str, bytes]]:
    """Method, transport and bytes of each request with this handle and credential."""
    for method in METHODS:
        params = PARAMS.get(method, {})
        yield method, "modern", modern(method, params, header, path=HERE)
        yield method, "legacy", legacy(method, params, header, session=session, path=HERE)
        where = f"/metamcp/dev/messages?session_id={session or 'x'}"
        yield method, "sse", legacy(method, params, header, path=where)
    held = [f"Mcp-Session-Id: {session}"] if session else []
    yield "GET", "legacy", bodiless("GET", STREAM, header, *held, path=HERE)
    yield "DELETE", "legacy", bodiless("DELETE", header, *held, path=HERE)
    yield "GET", "rest", bodiless("GET", header, path="/metamcp/dev/api")
    yield "POST", "rest", post(b"{}", header, path="/metamcp/dev/api/t")


async def opened(door: Door) -> str:
    """A session of the owner."""
    reply = await door.ask(
        legacy("initialize", PARAMS["initialize"], CREDENTIALS["own"], path=HERE)
    )
    return reply.headers["mcp-session-id"]


@pytest.mark.parametrize("kind", [kind for kind in CREDENTIALS if kind in STATUS])
async def test_without_a_valid_credential_of_the_workspace_every_request_gets_the_same(
    kind: str,
) -> None:
    async with keyed_door() as door:
        session = await opened(door)
        client, asked, seen = await door.connect(), 0, set[tuple[int, bytes]]()
        for handle in handles(session).values():
            for _, transport, request in requests(handle, CREDENTIALS[kind]):
                if asked % FAILURES_MAX == 0:  # none of them is to get 429
                    client = await door.connect(f"127.0.1.{asked // FAILURES_MAX + 1}")
                reply = await client.ask(request)
                assert reply.status == STATUS[kind], (transport, reply)
                seen.add((reply.status, b"REST" if transport == "rest" else reply.body))
                asked += 1
        assert asked > 350
        assert len(seen) <= 2  # one for MCP, one in the form of REST
        assert door.peer.quiet()
        assert (await owner_goes_on(door, session)).status == 200


async def test_another_principal_gets_for_a_foreign_session_what_an_unknown_one_gets() -> None:
    async with keyed_door() as door:
        session = await opened(door)
        for method in METHODS:
            replies: dict[str, Reply] = {}
            for name, handle in handles(session).items():
                if not handle or method == "initialize":
                    continue
                request = legacy(
                    method, PARAMS.get(method, {}), CREDENTIALS["other principal"],
                    session=handle, path=HERE,
                )  # fmt: skip
                replies[name] = await door.ask(request)
            assert len({(one.status, one.body) for one in replies.values()}) <= 1, method
            assert all(one.status == 404 for one in replies.values())
        for verb in ("GET", "DELETE"):
            found = [
                await door.ask(
                    bodiless(
                        verb,
                        STREAM,
                        f"Mcp-Session-Id: {handle}",
                        CREDENTIALS["other principal"],
                        path=HERE,
                    )
                )
                for handle in handles(session).values()
                if handle
            ]
            assert {one.status for one in found} == {404}
            assert len({one.body for one in found}) == 1
        assert door.peer.quiet()
        assert (await owner_goes_on(door, session)).status == 200


async def test_answers_reach_the_caller_alone_whatever_ids_callers_choose() -> None:
    """Three principals call with the same ids at the same time."""
    async with keyed_door() as door:
        headers = [CREDENTIALS["own"], CREDENTIALS["other principal"]]
        clients: list[tuple[Client, str]] = []
        for number, (header, path) in enumerate(
            itertools.chain(
                ((header, HERE) for header in headers for _ in range(20)),
                ((CREDENTIALS["other workspace"], FAR) for _ in range(20)),
            )
        ):
            client, text = await door.connect(), f"{CANARY}-{number}"
            arguments = {"name": "t", "arguments": {"text": text}}
            client.send(modern("tools/call", arguments, header, path=path, id=1))
            clients.append((client, text))
        calls: list[CallFrame] = [await door.peer.call() for _ in clients]
        for call in reversed(calls):
            door.peer.write(Result(call.id, b'{"content":[],"said":%b}' % bytes(call.params)))
        for client, text in clients:
            reply = await client.reply()
            assert reply.json["id"] == 1
            assert reply.json["result"]["said"]["arguments"]["text"] == text


@pytest.mark.promise("M60")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_cursor_of_another_list_is_an_unknown_cursor(era: str) -> None:
    async with keyed_door() as door:
        door.offer(offer(*(f"t{number}" for number in range(PAGE_ITEMS_MAX + 1))))

        async def page(header: str, path: str, cursor: str = "") -> Reply:
            params = {"cursor": cursor} if cursor else {}
            if era == "modern":
                return await door.ask(modern("tools/list", params, header, path=path))
            hello = legacy("initialize", PARAMS["initialize"], header, path=path)
            session = (await door.ask(hello)).headers["mcp-session-id"]
            return await door.ask(legacy("tools/list", params, header, session=session, path=path))

        cursor = (await page(CREDENTIALS["own"], HERE)).json["result"]["nextCursor"]
        for header, path in ((CREDENTIALS["own"], NEAR), (CREDENTIALS["other workspace"], FAR)):
            replies = [await page(header, path, one) for one in (cursor, f"x{cursor[1:]}", "x")]
            assert len({(one.status, one.body) for one in replies}) == 1
            assert replies[0].json["error"]["code"] == Code.INVALID_PARAMS
        rest = (await page(CREDENTIALS["own"], HERE, cursor)).json["result"]
        assert [one["name"] for one in rest["tools"]] == [f"t{PAGE_ITEMS_MAX}"]


ASKED = b'{"resultType":"input_required","requestState":"for the owner"}'
CALL: dict[str, Any] = {"name": "t", "arguments": {"text": CANARY, "pad": ""}}
#: What a thief sends with the state of the owner: its credential, path, parameters.
THIEVES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "other principal": (CREDENTIALS["other principal"], HERE, CALL),
    "other endpoint": (CREDENTIALS["own"], NEAR, CALL),
    "other workspace": (CREDENTIALS["other workspace"], FAR, CALL),
    "other arguments": (CREDENTIALS["own"], HERE, {**CALL, "arguments": {"text": "else"}}),
    "other tool": (CREDENTIALS["own"], HERE, {**CALL, "name": "u"}),
}


def brought(params: dict[str, Any], state: str, header: str, path: str = HERE) -> bytes:
    """A request that brings a state back, with an answer."""
    params = {**params, "requestState": state, "inputResponses": {"k": {"action": "accept"}}}
    return modern("tools/call", params, header, path=path)


@pytest.mark.promise("M60")
@pytest.mark.parametrize("pad", ["", "x" * KEPT_PARAMS_BYTES_MAX], ids=["small", "large"])
async def test_the_state_of_a_server_is_of_use_to_its_client_for_its_call_alone(pad: str) -> None:
    async with keyed_door() as door:
        door.offer(offer("t", "u", protocol=MODERN))
        call = {**CALL, "arguments": {"text": CANARY, "pad": pad}}
        client = await door.connect()
        client.send(modern("tools/call", call, CREDENTIALS["own"], path=HERE))
        door.peer.write(Result((await door.peer.call()).id, ASKED))
        state = (await client.reply()).json["result"]["requestState"]
        for header, path, params in THIEVES.values():
            answers = [
                await door.ask(brought(params, one, header, path))
                for one in (state, f"x{state[1:]}", "for the owner", "")
            ]
            assert len({(one.status, one.body) for one in answers}) == 1
            assert answers[0].outcome == (400, Code.INVALID_PARAMS)
        assert door.peer.quiet()
        client.send(brought(call, state, CREDENTIALS["own"]))
        frame = await door.peer.call()
        assert codec.value(frame.params)["requestState"] == "for the owner"
        door.peer.write(Result(frame.id, b'{"resultType":"complete","content":[]}'))
        assert (await client.reply()).status == 200


async def owner_goes_on(door: Door, session: str) -> Reply:
    return await door.ask(
        legacy("tools/list", None, CREDENTIALS["own"], session=session, path=HERE)
    )


@asynccontextmanager
async def keyed_door() -> AsyncGenerator[Door]:
    endpoints = endpoint("dev"), endpoint("near"), endpoint("far", workspace="acme")
    async with opened_door(*endpoints) as door:
        keys = (spec(KEY), spec(OTHER), spec(FOREIGN, workspace="acme"), spec(REVOKED))
        door.app.keys_changed(KeyChanges(pepper=PEPPER, whole=True, put=keys))
        gone = (api_key.id_of(REVOKED),)
        door.app.keys_changed(KeyChanges(pepper=PEPPER, gone=gone))
        yield door
