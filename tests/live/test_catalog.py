"""The catalogue of all commands, from a gateway that has ended."""

import json
import subprocess
import sys

import pytest

from tests.live.gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.promise("M50")]


def test_the_catalogue_is_there_while_nothing_runs() -> None:
    gateway = Gateway({"one": fake(), "two": fake()})

    def catalog(*words: str) -> subprocess.CompletedProcess[str]:
        state = str(gateway.folder / "state")
        command = [
            sys.executable, "-m", "metamcp_supervisor", "catalog",
            "--config", str(gateway.config), "--state-dir", state,
        ]  # fmt: skip
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=60, check=False
        )

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
