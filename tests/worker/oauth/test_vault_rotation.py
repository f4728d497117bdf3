"""A new key for the tokens: who has the old key goes on, and no crash makes a token unreadable."""

import base64
import os
from itertools import islice
from pathlib import Path

import pytest

from metamcp_worker.oauth.vault import (
    KEY_FILE,
    REPLACED_MAX,
    KeyRing,
    Vault,
    VaultUnfit,
)
from tests.worker.oauth.test_vault import CANARY, KEY, URL, record

FRESH = bytes(range(32, 64))
OTHER = bytes(range(64, 96))
SERVERS = ("far", "near", "wide")


def begin(folder: Path, key: bytes = KEY) -> None:
    """The key file and the tokens of each server."""
    write_key(folder, key)
    for server in SERVERS:
        vault(folder, key).put(record(server))


def write_key(folder: Path, key: bytes) -> None:
    (folder / KEY_FILE).write_bytes(bytes(KeyRing((key,))))
    (folder / KEY_FILE).chmod(0o600)


def vault(folder: Path, key: bytes = KEY) -> Vault:
    return Vault(str(folder / "oauth"), key)


def ring(folder: Path) -> KeyRing:
    return KeyRing.parse((folder / KEY_FILE).read_text())


def rotate(folder: Path, fresh: bytes = FRESH) -> list[str]:
    return list(vault(folder, ring(folder).keys[0]).rotate(fresh))


def tokens(folder: Path, key: bytes) -> list[str]:
    """The token of each server that a process with this key finds."""
    found = vault(folder, key)
    return [one.access_token for server in SERVERS for one in found.find(server, URL)]


def stored(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "oauth").iterdir())]


def test_every_token_is_encrypted_with_the_new_key_and_the_old_one_is_gone(tmp_path: Path) -> None:
    begin(tmp_path)
    before = stored(tmp_path)
    assert len(rotate(tmp_path)) == len(SERVERS)
    assert not set(before) & set(stored(tmp_path))
    assert ring(tmp_path).keys == (FRESH,)
    assert base64.b64encode(KEY) not in (tmp_path / KEY_FILE).read_bytes()
    assert tokens(tmp_path, FRESH) == [f"a-{CANARY}"] * len(SERVERS)
    assert os.stat(tmp_path / KEY_FILE).st_mode & 0o077 == 0


def test_a_process_with_the_old_key_reads_and_writes_on(tmp_path: Path) -> None:
    begin(tmp_path)
    reads, writes = vault(tmp_path), vault(tmp_path)
    rotate(tmp_path)
    writes.put(record("near", access_token="newer"))
    assert [one.access_token for one in reads.find("near", URL)] == ["newer"]
    assert tokens(tmp_path, FRESH) == [f"a-{CANARY}", "newer", f"a-{CANARY}"]
    assert reads.warnings == []


@pytest.mark.parametrize("step", range(len(SERVERS) + 1))
def test_a_crash_leaves_all_readable_and_the_next_rotation_ends_it(
    tmp_path: Path, step: int
) -> None:
    begin(tmp_path)
    crashed = vault(tmp_path).rotate(FRESH)
    assert len(list(islice(crashed, step))) == step
    del crashed
    for key in (KEY, FRESH) if step else (KEY,):
        assert tokens(tmp_path, key) == [f"a-{CANARY}"] * len(SERVERS)
    vault(tmp_path).put(record("far", access_token="meanwhile"))
    rotate(tmp_path, OTHER)
    assert ring(tmp_path).keys == ((FRESH,) if step else (OTHER,))
    for key in (KEY, *ring(tmp_path).keys):
        assert tokens(tmp_path, key) == ["meanwhile", *[f"a-{CANARY}"] * 2]


def test_a_rotation_removes_what_a_crash_left_of_keys_and_tokens(tmp_path: Path) -> None:
    begin(tmp_path)
    token = min((tmp_path / "oauth").iterdir()).name
    others = tmp_path / "oauth.key.backup", tmp_path / ".others", tmp_path / "oauth" / ".others"
    left = tmp_path / f".{KEY_FILE}.a1b2c3d4", tmp_path / "oauth" / f".{token}.a1b2c3d4"
    for path in (*others, *left):
        path.write_bytes(base64.b64encode(KEY))
    rotate(tmp_path)
    assert [path.exists() for path in (*others, *left)] == [True] * 3 + [False] * 2
    assert tokens(tmp_path, FRESH) == [f"a-{CANARY}"] * len(SERVERS)


def test_tokens_that_are_stored_during_a_rotation_are_kept(tmp_path: Path) -> None:
    begin(tmp_path)
    steps = vault(tmp_path).rotate(FRESH)
    next(steps)
    for server in SERVERS:
        vault(tmp_path).put(record(server, access_token="meanwhile"))
    vault(tmp_path).put(record("late", access_token="late"))
    assert vault(tmp_path).forget("wide") == 1
    list(steps)
    assert tokens(tmp_path, FRESH) == ["meanwhile"] * 2
    (late,) = vault(tmp_path, FRESH).find("late", URL)
    assert late.access_token == "late"


def test_a_key_from_elsewhere_has_nothing_to_do_with_the_file(tmp_path: Path) -> None:
    write_key(tmp_path, KEY)
    vault(tmp_path, OTHER).put(record())
    before = (tmp_path / KEY_FILE).read_bytes()
    with pytest.raises(VaultUnfit, match="were not written with the key in"):
        rotate(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == before
    assert len(tokens(tmp_path, OTHER)) == 1


def test_a_damaged_file_stays_as_it_is_and_holds_up_nothing(tmp_path: Path) -> None:
    begin(tmp_path)
    damaged = min((tmp_path / "oauth").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = damaged.read_bytes()
    assert len(rotate(tmp_path)) == len(SERVERS) - 1
    assert damaged.read_bytes() == before


def test_a_key_file_that_others_can_read_is_not_replaced(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(VaultUnfit, match="run 'chmod 600'"):
        rotate(tmp_path)


def test_many_rotations_keep_the_file_small(tmp_path: Path) -> None:
    begin(tmp_path)
    old = vault(tmp_path)
    for number in range(REPLACED_MAX + 1):
        rotate(tmp_path, bytes([number]) * 32)
        if number == REPLACED_MAX - 1:
            assert vault(tmp_path).find("far", URL)
    assert len(ring(tmp_path).replaced) == REPLACED_MAX
    assert old.find("far", URL) == []
    assert "another key" in old.warnings[0]


def test_a_file_with_something_else_is_not_a_key_file(tmp_path: Path) -> None:
    begin(tmp_path)
    for text in ("", "short", f"{base64.b64encode(KEY).decode()} AAAA", "replaced:abc", "\xff"):
        (tmp_path / KEY_FILE).write_text(text)
        with pytest.raises(VaultUnfit, match=f"{KEY_FILE} has no key for the tokens"):
            list(vault(tmp_path).rotate(FRESH))
    assert len(tokens(tmp_path, KEY)) == len(SERVERS)


@pytest.mark.parametrize("damage", ["others read it", "no key", "link"])
def test_nothing_is_encrypted_with_a_key_that_may_be_replaced(tmp_path: Path, damage: str) -> None:
    begin(tmp_path)
    late = vault(tmp_path)
    rotate(tmp_path)
    before, file, aside = stored(tmp_path), tmp_path / KEY_FILE, tmp_path / "aside"
    file.rename(aside)
    match damage:
        case "link":
            file.symlink_to(aside)
        case "no key":
            file.write_text("none")
            file.chmod(0o600)
        case _:
            file.write_bytes(aside.read_bytes())
            file.chmod(0o644)
    with pytest.raises(VaultUnfit, match=str(file)):
        late.put(record("near", access_token="newer"))
    assert stored(tmp_path) == before
    aside.replace(file)
    late.put(record("near", access_token="newer"))
    assert tokens(tmp_path, FRESH) == [f"a-{CANARY}", "newer", f"a-{CANARY}"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_key_that_no_file_replaces_encrypts_on(tmp_path: Path, gone: bool) -> None:
    """The key is from elsewhere, and a file that cannot be used lies there; or the file is gone."""
    write_key(tmp_path, KEY if gone else OTHER)
    (tmp_path / KEY_FILE).chmod(0o600 if gone else 0o644)
    stores = vault(tmp_path)
    if gone:
        (tmp_path / KEY_FILE).unlink()
    stores.put(record("far"))
    assert tokens(tmp_path, KEY) == [f"a-{CANARY}"]


def test_a_process_learns_later_that_its_key_is_from_the_file(tmp_path: Path) -> None:
    write_key(tmp_path, KEY)
    (tmp_path / KEY_FILE).chmod(0o644)
    stores = vault(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o600)
    stores.put(record("far"))
    rotate(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(VaultUnfit, match="run 'chmod 600'"):
        stores.put(record("far", access_token="newer"))
