"""The directory of the tokens for remote servers, and the key that encrypts them.

Owns: the path of the directory, finding the key, making the key once, whether it can be replaced,
the ends of tokens. Never: encryption, speaking OAuth (the worker of a server does all that).

The key comes from the environment, from systemd, or from a file beside the directory of the tokens,
which is created when it is first needed. Only the first two keep the key apart from the tokens: a
key in the file protects only against a person who gets the tokens alone, as in a backup of their
directory.
"""

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.references import Unresolved
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.spec import OAuth, OAuthSpec

VARIABLE = "METAMCP_OAUTH_KEY"
CREDENTIAL = "oauth_key"
"""Name of the key among the credentials of systemd (`LoadCredential=`)."""
FILE = "oauth.key"
STORE = "oauth"
KEY_BYTES = 32
KEY_TEXT_BYTES_MAX = 1024
"""Maximum bytes to read from a credential; the key has 44 characters."""


class KeyUnfit(MetaMCPError):
    """The key is missing or not valid. The text says why and what to do."""


class TokenKeys:
    """`environ`: of the gateway. The key is looked for when it is first needed, and then kept."""

    def __init__(self, state_dir: Path, environ: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._given = environ.get(VARIABLE, "")
        self._credentials = environ.get("CREDENTIALS_DIRECTORY", "")
        self._key = ""

    def spec(self, oauth: OAuth | None) -> OAuthSpec | None:
        """Return the OAuth specification for the worker of a server with these settings. Raises
        KeyUnfit."""
        if oauth is None:
            return None
        self._key = self._key or self._find()
        store = str(self._state_dir / STORE)
        return OAuthSpec(**structs.asdict(oauth), store=store, key=self._key)

    def read_end(self, server: Server) -> float | None:
        """Return when a person has to authorize the gateway at this server again, in seconds since
        the epoch: the end of its token, if there is one and nothing renews it. Blocks."""
        from metamcp_worker.oauth.vault import Vault, bare

        oauth, store = server.oauth, self._state_dir / STORE
        if oauth is None or oauth.grant == "client_credentials" or not store.is_dir():
            return None
        try:
            self._key = self._key or self._find()
        except KeyUnfit:  # the start of the server says so
            return None
        vault = Vault(str(store), base64.b64decode(self._key))
        record = vault.find_usable(server.name, bare(server.url or ""), oauth.client_id)
        return record.expires_at or None if record and not record.refresh_token else None

    def rotate(self) -> list[str]:
        """Replace the key in the file, and encrypt all tokens with the new one. Gateways and their
        workers find it there, so they go on. Return the names of the files that were encrypted
        again. Raises KeyUnfit and VaultUnfit. Blocks."""
        from metamcp_worker.oauth.vault import Vault

        path = self._state_dir / FILE
        location = f"${VARIABLE}" if self._given else self._credential_path()
        if location or not os.path.lexists(path):
            problem = f"in {location}" if location else "not there"
            advice = "after another key is set there, log in to each server again"
            raise KeyUnfit(
                f"only a key in {path} can be replaced, and the key is {problem}"
                + (f"; {advice}" if location else "")
            )
        if (owner := path.lstat().st_uid) != os.geteuid():
            raise KeyUnfit(f"{path} belongs to user id {owner}; run this as that user")
        vault = Vault(str(self._state_dir / STORE), base64.b64decode(self._find()))
        try:
            return list(vault.rotate(secrets.token_bytes(KEY_BYTES)))
        except OSError as error:
            raise KeyUnfit(f"{error.filename or path}: {error.strerror}") from None

    def _credential_path(self) -> str:
        """Return where systemd has put the key; empty if it has not."""
        path = os.path.join(self._credentials, CREDENTIAL)
        return path if self._credentials and os.path.lexists(path) else ""

    def _find(self) -> str:
        if self._given:
            return _check_key(self._given, f"${VARIABLE}")
        if self._credentials:
            path = Path(self._credentials) / CREDENTIAL
            if (text := _credential(path)) is not None:
                return _check_key(text, f"the credential {path}")
        path = self._state_dir / FILE
        try:
            if not os.path.lexists(path):
                _make(path)
            return _check_key(files.secret(path).partition("\n")[0], str(path))
        except Unresolved as error:
            raise KeyUnfit(f"the tokens have no key: {error}") from None
        except OSError as error:
            raise KeyUnfit(
                f"the tokens have no key: {path} cannot be made: {error.strerror}; make it"
                f" possible, or set ${VARIABLE}"
            ) from None


def _credential(path: Path) -> str | None:
    """Read a credential that systemd provides to this service only; None if there is none of this
    name. Raises KeyUnfit."""
    try:
        with path.open("rb") as file:
            return file.read(KEY_TEXT_BYTES_MAX).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyUnfit(f"the credential {path} cannot be read: {error.strerror}") from None


def _check_key(text: str, source: str) -> str:
    """Return the key in base64. Raises KeyUnfit with words that do not repeat the key."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyUnfit(
            f"{source} is not a key for the tokens: it must be {KEY_BYTES} bytes in base64, as"
            f" 'openssl rand -base64 {KEY_BYTES}' prints them"
        )
    return base64.b64encode(key).decode()


def _make(path: Path) -> None:
    """Make the key file, whole or not at all, and only once: if two gateways make it at the same
    time, both use the first one. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.make_once(path, base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
