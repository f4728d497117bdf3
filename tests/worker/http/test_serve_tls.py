"""Connections that speak TLS: how long handshakes and goodbyes may last, how many there may be."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from metamcp_worker.http.serve import ClientLimits, HttpServer
from metamcp_worker.http.tls_files import TlsFiles, context_of
from metamcp_worker.ipc.errors import TlsUnfit
from metamcp_worker.ipc.spec import TlsSpec
from tests.worker.http.test_fetch_tls import certificate
from tests.worker.http.test_serve import echo
from tests.worker.rawhttp import Client, listener, post, until

pytestmark = pytest.mark.process

LAST = post(b"", "Connection: close")


class Safe:
    """A server in this process that speaks TLS."""

    def __init__(self, folder: Path, limits: ClientLimits) -> None:
        self.file = certificate(folder)
        self.refused: list[str] = []
        tls = TlsFiles(TlsSpec(cert=str(self.file), key=str(self.file)))
        self.server = HttpServer(echo, limits=limits, on_refused=self.refused.append, tls=tls)
        self.socket = listener()
        self.port = self.socket.getsockname()[1]

    def asked(self) -> tuple[bytes, float]:
        """The answer that a new client gets, and how many seconds pass from its last byte to the
        end of the connection, to which the client does not say goodbye."""
        context = ssl.create_default_context(cafile=str(self.file))
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=20) as plain,
            socket.socket(fileno=os.dup(plain.fileno())) as below,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as safe,
        ):
            below.settimeout(20)
            safe.sendall(LAST)
            said = b""
            while data := safe.recv(4096):
                said += data
            start = time.monotonic()
            while below.recv(4096):
                pass
            return said, time.monotonic() - start


@asynccontextmanager
async def opened_safe(
    folder: Path,
    limits: ClientLimits = ClientLimits(),  # noqa: B008 - frozen
) -> AsyncGenerator[Safe]:
    one = Safe(folder, limits)
    await one.server.start([one.socket])
    try:
        yield one
    finally:
        await one.server.drain(1)


@pytest.mark.promise("M6")
async def test_a_handshake_may_last_as_long_as_the_head_of_a_request(tmp_path: Path) -> None:
    async with opened_safe(tmp_path, ClientLimits(head_s=0.2)) as one:
        silent = await Client.connect(one.port)
        assert await silent.closed() == b""
        await silent.close()
        assert (await asyncio.to_thread(one.asked))[0].startswith(b"HTTP/1.1 200")


async def test_handshakes_count_as_connections(tmp_path: Path) -> None:
    async with opened_safe(tmp_path, ClientLimits(connections_max=1)) as one:
        silent = await Client.connect(one.port)
        late = await Client.connect(one.port)
        assert await late.closed() == b""
        await late.close()
        assert one.refused == ["connections"]
        await silent.close()
        await until(lambda: one.server.handshakes == 0)
        assert (await asyncio.to_thread(one.asked))[0].startswith(b"HTTP/1.1 200")


@pytest.mark.promise("M98")
async def test_the_oldest_handshake_makes_room_for_a_new_one(tmp_path: Path) -> None:
    async with opened_safe(tmp_path, ClientLimits(connections_max=1, makes_room=True)) as one:
        silent = await Client.connect(one.port)
        await until(lambda: one.server.handshakes == 1)
        assert (await asyncio.to_thread(one.asked))[0].startswith(b"HTTP/1.1 200")
        assert await silent.closed() == b""
        await silent.close()


async def test_no_handshake_outlasts_its_server(tmp_path: Path) -> None:
    async with opened_safe(tmp_path, ClientLimits(head_s=1000)) as one:
        silent = await Client.connect(one.port)
        await until(lambda: one.server.handshakes == 1)
        await one.server.drain(1)
        assert await silent.closed() == b""
        await silent.close()
        await until(lambda: one.server.handshakes == 0)


async def test_a_client_that_says_no_goodbye_does_not_keep_its_connection(tmp_path: Path) -> None:
    async with opened_safe(tmp_path) as one:
        said, seconds = await asyncio.to_thread(one.asked)
        assert said.startswith(b"HTTP/1.1 200")
        assert seconds < 10


def test_a_key_with_a_passphrase_is_refused_and_the_terminal_is_not_asked(tmp_path: Path) -> None:
    file = certificate(tmp_path)
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsUnfit, match=r"locked\.key has a passphrase"):
        context_of(TlsSpec(cert=str(file), key=str(locked)))
