"""Store of the vectors of tools, over restarts.

Owns: the file `vectors.db` of the state directory, and which vectors leave it when it is full.
Never: texts (the file has only their hashes), queries, making vectors.

The file is a cache: lost vectors are computed again. A file that cannot be read or written is
therefore left alone and logged once, then vectors are not kept; and writes are not synced.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from metamcp_worker.ipc.errors import MetaMCPError

KEPT_MAX = 50_000
"""Maximum vectors in the file: 20 MB with a small model, 150 MB with a large one."""
SPARE = 1_000
"""Number of vectors that are removed beyond the surplus, so that removals are rare."""
BUSY_S_MAX = 2.0
"""Seconds to wait for the process of the previous program, which may hold the file after an
upgrade."""
VERSION = 1
TABLE = """
CREATE TABLE IF NOT EXISTS vector
    (key BLOB PRIMARY KEY, used INTEGER NOT NULL, numbers BLOB NOT NULL) WITHOUT ROWID
"""


class VectorStoreError(MetaMCPError):
    """Failure of the file of vectors. The text is a sentence without a full stop."""


class VectorStore:
    """File of vectors; call it from one thread at a time. `model`: part of the keys, because other
    models have other vectors of the same text. Raises Unkept, as `get` and `put` do."""

    def __init__(
        self, path: Path, model: str, *, kept_max: int = KEPT_MAX, busy_s: float = BUSY_S_MAX
    ) -> None:
        self._path = path
        self._model = model.encode()
        self._kept_max = kept_max
        database = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in (path, path.with_name(f"{path.name}-journal")):
                if each.exists() and not each.is_file():  # SQLite waits for the writer of a FIFO
                    raise OSError(0, f"{each.name} is not a regular file")
            path.touch(mode=0o600)
            self._database = database = sqlite3.connect(
                path, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
            self._start = self._prepare()
        except (sqlite3.Error, OSError) as error:
            if database is not None:
                database.close()
            raise self._unkept(error) from None

    def get(self, texts: Sequence[str]) -> list[bytes | None]:
        """Return the vector of each text: empty for a text without one, None for a vector that was
        never computed."""
        keys = [self._key(text) for text in texts]
        marks = ", ".join("?" * len(keys))
        try:
            query = f"SELECT key, numbers FROM vector WHERE key IN ({marks})"  # noqa: S608 - marks
            stored: dict[bytes, bytes] = dict(self._database.execute(query, keys).fetchall())
            self._database.executemany(
                "UPDATE vector SET used = ? WHERE key = ? AND used <> ?",
                [(self._start, key, self._start) for key in stored],
            )
        except sqlite3.Error as error:
            raise self._unkept(error) from None
        return [stored.get(key) for key in keys]

    def put(self, vectors: Mapping[str, bytes]) -> None:
        """Store the vectors of these texts. Vectors unused for the longest time make room."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "REPLACE INTO vector VALUES (?, ?, ?)",
                [(self._key(text), self._start, numbers) for text, numbers in vectors.items()],
            )
            ((count,),) = self._database.execute("SELECT count(*) FROM vector")
            if count > self._kept_max:
                self._database.execute(
                    "DELETE FROM vector WHERE key IN"
                    " (SELECT key FROM vector ORDER BY used LIMIT ?)",
                    (count - self._kept_max + min(SPARE, self._kept_max // 10),),
                )
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # the rollback may fail for the same reason
                self._database.rollback()
            raise self._unkept(error) from None

    def close(self) -> None:
        self._database.close()

    def _prepare(self) -> int:
        """Prepare the file and return the number of this start, which `used` refers to. Raises
        sqlite3.Error."""
        ((version,),) = self._database.execute("PRAGMA user_version")
        if version not in {0, VERSION}:
            raise sqlite3.DatabaseError(f"it is of version {version}, and {VERSION} is known")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(TABLE)
        self._database.execute(f"PRAGMA user_version = {VERSION}")
        ((last,),) = self._database.execute("SELECT coalesce(max(used), 0) FROM vector")
        return int(last) + 1

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(b"%d %b %b" % (len(self._model), self._model, text.encode())).digest()

    def _unkept(self, error: Exception) -> VectorStoreError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return VectorStoreError(
            f"vectors are not kept over a restart, because {self._path} fails: {reason}"
        )
