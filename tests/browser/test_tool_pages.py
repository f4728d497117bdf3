"""Pages of tools, views and calls in a browser: found, called, asked, repeated, and built."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.browser.visits import HOSTILE, Console, judge
from tests.live.gateway import ROOT, Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.promise("M107")]

TYPED = {"module": "tests.fakes.typed_tools:server", "env": {"PYTHONPATH": str(ROOT)}}
EXTRA = """
[recording]
calls = "full"
[endpoints.default]
namespace = "default"
[endpoints.few]
namespace = "default"
exposure = "search"
"""


@pytest.fixture(scope="module")
def gateway(chromium: Browser) -> Iterator[Gateway]:
    with Gateway({"git": fake("--only", "echo,elicit"), "typed": TYPED}, extra=EXTRA) as running:
        yield running


@pytest.fixture
def questions(page: Page) -> list[str]:
    """Questions that the page asks; each is answered with yes."""
    found: list[str] = []

    def agree(dialog: Dialog) -> None:
        found.append(dialog.message)
        dialog.accept()

    page.on("dialog", agree)
    return found


def judged(page: Page) -> None:
    """The page is for everybody, narrow and dark as well as wide and light."""
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    judge(page)
    page.set_viewport_size({"width": 1600, "height": 800})
    page.emulate_media(color_scheme="light")
    judge(page)


@pytest.mark.parametrize(
    "path",
    [
        "/tools/typed__keep",
        "/tools/typed__count?endpoint=few&tab=definition",
        "/tools/typed__count?tab=way",
        "/views/new",
    ],
)
def test_a_page_is_for_everybody(page: Page, console: Console, path: str) -> None:
    console.open(page, path)
    judged(page)


def test_a_walk_by_keyboard_from_a_search_to_the_answer_of_a_tool_and_its_call(
    page: Page, console: Console, questions: list[str]
) -> None:
    console.open(page, "/tools")
    page.keyboard.press("/")
    page.keyboard.type("letters of words")
    page.keyboard.press("Enter")
    expect(page.locator("#page tbody").get_by_role("row").first).to_contain_text("typed__count")
    page.get_by_role("link", name="typed__count").focus()
    page.keyboard.press("Enter")
    words = page.get_by_label("words *")
    expect(words).to_be_visible()
    words.focus()
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    page.keyboard.type("three")
    page.get_by_role("button", name="Call", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("It answered after")
    assert questions == ["Call typed__count at the endpoint default? It may change something."]
    expect(page.locator("figure code").first).to_have_text('{\n  "one": 3,\n  "three": 5\n}')
    expect(words).to_have_value("one\nthree")
    page.get_by_text("Copy as").click()
    page.get_by_text("Raw request and answer").click()
    expect(page.get_by_text("metamcp call typed__count --endpoint default")).to_be_visible()
    judged(page)
    page.get_by_role("link", name="Calls", exact=True).click()
    row = page.get_by_role("row").filter(has_text="typed__count").first
    expect(row).to_contain_text("ok")
    row.get_by_role("link").click()
    expect(page.get_by_text('"three"').first).to_be_visible()
    page.get_by_text("Repeat it").click()
    page.get_by_role("button", name="Repeat the call").click()
    expect(page.get_by_role("status").first).to_contain_text("The result is the same as before.")
    judged(page)


def test_the_table_of_tools_is_ordered_by_a_link_in_its_head(page: Page, console: Console) -> None:
    console.open(page, "/tools?server=git")
    head = page.get_by_role("columnheader", name="Tokens")
    head.get_by_role("link").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#page tbody").get_by_role("row").first).to_contain_text("elicit")
    judged(page)
    page.get_by_label("Server").select_option("typed")
    expect(page).to_have_url(re.compile("order=tokens"))
    expect(head).to_have_attribute("aria-sort", "descending")


def test_a_question_of_the_server_is_answered_in_the_page(
    page: Page, console: Console, questions: list[str]
) -> None:
    console.open(page, "/tools/git__elicit")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("The server asks something")
    judged(page)
    page.get_by_label("name *").fill("Ada")
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_role("status").first).to_contain_text("It answered after")
    expect(page.locator("figure code").first).to_contain_text("Ada")
    assert questions == []  # the tool says that it only reads


def test_texts_of_a_result_are_inert(page: Page, console: Console, questions: list[str]) -> None:
    console.open(page, "/tools/git__echo")
    page.get_by_text("More", exact=True).click()
    text = page.get_by_label("Arguments as JSON")
    said = " ".join(HOSTILE).replace("\x1b", "\\u001b").replace('"', '\\"')
    text.fill(f'{{"text": "{said}"}}')
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("It answered after")
    expect(page.locator("figure code").first).to_contain_text("<script>window.hacked = 1</script>")
    expect(page.locator("figure code").first).to_contain_text("\\x1b[31mred\\x1b[0m \\u{202e}tfel")
    assert page.evaluate("window.hacked === undefined")


def test_a_tool_set_is_built_by_ticking_and_ticks_survive_a_filter(
    page: Page, console: Console, questions: list[str]
) -> None:
    console.open(page, "/views")
    page.get_by_role("link", name="New tool set").click()
    page.get_by_label("echo", exact=True).check()
    page.get_by_label("Only tools that match").fill("letters of each word")
    page.keyboard.press("Enter")
    expect(page.get_by_label("echo", exact=True)).to_have_count(0)
    page.get_by_label("count", exact=True).check()
    page.get_by_label("Name").fill("dev")
    page.get_by_role("button", name="Show what it costs").click()
    expect(page.get_by_role("status").first).to_contain_text("2 tools, about")
    judged(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_contain_text("The tool set dev is saved.")
    page.get_by_role("button", name="Equip on few").click()
    expect(page.get_by_role("button", name="Put away on few")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No tool set is saved.")).to_be_visible()
    assert questions == [
        "Save the tool set dev with 2 tools?",
        "Equip on few: the tool set dev?",
        "Delete the tool set dev with 2 tools?",
    ]
