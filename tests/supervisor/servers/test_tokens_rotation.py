"""`metamcp keys rotate-tokens`: which keys it can replace, and what a kill in between leaves."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.servers.tokens import (
    CREDENTIAL,
    FILE,
    STORE,
    VARIABLE,
    KeyUnfit,
    TokenKeys,
)
from metamcp_worker.ipc.spec import OAuth
from metamcp_worker.oauth.vault import KeyRing, TokenRecord, Vault
from tests.waiting import until

URL = "https://mcp.example/mcp"
COUNT = 300


def made(folder: Path, count: int = 1) -> bytes:
    """The key that the gateway made in this folder, with the tokens of so many servers."""
    spec = TokenKeys(folder, {}).spec(OAuth())
    assert spec is not None
    key = base64.b64decode(spec.key)
    vault = Vault(spec.store, key)
    for number in range(count):
        vault.put(record(number))
    return key


def record(number: int) -> TokenRecord:
    name = f"s{number}"
    return TokenRecord(server=name, issuer="https://as.example", url=URL, access_token=name)


def readable(folder: Path, key: bytes) -> int:
    """Of how many servers a process with this key finds the token."""
    vault = Vault(str(folder / STORE), key)
    return sum(bool(vault.find(f"s{number}", URL)) for number in range(COUNT))


def ring(folder: Path) -> KeyRing:
    return KeyRing.parse((folder / FILE).read_text())


def command(folder: Path) -> list[str]:
    words = ["keys", "--state-dir", str(folder), "rotate-tokens", "--json"]
    return [sys.executable, "-m", "metamcp_supervisor", *words]


def run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder), capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environ},
    )  # fmt: skip


def test_the_next_process_finds_the_new_key(tmp_path: Path) -> None:
    old = made(tmp_path)
    keys = TokenKeys(tmp_path, {})
    assert len(keys.rotate()) == 1
    spec = TokenKeys(tmp_path, {}).spec(OAuth())
    assert spec is not None
    assert base64.b64decode(spec.key) == ring(tmp_path).keys[0] != old


@pytest.mark.parametrize("source", ["variable", "credential", "nothing"])
def test_a_key_that_is_not_in_the_file_cannot_be_replaced(tmp_path: Path, source: str) -> None:
    key = base64.b64encode(bytes(32))
    (tmp_path / CREDENTIAL).write_bytes(key)
    environ = {
        "variable": {VARIABLE: key.decode()},
        "credential": {"CREDENTIALS_DIRECTORY": str(tmp_path)},
    }.get(source, {})
    if environ:
        made(tmp_path)
    before = (tmp_path / FILE).read_bytes() if environ else b""
    with pytest.raises(KeyUnfit, match="can be replaced, and the key is"):
        TokenKeys(tmp_path, environ).rotate()
    assert ((tmp_path / FILE).read_bytes() if environ else b"") == before


@pytest.mark.process
def test_a_kill_in_between_leaves_every_token_and_the_next_run_ends_it(tmp_path: Path) -> None:
    old = made(tmp_path, COUNT)
    with subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL) as process:
        until(lambda: len(ring(tmp_path).keys) == 2, "it has begun")
        process.kill()
    keys = ring(tmp_path).keys
    assert [readable(tmp_path, key) for key in {old, *keys}] == [COUNT] * len({old, *keys})
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert ring(tmp_path).keys == keys[:1]
    assert [readable(tmp_path, key) for key in (old, keys[0])] == [COUNT] * 2


@pytest.mark.process
def test_the_verb_says_how_many_files_it_encrypted_and_why_it_did_not(tmp_path: Path) -> None:
    made(tmp_path, 2)
    done = run(tmp_path)
    assert (done.returncode, '"files":2' in done.stdout) == (0, True), done.stderr
    done = run(tmp_path, METAMCP_OAUTH_KEY=base64.b64encode(bytes(32)).decode())
    assert done.returncode == 1
    assert "the key of the tokens is not replaced: only a key in" in done.stderr
