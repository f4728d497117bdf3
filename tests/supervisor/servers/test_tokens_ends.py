"""When a person has to authorize the gateway again: the ends of tokens that nothing renews."""

import base64
from pathlib import Path

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.tokens import FILE, STORE, VARIABLE, TokenKeys
from metamcp_worker.ipc.spec import OAuth
from metamcp_worker.oauth.vault import TokenRecord, Vault

KEY = bytes(range(32))
URL = "https://mcp.example/mcp"
PERSON = OAuth()


def keys(folder: Path, key: bytes = KEY) -> TokenKeys:
    return TokenKeys(folder, {VARIABLE: base64.b64encode(key).decode()})


def server(oauth: OAuth | None = PERSON) -> Server:
    return Server(name="far", source="", url=URL, oauth=oauth)


def put(folder: Path, expires_at: float = 0.0, refresh_token: str = "") -> None:
    record = TokenRecord(
        server="far", issuer="https://as.example", url=URL, access_token="a",
        refresh_token=refresh_token, expires_at=expires_at,
    )  # fmt: skip
    Vault(str(folder / STORE), KEY).put(record)


def test_a_token_that_nothing_renews_ends(tmp_path: Path) -> None:
    put(tmp_path, expires_at=17.5)
    assert keys(tmp_path).read_end(server()) == 17.5
    assert keys(tmp_path).read_end(server(None)) is None
    assert keys(tmp_path).read_end(server(OAuth(client_id="other"))) == 17.5


def test_a_token_that_is_renewed_or_whose_end_nobody_said_has_none(tmp_path: Path) -> None:
    put(tmp_path, expires_at=17.5, refresh_token="r")
    assert keys(tmp_path).read_end(server()) is None
    put(tmp_path)
    assert keys(tmp_path).read_end(server()) is None
    put(tmp_path, expires_at=17.5)
    machine = OAuth(client_id="me", client_secret="x", grant="client_credentials")
    assert keys(tmp_path).read_end(server(machine)) is None
    assert keys(tmp_path, bytes(32)).read_end(server()) is None, "of another key"


def test_a_gateway_without_tokens_makes_no_key_for_them(tmp_path: Path) -> None:
    assert TokenKeys(tmp_path, {}).read_end(server()) is None
    assert not (tmp_path / FILE).exists()
