"""`[code]`: what a file may say, what fronts are told of it, and what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config import sections
from metamcp_supervisor.config.config import CodeConfig
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.servers.specs import front_spec
from metamcp_worker.ipc.code_runs import CodeLimits
from tests.supervisor.configs import loaded, messages

SERVER = '[servers.git]\ncommand = ["git-server"]\n'
FILE = f"""{SERVER}
[code]
timeout = "10s"
memory_max = "64M"
runs_max = 3
idle = "1m"

[endpoints.dev]
namespace = "default"
exposure = "code"
code = {{ timeout = "2s", memory_max = "256M" }}

[endpoints.plain]
namespace = "default"
"""
GENERAL = CodeLimits(timeout_ms=10_000, memory_bytes=64 << 20)


def test_an_endpoint_has_the_limits_of_the_table_and_its_own_above_them(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE)
    assert found.code == CodeConfig(enabled=True, limits=GENERAL, runs_max=3, idle_s=60.0)
    limits = {each.name: each.code for each in front_spec(found, "1").endpoints}
    own = CodeLimits(timeout_ms=2000, memory_bytes=256 << 20)
    assert limits == {"dev": own, "plain": GENERAL}
    assert sections.largest_memory(found) == 256 << 20
    assert sections.largest_memory(replace(found, endpoints={})) == 64 << 20


def test_an_empty_table_switches_code_mode_on_and_no_table_leaves_it_off(tmp_path: Path) -> None:
    on, off = loaded(tmp_path, f"[code]\n{SERVER}"), loaded(tmp_path, SERVER)
    assert [each.code for each in front_spec(on, "1").endpoints] == [CodeLimits()]
    assert [each.code for each in front_spec(off, "1").endpoints] == [None]
    assert "code" not in tables(off)
    assert fingerprint(on) != fingerprint(off)
    changes = {each.server: each.why for each in plan(off, on).changes if each.why}
    assert changes == {"[code]": "enabled changed"}


def test_the_settings_are_shown_as_they_are_written(tmp_path: Path) -> None:
    shown = tables(loaded(tmp_path, FILE))
    assert shown["code"] == {
        "timeout": "10s", "memory_max": "64M", "output_max": "1M", "calls_max": 1000,
        "parallel_max": 32, "runs_max": 3, "warm": 2, "idle": "1m", "jit": False,
        "confinement": "prefer",
    }  # fmt: skip
    endpoints = shown["endpoints"]
    assert isinstance(endpoints, dict)
    assert endpoints["dev"]["code"] == {"timeout": "2s", "memory_max": "256M"}
    assert "code" not in endpoints["plain"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[code]\ntimeout = "2h"', 'code.timeout: is too long; the longest time here is "1h"'),
        ('[code]\nmemory_max = "1M"', 'memory_max: is too small; the smallest size here is "32M"'),
        ('[code]\nmemory_max = "5G"', 'memory_max: is too large; the largest size here is "4G"'),
        ('[code]\noutput_max = "17M"', 'output_max: is too large; the largest size here is "16M"'),
        ("[code]\ncalls_max = 0", "code.calls_max: must be from 1 to 100000"),
        ("[code]\nwarm = 65", "code.warm: must be from 0 to 64"),
        ('[code]\nidle = "1ms"', 'code.idle: is too short; the shortest time here is "1s"'),
        ('[code]\nconfinement = "no"', "code.confinement: 'no' is not a choice"),
        ("[code]\nmemory = 1", "unknown key 'memory'"),
        ("[code]\n[endpoints.x]\nnamespace = 'default'\ncode.warm = 1", "unknown key 'warm'"),
        (
            '[endpoints.x]\nnamespace = "default"\nexposure = "code"',
            'endpoints.x.exposure: "code" needs the table [code], which switches code mode on',
        ),
        (
            '[endpoints.x]\nnamespace = "default"\ncode = { calls_max = 1 }',
            "endpoints.x.code: has no effect without the table [code]",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert [said in each for each in messages(tmp_path, f"{text}\n{SERVER}")] == [True]


LOADED = """
import os, sys
from pathlib import Path
sys.modules["deno"] = None  # as if it was not installed
from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.config.installation import deno
from metamcp_supervisor.config.sources import load
here = Path(sys.argv[1])
try:
    load(here / "metamcp.toml", environ={}, cwd=here, home=here, flags={})
    print("valid", deno())
except ConfigInvalid as invalid:
    print(*invalid.problems, sep="\\n")
"""


def test_without_deno_the_table_is_an_error_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "metamcp.toml").write_text(f"[code]\n{SERVER}")

    def said() -> str:
        environ = {**os.environ, "PATH": str(tmp_path)}
        words = [sys.executable, "-c", LOADED, str(tmp_path)]
        found = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
        return found.stdout

    assert (
        said()
        .splitlines()[0]
        .endswith(
            ": code: code cannot be run without packages that are not installed; run 'pip install"
            ' "metamcp[code]"\', or leave this out'
        )
    )
    program = tmp_path / "deno"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert said() == f"valid {program}\n"
