"""Search indexes, built while the front does other things.

Owns: how long one turn of the loop works on them, and searches that wait for a whole index. Never:
the work itself (`search_index`), the hits of a search.
"""

import asyncio
from collections.abc import Callable

from metamcp_worker.builtin_tools.search_index import Indexes

TURN_S = 0.008
"""Seconds of one turn of the loop; calls of clients are handled between the turns."""
WAIT_S_MAX = 10.0
"""Seconds that a search waits for a whole index; ten thousand new tools take one second. After that
time, for example if servers change tools faster than the front indexes them, the search does the
rest of the work at once."""


class IndexBuilder:
    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._turn: asyncio.Handle | None = None
        self._waiting: list[tuple[str, asyncio.TimerHandle, Callable[[], None]]] = []

    def begin(self) -> None:
        """Schedule the work, if there is any."""
        if self._turn is None and self._indexes.behind:
            self._turn = asyncio.get_running_loop().call_soon(self._work)

    def when_whole(self, endpoint: str, done: Callable[[], None]) -> None:
        """Call `done` when the index of this endpoint is whole, or after WAIT_S_MAX seconds."""
        if not self._indexes.is_behind(endpoint):
            done()
            return
        timer = asyncio.get_running_loop().call_later(WAIT_S_MAX, self._late, done)
        self._waiting.append((endpoint, timer, done))
        self.begin()

    def _work(self) -> None:
        self._turn = None
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        while self._indexes.behind and loop.time() < until:
            self._indexes.step()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            endpoint, timer, done = each
            if self._indexes.is_behind(endpoint):
                self._waiting.append(each)
            else:
                timer.cancel()
                done()
        self.begin()

    def _late(self, done: Callable[[], None]) -> None:
        self._waiting = [each for each in self._waiting if each[2] is not done]
        done()
