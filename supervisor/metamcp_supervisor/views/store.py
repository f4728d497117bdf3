"""Repository of views and tool sets in the database.

Owns: their rows. Never: the meaning of their content (`ledger`), the order of changes
(`ledger_io`), the file (`store.database`).
"""

from collections.abc import Collection

from metamcp_supervisor.store.database import Database, Rows
from metamcp_supervisor.views.ledger import Delta
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Everything, Shown, ToolSet, ViewOwner


class Store:
    """Views and tool sets that are kept over restarts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dead: tuple[ViewOwner, ...] = ()
        """Views to delete with the next write, of sessions that ended with their gateway."""

    async def read(self, living: Collection[str]) -> Everything:
        """Return everything that is stored. `living`: words for the sessions that go on, whose
        views are included. Raises Unstored."""
        found = await self._database.read(_read, Everything())
        self._dead = tuple(
            whose for whose, _ in found.views if whose.session and whose.session not in living
        )
        views = tuple(one for one in found.views if one[0] not in self._dead)
        return Everything(views, found.toolsets)

    async def write(self, delta: Delta) -> None:
        """Write a change. Raises Unstored; then nothing was written."""
        # Encoded before the transaction begins: an error here changes nothing.
        shown = [(whose, codec.dump(one).decode()) for whose, one in delta.views if one != Shown()]
        put = None if delta.put is None else (delta.put.name, codec.dump(delta.put).decode())
        gone = [*self._dead, *(whose for whose, one in delta.views if one == Shown())]

        def change(rows: Rows) -> None:
            rows.change(
                "DELETE FROM view WHERE endpoint = ? AND principal = ? AND session = ?",
                [(one.endpoint, one.principal, one.session) for one in gone],
            )
            rows.change(
                "INSERT INTO view VALUES (?, ?, ?, ?)"
                " ON CONFLICT (endpoint, principal, session) DO UPDATE SET body = excluded.body",
                [(one.endpoint, one.principal, one.session, body) for one, body in shown],
            )
            if put is not None:
                rows.change(
                    "INSERT INTO toolset VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET body = excluded.body",
                    [put],
                )
            if delta.drop:
                rows.change("DELETE FROM toolset WHERE name = ?", [(delta.drop,)])

        await self._database.write(change)
        self._dead = ()

    async def close(self) -> None:
        await self._database.close()


def _read(rows: Rows) -> Everything:
    known: dict[str, Shown] = {}  # one value for all that are equal
    views: list[tuple[ViewOwner, Shown]] = []
    for endpoint, principal, session, body in rows.read(
        "SELECT endpoint, principal, session, body FROM view ORDER BY 1, 2, 3"
    ):
        if body not in known:
            known[body] = codec.typed(Shown, body.encode())
        views.append((ViewOwner(endpoint, principal, session), known[body]))
    toolsets = tuple(
        codec.typed(ToolSet, body.encode())
        for (body,) in rows.read("SELECT body FROM toolset ORDER BY name")
    )
    return Everything(tuple(views), toolsets)
