"""The official suite finds in every cell what it found before, or less to complain of."""

import pytest

from tests.conformance import results, suite
from tests.conformance.cells import Cell, every
from tests.conformance.matrix import Baseline, run
from tests.conformance.results import Scores

# All cells together; one that hangs is ended by the suite's own limits.
pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


def name(cell: Cell) -> str:
    return cell.name


@pytest.fixture(scope="module")
def baseline() -> Baseline:
    return Baseline()


@pytest.fixture(scope="module")
def found(baseline: Baseline) -> dict[Cell, Scores]:
    if why := suite.missing():
        pytest.skip(why)
    return run(every(), baseline)


@pytest.mark.parametrize("cell", every(), ids=name)
def test_a_cell_loses_no_check_that_it_passed_before(
    cell: Cell, found: dict[Cell, Scores], baseline: Baseline
) -> None:
    assert found[cell], "the suite ran"
    problems = results.worse(found[cell], baseline.of(cell) or {})
    assert not problems, "\n".join(f"{scenario}: {why}" for scenario, why in problems.items())
