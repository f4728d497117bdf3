"""The corpus and mutations of it, for a few seconds; `make fuzz` goes on for longer."""

import pytest

from tests.examples import examples
from tests.fuzz.__main__ import corpus, fuzz
from tests.fuzz.targets import TARGETS, readers

TRIED = {"envelope": 40_000, "head": 40_000, "lines": 40_000, "config": 3000, "arguments": 6000}
"""Inputs of each target in CI: two to four seconds."""


@pytest.mark.promise("M98")
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_promise(target: str) -> None:
    left = iter(range(examples(TRIED[target])))
    assert fuzz(target, 7, lambda: next(left, None) is not None) >= len(corpus(target))


def test_the_two_readers_of_the_invariant_differ_where_a_key_is_repeated() -> None:
    first, last = readers(b'{"params":{"name":"a","name":"b"}}')
    assert (first["params"]["name"], last["params"]["name"]) == ("a", "b")
