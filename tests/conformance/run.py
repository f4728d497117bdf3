"""The conformance suite, in every cell, as a table.

    python -m tests.conformance.run [--write] [--exact] [PATTERN ...]

A pattern is the name of a cell, with `*` for any part of it: `2025-11-25/legacy/*`. The exit code
is 1 if a cell lost a check that it passed when the baseline was written.
"""

import argparse
import sys

from tests.conformance import results, suite
from tests.conformance.cells import Cell, chosen
from tests.conformance.matrix import Baseline, run
from tests.conformance.results import Score, Scores

#: The suite explains some failures with the whole answer.
LINE_MAX = 400


def line(cell: Cell, found: Scores, wanted: Scores | None) -> str:
    passed, lost, clean = results.totals(found)
    if wanted is None:
        verdict = "not in the baseline"
    elif results.worse(found, wanted):
        verdict = "WORSE"
    else:
        verdict = "better" if results.better(found, wanted) else "as before"
    return f"{cell.name:36}{passed:6}{lost:6}{f'{clean} of {len(found)}':>12}   {verdict}\n"


def table(found: dict[Cell, Scores], baseline: Baseline) -> str:
    head = f"{'cell':36}{'passed':>6}{'lost':>6}{'clean':>12}   baseline\n"
    return head + "".join(line(cell, one, baseline.of(cell)) for cell, one in found.items())


def details(found: dict[Cell, Scores], baseline: Baseline) -> str:
    """What got worse, and what does not pass where nothing is expected yet."""
    lines: list[str] = []
    for cell, one in found.items():
        wanted = baseline.of(cell)
        clean = {name: Score(score.passed) for name, score in one.items()}
        problems = results.worse(one, clean if wanted is None else wanted)
        lines += [f"{cell.name} {name}: {why}"[:LINE_MAX] + "\n" for name, why in problems.items()]
    return "".join(sorted(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="which cells; all of them")
    parser.add_argument("--write", action="store_true", help="write down what is not worse")
    parser.add_argument("--exact", action="store_true", help="fail if anything is better, too")
    options = parser.parse_args()
    if why := suite.missing():
        sys.exit(why)
    baseline = Baseline()
    cells = chosen(options.patterns)
    found = run(cells, baseline)
    found = {cell: found[cell] for cell in cells}
    sys.stdout.write(table(found, baseline) + "\n" + details(found, baseline))
    expected = {cell: wanted for cell in cells if (wanted := baseline.of(cell)) is not None}
    lost = any(results.worse(found[cell], wanted) for cell, wanted in expected.items())
    gained = [cell.name for cell in expected if results.better(found[cell], expected[cell])]
    if options.write:
        baseline.take(found)
    elif gained:
        sys.stdout.write(f"better than the baseline, commit it (--write): {', '.join(gained)}\n")
    return 1 if lost or (options.exact and gained) else 0


if __name__ == "__main__":
    sys.exit(main())
