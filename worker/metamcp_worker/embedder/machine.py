"""The model on this machine as a source of vectors.

Owns: the thread that it runs in, and loading it when it is first asked. Never: its arithmetic
(`local`).
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from metamcp_worker.embedder.answers import Unusable

if TYPE_CHECKING:
    from metamcp_worker.embedder.local import Model

ONE_THREAD = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""What numpy reads when it is loaded. With more threads it would take every processor from the
servers, and on a busy machine its threads wait for each other ten times as long as they work."""


class Machine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: Model | None = None
        self._thread = ThreadPoolExecutor(1, "model")

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text. Raises Unusable."""
        found: list[list[float]] = []
        for text in texts:  # one by one: a query that comes meanwhile has its turn
            loop = asyncio.get_running_loop()
            found += await loop.run_in_executor(self._thread, self._embedded, text)
        return found

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _embedded(self, text: str) -> list[list[float]]:
        os.environ.update(ONE_THREAD)
        from metamcp_worker.embedder.local import Model, Unfit

        try:
            if self._model is None:
                self._model = Model(self._folder)
            return self._model.embed([text])
        except Unfit as why:
            raise Unusable(str(why)) from None
