"""`metamcp backup` and `metamcp restore` as they are called, on a state directory at rest."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main
from metamcp_supervisor.keys.key_rules import PEPPER
from metamcp_supervisor.servers.tokens import FILE, STORE
from tests.terminal import Terminal

pytestmark = [pytest.mark.process, pytest.mark.promise("M115")]

PASSPHRASE = "correct horse"
WHERE = ("--passphrase-env", "BACKUP_PASSPHRASE")


class Place:
    """A folder with a state directory that has a key, and tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.file = folder / "copy"
        self.run("keys", "create", "laptop")
        (self.state / STORE).mkdir(mode=0o700)
        (self.state / STORE / "git-1.token").write_bytes(b"sealed")

    def run(self, verb: str, *words: str, state: str = "state", ok: int = 0) -> Result:
        command = [verb, "--state-dir", str(self.folder / state), *words]
        done = CliRunner().invoke(main, command, env={"BACKUP_PASSPHRASE": PASSPHRASE})
        assert done.exit_code == ok, done.output
        return done

    def json(self, verb: str, *words: str, state: str = "state") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run(verb, *words, "--json", state=state).stdout)
        return answer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_backup_goes_to_another_state_directory_with_its_keys(place: Place) -> None:
    made = place.json("backup", str(place.file), *WHERE)
    assert (made["encrypted"], made["left_out"], made["audit"]) == (True, [], "")
    assert made["files"] == ["metamcp.db", PEPPER, f"{STORE}/git-1.token"]
    assert place.file.stat().st_mode & 0o077 == 0
    restored = place.json("restore", str(place.file), *WHERE, state="other")
    assert (restored["files"], restored["replaced"]) == (made["files"], "")
    assert restored["content"] == {"toolsets": 0, "views": 0, "keys": 1}
    (key,) = json.loads(place.run("keys", "list", "--json", state="other").stdout)["keys"]
    assert (key["name"], key["state"]) == ("laptop", "active")


def test_a_backup_without_secrets_says_what_it_leaves_out(place: Place) -> None:
    (place.state / "audit").mkdir()
    (place.state / "audit" / "2026-11-30.sqlite").write_bytes(b"")
    done = place.run("backup", str(place.file), "--without-secrets")
    assert "0 tool sets, 0 views, 1 API key, 1 file, not encrypted" in done.stdout
    assert f"left out: {PEPPER}, {STORE}/git-1.token" in done.stderr
    assert f"the audit is not in it; copy {place.state}/audit as well" in done.stderr
    done = place.run("restore", str(place.file), state="other")
    assert f"no API key is valid before {PEPPER} of the backed-up gateway" in done.stderr
    assert f"its audit was in {place.state}/audit, and is not in the backup" in done.stderr


def test_a_backup_says_when_the_key_of_tokens_is_elsewhere(place: Place) -> None:
    text = "the key of its tokens for remote servers is not in it"
    assert text in place.run("backup", str(place.file), *WHERE).stderr
    (place.state / FILE).write_text("key")
    assert text not in place.run("backup", f"{place.file}-2", *WHERE).stderr


def test_a_passphrase_is_named_once_and_is_not_short(place: Place) -> None:
    secret = place.folder / "passphrase"
    secret.write_text("short\n")
    secret.chmod(0o600)
    name = ("--passphrase-file", str(secret))
    file = str(place.file)
    assert "at least 8 characters" in place.run("backup", file, *name, ok=2).stderr
    assert "not both" in place.run("backup", file, *name, *WHERE, ok=2).stderr
    assert "name it by --passphrase-file FILE" in place.run("backup", file, ok=2).stderr
    done = place.run("backup", file, "--passphrase-env", "NOT_SET", ok=2)
    assert "the environment variable NOT_SET is not set" in done.stderr
    secret.chmod(0o644)
    assert "run 'chmod 600' on it" in place.run("backup", file, *name, ok=2).stderr
    assert not place.file.exists()
    secret.chmod(0o600)
    secret.write_text(f"{PASSPHRASE}\n")
    place.run("backup", file, *name)
    assert "needs a passphrase" in place.run("restore", file, ok=2).stderr
    secret.write_text("a wrong one\n")
    done = place.run("restore", file, *name, ok=1)
    assert f"the passphrase is not the one with which {file} was made" in done.stderr
    place.run("restore", file, *WHERE)


def test_a_person_types_the_passphrase_and_does_not_see_it(place: Place) -> None:
    command = [sys.executable, "-m", "metamcp_supervisor", "backup", str(place.file)]
    command += ["--state-dir", str(place.state)]
    with Terminal(command, cwd=place.folder, environ=os.environ) as terminal:
        terminal.until("Passphrase:")
        terminal.press(f"{PASSPHRASE}\r".encode())
        terminal.until("Repeat for confirmation:")
        terminal.press(f"{PASSPHRASE}\r".encode())
        assert terminal.finish() == 0
        assert PASSPHRASE.encode() not in terminal.raw
    place.run("restore", str(place.file), *WHERE)
