"""Every page of the console in a browser: both themes, narrow and wide, by keyboard, and live."""

import os
import re
import signal

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from metamcp_supervisor.console import site
from tests.browser.visits import BAD, Console, judge
from tests.live.gateway import Gateway
from tests.waiting import until

pytestmark = pytest.mark.live

PATHS = (
    *(f"/{one.name}" for one in site.all_pages() if one.title),
    "/servers/git",
    "/logs/git?beside=loud",
)
TABS = 10


def streams(gateway: Gateway) -> int:
    found = [one for one in gateway.status()["roles"] if one["role"] == "console"]
    return int(found[0]["counts"].get("streams", 0))


@pytest.mark.promise("M107")
@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_for_everybody_in_both_themes_narrow_and_wide(
    page: Page, console: Console, path: str
) -> None:
    console.open(page, path)
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    judge(page)
    page.set_viewport_size({"width": 1600, "height": 800})
    page.emulate_media(color_scheme="light")
    judge(page)


def test_the_first_page_is_for_everybody_and_its_command_is_copied(chromium: Browser) -> None:
    gateway = Gateway({})
    home = gateway.folder / "home"
    gateway.environ |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    (home / ".cursor").mkdir(parents=True)
    (home / ".cursor/mcp.json").write_text('{"mcpServers": {"notes": {"command": "notes"}}}')
    with gateway, chromium.new_context() as context:
        console = Console(gateway)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=console.base)
        console.session(context)
        tab = context.new_page()
        console.open(tab, "/")
        expect(tab.locator("#page h1")).to_have_text("Welcome")
        tab.set_viewport_size({"width": 360, "height": 800})
        judge(tab)
        tab.get_by_role("row", name="Cursor").get_by_role("button", name="Copy").click()
        expect(tab.locator("#said")).to_have_text("Copied.")
        copied = tab.evaluate("navigator.clipboard.readText()")
        assert copied == f"metamcp import cursor --to {gateway.config}"


@pytest.mark.promise("M107")
def test_a_walk_from_the_link_to_a_restarted_server(
    chromium: Browser, console: Console, gateway: Gateway
) -> None:
    with chromium.new_context() as context:
        tab = context.new_page()
        tab.goto(console.link())
        expect(tab.get_by_role("row", name=re.compile("git"))).to_contain_text("active")
        assert "#" not in tab.url
        expect(tab.locator("#pulse")).to_have_text("live")
        expect(tab.get_by_role("alert")).to_contain_text("broken (error)")
        tab.get_by_role("link", name="git", exact=True).click()
        assert tab.url.endswith("/servers/git")
        expect(tab.get_by_role("heading", name="git", level=1)).to_be_visible()
        before = gateway.server("git")["pid"]
        questions: list[str] = []

        def agree(dialog: Dialog) -> None:
            questions.append(dialog.message)
            dialog.accept()

        tab.on("dialog", agree)
        tab.get_by_role("button", name="Restart").click()
        expect(tab.get_by_role("status").first).to_contain_text("git: restart was ordered.")
        assert questions == ["Restart git?"]
        until(lambda: gateway.server("git")["pid"] not in (0, before), "it is another process")
        expect(tab.get_by_role("cell", name="restart", exact=True).first).to_be_visible()
        tab.go_back()
        expect(tab.locator("#page h1")).to_have_text("Servers")


def test_everything_is_reached_by_keyboard(page: Page, console: Console) -> None:
    console.open(page, "/servers")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("go to the filter")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("loud")
    page.keyboard.press("Enter")
    expect(page.locator("#page tbody").first.get_by_role("row")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=loud$"))
    page.keyboard.press("Escape")
    link = page.get_by_role("link", name="loud", exact=True)
    for _ in range(40):
        if link.evaluate("link => link === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#page h1")).to_have_text("loud")
    expect(page.locator("#page h1")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.locator("#page h1")).to_have_text("Logs")


def test_orders_for_ticked_servers_name_them(page: Page, console: Console) -> None:
    console.open(page, "/servers?q=loud")
    said: list[str] = []

    def refuse(dialog: Dialog) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    page.get_by_label("tick loud").check()
    page.get_by_role("button", name="Stop").click()
    assert said == ["Stop: loud?"]
    assert console.gateway.server("loud")["state"] != "stopped"


def test_a_log_follows_until_the_reader_scrolls_up(page: Page, console: Console) -> None:
    console.open(page, "/logs/loud")
    log = page.locator("#log-loud")
    expect(log).to_contain_text("line 399")
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") < 8
    log.evaluate("log => { log.scrollTop = 0 }")
    expect(log).to_have_attribute("data-stays", "")
    console.gateway.ctl("restart", "loud")
    newer = page.locator("[data-newest]")
    expect(newer).to_contain_text("new", timeout=15_000)
    assert log.evaluate("log => log.scrollTop") == 0
    newer.click()
    expect(newer).to_be_hidden()
    until(
        lambda: log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") < 8,
        "the end is shown",
    )
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "loud.log"


@pytest.mark.promise("M107")
def test_what_a_server_says_is_shown_and_never_run(page: Page, console: Console) -> None:
    for path in ("/servers", "/servers/broken", f"/servers/{BAD}", f"/logs/{BAD}"):
        console.open(page, path)
        assert page.evaluate("window.hacked") is None
    expect(page.locator(f"#log-{BAD}")).to_contain_text("<script>window.hacked = 1</script>")
    expect(page.locator(f"#log-{BAD}")).to_contain_text("\\x1b[31mred")
    expect(page.locator(f"#log-{BAD}")).to_contain_text("\\u{202e}tfel")


@pytest.mark.promise("M107")
def test_ten_tabs_have_one_stream_and_the_session_of_the_first(
    chromium: Browser, console: Console, gateway: Gateway
) -> None:
    with chromium.new_context() as context:
        first = context.new_page()
        first.goto(console.link())
        expect(first.locator("#pulse")).to_have_text("live")
        tabs = [first]
        for _ in range(TABS - 1):
            tab = context.new_page()
            console.open(tab, "/servers")
            tabs.append(tab)
        for tab in tabs:
            expect(tab.locator("#pulse")).to_have_text("live", timeout=15_000)
        until(lambda: streams(gateway) == 1, "one stream for all")
        first.close()
        expect(tabs[-1].locator("#pulse")).to_have_text("live", timeout=15_000)


def test_times_go_on_while_nothing_happens(page: Page, console: Console) -> None:
    console.open(page, "/servers/git")
    state = page.locator("dl > div").first.locator("dd")
    expect(state).to_have_text(re.compile(r"since \d\d:\d\d:\d\d \("))
    page.evaluate("document.getElementById('page').dataset.live = 'times'")  # no other news count
    before = state.text_content() or ""
    expect(state).to_have_text(before)
    expect(state).not_to_have_text(before, timeout=15_000)


def test_a_page_goes_on_when_the_process_of_the_console_is_killed(
    page: Page, console: Console
) -> None:
    console.open(page, "/servers")
    expect(page.locator("#pulse")).to_have_text("live")
    (role,) = [one for one in console.gateway.status()["roles"] if one["role"] == "console"]
    os.kill(role["pid"], signal.SIGKILL)
    again = re.compile(rf"requests (?!{role['counts']['requests']},)")
    expect(page.get_by_role("row", name="console")).to_contain_text(again, timeout=15_000)
    expect(page.locator("#pulse")).to_have_text("live", timeout=15_000)
    until(lambda: streams(console.gateway) == 1, "it follows the next process")


def test_a_session_that_is_revoked_ends_its_open_page(chromium: Browser, console: Console) -> None:
    with chromium.new_context() as context:
        tab = context.new_page()
        tab.goto(console.link("viewer"))
        expect(tab.locator("#pulse")).to_have_text("live")
        assert not tab.get_by_role("button", name="Stop").count()
        console.revoke(console.sessions()[-1]["id"])
        expect(tab.get_by_role("alert")).to_contain_text("session", timeout=15_000)
        assert tab.evaluate("sessionStorage.getItem('metamcp-session')") is None
