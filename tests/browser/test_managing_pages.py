"""Pages of keys, approvals, workflows, scripts, the audit and the configuration in a browser: what
a person does there, with what follows for clients."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, expect

from metamcp_worker.access import api_key
from tests.browser.visits import Console, judge
from tests.live.client import MODERN, Client
from tests.live.crowd import Crowd, Ear
from tests.live.gateway import Gateway
from tests.live.test_console_pages import Managed
from tests.live.test_quarantine import WORSE

pytestmark = [pytest.mark.live, pytest.mark.promise("M67")]


@pytest.fixture(scope="module")
def gateway(chromium: Browser) -> Iterator[Gateway]:
    with Managed() as running:
        running.approved()
        running.says(echo=WORSE)
        running.ctl("restart", "alpha", "--wait")
        file = running.folder / "sum.ts"
        for code in ("return args.a + 1\n", "return args.a + 2\n"):
            file.write_text(code)
            words = running.command("scripts", "save", str(file))
            subprocess.run(words, capture_output=True, timeout=60, check=True)
        yield running


@pytest.fixture
def asked(page: Page) -> list[str]:
    """Questions before changes; each is answered with yes."""
    questions: list[str] = []

    def agree(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.accept()

    page.on("dialog", agree)
    return questions


@pytest.mark.promise("M107")
@pytest.mark.parametrize(
    "path",
    [
        "/approvals/alpha/echo", "/audit/1", "/audit?chain=1", "/scripts/sum",
        "/scripts/sum?version=2&diff=1", "/workflows/rounds", "/config?table=servers.beta",
        "/config/files", "/config/edit", "/config/edit?verb=add", "/config/edit?verb=install",
        "/config/edit?verb=disable&server=beta",
    ],
)  # fmt: skip
def test_a_page_of_one_thing_is_for_everybody_in_both_themes_narrow_and_wide(
    page: Page, console: Console, path: str
) -> None:
    console.open(page, path)
    for width in (360, 1600):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme="dark")
        judge(page)
        page.emulate_media(color_scheme="light")
        judge(page)


def test_a_key_that_is_revoked_on_its_page_ends_the_streams_that_are_open(
    page: Page, console: Console, gateway: Gateway, asked: list[str]
) -> None:
    console.open(page, "/keys")
    page.get_by_text("New key").click()
    page.get_by_label("Name", exact=True).fill("laptop")
    page.get_by_label("Endpoints").fill("locked")
    page.get_by_role("button", name="Make the key").click()
    expect(page.get_by_role("status").first).to_contain_text("It is shown this once.")
    key = page.locator("figure.code code").first.inner_text()
    assert key.startswith(api_key.PREFIX)
    judge(page)
    gateway.ctl("restart", "beta", "--wait")  # news, for which the key stays on the page
    expect(page.locator("figure.code code").first).to_have_text(key)
    with Crowd(Ear(gateway.port, MODERN, "/metamcp/locked/mcp", key) for _ in range(3)) as crowd:
        page.get_by_role("link", name="all keys").click()
        page.get_by_role("link", name="laptop").click()
        expect(page.locator("#page")).to_contain_text("3 streams, 0 sessions")
        judge(page)
        page.get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("status").first).to_contain_text("is revoked")
        crowd.hear(lambda ear: ear.ended_s > 0)
    assert "3 streams, 0 sessions and" in asked[0]
    assert asked[0].startswith("Revoke the key laptop (")


def test_a_page_that_was_asked_for_before_a_key_was_made_does_not_replace_the_key(
    page: Page, console: Console, asked: list[str]
) -> None:
    console.open(page, "/keys")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/f/keys", hold, times=1)
    with page.expect_request("**/f/keys"):
        page.keyboard.press("r")  # as news do
    page.get_by_text("New key").click()
    page.get_by_label("Name", exact=True).fill("late")
    page.get_by_role("button", name="Make the key").click()
    shown = page.locator("figure.code code").first
    expect(shown).to_contain_text(api_key.PREFIX)
    with page.expect_event("requestfinished", lambda request: request.method == "GET"):
        held.pop().continue_()
    page.get_by_role("link", name="all keys").hover()
    expect(shown).to_contain_text(api_key.PREFIX)


def test_a_call_that_waits_appears_by_itself_and_runs_after_a_click(
    page: Page, console: Console, gateway: Gateway, asked: list[str]
) -> None:
    console.open(page, "/approvals")
    expect(page.locator("#waiting")).to_contain_text("No call waits")
    found: list[dict[str, Any]] = []

    def call() -> None:
        with closing(Client(gateway.port, MODERN)) as client:
            found.append(client.call("beta__echo", text="<img src=x onerror=alert(1)>"))

    caller = threading.Thread(target=call)
    caller.start()
    waiting = page.locator(".question")
    expect(waiting).to_contain_text("<img src=x onerror=alert(1)>")
    left = waiting.locator(".state").inner_text()
    expect(waiting.locator(".state")).not_to_have_text(left)  # the time runs
    judge(page)
    page.get_by_role("link", name="Servers").click()
    expect(page.locator("#waits")).to_have_text("1")
    page.get_by_role("link", name="Approvals 1").click()
    waiting.get_by_role("button", name="Allow once").click()
    expect(page.get_by_role("status").first).to_contain_text("beta/echo is allowed.")
    caller.join(30)
    assert "result" in found[0]
    assert "call beta/echo (allow once)?" in asked[0]
    expect(page.locator("#waits")).to_have_text("")


def test_a_run_is_watched_in_its_graph_until_it_is_done(
    page: Page, console: Console, asked: list[str]
) -> None:
    console.open(page, "/workflows/rounds")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".graph .waiting")).to_have_count(1)  # the pause
    judge(page)
    expect(page.locator("#run")).to_contain_text("Hello you", timeout=20_000)
    expect(page.locator(".graph .done")).to_have_count(2)
    judge(page)
    assert asked == ["Run the workflow rounds?"]


def test_changed_files_are_shown_and_put_into_force(
    page: Page, console: Console, gateway: Gateway, asked: list[str]
) -> None:
    text = gateway.config.read_text()
    gateway.config.write_text(text.replace('timeout = "40s"', 'timeout = "50s"'))
    console.open(page, "/config/files")
    row = page.get_by_role("row", name=re.compile(r"consent\.timeout"))
    expect(row).to_contain_text('"40s"')
    expect(row).to_contain_text('"50s"')
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("status").first).to_contain_text("is in force")
    expect(page.locator("#page")).to_contain_text("Nothing: the files are in force.")
    assert asked[0].startswith("Put the files into force (plan ")


def test_the_whole_audit_is_saved_as_a_file(page: Page, console: Console) -> None:
    console.open(page, "/audit")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download all records").click()
    assert saved.value.suggested_filename == "audit.jsonl"
    lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith('{"v":1,"seq":1,')
