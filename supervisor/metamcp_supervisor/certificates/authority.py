"""Local certificate authority: it vouches for this gateway and for nothing else.

Owns: the files below `tls` in the state directory, making and renewing them, the end of any
certificate of a gateway. Never: stores of the system or of browsers, making certificates for
somebody else, TLS itself (the front's `http.tls_files`).

The authority may only sign for the names that it was created with (name constraints, RFC 5280,
section 4.2.1.10), so its key is worth nothing elsewhere. Clients get its certificate.
"""

import contextlib
import datetime as dt
import ipaddress
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metamcp_supervisor.config import files
from metamcp_supervisor.config.network import LOCAL_CERT, LOCAL_KEY, LOCAL_NAMES
from metamcp_supervisor.config.units import is_loopback
from metamcp_worker.ipc.errors import MetaMCPError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CA_KEY = "tls/ca.pem", "tls/ca.key"
CERT, KEY = LOCAL_CERT, LOCAL_KEY
"""Files in the state directory."""
CA_DAYS = 3650
CERT_DAYS = 90
RENEW_AT = 2 / 3
"""Share of its life after which the certificate of the gateway is created again."""
NAMES_MAX = 100
ALWAYS = ("localhost", "127.0.0.0/8", "::1/128")
"""Names and networks that every authority may sign for."""
OWN = ("localhost", "127.0.0.1", "::1")
"""Names in every certificate of a gateway."""
SKEW = dt.timedelta(minutes=5)
"""Time before now at which a certificate begins, for clocks that differ."""


WIDEN = "'metamcp tls init --name HOST' makes one for the names by which clients reach the gateway"


class AuthorityUnfit(MetaMCPError):
    """The files cannot be created or used. The text says why and what to do."""


class Certificate(Struct, frozen=True, kw_only=True):
    """Files of the authority and of the gateway, and what they say. `names`: in the certificate of
    the gateway; `expires`, `ca_expires`: ISO 8601, UTC."""

    ca: str
    cert: str
    key: str
    names: tuple[str, ...]
    expires: str
    ca_expires: str
    ca_sha256: str


def make(state_dir: Path, names: Sequence[str]) -> None:
    """Make an authority for these names besides `OWN`, in place of one that is there, and a
    certificate of the gateway. Raises AuthorityUnfit."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if len(names) > NAMES_MAX:
        raise AuthorityUnfit(f"a certificate has at most {NAMES_MAX} names")
    hosts = tuple(dict.fromkeys((*OWN, *map(_normalize_host, names))))
    key = ec.generate_private_key(ec.SECP256R1())
    _write(state_dir / CA_KEY, _pem_of(key))
    _write(state_dir / LOCAL_NAMES, "\n".join(hosts).encode())
    _write(state_dir / CA, _pem(_authority(key, hosts)))
    issue(state_dir, hosts)


def ensure(state_dir: Path, names: Sequence[str] = ()) -> bool:
    """Create the files that are missing, and renew the certificate of the gateway if it is time.
    Returns whether a file was written. Raises AuthorityUnfit."""
    if not (state_dir / CA).exists():
        make(state_dir, names)
        return True
    _read(state_dir / CA)  # clients need it, the gateway does not
    for path in (state_dir / CA_KEY, state_dir / KEY):
        with contextlib.suppress(FileNotFoundError):
            if (mode := stat.S_IMODE(path.stat().st_mode)) & (stat.S_IRWXG | stat.S_IRWXO):
                problem = f"other users can read {path} (mode {mode:04o})"
                raise AuthorityUnfit(f"{problem}; chmod 600 {path}")
    if (state_dir / CERT).exists() and (state_dir / KEY).exists():
        cert = _read(state_dir / CERT)
        if not due(cert.not_valid_before_utc, cert.not_valid_after_utc, _utc_now()):
            return False
    issue(state_dir, _read_local_names(state_dir))
    return True


def narrow(state_dir: Path, host: str) -> bool:
    """Whether the certificate is for localhost alone, and this is not where clients connect. Raises
    AuthorityUnfit."""
    return not is_loopback(host) and {*_names(_read(state_dir / CERT))} <= {*OWN}


def due(begins: dt.datetime, ends: dt.datetime, now: dt.datetime) -> bool:
    """Whether a certificate must be created again."""
    return now >= begins + (ends - begins) * RENEW_AT


def read_certificate(state_dir: Path) -> Certificate:
    """Return what is there. Raises AuthorityUnfit."""
    from cryptography.hazmat.primitives import hashes

    if not (state_dir / CA).exists():
        raise AuthorityUnfit("there is none yet; 'metamcp tls init' makes one")
    ca, cert = _read(state_dir / CA), _read(state_dir / CERT)
    return Certificate(
        ca=str(state_dir / CA),
        cert=str(state_dir / CERT),
        key=str(state_dir / KEY),
        names=_names(cert),
        expires=cert.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        ca_expires=ca.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        ca_sha256=ca.fingerprint(hashes.SHA256()).hex(),
    )


def read_end(path: Path) -> float | None:
    """Return when the first of the certificates in a file ends, in seconds since the epoch; None
    without one that can be read."""
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):  # the front says so
        return None
    return min(each.not_valid_after_utc for each in certificates).timestamp()


def _read_local_names(state_dir: Path) -> Sequence[str]:
    """Return the names that the authority was created with."""
    try:
        return (state_dir / LOCAL_NAMES).read_text().split()
    except OSError as error:
        raise AuthorityUnfit(
            f"{state_dir / LOCAL_NAMES} cannot be read: {error.strerror}; 'metamcp tls init' makes"
            " a new authority"
        ) from None


def issue(state_dir: Path, names: Sequence[str]) -> None:
    """Make a certificate of the gateway with a new key, which the local authority signs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ca = _read(state_dir / CA)
    try:
        signer = serialization.load_pem_private_key((state_dir / CA_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise AuthorityUnfit(_unfit(state_dir / CA_KEY, error, "not a key in PEM")) from None
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = _utc_now()
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "MetaMCP gateway")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + dt.timedelta(days=CERT_DAYS), ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    # The key first: a front that looks in between keeps what it has.
    _write(state_dir / KEY, _pem_of(key))
    _write(state_dir / CERT, _pem(built.sign(signer, hashes.SHA256())) + _pem(ca))


def _authority(key: "ec.EllipticCurvePrivateKey", names: Sequence[str]) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "MetaMCP local authority")])
    allowed = [_constraint(one) for one in (*ALWAYS, *(host for host in names if host not in OWN))]
    now = _utc_now()
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + dt.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(usage, True)
        .add_extension(x509.NameConstraints(allowed, None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )


def _normalize_host(name: str) -> str:
    """Return a name or address as it stands in certificates. Raises AuthorityUnfit."""
    plain = name.strip("[]").lower()
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(plain))
    if plain and len(plain) <= 253 and all(_label(label) for label in plain.split(".")):
        return plain
    raise AuthorityUnfit(f"'{name[:64]}' is not the name or address of a host")


def _label(text: str) -> bool:
    allowed = text.replace("-", "").isalnum() and text.isascii()
    return bool(text) and len(text) <= 63 and allowed and not text.startswith("-")


def _general(name: str) -> "x509.GeneralName":
    from cryptography import x509

    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _constraint(name: str) -> "x509.GeneralName":
    from cryptography import x509

    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_network(name))
    return x509.DNSName(name)


def _names(cert: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509

    alternatives = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(host.value) for host in alternatives)


def _read(path: Path) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AuthorityUnfit(_unfit(path, error, "not a certificate in PEM")) from None


def _unfit(path: Path, error: OSError | ValueError, damage: str) -> str:
    problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is {damage}"
    return f"{path} {problem}; restore it, or 'metamcp tls init' makes a new authority"


def _pem(cert: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return cert.public_bytes(Encoding.PEM)


def _pem_of(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file with mode 0600, whole or not at all. Raises AuthorityUnfit."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace_file(path, data)
    except OSError as error:
        raise AuthorityUnfit(f"{path} cannot be written: {error.strerror}") from None


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
