"""READMEs and docstrings name the folders and modules that exist, and say what they are for."""

import ast
import re
from pathlib import Path

import pytest

from tests import feature_index, picture
from tests.house import ROOT, SOURCES, module_name, nodes
from tests.test_ratchets import worker_modules_of_supervisor
from tests.test_tidy import MAY_IMPORT

SENT_TO = re.compile(r"\(`([a-z_]+(?:\.[a-z_]+)*)`\)")
"""A name alone in parentheses and backquotes."""


@pytest.mark.parametrize("side", MAY_IMPORT)
def test_the_readme_names_every_package_with_the_first_sentence_of_its_docstring(side: str) -> None:
    top = ROOT / side.removeprefix("metamcp_")
    lines: list[str] = []
    for name in MAY_IMPORT[side]:
        doc = ast.get_docstring(ast.parse((top / side / name / "__init__.py").read_text())) or ""
        lines.append(f"- `{name}/`: {' '.join(doc.partition(chr(10) * 2)[0].split())}")
    readme = (top / "README.md").read_text().splitlines()
    assert [line for line in readme if line.startswith("- `")] == lines


@pytest.mark.parametrize("side", MAY_IMPORT)
def test_the_readme_shows_who_imports_whom_as_make_imports_draws_it(side: str) -> None:
    text = picture.readme(side).read_text()
    assert picture.with_picture(text, side) == text


def test_the_index_of_features_is_that_of_today_and_each_has_modules() -> None:
    page = feature_index.PAGE.read_text()
    assert page == feature_index.with_table(page), "run 'make imports'"
    for feature, pattern in feature_index.FEATURES.items():
        assert feature_index.modules_of(pattern), f"{feature} has no modules"


def test_the_readme_names_the_packages_that_the_supervisor_imports() -> None:
    readme = (ROOT / "worker" / "README.md").read_text()
    sentence = readme.partition("The supervisor imports ")[2].partition(", and no other")[0]
    named = re.findall(r"`(\w+)`", sentence)
    assert named == sorted({module.split(".")[1] for module in worker_modules_of_supervisor()})


def test_an_arrow_that_others_imply_is_not_drawn() -> None:
    found = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert set(picture.drawn(found)) == {("a", "b"), ("b", "c")}


def test_a_docstring_that_sends_a_reader_to_another_module_names_one_that_exists() -> None:
    modules = {part for path in SOURCES for part in module_name(path).split(".")}
    wrong = [
        f"{module_name(path)}: {target}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for target in SENT_TO.findall(ast.get_docstring(node) or "")
        if target.partition(".")[0] not in modules | _names(path)
    ]
    assert wrong == []


def _names(path: Path) -> set[str]:
    """The names that a file itself has: of functions, arguments, members and constants."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_every_answer_to_where_something_is_names_a_file() -> None:
    page = (ROOT / "docs" / "hacking.md").read_text()
    answers = re.findall(r"^\| .*\? \| `(.*)` \|$", page, re.MULTILINE)
    assert len(answers) >= 30
    assert [path for path in answers if not (ROOT / path).is_file()] == []


def test_the_page_on_architecture_names_modules_that_exist() -> None:
    known = {"/".join(module_name(path).split(".")[1:]) for path in SOURCES}
    rooms = {name.partition("/")[0] for name in known}
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = {
        path for path in re.findall(r"`([a-z_0-9]+/[a-z_0-9]+)(?:\.\w+)?`", page)
        if path.partition("/")[0] in rooms
    }  # fmt: skip
    assert len(named) > 20
    assert sorted(named - known) == []
