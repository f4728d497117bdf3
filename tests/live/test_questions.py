"""Verbs that end or delete something for good ask on a terminal, and let scripts go on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.live.gateway import Gateway, fake
from tests.terminal import Terminal

pytestmark = [pytest.mark.live, pytest.mark.promise("M109")]

METAMCP = (sys.executable, "-m", "metamcp_supervisor")
REFUSED = "not confirmed: nothing is changed"
#: Verb, what makes the thing anew, how it is asked about, and what shows it.
VERBS = (
    ("toolsets delete old", "toolsets create old git.echo", "Delete the tool set old of 1 tool?",
     "toolsets list"),
    ("keys revoke old", "keys create old", "End the key old, and forget it?", "keys list"),
    ("scripts delete old", "scripts save old.py",
     "Delete the script old with all of its versions?", "scripts list"),
    ("remove old", "add old -- true", "Take 'old' out of", "config show"),
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"git": fake()}) as running:
        (running.folder / "old.py").write_text("result = 1\n")
        yield running


def line(gateway: Gateway, words: str) -> list[str]:
    verb, *others = words.split()
    return [*METAMCP, verb, "--runtime-dir", str(gateway.folder / "run"), *others]


def piped(gateway: Gateway, words: str) -> subprocess.CompletedProcess[str]:
    return programs.run(line(gateway, words), cwd=gateway.folder)


def asked(command: list[str], folder: Path, question: str, answer: str) -> tuple[int, str]:
    """Exit code and screen of a command whose question gets this answer."""
    with Terminal(command, cwd=folder, environ=dict(os.environ)) as terminal:
        terminal.until(lambda text: question in text.replace("\n", "") and "[y/N]:" in text)
        terminal.press(answer.encode() + b"\r")
        return terminal.finish(), terminal.text()


@pytest.mark.parametrize(("verb", "maker", "question", "shown"), VERBS)
def test_a_deletion_is_asked_about_on_a_terminal_and_only_a_yes_deletes(
    gateway: Gateway, verb: str, maker: str, question: str, shown: str
) -> None:
    def is_there() -> bool:
        done = piped(gateway, shown)
        assert done.returncode == 0, done.stderr
        return "old" in done.stdout

    made = piped(gateway, maker)
    assert made.returncode == 0, made.stderr
    command = line(gateway, verb)
    code, text = asked(command, gateway.folder, question, "n")
    assert (code, REFUSED in text) == (1, True), text
    assert is_there()
    code, text = asked(command, gateway.folder, question, "y")
    assert (code, is_there()) == (0, False), text
    assert piped(gateway, maker).returncode == 0
    with Terminal([*command, "--yes"], cwd=gateway.folder, environ=dict(os.environ)) as terminal:
        assert terminal.finish() == 0
        assert "[y/N]" not in terminal.text()
    assert not is_there()


@pytest.mark.parametrize("at", range(1, len(VERBS)))
def test_without_a_terminal_a_script_is_asked_nothing(gateway: Gateway, at: int) -> None:
    verb, maker, *_ = VERBS[at]
    assert piped(gateway, maker).returncode == 0
    done = piped(gateway, verb)
    assert (done.returncode, "[y/N]" in done.stderr) == (0, False)


def test_the_removal_of_results_says_whose_they_are(gateway: Gateway) -> None:
    command = line(gateway, "results purge --all")
    question = "Remove all results of all clients?"
    assert asked(command, gateway.folder, question, "")[0] == 1
    code, text = asked(command, gateway.folder, question, "y")
    assert (code, "0 results are removed" in text) == (0, True)


def test_another_authority_takes_the_place_of_one_only_after_a_yes(tmp_path: Path) -> None:
    command = [*METAMCP, "tls", "init", "--state-dir", str(tmp_path)]
    programs.run(command, check=True)
    first = (tmp_path / "tls" / "ca.pem").read_bytes()
    assert asked(command, tmp_path, "Make it?", "n")[0] == 1
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == first
    assert asked(command, tmp_path, "Make it?", "y")[0] == 0
    assert (tmp_path / "tls" / "ca.pem").read_bytes() != first


def test_a_gateway_ends_at_a_terminal_only_after_a_yes(gateway: Gateway) -> None:
    assert gateway.process is not None
    question = f"End the gateway (process {gateway.process.pid}) and its servers?"
    assert asked(line(gateway, "down"), gateway.folder, question, "n")[0] == 1
    assert gateway.process.poll() is None
    code, text = asked(line(gateway, "down"), gateway.folder, question, "y")
    assert (code, "has ended" in text) == (0, True)
