"""`metamcp workflow` against a real gateway and its engine, also one that is killed."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import programs
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M53")]

HELLO = """
name: hello
inputs:
  who: {type: string}
steps:
  - wait: 1s
  - output: "Hello ${{ inputs.who }}"
"""

SLOW = {
    "name": "slow",
    "steps": [
        {"id": "pause", "call": "git.sleep", "with": {"ms": 2000}},
        {"output": "over"},
    ],
}

EXTRA = """
[workspaces.w]
workflows = ["{file}"]
[workspaces.w.namespaces.n]
servers = ["default:git"]
[workspaces.w.endpoints.e]
namespace = "n"
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    file = tmp_path_factory.mktemp("workflows") / "hello.yaml"
    file.write_text(HELLO)
    words = file.with_name("words")
    words.write_text(json.dumps({"sleep": {"annotations": {}}}))
    extra = EXTRA.format(file=file)
    git = fake("--only", "echo,sleep", "--words", str(words))
    with Gateway({"git": git}, extra=extra) as running:
        (running.folder / "slow.json").write_text(json.dumps(SLOW))
        yield running


def ran(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = ["--endpoint", "e", "--runtime-dir", str(gateway.folder / "run")]
    command = [sys.executable, "-m", "metamcp_supervisor", "workflow", *arguments, *place]
    return programs.run(command)


def structured(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    done = ran(gateway, *arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    return found


def engine(gateway: Gateway) -> int:
    return next(int(each["pid"]) for each in gateway.status()["roles"] if each["role"] == "engine")


def test_a_run_tells_its_steps_and_prints_its_output(gateway: Gateway) -> None:
    done = ran(gateway, "run", "hello", "--input", "who=you")
    assert (done.returncode, done.stdout) == (0, "Hello you\n"), done
    first, last = done.stderr.splitlines()
    assert first.startswith("step 1 of 2: ")
    assert re.fullmatch(r"done +1\.\d s  0", last), last


def test_a_run_is_shown_with_its_steps(gateway: Gateway) -> None:
    ran(gateway, "run", "hello", "--input", "who=you")
    run = structured(gateway, "runs")["runs"][0]["run"]
    head, step, _, output = ran(gateway, "show", run).stdout.splitlines()
    assert head.split() == ["STEP", "STATE", "ATTEMPTS", "ERROR"]
    assert step.split()[:3] == ["0", "done", "1"]
    assert output == "Hello you"


def test_a_terminal_shows_the_time_of_a_step_under_way(gateway: Gateway) -> None:
    ours, theirs = pty.openpty()
    place = ["--endpoint", "e", "--runtime-dir", str(gateway.folder / "run")]
    command = [sys.executable, "-m", "metamcp_supervisor", "workflow", "run", "hello", *place]
    screen = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([*command, "--input", "who=you"], stderr=theirs, stdout=theirs,
                          stdin=subprocess.DEVNULL, env=screen) as running:  # fmt: skip
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while select.select([ours], [], [], 60)[0] and (more := os.read(ours, 4096)):
                shown += more
        assert running.wait(60) == 0
    os.close(ours)
    text = shown.decode()
    times = re.findall(r"waiting +(0\.\d) s  0", text)
    assert len(set(times)) > 1, text
    assert re.search(r"done +1\.\d s  0\r\n", text), text
    assert "step 1 of 2" not in text
    assert text.rstrip("\r\n").endswith("Hello you"), text


def test_a_run_goes_on_after_its_engine_was_killed(gateway: Gateway) -> None:
    run = ran(gateway, "run", "hello", "--input", "who=me", "--no-wait").stdout.split()[1]
    os.kill(engine(gateway), signal.SIGKILL)
    until(lambda: f"{run} hello done" in ran(gateway, "runs").stdout, "it goes on")


def test_what_is_not_known_is_one_sentence(gateway: Gateway) -> None:
    done = ran(gateway, "run", "hallo")
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", "No workflow is named 'hallo'; there are: hello.\n")


def test_a_step_that_may_have_happened_waits_for_a_decision(gateway: Gateway) -> None:
    file = str(gateway.folder / "slow.json")
    begun = structured(gateway, "run", file, "--no-wait")["run"]

    def shown() -> dict[str, Any]:
        return structured(gateway, "show", begun)

    until(lambda: [one["status"] for one in shown()["steps"]] == ["running"], "it is in the call")
    os.kill(engine(gateway), signal.SIGKILL)
    until(lambda: shown().get("status") == "needs_decision", "nobody knows whether it happened")
    waiting = structured(gateway, "runs", "--status", "needs_decision")["runs"]
    assert [one["run"] for one in waiting] == [begun]
    assert ran(gateway, "decide", begun, "pause", "retry").returncode == 0
    until(lambda: shown()["status"] == "done", "it goes on by itself")
    assert (shown()["output"], shown()["steps"][0]["attempts"]) == ("over", 2)
