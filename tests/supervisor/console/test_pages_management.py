"""Pages about keys, approvals, the audit, scripts, workflows and the configuration, as values: what
they show, and that a text of a server or a file stays a text."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from htpy import Node
from msgspec import Raw, json, structs

from metamcp_supervisor.audit import audit_page
from metamcp_supervisor.audit.audit_orders import AuditRecords
from metamcp_supervisor.audit.audit_segments import ChainCheckResult
from metamcp_supervisor.code_mode import scripts_page
from metamcp_supervisor.config.origins import SettingChange, SettingShown
from metamcp_supervisor.console import approvals_page, config_page, fragments, keys_page
from metamcp_supervisor.console.pages import PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.config_orders import (
    ConfigDiff,
    DriftFinding,
    DriftList,
    DriftShown,
    SettingsShown,
    SettingsTable,
)
from metamcp_supervisor.verbs import (
    KeyChanged,
    KeyShown,
    PlannedChange,
    ReloadPlan,
    ScriptList,
    ScriptShown,
)
from metamcp_supervisor.workflows import workflow_svg, workflows_page
from metamcp_supervisor.workflows.workflow_svg import RunStep, StepQuestion
from metamcp_supervisor.workflows.workflows_page import RunListed, WorkflowListed
from metamcp_worker.ipc.audit_records import ChainBreak
from metamcp_worker.ipc.consent_records import ConsentGrant, OpenConsent
from metamcp_worker.ipc.engine_runs import GraphGroup, GraphStep, WorkflowGraph
from metamcp_worker.ipc.figures import KeyUse
from tests.supervisor.console.test_fragments import HOSTILE, parsed
from tests.supervisor.small_gateway import SmallGateway

ADMIN = PageRequest(role=Role.ADMIN)
VIEWER = PageRequest(role=Role.VIEWER)


def key(text: str = "laptop", **more: Any) -> KeyShown:
    given: dict[str, Any] = {
        "id": "abcd1234", "name": text, "workspace": text, "endpoints": (text,), "scopes": (text,),
        "expires": None, "principal": text, "url": False, "limits": {}, "created": "2026-01-01",
        "created_by": text, "state": "active",
    }  # fmt: skip
    return KeyShown(**(given | more))


def question(text: str = "git") -> OpenConsent:
    return OpenConsent(
        id="1-2", server=text, tool=text, workspace=text, endpoint=text, principal=text,
        client=text, arguments=text, source="client", asked=True, since=0.0, until=90.0,
    )  # fmt: skip


def grant(text: str) -> ConsentGrant:
    return ConsentGrant(
        id="g1", holder=text, principal=text, server=text, tool=text, definition="", rules="",
        given=0.0, until=9.0, by=text,
    )  # fmt: skip


def drift(text: str = "git", **more: Any) -> DriftShown:
    given: dict[str, Any] = {
        "server": text, "tool": text, "word": text, "why": text, "kept": True, "locked": True,
        "offered": "0a", "before": f"one\n{text}", "after": f"two\n{text}",
        "findings": (DriftFinding(text, "breaking", text),),
    }  # fmt: skip
    return DriftShown(**(given | more))


def record(text: str) -> Raw:
    members = {"seq": 1, "ts": 10**18, "event": "call", "who": text, "server": text,
               "exposed": text, "outcome": text, "arguments": text}  # fmt: skip
    return Raw(json.encode({name: clean(value) for name, value in members.items()}))


def clean(value: object) -> object:
    """JSON cannot hold half a character."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def script(text: str, version: int = 2) -> ScriptShown:
    return ScriptShown(
        name=text, version=version, description=text, language="typescript", parameters=Raw(b"{}"),
        expose=True, savedAt="2026-01-01", code=text, versions=(1, 2),
    )  # fmt: skip


def steps(text: str) -> tuple[GraphStep, ...]:
    leaf = GraphStep(path="1/a", kind="call", text=text)
    groups = (GraphGroup(f"when {text}", (leaf,)), GraphGroup("else", ()))
    return GraphStep(path="0", kind="call", text=text), GraphStep(
        path="1", kind="switch", text=text, groups=groups
    )


def run(text: str, status: str = "needs_decision") -> RunListed:
    ran = (RunStep(text, "needs_decision", 1, text), RunStep("0", "done", 1))
    return RunListed("0a", text, status, text, text, 1.0, None, Raw(b'"<b>out</b>"'), ran)


def asking(text: str) -> RunListed:
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text}}}
    step = RunStep(text, "needs_answer", 1, "", StepQuestion(text, schema))
    return structs.replace(run(text, "needs_answer"), question=text, steps=(step,))


def settings(text: str) -> SettingsShown:
    return SettingsShown(
        files=(text,), tables=(SettingsTable(text, 2, 1),),
        settings=(SettingShown(text, text, text, text),), problems=(text,), warnings=(text,),
    )  # fmt: skip


def compared(text: str, question: str = "") -> ConfigDiff:
    change = PlannedChange(server=text, action="restart", why=text)
    plan = ReloadPlan(hash="0a", changes=(change,), applied=False, question=question)
    return ConfigDiff(plan=plan, changes=(SettingChange(text, text, text, text, text),))


PAGES: Mapping[str, Callable[[str], Node]] = {
    "keys": lambda text: keys_page.key_list([key(text)], [text], ADMIN),
    "key": lambda text: keys_page.one_key(key(text), KeyUse(streams=1), Role.ADMIN),
    "waiting": lambda text: approvals_page.render_waiting_calls([question(text)], 30.0),
    "grants": lambda text: approvals_page.grants([grant(text)]),
    "drift": lambda text: approvals_page.render_drifts(DriftList(tools=(drift(text),))),
    "tool": lambda text: approvals_page.one_tool(drift(text)),
    "audit": lambda text: audit_page.record_list(
        AuditRecords(records=(record(text),), searched=1, whole=True), None, ADMIN
    ),
    "record": lambda text: audit_page.one_record({"seq": 1, "who": text, "arguments": text}),
    "scripts": lambda text: scripts_page.script_list(
        ScriptList(workspace="default", scripts=(script(text),)), [text], ADMIN
    ),
    "script": lambda text: scripts_page.one_script(script(text), None, "default", [text]),
    "versions": lambda text: scripts_page.one_script(script(text), script("1", 1), "default", []),
    "workflows": lambda text: workflows_page.workflow_list(
        [WorkflowListed(text, text, {text: {}})], [run(text)], [text], ADMIN
    ),
    "workflow": lambda text: workflows_page.one_workflow(
        WorkflowListed(text, text, {}), WorkflowGraph(name=text, steps=steps(text)), [], ADMIN
    ),
    "run": lambda text: workflows_page.one_run(
        run(text), WorkflowGraph(name=text, steps=steps(text)), ADMIN
    ),
    "questions": lambda text: workflows_page.questions([asking(text)], ADMIN),
    "settings": lambda text: config_page.in_force(settings(text), ""),
    "files": lambda text: config_page.files(compared(text, text), Role.ADMIN),
}


@pytest.mark.promise("M107")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", PAGES)
def test_no_element_of_a_page_comes_from_a_text(name: str, text: str) -> None:
    known = {*(tag for tag, _ in parsed(PAGES[name]("harmless")).found), "del", "ins"}
    found = parsed(PAGES[name](text)).found
    assert {tag for tag, _ in found} <= known
    attributes = {attr for _, attrs in found for attr in attrs}
    assert not [one for one in attributes if one.startswith("on") or one in ("style", "hx-on")]
    posts = {attrs["hx-post"] for _, attrs in found if attrs.get("hx-post")}
    assert all(str(path).startswith("/f/") for path in posts)


def text_of(node: Node) -> str:
    return " ".join(parsed(node).text.split())


def test_the_question_before_a_key_is_revoked_says_what_will_close() -> None:
    page = parsed(keys_page.one_key(key(), KeyUse(streams=3, sessions=1, calls=0), Role.ADMIN))
    asked = [attrs.get("hx-confirm") for _, attrs in page.found if attrs.get("hx-confirm")]
    said = "Revoke the key laptop (abcd1234) and forget it? 3 streams, 1 session and 0 calls"
    assert f"{said} will close." in asked
    operator = parsed(keys_page.one_key(key(), KeyUse(), Role.OPERATOR))
    assert "form" not in {tag for tag, _ in operator.found}
    assert "To replace or end a key needs the role admin." in operator.text
    assert "when the key ends, these are closed at once" in operator.text


def test_a_form_becomes_the_order_that_its_button_says() -> None:
    form = {"do": "NewKey", "name": " ci ", "endpoints": "a  b", "scopes": "read:*, call:git",
            "streams": "5", "calls_per_day": "x", "url": "yes"}  # fmt: skip
    order = keys_page.build_order(form, "")
    assert (order["name"], order["endpoints"]) == ("ci", ["a", "b"])
    assert (order["scopes"], order["limits"]) == (["read:*", "call:git"], {"streams": 5.0})
    assert keys_page.build_order({"do": "Revoke"}, "k1") == {"type": "Revoke", "key": "k1"}
    assert keys_page.build_order({"do": "Rotate", "grace": "24h"}, "k1")["grace"] == "24h"


def test_lines_for_clients_have_the_key_and_the_address() -> None:
    found = dict(keys_page.snippets("mmcp_k", "https://host/mcp"))
    assert all("mmcp_k" in text and "https://host/mcp" in text for text in found.values())
    entry = json.decode(found[".mcp.json"])["mcpServers"]["metamcp"]
    assert entry["headers"] == {"Authorization": "Bearer mmcp_k"}


def test_a_call_that_waits_says_how_long_it_still_does() -> None:
    page = approvals_page.render_waiting_calls([question()], 30.0)
    assert "1m00s left" in text_of(page)
    assert "1970-01-01T00:00:00.000Z, as call 1-2" in text_of(page)
    assert "hx-trigger" in parsed(page).found[0][1]
    assert "hx-trigger" not in parsed(approvals_page.render_waiting_calls([], 30.0)).found[0][1]


def test_only_a_developer_answers_a_question_of_a_workflow() -> None:
    operator = PageRequest(role=Role.OPERATOR)
    assert "Which one?" in text_of(workflows_page.questions([asking("Which one?")], operator))
    for role, forms in ((operator, 0), (ADMIN, 2)):
        page = parsed(workflows_page.questions([asking("Which one?")], role))
        assert [tag for tag, _ in page.found].count("form") == forms


def test_a_person_sees_all_arguments_that_a_front_shows() -> None:
    arguments = f'{{"password":"x; rm -rf /","t":"{"a" * 16_000} and the end"}}'
    page = text_of(
        approvals_page.render_waiting_calls(
            [structs.replace(question(), arguments=arguments)], 30.0
        )
    )
    assert arguments in page


def test_one_tool_is_approved_alone_only_if_the_lock_has_its_server() -> None:
    labels = text_of(approvals_page.one_tool(drift(tool="echo")))
    assert "Approve echo" in labels
    assert "Approve echo" not in text_of(approvals_page.one_tool(drift(tool="echo", locked=False)))


def test_texts_that_changed_are_never_only_compatible() -> None:
    changed = drift(word="compatible, words")
    page = text_of(approvals_page.one_tool(changed))
    assert "texts changed, compatible for callers" in page
    assert "Models read them, and may obey what they say." in page
    assert "texts changed" in text_of(approvals_page.render_drifts(DriftList(tools=(changed,))))
    assert approvals_page.verdict("additive, in quarantine") == "additive, in quarantine"
    assert "texts changed" not in text_of(approvals_page.one_tool(drift(word="breaking")))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("a\nb same c\n", "a\nb other c\n", "<del>same</del><ins>other</ins>"),
        ("a", "a\nb", "<ins>"),
        ("a\nb", "a", "<del>"),
        ("x " * 300, "y " * 300, "<del>x x"),
        ("same", "same", "<code></code>"),
        ("a\nb\nc\nd\ne", "A\nb\nc\nd\ne", "d\n⋯ 1 equal line\n"),
        ("a\nb\nc\nd\ne\nf", "a\nb\nc\nd\ne\nF", "⋯ 2 equal lines\nc"),
    ],
)
def test_a_difference_is_marked_by_words_unless_it_has_too_many(
    before: str, after: str, shown: str
) -> None:
    assert shown in str(fragments.diff(before, after, "text"))


def test_a_filter_of_the_audit_becomes_a_question_with_limits() -> None:
    query = {"event": "call", "outcome": "nonsense", "span": "3600", "limit": "99999", "key": "k"}
    assert audit_page.parse_filter(query, 10_000.0) == {
        "key": "k", "event": "call", "since": 6400.0, "limit": 200,
    }  # fmt: skip
    assert audit_page.parse_filter({"limit": "x"}, 0.0) == {"limit": 100}
    assert audit_page.parse_filter({"until": "5.25"}, 0.0) == {"limit": 100, "until": 5.25}
    assert audit_page.parse_filter({"until": "nan"}, 0.0) == {"limit": 100}


@pytest.mark.parametrize(
    ("searched", "whole", "address"),
    [
        (1, True, None),
        (1, False, "/audit?server=time&until=1000000000.000001"),
        (500_000, False, None),
    ],
)
def test_older_records_have_a_link_unless_none_can_be_found(
    searched: int, whole: bool, address: str | None
) -> None:
    members = {"seq": 7, "ts": 10**18 + 1, "event": "gateway", "who": "time", "text": "x"}
    found = AuditRecords(records=(Raw(json.encode(members)),), searched=searched, whole=whole)
    request = PageRequest(role=Role.OPERATOR, query={"server": "time", "chain": "1"})
    page = parsed(audit_page.record_list(found, None, request))
    links = [attrs["href"] for tag, attrs in page.found if tag == "a"]
    assert [one for one in links if "until" in str(one)] == ([address] if address else [])
    assert ("metamcp audit list" in page.text) is (searched == 500_000)
    assert "The newest records" not in page.text
    later = PageRequest(role=Role.OPERATOR, query={"until": "5"})
    assert "The newest records" in parsed(audit_page.record_list(found, None, later)).text


def test_a_key_has_its_name_and_the_link_to_its_page_where_it_is_known() -> None:
    names = {"abcd1234": "laptop"}
    members = {"seq": 7, "ts": 10**18, "event": "call", "key": "abcd1234", "principal": "key:x"}
    one = Raw(json.encode(members))
    pages = (
        audit_page.record_list(AuditRecords(records=(one,), searched=1, whole=True), None, ADMIN,
                               names),
        audit_page.one_record(members, names),
        approvals_page.render_waiting_calls([question("key:abcd1234")], 30.0, names),
        approvals_page.grants([grant("key:abcd1234")], names),
    )  # fmt: skip
    for page in pages:
        assert "laptop (abcd1234)" in text_of(page)
        assert "/keys/abcd1234" in {attrs.get("href") for _, attrs in parsed(page).found}
    assert "key:gone" in text_of(approvals_page.grants([grant("key:gone")], names))


def test_the_check_of_the_chain_says_up_to_which_record_it_holds() -> None:
    good = text_of(audit_page.chain_notice(ChainCheckResult(1200, 2, 1, 1200, "ab")))
    assert good.startswith("The chain is verified up to record 1200: 1,200 records in 2 files.")
    assert "Keep this checkpoint on another machine." in good
    assert "metamcp audit verify --expect 1200:ab" in good
    broken = audit_page.chain_notice(
        ChainCheckResult(7, 1, 1, 7, "ab", ChainBreak(8, "it was changed"))
    )
    assert text_of(broken) == "The chain is broken at record 8: it was changed."
    assert parsed(broken).found[0][1]["role"] == "alert"


def test_the_arguments_of_a_script_are_begun_from_its_schema() -> None:
    schema = {"properties": {"a": {"type": "number"}, "b": {"default": "x"}, "c": True}}
    assert scripts_page.example(schema) == {"a": 0, "b": "x", "c": None}
    assert scripts_page.example(None) == {}


def test_only_developers_get_the_way_to_the_code_of_a_script() -> None:
    found = ScriptList(workspace="default", scripts=(script("sum"),))
    ours = parsed(scripts_page.script_list(found, ["default"], VIEWER)).found
    assert "a" not in {tag for tag, _ in ours}


def test_a_graph_has_a_box_for_each_step_with_the_state_of_all_its_items() -> None:
    inner = GraphStep(path="each[]/say", kind="call", text="call git.say")
    groups = (GraphGroup("each", (inner,)),)
    graph = (
        GraphStep(path="each", kind="foreach", text="foreach", groups=groups),
        GraphStep(path="1", kind="output", text="output"),
    )  # fmt: skip
    ran = [RunStep("each[0]/say", "done"), RunStep("each[1]/say", "done"),
           RunStep("each[2]/say", "failed")]  # fmt: skip
    page = parsed(workflow_svg.graph(graph, ran, "Steps"))
    boxes = [attrs["class"] for tag, attrs in page.found if tag == "g"]
    assert boxes == ["step", "step failed", "step"]
    assert "2 done, 1 failed" in page.text
    wide, high = (int(part) for part in str(page.found[1][1]["viewbox"]).split()[2:])
    for _, attrs in page.found:
        if "x" in attrs and "width" in attrs:
            assert 0 <= int(str(attrs["x"])) <= wide - int(str(attrs["width"]))
            assert 0 <= int(str(attrs["y"])) <= high - int(str(attrs["height"]))


def test_a_graph_that_would_be_too_large_is_not_drawn() -> None:
    many = tuple(GraphStep(path=str(n), kind="output", text="x") for n in range(201))
    assert "more than 200 steps is not drawn" in text_of(workflow_svg.graph(many, (), "Steps"))


def test_a_run_that_needs_a_decision_offers_one_for_its_step() -> None:
    page = parsed(workflows_page.one_run(run("fetch"), WorkflowGraph(name="w", steps=()), ADMIN))
    asked = [attrs.get("hx-confirm") for _, attrs in page.found if attrs.get("hx-confirm")]
    assert "Go on with fetch without the step fetch?" in asked
    assert len(asked) == 4
    over = workflows_page.one_run(run("fetch", "failed"), WorkflowGraph(name="w", steps=()), ADMIN)
    assert not [1 for _, attrs in parsed(over).found if attrs.get("hx-confirm")]


def test_a_run_that_needs_a_decision_is_a_link_beside_the_questions() -> None:
    page = parsed(workflows_page.questions([run("fetch")], ADMIN))
    assert "fetch: fetch needs a decision: fetch" in page.text
    assert [attrs["href"] for tag, attrs in page.found if tag == "a"] == ["/workflows/fetch?run=0a"]


def test_a_reload_that_needs_a_yes_asks_for_it_with_its_reason() -> None:
    page = parsed(config_page.files(compared("git", "1 command is new:\n- npx x"), Role.ADMIN))
    values = {attrs.get("name"): attrs.get("value") for tag, attrs in page.found if tag == "input"}
    assert values == {"plan": "0a", "sure": "yes"}
    assert "npx x" in page.text
    operator = parsed(config_page.files(compared("git"), Role.OPERATOR))
    assert "form" not in {tag for tag, _ in operator.found}
    assert "To reload the files needs the role admin." in operator.text


def test_a_setting_says_its_place_or_that_it_is_a_default() -> None:
    found = SettingsShown(
        files=("/m.toml",), tables=(),
        settings=(SettingShown("log", "level", '"info"', "/m.toml:3"),
                  SettingShown("log", "format", '"text"')),
    )  # fmt: skip
    text = text_of(config_page.in_force(found, "log"))
    places = [text.index(word) for word in ('level"info"', "/m.toml:3", 'format"text"default')]
    assert places == sorted(places), text


def test_files_that_were_written_after_they_were_read_are_named() -> None:
    page = parsed(config_page.in_force(settings("/m.toml"), ""))
    assert "written after" not in page.text
    changed = structs.replace(settings("/m.toml"), newer=("/m.toml",))
    page = parsed(config_page.in_force(changed, ""))
    assert "/m.toml was written after the gateway read the files." in page.text
    assert "/config/files" in [attrs.get("href") for tag, attrs in page.found if tag == "a"]


def test_moments_are_given_to_the_browser_as_moments() -> None:
    until = "2027-02-25T14:52:25Z"
    made = KeyChanged(**structs.asdict(key(expires=until)), key="mmcp_k")
    for page in (
        keys_page.new_key(made, SmallGateway().status()),
        keys_page.one_key(key(expires=until), KeyUse(), Role.ADMIN),
        scripts_page.script_list(
            ScriptList(workspace="default", scripts=(structs.replace(script("a"), savedAt=until),)),
            ["default"], VIEWER,
        ),
    ):  # fmt: skip
        found = [attrs.get("datetime") for tag, attrs in parsed(page).found if tag == "time"]
        assert until in found
