"""A database as a gateway leaves it, and as the next one finds it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from metamcp_supervisor.store.database import FILE, STEPS, DatabaseFile, Steps
from metamcp_supervisor.views.ledger import Delta
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import DisclosureState, ToolSet, ViewContent, ViewOwner

ME, ANN = ViewOwner("desk", "local"), ViewOwner("desk", "ann")
OVER, ALIVE = ViewOwner("desk", "local", "8a01"), ViewOwner("desk", "local", "8a02")
DEV = ToolSet("dev", (("git", "status"), ("db", "query")), "for wörk", 1.5, 2.5)
EQUIPPED = ViewContent(DEV.tools, toolset="dev")
PUT = Delta(((ME, EQUIPPED),), put=DEV)


async def read(folder: Path, *living: str, steps: Steps = STEPS) -> DisclosureState:
    """What a gateway finds that starts now."""
    store = Store(DatabaseFile(folder, busy_s=0.1, steps=steps))
    try:
        return await store.read(living)
    finally:
        await store.close()


async def written(folder: Path, *deltas: Delta, busy_s: float = 0.1) -> None:
    """What a gateway leaves."""
    store = Store(DatabaseFile(folder, busy_s=busy_s))
    await store.read(())
    try:
        for delta in deltas:
            await store.write(delta)
    finally:
        await store.close()


def sql(folder: Path, *statements: str) -> None:
    """Somebody else at work in the file."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)
