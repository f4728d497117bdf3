"""The HTTP client and the certificates of servers."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metamcp_worker.fetch import Origin, Unreachable
from tests.worker.rawhttp import run
from tests.worker.scripted import Wire, serving

ANSWER_S = 5.0


async def echo(wire: Wire) -> None:
    while request := await wire.request():
        await wire.answer(request.body)


def certificate(directory: Path) -> Path:
    """A file with a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    file = directory / "server.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    return file


def test_a_certificate_is_trusted_only_if_somebody_vouches_for_it(tmp_path: Path) -> None:
    file = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)

    async def main() -> None:
        async with serving(echo, tls=tls) as url:
            doubtful, trusted = Origin(url), Origin(url, ca_file=str(file))
            with pytest.raises(Unreachable, match="certificate"):
                await doubtful.send("POST", {}, b"{}", answer_s=ANSWER_S)
            async with await trusted.send("POST", {}, b"{}", answer_s=ANSWER_S) as response:
                assert await response.read(wait_s=ANSWER_S) == b"{}"
            await doubtful.close()
            await trusted.close()

    run(main)
