"""Commit messages: the rule, the hook, and every commit since there is a rule."""

import subprocess
from pathlib import Path

import pytest

from tests.commit_message import SCISSORS, mistakes
from tests.house import ROOT

RULE_SINCE = 1795888200
"""Unix time of the first commit that the rule is about."""
GOOD = "front: answer a call whose stream broke\n\nIt hung. Seen in a run of test_crash.\n"


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)


def subject(text: str) -> str:
    return GOOD.replace(GOOD.partition("\n")[0], text)


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        subject("ci: embed the list of nightly tests"),
        subject("ci: run the packages at a merge if their inputs changed"),
        subject("docs, tests: name the files of a lane"),
        subject("child/stdio: write " + "x" * 53),
    ],
)
def test_a_message_of_the_documented_form_has_no_mistakes(message: str) -> None:
    assert mistakes(message) == []


@pytest.mark.parametrize(
    ("message", "mistake"),
    [
        (subject("child/stdio: write " + "x" * 54), "73 of 72 characters"),
        (subject("A front answers a call"), "not 'component: imperative'"),
        (subject("front: answer a call."), "not 'component: imperative'"),
        (subject("front: Answer a call"), "not 'component: imperative'"),
        (subject("front: answered a call"), "'answered' is not a verb"),
        (subject("front: answering a call"), "'answering' is not a verb"),
        (subject("front: the call is answered"), "'the' is not a verb"),
        (subject("front: answer a call; end a stream"), "two topics"),
        (subject("front: wip"), "unfinished"),
        (subject("fixup! front: answer a call"), "unfinished"),
        (subject("Merge branch 'main' into front"), "a merge"),
        ("front: answer a call\n", "the body is missing"),
        ("front: answer a call\nIt hung.\n", "the body is missing"),
        ("", "the body is missing"),
    ],
)
def test_each_broken_rule_has_a_sentence(message: str, mistake: str) -> None:
    assert mistake in "\n".join(mistakes(message))


def test_the_hook_that_setup_installs_refuses_a_commit(tmp_path: Path) -> None:
    run("git", "init", "--quiet", cwd=tmp_path)
    for name in ("Makefile", "pyproject.toml", "requirements", "tests", "supervisor", "worker"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = run("make", "hook", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    commit = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--allow-empty")
    refused = run(*commit, "--message", "More tests", cwd=tmp_path)
    assert refused.returncode == 1
    assert "commit message: the body is missing" in refused.stderr
    assert run(*commit, "--message", GOOD, cwd=tmp_path).returncode == 0
    (tmp_path / "message").write_text(f"{GOOD}# A note of git.\n{SCISSORS}\na difference\n")
    scissors = run(*commit, "--file", "message", "--cleanup", "scissors", cwd=tmp_path)
    assert scissors.returncode == 0, scissors.stderr


def test_every_commit_since_the_rule_keeps_it() -> None:
    log = run("git", "log", "--format=%ct%x00%P%x00%h%x00%B%x01", cwd=ROOT)
    assert log.returncode == 0, log.stderr
    commits = [entry.strip("\n").split("\0") for entry in log.stdout.split("\1")[:-1]]
    assert commits
    broken = [
        f"{short}: {mistake}"
        for time, parents, short, message in commits
        if int(time) >= RULE_SINCE
        for mistake in [*mistakes(message), *(["it is a merge"] if " " in parents else [])]
    ]
    assert broken == []
