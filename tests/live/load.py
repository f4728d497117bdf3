"""Many callers at once over raw keep-alive connections, every answer checked against its question.

Ids collide on purpose: every caller counts from the same start, legacy ones in a session each. A
broken connection is counted and opened again, so that a crash shows as what a client sees of it.
"""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.live.client import LEGACY, MODERN, Client

ANSWER_S_MAX = 60.0


@dataclass
class Tally:
    """What the callers saw. `wrong`: answers that were not the one to the question."""

    right: int = 0
    wrong: list[str] = field(default_factory=list[str])
    errors: Counter[int] = field(default_factory=Counter[int])
    broken: int = 0
    refused: int = 0
    per_server: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])


class Callers:
    """Callers in a thread of their own, from `with` to its end or until `calls` were made."""

    def __init__(
        self,
        port: int,
        servers: list[str],
        *,
        callers: int,
        calls: int | None = None,
        era: str = LEGACY,
    ) -> None:
        self.port, self.servers, self.callers, self.calls, self.era = (
            port,
            servers,
            callers,
            calls,
            era,
        )
        self.tally = Tally()
        self._made = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """No more calls; those in flight are waited for at the end of the block."""
        self._stop.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.calls is None or kind is not None:
            self.stop()
        self._thread.join(timeout=600)
        assert not self._thread.is_alive(), "a caller never got its answer"
        if self.failure is not None:
            raise self.failure

    async def _main(self) -> None:
        try:
            clients: list[Client] = []
            for _ in range(self.callers):
                clients.append(await asyncio.to_thread(Client, self.port, self.era))
                clients[-1].close()  # its connection; the session stays
            async with asyncio.TaskGroup() as group:
                for number, client in enumerate(clients):
                    head = "".join(f"{k}: {v}\r\n" for k, v in client.headers("tools/call").items())
                    meta = client.meta() if self.era == MODERN else None
                    group.create_task(self._caller(number, head, meta))
            for client in clients:
                with contextlib.suppress(OSError):  # the gateway is gone, its sessions too
                    await asyncio.to_thread(client.end)
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            self.failure = error

    def _more(self) -> bool:
        if self._stop.is_set() or (self.calls is not None and self._made >= self.calls):
            return False
        self._made += 1
        return True

    async def _caller(self, number: int, head: str, meta: dict[str, Any] | None) -> None:
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        sequence = 0
        while self._more():
            sequence += 1
            server = self.servers[(number + sequence) % len(self.servers)]
            word = f"{server}-{number}-{sequence}"
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:  # refused, or reset from the listener's queue
                self.tally.refused += 1
                continue
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    answer = await self._ask(*connection, head, meta, sequence, server, word)
            except (OSError, EOFError):
                self.tally.broken += 1
                connection[1].close()
                connection = None
                continue
            self._judge(answer, sequence, server, word)
        if connection is not None:
            connection[1].close()
            await connection[1].wait_closed()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: str,
        meta: dict[str, Any] | None,
        sequence: int,
        server: str,
        word: str,
    ) -> dict[str, Any]:
        name = f"{server}__echo"
        params: dict[str, Any] = {"name": name, "arguments": {"text": word}}
        if meta is not None:
            params["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": sequence, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        extra = f"Mcp-Name: {name}\r\n" if meta is not None else ""
        writer.write(
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{head}{extra}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        size = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
        found: dict[str, Any] = json.loads(await reader.readexactly(size))
        return found

    def _judge(self, answer: dict[str, Any], sequence: int, server: str, word: str) -> None:
        if answer.get("id") != sequence:
            self.tally.wrong.append(f"id {answer.get('id')} for {sequence}")
        elif "error" in answer:
            self.tally.errors[answer["error"]["code"]] += 1
            self.tally.failed[server] += 1
        elif answer["result"]["content"][0]["text"] != word:
            self.tally.wrong.append(f"{answer['result']} for {word}")
        else:
            self.tally.right += 1
            self.tally.per_server[server] += 1
