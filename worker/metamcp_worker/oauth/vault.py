"""Tokens for remote servers, encrypted, on disk.

Owns: the files, their names and format, the treatment of unreadable files, locks between processes,
a new key for all of them. Never: where the key of a process comes from, how tokens are obtained,
the use of tokens.

There is one file for each server, authorization server and principal. The file name shows the name
of the server; principal and authorization server are hashed. Name and content are bound together: a
file that was renamed, or copied over another one, is as unreadable as a damaged one. An unreadable
file counts as absent, because the remedy is the same: to get authorized again.

A key from the file beside the directory can be replaced while processes have it. The file then has
the new key first, the old key until the last record is encrypted again, and the digests of earlier
keys. A process whose key is among them takes the new one; a key from elsewhere is in no file.
"""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec

PRINCIPAL = "local"
"""Principal that owns the tokens, as long as the gateway does not distinguish its clients."""
KEY_BYTES = 32
"""Bytes of the key, which is for AES-256."""
KEY_FILE = "oauth.key"
"""File with the key, beside the directory of the records."""
KEY_FILE_BYTES_MAX = 4096
REPLACED = "replaced:"
REPLACED_MAX = 32
"""Maximum number of earlier keys whose digests the file has: a process that was not seen for so
many rotations has to start again."""
KEY_LOCK_S_MAX = 2.0
"""Maximum seconds to wait until another process has encrypted a record with a new key."""
RECORD_BYTES_MAX = 256 * 1024
"""Maximum bytes of a record; tokens have some KiB, and metadata of authorization servers more."""
ISSUERS_MAX = 8
"""Maximum authorization servers for one server and principal; the oldest is forgotten first. A
server rarely changes its authorization server, but a hostile server could name a new one each
time."""

LOCK_S_MAX = 45.0
"""Maximum seconds to wait until another process has changed the tokens of a server: longer than an
authorization server may take for its answer."""
_LOCK_S_STEP = 0.02

_MAGIC = b"metamcp-oauth-1\n"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_SUFFIX = ".token"
_LOCK = ".lock"
#: Kinds of locks, kept apart: asking for new tokens takes seconds, a change takes no time.
REFRESH, CHANGE = "refresh", "change"


class VaultBusy(MetaMCPError):
    """Raised if another process keeps the lock of a server's records for too long."""


class VaultUnfit(MetaMCPError):
    """Failure to store or remove tokens. The text gives the reason, and often the remedy."""


class TokenRecord(Struct, frozen=True, kw_only=True):
    """Stored state of one authorization server for one server and principal.

    `url`: URL of the server; the tokens are sent only there. `client`: JSON of the registration;
    `given`: whether the client is from the configuration. `metadata`, `resource`: JSON of the
    metadata of the authorization server and of the server. `expires_at`: seconds since the epoch,
    0 if unknown. `wanted`: scopes that the server asked for since.
    """

    server: str
    issuer: str
    url: str
    principal: str = PRINCIPAL
    client: str = ""
    given: bool = False
    metadata: str = ""
    resource: str = ""
    access_token: str = ""
    refresh_token: str = ""
    scope: str = ""
    expires_at: float = 0.0
    wanted: str = ""
    saved_at: float = 0.0

    def __repr__(self) -> str:
        return f"TokenRecord(server={self.server!r}, issuer={self.issuer!r})"

    def suits(self, client_id: str | None) -> bool:
        """Whether the record was created for this client of the configuration, or without a client
        of the configuration if `client_id` is None. Tokens of another client cannot be used."""
        if client_id is None or not self.client:
            return not self.given
        try:
            return codec.decode_as(_Client, self.client.encode()).client_id == client_id
        except codec.Malformed:
            return False


class _Client(Struct):
    client_id: str = ""


class KeyRing(Struct, frozen=True):
    """Content of the key file. `keys`: the key that encrypts, and while records are encrypted
    again, the key before it; `replaced`: digests of earlier keys."""

    keys: tuple[bytes, ...]
    replaced: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """Read the content of the file. Raises ValueError."""
        words = text.split()
        keys = [base64.b64decode(word, validate=True) for word in words if REPLACED not in word]
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError("not the content of a key file")
        replaced = [word.removeprefix(REPLACED) for word in words if REPLACED in word]
        return cls(tuple(keys), tuple(replaced))

    def __bytes__(self) -> bytes:
        lines = [base64.b64encode(key).decode() for key in self.keys]
        return "".join(
            f"{line}\n" for line in (*lines, *(REPLACED + each for each in self.replaced))
        ).encode()

    def has(self, key: bytes) -> bool:
        """Whether the file has or had this key."""
        return key in self.keys or _digest_of_key(key) in self.replaced

    def begin(self, fresh: bytes) -> "KeyRing":
        """Return the ring with a fresh key, unless such a change is under way."""
        return self if len(self.keys) > 1 else KeyRing((fresh, *self.keys), self.replaced)

    def finish(self) -> "KeyRing":
        """Return the ring with the new key alone."""
        key, *before = self.keys
        replaced = (*map(_digest_of_key, before), *self.replaced)
        return KeyRing((key,), replaced[:REPLACED_MAX])


class Vault:
    """Store of records. `directory`: created when it is first needed. `key`: 32 bytes. `warnings`:
    sentences about files that were not used, for the caller to take out."""

    def __init__(self, directory: str, key: bytes) -> None:
        self._directory = directory
        self._key = key
        self.warnings: list[str] = []
        self._has_key_of_file = False
        with contextlib.suppress(OSError, VaultUnfit):
            self._has_key_of_file = _read_ring(self._key_path()).has(key)

    def find(self, server: str, url: str, principal: str = PRINCIPAL) -> list[TokenRecord]:
        """Return the records of this server at this URL, the newest first."""
        names = self._names(server, principal)
        records = [record for name in names if (record := self._read(name)) is not None]
        mine = [
            record
            for record in records
            if record.server == server and record.principal == principal and record.url == url
        ]
        return sorted(mine, key=lambda record: record.saved_at, reverse=True)

    def find_usable(self, server: str, url: str, client_id: str | None) -> TokenRecord | None:
        """Return the newest record with a token for this client; see `TokenRecord.suits`."""
        records = self.find(server, url)
        return next(
            (record for record in records if record.access_token and record.suits(client_id)), None
        )

    @contextlib.asynccontextmanager
    async def lock(
        self, server: str, action: str, principal: str = PRINCIPAL, *, wait_s: float = LOCK_S_MAX
    ) -> AsyncGenerator[None]:
        """Lock the records of this server against the same action of other processes. `action`:
        REFRESH or CHANGE. The kernel takes the lock from a process that dies. Where records cannot
        be stored, a lock is not taken. Raises VaultBusy after `wait_s` seconds."""
        fd = await self._acquire_lock(self._path(_lock(server, principal, action)), wait_s)
        try:
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    async def _acquire_lock(self, path: str, wait_s: float) -> int:
        """Return the descriptor that holds the lock; -1 where records cannot be stored."""
        try:
            self._prepare()
            async with asyncio.timeout(wait_s):
                while (fd := _try_lock(path)) < 0:  # noqa: ASYNC110 - another process has it
                    await asyncio.sleep(_LOCK_S_STEP)
                return fd
        except TimeoutError:  # an OSError, too
            raise VaultBusy from None
        except (OSError, VaultUnfit):
            return -1

    def put(self, record: TokenRecord) -> None:
        """Store the record in the place of an earlier one. Raises VaultUnfit."""
        name = _name(record.server, record.principal, record.issuer)
        data = codec.dump(structs.replace(record, saved_at=time.time()))
        if len(data) > RECORD_BYTES_MAX:
            raise VaultUnfit(
                f"the tokens for server '{record.server}' are not stored: they and the metadata of"
                f" {record.issuer} have {len(data)} bytes, the limit is {RECORD_BYTES_MAX}"
            )
        try:
            self._prepare()
            with hold_key(self._directory, fcntl.LOCK_SH):
                key = self._take_keys()[0]
                _write(self._path(name), _seal(name, data, key))
                self._prune(record)
        except OSError as error:
            raise VaultUnfit(
                f"the tokens for server '{record.server}' cannot be stored in {self._directory}:"
                f" {error.strerror}; make that possible, or choose another --state-dir"
            ) from None

    def forget(self, server: str, principal: str = PRINCIPAL) -> int:
        """Remove all files of this server, readable or not, and return the number of token files.
        Raises VaultUnfit."""
        if not os.path.isdir(self._directory):
            return 0
        names = self._names(server, principal)
        try:
            with hold_key(self._directory, fcntl.LOCK_SH):
                for name in names:
                    os.unlink(self._path(name))
            for action in (REFRESH, CHANGE):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(_lock(server, principal, action)))
        except OSError as error:
            raise VaultUnfit(
                f"the tokens for server '{server}' cannot be removed from {self._directory}:"
                f" {error.strerror}"
            ) from None
        return len(names)

    # --- the key ----------------------------------------------------------------------------

    def rotate(self, fresh: bytes) -> Iterator[str]:
        """Give the key file a fresh key, encrypt every record with it, and remove the key before
        it; yield the name of each record that was encrypted again. Finish a rotation that broke off
        with its key instead. A record that no key opens stays as it is. Raises VaultUnfit and
        OSError."""
        path = self._key_path()
        self._prepare()
        with hold_key(self._directory, fcntl.LOCK_EX):
            ring = _read_ring(path)
            names = self._records()
            if names and not any(self._unseal(name, ring.keys) for name in names):
                raise VaultUnfit(
                    f"the tokens in {self._directory} were not written with the key in {path}"
                )
            _write(path, bytes(ring.begin(fresh)))
        for name in names:
            with hold_key(self._directory, fcntl.LOCK_EX):
                is_sealed = self._seal_again(name, _read_ring(path))
            if is_sealed:
                yield name
        with hold_key(self._directory, fcntl.LOCK_EX):
            ring = _read_ring(path)
            for name in self._records():
                self._seal_again(name, ring)
            _write(path, bytes(ring.finish()))
            self._remove_unfinished()

    def _seal_again(self, name: str, ring: KeyRing) -> bool:
        """Encrypt a record with the new key; return whether it was encrypted with another one.
        Raises OSError."""
        key, *before = ring.keys
        data = None if self._unseal(name, [key]) else self._unseal(name, before)
        if data is not None:
            _write(self._path(name), _seal(name, data, key))
        return data is not None

    def _unseal(self, name: str, keys: Iterable[bytes]) -> bytes | None:
        """Return the content of a record; None if it is gone, or none of these keys opens it.
        Raises OSError."""
        try:
            sealed = self._read_sealed(name)
        except FileNotFoundError:
            return None
        return None if sealed is None else _unseal(name, sealed, keys)

    def _take_keys(self) -> tuple[bytes, ...]:
        """Return the keys that open records now; the first one encrypts. Take the new key if the
        file says that this one was replaced. Raises VaultUnfit if the file cannot say so, because
        nobody would have the key of a record that is encrypted with a replaced one."""
        path = self._key_path()
        try:
            ring = _read_ring(path)
        except (OSError, VaultUnfit) as error:
            if not self._has_key_of_file or isinstance(error, FileNotFoundError):
                return (self._key,)
            if isinstance(error, OSError):
                raise VaultUnfit(f"{path} cannot be read: {error.strerror}") from None
            raise
        if not ring.has(self._key):
            return (self._key,)
        self._key, self._has_key_of_file = ring.keys[0], True
        return ring.keys

    def _remove_unfinished(self) -> None:
        """Remove what a crash has left of files that were to be replaced; such a file may have keys
        that no file is to have any more. The caller holds the lock alone. Raises OSError."""
        store = Path(self._directory)
        for path in (*store.parent.glob(f".{KEY_FILE}.*"), *store.glob(f".*{_SUFFIX}.*")):
            path.unlink(missing_ok=True)

    def _key_path(self) -> str:
        return os.path.join(os.path.dirname(self._directory), KEY_FILE)

    # --- files ------------------------------------------------------------------------------

    def _records(self) -> list[str]:
        return sorted(name for name in os.listdir(self._directory) if name.endswith(_SUFFIX))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _names(self, server: str, principal: str) -> list[str]:
        try:
            names = os.listdir(self._directory)
            open_to_others = os.stat(self._directory).st_mode & 0o077
        except OSError:
            return []
        if open_to_others:
            directory = self._directory
            self.warnings.append(f"tokens are not used: {_open(directory)}")
            return []
        prefix = f"{server}.{_digest(principal)}."
        return sorted(name for name in names if name.startswith(prefix) and name.endswith(_SUFFIX))

    def _read(self, name: str) -> TokenRecord | None:
        try:
            sealed = self._read_sealed(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unusable(name, f"cannot be read: {error.strerror}")
            return None
        if sealed is None:
            self._unusable(name, "is not a file that the gateway wrote")
            return None
        data = _unseal(name, sealed, [self._key])
        if data is None:
            with contextlib.suppress(OSError, VaultUnfit), hold_key(self._directory, fcntl.LOCK_SH):
                data = self._unseal(name, self._take_keys())
        if data is None:
            self._unusable(name, "was written with another key, or damaged")
            return None
        try:
            return codec.decode_as(TokenRecord, data)
        except codec.Malformed:
            self._unusable(name, "was written by another version")
            return None

    def _read_sealed(self, name: str) -> bytes | None:
        """Return the content of a regular file of this user's, with the right first bytes and not
        too large; None for another file. Raises OSError."""
        fd = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            limit = len(_MAGIC) + _NONCE_BYTES + RECORD_BYTES_MAX + _TAG_BYTES
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            data = file.read(limit + 1) if ours and status.st_size <= limit else b""
        return data if data.startswith(_MAGIC) and len(data) <= limit else None

    def _unusable(self, name: str, problem: str) -> None:
        self.warnings.append(f"tokens are not used: {self._path(name)} {problem}")

    def _prepare(self) -> None:
        """Make the directory, and check its owner and mode. Raises OSError and VaultUnfit."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        status = os.lstat(self._directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise VaultUnfit(
                f"{self._directory} is not a directory of this user's: remove it; it is made anew"
            )
        if status.st_mode & 0o077:
            raise VaultUnfit(_open(self._directory))

    def _prune(self, newest: TokenRecord) -> None:
        """Remove the oldest records beyond ISSUERS_MAX. Raises OSError."""
        names = self._names(newest.server, newest.principal)
        ages = sorted((os.stat(self._path(name)).st_mtime, name) for name in names)
        for _, name in ages[:-ISSUERS_MAX]:
            os.unlink(self._path(name))


def _try_lock(path: str) -> int:
    """Return a descriptor that holds the lock; -1 while another process has the lock, or if the
    file was just removed. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return -1


@contextlib.contextmanager
def hold_key(directory: str, action: int = fcntl.LOCK_SH) -> Generator[None]:
    """Hold the lock on the key of all records of a vault: LOCK_SH to use the key, LOCK_EX to
    replace it. Raises VaultUnfit after KEY_LOCK_S_MAX, and OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ends = time.monotonic() + KEY_LOCK_S_MAX
        while not _has_locked(fd, action):
            if time.monotonic() >= ends:
                raise VaultUnfit(f"another process changes the key of {directory}")
            time.sleep(_LOCK_S_STEP)
        yield
    finally:
        os.close(fd)


def _has_locked(fd: int, action: int) -> bool:
    """Try to lock a directory. On a file system without such locks LOCK_SH counts as taken. Raises
    OSError."""
    try:
        fcntl.flock(fd, action | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if action == fcntl.LOCK_EX:
            raise
    return True


def _write(path: str, data: bytes) -> None:
    """Write a file for this user alone, whole or not at all. Raises OSError."""
    directory, name = os.path.split(path)
    fd, made = tempfile.mkstemp(prefix=f".{name}.", dir=directory)  # mode 0600
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(made, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        raise
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_ring(path: str) -> KeyRing:
    """Read the key file, which must be for this user alone. Raises VaultUnfit and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        data = file.read(KEY_FILE_BYTES_MAX) if stat.S_ISREG(status.st_mode) else b""
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o077:
        raise VaultUnfit(f"others can change or read {path}; run 'chmod 600' on it")
    try:
        return KeyRing.parse(data.decode("ascii"))
    except ValueError:
        raise VaultUnfit(f"{path} has no key for the tokens") from None


def _seal(name: str, data: bytes, key: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return _MAGIC + nonce + AESGCM(key).encrypt(nonce, data, _make_associated_data(name))


def _unseal(name: str, sealed: bytes, keys: Iterable[bytes]) -> bytes | None:
    """Return the content of a file; None if none of these keys opens it."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    begin = len(_MAGIC) + _NONCE_BYTES
    nonce, body, bound = sealed[len(_MAGIC) : begin], sealed[begin:], _make_associated_data(name)
    for key in keys:
        with contextlib.suppress(InvalidTag, ValueError):
            return AESGCM(key).decrypt(nonce, body, bound)
    return None


def bare(url: str) -> str:
    """Return the URL without query and fragment, which may be secret and do not name a server."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _name(server: str, principal: str, issuer: str) -> str:
    return f"{server}.{_digest(principal)}.{_digest(issuer)}{_SUFFIX}"


def _open(directory: str) -> str:
    return f"others have access to {directory}; run 'chmod 700 {directory}'"


def _lock(server: str, principal: str, action: str) -> str:
    return f"{server}.{_digest(principal)}.{action}{_LOCK}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest_of_key(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _make_associated_data(name: str) -> bytes:
    """Return the data that the cipher authenticates in addition to the content."""
    return _MAGIC + name.encode()


def vault_of(spec: ServerSpec) -> Vault:
    """Return the vault with the tokens of this server. Raises VaultUnfit; MetaMCPError for a server
    without `oauth`."""
    oauth = spec.oauth
    if not isinstance(oauth, OAuthSpec):
        raise MetaMCPError(f"server '{spec.name}' has no `oauth` in its configuration")
    return Vault(oauth.store, base64.b64decode(oauth.key))
