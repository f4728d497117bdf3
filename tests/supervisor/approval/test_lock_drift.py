"""What drifted from what was approved, and what clients do not get because of it."""

from typing import Any

import pytest

from metamcp_supervisor.approval import lock_drift
from metamcp_supervisor.approval.lock import Lock, LockedServer
from metamcp_supervisor.approval.lock_drift import (
    ToolDrift,
    approve_tools,
    drifts,
    mode,
    select_quarantined,
)
from metamcp_supervisor.approval.quarantine import QuarantineEffects, QuarantineState, counts
from metamcp_supervisor.config.config import Pinning
from tests.supervisor.locked import ADDITIVE, BREAKING, approved, lock, tool


def one(old: bytes | None, new: bytes | None) -> ToolDrift:
    (found,) = drifts("files", approved(*([old] if old else [])), [new] if new else [])
    return found


@pytest.mark.promise("M40")
@pytest.mark.parametrize(
    ("old", "new", "word", "kept"),
    [
        (tool(), tool(), "same", False),
        (tool(), tool(_meta={"at": 1}), "same", False),
        (tool(), tool(inputSchema=ADDITIVE), "additive", False),
        (tool(inputSchema=BREAKING), tool(), "compatible", False),
        (tool(), tool(inputSchema=BREAKING), "breaking", True),
        (tool(), tool(inputSchema={"$ref": "#/none"}), "unknown", True),
        (tool(description="a"), tool(description="b"), "compatible, words", True),
        (tool(), tool(annotations={"readOnlyHint": True}), "compatible, words", True),
        (tool(), tool(inputSchema=BREAKING, title="x"), "breaking, words", True),
        (tool(), None, "removed", False),
        (None, tool(), "added", True),
        (tool(), b'{"name":"read","title":"a","title":"b"}', "unreadable", True),
    ],
)
def test_what_a_tool_comes_to(old: Any, new: Any, word: str, kept: bool) -> None:
    drift = one(old, new)
    assert (drift.word, drift.harmless) == (word, not kept)
    found = select_quarantined([drift], "enforce")
    assert [(each.server, each.tool) for each in found] == ([("files", "read")] if kept else [])


@pytest.mark.parametrize("pinning", ["off", "record"])
def test_only_who_enforces_keeps_anything_back(pinning: Pinning) -> None:
    assert select_quarantined([one(tool(), tool(title="x"))], pinning) == frozenset()


@pytest.mark.parametrize(
    ("pinning", "locked", "expected"),
    [
        (None, True, "enforce"), (None, False, "record"), ("record", True, "record"),
        ("enforce", False, "enforce"), ("off", True, "off"),
    ],
)  # fmt: skip
def test_a_lock_enforces_unless_the_configuration_says_otherwise(
    pinning: Pinning | None, locked: bool, expected: str
) -> None:
    assert mode(pinning, locked=locked) == expected


def test_only_the_tool_that_drifted_is_kept_back() -> None:
    before = approved(tool("read"), tool("write"))
    found = drifts("files", before, [tool("write", title="x"), tool("read")])
    assert [each.tool for each in select_quarantined(found, "enforce")] == ["write"]


def test_who_calls_it_is_told_why_and_what_to_do() -> None:
    (kept,) = select_quarantined([one(tool(), tool(title="x", inputSchema=BREAKING))], "enforce")
    assert kept.reason == (
        "the tool 'read' of 'files' is in quarantine: it is defined otherwise than approved, in"
        " what it says and so that callers break; an operator may look at it with"
        " 'metamcp lock diff files.read' and approve it with 'metamcp lock approve files.read'"
    )


def test_a_name_that_is_offered_twice_is_not_one_tool() -> None:
    (same,) = drifts("files", approved(tool()), [tool(), tool()])
    (split,) = drifts("files", approved(tool()), [tool(), tool(title="x")])
    assert (same.word, split.word) == ("same", "unreadable")


def test_what_has_no_name_is_no_tool() -> None:
    offered = [b'{"title":"x"}', b'{"name":5}', b"[]", b"{"]
    assert drifts("files", LockedServer(), offered) == ()


def test_a_summary_names_tools_by_what_happened_to_them() -> None:
    before = approved(*(tool(f"t{n}") for n in range(7)), tool("gone"))
    offered = [*(tool(f"t{n}", title="x") for n in range(7)), tool("new")]
    assert lock_drift.summary(drifts("files", before, offered)) == (
        "added: new; compatible, words: t0, t1, t2, t3, t4 and 2 more; removed: gone"
    )


# Approving


def test_all_of_a_server_is_approved_as_it_is_offered() -> None:
    after = approve_tools(
        approved(tool("a"), tool("b")), [tool("b", title="x"), tool("c")], None, {}
    )
    assert after == approved(tool("b", title="x"), tool("c"), name="", version="")


def test_one_tool_is_approved_alone() -> None:
    before = approved(tool("a"), tool("b"))
    offered = [tool("a", title="x"), tool("b", title="x"), tool("c")]
    assert approve_tools(before, offered, "a", {}) == approved(tool("a", title="x"), tool("b"))
    assert approve_tools(before, offered, "c", {}) == approved(tool("a"), tool("b"), tool("c"))
    assert approve_tools(before, [tool("b")], "a", {}) == approved(tool("b"))


def test_what_cannot_be_read_cannot_be_approved() -> None:
    before, broken = approved(tool("a")), b'{"name":"a","title":"a","title":"b"}'
    for only in (None, "a"):
        after = approve_tools(before, [broken], only, {"name": "mcp-files", "version": "1.2"})
        assert after == before
    assert approve_tools(LockedServer(), [broken], None, {}).tools == {}


# Over time


def pins(held: Lock | None = None, **pinnings: Pinning | None) -> QuarantineState:
    found = QuarantineState(Lock())
    found.adopt(held, pinnings)
    return found


def news(of: QuarantineState, *tools: bytes) -> QuarantineEffects:
    return of.take(of.judge("files", tools))


def test_what_is_seen_first_is_remembered_and_later_compared_with() -> None:
    mine = pins(files=None)
    first = news(mine, tool())
    assert first.seen == lock(files=approved(tool(), name="", version=""))
    assert (first.sentence, first.fronts) == ("", False)
    again = news(mine, tool(title="x"))
    assert again == QuarantineEffects("compatible, words: read", fronts=False, seen=None)
    assert counts(mine.last("files")) == {"drifted": 1}
    assert mine.quarantined_tools == frozenset()


def test_the_same_drift_is_told_once() -> None:
    mine = pins(lock(files=approved(tool())), files=None)
    assert news(mine, tool(title="x")).sentence == "compatible, words: read (1 in quarantine)"
    assert news(mine, tool(title="x")) == QuarantineEffects()
    assert news(mine, tool()) == QuarantineEffects("", fronts=True)
    assert news(mine, tool(title="x")).fronts


def test_a_lock_enforces_and_fronts_hear_of_what_is_kept_back() -> None:
    mine = pins(lock(files=approved(tool("a"), tool("b"))), files=None)
    found = news(mine, tool("a", inputSchema=BREAKING), tool("b", inputSchema=ADDITIVE), tool("c"))
    assert found.fronts
    assert {each.tool for each in mine.quarantined_tools} == {"a", "c"}
    assert counts(mine.last("files")) == {"harmless": 1, "quarantined": 2}
    assert [each.word for each in mine.last("files").drifts] == ["breaking", "additive", "added"]


def test_who_enforces_without_a_lock_trusts_what_is_seen_first() -> None:
    mine = pins(files="enforce")
    assert not news(mine, tool()).fronts
    assert news(mine, tool(title="x")).fronts
    assert {each.tool for each in mine.quarantined_tools} == {"read"}


def test_a_new_lock_frees_what_it_approves() -> None:
    mine = pins(lock(files=approved(tool())), files=None)
    news(mine, tool(title="x"))
    mine.adopt(lock(files=approved(tool(title="x"))), {"files": None})
    assert news(mine, tool(title="x")).fronts
    assert mine.quarantined_tools == frozenset()


@pytest.mark.parametrize("pinnings", [{}, {"files": "off"}])
def test_who_is_not_to_be_looked_at_is_not(pinnings: Any) -> None:
    mine = pins(lock(files=approved(tool())), **pinnings)
    assert news(mine, tool(title="x")) == QuarantineEffects()
    assert mine.seen == Lock()
    assert mine.last("files").drifts == ()


def test_a_server_that_is_gone_keeps_nothing_back() -> None:
    mine = pins(lock(files=approved(tool())), files=None)
    news(mine, tool(title="x"))
    mine.adopt(lock(files=approved(tool())), {})
    assert mine.quarantined_tools == frozenset()
    assert mine.last("none").drifts == ()
