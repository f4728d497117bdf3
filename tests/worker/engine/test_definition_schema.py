"""The JSON Schema for editors accepts what is a workflow, and refuses what has the wrong form."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from metamcp_worker.engine import definition, load
from metamcp_worker.engine.definition_schema import schema
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import SHIPPED
from tests.worker.engine.test_definition import WHOLE

jsonschema: Any = importlib.import_module("jsonschema")
VALID: Callable[[object], bool] = jsonschema.Draft202012Validator(schema()).is_valid


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.promise("M53")
def test_shipped_workflows_and_templates_are_accepted() -> None:
    paths = [("default", f"{SHIPPED}{name}") for name in load.list_shipped_workflows()]
    loaded = load.load(paths, [SHIPPED])
    assert loaded.problems == []
    assert sorted(loaded.definitions["default"]) == [
        "add-endpoint", "refactor-function", "review-change",
    ]  # fmt: skip
    rules = [codec.value(bytes(one)) for one in loaded.rules]
    whole = [codec.value(bytes(one)) for one in loaded.definitions["default"].values()]
    assert len(rules) >= 6
    for data in [*whole, *(rule["template"] for rule in rules), WHOLE]:
        assert VALID(data)


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda data: data.pop("name"),
    lambda data: data.pop("steps"),
    lambda data: data.update(steps=[]),
    lambda data: data.update(name="A b"),
    lambda data: data.update(more=1),
    lambda data: data["inputs"].update(path="string"),
    lambda data: data["inputs"]["token"].update(secret=1),
    lambda data: data["steps"].append({}),
    lambda data: data["steps"].append({"call": "a", "ai": "b"}),
    lambda data: data["steps"][0].update(timeout="soon"),
    lambda data: data["steps"][0].update(call=""),
    lambda data: data["steps"][0]["retry"].update(attempts=0),
    lambda data: data["steps"][0]["retry"].update(on=["never"]),
    lambda data: data["steps"][1].update(timeout="1s"),
    lambda data: data["steps"][2].pop("steps"),
    lambda data: data["steps"][3]["switch"][0].pop("steps"),
    lambda data: data["steps"][5]["run_code"].pop("code"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_form_is_refused_by_the_schema_as_by_the_check(
    change: Callable[[dict[str, Any]], object],
) -> None:
    data = copy.deepcopy(WHOLE)
    change(data)
    assert definition.parse(data)[1]
    assert not VALID(data)
