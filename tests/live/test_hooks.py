"""The command of `[hooks]` in a real gateway."""

import pytest

from tests.live.gateway import Gateway, fake, toml
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M72")]

VARIABLES = "$METAMCP_HOOK_EVENT|$METAMCP_HOOK_SERVER|$METAMCP_HOOK_TEXT"
MISSING = {"command": ["/no/such/program"]}


def hooks(on: list[str], file: str) -> str:
    """The table with a command that writes its variables into this file."""
    command = ["sh", "-c", f'echo "{VARIABLES}" >> {file}']
    return f"[hooks]\non = {toml(on)}\ncommand = {toml(command)}\n"


def lines(gateway: Gateway, file: str, count: int) -> list[str]:
    """What the command has written, as soon as it is so many lines."""
    path = gateway.folder / file

    def written() -> list[str]:
        found = path.read_text().splitlines() if path.exists() else []
        return found if len(found) >= count else []

    return until(written, f"{count} lines are in {file}")


def test_the_command_hears_of_a_server_that_failed_and_of_its_recovery() -> None:
    extra = hooks(["failed", "recovered"], "first")
    with Gateway({"good": fake(), "broken": MISSING}, extra=extra, wait=False) as gateway:
        (failed,) = lines(gateway, "first", 1)
        assert failed.startswith("failed|broken|spawn: ")
        gateway.write({"good": fake(), "broken": fake()})
        gateway.ctl("reload")
        assert lines(gateway, "first", 2)[1].startswith("recovered|broken|")


def test_a_reload_changes_the_command_and_its_events() -> None:
    with Gateway({"good": fake()}) as gateway:
        gateway.extra = hooks(["quarantined"], "second")
        gateway.write({"good": fake()})
        assert "[hooks]" in gateway.ctl("reload")
        gateway.ctl("quarantine", "good")
        (line,) = lines(gateway, "second", 1)
        assert line.startswith("quarantined|good|")
