"""A page that names a test as proof names one that exists."""

import re
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
        if f"\ndef {name}(" not in (ROOT / path).read_text()
    ]
    assert wrong == []
