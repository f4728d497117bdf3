"""Reference and man pages say what the program says: every verb, option, key, code and tool."""

import os
import re
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest

from deploy.docs import commands, man, notes, write
from deploy.docs.reference import either
from metamcp_supervisor.config.options import all_options
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.errors import Code
from tests.house import ROOT

MANDOC = pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")


@pytest.fixture(scope="module")
def metamcp() -> commands.Verb:
    return commands.tree()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.name: path for path in man.write(tmp_path_factory.mktemp("man"))}


@pytest.mark.promise("M111")
def test_the_reference_is_what_the_program_says() -> None:
    stale = [path.name for path, text in write.files().items() if path.read_text() != text]
    assert stale == [], "'make reference' writes these pages again"


AFTER_A_RUN = """
from click.testing import CliRunner
from deploy.docs import commands
from metamcp_supervisor.__main__ import main
CliRunner().invoke(main, ["ctl", "-h"])
ctl = next(verb for verb in commands.tree().below if verb.words[1] == "ctl")
print(*[name for name, _ in ctl.options], sep="\\n")
"""


def test_a_verb_has_the_same_options_after_it_has_run(metamcp: commands.Verb) -> None:
    ctl = next(verb for verb in metamcp.below if verb.words[1] == "ctl")
    code = [sys.executable, "-c", AFTER_A_RUN]
    said = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [name for name, _ in ctl.options]


def test_the_page_of_verbs_has_each_verb_with_each_of_its_options(metamcp: commands.Verb) -> None:
    page = (ROOT / "docs" / "reference" / "verbs.md").read_text()
    found = list(commands.all_below(metamcp))
    assert len(found) > 100
    for verb in found:
        section = page.split(f"\n{'#' * len(verb.words)} {verb.name}\n")[1].split("\n#")[0]
        if not verb.same:
            shown = {name for name, _ in verb.options if f"| `{either(name)}` |" in section}
            assert shown | {"--help"} == {name for name, _ in verb.options} | {"--help"}, verb.name


def test_every_option_says_what_it_is_for(metamcp: commands.Verb) -> None:
    silent = [
        f"{verb.name} {name}"
        for verb in commands.all_below(metamcp)
        for name, text in verb.options
        if not re.sub(r"\[[^\]]*\]", "", text).strip()
    ]
    assert silent == []


def test_the_page_of_tools_has_each_built_in_tool() -> None:
    page = (ROOT / "docs" / "reference" / "builtin-tools.md").read_text()
    assert set(re.findall(r"^## (.+)$", page, re.MULTILINE)) == builtin_definitions.names()


@pytest.mark.parametrize("codes", [Code, Exit])
def test_the_page_of_codes_has_each_code_with_its_meaning(codes: type[IntEnum]) -> None:
    page = (ROOT / "docs" / "reference" / "codes.md").read_text()
    for note in notes.of(codes):
        assert re.search(rf"^\| {note.value} \|.* {re.escape(note.text)} \|", page, re.MULTILINE)


def test_a_code_without_a_meaning_is_refused() -> None:
    class Bare(IntEnum):
        FIRST = 1
        """The first one."""
        SECOND = 2

    with pytest.raises(LookupError, match="no note below SECOND"):
        notes.of(Bare)


def test_there_is_a_man_page_for_the_program_each_group_and_the_file(
    metamcp: commands.Verb, pages: dict[str, Path]
) -> None:
    groups = {f"metamcp-{each.words[-1]}.1" for each in metamcp.below if each.below}
    assert set(pages) == {"metamcp.1", "metamcp.toml.5", *groups}
    assert {path.parent.name for path in pages.values()} == {"man1", "man5"}


@MANDOC
def test_man_pages_name_each_verb_option_and_key(
    metamcp: commands.Verb, pages: dict[str, Path]
) -> None:
    shown = {name: _shown(path) for name, path in pages.items()}
    for verb in commands.all_below(metamcp):
        page = shown.get(f"metamcp-{verb.words[1]}.1", shown["metamcp.1"])
        assert verb.name in page
        if not verb.same:
            assert [name for name, _ in verb.options if name not in page] == [], verb.name
    keys = shown["metamcp.toml.5"]
    assert [each.key for each in all_options() if each.key not in keys] == []
    assert [each.key for each in all_options() if f"Default: {each.default}" not in keys] == []
    assert 'Example: ["uvx", "mcp-server-git"].' in keys


def test_man_pages_have_the_day_that_a_build_names(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "deploy.docs.man", tmp_path], cwd=ROOT, timeout=30, check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "86400"},
    )  # fmt: skip
    heads = [path.read_text().splitlines()[0] for path in tmp_path.rglob("*.[15]")]
    assert heads
    assert all('"1970-01-02"' in head for head in heads)


@MANDOC
def test_a_judge_of_man_pages_finds_nothing(pages: dict[str, Path]) -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", *map(str, pages.values())],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def _shown(path: Path) -> str:
    """What a reader sees of a page, in one line and without bold letters."""
    done = subprocess.run(
        ["mandoc", "-Tutf8", "-Owidth=500", str(path)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return " ".join(re.sub(".\b", "", done.stdout).split())
