"""The question about a call, what an answer means, and what grants cover."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.access.gate import USER
from metamcp_worker.guard import consent
from metamcp_worker.guard.consent import (
    ARGUMENTS_BYTES_MAX,
    ROUND_S_MAX,
    ROUNDS_MAX,
    SESSION_GRANTS_MAX,
    AgreedRounds,
    Grants,
)
from metamcp_worker.guard.guard_rules import CallFacts, CallGuard, CallSource, GuardRules
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import ConsentGrant
from metamcp_worker.ipc.spec import ConsentRule, ConsentSpec
from metamcp_worker.runtime.masking import SecretMasker

RULES = GuardRules(ConsentSpec(rules=(ConsentRule(match=("git/*",), effect="ask"),)))
FACTS = CallFacts(
    exposed="git__push", arguments=b'{"to":"main"}', principal=USER, endpoint="default",
    workspace="default", who="w1",
)  # fmt: skip


def guard(name: str = "push", digest: bytes = b"d", rules: GuardRules = RULES) -> CallGuard:
    return CallGuard(rules, "git", "tools", name, digest, "ask")


def asked(arguments: bytes, source: CallSource = "client", name: str = "push") -> str:
    facts = replace(FACTS, arguments=arguments, source=source)
    shown = consent.shown_arguments(arguments, SecretMasker(["very-secret-word"]))
    message: str = codec.value(consent.question(guard(name), facts, shown))["message"]
    return message


@pytest.mark.promise("M97")
def test_the_question_shows_tool_workspace_and_arguments() -> None:
    assert asked(b'{"to":"main"}').splitlines() == [
        "May this call run?", "Tool: git/push", "Workspace: default", 'Arguments: {"to":"main"}',
    ]  # fmt: skip
    assert asked(b"{}", "code").startswith("May this call run? It is made by code")
    assert asked(b"{}", "workflow").startswith("May this call run? It is made by a workflow.")


@pytest.mark.promise("M97")
def test_what_a_server_or_a_model_made_up_is_data() -> None:
    made_up = codec.dump({"a": "x\n\u202eevil\u200b\x1b[2J"})
    told = asked(made_up, name="push\nTool: safe")
    assert len(told.splitlines()) == 4
    assert told.isprintable() or all(one.isprintable() for one in told.splitlines())
    assert "\\u202eevil\\u200b\\u001b[2J" in told


@pytest.mark.promise("M97")
def test_all_that_will_run_is_shown_but_for_known_secrets() -> None:
    told = asked(
        rb'{"password":"x; rm -rf /","token":"hunter2222","url":"http://a:b@c/?key=d",'
        rb'"x":"very-secret-word","y":"very\u002dsecret-word","n":"ghp_0123456789012345678901"}'
    )
    for shown in ("x; rm -rf /", "hunter2222", "http://a:b@c/?key=d", "ghp_0123456789012345678901"):
        assert shown in told
    assert "secret-word" not in told
    long = b'{"t":"%b"}' % (b"a" * (ARGUMENTS_BYTES_MAX - 8))
    assert f"Arguments: {long.decode()}" in asked(long)


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (b'{"t":"%b"}' % (b"a" * (ARGUMENTS_BYTES_MAX - 7)), "16,385 bytes, and 16,384"),
        (b'{"t":"%b"}' % ("\u200b".encode() * 3000), "and 16,384 can be shown"),
        (b'{"t":1,"t":2}', "an object has a name twice"),
        (rb'{"t":"\ud83d"}', "a text has half of a surrogate pair"),
        (b'{"t":"\xff"}', "invalid start byte"),
    ],
)
def test_arguments_that_cannot_be_shown_as_they_will_run_are_not_asked_about(
    arguments: bytes, why: str
) -> None:
    with pytest.raises(codec.Malformed, match=why):
        asked(arguments)


ANSWERS: list[tuple[Any, str]] = [
    ({"action": "accept", "content": {"consent": "once"}}, "once"),
    ({"action": "accept", "content": {"consent": "session"}}, "session"),
    ({"action": "accept", "content": {"consent": "24h"}}, "24h"),
    ({"action": "accept", "content": {"consent": "deny"}}, "deny"),
    ({"action": "accept"}, "once"),
    ({"action": "accept", "content": {}}, "once"),
    ({"action": "accept", "content": None}, "malformed"),
    ({"action": "accept", "content": {"consent": "always"}}, "malformed"),
    ({"action": "accept", "content": {"consent": 7}}, "malformed"),
    ({"action": "accept", "content": {"consent": None}}, "malformed"),
    ({"action": "accept", "content": []}, "malformed"),
    ({"action": "accept", "content": "once"}, "malformed"),
    ({"action": "decline"}, "declined"),
    ({"action": "cancel"}, "cancelled"),
    ({"action": "ACCEPT"}, "malformed"),
    ({"action": True}, "malformed"),
    ({}, "malformed"),
    ([], "malformed"),
]


@pytest.mark.promise("M97")
@pytest.mark.parametrize(("body", "meaning"), ANSWERS)
def test_only_a_clear_yes_agrees(body: Any, meaning: str) -> None:
    assert consent.answer(codec.dump(body)) == meaning


def grant(until: float = 10.0, **members: Any) -> ConsentGrant:
    holder, server, definition, rules = consent.build_grant_key(guard(), FACTS)
    known: dict[str, Any] = {
        "id": "g", "holder": holder, "principal": "local", "server": server, "tool": "push",
        "definition": definition, "rules": rules, "given": 0.0, "until": until, "by": "client",
    }  # fmt: skip
    return ConsentGrant(**(known | members))


@pytest.mark.promise("M97")
def test_a_grant_covers_the_same_tool_rules_and_credential_until_its_time() -> None:
    found, same = Grants(), consent.build_grant_key(guard(), FACTS)
    found.replace([grant()])
    assert found.cover(same, "w1", 9.9)
    assert found.cover(same, "somebody", 9.9)
    assert not found.cover(same, "w1", 10.0)
    other = GuardRules(ConsentSpec(rules=RULES.consent.rules, timeout_s=9.0))
    key = replace(FACTS, principal=replace(USER, auth="keys", key="k2"))
    for one, facts in (
        (guard(digest=b"e"), FACTS), (guard(rules=other), FACTS), (guard(), key),
    ):  # fmt: skip
        assert not found.cover(consent.build_grant_key(one, facts), "w1", 5.0)
    found.replace([])
    assert not found.cover(same, "w1", 5.0)


@pytest.mark.promise("M97")
def test_consent_for_a_session_is_for_that_session_and_there_is_an_end_to_their_number() -> None:
    found, same = Grants(), consent.build_grant_key(guard(), FACTS)
    found.keep_session(same, "w1", 10.0)
    assert found.cover(same, "w1", 9.0)
    assert not found.cover(same, "w2", 9.0)
    assert not found.cover(same, "w1", 11.0)
    for number in range(SESSION_GRANTS_MAX):
        found.keep_session(same, f"x{number}", 10.0)
    assert not found.cover(same, "w1", 9.0)
    assert found.cover(same, "x0", 9.0)


@pytest.mark.promise("M97")
def test_a_server_gets_a_call_again_with_its_own_state_once_and_in_time() -> None:
    rounds, same = AgreedRounds(), consent.build_grant_key(guard(), FACTS)
    back = replace(FACTS, state=b'"s"')
    rounds.expect(same, FACTS, b'"s"', 0.0)
    wrong = (
        replace(back, state=b'"t"'), replace(back, arguments=b"{}"), replace(back, who="w2"),
        replace(back, endpoint="dev"), FACTS,
    )  # fmt: skip
    assert [rounds.take(same, one, 1.0) for one in wrong] == [False] * 5
    assert rounds.take(same, back, 1.0)
    assert not rounds.take(same, back, 1.0)
    rounds.expect(same, FACTS, b'"s"', 0.0)
    assert not rounds.take(same, back, ROUND_S_MAX)
    rounds.expect(same, FACTS, b'"s"', 0.0)
    for number in range(ROUNDS_MAX):
        rounds.expect(same, FACTS, b"%d" % number, 0.0)
    assert not rounds.take(same, back, 1.0)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (b'{"clientInfo":{"name":"c\\u202e"}}', "c\\u202e"), (b"", ""), (b"[]", ""),
        (b'{"clientInfo":7}', ""), (b'{"clientInfo":{"name":7}}', ""),
    ],
)  # fmt: skip
def test_the_name_of_a_client_is_data_too(said: bytes, name: str) -> None:
    assert consent.client_name(said) == name
