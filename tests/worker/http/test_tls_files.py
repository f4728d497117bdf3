"""TLS for the connections of clients: who never ends a handshake, and keys that cannot be used."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from metamcp_worker.http.client_limits import BACKLOG, HANDSHAKES_MAX
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.http.tls_files import TlsFiles, context_of
from metamcp_worker.ipc.errors import TlsUnfit
from metamcp_worker.ipc.spec import TlsSpec
from tests.worker.http.test_accept import connected
from tests.worker.http.test_fetch_tls import certificate
from tests.worker.http.test_serve import echo
from tests.worker.rawhttp import Client, listener, post, run


@pytest.mark.process
@pytest.mark.promise("M6")
def test_silent_clients_wait_in_turns_are_cut_off_and_those_behind_them_are_served(
    tmp_path: Path,
) -> None:
    file = str(certificate(tmp_path))
    more = 40

    async def main() -> None:
        server, sock = HttpServer(echo, tls=TlsFiles(TlsSpec(cert=file, key=file))), listener()
        sock.listen(BACKLOG)
        port = sock.getsockname()[1]
        with contextlib.ExitStack() as held:
            silent = [held.enter_context(connected(sock)) for _ in range(HANDSHAKES_MAX + more)]
            await server.start([sock])
            trusting = ssl.create_default_context(cafile=file)
            behind = asyncio.create_task(
                asyncio.open_connection("127.0.0.1", port, ssl=trusting, ssl_handshake_timeout=30)
            )
            assert await asyncio.get_running_loop().sock_recv(silent[0], 100) == b""
            assert not behind.done()
            client = Client(*await behind)
            assert (await client.ask(post(b"{}"))).status == 200
            await client.close()
        await server.drain(1)

    run(main)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path), tmp_path / "locked.pem"
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsUnfit, match="are not a certificate and its key"):
        context_of(TlsSpec(cert=str(cert), key=str(key)))
