"""Lists and calls of a front with policies: what is ready, what is judged again, and for whom."""

import pytest

from metamcp_worker.access import gate
from metamcp_worker.access.gate import EndpointParts, Principal
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec, PolicySpec
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import answer_of
from tests.worker.front.offers import endpoint, offer

pytestmark = pytest.mark.promise("M100")


def configure(front: Front, *rules: PolicySpec) -> None:
    spec = FrontSpec(version="1", endpoints=(endpoint("git"),), hosts=(), policies=rules)
    front.steps.configure(spec)
    front.calls.refresh()


async def test_a_list_of_a_thousand_tools_under_a_hundred_rules_is_ready_bytes() -> None:
    late = "mcp.tool.arguments.x == 1"
    rules = [PolicySpec(name=f"late{at}", match=(f"git/t{at}*",), when=late) for at in range(50)]
    rules += [PolicySpec(name=f"gone{at}", match=(f"git/t{at}",)) for at in range(50)]
    tools = (f"{'t' if at < 500 else 'u'}{at % 500}" for at in range(1000))
    async with opened_front(git=offer(*tools)) as front:
        configure(front, *rules)
        page = front.view.page("tools/list", {}, modern=True)
        assert front.view.page("tools/list", {}, modern=True) is page
        assert len(codec.value(page)["tools"]) == 950
        assert front.view.merged.tools["git__u0"].guard is None, "no rule concerns it"
        configure(front, *rules)
        assert front.view.page("tools/list", {}, modern=True) is page, "the rules are the same"


async def test_a_failure_while_lists_are_made_is_told_and_counted_once() -> None:
    async with opened_front(git=offer("push")) as front:
        for _ in range(2):
            configure(front, PolicySpec(name="odd", when="tool.annotations.none == 1"))
        assert front.stats.policies == {"odd": {"failed": 1}}
        assert front.view.merged.lists["tools"] == ()


async def test_a_tool_that_no_list_has_is_judged_by_its_name() -> None:
    async with opened_front(endpoint("git", style="bare"), git=offer("push")) as front:
        rule = PolicySpec(name="names", match=("git/secret*",))
        spec = FrontSpec(
            version="1", endpoints=(endpoint("git", style="bare"),), hosts=(), policies=(rule,)
        )
        front.steps.configure(spec)
        front.calls.refresh()
        call = front.calls.start(front.view, request("tools/call", b'{"name":"secret1"}'), None)
        assert b"The policy 'names' denies this call." in (await answer_of(call)).body
        await front.sent("git", request("tools/call", b'{"name":"other"}'))


WHOLE = EndpointSpec(name="dev", servers=("git", "time"))


def key(name: str, *scopes: str) -> Principal:
    granted, servers = gate.parse_scopes(scopes)
    return Principal(name=f"key:{name}", label=name, scopes=granted, servers=servers, key=name)


def test_principals_have_a_part_of_an_endpoint_only_if_rules_can_tell_them_apart() -> None:
    parts = EndpointParts()
    spec = FrontSpec(version="1", endpoints=(WHOLE,), hosts=())
    parts.join_parts(spec, ())
    assert parts.of(WHOLE, key("ann")) is None
    parts.join_parts(spec, ("scopes",))
    ann, bob = (parts.of(WHOLE, key(name)) for name in ("ann", "bob"))
    reader = parts.of(WHOLE, key("reader", "mcp:list"))
    assert ann is not None
    assert reader is not None
    assert ann == bob != reader
    assert parts.of(WHOLE, gate.USER) is None
    assert gate.whole_name(ann.name) == "dev"
    assert parts.add(ann, set)
    joined = parts.join_parts(spec, ("scopes",))
    assert [one.name for one in joined.endpoints] == ["dev", ann.name]
    assert joined.endpoints[1].who.scopes == gate.SCOPES
    assert parts.join_parts(spec, ("name",)).endpoints == (WHOLE,), "it is for other rules"


def test_a_key_for_one_server_sees_that_server_as_its_rules_say() -> None:
    parts = EndpointParts()
    parts.join_parts(FrontSpec(version="1", endpoints=(WHOLE,), hosts=()), ("name",))
    part = parts.of(WHOLE, key("ann", "mcp:list", "mcp:call:git"))
    assert part is not None
    spec = part.of(WHOLE)
    assert (spec.servers, spec.who.name, spec.part_of) == (("git",), "ann", "dev")
