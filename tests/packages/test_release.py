"""What a tag sets in motion: the workflow, the formula, the lines of the changelog."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from deploy.homebrew.build import formula
from tests.packages.checkout import PACKAGERS, ROOT, run

pytestmark = pytest.mark.process
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
URL = "https://forge.example.com/us/metamcp"


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="needs actionlint")
def test_workflows_mean_what_they_say() -> None:
    assert run("actionlint", *WORKFLOWS, cwd=ROOT) == ""


def test_workflows_run_pinned_actions_with_few_rights() -> None:
    run(PACKAGERS / "zizmor", "--offline", "--quiet", *WORKFLOWS, cwd=ROOT)


def test_the_formula_is_that_of_the_source_distribution() -> None:
    found = formula("metamcp-9.8.7.tar.gz", b"source", f"{URL}/")
    assert f'url "{URL}/releases/download/v9.8.7/metamcp-9.8.7.tar.gz"' in found
    assert f'sha256 "{hashlib.sha256(b"source").hexdigest()}"' in found
    assert "@" not in found.replace("python@3.13", "")
    with pytest.raises(ValueError, match="is not metamcp-VERSION"):
        formula("metamcp-9.8.7-py3-none-any.whl", b"", URL)


def test_the_commands_of_the_formula_install_the_program(tmp_path: Path) -> None:
    """Its lines are run by this machine's uv, with the values that Homebrew would put in."""
    words = {
        "python": "/usr/bin/python3",
        "libexec": str(tmp_path / "libexec"),
        "buildpath": str(ROOT),
    }
    lines = re.findall(r"^    system (.+)$", formula("metamcp-1.tar.gz", b"", URL), re.MULTILINE)
    assert len(lines) == 3
    environ = {"VIRTUAL_ENV": words["libexec"], "UV_LINK_MODE": "copy"}
    for line in lines:
        command = [word.strip('"') if '"' in word else words[word] for word in line.split(", ")]
        assert command[0] == "uv"
        own = [f"{name}={value}" for name, value in environ.items()]
        run("env", *own, PACKAGERS / "uv", *command[1:], cwd=ROOT)
    assert run(tmp_path / "libexec/bin/metamcp", "--version", cwd=tmp_path).startswith("metamcp ")


def test_fragments_become_a_section_of_the_changelog(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/+limits.added.md").write_text("Limits for everything.\n")
    (tmp_path / "changes/+crash.fixed.md").write_text("A crash is gone.\n")
    before = (tmp_path / "CHANGELOG.md").read_text()
    run("git", "init", "--quiet", cwd=tmp_path)
    run(PACKAGERS / "towncrier", "build", "--yes", "--version", "9.8.7", "--date", "2026-01-02",
        cwd=tmp_path)  # fmt: skip
    after = (tmp_path / "CHANGELOG.md").read_text()
    mark = "<!-- releases -->"
    head, _, released = before.partition(mark)
    assert after.startswith(head + mark)
    assert after.endswith(released.strip() + "\n")
    section = after.removeprefix(head + mark).removesuffix(released.strip() + "\n")
    assert " ".join(section.split()) == (
        "## 9.8.7 (2026-01-02) ### Added - Limits for everything. ### Fixed - A crash is gone."
    )
    assert not list((tmp_path / "changes").glob("*.md"))
