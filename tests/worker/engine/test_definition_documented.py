"""docs/workflows.md: each example is a definition without problems, and the limits are those."""

import re
from pathlib import Path

import pytest

from metamcp_worker.cel import expressions
from metamcp_worker.engine import definition, load

DOC = (Path(__file__).parents[3] / "docs/workflows.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)


@pytest.mark.promise("M52")
@pytest.mark.parametrize("text", EXAMPLES)
def test_each_example_is_good(tmp_path: Path, text: str) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(text)
    rules = text.startswith("rules:")
    loaded = load.load([], [str(path)]) if rules else load.load([("default", str(path))])
    assert loaded.problems == []
    assert loaded.rules if rules else loaded.definitions


def test_there_are_examples_of_every_kind_of_step() -> None:
    assert all(re.search(rf"\b{kind}:", "\n".join(EXAMPLES)) for kind in definition.KINDS)


def test_the_limits_are_as_documented() -> None:
    text = " ".join(DOC.split("## Limits")[1].split())
    for words in (
        f"at most {load.FILE_BYTES_MAX // 1024} KiB",
        f"{definition.STEPS_MAX} steps",
        f"{definition.STEPS_DEPTH_MAX} deep",
        f"{definition.INPUTS_MAX} inputs",
        f"{definition.EXPRESSIONS_MAX} expressions",
        f"{expressions.EXPRESSION_CHARACTERS_MAX} characters",
        f"{definition.BRANCHES_MAX} entries",
        f"{definition.FOREACH_ITEMS_MAX:,} items",
        f"{definition.ATTEMPTS_MAX} attempts",
        f"at most {definition.WAIT_S_MAX / 86_400:.0f} days",
        f"at most {expressions.VALUE_BYTES_MAX // 2**20} MiB",
        f"{load.FILES_MAX} files",
    ):
        assert words in text, words
