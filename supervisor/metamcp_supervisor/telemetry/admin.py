"""The ops port: `/metrics` and the health pages, for monitoring systems.

Owns: these paths, the host names by which requests may name the gateway, the key that strangers
need, the format that a scraper wants, the cache in front of the metrics and the thread that writes
them. Never: client traffic, what is healthy (`health`), what is measured (`metrics`), their text
(`exposition`), sockets and HTTP (the server).

The pages are read-only and show no secrets. Still, a web page in a browser on this machine must not
read the metrics. So a request for them must name the gateway by its address or by an allowed name:
a foreign DNS name that points to this machine (DNS rebinding) is refused. Web pages cannot reach a
unix socket: there the mode of the file decides who may ask, and every name is accepted. The health
pages are for probes, which may use any name.

From another machine every page needs an API key with the scope `metrics`.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from msgspec import structs

from metamcp_supervisor.config.config import Address, AnyAddress
from metamcp_supervisor.telemetry import health
from metamcp_supervisor.telemetry.health import GatewayPulse, Readings
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import MetricsSnapshot
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.http import request_head
from metamcp_worker.http.request_head import Head, Headers, Hosts, place_of
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc.spec import CONFINED_HOST

if TYPE_CHECKING:
    from metamcp_supervisor.telemetry.exposition import PageWriter

Checks = Callable[[GatewayStatus], list[health.HealthCheck]]

CACHE_S = 0.25
"""Minimum seconds for which a page of metrics is used."""
CACHE_TIMES = 10
"""A page is used for this many times the time that writing it took, so that frequent scrapes of one
format take at most a tenth of a processor."""
HOST_BYTES_MAX = 300
"""Maximum bytes of a `Host`; a DNS name, brackets and a port have fewer."""
QUERY_FIELDS_MAX = 100
"""Maximum number of fields of a query; a query with more is not read at all."""
PLAIN = "text/plain; charset=utf-8"
METRICS = "/metrics"
LIVE = "/livez"
_LOCAL = "localhost"
_OPENMETRICS_VERSIONS = frozenset({"", "1.0.0", "1.0.1"})
_STRANGER = (
    403,
    PLAIN,
    b"Ask for this page by the address of the gateway, or allow the name: \
allowed_hosts in [gateway].\n",
)

_READ = frozenset({"GET", "HEAD"})
_READ_ONLY = 405, PLAIN, b"There is nothing to change here: use GET.\n"
_NO_KEY = (
    401,
    PLAIN,
    b"From another machine this port needs an API key as 'Authorization: Bearer KEY'; \
'metamcp keys create NAME --scope metrics' makes one.\n",
)
_CONFINED = 403, PLAIN, b"Confined servers of this gateway may not use its ops port.\n"

_CHECKS: dict[str, Checks] = {
    "/readyz": health.ready,
    "/healthz": health.ready,
    "/startupz": health.check_startup,
}
PAGES = (LIVE, *_CHECKS)


class OpsView(Protocol):
    """Readings of the gateway at this moment, beside its status."""

    def read(self) -> Readings: ...

    def pulse(self) -> GatewayPulse: ...


class Admin:
    """The application of the ops port. `listen`: address of `ops_listen`; `hosts`: names that are
    allowed beside it; `opens`: whether an API key opens the pages to other machines;
    `clock`: monotonic seconds."""

    def __init__(
        self,
        status: Callable[[], GatewayStatus],
        seen: OpsView,
        metrics: Metrics,
        listen: AnyAddress,
        clock: Callable[[], float],
        hosts: Sequence[str] = (),
        opens: Callable[[str], bool] = lambda _key: False,
    ) -> None:
        self._opens = opens
        self._status = status
        self._seen = seen
        self._metrics = metrics
        self._listen_host = listen.host.lower() if isinstance(listen, Address) else _LOCAL
        self._hosts = Hosts(hosts)
        self._clock = clock
        self._pages: dict[bool, tuple[str, bytes, float]] = {}
        """Content type, text and end of its use, for each format."""
        self._writers: dict[bool, PageWriter] = {}
        """For each format, from its first page on."""
        self._writing = asyncio.Lock()

    def __call__(self, request: HttpRequest) -> Pending:
        head = request.head
        path = request_head.path_and_query(head.target)[0].decode()
        if request.address.endswith(CONFINED_HOST):
            _send(request, *_CONFINED)
            return None
        is_abroad = bool(request.address) and not _is_here(request.address)
        if is_abroad and not self._opens(_bearer(head.headers)):
            _send(request, *_NO_KEY)
            return None
        # A foreign web page has no key, and cannot open a unix socket.
        is_free = is_abroad or not request.address or path in PAGES
        is_allowed = is_free or self._host_ok(head.headers)
        if is_allowed and path == METRICS and head.method in _READ:
            return self._answer_scrape(request)
        _send(request, *(self._answer(head) if is_allowed else _STRANGER))
        return None

    def health(self, request: HttpRequest) -> None:
        """The application of `health_listen`. Answers contain only the verdict and no names of
        servers, because the address may be public."""
        path = request_head.path_and_query(request.head.target)[0].decode()
        if request.head.method not in _READ:
            _send(request, *_READ_ONLY)
        elif path not in PAGES:
            _send(request, 404, PLAIN, f"There are: {', '.join(PAGES)}\n".encode())
        else:
            code = self._answer(structs.replace(request.head, target=path.encode()))[0]
            _send(request, code, PLAIN, b"ok\n" if code == 200 else b"failed\n")

    def _answer(self, head: Head) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        if head.method not in _READ:
            return _READ_ONLY
        raw_path, query = request_head.path_and_query(head.target)
        path = raw_path.decode()
        if path == LIVE:
            return _health(health.live(self._seen.pulse()), query)
        if path in _CHECKS:
            return _health(_CHECKS[path](self._status()), query)
        there = ", ".join([METRICS, *PAGES])
        return 404, PLAIN, f"There is no such page; there are: {there}\n".encode()

    async def _answer_scrape(self, request: HttpRequest) -> None:
        headers = request.head.headers
        accept = b",".join(value for name, value in headers if name == b"accept")
        openmetrics = wants_openmetrics(accept.decode("latin-1"))
        async with self._writing:  # the next scrape finds the page of this one
            now = self._clock()
            kind, page, until = self._pages.get(openmetrics, ("", b"", float("-inf")))
            if now >= until:
                snapshot = self._metrics.snapshot(self._status(), self._seen.read())
                kind, page = await asyncio.to_thread(self._write_page, snapshot, openmetrics)
                used_s = max(CACHE_S, (self._clock() - now) * CACHE_TIMES)
                self._pages[openmetrics] = kind, page, now + used_s
        _send(request, 200, kind, page)

    def _write_page(self, snapshot: MetricsSnapshot, as_openmetrics: bool) -> tuple[str, bytes]:
        """Return content type and text, in a thread, one page at a time: a hundred servers take the
        library 60 ms at first."""
        from metamcp_supervisor.telemetry.exposition import PageWriter

        writer = self._writers.get(as_openmetrics)
        if writer is None:
            writer = self._writers[as_openmetrics] = PageWriter(as_openmetrics=as_openmetrics)
        return writer.page(snapshot)

    def _host_ok(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or len(hosts[0]) > HOST_BYTES_MAX:
            return False
        authority = place_of(hosts[0])  # of the whole value, so that nothing can stand behind it
        if authority is None:
            return False
        host = authority[0].decode().strip("[]")
        own = host in {_LOCAL, self._listen_host} or _is_address(host)
        return own or self._hosts.allow(authority)


def wants_openmetrics(accept: str) -> bool:
    """Whether this value of `Accept` names OpenMetrics before the other format."""
    for media_range in accept.split(","):
        kind, *parameters = (field.strip() for field in media_range.split(";"))
        if kind == "application/openmetrics-text":
            versions = [
                parameter[8:].strip('"')
                for parameter in parameters
                if parameter.startswith("version=")
            ]
            return all(version in _OPENMETRICS_VERSIONS for version in versions)
        if kind == "text/plain":
            return False
    return False


def _bearer(headers: Headers) -> str:
    """Return the credential of `Authorization: Bearer`; empty without exactly one."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, text = (values[0] if len(values) == 1 else b"").partition(b" ")
    return text.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _send(request: HttpRequest, code: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if code == 405:
        headers.append((b"allow", b"GET, HEAD"))
    request.answer(request_head.head(code, headers), body)


def _health(checks: Sequence[health.HealthCheck], query: bytes) -> tuple[int, str, bytes]:
    params = _query(query)
    excluded = [value for name, value in params if name == "exclude"]
    checks, remarks = health.without(checks, excluded)
    fine = health.passes(checks)
    if fine and not any(name == "verbose" for name, _ in params):
        return 200, PLAIN, "\n".join([*remarks, "ok", ""]).encode()
    lines = [*map(str, checks), *remarks, "ok" if fine else "failed"]
    return 200 if fine else 503, PLAIN, "\n".join([*lines, ""]).encode()


def _query(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        return []


def _is_here(address: str) -> bool:
    """Whether a peer with this address is on this machine."""
    peer = ipaddress.ip_address(address.partition("%")[0])
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
