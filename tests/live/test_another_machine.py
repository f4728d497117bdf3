"""What other machines reach: the four lines of the README that let a colleague in, and metrics. The
two machines are network namespaces, joined by a cable."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.gateway import ROOT, fake, toml
from tests.waiting import until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and the program ip",
    ),
]

ADDRESS, LAPTOP = "10.77.70.1", "10.77.70.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces that reach each other, and nothing else."""
    here, there = f"mm-gateway-{os.getpid()}", f"mm-laptop-{os.getpid()}"
    cables = f"mmg{os.getpid()}"[:15], f"mml{os.getpid()}"[:15]
    made: list[str] = []
    try:
        for name in (here, there):
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", cables[0], "netns", here, "type", "veth", "peer", "name", cables[1],
           "netns", there)  # fmt: skip
        for name, cable, address in ((here, cables[0], ADDRESS), (there, cables[1], LAPTOP)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield here, there
    finally:
        for name in made:
            ip("netns", "del", name)


def lines() -> list[list[str]]:
    text = (ROOT / "README.md").read_text().split("## From another machine")[1]
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[:1]
    commands = [line.partition("#")[0].split() for line in block.strip().splitlines()]
    known = {"gateway.lan": ADDRESS, "https://gateway.lan:6270/mcp": f"https://{ADDRESS}:6270/mcp"}
    return [[str(known.get(word, word)) for word in words[1:]] for words in commands]


def on(machine: str, folder: Path, words: list[str]) -> list[str]:
    return ["ip", "netns", "exec", machine, sys.executable, "-m", "metamcp_supervisor", *words]


def environ(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("METAMCP_")}
    return {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="metamcp-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.promise("M64")
def test_four_lines_let_a_colleague_in(machines: tuple[str, str], folder: Path) -> None:
    here, there = machines
    server, laptop = folder / "server", folder / "laptop"
    for made in (server, laptop):
        made.mkdir()
    entry = fake("--era", "both")
    text = "\n".join(f"{key} = {toml(value)}" for key, value in entry.items())
    (server / "metamcp.toml").write_text(f"[servers.git]\n{text}\n")
    create, init, serve, install = lines()

    def run(machine: str, folder: Path, words: list[str]) -> str:
        done = subprocess.run(
            on(machine, folder, words), cwd=folder, env=environ(folder), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(here, server, create)
    run(here, server, init)
    authority = json.loads(run(here, server, ["tls", "show", "--json"]))["ca"]
    with (
        (server / "log").open("wb") as log,
        subprocess.Popen(
            on(here, server, serve), cwd=server, env=environ(server), stdout=log,
            stderr=log, stdin=subprocess.DEVNULL,
        ) as gateway,
    ):  # fmt: skip
        try:
            until(lambda: "ready" in (server / "log").read_text(), "the gateway serves", 60)
            shutil.copy(server / "laptop.key", laptop)
            shutil.copy(authority, laptop / "ca.pem")
            run(there, laptop, install)
            written = (laptop / ".cursor/mcp.json").read_text()
            assert "laptop.key" in written
            key = (laptop / "laptop.key").read_text().strip()
            assert key not in written
            said = talk(there, laptop, json.loads(written)["mcpServers"]["metamcp"])
            assert said["result"]["content"][0]["text"] == "from the laptop"
            assert key not in (server / "log").read_text()
        finally:
            gateway.terminate()
            gateway.wait(60)


def talk(machine: str, folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Start the entry of the client as the client does, and call a tool."""
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "cursor"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "git__echo", "arguments": {"text": "from the laptop"}}},
    ]  # fmt: skip
    with subprocess.Popen(
        ["ip", "netns", "exec", machine, entry["command"], *entry["args"]],
        cwd=folder, env=environ(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as bridge:  # fmt: skip
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        for message in messages:
            bridge.stdin.write(json.dumps(message).encode() + b"\n")
            bridge.stdin.flush()
        answers = (json.loads(line) for line in bridge.stdout)
        found = next(answer for answer in answers if answer.get("id") == 2)
        bridge.stdin.close()
        bridge.wait(30)
    return dict(found)


SCRAPE = """
import sys, urllib.error, urllib.request
headers = {"Authorization": f"Bearer {sys.argv[2]}", "Host": "metrics.example"}
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers))
except urllib.error.HTTPError as error:
    print(error.code)
else:
    print(answer.status, "metamcp_build_info" in answer.read().decode())
"""


@pytest.mark.promise("M86")
def test_metrics_are_read_from_another_machine_with_a_key_until_it_is_revoked(
    machines: tuple[str, str], folder: Path
) -> None:
    here, there = machines
    serve = ["serve", "--config", "metamcp.toml", "--ops-listen", "0.0.0.0:6271"]
    (folder / "metamcp.toml").write_text(f"[servers.git]\ncommand = {toml(fake()['command'])}\n")

    def run(*words: str) -> str:
        done = subprocess.run(
            on(here, folder, [*words]), cwd=folder, env=environ(folder), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def scrape(machine: str, page: str, key: str = "") -> str:
        url = f"http://{ADDRESS if machine == there else '127.0.0.1'}:6271{page}"
        command = ["ip", "netns", "exec", machine, sys.executable, "-c", SCRAPE, url, key]
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=60, check=True
        ).stdout.strip()

    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            on(here, folder, serve), cwd=folder, env=environ(folder), stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
        ) as gateway,
    ):  # fmt: skip
        try:
            until(lambda: "ready" in (folder / "log").read_text(), "the gateway serves", 60)
            key = json.loads(run("keys", "create", "prometheus", "--scope", "metrics", "--json"))
            other = json.loads(run("keys", "create", "all", "--json"))["key"]
            assert scrape(there, "/metrics", key["key"]) == "200 True"
            for wrong in ("", "wrong", other):
                assert scrape(there, "/metrics", wrong) == scrape(there, "/livez", wrong) == "401"
            assert scrape(here, "/livez") == "200 False", "from this machine no key is needed"
            run("keys", "revoke", "prometheus", "--yes")
            assert scrape(there, "/metrics", key["key"]) == "401"
        finally:
            gateway.terminate()
            gateway.wait(60)
