"""The built-in tools about scripts: what they order, run and tell, and what they refuse."""

import json
from typing import Any

import pytest
from mcp_types import Tool
from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.builtin_tools import code_tools
from metamcp_worker.builtin_tools.builtin import Builtin, Decision, OrderAndThen, Run, ToolReply
from metamcp_worker.front_calls.front_views import Changed
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.disclosure import (
    DeleteScript,
    Exposure,
    OrderOutcome,
    SaveScript,
    ViewContent,
)
from metamcp_worker.ipc.saved_scripts import Script
from tests.worker.front.offers import offer
from tests.worker.front.places import HERE, Place, sent, structured

SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
SUM = Script("sum", 3, "return args.n + 1", "typescript", "Adds one.", SCHEMA, created=7.0)
BARE = Script("bare", 1, "return 1", "javascript")


def place(*scripts: Script) -> Place:
    here = Place("search")
    here.scripts = {one.name: one for one in scripts}
    return here


def decide(here: Place, name: str, /, **arguments: Any) -> Decision:
    own = next(one for one in builtin_definitions.of("code") if one.name == name)
    tool = Builtin(own, *code_tools.SCRIPT_WORKS[name], lambda why: ToolReply(why, failed=True))
    return tool.decide(codec.dump(arguments), here.context())


def reply(here: Place, name: str, /, **arguments: Any) -> ToolReply:
    decision = decide(here, name, **arguments)
    assert isinstance(decision, ToolReply), decision
    return sent(decision)


def order(here: Place, name: str, /, **arguments: Any) -> OrderAndThen:
    decision = decide(here, name, **arguments)
    assert isinstance(decision, OrderAndThen), decision
    return decision


def test_saving_orders_what_was_said_and_tells_the_version() -> None:
    here = place()
    ask = order(here, "save_script", name="sum", code="return 1", parameters={"type": "object"})
    assert ask.order == SaveScript("sum", "return 1", parameters='{"type":"object"}')
    made = sent(ask.then(OrderOutcome(script=SUM), here.context()))
    assert made.text == 'Script "sum" is saved as version 3; run_script runs it.'
    assert structured(made)["script"] == {
        "name": "sum", "version": 3, "description": "Adds one.", "language": "typescript",
        "parameters": json.loads(SCHEMA), "expose": False, "savedAt": "at 7 s",
    }  # fmt: skip
    same = order(place(SUM), "save_script", name="sum", code=SUM.code)
    assert "was saved already" in same.then(OrderOutcome(script=SUM), here.context()).text


def test_a_refused_save_says_why() -> None:
    here = place()
    ask = order(here, "save_script", name="sum", code=" ")
    told = sent(ask.then(OrderOutcome("a script has some code"), here.context()))
    assert told.failed
    assert told.text == "Failed to save script: a script has some code"


@pytest.mark.promise("M48")
@pytest.mark.parametrize("name", ["team:sum", "../sum", ""])
def test_no_name_reaches_into_another_workspace(name: str) -> None:
    assert "the name of a script has" in reply(place(), "save_script", name=name, code="1").text


def test_running_gives_the_code_and_the_arguments_as_they_came() -> None:
    run = decide(place(SUM), "run_script", name="sum", args={"n": 1})
    assert run == Run(SUM.code, "typescript", Raw(b'{"n":1}'), script="sum", version=3)
    bare = decide(place(BARE), "run_script", name="bare")
    assert bare == Run("return 1", "javascript", Raw(b"{}"), script="bare", version=1)


@pytest.mark.promise("M48")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": "1"}, "args.n is not of the type integer (parameters: $.properties.n.type)"),
        ({}, "args has no 'n', which is required (parameters: $.required)"),
        ([1], "args must be an object"),
    ],
)
def test_wrong_arguments_are_refused_with_the_place_in_the_schema(
    arguments: object, words: str
) -> None:
    told = reply(place(SUM), "run_script", name="sum", args=arguments)
    assert told.failed
    assert words in told.text


def test_an_unknown_script_is_refused_with_those_that_there_are() -> None:
    here = place(SUM, BARE)
    for name in ("run_script", "list_scripts", "delete_script"):
        told = reply(here, name, name="other")
        assert told.failed
        assert told.text.endswith('no script is named "other"; there are: sum, bare')


def test_the_list_tells_parameters_and_one_script_its_code() -> None:
    here = place(SUM, BARE)
    told = reply(here, "list_scripts")
    assert told.text == f"- `sum`: Adds one.\n  parameters: {SCHEMA}\n- `bare`"
    assert [one["name"] for one in structured(told)["scripts"]] == ["sum", "bare"]
    one = reply(here, "list_scripts", name="bare")
    assert one.text == "- `bare`\n\nreturn 1"
    assert structured(one)["scripts"][0]["code"] == "return 1"
    assert reply(place(), "list_scripts").text == "No script is saved; save_script saves one."


def test_a_long_list_goes_on_where_it_ended() -> None:
    here = place(*(Script(f"s{n:03}", 1, "1", description="x" * 1000) for n in range(100)))
    first = structured(reply(here, "list_scripts"))
    rest = structured(reply(here, "list_scripts", offset=first["nextOffset"]))
    assert rest["scripts"][0]["name"] == f"s{len(first['scripts']):03}"


def test_deleting_orders_it_and_says_so() -> None:
    here = place(SUM)
    ask = order(here, "delete_script", name="sum")
    assert ask.order == DeleteScript("sum")
    assert "is deleted" in sent(ask.then(OrderOutcome(), here.context())).text
    late = sent(ask.then(OrderOutcome("no script is named 'sum'", ViewContent()), here.context()))
    assert late.failed


# Scripts that are tools of their own

TOOL = Script("add-one", 1, "return args.n + 1", "typescript", "Adds one.", SCHEMA, expose=True)
CODE = ["search_tools", "describe_tool", "run_code", *code_tools.SCRIPT_WORKS]


def coded(exposure: Exposure, style: str = "flat", **servers: Any) -> Place:
    here = Place(exposure, style=style, **servers)
    here.configure(replace(here.spec, code=CodeLimits()))
    return here


def kept(here: Place, *scripts: Script, workspace: str = "default") -> Changed:
    here.viewers.keep({workspace: {one.name: one for one in scripts}})
    return here.viewers.refresh()


@pytest.mark.promise("M48")
def test_the_exposure_code_lists_all_four_and_search_calls_what_it_does_not_list() -> None:
    assert coded("code").listed == CODE
    here = coded("search")
    assert {"save_script", "run_script", "list_scripts"} <= set(here.listed)
    assert "delete_script" not in here.listed
    assert here.view.merged.tools["delete_script"].server == ""
    bare = Place("search")
    assert not {*code_tools.SCRIPT_WORKS} & ({*bare.listed} | {*bare.view.merged.tools})


@pytest.mark.promise("M48")
@pytest.mark.parametrize(
    ("style", "name"),
    [("flat", "scripts_add-one"), ("namespaced", "scripts__add-one"), ("bare", "add-one")],
)
def test_an_exposed_script_is_listed_by_the_rule_of_its_endpoint(style: str, name: str) -> None:
    here = coded("code", style)
    assert kept(here, TOOL, BARE) == {HERE: frozenset({"tools"})}
    assert here.listed == [*CODE, name]
    page = codec.value(here.view.page("tools/list", {}, modern=False))
    told = Tool.model_validate(page["tools"][-1])
    assert (told.name, told.description) == (name, "Adds one.")
    assert told.input_schema == json.loads(SCHEMA)
    assert kept(here, replace(TOOL, expose=False)) == {HERE: frozenset({"tools"})}
    assert here.listed == CODE


def test_a_change_that_no_list_shows_tells_nobody() -> None:
    here = coded("code")
    kept(here, TOOL)
    assert kept(here, replace(TOOL, version=2, code="return 3"), BARE) == {}
    assert kept(here, TOOL, replace(TOOL, name="b"), workspace="team") == {
        HERE: frozenset({"tools"})
    }, "nothing of another workspace is here"
    assert here.listed == CODE


def test_a_script_takes_no_name_that_another_tool_has() -> None:
    here = coded("code", "bare", git=offer("status"))
    kept(here, replace(TOOL, name="status"), replace(TOOL, name="run_code"))
    names = here.listed[len(CODE) :]
    assert len(names) == 2
    assert here.view.merged.tools["status"].server == "git"
    assert not {"status", "run_code"} & {*names}
