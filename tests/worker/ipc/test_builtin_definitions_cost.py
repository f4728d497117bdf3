"""Estimated tokens: the same for whoever shows them."""

import pytest
from msgspec import Raw

from metamcp_worker.ipc import builtin_definitions

pytestmark = pytest.mark.promise("M38")


@pytest.mark.parametrize(
    ("definition", "tokens"),
    [(b"", 0), (b"{}", 1), (b"1234", 1), (b"12345", 2), ("ü".encode() * 4, 2), (Raw(b"12345"), 2)],
)
def test_four_bytes_of_a_definition_are_a_token(definition: bytes | Raw, tokens: int) -> None:
    assert builtin_definitions.tokens(definition) == tokens


def test_many_small_definitions_are_not_rounded_up_one_by_one() -> None:
    assert builtin_definitions.tokens_of_all([b"{}"] * 10) == 5
    assert builtin_definitions.tokens_of_all([]) == 0


@pytest.mark.parametrize(
    ("everything", "shown", "tokens", "percent"),
    [
        (1000, 10, 990, 99),
        (1000, 1, 999, 99),
        (1000, 1000, 0, 0),
        (1000, 0, 1000, 100),
        (100, 1000, -900, 0),
        (0, 0, 0, 0),
        (0, 10, -10, 0),
    ],
)
def test_what_is_saved_is_told_in_tokens_and_of_a_hundred(
    everything: int, shown: int, tokens: int, percent: int
) -> None:
    saving = builtin_definitions.TokenSavings(everything, shown)
    assert (saving.tokens, saving.percent) == (tokens, percent)
