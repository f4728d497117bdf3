"""Graph of a workflow as SVG: its steps from top to bottom, branches side by side, and the state of
each step of a run.

Owns: sizes and places of the parts, the state of a step that ran several times. Never: the steps of
a workflow (`metamcp_worker.engine.workflow`), colours (`console.css`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.console import fragments as ui
from metamcp_worker.ipc.engine_runs import GraphStep

STEPS_MAX = 200
"""Maximum steps of a drawing; the table below it has all of them."""
TEXT_CHARACTERS_MAX = 34
"""Maximum characters of a line in the box of a step."""
HEAD_CHARACTERS_MAX = 28
BOX_WIDTH, BOX_HEIGHT = 250, 46
GAP, BRANCH_GAP, PAD = 22, 18, 10
"""Pixels between two steps, between two branches, and around the drawing."""
HEAD_HEIGHT = 40
"""Pixels between a step and its branches, with the text of the condition."""
_INDEX = re.compile(r"\[[0-9]+\]")
_ORDER = (
    "failed", "needs_decision", "needs_answer", "running", "waiting", "cancelled", "done", "skipped"
)  # fmt: skip
"""States; a step that ran several times has the first state here that a run of it has."""


class StepQuestion(Struct, frozen=True):
    """Question of a step that waits for an answer."""

    message: str
    schema: dict[str, Any]


class RunStep(Struct, frozen=True):
    """Step of a run, as `workflow/status` reports it."""

    step: str
    status: str
    attempts: int = 0
    error: str = ""
    question: StepQuestion | None = None


class _Size(Struct, frozen=True):
    width: int
    height: int


def graph(steps: Sequence[GraphStep], ran: Iterable[RunStep], label: str) -> Node:
    """Return the drawing, or a sentence if it would be too large. `label`: for screen readers."""
    if count(steps) > STEPS_MAX:
        return h.p(class_="empty")[f"A graph of more than {STEPS_MAX} steps is not drawn."]
    size = _block_size(steps)
    width, height = size.width + 2 * PAD, size.height + 2 * PAD
    parts = list(_block(steps, width // 2, PAD, states(ran)))
    return h.div(class_="table", tabindex="0", role="region", aria_label=label)[
        h.svg(
            viewBox=f"0 0 {width} {height}", width=str(width), height=str(height),
            class_="graph", role="img", aria_label=label,
        )[parts]
    ]  # fmt: skip


def count(steps: Sequence[GraphStep]) -> int:
    """Return the number of steps, those inside of others too."""
    return sum(1 + sum(count(group.steps) for group in step.groups) for step in steps)


def states(ran: Iterable[RunStep]) -> dict[str, tuple[str, str]]:
    """Return state and words for each path; a step in a foreach has those of all its items."""
    counters: dict[str, Counter[str]] = {}
    for step in ran:
        counters.setdefault(_INDEX.sub("[]", step.step), Counter())[step.status] += 1
    return {path: _state(counts) for path, counts in counters.items()}


def _state(counts: Counter[str]) -> tuple[str, str]:
    word = next((word for word in _ORDER if counts[word]), next(iter(counts)))
    if counts.total() == 1:
        return word, word
    return word, ", ".join(f"{number} {name}" for name, number in counts.items())


# Sizes


def _block_size(steps: Sequence[GraphStep]) -> _Size:
    sizes = [_step_size(step) for step in steps]
    height = sum(size.height for size in sizes) + GAP * max(0, len(sizes) - 1)
    return _Size(max((size.width for size in sizes), default=BOX_WIDTH), height)


def _step_size(step: GraphStep) -> _Size:
    if not step.groups:
        return _Size(BOX_WIDTH, BOX_HEIGHT)
    inside = [_block_size(group.steps) for group in step.groups]
    width = sum(size.width for size in inside) + BRANCH_GAP * (len(inside) - 1)
    height = BOX_HEIGHT + HEAD_HEIGHT + max(size.height for size in inside) + GAP
    return _Size(max(BOX_WIDTH, width), height)


# Places


def _block(
    steps: Sequence[GraphStep], middle: int, top: int, states_by_path: Mapping[str, tuple[str, str]]
) -> Iterator[Element]:
    """Yield the parts of steps one after the other, whose middle and top are given."""
    for number, step in enumerate(steps):
        if number:
            yield _line(middle, top - GAP, middle, top)
        yield from _step(step, middle, top, states_by_path)
        top += _step_size(step).height + GAP


def _step(
    step: GraphStep, middle: int, top: int, states_by_path: Mapping[str, tuple[str, str]]
) -> Iterator[Element]:
    yield _box(step, middle, top, states_by_path.get(step.path))
    if not step.groups:
        return
    outer_size = _step_size(step)
    inside = [_block_size(group.steps) for group in step.groups]
    left_x = middle - (sum(size.width for size in inside) + BRANCH_GAP * (len(inside) - 1)) // 2
    begin, end = top + BOX_HEIGHT + HEAD_HEIGHT, top + outer_size.height
    for group, size in zip(step.groups, inside, strict=True):
        center = left_x + size.width // 2
        yield _line(middle, top + BOX_HEIGHT, center, begin)
        if group.head:
            text = ui.shorten(group.head, HEAD_CHARACTERS_MAX)
            yield h.text(x=str(center + 6), y=str(begin - 8), class_="head")[
                h.title[ui.shorten(group.head, 500)], text
            ]
        yield from _block(group.steps, center, begin, states_by_path)
        yield _line(center, begin + size.height, middle, end)
        left_x += size.width + BRANCH_GAP


def _box(step: GraphStep, middle: int, top: int, state: tuple[str, str] | None) -> Element:
    word, text = state or ("", "" if step.kind in step.text else step.kind)
    left_x = middle - BOX_WIDTH // 2
    return h.g(class_=f"step {word}" if word else "step")[
        h.title[ui.shorten(step.text, 500)],
        h.rect(x=str(left_x), y=str(top), width=str(BOX_WIDTH), height=str(BOX_HEIGHT), rx="4"),
        h.text(x=str(middle), y=str(top + 19))[_cut(step.text)],
        h.text(x=str(middle), y=str(top + 36), class_="word")[_cut(text)],
    ]


def _cut(text: str) -> str:
    most = TEXT_CHARACTERS_MAX
    return ui.shorten(text if len(text) <= most else f"{text[: most - 1]}…", most * 8)


def _line(x1: int, y1: int, x2: int, y2: int) -> Element:
    return h.line(x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2))
