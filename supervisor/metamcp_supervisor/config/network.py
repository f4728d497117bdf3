"""Rules for a gateway that other machines can reach: who is asked, and what is encrypted.

Owns: which address is refused, which URL is the gateway's own, the files of TLS at an address,
whose tokens and which API keys an endpoint accepts. Never: certificates themselves
(`certificates`), tokens themselves, reading other tables (`parse`).
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config import installation, sections, units
from metamcp_supervisor.config.config import (
    Address,
    AnyAddress,
    Endpoint,
    GatewayConfig,
    StoreConfig,
    Tls,
)
from metamcp_supervisor.config.document import (
    ConfigDraft,
    ConfigFindings,
    ServerDraft,
    SourceLocation,
    Table,
    shorten,
)
from metamcp_supervisor.config.program import warn_of_literal, warn_of_short
from metamcp_supervisor.config.references import ReferenceResolver, References
from metamcp_supervisor.config.show import password
from metamcp_worker.access import api_key
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.spec import IssuerSpec

_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_PORTS = {"http": 80, "https": 443}


def is_own_url(url: str, gateway: GatewayConfig, port: int) -> bool:
    """Whether a URL leads to this gateway, as far as its address shows. `port`: of the gateway for
    clients, 0 if it is not known before the start."""
    try:
        parts = urlsplit(url)
        host, url_port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return False
    own = gateway.listen.host
    local = units.is_loopback(own) or own in _ALL_ADDRESSES
    named = host in (own, *gateway.allowed_hosts) or (local and units.is_loopback(host))
    return named and url_port == port


def without_self(
    drafts: Iterable[ConfigDraft], gateway: GatewayConfig, port: int, findings: ConfigFindings
) -> list[ConfigDraft]:
    """Return the drafts without the servers whose URL is this gateway. `port`: see `is_own_url`."""

    def judge(draft: ServerDraft) -> ServerDraft:
        if draft.server is None or not is_own_url(draft.server.url or "", gateway, port):
            return draft
        message = f"the server '{draft.name}' is left out: its URL is this gateway"
        findings.add_warning(draft.site, message)
        return replace(draft, server=None)

    return [replace(each, servers=tuple(map(judge, each.servers))) for each in drafts]


SECRET_BYTES_MIN = 32
"""Minimum bytes of `cluster_secret`: a key for AES-256 is made from it."""
_POSTGRES = ("postgresql://", "postgres://")
_RAW = re.compile(r"[@/?#\[\]]")
"""Characters that end the user or the password in a URL."""


def read_database_url(key: str, table: Table, resolving: ReferenceResolver) -> tuple[str, str]:
    """Return the URL of a database in PostgreSQL and the same as written; empty without one, or if
    it was reported."""
    written = table.text(key)
    if written is None:
        return "", ""
    site = table.site.at(key)
    url = resolving.value(written, site)
    resolving.report(table.findings)
    if url is not None and not url.startswith(_POSTGRES):
        table.error(key, "must begin with postgresql://")
        url = ""
    elif url and _RAW.search(url.partition("://")[2].rpartition("@")[0]):
        raw = "has one of @ / ? # in the user or the password; percent-encode it, as %40 for @"
        table.error(key, raw)
        url = ""
    warn_of_literal("PGPASSWORD", password(written), site, table)
    warn_of_short([password(url or ""), *resolving.secrets], table)
    return url or "", written


def read_store(table: Table, references: References) -> tuple[StoreConfig | None, str | None]:
    """Return the database of `store` and the value of `cluster_secret`; None for what is not set,
    or was reported."""
    resolving = ReferenceResolver(references)
    url, written = read_database_url("store", table, resolving)
    if url and (message := installation.describe_missing(installation.STORE)):
        table.error("store", message)
    written_secret = table.text("cluster_secret")
    secret = None
    if written_secret is not None:
        site = table.site.at("cluster_secret")
        resolving = ReferenceResolver(references)
        secret = resolving.value(written_secret, site)
        resolving.report(table.findings)
        warn_of_literal("METAMCP_CLUSTER_SECRET", written_secret, site, table)
        if secret is not None and len(secret.encode()) < SECRET_BYTES_MIN:
            table.error("cluster_secret", f"has fewer than {SECRET_BYTES_MIN} bytes; {OPENSSL}")
            secret = ""
    store = StoreConfig(url=url, url_written=written) if url else None
    return store, secret


OPENSSL = "'openssl rand -hex 32' makes one"


PROXIES_MAX = 64
"""Maximum networks and addresses of trusted proxies."""


def check_proxies(table: Table, networks: Sequence[str]) -> None:
    """Refuse entries of `trusted_proxies` other than networks and addresses."""
    if len(networks) > PROXIES_MAX:
        table.error("trusted_proxies", f"names more than {PROXIES_MAX} networks")
    for text in networks:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            write = 'write a network like "10.0.0.0/8" or an address like "10.0.0.7"'
            table.error("trusted_proxies", f"'{shorten(text)}' names no network; {write}")
            continue
        address = network.network_address
        if "/" in text and ipaddress.ip_interface(text).ip != address:
            write = f"write {network} for the network, or the address alone"
            table.error("trusted_proxies", f"'{shorten(text)}' is an address in a network; {write}")
        elif isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            message = f"'{shorten(text)}' stands for IPv4; write it as IPv4, such as \"10.0.0.0/8\""
            table.error("trusted_proxies", message)


def refuse_open_console(
    console: tuple[Address, SourceLocation],
    taken: Iterable[AnyAddress | None],
    tls: Tls | None,
    findings: ConfigFindings,
) -> None:
    """Refuse an address of the console that another listener has, or that other machines can reach
    without TLS."""
    address, site = console
    if address.port and address in taken:
        findings.error(site, f"{address} is taken by another listener of [gateway]; change one")
    if not units.is_loopback(address.host) and tls is None:
        findings.error(
            site,
            f"what people see and do would travel unencrypted to {address}; write tls ="
            ' "required" in [gateway], or use 127.0.0.1, [::1] or localhost',
        )


KEYS_NAMED_MAX = 64
"""Maximum API keys that an endpoint can name."""
LOCAL_CERT, LOCAL_KEY = "tls/gateway.pem", "tls/gateway.key"
LOCAL_NAMES = "tls/names"
"""Files in the state directory of the certificate that the gateway makes itself, and of the names
in it, one a line."""


def tls_of(
    written: Tls | str | None,
    listen: tuple[Address, SourceLocation],
    state_dir: Path,
    fronts: int,
    findings: ConfigFindings,
) -> Tls | None:
    """Return the files for TLS at this address, None without TLS. `written`: files, or a word."""
    tls = written if isinstance(written, Tls) else None
    loopback = units.is_loopback(listen[0].host)
    if written == "required" or (written == "local" and not loopback):
        cert, key = state_dir / LOCAL_CERT, state_dir / LOCAL_KEY
        tls = Tls(cert=cert, key=key, local=True)
    if tls is not None and fronts > 1:
        message = "TLS needs fronts = 1: an encrypted connection cannot move from front to front"
        findings.error(listen[1], message)
    return tls


def refuse_open(
    gateway: GatewayConfig,
    endpoints: Iterable[Endpoint],
    site: SourceLocation,
    findings: ConfigFindings,
    *,
    overridden: bool = False,
) -> None:
    """Refuse an address that other machines can reach while an endpoint there asks for nothing, or
    while credentials would travel in the clear. `overridden`: a flag or variable says `auth`."""
    address = gateway.listen
    if units.is_loopback(address.host):
        return
    if unguarded := [endpoint.name for endpoint in endpoints if not endpoint.auth]:
        write = 'write auth = "keys" ' + ("for this endpoint" if gateway.auth else "in [gateway]")
        if overridden and not gateway.auth:
            write = "leave out --auth and METAMCP_AUTH, or set 'keys' there,"
        findings.error(
            site,
            f"other machines could reach {address}, and the endpoint '{unguarded[0]}' asks for no"
            f" credential; {write} and make a key with 'metamcp keys create NAME', or use"
            " 127.0.0.1, [::1] or localhost",
        )
    if not gateway.behind_proxy and gateway.tls is None:
        findings.error(
            site,
            f'keys would travel unencrypted to {address}; write tls = "local" in [gateway], or'
            " behind_proxy = true if a proxy in front of it speaks TLS, or use 127.0.0.1, [::1] or"
            " localhost",
        )


def keys_of(table: Table, key: str) -> tuple[str, ...]:
    """Return the names or ids of the only API keys that an endpoint accepts, empty for all of its
    workspace. A whole key stands for its id. `key`: of the table, where they are written."""
    words = table.texts(key)
    if words is not None and not 0 < len(words) <= KEYS_NAMED_MAX:
        table.error(
            key,
            f"names 1 to {KEYS_NAMED_MAX} API keys; without '{key}' every key of the workspace is"
            " accepted",
        )
    return tuple(api_key.id_of(word) or word for word in words or ())


def refuse_unused_keys(endpoint: Endpoint, site: SourceLocation, findings: ConfigFindings) -> None:
    """Refuse an endpoint that names API keys and accepts requests without any."""
    if endpoint.keys and "keys" not in endpoint.auth:
        findings.error(site, 'names API keys and asks for none; write auth = "keys"')


def issuer_of(endpoint: Table, resolving: ReferenceResolver) -> IssuerSpec | None:
    """Return whose tokens the endpoint of this table accepts, None if nothing is written. Without a
    written `audience` it is empty."""
    table = endpoint.table("oauth", "endpoints.*.oauth")
    if table is None:
        return None
    table.refuse_unknown()
    private = table.flag("allow_private", default=False)

    def url(key: str) -> str:
        text = table.text(key) or ""
        flaw = sections.url_flaw(text) if text else ""
        if not flaw and text.startswith("http:") and not _is_here(text):
            flaw = 'must begin with "https://"; only on this machine tokens may go unencrypted'
        if flaw:
            table.error(key, flaw)
        return text

    issuer, audience, introspection = map(url, ("issuer", "audience", "introspection"))
    if not issuer and not table.has("issuer"):
        table.findings.error(table.site, "has no 'issuer', the URL of the authorization server")
    if _is_here(issuer) and not private:
        table.error("issuer", "is on this machine; allow_private = true permits that")
    secret = table.text("client_secret") or ""
    warn_of_literal("CLIENT_SECRET", secret, table.site.at("client_secret"), table)
    spec = IssuerSpec(
        issuer=issuer, audience=audience, scopes=sections.scopes_of(table),
        introspection=introspection, client_id=table.text("client_id") or "",
        client_secret=resolving.text(secret, table.site.at("client_secret")) if secret else "",
        allow_private=private,
    )  # fmt: skip
    warn_of_short([spec.client_secret], table)
    if introspection and not (spec.client_id and secret):
        table.error("introspection", "needs 'client_id' and 'client_secret' to ask there")
    for site, message in resolving.unresolved:
        table.findings.error(site, message)
    return spec


def _is_here(url: str) -> bool:
    return units.is_loopback((urlsplit(url).hostname or "") if url else "")


def with_audience(
    endpoint: Endpoint, gateway: GatewayConfig, site: SourceLocation, findings: ConfigFindings
) -> Endpoint:
    """Return the endpoint with the URL for which its tokens must be, if it accepts tokens."""
    takes = "oauth" in endpoint.auth
    if takes != (endpoint.oauth is not None):
        findings.error(
            site,
            f"accepts tokens, and nothing says whose; write [{_table(endpoint)}.oauth] with an"
            " 'issuer'"
            if takes
            else "has a table 'oauth' and accepts no tokens; write auth = \"oauth\" or"
            ' auth = ["keys", "oauth"]',
        )
        return replace(endpoint, oauth=None)
    if endpoint.oauth is None or endpoint.oauth.audience:
        return endpoint
    listen = gateway.listen
    if not units.is_loopback(listen.host) or not listen.port:
        findings.error(
            site.at("oauth"),
            f"has no 'audience': the URL that clients use, as https://HOST{_path(endpoint)}",
        )
    scheme = "http" if gateway.tls is None else "https"
    audience = f"{scheme}://{listen}{_path(endpoint)}"
    return replace(endpoint, oauth=structs.replace(endpoint.oauth, audience=audience))


def _table(endpoint: Endpoint) -> str:
    """Return the name of the table of an endpoint in the file."""
    own = endpoint.workspace != process_names.DEFAULT
    return f"{f'workspaces.{endpoint.workspace}.' if own else ''}endpoints.{endpoint.name}"


def _path(endpoint: Endpoint) -> str:
    path = f"/metamcp/{endpoint.path or endpoint.name}/mcp"
    return "/mcp" if endpoint.name == process_names.DEFAULT else path
