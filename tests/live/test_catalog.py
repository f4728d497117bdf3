"""The catalogue of all commands, and workflows that rules suggest, also after the gateway ended."""

import json
import os
import subprocess
import sys

import pytest

from tests import programs
from tests.live.gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.promise("M50")]

RULES = """
rules:
  - name: say it again
    keywords: [repeat]
    template: {name: again, steps: [{call: one.echo, with: {text: again}}]}
"""


def test_the_catalogue_is_there_while_nothing_runs() -> None:
    gateway = Gateway({"one": fake(), "two": fake()})

    def catalog(*words: str) -> subprocess.CompletedProcess[str]:
        state = str(gateway.folder / "state")
        command = [
            sys.executable, "-m", "metamcp_supervisor", "catalog",
            "--config", str(gateway.config), "--state-dir", state,
        ]  # fmt: skip
        return programs.run([*command, *words])

    with gateway:
        assert gateway.stop() == 0
        found = json.loads(catalog("--json").stdout)["servers"]
        assert [one["server_id"] for one in found] == ["one", "two"]
        at = found[0]["commands"].index("echo")
        assert found[0]["descriptions"][at]
        assert len(found[0]["descriptions"]) == len(found[0]["commands"])
        assert "echo" in catalog("two").stdout
        wrong = catalog("tow")
        assert wrong.returncode == 8
        assert "did you mean 'two'?" in wrong.stderr


@pytest.mark.promise("M51")
def test_a_rule_suggests_a_workflow_while_the_gateway_runs_and_after_it() -> None:
    gateway = Gateway({"one": fake()}, extra='[suggestions]\nrules = ["rules.yaml"]')
    (gateway.folder / "rules.yaml").write_text(RULES)
    places = {
        "METAMCP_CONFIG": str(gateway.config),
        "METAMCP_STATE_DIR": str(gateway.folder / "state"),
        "METAMCP_RUNTIME_DIR": str(gateway.folder / "run"),
    }

    def suggest(task: str, *words: str) -> subprocess.CompletedProcess[str]:
        return programs.run(
            [*programs.PROGRAM, "workflow", "suggest", task, *words], env={**os.environ, **places}
        )

    with gateway:
        running = json.loads(suggest("repeat that", "--json").stdout)
        assert gateway.stop() == 0
        later = json.loads(suggest("repeat that", "--json").stdout)
        assert later["definition"] == running["definition"]
        assert later["definition"]["steps"][0]["call"] == "one.echo"
        assert "No gateway runs" in later["notes"][-1]
        none = suggest("bake a cake")
        assert none.returncode == 1
        assert "None of them fits" in none.stderr
