"""The table of a crowd of servers, made with a few of them."""

import pytest

from benchmarks import crowd


@pytest.mark.live
def test_a_crowd_is_started_looked_at_reloaded_crashed_and_ended() -> None:
    rows = crowd.main(6).splitlines()
    assert rows[2].startswith("| start of the gateway until 6 servers are ready | ")
    assert any(row.startswith("| SIGKILL of 2 servers at once") for row in rows)
    assert rows[-1].startswith("| SIGKILL of the supervisor until nothing is left | ")
