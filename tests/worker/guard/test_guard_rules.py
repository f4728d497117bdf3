"""Which calls a rule concerns, and what it says about them."""

import pytest

from metamcp_worker.guard.guard_rules import GuardRules
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import ConsentRule, ConsentSpec, GuardEffect


def rules(*found: tuple[str, GuardEffect], hints: bool = False, trusted: str = "") -> GuardRules:
    made = tuple(ConsentRule(match=tuple(globs.split()), effect=effect) for globs, effect in found)
    return GuardRules(ConsentSpec(rules=made, hints=hints, trusted=tuple(trusted.split())))


def effect(found: GuardRules, path: str, **annotations: bool) -> str:
    server, _, name = path.partition("/")
    guard = found.guard("tools", server, name, codec.dump({"annotations": annotations}), b"d")
    return "allow" if guard is None else guard.consent


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("git/status", "allow"), ("git/push", "ask"), ("git/a/b", "ask"), ("acme:git/push", "ask"),
        ("wiki/push", "allow"), ("wiki/delete_page", "deny"), ("acme:wiki/x", "ask"),
        ("gitlab/push", "allow"), ("git/Delete", "ask"),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_counts(path: str, expected: str) -> None:
    found = rules(("git/status", "allow"), ("git/* acme:wiki/*", "ask"), ("*/delete*", "deny"))
    assert effect(found, path) == expected


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("annotations", "hinted", "plain", "trusted"),
    [
        ({}, "ask", "allow", "ask"),
        ({"readOnlyHint": True}, "allow", "allow", "allow"),
        ({"readOnlyHint": True, "destructiveHint": True}, "ask", "allow", "ask"),
        ({"destructiveHint": False}, "ask", "allow", "ask"),
    ],
)
def test_annotations_only_tighten_unless_their_server_is_trusted(
    annotations: dict[str, bool], hinted: str, plain: str, trusted: str
) -> None:
    asks: tuple[str, GuardEffect] = ("b/ask", "ask")
    assert effect(rules(asks, hints=True), "a/t", **annotations) == hinted
    assert effect(rules(asks), "a/t", **annotations) == plain
    assert effect(rules(asks), "b/ask", **annotations) == "ask"
    assert effect(rules(asks, trusted="b"), "b/ask", **annotations) == trusted
    assert effect(rules(("b/x", "deny"), trusted="b"), "b/x", readOnlyHint=True) == "deny"


def test_without_a_strict_rule_nothing_is_guarded() -> None:
    found = rules(("*/*", "allow"))
    assert found.guard("tools", "a", "t") is None
    assert found.rest("a") is None


def test_a_name_in_no_list_and_things_of_other_kinds_are_looked_up_when_they_are_called() -> None:
    rest = rules(("a/t", "ask")).rest("a")
    assert rest is not None
    named = rest.find_guard("tools", "t")
    assert named is not None
    assert named.path == "a/t"
    assert rest.find_guard("tools", "u") is None
    assert rest.find_guard("prompts", "t") is None
    assert named.find_guard("tools", "t") is named


def test_other_rules_have_another_mark_and_a_hundred_of_them_find_the_right_one() -> None:
    globs: list[tuple[str, GuardEffect]] = [(f"s{n}/*", "ask") for n in range(100)]
    many = rules(*globs)
    assert effect(many, "s99/t") == "ask"
    assert effect(many, "t99/t") == "allow"
    assert many.mark != rules(("s0/*", "ask")).mark
    assert many.mark == rules(*globs).mark


@pytest.mark.parametrize("definition", [b"", b"{}", b"[]", b'{"annotations":7}', b"no"])
def test_a_definition_that_cannot_be_read_says_nothing(definition: bytes) -> None:
    found = rules(("b/ask", "ask"), hints=True).guard("tools", "a", "t", definition)
    assert found is not None
