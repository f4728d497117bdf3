"""Pages of the console over HTTP, in front of a real gateway: keys, approvals, the audit, scripts,
workflows, the configuration."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from metamcp_worker.access import api_key
from tests.live.client import MODERN, Client
from tests.live.console import ConsoleBrowser, Markup
from tests.live.crowd import Crowd, Ear
from tests.live.test_quarantine import WORSE, Pinned
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M67")]

EXTRA = """
workflows = ["steps"]
[audit]
level = "full"
[consent]
timeout = "40s"
on_no_elicitation = "queue"
rules = [{ match = "beta/echo", effect = "ask" }]
[endpoints.default]
namespace = "default"
[endpoints.locked]
namespace = "default"
auth = "keys"
[code]
[endpoints.programs]
namespace = "default"
exposure = "code"
"""
STEPS = {
    "name": "rounds",
    "description": "Calls <b>one</b> tool for each item.",
    "inputs": {"who": {"type": "string", "default": "you"}},
    "steps": [
        {"parallel": [{"id": "left", "output": 1}, {"id": "right", "wait": "3s"}]},
        {"id": "each", "foreach": [1, 2], "steps": [{"id": "say", "wait": "1ms"}]},
        {"output": "Hello ${{ inputs.who }}"},
    ],
}

ASKS = {
    "name": "asks",
    "steps": [
        {
            "id": "order",
            "elicit": {
                "message": "How many <b>notes</b>?",
                "schema": {"type": "object", "properties": {"count": {"type": "integer"}}},
            },
        },
        {"output": "${{ steps.order.result.count }}"},
    ],
}
TOOL = "/approvals/alpha/echo"


class Managed(Pinned):
    """Gateway with all that the pages show."""

    def write(self, servers: Any) -> None:
        super().write(servers)
        folder = self.folder / "steps"
        folder.mkdir(exist_ok=True)
        (folder / "rounds.json").write_text(json.dumps(STEPS))
        (folder / "asks.json").write_text(json.dumps(ASKS))
        # A key at the top of the file stands before all tables.
        top, _, rest = EXTRA.lstrip().partition("\n")
        self.config.write_text(f"{top}\n{self.config.read_text()}\n{rest}")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Managed]:
    with Managed() as running:
        running.approved()
        yield running


@pytest.fixture(scope="module")
def admin(gateway: Managed) -> Iterator[ConsoleBrowser]:
    with ConsoleBrowser(gateway, "admin") as browser:
        yield browser


def shows(browser: ConsoleBrowser, path: str, text: str) -> Markup:
    """The page as soon as it has this text."""
    pages: list[Markup] = []

    def found() -> bool:
        pages[:] = [browser.get(path)]
        return text in pages[0].text

    until(found, f"{text!r} is on the page {path}")
    return pages[0]


def posted(page: Markup, label: str) -> dict[str, str]:
    """The question before a change that a form of the page asks, by the path of the form."""
    return {
        str(attrs["hx-post"]): str(attrs.get("hx-confirm") or "")
        for tag, attrs in page.elements
        if tag == "form" and "hx-post" in attrs and label in str(attrs.get("hx-confirm"))
    }


def test_a_key_is_made_shown_once_and_revoked_with_its_streams(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    made = admin.post("/keys", do="NewKey", name="laptop", endpoints="locked", expires="2h")
    assert "It is shown this once" in made.text
    key = re.search(rf"{api_key.PREFIX}[A-Za-z0-9_-]+", made.text)
    assert key is not None
    assert f"http://127.0.0.1:{gateway.port}/metamcp/locked/mcp" in made.text
    listed = admin.get("/keys")
    assert key[0] not in listed.text
    (path,) = [link for link in listed.links() if link.startswith("/keys/")]
    with Crowd(Ear(gateway.port, MODERN, "/metamcp/locked/mcp", key[0]) for _ in range(3)) as crowd:
        until(lambda: "3 streams" in admin.get(path).text, "the streams are counted")
        (question,) = posted(admin.get(path), "Revoke").values()
        assert question.startswith("Revoke the key laptop (")
        assert "3 streams, 0 sessions and" in question
        said = admin.post(path, do="Revoke")
        assert "The key laptop" in said.text
        assert "is revoked" in said.text
        crowd.hear(lambda ear: ear.ended_s > 0)
    assert "No key was made yet." in admin.get("/keys").text
    with ConsoleBrowser(gateway, "operator") as operator:
        assert "New key" not in operator.get("/keys").text
        status, body = operator.ask("POST", "/f/keys", "do=NewKey&name=mine&expires=1h")
        assert "needs the role admin" in body, status
    audit = gateway.run("ctl", "events", "--json").stdout
    assert "console session" in audit


def test_a_call_waits_for_a_person_on_the_page_and_runs_after_a_yes(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    found: list[dict[str, Any]] = []

    def call() -> None:
        with closing(Client(gateway.port, MODERN)) as client:
            found.append(client.call("beta__echo", text="<b>may I?</b>"))

    caller = threading.Thread(target=call)
    caller.start()
    page = shows(admin, "/approvals", "beta/echo")
    assert "<b>may I?</b>" in page.text  # a text, not an element
    assert "b" not in page.tags
    (waiting,) = [attrs for _, attrs in page.elements if attrs.get("id") == "waiting"]
    assert waiting["hx-trigger"] == "every 1s"
    question = page.fields()["id"] or ""
    said = admin.post("/approvals", do="approve", id=question, scope="24h")
    assert "beta/echo is allowed." in said.text
    caller.join(30)
    assert "result" in found[0], found
    shows(admin, "/approvals", "Agreed by")
    grant = admin.get("/approvals").fields()["id"] or ""
    assert "beta/echo is revoked." in admin.post("/approvals", do="revoke", id=grant).text


@pytest.mark.promise("M52")
def test_a_question_of_a_workflow_is_answered_on_the_page(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    params: dict[str, Any] = {"name": "asks", "wait": False}
    asked = gateway.ask("workflow-change", {"method": "workflow/run", "params": params})
    run = asked["structured"]["run"]
    page = shows(admin, "/approvals", "How many <b>notes</b>?")
    assert "b" not in page.tags
    order = {"run": run, "step": "order"}
    assert {name: page.fields()[name] for name in order} == order
    wrong = admin.post("/approvals", do="answer", **order, **{"q.count": "x"})
    assert "the answer is wrong" in wrong.text
    said = admin.post("/approvals", do="answer", **order, **{"q.count": "3"})
    assert "The question of step order" in said.text
    assert "is answered." in said.text

    def output() -> object:
        status = {"method": "workflow/status", "params": {"run": run}}
        return gateway.ask("workflow", status)["structured"]["output"]

    until(lambda: output() == 3, "it goes on by itself")
    shows(admin, "/approvals", "No run of a workflow waits for a person.")


def test_a_tool_in_quarantine_is_shown_with_its_words_and_approved(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    gateway.says(echo=WORSE)
    gateway.ctl("restart", "alpha", "--wait")
    page = shows(admin, "/approvals", "alpha.echo")
    assert "quarantine" in page.text
    one = admin.get(TOOL)
    assert {"del", "ins"} & one.tags
    assert "id_rsa" in one.text
    fields = one.fields()
    said = admin.post(
        "/approvals", do="lock", server="alpha", tool="echo", offered=fields["offered"] or ""
    )
    assert "alpha.echo is approved" in said.text
    assert "Every tool that was seen is as approved." in said.text
    assert "id_rsa" in (gateway.folder / "metamcp.lock").read_text()


def test_the_audit_is_filtered_checked_and_shown_by_record(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        client.call("alpha__echo", text="for the audit")
    page = shows(admin, "/audit?event=call&server=alpha", "alpha__echo")
    record = next(link for link in page.links() if re.fullmatch(r"/audit/\d+", link))
    assert "for the audit" in admin.get(record).text
    assert "No record fits." in admin.get("/audit?tool=nothing").text
    assert re.search(r"The chain is verified up to record \d+", admin.get("/audit?chain=1").text)
    status, lines = admin.ask("GET", "/download/audit")
    assert status == 200
    numbers = [json.loads(line)["seq"] for line in lines.splitlines()]
    assert numbers == [*range(1, len(numbers) + 1)]
    with ConsoleBrowser(gateway, "operator") as operator:
        assert "for the audit" not in operator.get(record).text
        assert operator.ask("GET", "/download/audit")[0] == 403


def test_a_script_is_listed_with_its_versions_and_what_differs(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    file = gateway.folder / "sum.ts"
    for code in ("return args.a + 1\n", "return args.a + 2 // <i>two</i>\n"):
        file.write_text(code)
        gateway.run("scripts", "save", str(file), "--description", "Adds <b>numbers</b>")
    page = admin.get("/scripts?q=adds")
    assert "Adds <b>numbers</b>" in page.text
    one = admin.get("/scripts/sum")
    assert "return args.a + 2 // <i>two</i>" in one.text
    assert ("/f/tools/run_script?endpoint=default") in [
        attrs.get("hx-post") for tag, attrs in one.elements if tag == "form"
    ]
    assert "return args.a + 1" in admin.get("/scripts/sum?version=1").text
    assert {"del", "ins"} <= admin.get("/scripts/sum?version=2&diff=1").tags
    call = json.dumps({"name": "sum", "args": {"a": 40}})
    ran = admin.post("/tools/run_script?endpoint=programs", json=call)
    assert '"value":42' in ran.text
    with ConsoleBrowser(gateway, "viewer") as viewer:
        assert "sum" in viewer.get("/scripts").text
        assert viewer.ask("GET", "/f/scripts/sum")[0] == 403


def test_a_workflow_is_drawn_run_and_watched_to_its_end(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    assert "/workflows/rounds" in admin.get("/workflows").links()
    page = admin.get("/workflows/rounds")
    assert {"svg", "rect", "line"} <= page.tags
    assert "b" not in page.tags
    begun = admin.post("/workflows/rounds", do="run", inputs='{"who": "<i>us</i>"}')
    assert "The run of rounds has begun." in begun.text
    run = admin.get("/workflows/rounds").links()
    path = next(link for link in run if "run=" in link)
    ended = shows(admin, path, "Output")
    assert "Hello <i>us</i>" in ended.text
    assert "2 done" in ended.text  # the step that ran for each item
    assert not [1 for _, attrs in ended.elements if attrs.get("hx-trigger")]
    wrong = admin.post("/workflows/rounds", do="run", inputs="[]")
    assert "the inputs are not a JSON object" in wrong.text


def test_the_configuration_is_shown_with_places_compared_and_reloaded(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    page = admin.get("/config")
    text = gateway.config.read_text()
    line = text.split("\n").index('timeout = "40s"') + 1
    assert f'consent.timeout "40s" {gateway.config}:{line}' in page.text
    assert "servers.beta" in admin.get("/config?table=servers.beta").text
    assert "Nothing: the files are in force." in admin.get("/config/files").text
    gateway.config.write_text(text.replace('timeout = "40s"', 'timeout = "50s"'))
    try:
        assert f"{gateway.config} was written after" in admin.get("/config").text
        files = admin.get("/config/files")
        assert 'consent.timeout "40s" "50s"' in files.text
        with ConsoleBrowser(gateway, "operator") as operator:
            assert not posted(operator.get("/config/files"), "Put the files")
        said = admin.post("/config", plan=files.fields()["plan"] or "", sure="")
        assert "is in force" in said.text
        assert "was written after" not in admin.get("/config").text
        assert "Nothing: the files are in force." in said.text
        gateway.config.write_text(text + "\n[log\n")
        assert "metamcp.toml" in admin.get("/config/files").text
    finally:
        gateway.config.write_text(text)
        gateway.ctl("reload")


def test_a_file_is_edited_after_its_difference_is_shown(
    gateway: Managed, admin: ConsoleBrowser
) -> None:
    text = gateway.config.read_text()
    try:
        page = admin.get("/config/edit?verb=disable&server=beta")
        assert "+enabled = false" in page.text
        assert gateway.config.read_text() == text
        said = admin.post("/config/edit", verb="disable", server="beta", do="write")
        assert f"{gateway.config}: 'beta' disabled" in said.text
        assert "'disable beta' by console session" in gateway.run("events").stdout
        assert "servers.beta.enabled true false" in admin.get("/config/files").text
        assert "No file switches off" in admin.get("/config/edit").text  # before a reload
        gateway.ctl("reload")
        assert "beta switched off" in admin.get("/config/edit").text
        said = admin.post("/config/edit", verb="enable", server="beta", do="write")
        assert "'beta' enabled" in said.text
        assert gateway.config.read_text() == text
        wrong = admin.post("/config/edit", verb="tools hide", tool="betta.echo")
        assert "has no server 'betta'; did you mean 'beta'?" in wrong.text
        command_ = "python3 -c 'x y' --config=/nowhere"
        added = admin.post("/config/edit", verb="add", server="extra", command=command_)
        assert '+command = ["python3", "-c", "x y", "--config=/nowhere"]' in added.text
        open_quote = admin.post("/config/edit", verb="add", server="extra", command="a 'b")
        assert "No closing quotation" in open_quote.text
    finally:
        gateway.config.write_text(text)
        gateway.ctl("reload")


def test_a_session_of_an_api_key_edits_but_brings_no_command(gateway: Managed) -> None:
    text = gateway.config.read_text()
    made = gateway.run("keys", "create", "remote", "--scope", "console:admin", "--json").stdout
    with ConsoleBrowser(gateway, "operator") as browser:
        assert "To edit files needs the role admin" in browser.get("/config/edit?verb=add").text
        browser.token = ""
        status, body = browser.ask("POST", "/login", json.dumps({"key": json.loads(made)["key"]}))
        assert status == 200, body
        browser.token = json.loads(body)["token"]
        shown = browser.get("/config/edit?verb=disable&server=beta")
        assert "enabled = false" in shown.text
        fields = {
            "add": {"server": "extra", "command": "touch /tmp/x"},
            "config set": {"settings": 'notify.command=["touch"]'},
            "install": {"client": "claude-code"},
            "uninstall": {"client": "claude-code"},
            "workspaces set": {"name": "x", "settings": "include=[]"},
        }
        for verb, given in fields.items():
            for do in ("", "write"):
                refused = browser.post("/config/edit", verb=verb, do=do, **given)
                assert "can bring a command that runs as the user of the gateway" in refused.text
    assert gateway.config.read_text() == text
