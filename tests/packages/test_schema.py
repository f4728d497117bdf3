"""The schema of metamcp.toml in the hands of an editor: taplo, which checks files by it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.checkout import PACKAGERS, ROOT, run

pytestmark = pytest.mark.process
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = [ROOT / "deploy/gateway.toml", ROOT / "examples/demo/metamcp.toml"]
ELSEWHERE = ("[project.", "# pyproject.toml", "[contexts.")
"""What a file of another program begins with."""


def metamcp(folder: Path, *arguments: str, ok: bool = True) -> str:
    return run(sys.executable, "-m", "metamcp_supervisor", *arguments, cwd=folder, ok=ok)


def taplo(folder: Path, *names: str) -> "subprocess.CompletedProcess[str]":
    command = [str(PACKAGERS / "taplo"), "lint", "--no-auto-config", *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a new configuration that names the schema beside it."""
    metamcp(tmp_path, "init")
    said = metamcp(tmp_path, "config", "schema", "--write")
    assert said == "metamcp.schema.json: written\nmetamcp.toml: names it in its first line\n"
    return tmp_path


def test_every_example_of_the_docs_is_valid(folder: Path) -> None:
    head = (folder / "metamcp.toml").read_text().splitlines()[0]
    texts = {path.name: path.read_text() for path in FILES}
    for page in PAGES:
        blocks = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
        texts |= {f"{page.stem}-{at}.toml": text for at, text in enumerate(blocks)}
    names = [name for name, text in texts.items() if not text.lstrip().startswith(ELSEWHERE)]
    assert len(names) > 30
    for name in names:
        (folder / name).write_text(f"{head}\n{texts[name]}")
    done = taplo(folder, *names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[servers.git]\ncomand = ["git"]\n', "comand"),
        ('[gateway]\nlisten = "nowhere"\n', '"nowhere"'),
        ('[servers.git]\ncommand = ["git"]\ntimeout = 60\n', "60"),
    ],
)
def test_an_editor_shows_a_wrong_key_and_a_wrong_value(folder: Path, wrong: str, said: str) -> None:
    file = folder / "metamcp.toml"
    assert taplo(folder, file.name).returncode == 0
    file.write_text(file.read_text() + wrong)
    done = taplo(folder, file.name)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_file_gets_its_line_once(folder: Path) -> None:
    text = (folder / "metamcp.toml").read_text()
    again = metamcp(folder, "config", "schema", "--write")
    assert again == "metamcp.schema.json: unchanged\nmetamcp.toml: names a schema already\n"
    assert (folder / "metamcp.toml").read_text() == text
    assert metamcp(folder, "config", "check", "--config", "metamcp.toml").startswith("ok: ")


def test_without_a_file_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    said = metamcp(tmp_path, "config", "schema", "--write", ok=False)
    assert said.endswith("metamcp.toml does not exist; 'metamcp init' makes one in this folder\n")
    assert list(tmp_path.iterdir()) == []
