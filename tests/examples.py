"""How many examples a property is tried with."""

from hypothesis import settings

_IN_CI = 100
"""Examples of a property that says nothing about it, without a profile."""


def examples(number: int) -> int:
    """`number` in CI; as many fewer with the profile of `make check` as that has fewer."""
    return max(1, number * settings().max_examples // _IN_CI)
