"""Middleware `cache`: results of read-only tools, for the same caller with the same arguments.

Owns: which calls have a kept result, its time, the size of all results. Never: results that are
failures, results of one caller for another.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from metamcp_worker.middleware.api import HookRequest, ToolResult
from metamcp_worker.middleware.hook_options import flag, positive, refuse_unknown, seconds

TTL_S = 60.0
ENTRIES_MAX = 1000
BYTES_MAX = 64 * 1024 * 1024
_SHARE = 8
"""A result may have an eighth of all bytes."""
_Key = tuple[str, str, str, str, str, str]


class Cache:
    """Options: `ttl`, such as "5m"; `read_only`: whether only tools whose annotation
    `readOnlyHint` is true are kept, else all that the line matches; `entries_max` and `bytes_max`:
    of all results. Raises ValueError."""

    def __init__(
        self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        refuse_unknown(options, {"ttl", "read_only", "entries_max", "bytes_max"})
        self._ttl_s = seconds(options, "ttl", TTL_S)
        self._read_only = flag(options, "read_only", default=True)
        self._entries_max = positive(options, "entries_max", ENTRIES_MAX)
        self._bytes_max = positive(options, "bytes_max", BYTES_MAX)
        self._clock = clock
        self._kept: dict[_Key, tuple[float, bytes]] = {}
        """Moment at which a result expires, and the result; the one used last comes last."""
        self._bytes = 0
        self._changes: dict[str, int] = {}
        """Changes of servers, by name: a call that began before one is not kept."""

    async def on_call_tool(
        self, request: HookRequest, call_next: Callable[[HookRequest], Any]
    ) -> ToolResult:
        if self._read_only and request.annotations.get("readOnlyHint") is not True:
            plain: ToolResult = await call_next(request)
            return plain
        arguments = json.dumps(request.arguments, sort_keys=True)
        key = (
            request.workspace, request.endpoint, request.principal, request.server, request.name,
            arguments,
        )  # fmt: skip
        expires, raw = self._kept.get(key, (0.0, b""))
        if raw and self._clock() < expires:
            self._kept[key] = self._kept.pop(key)
            return ToolResult(raw)
        changes = self._changes.get(request.server, 0)
        result: ToolResult = await call_next(request)
        if not result.is_error and changes == self._changes.get(request.server, 0):
            self._keep(key, result.raw)
        return result

    def on_lists_changed(self, server: str) -> None:
        self._changes[server] = self._changes.get(server, 0) + 1
        for key in [key for key in self._kept if key[3] == server]:
            self._drop(key)

    def _keep(self, key: _Key, raw: bytes) -> None:
        self._drop(key)
        if len(raw) * _SHARE > self._bytes_max:
            return
        self._kept[key] = self._clock() + self._ttl_s, raw
        self._bytes += len(raw)
        while len(self._kept) > self._entries_max or self._bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        _, raw = self._kept.pop(key, (0.0, b""))
        self._bytes -= len(raw)
