"""How many examples a property is tried with."""

from hypothesis import settings

_WHOLE = 100
"""Examples of a property that says nothing about it, without a profile."""


def examples(number: int) -> int:
    """`number` each night and before a release; with a profile, at most as many as that has."""
    most = settings().max_examples
    return number if most >= _WHOLE else min(number, most)
