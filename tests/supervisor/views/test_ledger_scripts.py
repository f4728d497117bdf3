"""Orders about scripts: versions, what stays as it was, each workspace for itself, refusals."""

import pytest
from msgspec import structs

from metamcp_supervisor.views.ledger import Delta, Ledger, OrderImpossible
from metamcp_worker.ipc.disclosure import (
    AnyOrder,
    DeleteScript,
    DisclosureDelta,
    DisclosureState,
    SaveScript,
    ViewOrder,
    ViewOwner,
    shift,
    with_full_name,
)
from metamcp_worker.ipc.saved_scripts import (
    CODE_BYTES_MAX,
    DESCRIPTION_CHARACTERS_MAX,
    SCRIPTS_BYTES_MAX,
    SCRIPTS_MAX,
    Script,
)

ME = ViewOwner("desk", "local")
SCHEMA = '{"properties":{"n":{"type":"integer"}}}'
FULL = SaveScript("sum", "return 1", "javascript", "Adds.", SCHEMA, expose=True)


def decided(ledger: Ledger, order: AnyOrder, now: float = 1.0) -> Delta:
    delta = ledger.decide(ViewOrder(ME, order), now)
    assert ledger.changes(delta) is (delta != Delta())
    ledger.apply(delta)
    return delta


def after(*orders: AnyOrder) -> Ledger:
    ledger = Ledger(DisclosureState())
    for order in orders:
        decided(ledger, order)
    return ledger


def refusal(ledger: Ledger, order: AnyOrder) -> str:
    with pytest.raises(OrderImpossible) as found:
        ledger.decide(ViewOrder(ME, order), 1.0)
    return str(found.value)


@pytest.mark.promise("M48")
def test_each_save_is_a_version_and_what_it_does_not_say_stays_as_it_was() -> None:
    ledger = after(FULL)
    first = Script("sum", 1, "return 1", "javascript", "Adds.", SCHEMA, True, 1.0)
    assert ledger.script("sum") == first
    decided(ledger, SaveScript("sum", "return 2"), 2.0)
    second = structs.replace(first, version=2, code="return 2", created=2.0)
    assert ledger.read_everything().scripts == (second,)
    decided(ledger, SaveScript("sum", "return 2", description="", parameters="", expose=False), 3.0)
    assert ledger.script("sum") == Script("sum", 3, "return 2", "javascript", created=3.0)


def test_the_same_once_more_is_not_another_version() -> None:
    ledger = after(FULL)
    assert decided(ledger, FULL, 2.0) == Delta()
    assert decided(ledger, SaveScript("sum", "return 1"), 2.0) == Delta()
    spaced = SaveScript("sum", "return 1", parameters=SCHEMA.replace(":", " :\n"))
    assert decided(ledger, spaced, 2.0) == Delta()


@pytest.mark.promise("M48")
def test_workspaces_have_scripts_of_the_same_name_and_do_not_hear_of_each_other() -> None:
    ledger = after(
        SaveScript("sum", "return 1"), with_full_name(SaveScript("sum", "return 2"), "team")
    )
    assert [one.code for one in ledger.read_everything().scripts] == ["return 1", "return 2"]
    decided(ledger, with_full_name(SaveScript("mine", "return 3"), "team"))
    assert refusal(ledger, DeleteScript("x")) == "no script is named 'x'; there are: sum"
    theirs = refusal(ledger, with_full_name(DeleteScript("x"), "team"))
    assert theirs == "no script is named 'x'; there are: mine, sum"
    decided(ledger, with_full_name(DeleteScript("sum"), "team"))
    assert [one.name for one in ledger.read_everything().scripts] == ["sum", "team:mine"]


def test_a_deleted_script_begins_anew() -> None:
    ledger = after(FULL, SaveScript("sum", "return 2"), DeleteScript("sum"))
    assert ledger.read_everything() == DisclosureState()
    decided(ledger, SaveScript("sum", "return 3"))
    assert ledger.script("sum") == Script("sum", 1, "return 3", created=1.0)


def test_fronts_are_told_what_has_changed_alone() -> None:
    ledger = after(FULL, SaveScript("b", "1"), SaveScript("c", "1"))
    before = ledger.read_everything()
    decided(ledger, SaveScript("b", "2"))
    decided(ledger, DeleteScript("c"))
    found = ledger.script("b")
    assert found is not None
    assert shift(before, ledger.read_everything()) == DisclosureDelta(
        scripts=(found,), drop_scripts=("c",)
    )


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (SaveScript("", "1"), "letters, digits"),
        (SaveScript("../up", "1"), "letters, digits"),
        (SaveScript("x" * 49, "1"), "1 to 48"),
        (SaveScript("a\n", "1"), "letters, digits"),
        (SaveScript("a", " \n"), "has some code"),
        (SaveScript("a", "é" * (CODE_BYTES_MAX // 2 + 1)), f"at most {CODE_BYTES_MAX} bytes"),
        (
            SaveScript("a", "1", description="x" * (DESCRIPTION_CHARACTERS_MAX + 1)),
            f"at most {DESCRIPTION_CHARACTERS_MAX} characters",
        ),
        (SaveScript("a", "1", parameters='{"pattern": "a"}'), "$.pattern that is not checked"),
        (DeleteScript("a"), "no script is named 'a'; there are: none yet"),
    ],
)
def test_a_script_that_cannot_be_kept_is_refused_with_the_reason(
    order: AnyOrder, words: str
) -> None:
    assert words in refusal(Ledger(DisclosureState()), order)


def test_the_number_of_scripts_of_a_workspace_has_a_limit() -> None:
    full = tuple(Script(f"s{number}", 1, "1") for number in range(SCRIPTS_MAX))
    ledger = Ledger(DisclosureState(scripts=full))
    assert f"there are {SCRIPTS_MAX} scripts" in refusal(ledger, SaveScript("more", "1"))
    decided(ledger, SaveScript("s1", "2"))
    decided(ledger, with_full_name(SaveScript("more", "1"), "team"))


def test_all_scripts_together_have_a_limit() -> None:
    code = "x" * CODE_BYTES_MAX
    many = SCRIPTS_BYTES_MAX // CODE_BYTES_MAX
    full = tuple(Script(f"s{number}", 1, code) for number in range(many))
    ledger = Ledger(DisclosureState(scripts=full))
    assert "delete some that nobody needs" in refusal(ledger, SaveScript("more", "1"))
    decided(ledger, SaveScript("s1", "y" * CODE_BYTES_MAX))
