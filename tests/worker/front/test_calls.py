"""The path of a request: who may, who owns it, what it is called there, what comes back."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import Raw

from metamcp_worker import codec
from metamcp_worker.catalogue import ServerCatalogue
from metamcp_worker.errors import Code, Refused
from metamcp_worker.frames import Call as CallFrame
from metamcp_worker.frames import Error, Progress, Result
from metamcp_worker.front.calls import NAME_BYTES_MAX, NOT_FOUND_LEGACY, Answer, Calls, Request
from metamcp_worker.front.stats import Stats
from metamcp_worker.front.views import View
from metamcp_worker.messages import ServerState
from metamcp_worker.spec import EndpointSpec, FrontSpec

from .callers import Caller
from .offers import MODERN, endpoint, offer, prompt, resource, template
from .peers import WAIT_S, Peer


def request(
    method: str, params: bytes, *, meta: bytes = b"{}", caller: bytes = b"", modern: bool = True
) -> Request:
    return Request(method, codec.level(params), codec.level(meta), caller, modern)


class Front:
    """Calls over these servers, all of them attached to a peer."""

    def __init__(self, endpoints: tuple[EndpointSpec, ...]) -> None:
        self.stats = Stats()
        self.calls = Calls(self.stats, lambda server: None)
        self.calls.configure(FrontSpec(version="1", endpoints=endpoints, hosts=()))
        self.peers: dict[str, Peer] = {}

    async def add(self, server: str, catalogue: ServerCatalogue) -> None:
        self.calls.catalogue(server, catalogue)
        self.calls.server_state(ServerState(server=server, state="ready", listed=True))
        peer = self.peers[server] = Peer()
        await self.calls.attach(server, 1, peer.fd)
        self.calls.refresh()

    @property
    def view(self) -> View:
        view = self.calls.view("default")
        assert view is not None
        return view

    async def sent(self, server: str, asked: Request) -> CallFrame:
        """Start the request and see what `server` gets."""
        self.calls.start(self.view, asked, None)
        return await self.peers[server].call()

    async def answered(self, server: str, asked: Request, body: bytes, code: int = 0) -> Answer:
        """Start the request, let `server` answer, and see what comes back."""
        call = self.calls.start(self.view, asked, None)
        number = (await self.peers[server].call()).id
        self.peers[server].write(Error(number, body) if code else Result(number, body))
        return await call.answer

    def refusal(self, asked: Request) -> Refused:
        with pytest.raises(Refused) as refusal:
            self.calls.start(self.view, asked, None)
        return refusal.value

    async def close(self) -> None:
        await self.calls.close()
        for peer in self.peers.values():
            peer.close()


def with_front(
    test: Callable[[Front], Awaitable[None]], *endpoints: EndpointSpec, **offers: ServerCatalogue
) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            front = Front(endpoints or (endpoint(*offers),))
            for server, catalogue in offers.items():
                await front.add(server, catalogue)
            try:
                await test(front)
            finally:
                await front.close()

    asyncio.run(main())


@pytest.mark.promise("M22")
def test_arguments_reach_the_server_as_the_bytes_that_the_client_sent() -> None:
    async def talk(front: Front) -> None:
        arguments = b'{"b": 1.0, "a": [12345678901234567890123, "\\u00e9"],"b2":null}'
        params = b'{"x":[],"name":"a__t","arguments":' + arguments + b',"z":0}'
        meta, caller = b'{"trace":{"id": 1}}', b'{"clientInfo":{}}'
        frame = await front.sent("a", request("tools/call", params, meta=meta, caller=caller))
        assert frame.method == "tools/call"
        assert frame.params == params.replace(b'"a__t"', b'"t"')
        assert (frame.meta, frame.caller) == (meta, caller)
        assert not frame.wants_progress
        assert (await front.sent("a", request("tools/call", params))).meta == b""

    with_front(talk, a=offer("t"), b=offer("t"))


def test_tasks_are_offered_to_servers_only_where_a_client_can_come_back_for_them() -> None:
    capabilities = b'{"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{ }}}'
    caller = b'{"clientCapabilities":%b,"clientInfo":{ }}' % capabilities

    async def one(front: Front) -> None:
        asked = request("tools/call", b'{"name":"a__t"}', caller=caller)
        assert (await front.sent("a", asked)).caller == caller

    async def two(front: Front) -> None:
        asked = request("tools/call", b'{"name":"a__t"}', caller=caller)
        left = caller.replace(b'"io.modelcontextprotocol/tasks":{},', b"")
        assert (await front.sent("a", asked)).caller == left

    with_front(one, a=offer("t", protocol=MODERN))
    with_front(two, a=offer("t", protocol=MODERN), b=offer("t"))


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("method", "params", "server", "sent"),
    [
        ("tools/call", b'{"name":"b__t"}', "b", b'{"name":"t"}'),
        ("prompts/get", b'{"name":"b__p"}', "b", b'{"name":"p"}'),
        ("resources/read", b'{"uri":"r:a"}', "a", b'{"uri":"r:a"}'),
        ("resources/subscribe", b'{"uri":"r:a"}', "a", b'{"uri":"r:a"}'),
        ("resources/unsubscribe", b'{"uri":"t:x"}', "b", b'{"uri":"t:x"}'),
        (
            "completion/complete",
            b'{"ref":{"type":"ref/prompt","name":"a__p","title":1.0},"argument":{}}',
            "a",
            b'{"ref":{"type":"ref/prompt","name":"p","title":1.0},"argument":{}}',
        ),
        (
            "completion/complete",
            b'{"ref":{"type":"ref/resource","uri":"t:{x}"}}',
            "b",
            b'{"ref":{"type":"ref/resource","uri":"t:{x}"}}',
        ),
    ],
)
def test_every_method_finds_its_server_and_the_servers_own_name(
    method: str, params: bytes, server: str, sent: bytes
) -> None:
    async def talk(front: Front) -> None:
        frame = await front.sent(server, request(method, params))
        assert (frame.method, frame.params) == (method, sent)

    with_front(
        talk,
        a=offer("t", prompts=[prompt("p")], resources=[resource("r:a")]),
        b=offer("t", prompts=[prompt("p")], templates=[template("t:{x}")]),
    )


@pytest.mark.parametrize(
    ("method", "params", "code", "message"),
    [
        ("tools/call", b'{"name":"t"}', Code.INVALID_PARAMS, "Unknown tool: t"),
        ("tools/call", b"{}", Code.INVALID_PARAMS, "tools/call needs the tool"),
        ("tools/call", b'{"name":7}', Code.INVALID_PARAMS, "tools/call needs the tool"),
        ("tools/call", b'{"name":"%b"}' % (b"x" * 129), Code.INVALID_PARAMS, "No tool has a name"),
        ("prompts/get", b'{"name":"p"}', Code.INVALID_PARAMS, "Unknown prompt: p"),
        ("resources/read", b'{"uri":"r:"}', Code.INVALID_PARAMS, "Unknown resource: r:"),
        ("resources/read", b'{"uri":"%b"}' % (b"x" * 2049), Code.INVALID_PARAMS, "No resource has"),
        ("completion/complete", b'{"ref":[]}', Code.INVALID_PARAMS, "completion/complete needs"),
        ("tasks/list", b"{}", Code.METHOD_NOT_FOUND, "Unknown method: tasks/list"),
    ],
)
def test_what_nobody_owns_is_refused_here(
    method: str, params: bytes, code: int, message: str
) -> None:
    async def talk(front: Front) -> None:
        refusal = front.refusal(request(method, params))
        assert refusal.code == code
        assert refusal.message.startswith(message)
        assert len(refusal.message) < 2 * NAME_BYTES_MAX
        assert front.peers["a"].quiet()

    with_front(talk, a=offer("t"), b=offer("t"))


def test_a_missing_resource_has_the_code_of_the_clients_era() -> None:
    async def talk(front: Front) -> None:
        read = request("resources/read", b'{"uri":"r:"}', modern=False)
        assert front.refusal(read).code == NOT_FOUND_LEGACY

    with_front(talk, a=offer("t"), b=offer("t"))


@pytest.mark.promise("M21")
def test_unknown_methods_and_uris_go_to_the_only_server_of_an_endpoint() -> None:
    async def talk(front: Front) -> None:
        frame = await front.sent("a", request("x/custom", b'{"name":"t","n":1.0}'))
        assert (frame.method, frame.params) == ("x/custom", b'{"name":"t","n":1.0}')
        frame = await front.sent("a", request("resources/read", b'{"uri":"any:"}'))
        assert frame.params == b'{"uri":"any:"}'

    with_front(talk, a=offer("t"))


@pytest.mark.promise("M22")
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"content":[{"type":"hologram","x":1.0}],"structuredContent":[1],"z": null}', 0),
        (b'{"resultType":"input_required","requestState":"opaque"}', 0),
        (b'{"code":-31999,"message":"own","data":{"n":12345678901234567890},"more":1}', -31999),
    ],
)
def test_answers_of_a_modern_server_pass_as_they_are(modern: bool, body: bytes, code: int) -> None:
    async def talk(front: Front) -> None:
        asked = request("tools/call", b'{"name":"a__t"}', modern=modern)
        assert await front.answered("a", asked, body, code) == Answer(body, code)

    with_front(talk, a=offer("t", protocol=MODERN))


@pytest.mark.promise("M22")
@pytest.mark.parametrize(
    ("method", "modern", "body", "expected"),
    [
        ("tools/call", False, b'{"content":[]}', b'{"content":[]}'),
        ("tools/call", True, b'{"content":[]}', b'{"resultType":"complete","content":[]}'),
        ("tools/call", True, b"{}", b'{"resultType":"complete"}'),
        ("tools/call", True, b'{"resultType":"x"}', b'{"resultType":"x"}'),
        (
            "tools/call",
            True,
            b'{"content":["resultType"]}',
            b'{"resultType":"complete","content":["resultType"]}',
        ),
        ("tools/call", True, b'[{"isError":true}]', b'[{"isError":true}]'),
        ("tools/call", True, b'[{"resultType":1}]', b'[{"resultType":1}]'),
        (
            "resources/read",
            True,
            b'{"contents":[]}',
            b'{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}',
        ),
        (
            "resources/read",
            True,
            b'{"ttlMs":5}',
            b'{"resultType":"complete","cacheScope":"private","ttlMs":5}',
        ),
    ],
)
def test_answers_of_a_legacy_server_get_what_a_modern_client_needs(
    method: str, modern: bool, body: bytes, expected: bytes
) -> None:
    async def talk(front: Front) -> None:
        params = b'{"uri":"r:"}' if method == "resources/read" else b'{"name":"a__t"}'
        asked = request(method, params, modern=modern)
        assert await front.answered("a", asked, body) == Answer(expected)

    with_front(talk, a=offer("t", resources=[resource("r:")]))


@pytest.mark.promise("M23")
def test_a_legacy_not_found_gets_its_modern_code_for_modern_clients_only() -> None:
    async def talk(front: Front) -> None:
        body = b'{"code":-32002,"message":"gone","data":{"uri":"r:"}}'
        read = request("resources/read", b'{"uri":"r:"}', modern=True)
        answer = await front.answered("a", read, body, -32002)
        assert answer == Answer(body.replace(b"-32002", b"-32602"), Code.INVALID_PARAMS)
        read.modern = False
        assert await front.answered("a", read, body, -32002) == Answer(body, -32002)

    with_front(talk, a=offer(resources=[resource("r:")]))


@pytest.mark.promise("M23")
def test_progress_is_wanted_when_somebody_listens() -> None:
    async def talk(front: Front) -> None:
        caller = Caller()
        asked = request("tools/call", b'{"name":"a__t"}')
        asked.wants_progress = True
        call = front.calls.start(front.view, asked, caller)
        frame = await front.peers["a"].call()
        assert frame.wants_progress
        front.peers["a"].write(Progress(frame.id, b'{"progress":0.5}'))
        front.peers["a"].write(Result(frame.id, b"{}"))
        await call.answer
        assert caller.progress == [b'{"progress":0.5}']

    with_front(talk, a=offer("t"))


@pytest.mark.promise("M85")
def test_each_call_is_counted_with_how_it_ended() -> None:
    async def talk(front: Front) -> None:
        asked = request("tools/call", b'{"name":"a__t"}')
        for body in (
            b'{"isError": true}',
            b'{"isError":false,"content":[{"isError":true}]}',
            b'{"content":[{"text":"isError"}]}',
        ):
            await front.answered("a", asked, body)
        await front.answered("a", asked, b'{"code":-32603}', -32603)
        await front.answered("a", request("x/custom", b"{}"), b'{"isError":true}')
        front.calls.start(front.view, asked, None).cancel("enough")
        figures = {one.method: one for one in front.stats.calls()}
        assert {method: one.count for method, one in figures.items()} == {
            "tools/call": 5,
            "_OTHER": 1,
        }
        assert figures["tools/call"].errors == {"tool_error": 1, "-32603": 1, "cancelled": 1}
        assert figures["_OTHER"].errors == {}
        assert sum(figures["tools/call"].buckets) == 5

    with_front(talk, a=offer("t"))


@pytest.mark.promise("M61")
def test_a_disabled_tool_cannot_be_called() -> None:
    async def talk(front: Front) -> None:
        assert front.refusal(request("tools/call", b'{"name":"t"}')).message == "Unknown tool: t"

    with_front(talk, endpoint("a", style="bare", disabled=(("a", "t"),)), a=offer("t", "u"))


def test_the_gate_is_asked_before_anything_is_routed() -> None:
    async def talk(front: Front) -> None:
        view = front.view
        view.principal = "somebody"
        for method in ("tools/call", "x/custom"):
            with pytest.raises(Refused, match="somebody may not send"):
                front.calls.start(view, request(method, b'{"name":"none"}'), None)

    with_front(talk, a=offer("t"))


@pytest.mark.promise("M28")
def test_list_changes_are_told_after_the_view_is_the_new_one() -> None:
    async def talk(front: Front) -> None:
        told: list[tuple[str, frozenset[str], bytes]] = []

        def listen(name: str, kinds: frozenset[str]) -> None:
            told.append((name, kinds, front.view.page("tools/list", {}, modern=False)))

        front.calls.lists_changed = listen
        front.calls.refresh()
        front.calls.forget("b")
        front.calls.refresh()
        front.calls.refresh()
        ((name, kinds, page),) = told
        assert (name, kinds) == ("default", frozenset({"tools"}))
        assert b"a__t" in page
        assert b"b__t" not in page

    with_front(talk, a=offer("t"), b=offer("t"))


def test_a_request_is_left_as_the_client_made_it() -> None:
    async def talk(front: Front) -> None:
        asked = request("tools/call", b'{"name":"a__t"}')
        await front.sent("a", asked)
        assert asked.params == {"name": Raw(b'"a__t"')}

    with_front(talk, a=offer("t"))
