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

from metamcp_worker.http.fetch import Origin, TlsFailed
from tests.worker.scripted import Wire, serving

ANSWER_S = 5.0


async def echo(wire: Wire) -> None:
    while request := await wire.request():
        await wire.answer(request.body)


def certificate(directory: Path, address: str = "127.0.0.1", days: int = 1) -> Path:
    """A file with a certificate for this address, signed by itself, and its key. `days`: that it is
    still valid; it has been for ten."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{address} {days}")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    end = now + days * day
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - 10 * day, end)
    builder = builder.add_extension(names, critical=False)
    file = directory / f"server-{address}-{days}.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    return file


def tls(file: Path) -> ssl.SSLContext:
    """What a server with this certificate speaks."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


async def test_a_certificate_is_trusted_only_if_somebody_vouches_for_it(tmp_path: Path) -> None:
    file = certificate(tmp_path)
    async with serving(echo, tls=tls(file)) as url:
        doubtful, trusted = Origin(url), Origin(url, ca_file=str(file))
        with pytest.raises(TlsFailed, match="because of its certificate: self-signed"):
            await doubtful.send("POST", {}, b"{}", answer_s=ANSWER_S)
        async with await trusted.send("POST", {}, b"{}", answer_s=ANSWER_S) as response:
            assert await response.read(wait_s=ANSWER_S) == b"{}"
        await doubtful.close()
        await trusted.close()


@pytest.mark.parametrize(
    ("address", "days", "why"),
    [("127.0.0.1", -1, "certificate has expired"), ("127.9.9.9", 1, "IP address mismatch")],
)
async def test_what_is_wrong_with_a_certificate_is_named(
    tmp_path: Path, address: str, days: int, why: str
) -> None:
    file = certificate(tmp_path, address, days)
    async with serving(echo, tls=tls(file)) as url:
        origin = Origin(url, ca_file=str(file))
        with pytest.raises(TlsFailed, match=f"because of its certificate: {why}"):
            await origin.send("POST", {}, b"{}", answer_s=ANSWER_S)
        await origin.close()


async def test_a_server_without_tls_is_told_from_one_that_is_away() -> None:
    async def plain(wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with serving(plain) as url:
        origin = Origin(url.replace("http:", "https:"))
        with pytest.raises(TlsFailed, match="does not speak TLS there"):
            await origin.send("POST", {}, b"{}", answer_s=ANSWER_S)
        await origin.close()
