"""Rules for a gateway that other machines can reach: who is asked, and what is encrypted.

Owns: which address is refused, and the files of TLS at an address. Never: certificates themselves
(`certificates`), reading tables (`parse`).
"""

from collections.abc import Iterable
from pathlib import Path

from metamcp_supervisor.config import units
from metamcp_supervisor.config.config import Address, Endpoint, GatewayConfig, Tls
from metamcp_supervisor.config.document import ConfigFindings, Site


def refuse_strangers(address: Address, site: Site, findings: ConfigFindings) -> None:
    if not units.is_loopback(address.host):
        findings.error(
            site,
            f"other machines could reach {address}, and nothing there asks who they are; use"
            " 127.0.0.1, [::1] or localhost",
        )


LOCAL_CERT, LOCAL_KEY = "tls/gateway.pem", "tls/gateway.key"
LOCAL_NAMES = "tls/names"
"""Files in the state directory of the certificate that the gateway makes itself, and of the names
in it, one a line."""


def tls_of(
    written: Tls | str | None,
    listen: tuple[Address, Site],
    state_dir: Path,
    fronts: int,
    findings: ConfigFindings,
) -> Tls | None:
    """Return the files for TLS at this address, None without TLS. `written`: files, or a word."""
    found = written if isinstance(written, Tls) else None
    loopback = units.is_loopback(listen[0].host)
    if written == "required" or (written == "local" and not loopback):
        cert, key = state_dir / LOCAL_CERT, state_dir / LOCAL_KEY
        found = Tls(cert=cert, key=key, local=True)
    if found is not None and fronts > 1:
        what = "TLS needs fronts = 1: an encrypted connection cannot move from front to front"
        findings.error(listen[1], what)
    return found


def refuse_open(
    gateway: GatewayConfig, endpoints: Iterable[Endpoint], site: Site, findings: ConfigFindings
) -> None:
    """Refuse an address that other machines can reach while an endpoint there asks for nothing, or
    while credentials would travel in the clear."""
    address = gateway.listen
    if units.is_loopback(address.host):
        return
    if unguarded := [endpoint.name for endpoint in endpoints if not endpoint.auth]:
        findings.error(
            site,
            f"other machines could reach {address}, and the endpoint '{unguarded[0]}' asks for no"
            ' credential; write auth = "keys" in [gateway] and make a key with \'metamcp keys'
            " create NAME', or use 127.0.0.1, [::1] or localhost",
        )
    if not gateway.behind_proxy and gateway.tls is None:
        findings.error(
            site,
            f'keys would travel unencrypted to {address}; write tls = "local" in [gateway], or'
            " behind_proxy = true if a proxy in front of it speaks TLS, or use 127.0.0.1, [::1] or"
            " localhost",
        )
