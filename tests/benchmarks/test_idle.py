"""The table of what idle gateways take, made with a few servers and for a moment."""

import pytest

from benchmarks import idle


@pytest.mark.live
def test_a_row_for_each_number_of_servers_and_one_with_foreign_processes() -> None:
    head, line, *rows = idle.main([1, 2], 0.2, 3, settle_s=0)
    assert head.startswith("| servers | all | worker |")
    assert head.count("|") == line.count("|")
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 2", "| 2, and 3 foreign processes"]
