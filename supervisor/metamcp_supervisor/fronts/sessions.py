"""Records of the sessions of clients, so that another front can adopt them when a front is gone.

Owns: the records of all fronts by session id, the holder of each, and the bound on them. Never: the
content of a record (only fronts read it), sending records (`fronts`), writing them to a disk: the
id of a session is enough to use the session.

The holder of a session is the front that serves it. When the holder is gone the record stays
without a holder until another front adopts it. When the bound removes a record, the client must
open a new session, but only if its front dies.
"""

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import SessionRecord

SESSIONS_KEPT_MAX = 10_000
"""Maximum number of records for each front: as many sessions as a front opens."""
SESSIONS_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of all records; 10,000 usual records have 5 MiB."""
RECORD_BYTES_MAX = 1024 * 1024
"""Maximum bytes of one record. A larger record, of a client that watches very many resources, is
not kept."""


class _SessionEntry(Struct, frozen=True):
    """`untold`: the previous front may not have notified the client of changed lists."""

    holder: int | None
    record: bytes
    untold: bool = False


NOBODY = -1
"""Number in place of the holder of a session that waits for a front to adopt it."""


class SessionRecords:
    """`holder`: the number of a front; `fronts`: the configured number of fronts."""

    def __init__(self) -> None:
        self.fronts = 1
        self._kept: dict[str, _SessionEntry] = {}  # oldest record first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, holder: int | None, record: bytes) -> None:
        """Keep the record of a session that this front opened or changed. `holder`: None for a
        session of a previous program that no front holds yet. Raises codec.Malformed."""
        session = codec.decode_as(SessionRecord, record).id
        self._drop(session)
        if len(record) > RECORD_BYTES_MAX:
            return
        self._kept[session] = _SessionEntry(holder, record)
        self._bytes += len(record)
        kept_max = SESSIONS_KEPT_MAX * self.fronts
        while len(self._kept) > kept_max or self._bytes > SESSIONS_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def holder(self, session: str) -> int | None:
        """Return the holder of this session; `NOBODY` if a front will adopt the session, None if
        the session is not known."""
        entry = self._kept.get(session)
        if entry is None:
            return None
        return NOBODY if entry.holder is None else entry.holder

    def count_for_front(self, holder: int) -> int:
        """Return how many sessions this front holds."""
        return sum(entry.holder == holder for entry in self._kept.values())

    def on_sessions_end(self, holder: int, ids: tuple[str, ...]) -> None:
        """Drop sessions that this front has ended, but not those that another front holds."""
        for session in ids:
            entry = self._kept.get(session)
            if entry is not None and entry.holder == holder:
                self._drop(session)

    def on_front_gone(self, holder: int, *, untold: bool = False) -> None:
        """Keep the sessions of a front that is gone for another front. `untold`: the front had not
        notified its clients of changed lists yet."""
        for session, entry in self._kept.items():
            if entry.holder == holder:
                self._kept[session] = _SessionEntry(None, entry.record, untold)

    def mark_outdated(self) -> None:
        """Note that the lists changed for all sessions without a holder: the front that adopts them
        must notify their clients."""
        for session, entry in self._kept.items():
            if entry.holder is None:
                self._kept[session] = _SessionEntry(None, entry.record, untold=True)

    def adopt(self, holder: int) -> list[tuple[bool, bytes]]:
        """Give every session without a holder to this front. Return up to two groups, each with a
        JSON list of records: `True` if their clients must be notified of changed lists."""
        without_holder = {
            session: entry for session, entry in self._kept.items() if entry.holder is None
        }
        groups: dict[bool, list[bytes]] = {}
        for session, entry in without_holder.items():
            self._kept[session] = _SessionEntry(holder, entry.record)
            groups.setdefault(entry.untold, []).append(entry.record)
        return [(untold, b"[%b]" % b",".join(records)) for untold, records in groups.items()]

    def take_snapshot(self) -> list[tuple[int | None, bytes]]:
        """Return the holder and the record of each session, for the program after this one."""
        return [(entry.holder, entry.record) for entry in self._kept.values()]

    def _drop(self, session: str) -> None:
        entry = self._kept.pop(session, None)
        if entry is not None:
            self._bytes -= len(entry.record)
