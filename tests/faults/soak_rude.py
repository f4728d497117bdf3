"""The clients of a soak that do not behave: they leave in the middle, read slowly, or talk rubbish.

Owns: what they do, and how the gateway may take it: it answers as documented or closes, and soon.
Never: what becomes of others meanwhile: that is seen by those (`soak_clients`).
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from random import Random

from tests.faults.soak_clients import STAMP, Field, Question, call, modern
from tests.faults.soak_wire import Wire

RUBBISH_S_MAX = 20.0
"""For an answer, or the end of the connection; a head that is not whole has 10 s."""
SLOW_BYTES, SLOW_S = 4096, 0.05
BLOB_KIB = 2048
WINDOW_BYTES = 16 * 1024

#: No requests, and what may come of each: a status, or 0 for a connection that is just closed.
RUBBISH: tuple[tuple[bytes, frozenset[int]], ...] = (
    (b"\x00\xff\xfe rubbish\r\n\r\n", frozenset({0, 400})),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", frozenset({0, 400})),
    (b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n", frozenset({0, 400})),
    (b"GET " + b"/x" * 8000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", frozenset({0, 400, 414})),
    (b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", frozenset({404})),
    (b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
     frozenset({400, 403, 421})),
)  # fmt: skip
BODIES = (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"jsonrpc":"2.0","id":1}', b"[" * 5000)
BODY_STATUSES = frozenset({400, 404, 415, 422})


class Rude:
    def __init__(self, field: Field) -> None:
        self.field, self.ledger = field, field.ledger
        self._number = 0

    def _request(self, dice: Random, tool: str, **arguments: object) -> tuple[int, bytes]:
        """A call, as bytes, and its place in the books."""
        self._number += 1
        server = dice.choice(self.field.servers)
        question = Question(server, tool, dict(arguments), "")
        who = f"rude-{self._number}"
        key = self.ledger.ask(who, "rude", server, question.name, time.monotonic())
        wire, headers = Wire(self.field.port), modern("tools/call", question.name)
        return key, wire.bytes_of("POST", "/mcp", headers, call(1, question, STAMP))

    async def leave(self, dice: Random) -> bool:
        """Go away after any byte of a request, or while its answer is awaited."""
        key, whole = self._request(dice, "slow_echo", text="nobody", ms=dice.randrange(1000))
        cut = dice.randrange(1, len(whole) + 1) if dice.random() < 0.6 else len(whole)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.field.port)
            writer.write(whole[:cut])
            await writer.drain()
            await self.field.pause(dice.random() * 0.3)
            if dice.random() < 0.5:  # a reset, and not a polite end
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        except OSError:
            return False
        finally:
            self.ledger.left(key, time.monotonic())
        return True

    async def read_slowly(self, dice: Random, for_s: float) -> bool:
        """Ask for much, read a little now and then, and leave."""
        key, whole = self._request(dice, "blob", kib=BLOB_KIB)
        end = time.monotonic() + for_s
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(for_s + RUBBISH_S_MAX):
                await loop.sock_connect(sock, ("127.0.0.1", self.field.port))
                await loop.sock_sendall(sock, whole)
                while time.monotonic() < end and await loop.sock_recv(sock, SLOW_BYTES):
                    await self.field.pause(SLOW_S)
        except (OSError, TimeoutError):
            return False
        finally:
            sock.close()
            self.ledger.left(key, time.monotonic())
        return True

    async def talk_rubbish(self, dice: Random) -> bool:
        """It is answered with a refusal, or the connection ends."""
        if dice.random() < 0.5:
            said, allowed = dice.choice(RUBBISH)
        else:
            body = dice.choice(BODIES)
            headers = modern("tools/call", "s00__echo")
            said = Wire(self.field.port).bytes_of("POST", "/mcp", headers, body)
            allowed = BODY_STATUSES
        since = time.monotonic()
        who, port = "rubbish", 0
        try:
            async with asyncio.timeout(RUBBISH_S_MAX):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.field.port)
                port = writer.get_extra_info("sockname")[1]
                writer.write(said)
                with contextlib.suppress(OSError):
                    writer.write_eof()
                heard = await reader.read()
                writer.transport.abort()
        except TimeoutError:
            self.ledger.stray(who, f"nothing at all, for {said[:60]!r}", time.monotonic())
            return True
        except OSError:
            heard = b""
        status = int(heard.split()[1]) if heard.startswith(b"HTTP/1.1 ") else 0
        cut = self.ledger.was_cut(port, since, since, time.monotonic())
        if status not in allowed and not (status == 0 and cut):
            self.ledger.stray(
                who,
                f"{json.dumps(heard[:120].decode('latin-1'))} for {said[:60]!r}",
                time.monotonic(),
            )
        return True
