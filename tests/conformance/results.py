"""What a run of the suite found, and whether that is worse or better than what it found before.

Values only: running is `suite`'s, and which runs there are is `cells`'s.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

Json = dict[str, Any]

#: What counts against a server: a requirement not met, and a recommendation not met.
LOST = ("FAILURE", "WARNING")


@dataclass(frozen=True, slots=True)
class Score:
    """One scenario: how many checks it passed, and the ids of those that it did not."""

    passed: int
    lost: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)


#: By scenario.
Scores = Mapping[str, Score]


def score(checks: list[Json], *, once: bool = False) -> Score:
    """`once`: a check that is made with each request counts once, for how many there are is a
    matter of time."""
    lost = [check for check in checks if check["status"] in LOST]
    passed = [str(check["id"]) for check in checks if check["status"] == "SUCCESS"]
    return Score(
        len(set(passed) if once else passed),
        tuple(sorted(str(check["id"]) for check in lost)),
        {str(check["id"]): str(check.get("errorMessage", "")) for check in lost},
    )


def totals(scores: Scores) -> tuple[int, int, int]:
    """Checks passed, checks lost, scenarios without a lost one."""
    passed = sum(one.passed for one in scores.values())
    lost = sum(len(one.lost) for one in scores.values())
    return passed, lost, sum(not one.lost for one in scores.values())


def worse(found: Scores, wanted: Scores) -> dict[str, str]:
    """What was lost since, in words, by scenario."""
    problems: dict[str, str] = {}
    for scenario, before in wanted.items():
        now = found.get(scenario)
        if now is None:
            problems[scenario] = "did not run"
            continue
        new = Counter(now.lost) - Counter(before.lost)
        if new:
            problems[scenario] = "; ".join(f"{check}: {now.reasons.get(check)}" for check in new)
        elif now.passed < before.passed:
            problems[scenario] = f"passes {now.passed} checks and passed {before.passed}"
    return problems


def better(found: Scores, wanted: Scores) -> list[str]:
    """The scenarios that gained, if none lost."""
    if worse(found, wanted):
        return []
    return [
        scenario
        for scenario, now in found.items()
        if scenario not in wanted
        or now.passed > wanted[scenario].passed
        or len(now.lost) < len(wanted[scenario].lost)
    ]


# --- the committed baseline -------------------------------------------------------------------


def written(scores: Scores, like: Scores) -> Json:
    """Scores as the baseline keeps them: only where they differ from those of another run."""
    return {
        scenario: one.passed if not one.lost else {"passed": one.passed, "lost": list(one.lost)}
        for scenario, one in sorted(scores.items())
        if like.get(scenario) != one
    }


def read(kept: Json, like: Scores) -> Scores:
    """The opposite of `written`."""
    found = dict(like)
    for scenario, value in kept.items():
        if isinstance(value, int):
            found[scenario] = Score(value)
        else:
            one = cast(Json, value)
            found[scenario] = Score(one["passed"], tuple(one["lost"]))
    return found
