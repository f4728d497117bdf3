"""Every command that README and docs show is run as it stands there, and does what it is for."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.client import Client
from tests.live.gateway import ROOT, SERVER, Gateway, fake, free_port
from tests.live.mistakes.script import asked
from tests.waiting import until

pytestmark = pytest.mark.live

#: Commands that are run elsewhere: by a test that is named here, or by running this one at all.
ELSEWHERE = {
    "metamcp up": "test_first_launch",
    "metamcp serve --config metamcp.toml": "every test of this folder",
    "metamcp keys create laptop --out laptop.key": "test_another_machine",
    "metamcp serve --config metamcp.toml --listen 0.0.0.0:6270 --auth keys --tls local": (
        "test_another_machine"
    ),
    "metamcp install cursor --url https://gateway.lan:6270/mcp --key-file laptop.key --ca ca.pem": (
        "test_another_machine"
    ),
    "metamcp connect --url https://gateway.lan:6270/mcp --key-file laptop.key --ca ca.pem": (
        "test_connect_protected"
    ),
    "metamcp consent approve 1-17": "test_consent",
    "metamcp consent deny 1-17": "test_consent",
    "metamcp consent revoke 3f9a51c2e0b7": "test_consent",
    "metamcp down": "test_connect_start",
    "metamcp backup metamcp-backup.db": "test_keys, where something is stored",
    "metamcp restore metamcp-backup.db": "test_keys, where the gateway does not run",
    "make run": "test_demo, on free ports",
    "make demo": "test_demo",
    "make test": "itself",
    "make check": "the first part of make test",
    "make conformance": "tests/conformance, as a part of make test",
    "make bench": "tests/live/test_bench.py, for a shorter time",
    "make profile": "tests/live/test_bench.py, for a shorter time",
    "make bench-publish": "by hand: tests/benchmarks/test_page.py checks what it has written",
    "make bench-peers": "by hand: it installs other gateways; tests/benchmarks/test_peers.py",
    "make soak": "tests/faults/test_soak.py, for a shorter time",
    "make soak-remote": "tests/faults/test_soak.py, for a shorter time",
    "make soak-load": "tests/benchmarks/test_soak_load.py, for a shorter time",
    "make soak-bad": "tests/faults/test_soak_bad.py, for a shorter time",
    "make fuzz": "tests/fuzz/test_fuzz.py, for a shorter time",
    "make setup": "every verb of the Makefile",
    "make picture": "tests/test_rooms.py compares what it draws",
    "make wheel": "tests/packages/test_wheel.py",
    "make deb": "tests/packages/test_deb.py",
    "make lock": "by hand: it looks for newer packages",
}
EXTRA = """
[audit]
[recording]
calls = "metadata"
[endpoints.default]
namespace = "default"
[endpoints.desk]
namespace = "default"
exposure = "toolset"
[code]
[endpoints.programs]
namespace = "default"
exposure = "code"
"""
HELLO = """
name: hello
inputs: {who: {type: string}}
steps: [output: "Hello ${{ inputs.who }}"]
"""
SCRIPT = "return args.n + 1\n"
COMMAND = re.compile(r"^(?:\$ )?((?:metamcp|make) [^#\n]*?)\s*(?:#.*)?$")


def documented() -> list[str]:
    """The commands in fenced blocks of shell, without comments, once each."""
    found: list[str] = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.splitlines():
                if (match := COMMAND.match(line)) and match[1] not in found:
                    found.append(match[1])
    return found


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "git": fake("--garbage", "--only", "echo,git_status,git_log"),
        "time": fake("--only", "echo,get_current_time"),
    }
    found = Gateway(servers, extra=EXTRA)
    (found.folder / "hello.yaml").write_text(HELLO)
    found.config.write_text(f'workflows = ["hello.yaml"]\n{found.config.read_text()}')
    with found as running:
        (running.folder / "add-one.ts").write_text(SCRIPT)
        client = Client(running.port)
        client.call("time__echo", text="to be recorded")
        client.close()
        calls = running.folder / "state" / "calls"
        until(lambda: calls.is_dir() and any(calls.iterdir()), "the call is recorded")
        yield running


@pytest.mark.promise("M80")
@pytest.mark.parametrize("command", [one for one in documented() if one not in ELSEWHERE])
def test_a_documented_command_works(gateway: Gateway, command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "metamcp", f"{command}: add it to ELSEWHERE, with the test that runs it"
    if "status" in arguments:
        gateway.ctl("wait", "git", "time", "--timeout", "60s")  # a restart may have come before it
    process = subprocess.Popen(
        [sys.executable, "-m", "metamcp_supervisor", *arguments],
        cwd=gateway.folder,
        env={
            **os.environ,
            "HOME": str(gateway.folder / "home"),
            "METAMCP_RUNTIME_DIR": str(gateway.folder / "run"),
            "METAMCP_STATE_DIR": str(gateway.folder / "state"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        if "-f" in arguments:
            assert process.stdout is not None
            assert process.stdout.readline(), "what it follows has begun"
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert b"Traceback" not in err
    assert b"Usage" not in err, err.decode()
    assert process.returncode == (130 if "-f" in arguments else 0), err.decode() + out.decode()


def test_what_is_run_elsewhere_is_still_documented() -> None:
    shown = set(documented())
    assert {one for one in ELSEWHERE if one not in shown} <= {"make demo", "make lock"}


def test_the_four_lines_of_the_readme_lead_to_the_first_call(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().split("## Four lines to the first call")[1]
    block = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0]
    uvx = tmp_path / "uvx"  # what it would run is here already; the server is a fake
    uvx.write_text(
        "#!/bin/sh\nname=$1\nshift\ncase $name in\n"
        f'metamcp) exec {sys.executable} -m metamcp_supervisor "$@" ;;\n'
        f"mcp-server-time) exec {shlex.join(SERVER)} --only get_current_time ;;\nesac\n"
    )
    uvx.chmod(0o700)
    ports = f"--port {free_port()} --ops-listen 127.0.0.1:{free_port()}"
    environ = {key: one for key, one in os.environ.items() if not key.startswith("METAMCP_")} | {
        "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    init, add, up, call = block.splitlines()
    for line in (init, add):
        subprocess.run(line.split(), cwd=tmp_path, env=environ, check=True, timeout=30)
    gateway = subprocess.Popen(
        f"{up} {ports}".split(), cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL
    )
    try:
        port = ports.split()[1]
        words = shlex.split(call.replace(":6270", f":{port}"))[1:]
        until(lambda: answered(words), "the call is answered")
    finally:
        down = subprocess.run([*up.split()[:2], "down"], cwd=tmp_path, env=environ, check=False)
        assert (down.returncode, gateway.wait(timeout=60)) == (0, 0)


def answered(words: list[str]) -> bool:
    try:
        return asked(words).startswith("HTTP 200")
    except OSError:
        return False


def test_the_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "metamcp.toml").write_text(block)
    (tmp_path / ".mcp.json").write_text(f'{{"mcpServers":{{"x":{{"command":"{SERVER[0]}"}}}}}}')
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", "config", "check", "--config", "metamcp.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
