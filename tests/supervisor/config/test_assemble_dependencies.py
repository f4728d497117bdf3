"""`depends_on`: who waits for whom, and the errors about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor.config.assemble import circles

NAMES = some.sampled_from("abcdef")


@pytest.mark.parametrize(
    ("wants", "found"),
    [
        ({"a": ()}, []),
        ({"a": ("b",), "b": ("c",), "c": ()}, []),
        ({"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()}, []),
        ({"a": ("a",)}, [("a",)]),
        ({"a": ("b",), "b": ("a",)}, [("a", "b")]),
        ({"x": ("a",), "a": ("b",), "b": ("c",), "c": ("a",)}, [("a", "b", "c")]),
        ({"a": ("nobody",)}, []),
    ],
)
def test_servers_that_wait_for_each_other_are_found(
    wants: dict[str, tuple[str, ...]], found: list[tuple[str, ...]]
) -> None:
    assert circles(wants) == found


@given(some.dictionaries(NAMES, some.lists(NAMES, max_size=4, unique=True).map(tuple)))
def test_without_a_circle_everybody_gets_a_turn_and_with_one_somebody_does_not(
    wants: dict[str, tuple[str, ...]],
) -> None:
    started: set[str] = {name for needed in wants.values() for name in needed} - set(wants)
    while able := {name for name in wants if name not in started and {*wants[name]} <= started}:
        started |= able
    assert (not circles(wants)) == (set(wants) <= started)
