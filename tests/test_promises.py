"""docs/promises.md and the marks of the tests agree, both ways."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def listed() -> list[str]:
    text = (ROOT / "docs" / "promises.md").read_text()
    return re.findall(r"^\| (M\d+) \|", text, re.MULTILINE)


def marked() -> set[str]:
    mark = re.compile(r"pytest\.mark\.promise\(([^)]*)\)")
    return {
        promise
        for path in (ROOT / "tests").rglob("test_*.py")
        for ids in mark.findall(path.read_text())
        for promise in re.findall(r"\"(M\d+)\"", ids)
    }


def test_every_promise_has_a_test_and_every_mark_a_promise() -> None:
    assert sorted(marked() - set(listed())) == [], "marks without a promise"
    assert sorted(set(listed()) - marked()) == [], "promises without a test"


def test_no_promise_is_listed_twice() -> None:
    assert len(listed()) == len(set(listed()))
