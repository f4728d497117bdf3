"""What is kept back before anybody has judged it, and what a judgement costs again."""

import pytest

from metamcp_supervisor.approval import quarantine as pinned
from metamcp_supervisor.approval.lock import Lock, definitions, fold_lock, text
from metamcp_supervisor.approval.lock import Lock as Locked
from metamcp_supervisor.approval.quarantine import QuarantineDecision, QuarantineState
from metamcp_supervisor.config import naming
from metamcp_supervisor.config.config import Pinning
from tests.supervisor.configs import server
from tests.supervisor.locked import ADDITIVE, BREAKING, approved, lock, tool

OWN = "files@0123456789ab"
LARGE = "x" * pinned.AT_ONCE_BYTES_MAX


def made(
    held: Lock | None = None, seen: Lock | None = None, **pinnings: Pinning | None
) -> QuarantineState:
    found = QuarantineState(seen or Locked())
    found.adopt(held, pinnings or {"files": None})
    return found


def kept(judged: QuarantineDecision | None) -> set[str]:
    return set() if judged is None else {each.tool for each in judged.kept}


def test_what_is_not_as_approved_is_kept_back_at_once_be_it_harmless_or_not() -> None:
    mine = made(lock(files=approved(tool("a"), tool("b"), tool("c"))))
    offered = [tool("a"), tool("b", inputSchema=ADDITIVE), tool("c", title="x"), tool("new")]
    held = mine.at_once("files", offered)
    assert kept(held) == {"b", "c", "new"}
    assert held is not None
    assert mine.hold(held)
    why = (
        "this tool of 'files' is in quarantine until it is compared with what was approved; try"
        " again in a moment"
    )
    assert {each.reason for each in mine.quarantined_tools} == {why}
    news = mine.take(mine.judge("files", offered))
    assert news.fronts
    assert {each.tool for each in mine.quarantined_tools} == {"c", "new"}


def test_what_was_judged_is_known_by_its_bytes_and_keeps_its_reason() -> None:
    mine = made(lock(files=approved(tool("a"), tool("b"))))
    harmless, worse = tool("a", inputSchema=ADDITIVE), tool("b", title="x")
    mine.take(mine.judge("files", [harmless, worse]))
    before = mine.quarantined_tools
    held = mine.at_once("files", [worse, harmless, tool("new")])
    assert held is not None
    assert kept(held) == {"b", "new"}
    assert before < held.kept


def test_what_another_lock_said_is_not_known_any_more() -> None:
    mine = made(lock(files=approved(tool("a"))))
    harmless = tool("a", inputSchema=ADDITIVE)
    mine.take(mine.judge("files", [harmless]))
    assert kept(mine.at_once("files", [harmless])) == set()
    mine.adopt(lock(files=approved(tool("a", title="x"))), {"files": None})
    assert kept(mine.at_once("files", [harmless])) == {"a"}


def test_a_catalogue_that_is_large_and_unknown_is_kept_back_whole_until_it_is_judged() -> None:
    one, other = tool("a", description=LARGE), tool("b")
    mine = made(lock(files=approved(one, other)))
    assert kept(mine.at_once("files", [one, other])) == {"a", "b"}
    assert kept(mine.at_once("files", [other])) == set()
    mine.take(mine.judge("files", [one, other]))
    assert kept(mine.at_once("files", [one, other])) == set()
    assert kept(mine.at_once("files", [one, other, tool("new")])) == {"new"}


@pytest.mark.parametrize("pinning", ["off", "record"])
def test_nothing_is_kept_back_at_once_of_who_is_not_held_to_it(pinning: Pinning) -> None:
    mine = made(lock(files=approved(tool("a"))), files=pinning)
    assert mine.at_once("files", [tool("a", title="x")]) is None


def test_a_judgement_again_is_what_it_would_be_anew() -> None:
    held = lock(files=approved(tool("a"), tool("b"), tool("c"), tool("d")))
    steps = [
        [tool("a"), tool("b", title="x"), tool("c", inputSchema=ADDITIVE), tool("d")],
        [tool("a"), tool("b", title="x"), tool("c", inputSchema=BREAKING)],
        [tool("a"), tool("a"), tool("b"), tool("e")],
        [tool("a"), tool("a", title="y"), tool("b", title="x"), tool("e")],
        [tool("a"), tool("b", title="x"), tool("d")],
        [tool("d", title="z"), tool("a"), tool("c")],
        [],
    ]
    mine = made(held)
    for offered in steps:
        again, anew = mine.judge("files", offered), made(held).judge("files", offered)
        assert again.kept == anew.kept
        assert [(one.tool, one.word) for one in again.drifts] == [
            (one.tool, one.word) for one in anew.drifts
        ]
        assert again.known == anew.known
        mine.take(again)


def test_what_was_judged_by_files_that_are_not_in_force_any_more_is_known_as_such() -> None:
    mine = made(lock(files=approved(tool("a"))))
    draft = mine.draft(None, {"files": None}).judge("files", [tool("a")])
    stale = mine.judge("files", [tool("a")])
    mine.adopt(None, {"files": None})
    assert (stale.edition == mine.edition, draft.edition == mine.edition) == (False, True)


def test_a_process_for_one_client_is_held_to_what_its_server_has() -> None:
    mine = made(lock(files=approved(tool("a"), tool("b"))))
    mine.take(mine.judge("files", [tool("a"), tool("b")]))
    news = mine.take(mine.judge(OWN, [tool("a", title="x"), tool("b")]))
    assert news.fronts
    assert {(each.server, each.tool) for each in mine.quarantined_tools} == {(OWN, "a")}
    (only,) = mine.quarantined_tools
    assert "'metamcp lock approve files.a'" in only.reason
    mine.adopt(mine.lock, {})
    assert mine.quarantined_tools == frozenset()


def test_the_first_sight_of_such_a_process_is_not_that_of_its_server() -> None:
    mine = made(files="enforce")
    assert mine.judge(OWN, [tool("a")]).first is None
    assert mine.at_once(OWN, [tool("a")]) is None


def test_who_is_held_to_a_first_sight_that_cannot_be_read_is_trusted_with_nothing() -> None:
    mine = QuarantineState(None)
    mine.adopt(None, {"files": "enforce", "notes": None})
    assert kept(mine.at_once("files", [tool("a")])) == {"a"}
    mine.take(mine.judge("files", [tool("a")]))
    assert {each.tool for each in mine.quarantined_tools} == {"a"}
    assert mine.take(mine.judge("notes", [tool("a")])).seen is None


def test_the_first_sight_stays_the_first() -> None:
    mine = made(files="enforce")
    one, other = mine.judge("files", [tool("a")]), mine.judge("files", [tool("a", title="x")])
    assert mine.take(one).seen is not None
    assert mine.take(other).seen is None
    assert kept(mine.judge("files", [tool("a", title="x")])) == {"a"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("read", "'metamcp lock diff files.read'"), ("r; rm -rf ~", "'metamcp lock diff files'")],
)
def test_a_command_has_no_name_in_it_that_a_shell_takes_for_something_else(
    name: str, said: str
) -> None:
    mine = made(lock(files=approved(tool(name))))
    mine.take(mine.judge("files", [tool(name, title="x")]))
    (only,) = mine.quarantined_tools
    assert said in only.reason


def test_a_lock_that_is_kept_is_the_same_lock() -> None:
    held = lock(files=approved(tool("a"), tool("b", annotations={"readOnlyHint": True, "n": 1.5})))
    assert fold_lock(held) == held
    assert text(fold_lock(held)) == text(held)


def test_another_command_or_url_under_the_same_name_is_another_server() -> None:
    servers = [
        server("files", command=("a", "1")),
        server("files", command=("a", "2")),
        server("files", command=(), url="https://x/mcp"),
        server("files", command=(), module="files:server"),
    ]
    known = [definitions([each])["files"] for each in servers]
    assert len(set(known)) == len(servers)
    assert all(naming.flaw(name) == "" for name in known)
    long = definitions([server("n" * naming.NAME_CHARACTERS_MAX)])
    assert all(naming.flaw(name) == "" for name in long.values())
    first, other = ({"files": name} for name in known[:2])

    mine = QuarantineState(Locked())
    mine.adopt(None, {"files": "enforce"}, first)
    mine.take(mine.judge("files", [tool("a")]))
    mine.adopt(None, {"files": "enforce"}, other)
    assert mine.at_once("files", [tool("b")]) is None
    mine.take(mine.judge("files", [tool("b")]))
    assert mine.quarantined_tools == frozenset()
    mine.adopt(None, {"files": "enforce"}, first)
    mine.take(mine.judge("files", [tool("b")]))
    assert [each.tool for each in mine.quarantined_tools] == ["b"]
