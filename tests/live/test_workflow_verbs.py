"""`metamcp workflow` against a real gateway and its engine, also one that is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

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
    extra = EXTRA.format(file=file)
    with Gateway({"git": fake("--only", "echo")}, extra=extra) as running:
        yield running


def ran(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = ["--endpoint", "e", "--runtime-dir", str(gateway.folder / "run")]
    command = [sys.executable, "-m", "metamcp_supervisor", "workflow", *arguments, *place]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def engine(gateway: Gateway) -> int:
    return next(int(each["pid"]) for each in gateway.status()["roles"] if each["role"] == "engine")


def test_a_run_tells_its_steps_and_prints_its_output(gateway: Gateway) -> None:
    done = ran(gateway, "run", "hello", "--input", "who=you")
    assert (done.returncode, done.stdout) == (0, "Hello you\n"), done
    assert "step 1 of 2" in done.stderr


def test_a_run_goes_on_after_its_engine_was_killed(gateway: Gateway) -> None:
    run = ran(gateway, "run", "hello", "--input", "who=me", "--no-wait").stdout.split()[1]
    os.kill(engine(gateway), signal.SIGKILL)
    until(lambda: f"{run} hello done" in ran(gateway, "runs").stdout, "it goes on")


def test_what_is_not_known_is_one_sentence(gateway: Gateway) -> None:
    done = ran(gateway, "run", "hallo")
    assert done.returncode == 1
    assert done.stdout == "No workflow is named 'hallo'; there are: hello.\n"
