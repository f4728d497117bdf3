"""No page says that something is missing which is there."""

import re

from tests.docs.pages import PAGES
from tests.house import ROOT

MISSING = re.compile(r"\b(?:not (?:yet|built|there yet|implemented)|so far|does not do so)\b", re.I)
TRUE = (
    ("README.md", "The package is not in a public index so far."),
    ("README.md", "## What is not there yet"),
    ("README.md", "A configuration key for a feature that is not built yet"),
    ("docs/install.md", "The package is not in a public index so far."),
    ("docs/confinement.md", 'answer "Function not implemented"'),
    ("docs/confinement.md", "Where such a file is not there yet,"),
    ("docs/operating.md", "the answer is not there yet."),
    ("docs/code-mode.md", "so far, `message` the name of the tool."),
)
"""Page and words of each line that is true. A feature that is built takes its line out."""


def test_each_line_about_something_that_is_missing_is_known_to_be_true() -> None:
    found = [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        if "reference" not in page.parts
        for line in page.read_text().splitlines()
        if MISSING.search(line)
    ]
    for name, line in found:
        assert any(name == page and words in line for page, words in TRUE), f"{name}: {line}"
    for page, words in TRUE:
        assert any(name == page and words in line for name, line in found), f"{page}: {words}"
