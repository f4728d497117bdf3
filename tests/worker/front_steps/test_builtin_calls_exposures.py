"""All built-in tools of all exposures: their definitions are right, and nothing makes them fail."""

import importlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import Tool
from msgspec.structs import fields as struct_fields

from metamcp_worker.builtin_tools import builtin
from metamcp_worker.builtin_tools.builtin import Builtin, OrderAndThen, ToolFamily, ToolReply
from metamcp_worker.front_calls.front_views import builtin_family
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.disclosure import Exposure, OrderOutcome, ViewContent
from metamcp_worker.ipc.spec import EndpointSpec
from tests.worker.front.offers import offer, tool
from tests.worker.front.places import Place, toolset

jsonschema: Any = importlib.import_module("jsonschema")
"""It has no types of its own."""

TOKENS_MAX: dict[Exposure, int] = {
    "all": 0, "servers": 350, "toolset": 800, "search": 900, "code": 1000,
}  # fmt: skip
"""Of all definitions of a family: what having it costs every client."""
EXPOSURES: tuple[Exposure, ...] = get_args(Exposure)


def family(exposure: Exposure) -> ToolFamily:
    return builtin_family(EndpointSpec(name="all", servers=(), exposure=exposure))


BUILTINS = [(exposure, one) for exposure in EXPOSURES for one in family(exposure).tools.values()]
every = pytest.mark.parametrize(
    ("exposure", "one"), [pytest.param(*one, id=one[1].name) for one in BUILTINS]
)

SETS = (toolset("dev", ("git", "status"), ("db", "query")), toolset("gone", ("svn", "log")))


def place(exposure: Exposure) -> Place:
    here = Place(
        exposure, *SETS, git=offer(tool("status", description="x")), db=offer("query"), new=None
    )
    here.down("db")
    here.show(ViewContent((("git", "status"), ("db", "query"), ("svn", "log")), toolset="dev"))
    return here


CONTEXTS = {exposure: place(exposure).context() for exposure in EXPOSURES}
VALIDATORS = {
    one.name: jsonschema.Draft202012Validator(json.loads(one.item().raw)["inputSchema"])
    for _, one in BUILTINS
}


@pytest.mark.promise("M38")
@pytest.mark.parametrize("exposure", EXPOSURES)
def test_what_a_family_costs_has_a_limit(exposure: Exposure) -> None:
    items, guide = family(exposure).items, family(exposure).guide
    assert builtin_definitions.tokens_of_all(item.raw for item in items) <= TOKENS_MAX[exposure]
    assert builtin_definitions.tokens_of_bytes(len(guide)) <= 60


@every
def test_a_definition_is_one_of_the_protocol(exposure: Exposure, one: Builtin) -> None:
    raw = one.item().raw
    read = Tool.model_validate_json(raw)
    assert read.name == one.name
    assert read.description
    assert read.annotations is not None
    assert read.annotations.read_only_hint is not (one.own.changes or one.own.forwards)
    schema = json.loads(raw)["inputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False


@every
def test_what_clients_are_told_of_arguments_is_what_is_taken(
    exposure: Exposure, one: Builtin
) -> None:
    schema = json.loads(one.item().raw)["inputSchema"]
    taken = struct_fields(one.arguments)
    assert set(schema["properties"]) == {field.encode_name for field in taken}
    assert set(schema.get("required", ())) == {
        field.encode_name for field in taken if field.required
    }


TEXTS = st.one_of(
    st.sampled_from([
        "git", "git.status", "git_status", "db_query", "dev", "gone", "brief", "svn.log", "",
        "new.x", "svn", "search_tools", "x" * 3000,
    ]),
    st.text(),
)  # fmt: skip
ITEMS = st.one_of(TEXTS, st.fixed_dictionaries({"namespacedName": TEXTS}))
VALUES = st.one_of(
    TEXTS,
    st.booleans(),
    st.none(),
    st.integers(-(2**40), 2**40),
    st.lists(ITEMS, max_size=4),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
)
NAMES = sorted({name for _, one in BUILTINS for name in one.own.properties} | {"other"})
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)


def finished(exposure: Exposure, one: Builtin, raw: bytes) -> list[ToolReply]:
    """What the tool may say to that: one answer, or those to an order that was carried out, and to
    one that was not."""
    context = CONTEXTS[exposure]
    decision = one.decide(raw, context)
    replies = [decision] if isinstance(decision, ToolReply) else []
    if isinstance(decision, OrderAndThen):
        shown = context.shown
        outcomes = (
            OrderOutcome("", shown, ViewContent()),
            OrderOutcome("", ViewContent(), shown, SETS[0]),
            OrderOutcome("the disk is full", shown, shown),
        )
        replies += [decision.then(outcome, context) for outcome in outcomes]
    for reply in replies:
        for modern in (False, True):
            codec.value(builtin.result(reply, modern=modern))
    return replies


@every
@settings(deadline=None)
@given(given=ARGUMENTS, more=ARGUMENTS)
def test_no_argument_makes_a_tool_fail_and_the_schema_says_which_are_taken(
    exposure: Exposure, one: Builtin, given: dict[str, Any], more: dict[str, Any]
) -> None:
    required = {
        field.encode_name: more.get(field.encode_name, "git.status")
        for field in struct_fields(one.arguments)
        if field.required
    }
    arguments = {**required, **{name: v for name, v in given.items() if name in one.own.properties}}
    for asked in (given, arguments):
        replies = finished(exposure, one, codec.dump(asked))
        wrong = any(f"he arguments of {one.name} are wrong" in reply.text for reply in replies)
        if VALIDATORS[one.name].is_valid(asked):
            assert not wrong
        else:
            assert all(reply.failed for reply in replies)
            assert replies


@every
@settings(deadline=None)
@given(raw=st.binary())
def test_no_bytes_make_a_tool_fail(exposure: Exposure, one: Builtin, raw: bytes) -> None:
    finished(exposure, one, raw)
