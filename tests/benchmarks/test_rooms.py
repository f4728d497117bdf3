"""What decides in the benchmarks is as pure as elsewhere, and every scenario has the same shape."""

import ast
from pathlib import Path

import pytest

from benchmarks.__main__ import SCENARIOS
from tests.house import ROOT, nodes
from tests.test_tidy import IMPURE_IMPORTS

PURE = ("charts", "figures", "pages", "tables")
FOLDER = ROOT / "benchmarks"
SCENARIO_FILES = sorted((FOLDER / "scenarios").glob("[!_]*.py"))


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_has_no_clock_no_dice_and_no_io(name: str) -> None:
    imported: set[str] = set()
    for node in nodes(FOLDER / f"{name}.py"):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}
    assert not imported & IMPURE_IMPORTS


@pytest.mark.parametrize("path", SCENARIO_FILES, ids=lambda path: path.stem)
def test_a_scenario_has_a_title_and_measures(path: Path) -> None:
    names = {node.name for node in nodes(path) if isinstance(node, ast.FunctionDef)}
    assert "measure" in names
    assert "TITLE = " in path.read_text()
    assert path.stem in SCENARIOS
