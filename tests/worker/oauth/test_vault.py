"""The tokens on disk: encrypted, bound to their file, and never trusted when they look odd."""

import os
import stat
from pathlib import Path

import pytest

from metamcp_worker.oauth.vault import (
    ISSUERS_MAX,
    PRINCIPAL,
    RECORD_BYTES_MAX,
    REFRESH,
    TokenRecord,
    Vault,
    VaultBusy,
    VaultUnfit,
    bare,
)

KEY = bytes(range(32))
URL = "https://mcp.example/mcp"
CANARY = "canary-9d1e"


def record(server: str = "far", issuer: str = "https://as.example", **more: object) -> TokenRecord:
    fields: dict[str, object] = {
        "server": server, "issuer": issuer, "url": URL, "access_token": f"a-{CANARY}",
        "refresh_token": f"r-{CANARY}", "client": f'{{"client_secret":"{CANARY}"}}', **more,
    }  # fmt: skip
    return TokenRecord(**fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - any


def vault(folder: Path, key: bytes = KEY) -> Vault:
    return Vault(str(folder / "oauth"), key)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "oauth").iterdir())


def test_what_was_put_is_found_and_nothing_of_it_can_be_read_on_disk(tmp_path: Path) -> None:
    vault(tmp_path).put(record(scope="a b", expires_at=17.5))
    (found,) = vault(tmp_path).find("far", URL)
    assert (found.access_token, found.refresh_token) == (f"a-{CANARY}", f"r-{CANARY}")
    assert (found.scope, found.expires_at, found.issuer) == ("a b", 17.5, "https://as.example")
    (file,) = files(tmp_path)
    assert CANARY.encode() not in file.read_bytes()
    assert "as.example" not in file.name
    assert file.name.startswith("far.")


def test_files_and_directory_are_for_this_user_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        vault(tmp_path).put(record())
    finally:
        os.umask(old)
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_each_server_issuer_and_principal_has_its_own(tmp_path: Path) -> None:
    kept = vault(tmp_path)
    for server in ("far", "near"):
        for issuer in ("https://one.example", "https://two.example"):
            for principal in (PRINCIPAL, "ada"):
                name = f"{server} {issuer} {principal}"
                kept.put(record(server, issuer, principal=principal, scope=name))
    assert len(files(tmp_path)) == 8
    found = {one.scope for one in kept.find("far", URL, "ada")}
    assert found == {"far https://one.example ada", "far https://two.example ada"}
    assert kept.find("fa", URL) == []
    assert kept.forget("far", "ada") == 2
    assert (kept.find("far", URL, "ada"), len(kept.find("far", URL))) == ([], 2)
    assert kept.forget("far", "ada") == 0


def test_tokens_are_for_the_url_that_they_were_given_for(tmp_path: Path) -> None:
    vault(tmp_path).put(record())
    assert vault(tmp_path).find("far", "https://evil.example/mcp") == []
    assert bare("https://mcp.example/mcp?key=secret#x") == URL


def test_the_newest_comes_first_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    kept = vault(tmp_path)
    names = [f"https://{number}.example" for number in range(ISSUERS_MAX + 3)]
    for number, name in enumerate(names):
        kept.put(record(issuer=name))
        newest = max(files(tmp_path), key=lambda file: file.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert [one.issuer for one in kept.find("far", URL)] == names[: -ISSUERS_MAX - 1 : -1]


def test_a_file_in_another_ones_place_counts_as_absent(tmp_path: Path) -> None:
    kept = vault(tmp_path)
    kept.put(record())
    (mine,) = files(tmp_path)
    kept.put(record("near", access_token="other"))
    (other,) = [file for file in files(tmp_path) if file != mine]
    mine.replace(other)
    assert kept.find("near", URL) == []
    assert [f"{other} was written with another key, or damaged" in one for one in kept.warnings]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "huge", "link", "folder", "fifo"])
def test_what_cannot_be_read_counts_as_absent_and_is_told(tmp_path: Path, damage: str) -> None:
    kept = vault(tmp_path)
    kept.put(record())
    (file,) = files(tmp_path)
    data = file.read_bytes()
    file.unlink()
    match damage:
        case "flip":
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "cut":
            file.write_bytes(data[:20])
        case "empty":
            file.write_bytes(b"")
        case "huge":
            file.write_bytes(data + bytes(RECORD_BYTES_MAX))
        case "link":
            (tmp_path / "elsewhere").write_bytes(data)
            file.symlink_to(tmp_path / "elsewhere")
        case "folder":
            file.mkdir()
        case _:
            os.mkfifo(file)
    assert kept.find("far", URL) == []
    (warning,) = kept.warnings
    assert warning.startswith(f"tokens are not used: {file} ")
    assert CANARY not in warning


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    vault(tmp_path).put(record())
    other = vault(tmp_path, bytes(32))
    assert other.find("far", URL) == []
    assert "another key" in other.warnings[0]


def test_a_place_that_others_can_reach_takes_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "oauth").mkdir(mode=0o755)
    with pytest.raises(VaultUnfit, match=r"others have access to .*; run 'chmod 700"):
        vault(tmp_path).put(record())
    assert files(tmp_path) == []


def test_tokens_that_others_could_have_changed_are_not_read(tmp_path: Path) -> None:
    vault(tmp_path).put(record())
    (tmp_path / "oauth").chmod(0o770)
    looking = vault(tmp_path)
    assert looking.find("far", URL) == []
    assert "others have access to" in looking.warnings[0]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "oauth").write_text("a file")
    with pytest.raises(VaultUnfit, match=r"tokens for server 'far' cannot be stored in .*oauth: "):
        vault(tmp_path).put(record())
    assert vault(tmp_path).find("far", URL) == []


def test_a_record_is_bounded_and_shows_nothing_of_its_tokens(tmp_path: Path) -> None:
    with pytest.raises(VaultUnfit, match="bytes, the limit is 262144"):
        vault(tmp_path).put(record(metadata="x" * RECORD_BYTES_MAX))
    assert CANARY not in f"{record()!r} {record()} {vault(tmp_path)!r}"


def test_what_another_client_was_given_does_not_suit() -> None:
    named = record(client='{"client_id":"me"}', given=True)
    found = record(client='{"client_id":"dynamic"}')
    assert (named.suits("me"), named.suits("you"), named.suits(None)) == (True, False, False)
    assert (found.suits(None), found.suits("me")) == (True, False)


async def test_a_lock_that_another_process_keeps_is_not_taken_as_free(tmp_path: Path) -> None:
    one, other = vault(tmp_path), vault(tmp_path)
    async with one.lock("far", REFRESH):
        with pytest.raises(VaultBusy):
            async with other.lock("far", REFRESH, wait_s=0.05):
                raise AssertionError("the lock is taken twice")
    async with other.lock("far", REFRESH, wait_s=0.05):
        pass
