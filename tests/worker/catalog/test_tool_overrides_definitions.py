"""Tools that an operator wants otherwise: their definitions, names and calls at one endpoint."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.catalog.offers import OfferedItem, Owner
from metamcp_worker.catalog.tool_overrides import ORIGINAL, ToolOverrides
from metamcp_worker.ipc import codec, exposed_names
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, ToolOverride
from tests.worker.catalog.test_catalog import catalog, listed, merged
from tests.worker.front.called import opened_front, request
from tests.worker.front.offers import endpoint, offer, tool

ODD = Raw(
    b'{"name":"log","title":"Log","x":[1.0, 2e1],"description":"d\\u00e9","annotations":'
    b'{"title":"Log","readOnlyHint":true,"y": 0.0},"inputSchema":{"type":"object", "z":1.0,'
    b'"properties":{"repo":{"type": "string"},"n":{"type":"integer", "minimum":1.0},"t":true,'
    b'"f":false},"required":["repo","n" ,"k"],"$defs":{"A":{"a": 1}}},"_meta":{"own/key":1.0}}'
)


def over(name: str, server: str = "a", /, **said: Any) -> ToolOverride:
    return ToolOverride(server=server, tool=name, **said)


def overridden(spec: EndpointSpec, *overrides: ToolOverride) -> EndpointSpec:
    return replace(spec, overrides=overrides)


def one(raw: Raw, **said: Any) -> dict[str, Raw]:
    """The members of this definition as clients see it."""
    found = merged(overridden(endpoint("a"), over("log", **said)), a=offer(raw))
    (entry,) = found.lists["tools"]
    return codec.level(entry.item.raw)


@pytest.mark.promise("M22", "M27")
def test_only_the_members_that_are_meant_are_other_ones() -> None:
    members = one(ODD, title="History", description="What was.")
    before = codec.level(ODD)
    assert codec.value(members["title"]) == "History"
    assert codec.value(members["description"]) == "What was."
    annotations = {**codec.level(before["annotations"]), "title": Raw(b'"History"')}
    assert codec.level(members["annotations"]) == annotations
    for key in ("name", "x", "inputSchema"):
        assert members[key] == before[key], key
    meta = codec.level(members["_meta"])
    assert bytes(meta["own/key"]) == b"1.0"
    assert codec.value(meta[ORIGINAL]) == {"server": "a", "name": "log"}
    assert list(members) == list(before)


@pytest.mark.promise("M27")
def test_a_fixed_argument_is_not_in_the_schema() -> None:
    schema = codec.level(one(ODD, fixed={"repo": '"/x"', "k": "1"})["inputSchema"])
    assert list(codec.level(schema["properties"])) == ["n", "t", "f"]
    assert codec.value(schema["required"]) == ["n"]
    assert bytes(codec.level(schema["properties"])["n"]) == b'{"type":"integer", "minimum":1.0}'
    assert (bytes(schema["z"]), bytes(schema["$defs"])) == (b"1.0", b'{"A":{"a": 1}}')


@pytest.mark.promise("M27")
def test_a_default_is_told_and_not_required() -> None:
    defaults = {"n": "5", "t": "[1.0]", "f": "1", "none": "1"}
    schema = codec.level(one(ODD, defaults=defaults)["inputSchema"])
    assert codec.level(schema["properties"]) == {
        "repo": Raw(b'{"type": "string"}'),
        "n": Raw(b'{"type":"integer","minimum":1.0,"default":5}'),
        "t": Raw(b'{"default":[1.0]}'),
        "f": Raw(b"false"),
    }
    assert codec.value(schema["required"]) == ["repo", "k"]


def test_a_schema_that_requires_nothing_any_more_says_nothing_of_it() -> None:
    schema = codec.level(one(ODD, fixed=dict.fromkeys(["repo", "n", "k"], "1"))["inputSchema"])
    assert "required" not in schema


@pytest.mark.parametrize(
    "schema",
    [
        b'{"type":"object","properties":[],"required":{}}',
        b'{"type":"object","properties":{"x":7}}',
        b'{"type":"object","required":[]}',
    ],
)
def test_a_schema_that_is_none_stays_as_it_is(schema: bytes) -> None:
    raw = Raw(b'{"name":"log","inputSchema":%b}' % schema)
    members = one(raw, title="T", fixed={"a": "1"}, defaults={"x": "1"})
    assert bytes(members["inputSchema"]) == schema


@pytest.mark.promise("M22")
def test_a_tool_that_is_only_hidden_or_has_aliases_is_defined_as_by_its_server() -> None:
    assert one(ODD, aliases=("x",)) == codec.level(ODD)
    spec = overridden(endpoint("a"), over("log", name="l"))
    (entry, plain) = merged(spec, a=offer(ODD, "u")).lists["tools"]
    assert plain.item.raw == bytes(tool("u"))
    assert (entry.key, entry.item.renamed, plain.item.renamed) == ("l", True, False)


def test_a_definition_is_made_once_for_each_form_that_it_has() -> None:
    servers, spec = catalog(a=offer(ODD)), overridden(endpoint("a"), over("log", title="T"))
    before = servers.merge(spec).lists["tools"][0].item
    servers.put("b", offer("x"))
    assert servers.merge(spec).lists["tools"][0].item is before
    assert servers.merge(overridden(spec, over("log", title="U"))).hashes != {}
    servers.put("a", offer(tool("log", description="new")))
    assert servers.merge(spec).lists["tools"][0].item.raw != before.raw
    servers.unmerge("default")
    assert servers.merge(spec).lists["tools"][0].item is not before


@pytest.mark.promise("M27")
def test_a_name_is_the_one_that_is_given_and_leads_to_the_tool() -> None:
    spec = overridden(endpoint("a", "b"), over("x", name="go"))
    found = merged(spec, a=offer("x", "y"), b=offer("x"))
    assert listed(found, "tools") == ["go", "a__y", "b__x"]
    assert found.tool("go") == Owner("a", b'"x"')
    assert found.tool("a__x") is None


@pytest.mark.promise("M25", "M27")
def test_a_given_name_wins_and_the_tool_that_the_rule_calls_so_gets_its_hash() -> None:
    spec = overridden(endpoint("a", "b", style="bare"), over("x", "b", name="y"))
    found = merged(spec, a=offer("y", "x"), b=offer("x"))
    (hashed,) = exposed_names.expose([("a", "y")], spec.naming, ["y"])
    assert listed(found, "tools") == [hashed, "x", "y"]
    away = merged(spec, a=offer("y", "x"))
    assert listed(away, "tools") == listed(found, "tools")[:2], "no name depends on who is there"


@pytest.mark.promise("M25")
def test_an_alias_leads_to_its_tool_and_stands_in_no_list() -> None:
    spec = overridden(endpoint("a", "b"), over("x", name="go", aliases=("old", "b__x", "go")))
    found = merged(spec, a=offer("x"), b=offer("x"))
    assert listed(found, "tools") == ["go", "b__x"]
    assert found.tool("old") == found.tool("go") == Owner("a", b'"x"')
    assert found.tool("b__x") == Owner("b", b'"x"'), "an exposed name goes first"
    assert found.notes == ("a.x has no alias b__x: another tool is called so",)
    assert "old" not in found.tools


def test_an_alias_is_nobodys_while_its_tool_is_not_there() -> None:
    spec = overridden(endpoint("a", "b"), over("x", aliases=("old",)), over("y", aliases=("new",)))
    assert merged(spec, b=offer("x")).tool("old") is None
    found = merged(spec, a=offer("x"), b=offer("x"))
    assert found.tool("old") == Owner("a", b'"x"')
    assert found.tool("new") is None
    assert found.notes == ("a has no tool 'y', which is overridden here",)


@pytest.mark.promise("M27")
def test_a_hidden_tool_is_in_no_list_and_is_called() -> None:
    spec = overridden(endpoint("a", "b"), over("x", hidden=True, aliases=("old",)))
    found = merged(spec, a=offer("x", "y"), b=offer("x"))
    assert listed(found, "tools") == [entry.key for entry in found.offered] == ["a__y", "b__x"]
    assert found.tool("a__x") == found.tool("old") == Owner("a", b'"x"')
    assert found.hidden == {("a", "x")}


def test_a_tool_in_quarantine_is_nobodys_under_its_aliases_either() -> None:
    servers = catalog(a=offer("x"), b=offer())
    servers.keep_back({("a", "x"): "It drifted."})
    spec = overridden(endpoint("a", "b"), over("x", name="go", aliases=("old",)))
    found = servers.merge(spec)
    for name in ("go", "old"):
        owner = found.tool(name)
        assert owner is not None
        assert owner.kept == "It drifted."
    assert listed(found, "tools") == []


def test_what_the_supervisor_would_have_refused_makes_no_two_tools_of_one_name() -> None:
    spec = overridden(
        endpoint("a", "b"),
        over("x", name="go", aliases=("one", "own")),
        over("y", name="go", aliases=("one",)),
        over("x", "b", name="own"),
    )
    found = catalog(a=offer("x", "y"), b=offer("x")).merge(spec, reserved=["own"])
    assert listed(found, "tools") == ["go", "a__y", "b__x"]
    assert found.tool("one") == Owner("a", b'"x"')
    assert len(found.notes) == 2


def test_an_argument_that_a_tool_does_not_name_is_noted() -> None:
    spec = overridden(endpoint("a"), over("log", fixed={"rep": "1"}, defaults={"n": "1"}))
    found = merged(spec, a=offer(ODD))
    assert found.notes == ("a.log names no argument 'rep', which is overridden here",)
    assert merged(spec, a=offer("log")).notes == (), "it does not say what it takes"


@pytest.mark.promise("M27")
def test_nobody_calls_around_an_override_by_the_name_that_the_server_knows() -> None:
    """Where names are bare, what the only server does not list is asked of it."""
    bare = endpoint("a", style="bare")
    spec = overridden(bare, over("x", name="go"), over("größe", fixed={"n": "1"}), over("z"))
    found = merged(spec, a=offer("x", "größe", "z"))
    assert found.tool("x") is None
    assert found.tool("größe") is None
    assert found.tool("unlisted") == Owner("a")
    (mend,) = [owner.mend for owner in found.tools.values() if owner.mend is not None]
    assert mend.fixed == {"n": b"1"}


def app(**more: object) -> Raw:
    return tool("show", _meta={"ui": {"resourceUri": "ui://a/x"}}, **more)


def test_the_script_of_an_app_calls_a_tool_as_it_is_overridden() -> None:
    spec = overridden(endpoint("a", "b"), over("own", name="go", fixed={"n": "1"}))
    found = merged(spec, a=offer("own", app()), b=offer())
    owner = found.tool("own")
    assert owner is not None
    assert owner == found.tool("go")
    assert owner.mend is not None


CALL = b'{"x":[],"name":"%b","arguments":{"b": 1.0},"z":0}'


@pytest.mark.promise("M27")
@pytest.mark.parametrize("name", [b"go", b"old"])
async def test_a_call_gets_its_fixed_and_default_arguments_whatever_its_name(name: bytes) -> None:
    said = over("x", name="go", aliases=("old",), fixed={"f": '{"k":1}'}, defaults={"d": "2"})
    async with opened_front(
        overridden(endpoint("a", "b"), said), a=offer("x", "y"), b=offer()
    ) as front:
        frame = await front.sent("a", request("tools/call", CALL % name))
        assert frame.params == (
            b'{"x":[],"name":"x","arguments":{"b": 1.0,"d":2,"f":{"k":1}},"z":0}'
        )
        plain = await front.sent("a", request("tools/call", CALL % b"a__y"))
        assert plain.params == (CALL % b"a__y").replace(b"a__y", b"y")
        refusal = front.refusal(request("tools/call", b'{"name":"go","arguments":[]}'))
        assert refusal.code == Code.INVALID_PARAMS


@pytest.mark.promise("M27")
@pytest.mark.parametrize("modern", [True, False])
async def test_a_call_as_a_task_and_one_that_is_sent_once_more_have_them_too(
    *, modern: bool
) -> None:
    said = over("look", name="go", fixed={"f": "1"})
    looks = tool("look", annotations={"readOnlyHint": True})
    async with opened_front(
        overridden(endpoint("a", "b"), said), a=offer(looks), b=offer()
    ) as front:
        front.retry({"a": "read-only"})
        front.calls.refresh()
        params = b'{"name":"go","arguments":{"f":0,"b":1.0},"task":{"ttl":60000}}'
        front.calls.start(front.view, request("tools/call", params, modern=modern), None)
        first = front.peers["a"]
        sent = (await first.call()).params
        assert sent == b'{"name":"look","arguments":{"b":1.0,"f":1},"task":{"ttl":60000}}'
        second = await front.attach("a", 2)
        first.close()
        assert (await second.call()).params == sent


@pytest.mark.promise("M28", "M27")
def test_a_list_is_another_one_only_if_its_bytes_are() -> None:
    servers = catalog(a=offer(ODD, "u"))

    def hash_of(*overrides: ToolOverride) -> bytes:
        return servers.merge(overridden(endpoint("a"), *overrides)).hashes["tools"]

    plain = hash_of()
    assert hash_of(over("u", aliases=("v",))) == plain
    assert hash_of(over("log", fixed={"n": "1"})) == hash_of(over("log", fixed={"n": "2"})) != plain
    assert hash_of(over("u", hidden=True)) != plain
    assert hash_of(over("u", name="v")) != plain


SERVERS = ("a", "b", "c")
pairs = st.tuples(st.sampled_from(SERVERS), st.sampled_from(["x", "y", "x_y", "b_x", "größe"]))
short = st.sampled_from(["x", "y", "a_x", "b__x", "a__y", "x_y", "go", "gone", "größe"])


def _wanted(
    pair: exposed_names.Pair, name: str, aliases: list[str], *, hidden: bool
) -> ToolOverride:
    return over(pair[1], pair[0], name=name, aliases=tuple(aliases), hidden=hidden)


def _spec(style: str, overrides: list[ToolOverride]) -> EndpointSpec:
    return overridden(endpoint(*SERVERS, style=style), *overrides)


wanted = st.builds(
    _wanted,
    pairs,
    st.just("") | short,
    st.lists(short, max_size=3, unique=True),
    hidden=st.booleans(),
)
specs = st.builds(
    _spec,
    st.sampled_from(["namespaced", "flat", "bare"]),
    st.lists(wanted, max_size=6, unique_by=lambda one: (one.server, one.tool)),
)
offers = st.dictionaries(
    st.sampled_from(SERVERS), st.lists(st.sampled_from(["x", "y", "x_y", "größe"]), unique=True)
)
RESERVED = ("gone",)


@pytest.mark.promise("M25", "M27")
@given(specs, offers)
def test_names_stay_unique_and_lead_back_whatever_is_renamed(
    spec: EndpointSpec, offered: dict[str, list[str]]
) -> None:
    found = catalog(**{server: offer(*tools) for server, tools in offered.items()}).merge(
        spec, RESERVED
    )
    every = {(server, name) for server, tools in offered.items() for name in tools}
    back = {name: _pair(owner) for name, owner in found.tools.items()}
    assert sorted(back.values()) == sorted(every), "each tool has one name, and each name a tool"
    assert not {*back, *found.aliases} & set(RESERVED)
    assert not back.keys() & found.aliases.keys()
    assert {_pair(owner) for owner in found.aliases.values()} <= every
    entries = [(entry.key, (entry.server, entry.item.key)) for entry in found.lists["tools"]]
    assert {pair for _, pair in entries} == every - found.hidden
    assert all(back[name] == pair for name, pair in entries)
    given_names = {(one.server, one.tool): one.name for one in spec.overrides if one.name}
    alone = [name for name in given_names.values() if list(given_names.values()).count(name) == 1]
    for pair in every & given_names.keys():
        if given_names[pair] in alone and given_names[pair] not in RESERVED:
            assert back[given_names[pair]] == pair
    turned = replace(spec, overrides=spec.overrides[::-1])
    if len(alone) == len(given_names):
        again = catalog(**_turned(offered)).merge(turned, RESERVED)
        assert {name: _pair(owner) for name, owner in again.tools.items()} == back


def _pair(owner: Owner) -> exposed_names.Pair:
    return owner.server, codec.text(owner.original) or ""


def _turned(offered: dict[str, list[str]]) -> dict[str, ServerCatalogue]:
    return {server: offer(*tools[::-1]) for server, tools in reversed(offered.items())}


def test_no_override_is_no_work() -> None:
    item = OfferedItem("x", b'"x"', b'{"name":"x"}', b"d")
    assert not ToolOverrides()
    assert ToolOverrides().item(("a", "x"), item) is item
    assert ToolOverrides([over("x", hidden=True)]).item(("a", "x"), item) is item
