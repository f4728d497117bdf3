"""The soak of bad input, for a shorter time."""

import pytest

from tests.faults import soak_bad

pytestmark = pytest.mark.live


@pytest.mark.promise("M98")
def test_bad_requests_and_bad_lines_of_a_server_leave_the_gateway_as_small_as_it_was() -> None:
    found = soak_bad.run(requests=20_000, lines=5000)
    assert found["requests"] == 20_000
