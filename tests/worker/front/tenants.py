"""A front with two workspaces, whose clients and servers do what they are told, and what each of
them has heard."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, field

from metamcp_worker.access import api_key
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import (
    CallFrame,
    Cancel,
    ClientNotice,
    Frame,
    Notice,
    Progress,
    QuestionFrame,
    ReplyFrame,
    Result,
)
from metamcp_worker.ipc.key_table import KeyChanges, KeySpec
from metamcp_worker.ipc.messages import ServerState

from ..rawhttp import post, until
from .door import LEGACY, META, Door, bodiless, legacy, modern
from .offers import offer, resource, tool
from .peers import Peer
from .test_http_keys import PEPPER, STREAM, endpoint
from .test_http_keys import spec as key_spec

ENDPOINTS: Final = {"A": "dev", "B": "far"}
WORKSPACES: Final = {"A": "default", "B": "acme"}
OWN: Final = {"A": "w", "B": "acme:w"}
SHARED: Final = "s"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ABLE: dict[str, Any] = {**META, CAPABILITIES: {"elicitation": {"form": {}}}}
UPDATED = "notifications/resources/updated"
NONCE = re.compile(rb"nonce(\d{6})x")
NOBODY = "nobody"
REACH_S = 10.0
"""Maximum seconds until something is so; a longer wait means that it never will."""


class Wire(asyncio.Protocol):
    """Connection with one request. `data`: all bytes of its answer so far."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False
        self.transport: asyncio.Transport | None = None

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def status(self) -> int:
        return int(self.data[9:12])

    @property
    def done(self) -> bool:
        """Whether the answer is whole."""
        head, mark, body = self.data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length is not None:
            return bool(mark) and len(body) >= int(length[1])
        return self.closed or body.endswith(b"0\r\n\r\n") or head.startswith(b"HTTP/1.1 204")

    @property
    def answer(self) -> bytes:
        """Status and body: what a client can tell answers apart by."""
        return self.data[:12] + self.data.partition(b"\r\n\r\n")[2]

    @property
    def messages(self) -> list[Any]:
        """Whole messages that came, in a body or as events. Chunks of the front hold whole
        events."""
        body = self.data.partition(b"\r\n\r\n")[2]
        found = re.findall(rb"data: (\{.*\})\r?\n", body) if b"data: " in body else [body]
        return [codec.value(one) for one in found if one.startswith(b"{")]

    def outcomes(self, name: object) -> list[Any]:
        """Answers to the request with this id."""
        return [one for one in self.messages if one.get("id", self) == name and "method" not in one]


class Seat(Struct, eq=False):
    """Place of a client: a session or a stream of HTTP+SSE; the id of the next request. `news`: the
    stream of the session, `where`: the path to which messages are posted."""

    era: str
    session: str = ""
    news: Wire | None = None
    where: str = ""
    asked: int = 0


class Actor(Struct, eq=False):
    """Principal with one key. `name`: begins with the letter of its workspace; `looked`: how many
    bytes of each connection were looked at."""

    name: str
    key: str
    wires: list[Wire] = field(default_factory=list[Wire])
    seats: list[Seat] = field(default_factory=list[Seat])
    looked: dict[Wire, int] = field(default_factory=dict[Wire, int])

    @property
    def workspace(self) -> str:
        """Its letter."""
        return self.name[0]

    @property
    def bearer(self) -> str:
        return f"Authorization: Bearer {self.key}"

    @property
    def path(self) -> str:
        return f"/metamcp/{ENDPOINTS[self.workspace]}/mcp"


class Pending(Struct, eq=False):
    """Call that a server has. `question`: number of the one that is open, 0 for none; `asked_id`:
    its id for the client; `state`: of a call that is parked."""

    actor: Actor
    seat: Seat
    id: object
    wire: Wire
    server: str
    call: CallFrame
    params: dict[str, Any]
    token: bool
    question: int = 0
    asked_id: object = None
    state: str = ""


class World:
    """Front with two workspaces; the workers of three servers, one of them for both workspaces."""

    def __init__(self) -> None:
        self.door = Door(endpoints=(
            endpoint("dev", servers=(SHARED, "w")),
            endpoint("far", servers=(SHARED, "acme:w"), workspace="acme"),
        ))  # fmt: skip
        self.peers: dict[str, Peer] = {}
        self.actors: list[Actor] = []
        self.slots: dict[str, Actor] = {}
        self.watched: list[tuple[str, Actor, Wire]] = []
        self.over: list[tuple[Wire, object, int]] = []
        self.allowed: list[frozenset[str] | str] = []
        self.pending: list[Pending] = []
        self.running: dict[str, tuple[str, CallFrame]] = {}
        self.cancelled: set[tuple[str, int]] = set()
        self.replies: dict[int, bytes] = {}
        self.made = 0
        self.questions = 0

    @classmethod
    async def opened(cls) -> "World":
        world = cls()
        await world.open()
        return world

    async def open(self) -> None:
        await self.door.open()
        self.peers = {SHARED: self.door.peer, "w": Peer(), "acme:w": Peer()}
        for name, peer in self.peers.items():
            if name != SHARED:
                await self.door.calls.attach(name, 1, peer.fd)
            letter = "" if name == SHARED else "B" if name.startswith("acme") else "A"
            canary = self.nonce(letter)
            tools = ("t",) if name == SHARED else ("c", f"only{letter}")
            uri = "x:shared" if name == SHARED else "x:own"
            offered = offer(
                *(tool(one, description=canary) for one in tools), resources=[resource(uri)]
            )
            self.door.calls.catalogue(name, offered)
            ready = ServerState(server=name, state="ready", listed=True, generation=1)
            self.door.calls.server_state(ready)
        self.door.calls.refresh()
        for name in ("A1", "A2", "B1", "B2"):
            self.enter(name)

    async def close(self) -> None:
        wires = [wire for actor in self.actors for wire in actor.wires]
        for wire in wires:
            wire.abort()
        await self.reach(lambda: all(wire.closed for wire in wires))
        await self.door.close()
        for name in OWN.values():
            self.peers[name].close()

    def enter(self, slot: str) -> None:
        """Give the principal of this slot a new key."""
        self.made += 1
        key = api_key.make(bytes([self.made]) * api_key.RANDOM_BYTES)
        actor = self.slots[slot] = Actor(f"{slot}.{self.made}", key)
        actor.seats.append(Seat("modern"))
        self.actors.append(actor)
        spec: KeySpec = key_spec(key, workspace=WORKSPACES[actor.workspace])
        self.door.app.keys_changed(KeyChanges(pepper=PEPPER, put=(spec,)))

    def nonce(self, allowed: str | frozenset[str]) -> str:
        """Text that only these may hear: names of actors, or what their names begin with."""
        self.allowed.append(allowed)
        return f"nonce{len(self.allowed) - 1:06}x"

    def check(self) -> None:
        """Nobody has heard what is another's, and no request has more than one answer."""
        for actor in self.actors:
            for wire in actor.wires:
                looked = actor.looked.get(wire, 0)
                for found in NONCE.findall(wire.data, max(0, looked - 12)):
                    allowed = self.allowed[int(found)]
                    mine = (
                        actor.name.startswith(allowed)
                        if isinstance(allowed, str)
                        else actor.name in allowed
                    )
                    assert mine, (actor.name, allowed, found)
                actor.looked[wire] = len(wire.data)
        for call in self.pending:
            assert (call.server, call.call.id) not in self.cancelled
            assert call.state or not call.wire.outcomes(call.id), "no server has answered"
        for wire, name, most in self.over:
            assert len(wire.outcomes(name)) <= most

    # Wires and pipes

    async def send(self, actor: Actor, request: bytes) -> Wire:
        loop = asyncio.get_running_loop()
        transport, wire = await loop.create_connection(Wire, "127.0.0.1", self.door.port)
        wire.transport = transport
        actor.wires.append(wire)
        transport.write(request)
        return wire

    async def ask(self, actor: Actor, request: bytes) -> Wire:
        wire = await self.send(actor, request)
        await self.reach(lambda: wire.done)
        return wire

    async def reach(self, fact: Callable[[], bool]) -> None:
        """Let servers read, and the loop turn, until this is so."""

        def there() -> bool:
            for name, peer in self.peers.items():
                for frame in peer.taken():
                    self.reads(name, frame)
            return fact()

        async with asyncio.timeout(REACH_S):
            await until(there)

    def reads(self, server: str, frame: Frame) -> None:
        peer = self.peers[server]
        if isinstance(frame, Cancel):
            self.cancelled.add((server, frame.id))
        elif isinstance(frame, ReplyFrame):
            assert frame.question not in self.replies
            self.replies[frame.question] = frame.body
        elif isinstance(frame, CallFrame):
            if frame.method == "tools/call":
                (found,) = NONCE.findall(frame.params)
                self.running[f"nonce{found.decode()}x"] = server, frame
            else:
                peer.write(Result(frame.id, b"{}"))
        else:
            assert isinstance(frame, ClientNotice)

    # What clients do

    async def seat(self, actor: Actor, era: str) -> None:
        """Open a session, or a stream of HTTP+SSE, that wants to hear all log messages."""
        seat = Seat(era)
        hello: dict[str, Any] = {
            "protocolVersion": LEGACY if era == "legacy" else "2024-11-05",
            "capabilities": {"elicitation": {}}, "clientInfo": {"name": "c"},
        }  # fmt: skip
        if era == "legacy":
            request = legacy("initialize", hello, actor.bearer, id=0, path=actor.path)
            wire = await self.ask(actor, request)
            found = re.search(rb"(?i)mcp-session-id: (\S+)", wire.data)
            assert found, wire.data
            seat.session = found[1].decode()
            held = f"Mcp-Session-Id: {seat.session}"
            request = bodiless("GET", STREAM, held, actor.bearer, path=actor.path)
            seat.news = news = await self.send(actor, request)
            await self.reach(lambda: b"\r\n\r\n" in news.data)
        else:
            request = bodiless("GET", STREAM, actor.bearer, path=f"{actor.path[:-4]}/sse")
            seat.news = news = await self.send(actor, request)
            await self.reach(lambda: b"data: " in news.data)
            seat.where = news.data.partition(b"data: ")[2].split()[0].decode()
            await self.request(actor, seat, "initialize", hello)
        await self.request(actor, seat, "logging/setLevel", {"level": "debug"})
        actor.seats.append(seat)

    async def say(
        self,
        actor: Actor,
        seat: Seat,
        method: str,
        params: dict[str, Any],
        name: object,
        *,
        token: bool = False,
    ) -> Wire:
        """Send a request; the connection on which its answer comes."""
        meta = {"progressToken": name} if token else {}
        if seat.era == "modern":
            request = modern(
                method, params, actor.bearer, id=name, meta={**ABLE, **meta}, path=actor.path
            )
            return await self.send(actor, request)
        if meta:
            params = {**params, "_meta": meta}
        if seat.era == "legacy":
            request = legacy(
                method, params, actor.bearer, id=name, session=seat.session, path=actor.path
            )
            return await self.send(actor, request)
        request = legacy(method, params, "Accept: */*", actor.bearer, id=name, path=seat.where)
        assert (await self.ask(actor, request)).status == 202
        assert seat.news is not None
        return seat.news

    async def request(self, actor: Actor, seat: Seat, method: str, params: dict[str, Any]) -> Any:
        """The only answer to a request."""
        seat.asked += 1
        name = seat.asked
        wire = await self.say(actor, seat, method, params, name)
        await self.reach(lambda: bool(wire.outcomes(name)))
        self.over.append((wire, name, 1))
        return wire.outcomes(name)[0]

    async def call(self, actor: Actor, seat: Seat, tool: str, *, token: bool) -> None:
        seat.asked += 1
        text = self.nonce(actor.name)
        params = {"name": tool, "arguments": {"text": text}}
        wire = await self.say(actor, seat, "tools/call", params, seat.asked, token=token)
        await self.reach(lambda: text in self.running)
        server, call = self.running.pop(text)
        assert server == (SHARED if tool == "t" else OWN[actor.workspace])
        assert codec.value(call.params) == params
        self.pending.append(Pending(actor, seat, seat.asked, wire, server, call, params, token))

    async def answer(self, call: Pending) -> None:
        text = self.nonce(call.actor.name)
        self.pending.remove(call)
        body = {"content": [{"type": "text", "text": text}]}
        self.peers[call.server].write(Result(call.call.id, codec.dump(body)))
        await self.reach(lambda: bool(call.wire.outcomes(call.id)))
        (answer,) = call.wire.outcomes(call.id)
        assert answer["result"]["content"][0]["text"] == text
        self.over.append((call.wire, call.id, 1))

    async def cancel(self, call: Pending) -> None:
        """By a notification, or because its client is gone. Others have calls with this id."""
        self.pending.remove(call)
        if call.seat.era == "modern":
            call.wire.abort()
        else:
            params = {"requestId": call.id}
            await self.tell(call.actor, call.seat, "notifications/cancelled", params)
        await self.reach(lambda: (call.server, call.call.id) in self.cancelled)
        self.over.append((call.wire, call.id, 1))

    async def tell(self, actor: Actor, seat: Seat, method: str, params: dict[str, Any]) -> None:
        where = seat.where or actor.path
        request = legacy(method, params, actor.bearer, id=None, session=seat.session, path=where)
        assert (await self.ask(actor, request)).status == 202

    async def watch(self, actor: Actor, seat: Seat, server: str) -> None:
        uri = uri_of(server)
        if seat.era != "modern":
            found = await self.request(actor, seat, "resources/subscribe", {"uri": uri})
            assert "result" in found, found
            assert seat.news is not None
            self.watched.append((server, actor, seat.news))
            return
        seat.asked += 1
        wanted = {"notifications": {"resourceSubscriptions": [uri]}}
        wire = await self.say(actor, seat, "subscriptions/listen", wanted, seat.asked)
        await self.reach(lambda: b"subscriptions/acknowledged" in wire.data)
        self.watched.append((server, actor, wire))

    # What servers do

    async def update(self, server: str) -> None:
        """A resource changes; those hear of it who watch it."""
        watching = [(actor, wire) for name, actor, wire in self.watched if name == server]
        text = self.nonce(frozenset(actor.name for actor, _ in watching))
        about = {"uri": uri_of(server), "_meta": {"example.com/n": text}}
        self.peers[server].write(Notice(UPDATED, codec.dump(about)))
        await self.reach(lambda: all(text.encode() in wire.data for _, wire in watching))

    async def progress(self, call: Pending) -> None:
        text = self.nonce(call.actor.name)
        body = codec.dump({"progress": len(self.allowed), "message": text})
        self.peers[call.server].write(Progress(call.call.id, body))
        await self.reach(lambda: text.encode() in call.wire.data)

    async def log(self, server: str, call: Pending | None = None) -> None:
        """Log something in a call, or in none: then everybody in the workspace of the server hears
        it; nobody, if it has more than one."""
        if call is None:
            whose = {SHARED: NOBODY, "w": "A", "acme:w": "B"}[server]
        else:
            whose = call.actor.name
        text = self.nonce(whose)
        body = codec.dump({"level": "error", "data": text})
        self.peers[server].write(
            Notice("notifications/message", body, 0 if call is None else call.call.id)
        )
        hear = [
            seat.news
            for actor in self.slots.values()
            for seat in actor.seats
            if call is None and seat.news is not None and actor.name.startswith(whose)
        ]
        if call is not None and call.seat.era != "modern":
            hear = [call.wire]
        await self.reach(lambda: all(text.encode() in wire.data for wire in hear))

    async def question(self, call: Pending) -> None:
        self.questions += 1
        call.question = self.questions
        text = self.nonce(call.actor.name)
        form: dict[str, Any] = {
            "message": text,
            "requestedSchema": {"type": "object", "properties": {}},
        }
        self.peers[call.server].write(
            QuestionFrame(call.call.id, call.question, "elicitation/create", codec.dump(form))
        )
        if call.seat.era == "modern":
            await self.reach(lambda: bool(call.wire.outcomes(call.id)))
            (answer,) = call.wire.outcomes(call.id)
            self.over.append((call.wire, call.id, 1))
            call.state = answer["result"]["requestState"]
            (call.asked_id,) = answer["result"]["inputRequests"]
        else:
            await self.reach(lambda: text.encode() in call.wire.data)
            (asked,) = (one for one in call.wire.messages if text in str(one))
            call.asked_id = asked["id"]

    async def reply(self, call: Pending, thief: Actor) -> None:
        """Somebody else answers the question first; only the owner's answer counts."""
        await self.steal(call, thief)
        assert call.question not in self.replies
        text = self.nonce(NOBODY)
        accepted = {"action": "accept", "content": {"n": text}}
        actor, seat = call.actor, call.seat
        if seat.era == "modern":
            seat.asked += 1
            call.id = seat.asked
            params = {**call.params, **retried(call.asked_id, accepted, call.state)}
            call.wire = await self.say(actor, seat, "tools/call", params, call.id, token=call.token)
            call.state = ""
        else:
            wire = await self.ask(actor, answered(call.asked_id, accepted, actor, seat))
            assert wire.status == 202
        await self.reach(lambda: call.question in self.replies)
        assert codec.value(self.replies[call.question]) == accepted
        call.question = 0

    async def steal(self, call: Pending, thief: Actor) -> None:
        """What the thief gets is what it gets for a handle that does not exist."""
        stolen = {"action": "accept", "content": {"n": self.nonce(NOBODY)}}
        if call.seat.era == "modern":
            wires = [
                await self.say(
                    thief,
                    thief.seats[0],
                    "tools/call",
                    {**call.params, **retried(call.asked_id, stolen, state)},
                    "x",
                )
                for state in (call.state, near(call.state))
            ]
            await self.reach(lambda: all(wire.done for wire in wires))
            assert wires[0].answer == wires[1].answer
            return
        for seat in thief.seats[1:]:
            await self.ask(thief, answered(call.asked_id, stolen, thief, seat))
        await self.foreign(thief, call.seat, answered(call.asked_id, stolen, thief, call.seat))

    async def foreign(self, actor: Actor, seat: Seat, request: bytes) -> None:
        """A request with a handle of somebody else is answered like one with an unknown handle."""
        handle = (seat.session or seat.where.partition("session_id=")[2].partition("&")[0]).encode()
        assert handle in request
        unknown = request.replace(handle, near(handle.decode()).encode())
        wires = [await self.ask(actor, one) for one in (request, unknown)]
        assert wires[0].answer == wires[1].answer
        assert wires[0].status == 404

    async def revoke(self, slot: str) -> None:
        """Nothing of the key is left, and another one takes its place."""
        actor = self.slots[slot]
        gone = [call for call in self.pending if call.actor is actor]
        self.pending = [call for call in self.pending if call.actor is not actor]
        self.watched = [one for one in self.watched if one[1] is not actor]
        key_id = api_key.id_of(actor.key)
        self.door.app.keys_changed(KeyChanges(pepper=PEPPER, gone=(key_id,)))
        await self.reach(lambda: all(wire.done for wire in actor.wires))
        await self.reach(
            lambda: all((call.server, call.call.id) in self.cancelled for call in gone)
        )
        self.over += [(call.wire, call.id, 1) for call in gone]
        again = modern("tools/list", {}, actor.bearer, path=actor.path)
        assert (await self.ask(actor, again)).status in (401, 429)
        self.enter(slot)


def uri_of(server: str) -> str:
    """Of its only resource; two workspaces have the same one."""
    return "x:shared" if server == SHARED else "x:own"


def near(handle: str) -> str:
    """A handle of the same form that nobody has."""
    return f"{handle[:-1]}{'a' if handle[-1] != 'a' else 'b'}"


def retried(asked: object, answer: object, state: str) -> dict[str, Any]:
    return {"inputResponses": {asked: answer}, "requestState": state}


def answered(asked: object, answer: object, actor: Actor, seat: Seat) -> bytes:
    body = codec.dump({"jsonrpc": "2.0", "id": asked, "result": answer})
    held = [f"Mcp-Session-Id: {seat.session}"] if seat.session else []
    return post(body, actor.bearer, *held, path=seat.where or actor.path)
