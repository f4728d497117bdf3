"""Checks of `metamcp ctl doctor` on what protects a gateway: settings, files of TLS, API keys.

Owns: the list of weaker protections, files that others can read, the room of the audit, keys that
an endpoint names and that do not exist. Never: changing anything, printing.
"""

import asyncio
import contextlib
import stat
from collections.abc import Iterator

from metamcp_supervisor.certificates import authority
from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.config.config import Address, Config, GatewayConfig
from metamcp_supervisor.config.units import is_loopback
from metamcp_supervisor.doctor.doctor_checks import DoctorFinding
from metamcp_supervisor.keys import api_keys
from metamcp_supervisor.keys.key_rules import PEPPER
from metamcp_supervisor.processes.limits import mebibytes
from metamcp_supervisor.servers import specs
from metamcp_supervisor.store.database import StoreError, make_database
from metamcp_worker.http.tls_files import context_of
from metamcp_worker.ipc import audit_records
from metamcp_worker.ipc.errors import TlsUnfit

BLOCK_BYTES = 512
"""Bytes of a block as `stat` counts them."""


def security(config: Config) -> DoctorFinding:
    """Return every protection that is weaker than it could be. Where only this machine can reach
    the gateway, that is not a fault."""
    gateway, endpoints = config.gateway, config.endpoints.values()
    private = [
        endpoint.name
        for endpoint in endpoints
        if endpoint.oauth is not None and endpoint.oauth.allow_private
    ]
    servers = config.servers.values()
    weak = {
        "any program here may call all servers, as no credential is asked for": [
            endpoint.name for endpoint in endpoints if not endpoint.auth
        ],
        "a key may stand in the URL": [
            endpoint.name for endpoint in endpoints if endpoint.auth and endpoint.url_keys
        ],
        "an issuer may be in this network": private,
        "changed tools are only recorded": [
            server.name for server in servers if server.pinning == "record"
        ],
        "changes of tools are not seen": [
            server.name for server in servers if server.pinning == "off"
        ],
        "servers are not confined": [
            server.name
            for server in servers
            if server.command and sandboxes.profile(server) == "none"
        ],
        "no TLS": [] if gateway.tls is not None else [str(gateway.listen)],
        "metrics travel unencrypted": [str(gateway.ops_listen)] if _is_open(gateway) else [],
        "no audit": [] if config.audit.level != "off" else ["[audit]"],
    }
    weaknesses = [f"{weakness} ({', '.join(names)})" for weakness, names in weak.items() if names]
    text = "; ".join(weaknesses) or "every protection is on"
    if not weaknesses:
        return DoctorFinding("security", "ok", text)
    if is_loopback(gateway.listen.host) and not _is_open(gateway):
        return DoctorFinding("security", "ok", f"enough while only this machine connects: {text}")
    return DoctorFinding("security", "warn", text, "docs/security.md says more")


def _is_open(gateway: GatewayConfig) -> bool:
    """Whether other machines can reach metrics and health."""
    address = gateway.ops_listen
    return isinstance(address, Address) and not is_loopback(address.host)


def private_files(config: Config) -> Iterator[DoctorFinding]:
    """Find files with secrets that others can read. A key that the operator keeps may be readable
    for a group."""
    state_dir, tls = config.gateway.state_dir, config.gateway.tls
    own = stat.S_IRWXG | stat.S_IRWXO
    masks = {state_dir / name: own for name in (PEPPER, authority.CA_KEY, authority.KEY)}
    if tls is not None:
        masks.setdefault(tls.key, stat.S_IRWXO)
    for path, mask in masks.items():
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & mask:
                text = f"other users can read {path} (mode {mode:04o})"
                yield DoctorFinding("secret", "fail", text, f"chmod 600 {path}")


def room_of_audit(config: Config) -> Iterator[DoctorFinding]:
    """Check whether the audit has the blocks of the disk that it keeps back."""
    path = config.gateway.state_dir / audit_records.FOLDER / audit_records.RESERVE
    if config.audit.level == audit_records.OFF or not path.parent.exists():
        return
    size = mebibytes(audit_records.RESERVE_BYTES)
    taken = 0
    with contextlib.suppress(OSError):
        taken = path.stat().st_blocks * BLOCK_BYTES
    if taken >= audit_records.RESERVE_BYTES:
        yield DoctorFinding("audit", "ok", f"{size} of the disk are kept back for its records")
        return
    text = f"no room is kept back for its records: the file system has not given {path} {size}"
    advice = "make room there; zfs and btrfs with compression give none ahead: choose another disk"
    yield DoctorFinding("audit", "warn", text, advice)


def tls_files(config: Config) -> Iterator[DoctorFinding]:
    """Check the files of TLS, and for which names the certificate of the gateway is."""
    tls = specs.tls_spec(config.gateway.tls)
    if tls is None or config.gateway.tls is None:
        return
    local, state_dir = config.gateway.tls.local, config.gateway.state_dir
    if local and not (state_dir / authority.CA).exists():
        yield DoctorFinding("TLS", "ok", f"{state_dir / authority.CA} is made at the start")
        return
    try:
        if local:
            authority.read_certificate(state_dir)
        narrow = local and authority.narrow(state_dir, config.gateway.listen.host)
        context_of(tls)
    except (authority.AuthorityUnfit, TlsUnfit) as error:
        text = str(error).removeprefix("TLS: ")
        yield DoctorFinding("TLS", "fail", text, "no gateway starts with it")
        return
    if narrow:
        yield DoctorFinding("TLS", "warn", f"{tls.cert} is for localhost alone", authority.WIDEN)
    else:
        yield DoctorFinding("TLS", "ok", f"{tls.cert} can be used")


def usable_keys(config: Config) -> Iterator[DoctorFinding]:
    """Check the file without which no API key is valid."""
    if reason := asyncio.run(api_keys.find_fault(make_database(config.gateway))):
        text, _, advice = reason.partition("; ")
        yield DoctorFinding("API keys", "fail", f"none is valid: {text}", advice)


def named_keys(config: Config) -> Iterator[DoctorFinding]:
    """Find the API keys that endpoints name and that do not exist."""
    if not any(endpoint.keys for endpoint in config.endpoints.values()):
        return
    try:
        rows = asyncio.run(api_keys.names(make_database(config.gateway)))
    except StoreError:  # `usable_keys` has said why
        return
    registered = {(workspace, word) for key_id, name, workspace in rows for word in (key_id, name)}
    for endpoint in config.endpoints.values():
        names = [key for key in endpoint.keys if (endpoint.workspace, key) not in registered]
        if names:
            text = f"the endpoint '{endpoint.name}' names keys that do not exist: "
            more = "" if endpoint.workspace == "default" else f" --workspace {endpoint.workspace}"
            advice = f"'metamcp keys create {names[0]}{more}' makes one"
            yield DoctorFinding("API keys", "warn", text + ", ".join(names), advice)
