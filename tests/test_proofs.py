"""A page that names a test as proof names one that exists."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROOF = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")


def test_every_test_that_a_page_names_exists() -> None:
    named = {
        (page.name, *found)
        for page in (ROOT / "docs").glob("*.md")
        for found in PROOF.findall(page.read_text())
    }
    assert len(named) > 10
    wrong = [
        f"{page}: {path}::{name}"
        for page, path, name in sorted(named)
        if not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M)
    ]
    assert wrong == []


def test_every_fault_has_a_test_that_does_it() -> None:
    """A row of a table, below its head, is a line that begins with a bar."""
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [
        line for before, line in pairwise(lines) if line.startswith("| ") and before.startswith("|")
    ]
    assert len(rows) > 20
    assert [row for row in rows if not PROOF.search(row.rpartition(" | ")[2])] == []
