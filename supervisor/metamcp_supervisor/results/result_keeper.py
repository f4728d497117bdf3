"""Kept results of the gateway: removed when nobody can read them, listed and purged by operators.

Owns: when results are looked at, which of them still have a principal and an endpoint. Never: files
(`metamcp_worker.results`), keeping a result (workers), reading one for a client (fronts).
"""

import asyncio
from collections.abc import Collection
from pathlib import Path

from metamcp_supervisor.roles.role_process import GatewayService, ServiceContext
from metamcp_supervisor.servers.specs import results_folder
from metamcp_worker.results import result_files
from metamcp_worker.results.result_summary import KeptResult, Piece

SWEEP_S = 60.0
"""Seconds between two looks for results that nobody can read any more; clients do not get them in
any case once their time is over."""
SHOWN_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a text that an operator is shown."""


class ResultKeeper(GatewayService):
    def __init__(self, context: ServiceContext) -> None:
        self._config = context.config
        self._keys = context.keys
        self._timer: asyncio.TimerHandle | None = None
        self._sweep: asyncio.Task[None] | None = None

    @property
    def _root(self) -> str:
        return results_folder(self._config())

    async def begin(self, *, fresh: bool) -> None:
        if fresh:
            result_files.clear(self._root)
        self.on_keys_changed()

    def on_keys_changed(self) -> None:
        """Remove what nobody can read any more, now and again later."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SWEEP_S, self.on_keys_changed)
        if self._sweep is None or self._sweep.done():
            self._sweep = loop.create_task(self._run_sweep())

    async def close(self) -> None:
        """Remove all results, because the gateway ends."""
        if self._timer is None:
            return
        self._timer.cancel()
        if self._sweep is not None:
            await asyncio.wait([self._sweep])
        await asyncio.to_thread(result_files.clear, self._root)

    async def list_results(self) -> list[KeptResult]:
        """Return what is kept, the oldest first."""
        results = await asyncio.to_thread(lambda: [result for _, result in self._scan_folders()])
        return sorted(results, key=lambda result: result.kept)

    async def read_beginning(self, handle: str) -> tuple[KeptResult, Piece] | None:
        """Return a result with the beginning of its text; None for an unknown handle. Raises
        OSError."""
        return await asyncio.to_thread(self._read_result, handle)

    async def purge(self, handles: Collection[str]) -> int:
        """Remove the results with these handles, all of them without handles. Return how many there
        were."""
        return await asyncio.to_thread(self._purge, handles)

    def _scan_folders(self) -> list[tuple[str, KeptResult]]:
        return list(result_files.iter_results(self._root))

    def _read_result(self, handle: str) -> tuple[KeptResult, Piece] | None:
        for folder, result in self._scan_folders():
            if result.handle == handle:
                path = str(Path(folder, handle))
                return result, result_files.piece_of(path, 0, SHOWN_BYTES_MAX)
        return None

    def _purge(self, handles: Collection[str]) -> int:
        selected = [
            each for each in self._scan_folders() if not handles or each[1].handle in handles
        ]
        for folder, result in selected:
            result_files.remove(folder, result.handle)
        return len(selected)

    async def _run_sweep(self) -> None:
        keeping = {
            name for name, each in self._config().endpoints.items() if each.results is not None
        }
        principals = self._keys.principals()

        def alive(result: KeptResult) -> bool:
            owned = not result.key or (result.workspace, result.principal) in principals
            return owned and result.endpoint in keeping

        await asyncio.to_thread(result_files.sweep, self._root, alive)
