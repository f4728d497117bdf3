"""Evaluation in a process of its own, which ends when an expression takes too much."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from metamcp_worker.cel.expressions import ExpressionError
from metamcp_worker.cel.expressions_io import EVALUATION_S_MAX, Evaluator


@asynccontextmanager
async def opened_evaluator() -> AsyncGenerator[Evaluator]:
    evaluator = Evaluator()
    try:
        yield evaluator
    finally:
        await evaluator.close()


@pytest.mark.promise("M52")
async def test_values_are_filled_in_by_paths_and_by_cel() -> None:
    async with opened_evaluator() as evaluator:
        variables = {"inputs": {"a": [1, 2], "b": "x"}}
        value = {"whole": "${{ inputs.a }}", "text": ["${{ inputs.b }}: ${{ size(inputs.a) }}"]}
        assert await evaluator.replace_expressions(value, variables) == {
            "whole": [1, 2],
            "text": ["x: 2"],
        }
        assert await evaluator.condition("inputs.a[1] > 1", variables) is True
        with pytest.raises(ExpressionError, match="'c' is not there"):
            await evaluator.condition("inputs.c > 1", variables)


async def test_paths_need_no_process() -> None:
    async with opened_evaluator() as evaluator:
        assert await evaluator.condition("inputs.a", {"inputs": {"a": 1}}) == 1
        assert evaluator.pid is None


@pytest.mark.parametrize(
    "text",
    [
        "inputs.a.map(x, inputs.a.map(y, inputs.a.map(z, [x, y, z])))",
        "[1, 2]" + ".map(a, [a, a, a, a])" * 40,
    ],
)
async def test_an_expression_that_takes_too_much_ends_and_the_next_one_has_its_value(
    text: str,
) -> None:
    async with opened_evaluator() as evaluator:
        variables = {"inputs": {"a": list(range(1000))}}
        begin = monotonic()
        with pytest.raises(
            ExpressionError, match=r"takes more than 2 s, or too much memory|Memory"
        ):
            await evaluator.condition(text, variables)
        assert monotonic() - begin < 2 * EVALUATION_S_MAX + 4
        assert await evaluator.condition("1 + 1", variables) == 2


async def test_what_an_expression_is_given_has_a_limit() -> None:
    async with opened_evaluator() as evaluator:
        with pytest.raises(ExpressionError, match="given more than"):
            await evaluator.condition("size(inputs.a)", {"inputs": {"a": "x" * 5_000_000}})


async def test_a_process_that_ended_meanwhile_is_replaced() -> None:
    async with opened_evaluator() as evaluator:
        assert await evaluator.condition("1 + 1", {}) == 2
        assert evaluator.pid is not None
        os.kill(evaluator.pid, signal.SIGKILL)
        assert await evaluator.condition("1 + 2", {}) == 3
