"""REST as docs/rest.md describes it, with the true binary and the true curl."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.gateway import ROOT, Gateway, fake
from tests.live.test_keys import keys

pytestmark = pytest.mark.live

TEXT = (ROOT / "docs" / "rest.md").read_text()
COMMANDS = re.findall(r"^curl .*$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    demo = str(ROOT / "examples" / "demo")
    notes = {"module": "notes:server", "env": {"PYTHONPATH": demo}, "cwd": demo}
    with Gateway({"notes": notes, "old": fake("--era", "legacy")}) as running:
        yield running


def run(gateway: Gateway, command: str, *more: str) -> tuple[int, Any]:
    """Exit code and answer of one curl, at the port of this gateway."""
    arguments = shlex.split(command.replace("127.0.0.1:6270", f"127.0.0.1:{gateway.port}"))
    done = subprocess.run([*arguments, *more], capture_output=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.promise("M4")
@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are for curl")
def test_the_documented_commands_do_what_they_say(gateway: Gateway) -> None:
    assert len(COMMANDS) == 4
    answers = [run(gateway, command) for command in COMMANDS]
    assert [code for code, _ in answers] == [0, 0, 0, 0]
    listed, document, added, notes = [answer for _, answer in answers]
    assert "notes__add_note" in [tool["name"] for tool in listed["tools"]]
    assert "/notes__add_note" in document["paths"]
    (shown,) = re.findall(r'^\{"content.*$', TEXT, re.MULTILINE)
    shown = json.loads(shown)
    assert {key: added[key] for key in shown} == shown
    assert notes["structuredContent"] == {"result": ["buy milk"]}


STATUS = ("-o", "/dev/null", "-w", "%{http_code}")


@pytest.mark.promise("M4")
@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are for curl")
@pytest.mark.parametrize(
    ("tool", "body", "status"),
    [
        ("old__echo", '{"text": "a"}', 200),
        ("old__fail", "{}", 422),
        ("old__nothing", "{}", 404),
        ("old__echo", "[]", 400),
        ("old__crash", "{}", 502),
    ],
)
def test_each_failure_has_its_status(gateway: Gateway, tool: str, body: str, status: int) -> None:
    post = f"curl -sS -H 'Content-Type: application/json' -d '{body}'"
    command = f"{post} http://127.0.0.1:6270/api/{tool}"
    assert run(gateway, command, *STATUS) == (0, status)


@pytest.mark.promise("M4")
def test_every_status_that_the_document_names_is_explained(gateway: Gateway) -> None:
    _, document = run(gateway, COMMANDS[1])
    explained = set(re.findall(r"^\| (\d{3}) \|", TEXT, re.MULTILINE))
    for path in document["paths"].values():
        assert set(path["post"]["responses"]) <= explained


JUDGED_ELSEWHERE = "negative_data_rejection,positive_data_acceptance"
"""Servers judge arguments; the gateway passes them on as they are."""
GENERATED_S_MAX = 90.0


@pytest.mark.promise("M98")
def test_requests_made_from_the_document_get_answers_as_it_says_and_no_5xx() -> None:
    typed = {"module": "tests.fakes.typed_tools:server", "cwd": str(ROOT)}
    servers = {"typed": {**typed, "env": {"PYTHONPATH": str(ROOT)}}}
    with Gateway(servers, extra='[gateway]\nauth = "keys"\n') as gateway:
        key = keys(gateway, "create", "rest")["key"]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", "--no-color"),
                f"http://127.0.0.1:{gateway.port}/metamcp/default/api/openapi.json",
                *("--header", f"Authorization: Bearer {key}"),
                *("--phases", "coverage,fuzzing", "--max-examples", "60", "--seed", "17"),
                *("--exclude-checks", JUDGED_ELSEWHERE, "--suppress-health-check", "all"),
            ],
            capture_output=True, text=True, timeout=GENERATED_S_MAX, check=False,
            cwd=gateway.folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"\d{3} generated, \d{3} passed", done.stdout), done.stdout
