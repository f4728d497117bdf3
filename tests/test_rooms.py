"""The READMEs of both packages say what their folders are for."""

import ast

import pytest

from tests.house import ROOT
from tests.test_tidy import MAY_IMPORT


@pytest.mark.parametrize("side", MAY_IMPORT)
def test_the_readme_names_every_package_with_the_first_sentence_of_its_docstring(side: str) -> None:
    top = ROOT / side.removeprefix("metamcp_")
    lines = []
    for name in MAY_IMPORT[side]:
        doc = ast.get_docstring(ast.parse((top / side / name / "__init__.py").read_text())) or ""
        lines.append(f"- `{name}/`: {' '.join(doc.partition(chr(10) * 2)[0].split())}")
    readme = (top / "README.md").read_text().splitlines()
    assert [line for line in readme if line.startswith("- `")] == lines
