"""Peppers of API keys: the secrets without which a stolen table of keys is of no use.

Owns: reading, making and replacing them, in a file of the state directory or among the secrets of
the database. Never: the keys (`api_keys`), digests (`metamcp_worker.access.api_key`).

The first pepper is for new keys; the others are those before the last rotation which some key still
needs.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from metamcp_supervisor.config import files
from metamcp_supervisor.config.references import Unresolved
from metamcp_supervisor.keys.key_rules import PEPPER, StoredKey
from metamcp_supervisor.store import database
from metamcp_supervisor.store.database import Database, SecretUnfit
from metamcp_worker.access import api_key
from metamcp_worker.ipc.errors import MetaMCPError

AGAIN = "restore that file, or revoke all keys, remove it and make new keys"
IN_DATABASE = "the pepper in the database"
REVOKE = "revoke all keys and make new ones"


class PepperUnfit(MetaMCPError):
    """The pepper cannot be used. The text says why and what to do."""


async def read(base: Database, keys: Iterable[StoredKey]) -> tuple[bytes, ...]:
    """Return the peppers of these keys. Raises PepperUnfit if they are not those of these keys, and
    StoreError."""
    if base.secrets is None:
        return read_file(base.state_dir / PEPPER, keys)
    try:
        lines = await base.secrets.read(PEPPER)
    except SecretUnfit as error:
        raise PepperUnfit(f"{error}, or {REVOKE}") from None
    if lines is None:
        raise PepperUnfit(f"{IN_DATABASE} is gone; {REVOKE}")
    peppers = _parse(lines.decode(errors="replace"))
    if not peppers:
        raise PepperUnfit(f"{IN_DATABASE} is damaged; {REVOKE}")
    _refuse_foreign(peppers, keys, f"{IN_DATABASE} is", REVOKE)
    return peppers


async def make(base: Database) -> tuple[bytes, ...]:
    """Return the peppers; make one, whole and once, if there is none that can be used and no key
    that needs it. Raises PepperUnfit and StoreError."""
    if base.secrets is None:
        return _read_file(base.state_dir / PEPPER, make=True)
    try:
        return await read(base, ())
    except PepperUnfit:  # no key needs it
        peppers = (secrets.token_bytes(api_key.PEPPER_BYTES),)
        await replace(base, peppers)
        return peppers


async def replace(base: Database, peppers: Sequence[bytes]) -> None:
    """Put these peppers in the place of those before. Raises PepperUnfit and StoreError."""
    if base.secrets is not None:
        await base.secrets.write(PEPPER, _format(peppers))
        return
    path = base.state_dir / PEPPER
    try:
        path.parent.mkdir(mode=database.FOLDER_MODE, parents=True, exist_ok=True)
        files.replace_file(path, _format(peppers))
    except OSError as error:
        raise PepperUnfit(f"{path} cannot be replaced: {error.strerror}") from None


def read_file(path: Path, keys: Iterable[StoredKey]) -> tuple[bytes, ...]:
    """Return the peppers in a file. Raises PepperUnfit if they are not those of these keys."""
    peppers = _read_file(path, make=False)
    _refuse_foreign(peppers, keys, f"{path} is", AGAIN)
    return peppers


def _refuse_foreign(
    peppers: Sequence[bytes], keys: Iterable[StoredKey], subject: str, remedy: str
) -> None:
    marks = {key.pepper for key in keys} - {""}
    if marks and marks.isdisjoint(map(api_key.mark, peppers)):
        raise PepperUnfit(f"{subject} not the one with which these keys were made; {remedy}")


def _read_file(path: Path, *, make: bool) -> tuple[bytes, ...]:
    try:
        if make and not os.path.lexists(path):
            return (files.own_key(path, api_key.PEPPER_BYTES),)
        if peppers := _parse(files.secret(path)):
            return peppers
        reason = f"{path} is damaged"
    except Unresolved as unread:
        reason = str(unread)
        if os.path.lexists(path) and path.lstat().st_size:  # the pepper is there
            raise PepperUnfit(reason) from None
    except OSError as error:
        raise PepperUnfit(f"{path} cannot be made: {error.strerror}") from None
    raise PepperUnfit(f"{reason}; {AGAIN}")


def _format(peppers: Iterable[bytes]) -> bytes:
    return "".join(f"{each.hex()}\n" for each in peppers).encode()


def _parse(lines: str) -> tuple[bytes, ...]:
    """Return the peppers in these lines; none if a line is damaged."""
    try:
        peppers = tuple(map(bytes.fromhex, lines.split()))
    except ValueError:
        return ()
    return peppers if {*map(len, peppers)} == {api_key.PEPPER_BYTES} else ()
