"""Fixed arguments that the rest of a schema refers to."""

import importlib
import json
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.catalog.tool_overrides import DEPTH_MAX, NAMES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import ToolOverride
from tests.worker.catalog.test_catalog import merged
from tests.worker.catalog.test_tool_overrides_definitions import overridden
from tests.worker.front.offers import endpoint, offer

jsonschema: Any = importlib.import_module("jsonschema")
REPO: dict[str, Any] = {
    "type": "object",
    "properties": {"url": {"type": "string"}, "up": {"$ref": "#/properties/repo"}},
}
TO_REPO = {"$ref": "#/properties/repo"}
TO_URL = {"$ref": "#/properties/repo/properties/url"}
HERE = {"$ref": "#/$defs/repo"}


def shown(schema: dict[str, Any], *fixed: str) -> dict[str, Any]:
    """This input schema of an object as clients see it, with these arguments fixed."""
    whole = {**schema, "type": "object"}
    raw = json.dumps({"name": "log", "inputSchema": whole}).encode()
    found = dict[str, Any](json.loads(bytes(codec.level(clients(raw, *fixed))["inputSchema"])))
    return found if "type" in schema else {name: found[name] for name in found if name != "type"}


def clients(raw: bytes, *fixed: str) -> Raw:
    one = ToolOverride(server="a", tool="log", fixed=dict.fromkeys(fixed, "1"))
    (entry,) = merged(overridden(endpoint("a"), one), a=offer(Raw(raw))).lists["tools"]
    return Raw(entry.item.raw)


def with_repo(**others: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"repo": REPO, **others}}


@pytest.mark.promise("M27")
def test_what_is_referred_to_is_still_there_and_means_the_same() -> None:
    found = shown(with_repo(a=TO_REPO, b=TO_URL), "repo")
    assert list(found["properties"]) == ["a", "b"]
    valid = jsonschema.Draft202012Validator(found).is_valid
    assert valid({"a": {"url": "x", "up": {"url": "y"}}, "b": "z"})
    assert not valid({"a": {"url": "x", "up": {"url": 1}}})
    assert not valid({"a": 1})
    assert not valid({"b": 1})


@pytest.mark.parametrize(
    "place",
    [
        {"allOf": [{"properties": {"c": TO_REPO}}]},
        {"$defs": {"other": {"items": TO_REPO}}},
        {"if": {"properties": {"default": TO_REPO}}},
        {"dependentSchemas": {"a": {"not": TO_REPO}}},
        {"additionalProperties": {"$ref": "#/properties/re%70o"}},
        {"$id": "https://a.example/s", "items": {"$ref": "https://a.example/s#/properties/repo"}},
        {"items": {"$id": "#old", "allOf": [TO_REPO]}},
    ],
    ids=",".join,
)
def test_it_is_found_wherever_a_schema_may_stand(place: dict[str, Any]) -> None:
    found = shown(with_repo() | place, "repo")
    assert "#/properties/re" not in json.dumps(found)
    assert found["$defs"]["repo"] == {**REPO, "properties": {**REPO["properties"], "up": HERE}}


def test_what_nothing_refers_to_is_gone_and_everything_else_stays_the_same_bytes() -> None:
    told = b'{"examples":[{"$ref":"#/properties/repo"}],"$ref":"#/properties/b", "x":1.0}'
    schema = b'{"type":"object","properties":{"repo":{},"a":%b,"b":{"x":2.0}}, "z" : 1.0}' % told
    found = codec.level(clients(b'{"name":"log","inputSchema":%b}' % schema, "repo"))
    assert bytes(found["inputSchema"]) == (
        b'{"type":"object","properties":{"a":%b,"b":{"x":2.0}},"z":1.0}' % told
    )


def test_only_what_refers_to_it_is_written_anew() -> None:
    properties = b'{"n":{"minimum":1.0, "x":2e1},"a":{"$ref": "#/properties/n"},"b":{ }}'
    schema = b'{"type":"object","properties":%b}' % properties
    found = codec.level(clients(b'{"name":"log","inputSchema":%b}' % schema, "n"))
    assert bytes(found["inputSchema"]) == (
        b'{"type":"object","properties":{"a":{"$ref":"#/$defs/n"},"b":{ }},'
        b'"$defs":{"n":{"minimum":1.0, "x":2e1}}}'
    )


def test_what_is_referred_to_by_its_own_name_stays_under_it() -> None:
    named = {"properties": {"n": {"$anchor": "N", "type": "string"}, "a": {"$ref": "#N"}}}
    found = shown(named, "n")
    assert found == {"properties": {"a": {"$ref": "#N"}}, "$defs": {"n": named["properties"]["n"]}}
    valid = jsonschema.Draft202012Validator(found).is_valid
    assert (valid({"a": "x"}), valid({"a": 1})) == (True, False)


def test_of_more_names_than_are_looked_for_each_may_be_meant() -> None:
    many: list[object] = [{"$ref": f"#n{number}"} for number in range(NAMES_MAX // 2 + 1)]
    assert "$defs" not in shown(with_repo(a={"anyOf": many[1:]}), "repo")
    assert "$defs" in shown(with_repo(a={"anyOf": many}), "repo")


def test_one_that_is_only_meant_by_another_that_is_gone_goes_with_it_or_stays_with_it() -> None:
    chain = {"m": {"$ref": "#/properties/n"}, "n": {"type": "string"}}
    assert shown({"properties": {**chain, "a": {}}}, "m", "n") == {"properties": {"a": {}}}
    found = shown({"properties": {**chain, "a": {"$ref": "#/properties/m"}}}, "m", "n")
    assert found["$defs"] == {"m": {"$ref": "#/$defs/n"}, "n": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "name", "place"),
    [
        ({"$defs": {"n": {}, "n_": {}}}, "n", "#/$defs/n__"),
        ({"definitions": {"x": {}}}, "n", "#/definitions/n"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "n", "#/definitions/n"),
        ({}, "a/b c~", "#/$defs/argument1"),
    ],
)
def test_its_place_is_nobody_elses(schema: dict[str, Any], name: str, place: str) -> None:
    step = name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")
    reference = {"$ref": f"#/properties/{step}"}
    found = shown({**schema, "properties": {name: {"minimum": 1}, "a": reference}}, name)
    assert found["properties"] == {"a": {"$ref": place}}
    holder, key = place.split("/")[1:]
    assert found[holder] == {**schema.get(holder, {}), key: {"minimum": 1}}


@pytest.mark.parametrize(
    "other",
    [
        {"$ref": "#"},
        {"$ref": 7},
        {"$ref": "#/properties"},
        {"$ref": "#/properties/none"},
        {"$ref": "https://b.example/s#/properties/repo"},
        {"$id": "https://b.example/s", "allOf": [TO_REPO]},
        {"const": TO_REPO},
        {"properties": 7, "$defs": [TO_REPO, True], "x": "$ref"},
    ],
    ids=str,
)
def test_what_leads_elsewhere_stays_as_it_is(other: dict[str, Any]) -> None:
    assert shown(with_repo(a=other), "repo")["properties"] == {"a": other}


def test_a_schema_that_is_too_deep_or_has_odd_definitions_stays_as_it_is() -> None:
    deep: dict[str, Any] = TO_REPO
    for _ in range(DEPTH_MAX + 1):
        deep = {"not": deep}
    assert shown(with_repo(a=deep), "repo")["properties"] == {"a": deep}
    odd = shown({**with_repo(a=TO_REPO), "$defs": []}, "repo")
    assert odd == {"type": "object", "properties": {"a": TO_REPO}, "$defs": []}
