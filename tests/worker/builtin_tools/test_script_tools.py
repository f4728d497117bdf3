"""The built-in tools about scripts: what they order, run and tell, and what they refuse."""

import json
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.builtin_tools import script_tools
from metamcp_worker.builtin_tools.builtin import Builtin, Decision, OrderAndThen, Run, ToolReply
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.disclosure import DeleteScript, OrderOutcome, SaveScript, Shown
from metamcp_worker.ipc.saved_scripts import Script
from tests.worker.front.places import Place, sent, structured

SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
SUM = Script("sum", 3, "return args.n + 1", "typescript", "Adds one.", SCHEMA, created=7.0)
BARE = Script("bare", 1, "return 1", "javascript")


def place(*scripts: Script) -> Place:
    here = Place("search")
    here.scripts = {one.name: one for one in scripts}
    return here


def decide(here: Place, name: str, /, **arguments: Any) -> Decision:
    own = {tool.name: tool for tool in builtin_definitions.SCRIPTS}[name]
    tool = Builtin(own, *script_tools.WORKS[name], lambda why: ToolReply(why, failed=True))
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
    late = sent(ask.then(OrderOutcome("no script is named 'sum'", Shown()), here.context()))
    assert late.failed
