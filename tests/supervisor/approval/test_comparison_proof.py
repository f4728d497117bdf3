"""The differ against the reference implementation of JSON Schema, on schemas made by dice."""

import json
from typing import Any

import pytest

from metamcp_supervisor.approval.comparison import Comparison, SchemaVerdict, compare
from tests.worker.made_schemas import Dice, grounded, names_in, valid

SEEDS = 240
"""Of each of the parts that the test is made of, so that they run beside each other."""
VALUES = 30


def compared(old: dict[str, Any], new: dict[str, Any]) -> Comparison:
    one, other = (json.dumps({"name": "t", "inputSchema": each}).encode() for each in (old, new))
    return compare(one, other)


@pytest.mark.promise("M40")
@pytest.mark.parametrize("part", range(4))
def test_whoever_is_told_that_callers_go_on_is_told_the_truth(part: int) -> None:
    """A call that was valid stays valid; with ADDITIVE, one that uses none of the new names."""
    proven = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        dice = Dice(seed)
        old = dice.root()
        new = dice.mutated(old)
        found = compared(old, new)
        if found.verdict > SchemaVerdict.ADDITIVE or not (grounded(old) and grounded(new)):
            continue
        added = {
            each.pointer.rpartition("/")[2]
            for each in found.findings
            if each.kind == "member-added"
        }
        for _ in range(VALUES):
            value = dice.value(old, old)
            if not isinstance(value, dict) or names_in(value) & added or not valid(old, value):
                continue
            proven += 1
            assert valid(new, value), (seed, old, new, value, found.findings)
    assert proven > SEEDS, "the dice have made too little that is valid"


def test_most_of_what_is_called_breaking_is_seen_to_break() -> None:
    """Not all: some of it is about values that there are none of, because of something else."""
    broken = seen = 0
    for seed in range(10_000, 10_000 + SEEDS):
        dice = Dice(seed)
        old = dice.root()
        new = dice.mutated(old)
        verdict = compared(old, new).verdict
        if verdict is not SchemaVerdict.BREAKING or not (grounded(old) and grounded(new)):
            continue
        broken += 1
        values = (dice.value(old, old) for _ in range(VALUES * 4))
        seen += any(
            isinstance(each, dict) and valid(old, each) and not valid(new, each) for each in values
        )
    assert broken > SEEDS / 10
    assert seen > broken * 0.6
