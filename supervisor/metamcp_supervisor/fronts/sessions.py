"""What is known of the sessions of clients, for a front that comes after the one that has them.

Owns: the records of all fronts, by id, whose each one is, and the bound on them. Never: what is in
a record (the fronts know), sending it (`fronts`), a disk: who knows the id of a session has it.

A front that serves a session is its holder. When the holder is gone the record stays without one,
and another front adopts it. A record that is pushed out by the bound costs its client
a new session, and that only if its front dies.
"""

from dataclasses import dataclass

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import SessionRecord

SESSIONS_KEPT_MAX = 10_000
"""For each front: as many as it opens."""
SESSIONS_BYTES_MAX = 64 * 1024 * 1024
"""Of all records; 10,000 of the usual ones have 5 MiB."""
RECORD_BYTES_MAX = 1024 * 1024
"""A client that watches so many resources that its record is larger is not remembered."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """`untold`: the front before may not have told the client that its lists are others."""

    holder: int | None
    record: bytes
    untold: bool = False


NOBODY = -1
"""The holder of a session that waits for one."""


class Sessions:
    """`holder`: the number of a front; `fronts`: how many there are to be."""

    def __init__(self) -> None:
        self.fronts = 1
        self._kept: dict[str, _Kept] = {}  # the one that was heard of longest ago is the first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, holder: int | None, record: bytes) -> None:
        """A session of this front was opened or changed; None: of a program before, and nobody has
        it. Raises codec.Malformed."""
        session = codec.typed(SessionRecord, record).id
        self._drop(session)
        if len(record) > RECORD_BYTES_MAX:
            return
        self._kept[session] = _Kept(holder, record)
        self._bytes += len(record)
        kept_max = SESSIONS_KEPT_MAX * self.fronts
        while len(self._kept) > kept_max or self._bytes > SESSIONS_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def holder(self, session: str) -> int | None:
        """Who has this session; `NOBODY` if one will adopt it, None if it is not known."""
        kept = self._kept.get(session)
        if kept is None:
            return None
        return NOBODY if kept.holder is None else kept.holder

    def held(self, holder: int) -> int:
        """How many it has."""
        return sum(kept.holder == holder for kept in self._kept.values())

    def over(self, holder: int, ids: tuple[str, ...]) -> None:
        """This front has ended these sessions; those that another one has are not its to end."""
        for session in ids:
            kept = self._kept.get(session)
            if kept is not None and kept.holder == holder:
                self._drop(session)

    def left(self, holder: int, *, untold: bool = False) -> None:
        """This front is gone. `untold`: it owed its clients the news of other lists."""
        for session, kept in self._kept.items():
            if kept.holder == holder:
                self._kept[session] = _Kept(None, kept.record, untold)

    def outdated(self) -> None:
        """Lists are others now, and there is nobody who could tell those who wait for a front."""
        for session, kept in self._kept.items():
            if kept.holder is None:
                self._kept[session] = _Kept(None, kept.record, untold=True)

    def adopt(self, holder: int) -> list[tuple[bool, bytes]]:
        """This front takes over every session that has no holder: a JSON list of the records for
        those whose clients are to be told that their lists are others, and one for the rest."""
        found = {session: kept for session, kept in self._kept.items() if kept.holder is None}
        groups: dict[bool, list[bytes]] = {}
        for session, kept in found.items():
            self._kept[session] = _Kept(holder, kept.record)
            groups.setdefault(kept.untold, []).append(kept.record)
        return [(untold, b"[%b]" % b",".join(records)) for untold, records in groups.items()]

    def handed(self) -> list[tuple[int | None, bytes]]:
        """The holder and the record of each, for the program that goes on with them."""
        return [(kept.holder, kept.record) for kept in self._kept.values()]

    def _drop(self, session: str) -> None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            self._bytes -= len(kept.record)
