"""The feature that docs/hacking.md adds as an example is four files, and each part of it works."""

import sys
from pathlib import Path

import pytest

from tests.packages.checkout import ROOT, checkout, run

FILES_MAX = 4
USES = '''
import pytest

from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake

EXTRA = """
[greeting]
word = "Ahoy"

[endpoints.default]
namespace = "default"
builtins = ["greeting"]
"""


@pytest.mark.live
def test_its_key_its_tool_its_verb_and_its_metric_are_there() -> None:
    with Gateway({"one": fake()}, extra=EXTRA) as gateway:
        assert gateway.ask("greet", {"name": "Ada"}) == {"greeting": "Ahoy, Ada!"}
        assert "metamcp_greetings_total 1.0" in gateway.ops("/metrics")[1]
        client = Client(gateway.port, MODERN)
        assert client.text("greet", name="Ada") == "Hello, Ada!"
        client.close()
'''


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_feature_of_the_guide_is_four_files_and_works(tmp_path: Path) -> None:
    guide = (ROOT / "docs/hacking.md").read_text()
    (change,) = guide.split("\n```diff\n")[1:]
    copy = checkout(tmp_path / "copy")
    patch = tmp_path / "feature.patch"
    patch.write_text(change.partition("\n```\n")[0] + "\n")
    run("git", "apply", "--unidiff-zero", patch, cwd=copy)
    run("git", "add", "--all", cwd=copy)
    changed = run("git", "diff", "--cached", "--name-only", cwd=copy).split()
    assert len(changed) <= FILES_MAX, changed
    test = copy / "tests" / "live" / "test_greeting.py"
    test.write_text(USES)
    environ = {"PYTHONPATH": f"{copy}/supervisor:{copy}/worker:{copy}"}
    run(sys.executable, "-m", "pytest", "-q", test, cwd=copy, environ=environ)
