"""Any configuration whatever: it is read, or refused with its errors, and nothing else."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_supervisor.config.config import Config, ConfigInvalid
from metamcp_supervisor.config.options import all_options, keys
from tests.supervisor.configs import loaded

WORDS = sorted(
    {key for each in all_options() for key in keys(each.section)} | {"git", "a.b", "${X}"}
)
VALUES = st.recursive(
    st.sampled_from(["1", "-1", "nan", "true", '""', '"1s"', '"eager"', '"a.b"', '"${X"', "[]"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3).map(
            lambda items: (
                "{" + ", ".join(f'"{key}" = {value}' for key, value in items.items()) + "}"
            )
        )
    ),
    max_leaves=5,
)
LINES = st.one_of(
    st.tuples(st.sampled_from(WORDS), VALUES).map(lambda pair: f'"{pair[0]}" = {pair[1]}'),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(
        lambda words: "[" + ".".join(f'"{word}"' for word in words) + "]"
    ),
)


def accepted_or_refused(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        try:
            assert isinstance(loaded(Path(folder), name=name), Config)
        except ConfigInvalid as invalid:
            found = invalid
        else:
            return
        assert all(each.message for each in found.problems)
        assert str(found)


@pytest.mark.promise("M98")
@settings(deadline=None)
@given(st.sampled_from(["metamcp.toml", "x.json", "x"]), st.binary())
def test_any_bytes_are_a_configuration_or_a_list_of_errors(name: str, content: bytes) -> None:
    accepted_or_refused(name, content)


@pytest.mark.promise("M98")
@settings(deadline=None)
@given(st.lists(LINES, max_size=12))
def test_any_toml_is_a_configuration_or_a_list_of_errors(lines: list[str]) -> None:
    accepted_or_refused("metamcp.toml", "\n".join(lines).encode())
