"""Policies: which rules concern a thing, what they say when lists are made, and at a call."""

import json
from collections.abc import Sequence

import pytest

from metamcp_worker.cel.expressions import ExpressionError
from metamcp_worker.guard.conditions import (
    READ_BYTES_MAX,
    CallContext,
    PolicySubject,
    PolicyTarget,
    parse,
)
from metamcp_worker.guard.guard_rules import FAILURES_MAX, GuardRules
from metamcp_worker.guard.policies import Policies, PolicyVerdict
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import ConsentSpec, EndpointSpec, PolicySpec, PrincipalFacts

ANN = PrincipalFacts(id="key:1", name="ann", scopes=("mcp:call", "mcp:list"))
SUBJECT = PolicySubject(ANN, "acme", "desk", "acme:tools")


def rule(effect: str = "deny", when: str = "", *match: str, **more: str) -> PolicySpec:
    members = {"name": f"{effect}-rule", "effect": effect, "when": when, **more}
    return codec.decode_as(PolicySpec, codec.dump({**members, "match": match or ("*/*",)}))


def tool(name: str = "write", server: str = "fs", **hints: object) -> PolicyTarget:
    definition = codec.dump({"name": name, "annotations": hints})
    return PolicyTarget("tools", server, name, definition)


def knows(source: str = "client", client: str = "raw", **arguments: object) -> CallContext:
    said = codec.dump({"clientInfo": {"name": client, "version": "1"}})
    return CallContext(json.dumps(arguments).encode(), said, source)


def decided(
    rules: Sequence[PolicySpec], thing: PolicyTarget, call: CallContext | None = None
) -> PolicyVerdict:
    """The verdict of these rules on a call."""
    ruling = Policies(rules).find_ruling(thing, SUBJECT)
    return PolicyVerdict() if ruling is None else ruling.decide(call or knows())


def hidden(rules: Sequence[PolicySpec], thing: PolicyTarget) -> bool:
    ruling = Policies(rules).find_ruling(thing, SUBJECT)
    return ruling is not None and ruling.hidden


pytestmark = pytest.mark.promise("M100")


@pytest.mark.parametrize(
    ("glob", "concerned"),
    [
        ("fs/write", True), ("fs/*", True), ("*/write", True), ("*/wr*", True),
        ("f?/w[a-z]*", True),
        ("git/*", False), ("fs/read", False), ("fs/writ", False), ("FS/write", False),
        ("acme:fs/*", False),
    ],
)  # fmt: skip
def test_a_rule_concerns_the_names_that_one_of_its_globs_has(glob: str, concerned: bool) -> None:
    assert hidden([rule("deny", "", "x/y", glob)], tool()) is concerned


def test_a_server_of_a_workspace_is_matched_by_both_of_its_names() -> None:
    for glob in ("acme:fs/*", "fs/*"):
        assert hidden([rule("deny", "", glob)], tool(server="acme:fs"))


def test_what_no_rule_speaks_of_costs_nothing() -> None:
    assert Policies().find_ruling(tool(), SUBJECT) is None
    assert Policies([rule("deny", "", "git/*")]).find_ruling(tool(), SUBJECT) is None
    assert Policies([rule("deny", "1 == 2")]).find_ruling(tool(), SUBJECT) is None
    assert Policies([rule("allow", "", "fs/*")]).find_ruling(tool(), SUBJECT) is None


@pytest.mark.parametrize(
    ("effects", "decides"),
    [
        (["log"], "allow"), (["allow"], "allow"), (["ask", "allow"], "ask"),
        (["allow", "ask", "deny"], "deny"), (["deny", "allow"], "deny"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", ["", "source == 'client'"])
def test_a_deny_wins_over_an_ask_and_an_ask_over_an_allow(
    effects: list[str], decides: str, when: str
) -> None:
    found = decided([rule(effect, when) for effect in effects], tool())
    assert found.effect == decides
    assert found.policy == ("" if decides == "allow" else f"{decides}-rule")


def test_where_a_rule_allows_something_the_rest_of_its_kind_is_denied() -> None:
    rules = [rule("allow", "mcp.tool.name == 'read'", "fs/*")]
    prompt = PolicyTarget("prompts", "fs", "greet")
    assert not hidden(rules, tool("read"))
    assert hidden(rules, tool("write"))
    assert hidden(rules, tool("read", "git"))
    assert decided(rules, tool("write")).message == "No policy allows this call."
    assert not hidden(rules, prompt), "a rule about tools closes no prompts"
    assert hidden([rule("allow", "", "git/*")], prompt)


def test_a_rule_that_reads_the_call_hides_nothing() -> None:
    when = "mcp.tool.arguments.path.startsWith('/etc')"
    assert not hidden([rule("deny", when)], tool())
    assert decided([rule("deny", when)], tool(), knows(path="/etc/passwd")).effect == "deny"
    assert decided([rule("deny", when)], tool(), knows(path="/data")).effect == "allow"
    allow = [rule("allow", "source == 'workflow'", "fs/*")]
    assert not hidden(allow, tool()), "a call of a workflow would be allowed"
    assert decided(allow, tool()).effect == "deny"
    assert decided(allow, tool(), knows("workflow")).effect == "allow"
    assert hidden([*allow, rule("deny", "", "fs/*")], tool())


@pytest.mark.parametrize(
    "when",
    [
        "mcp.tool.name == 'write' && mcp.tool.target == 'fs'",
        "tool.annotations.destructiveHint && !tool.annotations.readOnlyHint",
        "tool.annotations.note == 'x'",
        "principal.id == 'key:1' && principal.name == 'ann' && principal.workspace == 'acme'",
        "'mcp:call' in principal.scopes && !('mcp:read' in principal.scopes)",
        "client.name == 'raw' && client.version == '1' && source == 'client'",
        "mcp.tool.arguments.n > 1.5 && mcp.tool.arguments['s'] == 'x'",
        "has(mcp.tool.arguments.s) && !has(mcp.tool.arguments.none)",
        "size(mcp.tool.arguments) == 3 && 'n' in mcp.tool.arguments",
        "mcp.tool.arguments.l.exists(one, one.startsWith('/etc'))",
        "mcp.tool.name.matches('^wr.*e$')",
        "mcp.tool.name != 'x' && !has(mcp.prompt.name)",
    ],
)
def test_conditions_know_the_tool_the_principal_the_client_and_the_call(when: str) -> None:
    thing = tool(note="x")
    call = knows(n=2, s="x", l=["/data", "/etc/passwd"])
    assert decided([rule("deny", when)], thing, call).effect == "deny"
    assert decided([rule("deny", f"!({when})")], thing, call).effect == "allow"


def test_prompts_and_resources_have_names_of_their_own() -> None:
    for kind, name, one in (("prompts", "greet", "prompt"), ("resources", "file:///x", "resource")):
        thing = PolicyTarget("prompts" if kind == "prompts" else "resources", "fs", name)
        assert hidden([rule("deny", f"mcp.{one}.name == '{name}'")], thing)
        assert hidden([rule("deny", "", f"fs/{name}")], thing)
        assert not hidden([rule("deny", "mcp.tool.name == 'x' || true")], thing)


@pytest.mark.parametrize(
    ("when", "arguments", "why"),
    [
        ("mcp.tool.arguments.path == '/x'", b"{}", "'path' is not there"),
        ("mcp.tool.arguments.path.startsWith('/x')", b'{"path":1}', "startsWith"),
        ("mcp.tool.arguments.path", b'{"path":1}', "neither true nor false"),
        ("mcp.tool.arguments.path == '/x'", b"[1]", "arguments cannot be read"),
        ("mcp.tool.arguments.path == ''", b'{"path":"%b"}' % (b"x" * READ_BYTES_MAX), "64 KiB"),
        ("size(mcp.tool.arguments) == 1", b'{"path":"%b"}' % (b"x" * READ_BYTES_MAX), "64 KiB"),
        ("mcp.tool.arguments.path == []", b'{"path":%b}' % (b"[" * 99 + b"]" * 99), "64 deep"),
    ],
)  # fmt: skip
def test_a_rule_that_fails_is_a_deny_and_says_why_to_its_operator(
    when: str, arguments: bytes, why: str
) -> None:
    for effect in ("allow", "ask", "deny", "log"):
        found = decided([rule(effect, when)], tool(), CallContext(arguments))
        assert (found.effect, found.policy) == ("deny", f"{effect}-rule")
        assert "its operator sees why" in found.message
        (note,) = found.notes
        assert note.outcome == "failed"
        assert why in note.why
    assert decided([rule("deny", when, mode="permissive")], tool()).effect == "allow"


def test_names_that_clients_make_up_add_no_failures_for_ever() -> None:
    policies = Policies([rule("deny", "mcp.tool.name")])
    rules = GuardRules(ConsentSpec(), policies, SUBJECT)
    for number in range(FAILURES_MAX + 10):
        rules.guard_unlisted("tools", "fs", f"made-up-{number}")
    assert len(rules.failures) == FAILURES_MAX


def test_what_a_rule_does_not_read_may_have_any_size() -> None:
    rules = [rule("deny", "mcp.tool.arguments.path == '/etc'"), rule("log", "source == 'client'")]
    call = knows(path="/data", content="x" * 2 * READ_BYTES_MAX)
    assert decided(rules, tool(), call).effect == "allow"


def test_arguments_of_one_call_are_not_seen_by_the_next() -> None:
    ruling = Policies([rule("deny", "has(mcp.tool.arguments.force)")]).find_ruling(tool(), SUBJECT)
    assert ruling is not None
    assert ruling.decide(knows(force=True)).effect == "deny"
    assert ruling.decide(knows()).effect == "allow"
    assert ruling.decide(CallContext(b"")).effect == "allow"


def test_a_rule_that_fails_while_lists_are_made_hides() -> None:
    assert hidden([rule("allow", "tool.annotations.none == 1")], tool())
    assert not hidden([rule("deny", "tool.annotations.none == 1", mode="permissive")], tool())
    broken = PolicyTarget("tools", "fs", "write", b'{"annotations":[1]}')
    assert hidden([rule("log", "tool.annotations.readOnlyHint")], broken)
    assert not hidden([rule("log", "mcp.tool.name == 'x'")], broken)


def test_a_permissive_rule_only_counts_what_it_would_have_done() -> None:
    rules = [rule("deny", "", mode="permissive"), rule("ask", "source != ''", mode="permissive")]
    found = decided([*rules, rule("log")], tool())
    assert found.effect == "allow"
    told = [(one.policy, one.outcome) for one in found.notes]
    assert sorted(told) == [
        ("ask-rule", "would_ask"), ("deny-rule", "would_deny"), ("log-rule", "logged")
    ]  # fmt: skip
    assert not hidden(rules, tool())
    only = [rule("allow", "", "git/*", mode="permissive")]
    assert not hidden(only, tool()), "it closes nothing"


def test_the_message_of_a_rule_is_that_of_its_verdict() -> None:
    found = decided([rule("deny", message="Ask the admins.")], tool())
    assert found.message == "Ask the admins."
    assert decided([rule("deny")], tool()).message == "The policy 'deny-rule' denies this call."
    assert decided([rule("ask", message="Really?")], tool()).message == "Really?"


def test_each_rule_that_concerns_a_tool_is_told_with_its_value() -> None:
    rules = [
        rule("deny", "mcp.tool.arguments.n > 1"), rule("ask", "tool.annotations.none"),
        rule("log", "principal.name == 'ann'"), rule("deny", "", "git/*"),
    ]  # fmt: skip
    policies = Policies(rules)
    told = [one.value for one in policies.values(tool(), SUBJECT)]
    assert told[0] == "at the call"
    assert told[1].startswith("fails: 'tool.annotations.none' has no value: ")
    assert told[2:] == ["true"]
    told = [one.value for one in policies.values(tool(), SUBJECT, knows(n=2))]
    assert (told[0], len(told)) == ("true", 3)


def test_principals_that_no_rule_can_tell_apart_are_the_same() -> None:
    assert Policies([rule("deny", "mcp.tool.name == 'x'")]).reads == ()
    by_scope = Policies([rule("deny", "'mcp:read' in principal.scopes")])
    assert by_scope.reads == ("scopes",)
    other = PrincipalFacts(id="key:2", name="bob", scopes=ANN.scopes)
    assert by_scope.subject(at("a", ANN)) == by_scope.subject(at("b", other))


def test_rules_name_endpoints_and_namespaces() -> None:
    rules = [rule("deny", "endpoint.name == 'desk' && endpoint.namespace.startsWith('acme:')")]
    assert hidden(rules, tool())
    assert not hidden([rule("deny", "endpoint.name == 'other'")], tool())
    by_endpoint = Policies([rule("deny", "endpoint.name == 'desk'")])
    assert by_endpoint.subject(at("desk")) != by_endpoint.subject(at("other"))
    by_namespace = Policies([rule("deny", "endpoint.namespace == 'dev'")])
    assert by_namespace.subject(at("desk")) == by_namespace.subject(at("other"))
    assert by_namespace.subject(at("desk")).namespace == "dev"


def at(endpoint: str, who: PrincipalFacts = ANN) -> EndpointSpec:
    return EndpointSpec(name=endpoint, servers=("fs",), namespace="dev", who=who)


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("foo == 1", "refers to 'foo'"),
        ("mcp.tool.title == 'x'", "refers to 'mcp.tool.title'"),
        ("principal == 'x'", "refers to 'principal'"),
        ("mcp.tool['arguments'].x", "must write mcp.tool.arguments with dots"),
        ("mcp.tool.arguments.l.map(x, x) == []", "calls 'map', whose time nothing limits"),
        ("mcp.tool.arguments.l.all(x, x.l.exists(y, y))", "inside another one"),
        ("mcp.tool.arguments.l.exists(x, x in mcp.tool.arguments.l)", "uses 'mcp' inside of"),
        ("mcp.tool.arguments.l.exists(source, source)", "the name 'source', which a variable has"),
        ("mcp.tool.name.matches(mcp.tool.arguments.x)", "not a text in quotes"),
        ("mcp.tool.name.lowerAscii() == 'x'", "calls 'lowerAscii', which policies do not have"),
        ("mcp.tool.name ==", "is not CEL: line 1"),
        ("", "an expression is empty"),
    ],
)
def test_a_condition_that_could_not_work_or_never_end_is_refused_in_one_sentence(
    when: str, why: str
) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse(when)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


SHADOW = (
    "file:///etc/shadow", "file://localhost/etc/shadow", "FILE://LocalHost/etc/shadow",
    "file:/etc/shadow", "file:////etc/shadow", "file:///etc//shadow", "file:///./etc/shadow",
    "file:///x/../etc/shadow", "file:///../etc/shadow", "file:///x/%2e%2E/etc/./shadow",
    "file:///x//../etc/shadow", "file:///%65tc/shadow", "file:///etc/shadow/",
)  # fmt: skip
ADMIN = (
    "https://example.com/admin", "HTTPS://Example.COM/admin", "https://example.com:443/admin",
    "https://example.com:/admin", "https://ann:secret@example.com/admin",
    "https://example.com./admin", "https://ex%61mple.com/admin", "https://example.com/x/../admin",
    "https://example.com/%61dmin", "https://example.com/./admin?", "https://example.com/admin#x",
)  # fmt: skip


@pytest.mark.parametrize("uri", [*SHADOW, *ADMIN])
def test_a_rule_about_a_uri_holds_for_all_its_spellings(uri: str) -> None:
    one, glob = ("file:///etc/shadow", "fs/file:/etc/*") if uri in SHADOW else (
        "https://example.com/admin", "fs/https://EXAMPLE.com:443/adm*"
    )  # fmt: skip
    thing = PolicyTarget("resources", "fs", uri)
    for denied in (
        rule("deny", "", f"fs/{one}"), rule("deny", "", glob),
        rule("deny", f"mcp.resource.name == '{one}'"),
    ):  # fmt: skip
        assert decided([denied], thing).effect == "deny"
        assert hidden([denied], thing)
    elsewhere = [rule("allow", "", "fs/file:///data/*", "fs/https://example.com/open/*")]
    assert decided(elsewhere, thing).effect == "deny"
    assert decided([rule("deny", "", "fs/file:///data/*", "fs/http://*")], thing).effect == "allow"


FORMLESS = (
    "file:etc/shadow", "file://evil/etc/shadow", "file:///etc%2Fshadow", "file:///etc%5cshadow",
    "file:///etc\\shadow", "file:///etc/shadow?x", "file:///etc/shadow#x", "file:///etc/shadow%00",
    "file:///etc/%zz", " file:///etc/shadow", "fi\tle:///etc/shadow", "file:///etc/shadow\n",
    "file:///etc/\ufffd", "x:\ufffd", "https:example.com/admin", "https:/example.com/admin",
    "https:///example.com/admin", "https://example.com\\@evil/", "https://example.com/x/..%2Fadmin",
    "https://example.com/x//../admin", "https://2130706433/", "https://0x7f.1/",
    "https://127.0.0.01/", "https://[::g]/", "https://ex ample.com/", "https://example.com:a/",
)  # fmt: skip


@pytest.mark.parametrize("uri", FORMLESS)
def test_a_uri_without_a_normal_form_is_denied_where_a_rule_would_have_to_judge_it(
    uri: str,
) -> None:
    thing = PolicyTarget("resources", "fs", uri)
    for found in (
        decided([rule("deny", "", "fs/file:///data/*")], thing),
        decided([rule("allow", "", "fs/*")], thing),
        decided([rule("log", "mcp.resource.name == 'x:y'")], thing),
    ):
        assert found.effect == "deny"
        assert "has no normal form" in found.message
    assert decided([rule("deny", "", "git/*"), rule("deny", "mcp.tool.name == 'x'")], thing) == (
        PolicyVerdict()
    )


def test_a_template_stays_in_lists_and_a_uri_of_another_scheme_is_what_it_is() -> None:
    for name in ("file:///{path}", "file:///x{?query}", "https://{host}/x", "fake://A/../b"):
        thing = PolicyTarget("resources", "fs", name)
        assert not hidden([rule("deny", "", "fs/file:///etc/*")], thing), name
        assert hidden([rule("deny", "", "fs/*")], thing), name
        assert hidden([rule("deny", "", f"fs/{name}")], thing), name
    assert hidden([rule("deny", "", "fs/file:/x")], tool("file:/x")), "it is the name of a tool"


UNCLEAR = [
    rb'{"path":"ls \ufdd0;rm \ufdd0 -rf /x \ud83d"}', rb'{"path":"\ude00"}',
    rb'{"path":{"a":["\ud83d"]}}', rb'{"pa\ud83dth":"x","path":"y"}',
    b'{"path":";","path":"x"}', rb'{"p\u0061th":";","path":"x"}', b'{ "path" : 1 , "path" : 1 }',
    b'{"path":{"a":1,"a":1}}', b'{"path":[{"b":{"a":1, "a":2}}]}',
]  # fmt: skip


@pytest.mark.parametrize("arguments", UNCLEAR)
@pytest.mark.parametrize("effect", ["deny", "allow", "ask", "log"])
def test_what_readers_of_json_take_differently_is_denied_where_a_condition_reads_it(
    effect: str, arguments: bytes
) -> None:
    for when in ("mcp.tool.arguments.path == ';'", "size(mcp.tool.arguments) == 1"):
        found = decided([rule(effect, when)], tool(), CallContext(arguments))
        assert (found.effect, found.policy) == ("deny", f"{effect}-rule")
        assert found.message.startswith(f"The policy '{effect}-rule' cannot judge this call: in ")
    unread = CallContext(b'{"content":%b,"to":"x"}' % arguments)
    assert decided([rule("deny", "mcp.tool.arguments.to == ';'")], tool(), unread).effect == "allow"
    assert decided([rule("deny", "source == 'code'")], tool(), CallContext(arguments)) == (
        PolicyVerdict()
    )


@pytest.mark.parametrize(
    "arguments",
    [rb'{"p\u0061th":"\u003b"}', b' { "path" : ";" , "x" : {"a":1,"b":{"a":":"}} } ',
     rb'{"path":";","x":"\ud83d\ude00 \ufdd0 :\":"}'],
)  # fmt: skip
def test_one_value_in_another_spelling_is_read_as_it_is(arguments: bytes) -> None:
    when = "mcp.tool.arguments.path == ';' && size(mcp.tool.arguments) > 0"
    found = decided([rule("deny", when)], tool(), CallContext(arguments))
    assert found.message == "The policy 'deny-rule' denies this call."
