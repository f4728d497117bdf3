"""Evaluation in a process of its own, which ends when an expression takes too much."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from metamcp_worker.cel.expressions import ExpressionError
from metamcp_worker.cel.expressions_io import EVALUATION_S_MAX, Evaluator


def run(work: Callable[[Evaluator], Awaitable[None]]) -> None:
    async def whole() -> None:
        evaluator = Evaluator()
        try:
            await work(evaluator)
        finally:
            await evaluator.close()

    asyncio.run(whole())


@pytest.mark.promise("M52")
def test_values_are_filled_in_by_paths_and_by_cel() -> None:
    async def work(evaluator: Evaluator) -> None:
        variables = {"inputs": {"a": [1, 2], "b": "x"}}
        value = {"whole": "${{ inputs.a }}", "text": ["${{ inputs.b }}: ${{ size(inputs.a) }}"]}
        assert await evaluator.replace_expressions(value, variables) == {
            "whole": [1, 2],
            "text": ["x: 2"],
        }
        assert await evaluator.condition("inputs.a[1] > 1", variables) is True
        with pytest.raises(ExpressionError, match="'c' is not there"):
            await evaluator.condition("inputs.c > 1", variables)

    run(work)


def test_paths_need_no_process() -> None:
    async def work(evaluator: Evaluator) -> None:
        assert await evaluator.condition("inputs.a", {"inputs": {"a": 1}}) == 1
        assert evaluator.pid is None

    run(work)


@pytest.mark.parametrize(
    "text",
    [
        "inputs.a.map(x, inputs.a.map(y, inputs.a.map(z, [x, y, z])))",
        "[1, 2]" + ".map(a, [a, a, a, a])" * 40,
    ],
)
def test_an_expression_that_takes_too_much_ends_and_the_next_one_has_its_value(text: str) -> None:
    async def work(evaluator: Evaluator) -> None:
        variables = {"inputs": {"a": list(range(1000))}}
        begin = monotonic()
        with pytest.raises(
            ExpressionError, match=r"takes more than 2 s, or too much memory|Memory"
        ):
            await evaluator.condition(text, variables)
        assert monotonic() - begin < 2 * EVALUATION_S_MAX + 4
        assert await evaluator.condition("1 + 1", variables) == 2

    run(work)


def test_what_an_expression_is_given_has_a_limit() -> None:
    async def work(evaluator: Evaluator) -> None:
        with pytest.raises(ExpressionError, match="given more than"):
            await evaluator.condition("size(inputs.a)", {"inputs": {"a": "x" * 5_000_000}})

    run(work)


def test_a_process_that_ended_meanwhile_is_replaced() -> None:
    async def work(evaluator: Evaluator) -> None:
        assert await evaluator.condition("1 + 1", {}) == 2
        assert evaluator.pid is not None
        os.kill(evaluator.pid, signal.SIGKILL)
        assert await evaluator.condition("1 + 2", {}) == 3

    run(work)
