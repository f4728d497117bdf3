"""`[traces]`: what a file may say, what fronts are told of it, and what is hidden."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import TracesConfig
from metamcp_supervisor.config.installation import TRACES, Extra, describe_missing
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import front_spec, own_log_spec
from tests.supervisor.configs import loaded, messages, write

pytestmark = pytest.mark.promise("M88")

ROOT = Path(__file__).parents[3]
URL = "https://collector.example/v1/traces"
FILE = f"""
[traces]
endpoint = "{URL}?key=${{env:KEY}}"
sample = 0.25
headers = {{ Authorization = "Bearer ${{env:TOKEN}}" }}

[servers.git]
command = ["git-server"]
"""
ENVIRON = {"KEY": "key-of-the-url", "TOKEN": "token-of-the-header"}


def test_everything_has_its_place(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE, environ=ENVIRON)
    assert found.traces == TracesConfig(
        endpoint=f"{URL}?key=key-of-the-url",
        sample=0.25,
        headers={"Authorization": "Bearer token-of-the-header"},
    )
    assert front_spec(found, "1").traced == 0.25
    assert found.warnings == ()


def test_without_an_endpoint_nothing_is_traced(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[servers.git]\ncommand = ["x"]\n')
    assert found.traces == TracesConfig()
    assert front_spec(found, "1").traced is None
    assert option("traces", "sample").default == str(TracesConfig().sample)
    found = loaded(tmp_path, '[traces]\nsample = 1\n[servers.git]\ncommand = ["x"]\n')
    assert front_spec(found, "1").traced is None
    assert "traces: has no 'endpoint', so nothing is traced" in found.warnings[0]


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE, environ=ENVIRON)
    shown = tables(found)["traces"]
    assert shown == {
        "endpoint": f"{URL}?key=${{env:KEY}}", "sample": 0.25, "headers": {"Authorization": "***"},
    }  # fmt: skip
    assert set(own_log_spec(found).secrets) == {
        "key-of-the-url", "Bearer token-of-the-header", "token-of-the-header",
    }  # fmt: skip
    assert front_spec(found, "1").log.secrets == ()
    for secret in ENVIRON.values():
        assert secret not in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('endpoint = "collector:4318"', "traces.endpoint: must begin with"),
        ('endpoint = "http://u:p@x/"', "traces.endpoint: has credentials in it"),
        ('endpoint = "http://x/${env:NOT_SET}"', "traces.endpoint: the environment variable"),
        ('sample = "much"', "traces.sample: must be a number, not a string"),
        ("sample = true", "traces.sample: must be a number, not a boolean"),
        ("sample = 10", "traces.sample: must be from 0 to 1"),
        ('headers = { "Content-Type" = "x" }', "traces.headers.Content-Type: is set by the"),
        ('headers = { A = "${env:NOT_SET}" }', "traces.headers.A: the environment variable"),
        ('protocol = "grpc"', "traces.protocol: unknown key 'protocol'"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    found = messages(tmp_path, f"[traces]\n{text}\n")
    assert len(found) == 1
    assert said in found[0]


def test_a_header_that_crosses_the_network_unencrypted_is_warned_of(tmp_path: Path) -> None:
    text = FILE.replace("https://", "http://")
    assert "traces.endpoint: headers and tokens cross" in "".join(
        loaded(tmp_path, text, environ=ENVIRON).warnings
    )


def test_an_included_file_may_not_say_it(tmp_path: Path) -> None:
    write(tmp_path, "more.toml", f'[traces]\nendpoint = "{URL}"\n')
    found = messages(tmp_path, 'include = ["more.toml"]\n')
    assert [each.split(": ")[1] for each in found] == ["traces"]


def test_a_reload_takes_it_over_in_place_and_tells_no_value(tmp_path: Path) -> None:
    old = loaded(tmp_path, FILE, environ=ENVIRON)
    new = loaded(tmp_path, FILE, environ={"KEY": "another-key", "TOKEN": "another-token"})
    (change,) = [each for each in plan(old, new).changes if each.action != "unchanged"]
    assert (change.server, change.action) == ("[traces]", "in-place")
    assert change.why == "endpoint changed, headers changed"
    assert fingerprint(old) != fingerprint(new)


def test_the_documented_example_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/traces.md").read_text(), re.DOTALL)
    found = loaded(tmp_path, block, environ={"COLLECTOR_TOKEN": "x" * 8})
    assert found.traces.endpoint
    assert found.warnings == ()


def test_what_is_not_installed_is_one_sentence() -> None:
    assert describe_missing(TRACES) == ""
    for module in ("not_there", "not_there.inside", "json.inside"):
        why = describe_missing(Extra("x", "it cannot be done", (module,)))
        assert why.startswith("it cannot be done without packages that are not installed; ")
        assert "'pip install \"metamcp[x]\"'" in why


@pytest.mark.process
def test_a_gateway_without_the_packages_says_so_before_it_starts(tmp_path: Path) -> None:
    """In place of the library stands an empty package."""
    write(tmp_path, "library/opentelemetry/__init__.py", "")
    path = write(tmp_path, "metamcp.toml", f'[traces]\nendpoint = "{URL}"\n')
    for arguments in (["config", "check"], ["serve"], ["ctl", "doctor"]):
        done = subprocess.run(
            [sys.executable, "-m", "metamcp_supervisor", *arguments, "--config", path],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}/library", "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode in (1, 65), done
        text = done.stdout + done.stderr
        assert f"{path}:2: traces.endpoint: spans cannot be exported without packages" in text
        assert "'pip install \"metamcp[otel]\"'" in text
