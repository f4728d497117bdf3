"""The path of a request: who may, who owns it, what it is called there, what comes back."""

import asyncio

import pytest
from msgspec import Raw, structs

from metamcp_worker.front_calls import front_recovery
from metamcp_worker.front_calls.front_views import Changed
from metamcp_worker.front_calls.request_facts import NAME_BYTES_MAX, CallAnswer
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Notice, Progress, Result
from metamcp_worker.ipc.jsonrpc_bytes import NOT_FOUND_LEGACY
from metamcp_worker.ipc.messages import ToolStats
from tests.worker.front.called import opened_front, request
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.offers import LEGACY, MODERN, endpoint, offer, prompt, resource, template


@pytest.mark.promise("M22")
async def test_arguments_reach_the_server_as_the_bytes_that_the_client_sent() -> None:
    async with opened_front(a=offer("t"), b=offer("t")) as front:
        arguments = b'{"b": 1.0, "a": [12345678901234567890123, "\\u00e9"],"b2":null}'
        params = b'{"x":[],"name":"a__t","arguments":' + arguments + b',"z":0}'
        meta, caller = b'{"trace":{"id": 1}}', b'{"clientInfo":{}}'
        frame = await front.sent("a", request("tools/call", params, meta=meta, caller=caller))
        assert frame.method == "tools/call"
        assert frame.params == params.replace(b'"a__t"', b'"t"')
        assert (frame.meta, frame.caller) == (meta, caller)
        assert not frame.wants_progress
        assert (await front.sent("a", request("tools/call", params))).meta == b""


@pytest.mark.promise("M24")
async def test_tasks_are_offered_to_servers_only_for_clients_of_their_era() -> None:
    capabilities = b'{"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{ }}}'
    caller = b'{"clientCapabilities":%b,"clientInfo":{ }}' % capabilities
    async with opened_front(a=offer("t", protocol=MODERN), b=offer("t")) as front:
        asked = request("tools/call", b'{"name":"a__t"}', caller=caller)
        assert (await front.sent("a", asked)).caller == caller
        asked.modern = False
        left = caller.replace(b'"io.modelcontextprotocol/tasks":{},', b"")
        assert (await front.sent("a", asked)).caller == left
        asked.caller = b'{"clientInfo":{"name":"x/tasks"}}'
        assert (await front.sent("a", asked)).caller == asked.caller


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
async def test_every_method_finds_its_server_and_the_servers_own_name(
    method: str, params: bytes, server: str, sent: bytes
) -> None:
    async with opened_front(
        a=offer("t", prompts=[prompt("p")], resources=[resource("r:a")]),
        b=offer("t", prompts=[prompt("p")], templates=[template("t:{x}")]),
    ) as front:
        frame = await front.sent(server, request(method, params))
        assert (frame.method, frame.params) == (method, sent)


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("method", "params", "sent"),
    [
        ("resources/read", b'{"uri":"r:b/a","x":1.0}', b'{"uri":"r:a","x":1.0}'),
        ("resources/read", b'{"uri":"t:b/7"}', b'{"uri":"t:7"}'),
        (
            "completion/complete",
            b'{"ref":{"type":"ref/resource","uri":"t:b/{x}"},"argument":{}}',
            b'{"ref":{"type":"ref/resource","uri":"t:{x}"},"argument":{}}',
        ),
    ],
)
async def test_a_uri_that_two_servers_have_reaches_the_second_as_its_own(
    method: str, params: bytes, sent: bytes
) -> None:
    both = offer(resources=[resource("r:a")], templates=[template("t:{x}")])
    async with opened_front(a=both, b=both) as front:
        assert (await front.sent("b", request(method, params))).params == sent


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
async def test_what_nobody_owns_is_refused_here(
    method: str, params: bytes, code: int, message: str
) -> None:
    async with opened_front(a=offer("t"), b=offer("t")) as front:
        refusal = front.refusal(request(method, params))
        assert refusal.code == code
        assert refusal.message.startswith(message)
        assert len(refusal.message) < 2 * NAME_BYTES_MAX
        assert front.peers["a"].quiet()


@pytest.mark.promise("M21")
async def test_the_contents_of_a_resource_have_the_uri_that_the_client_read() -> None:
    async with opened_front(
        a=offer(resources=[resource("r:a")]), b=offer(resources=[resource("r:a")])
    ) as front:
        for server, uri in (("a", b"r:a"), ("b", b"r:b/a")):
            read = request("resources/read", b'{"uri":"%b"}' % uri, modern=False)
            answer = await front.answered(server, read, b'{"contents":[{"uri":"r:a"}]}')
            assert answer.body == b'{"contents":[{"uri":"%b"}]}' % uri


SKILLFUL: dict[str, object] = {"extensions": {"io.modelcontextprotocol/skills": {}}, "events": {}}


@pytest.mark.promise("M20")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("skills/list", b'{"cursor":1.0}'),
        ("events/subscribe", b"{}"),
        ("resources/directory/read", b'{"uri":"skill://unlisted"}'),
        ("resources/directory/read", b'{"uri":"r:a"}'),
    ],
)
async def test_a_method_that_only_one_server_declares_leads_to_it(
    method: str, params: bytes
) -> None:
    skillful = structs.replace(
        offer(resources=[resource("r:a")]), capabilities=Raw(codec.dump(SKILLFUL))
    )
    async with opened_front(a=skillful, b=offer("t", resources=[resource("r:b")])) as front:
        assert (await front.sent("a", request(method, params))).params == params
        assert front.refusal(request("skill/x", b"{}")).code == Code.METHOD_NOT_FOUND


@pytest.mark.parametrize(
    ("error", "code"), [(Code.METHOD_NOT_FOUND, 0), (Code.INTERNAL_ERROR, Code.INTERNAL_ERROR)]
)
async def test_a_server_without_completions_has_none_to_offer(error: Code, code: int) -> None:
    async with opened_front(a=offer("t", prompts=[prompt("p")]), b=offer("t")) as front:
        params = b'{"ref":{"type":"ref/prompt","name":"a__p"},"argument":{"name":"x","value":""}}'
        asked = request("completion/complete", params, modern=False)
        answer = await front.answered("a", asked, b'{"code":%d,"message":"no"}' % error, error)
        assert answer.code == code
        assert (answer.body == b'{"completion":{"values":[]}}') is (not code)


async def test_a_missing_resource_has_the_code_of_the_clients_era() -> None:
    async with opened_front(a=offer("t"), b=offer("t")) as front:
        read = request("resources/read", b'{"uri":"r:"}', modern=False)
        assert front.refusal(read).code == NOT_FOUND_LEGACY


@pytest.mark.promise("M21")
async def test_unknown_methods_and_uris_go_to_the_only_server_of_an_endpoint() -> None:
    async with opened_front(a=offer("t")) as front:
        frame = await front.sent("a", request("x/custom", b'{"name":"t","n":1.0}'))
        assert (frame.method, frame.params) == ("x/custom", b'{"name":"t","n":1.0}')
        frame = await front.sent("a", request("resources/read", b'{"uri":"any:"}'))
        assert frame.params == b'{"uri":"any:"}'


@pytest.mark.promise("M22")
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_what_the_only_server_does_not_list_it_may_have_under_its_bare_name(
    method: str,
) -> None:
    only = endpoint("a", style="bare", disabled=(("a", "off"),))
    async with opened_front(only, a=offer("t")) as front:
        frame = await front.sent("a", request(method, b'{"name":"hidden","x":1.0}'))
        assert frame.params == b'{"name":"hidden","x":1.0}'
        refusal = front.refusal(request(method, b'{"name":"off"}'))
        assert refusal.code == Code.INVALID_PARAMS
    for prefixed, offers in (
        (endpoint("a", "b", style="bare"), {"a": offer("t"), "b": offer()}),
        (endpoint("a"), {"a": offer("t")}),
    ):
        async with opened_front(prefixed, **offers) as front:
            assert front.refusal(request(method, b'{"name":"hidden"}')).code == Code.INVALID_PARAMS


@pytest.mark.promise("M22")
@pytest.mark.parametrize("protocol", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"content":[{"type":"hologram","x":1.0}],"structuredContent":[1],"z": null}', 0),
        (b'{"resultType":"input_required","requestState":"opaque"}', 0),
        (b'{"code":-31999,"message":"own","data":{"n":12345678901234567890},"more":1}', -31999),
        (b'{"code":-32002,"message":"own"}', -32002),
        (b'[{"isError":true}]', 0),
    ],
)
async def test_answers_between_peers_of_one_era_pass_as_they_are(
    protocol: str, body: bytes, code: int
) -> None:
    async with opened_front(a=offer("t", protocol=protocol)) as front:
        asked = request("tools/call", b'{"name":"a__t"}', modern=protocol == MODERN)
        assert await front.answered("a", asked, body, code) == CallAnswer(body, code)


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("modern", "body", "expected"),
    [
        (True, b'{"content":[]}', CallAnswer(b'{"resultType":"complete","content":[]}')),
        (False, b'{"structuredContent":[]}', CallAnswer(b"{}")),
        (True, b'{"code":-32002}', CallAnswer(b'{"code":-32602}', -32602)),
    ],
)
async def test_answers_between_the_eras_are_converted(
    modern: bool, body: bytes, expected: CallAnswer
) -> None:
    async with opened_front(a=offer("t", protocol=LEGACY if modern else MODERN)) as front:
        asked = request("tools/call", b'{"name":"a__t"}', modern=modern)
        code = -32002 if expected.code else 0
        assert await front.answered("a", asked, body, code) == expected


@pytest.mark.promise("M23")
async def test_progress_is_wanted_when_somebody_listens() -> None:
    async with opened_front(a=offer("t")) as front:
        caller = Caller()
        asked = request("tools/call", b'{"name":"a__t"}')
        asked.wants_progress = True
        call = front.calls.start(front.view, asked, caller)
        frame = await front.peers["a"].call()
        assert frame.wants_progress
        front.peers["a"].write(Progress(frame.id, b'{"progress":0.5}'))
        front.peers["a"].write(Result(frame.id, b"{}"))
        await answer_of(call)
        assert caller.progress == [b'{"progress":0.5}']


@pytest.mark.promise("M85")
async def test_each_call_is_counted_with_how_it_ended() -> None:
    async with opened_front(a=offer("t")) as front:
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
        figures = {(one.method, one.error_type): one for one in front.stats.calls()}
        assert {key: one.count for key, one in figures.items()} == {
            ("tools/call", ""): 2,
            ("tools/call", "tool_error"): 1,
            ("tools/call", "-32603"): 1,
            ("tools/call", "cancelled"): 1,
            ("_OTHER", ""): 1,
        }
        assert sum(figures["tools/call", ""].buckets) == 2
        assert front.stats.tools() == (ToolStats("a", ("t",), (5,), (3,)),)


@pytest.mark.promise("M61")
async def test_a_disabled_tool_cannot_be_called() -> None:
    async with opened_front(
        endpoint("a", style="bare", disabled=(("a", "t"),)), a=offer("t", "u")
    ) as front:
        assert front.refusal(request("tools/call", b'{"name":"t"}')).message == "Unknown tool: t"


@pytest.mark.promise("M28")
async def test_list_changes_are_told_after_the_view_is_the_new_one() -> None:
    async with opened_front(a=offer("t"), b=offer("t")) as front:
        told: list[tuple[str, frozenset[str], bytes]] = []

        def listen(changed: Changed) -> None:
            ((whose, kinds),) = changed.items()
            told.append((whose.endpoint, kinds, front.view.page("tools/list", {}, modern=False)))

        front.calls.lists_changed = listen
        front.calls.refresh()
        front.calls.forget("b")
        front.calls.refresh()
        front.calls.refresh()
        ((name, kinds, page),) = told
        assert (name, kinds) == ("default", frozenset({"tools"}))
        assert b"a__t" in page
        assert b"b__t" not in page


async def test_a_request_is_left_as_the_client_made_it() -> None:
    async with opened_front(a=offer("t")) as front:
        asked = request("tools/call", b'{"name":"a__t"}')
        await front.sent("a", asked)
        assert asked.params == {"name": Raw(b'"a__t"')}


async def test_what_a_server_says_beside_calls_is_told_by_its_method() -> None:
    async with opened_front(a=offer("t")) as front:
        told: list[tuple[str, bytes]] = []
        loop = asyncio.get_running_loop()
        others: asyncio.Future[tuple[str, str, bytes]] = loop.create_future()
        front.calls.on_notice("x/mine", lambda server, params: told.append((server, params)))
        front.calls.notified = lambda server, method, params: others.set_result(
            (server, method, params)
        )
        front.peers["a"].write(Notice("x/mine", b"{}"))
        front.peers["a"].write(Notice("x/other", b"[]"))
        assert await others == ("a", "x/other", b"[]")
        assert told == [("a", b"{}")]


@pytest.mark.promise("M79")
async def test_a_worker_has_the_record_of_a_call_before_its_client_has_an_event() -> None:
    async with opened_front(endpoint("a", style="bare"), a=offer("t")) as front:
        call = front.calls.start(front.view, request("tools/call", b'{"name":"t"}'), None)
        await front.peers["a"].call()
        front_recovery.keep(call, "session", b"stream", b"1", b"")
        assert front.peers["a"].quiet()
        assert [kept.id for kept in front.peers["a"].kept] == [call.id]
