"""What a soak found, in words: its faults, how requests ended, figures before and after. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1024 * 1024
GROWTH_MAX = 1.05
PEAK_BYTES = {"fronts": 2 * MIB}
"""For each process: what a moment in which all clients wait at it leaves. The objects are gone by
then, and what is large is given back, but Python keeps pools for small objects with holes in them.
It does so once: the next such moment finds the holes."""
COUNTED = ("processes", "descriptors", "threads")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ends`: (kind of client, end) -> requests; `before`, `after`: role -> processes, descriptors,
    threads and bytes of memory; `problems`: a sentence for each broken invariant; `said`: further
    lines."""

    seed: int
    seconds: float
    done: Counter[str]
    missed: Counter[str]
    ends: Counter[tuple[str, str]]
    worst: str
    before: Mapping[str, tuple[int, int, int, int]]
    after: Mapping[str, tuple[int, int, int, int]]
    scrapes: int
    problems: Sequence[str]
    said: Sequence[str] = ()


def grown(
    before: Mapping[str, tuple[int, int, int, int]], after: Mapping[str, tuple[int, int, int, int]]
) -> list[str]:
    """A sentence for each figure that is more than it was, and of memory more than a little."""
    counted = [
        f"{role}: {now} {what}, before {was}"
        for role, old in before.items()
        for what, was, now in zip(COUNTED, old[:3], after[role][:3], strict=True)
        if now > was
    ]
    memory = [
        f"{role}: {after[role][3] / MIB:.2f} MiB of memory, before {old[3] / MIB:.2f}"
        for role, old in before.items()
        if after[role][3] > old[3] * GROWTH_MAX + PEAK_BYTES.get(role, 0) * old[0]
    ]
    return counted + memory


def words(outcome: Outcome) -> str:
    """The whole report."""
    kinds = sorted(outcome.done | outcome.missed)
    what = "faults" if kinds else "load"
    lines = [f"seed {outcome.seed}, {outcome.seconds:g} s of {what}", ""]
    if kinds:
        lines += ["| fault | done | nothing to be done to |", "|---|---|---|"]
        lines += [
            f"| {kind} | {outcome.done[kind]} | {outcome.missed[kind] or '-'} |" for kind in kinds
        ]
        lines += [f"| all | {outcome.done.total()} | {outcome.missed.total() or '-'} |", ""]
    lines += [*_ends(outcome.ends), "", f"worst wait: {outcome.worst}", *outcome.said]
    lines.append(f"metrics parsed: {outcome.scrapes} times")
    lines += ["", "| processes of | how many | descriptors | threads | memory MiB |"]
    lines.append("|---|---|---|---|---|")
    for role, old in outcome.before.items():
        new = outcome.after.get(role, old)
        cells = [f"{was} → {now}" for was, now in zip(old[:3], new[:3], strict=True)]
        lines.append(f"| {role} | {' | '.join(cells)} | {old[3] / MIB:.1f} → {new[3] / MIB:.1f} |")
    lines += ["", *(f"BROKEN: {sentence}" for sentence in outcome.problems)]
    lines.append(f"{len(outcome.problems)} broken" if outcome.problems else "everything held")
    return "\n".join(lines)


def _ends(ends: Counter[tuple[str, str]]) -> list[str]:
    hows = sorted({how for _, how in ends}, key=lambda how: (how != "right", how))
    kinds = sorted({kind for kind, _ in ends})
    lines = [f"| clients | {' | '.join(hows)} |", "|---" * (len(hows) + 1) + "|"]
    for kind in kinds:
        counts = " | ".join(str(ends[kind, how] or "-") for how in hows)
        lines.append(f"| {kind or '?'} | {counts} |")
    totals = " | ".join(str(sum(ends[kind, how] for kind in kinds)) for how in hows)
    return [*lines, f"| all | {totals} |"]
