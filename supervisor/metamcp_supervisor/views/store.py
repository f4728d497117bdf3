"""Repository of views, tool sets and scripts in the database.

Owns: their rows. Never: the meaning of their content (`ledger`), the order of changes
(`ledger_io`), the file (`store.database`).
"""

from collections.abc import Collection, Iterable

from metamcp_supervisor.store.database import Database, Rows
from metamcp_supervisor.views.ledger import Delta
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import DisclosureState, ToolSet, ViewContent, ViewOwner
from metamcp_worker.ipc.saved_scripts import VERSIONS_MAX, Script

NEWEST = (
    "SELECT body FROM script AS s"
    " WHERE version = (SELECT max(version) FROM script WHERE name = s.name) ORDER BY name"
)


class Store:
    """Views, tool sets and scripts that are kept over restarts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dead: tuple[ViewOwner, ...] = ()
        """Views to delete with the next write, of sessions that ended with their gateway."""

    async def read(self, living: Collection[str]) -> DisclosureState:
        """Return everything that is stored. `living`: words for the sessions that go on, whose
        views are included. Raises StoreError."""
        stored = await self._database.read(_read, DisclosureState())
        self._dead = tuple(
            whose for whose, _ in stored.views if whose.session and whose.session not in living
        )
        views = tuple(entry for entry in stored.views if entry[0] not in self._dead)
        return DisclosureState(views, stored.toolsets, stored.scripts)

    async def versions(self, script: str) -> tuple[Script, ...]:
        """Return the versions of a script that are kept, the oldest first. Raises StoreError."""
        none: tuple[Script, ...] = ()

        def read_versions(rows: Rows) -> tuple[Script, ...]:
            return _scripts(
                rows.read("SELECT body FROM script WHERE name = ? ORDER BY version", (script,))
            )

        return await self._database.read(read_versions, none)

    async def write(self, delta: Delta) -> None:
        """Write a change. Raises StoreError; then nothing was written."""
        # Encoded before the transaction begins: an error here changes nothing.
        bodies = [
            (whose, codec.dump(view).decode())
            for whose, view in delta.views
            if view != ViewContent()
        ]
        put = None if delta.put is None else (delta.put.name, codec.dump(delta.put).decode())
        script = delta.script
        saved = None if script is None else codec.dump(script).decode()
        cleared = [*self._dead, *(whose for whose, view in delta.views if view == ViewContent())]

        def change(rows: Rows) -> None:
            rows.change(
                "DELETE FROM view WHERE endpoint = ? AND principal = ? AND session = ?",
                [(owner.endpoint, owner.principal, owner.session) for owner in cleared],
            )
            rows.change(
                "INSERT INTO view VALUES (?, ?, ?, ?)"
                " ON CONFLICT (endpoint, principal, session) DO UPDATE SET body = excluded.body",
                [(owner.endpoint, owner.principal, owner.session, body) for owner, body in bodies],
            )
            if put is not None:
                rows.change(
                    "INSERT INTO toolset VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET body = excluded.body",
                    [put],
                )
            if delta.drop:
                rows.change("DELETE FROM toolset WHERE name = ?", [(delta.drop,)])
            if script is not None:
                rows.change(
                    "INSERT INTO script VALUES (?, ?, ?)", [(script.name, script.version, saved)]
                )
                rows.change(
                    "DELETE FROM script WHERE name = ? AND version <= ?",
                    [(script.name, script.version - VERSIONS_MAX)],
                )
            if delta.drop_script:
                rows.change("DELETE FROM script WHERE name = ?", [(delta.drop_script,)])

        await self._database.write(change)
        self._dead = ()

    async def close(self) -> None:
        await self._database.close()


def _read(rows: Rows) -> DisclosureState:
    shared: dict[str, ViewContent] = {}  # one value for all that are equal
    views: list[tuple[ViewOwner, ViewContent]] = []
    for endpoint, principal, session, body in rows.read(
        "SELECT endpoint, principal, session, body FROM view ORDER BY 1, 2, 3"
    ):
        if body not in shared:
            shared[body] = codec.decode_as(ViewContent, body.encode())
        views.append((ViewOwner(endpoint, principal, session), shared[body]))
    toolsets = tuple(
        codec.decode_as(ToolSet, body.encode())
        for (body,) in rows.read("SELECT body FROM toolset ORDER BY name")
    )
    return DisclosureState(tuple(views), toolsets, _scripts(rows.read(NEWEST)))


def _scripts(rows: Iterable[tuple[str]]) -> tuple[Script, ...]:
    return tuple(codec.decode_as(Script, body.encode()) for (body,) in rows)
