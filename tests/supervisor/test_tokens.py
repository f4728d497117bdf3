"""Where the key for the tokens of remote servers comes from."""

import base64
import os
import stat
from pathlib import Path

import pytest

from metamcp_supervisor.lives.tokens import CREDENTIAL, FILE, VARIABLE, KeyUnfit, Tokens
from metamcp_supervisor.wanted.config import OAuth

KEY = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(32)).decode()


def key(state_dir: Path, **environ: str) -> str:
    spec = Tokens(state_dir, environ).spec(OAuth())
    assert spec is not None
    return spec.key


def test_a_server_without_oauth_needs_no_key(tmp_path: Path) -> None:
    assert Tokens(tmp_path, {VARIABLE: "broken"}).spec(None) is None
    assert os.listdir(tmp_path) == []


def test_a_worker_is_told_the_client_the_store_and_the_key(tmp_path: Path) -> None:
    oauth = OAuth(client_id="me", client_secret="s", scopes=("a",), grant="client_credentials")
    spec = Tokens(tmp_path, {VARIABLE: KEY}).spec(oauth)
    assert spec is not None
    assert (spec.store, spec.key) == (str(tmp_path / "oauth"), KEY)
    assert (spec.client_id, spec.client_secret, spec.scopes) == ("me", "s", ("a",))
    assert (spec.client_metadata_url, spec.grant) == (None, "client_credentials")


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    state = tmp_path / "a" / "b"
    first = key(state)
    assert len(base64.b64decode(first, validate=True)) == 32
    assert [key(state), key(state)] == [first, first]
    assert os.listdir(state) == [FILE]
    assert stat.S_IMODE((state / FILE).stat().st_mode) == 0o600
    assert key(tmp_path) != first


def test_the_environment_comes_before_systemd_and_that_before_the_file(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    made = key(tmp_path, CREDENTIALS_DIRECTORY=str(credentials))
    (credentials / CREDENTIAL).write_text(f"{OTHER}\n")
    assert made not in {KEY, OTHER}
    assert key(tmp_path, CREDENTIALS_DIRECTORY=str(credentials)) == OTHER
    assert key(tmp_path, CREDENTIALS_DIRECTORY=str(credentials), METAMCP_OAUTH_KEY=KEY) == KEY


@pytest.mark.parametrize("text", ["", "canary", KEY[:-4], KEY + "canary", "é" * 44])
def test_what_is_no_key_is_told_without_repeating_it(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    (tmp_path / FILE).chmod(0o600)
    with pytest.raises(KeyUnfit, match="must be 32 bytes in base64, as 'openssl rand") as caught:
        key(tmp_path)
    assert "canary" not in str(caught.value)
    with pytest.raises(KeyUnfit, match=r"\$METAMCP_OAUTH_KEY is no key"):
        key(tmp_path, METAMCP_OAUTH_KEY=text or "x")


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(KEY)
    (tmp_path / FILE).chmod(0o644)
    with pytest.raises(KeyUnfit, match="run 'chmod 600' on it"):
        key(tmp_path)


def test_a_state_directory_that_takes_no_key_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(KeyUnfit, match=r"cannot be made: .*; make it possible, or set"):
        key(tmp_path / "state")
