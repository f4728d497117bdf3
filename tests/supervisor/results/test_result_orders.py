"""Texts of kept results, as far as an answer of the control socket has room for them."""

import pytest

from metamcp_supervisor.results.result_orders import TEXT_BYTES_MAX, truncate_text
from metamcp_worker.ipc import codec


@pytest.mark.parametrize("character", ["x", "\n", "ü", "\x01"])
def test_as_much_of_a_text_is_shown_as_an_answer_can_hold(character: str) -> None:
    shown = truncate_text(character * 1024 * 1024)
    assert TEXT_BYTES_MAX - 16 < len(codec.dump(shown)) <= TEXT_BYTES_MAX
    assert truncate_text(character) == character
