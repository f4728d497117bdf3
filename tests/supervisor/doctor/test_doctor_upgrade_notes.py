"""`metamcp doctor --upgrade-from`: what changed since a version and concerns a configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.config.options import all_options
from metamcp_supervisor.doctor.doctor import UpgradeNote, find_places, read_notes

KINDS = {"default", "key", "verb", "json", "metric", "exit code"}
TEXT = """
include = [".mcp.json"]
[servers.git]
command = ["true"]
[servers.old]
command = ["true"]
sandbox = "none"
[servers.elsewhere]
url = "https://mcp.example.com/mcp"
"""
CLIENT = '{"mcpServers": {"mine": {"command": "true"}}}'


def doctor(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "metamcp.toml").write_text(TEXT)
    (folder / ".mcp.json").write_text(CLIENT)
    command = [sys.executable, "-m", "metamcp_supervisor", "doctor", "--config", "metamcp.toml"]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def note(uses: str = "", unless: str = "") -> UpgradeNote:
    return UpgradeNote("1.0", "default", "it is different", "do this", uses, unless)


def test_every_note_is_about_keys_that_there_are() -> None:
    sections = {option.section for option in all_options()}
    known = {f"{option.section}.{option.key}".lstrip(".") for option in all_options()}
    for each in read_notes():
        assert each.what in KINDS
        table = each.uses.rpartition(".")[0]
        assert not each.uses or (each.uses in known and table in sections)
        settled = f"{table}.{each.unless}" if table else each.unless
        assert not each.unless or settled in known
        assert each.text[0].islower() or "_" in each.text.split()[0]
        assert each.advice


@pytest.mark.parametrize(
    ("given", "places"),
    [
        (note("servers.*.command"), ["servers.a", "servers.b"]),
        (note("servers.*.command", "sandbox"), ["servers.a"]),
        (note("servers.*.url"), []),
        (note("gateway.listen"), ["gateway"]),
        (note(), [""]),
        (note(unless="gateway.listen"), []),
        (note(unless="gateway.state_dir"), [""]),
    ],
)
def test_a_note_concerns_the_places_that_use_its_key(given: UpgradeNote, places: list[str]) -> None:
    servers = {"a": {"command": "x"}, "b": {"command": "x", "sandbox": "none"}}
    assert find_places(given, [{"servers": servers, "gateway": {"listen": "x"}}]) == places


@pytest.mark.process
def test_only_what_concerns_the_configuration_is_named(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--upgrade-from", "0.0.1", "--json")
    found = {each["text"].partition(":")[0] for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0
    assert "servers.git, servers.mine" in found
    assert not any("elsewhere" in each or "namespaces" in each for each in found)


@pytest.mark.process
@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("99.0", "is newer than this version"),
        ("yesterday", "'yesterday' is not a version like 1.2.0"),
    ],
)
def test_what_is_not_an_earlier_version_gets_one_sentence(
    tmp_path: Path, version: str, said: str
) -> None:
    done = doctor(tmp_path, "--upgrade-from", version)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
