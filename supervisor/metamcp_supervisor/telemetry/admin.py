"""The ops port: `/metrics` and the health pages, for machines that watch.

Owns: these paths, who may ask by which name, and the cache in front of the metrics. Never: client
traffic, what is healthy (`health`), what is measured (`metrics`), sockets and HTTP (the server).

There is nothing to change here, and no secret. A web page that a browser on this machine shows must
not read the metrics nevertheless, so a request for them must name the gateway by its address, which
a foreign DNS name that points here does not (DNS rebinding), or by an allowed name. No web page
gets to a unix socket: there the mode of the file says who may ask, by whatever name. The health
pages are for probes, which call the gateway what they like.
"""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import parse_qsl

from msgspec import structs

from metamcp_supervisor.config.config import Address, AnyAddress
from metamcp_supervisor.telemetry import health, text_format
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.snapshot import GatewayPulse, Readings
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.http import http1
from metamcp_worker.http.hosts import Hosts, place_of
from metamcp_worker.http.http1 import Head
from metamcp_worker.http.requests import HttpRequest

Checks = Callable[[GatewayStatus], list[health.HealthCheck]]

CACHE_S = 0.25
"""How old the metrics may be: scrapers cannot load the supervisor by asking often."""
HOST_BYTES_MAX = 300
"""More than a DNS name, brackets and a port have."""
QUERY_FIELDS_MAX = 100
"""Names that somebody excludes; of a longer query nothing is read."""
PLAIN = "text/plain; charset=utf-8"
LIVE = "/livez"
_LOCAL = "localhost"
_STRANGER = (
    403,
    PLAIN,
    b"Ask for this page by the address of the gateway, or allow the name: \
allowed_hosts in [gateway].\n",
)

_READ_ONLY = 405, PLAIN, b"There is nothing to change here: use GET.\n"

_CHECKS: dict[str, Checks] = {
    "/readyz": health.ready,
    "/healthz": health.ready,
    "/startupz": health.started,
}
PAGES = (LIVE, *_CHECKS)


class OpsView(Protocol):
    """What there is to see at this moment, beside the status."""

    def read(self) -> Readings: ...

    def pulse(self) -> GatewayPulse: ...


class Admin:
    """The application. `listen`: what `ops_listen` names; `hosts`: names that are allowed beside
    it; `clock`: monotonic seconds."""

    def __init__(
        self,
        status: Callable[[], GatewayStatus],
        seen: OpsView,
        metrics: Metrics,
        listen: AnyAddress,
        clock: Callable[[], float],
        hosts: Sequence[str] = (),
    ) -> None:
        self._status = status
        self._seen = seen
        self._metrics = metrics
        self._listen_host = listen.host.lower() if isinstance(listen, Address) else _LOCAL
        self._hosts = Hosts(hosts)
        self._clock = clock
        self._pages: dict[bool, tuple[bytes, float]] = {}

    def __call__(self, request: HttpRequest) -> None:
        path = http1.path_and_query(request.head.target)[0].decode()
        known = not request.address or path in PAGES or self._host_ok(request.head.headers)
        _send(request, *(self._answer(request.head) if known else _STRANGER))

    def health(self, request: HttpRequest) -> None:
        """The application of `health_listen`. Who may be anywhere learns how it stands, and no
        names."""
        path = http1.path_and_query(request.head.target)[0].decode()
        if request.head.method not in {"GET", "HEAD"}:
            _send(request, *_READ_ONLY)
        elif path not in PAGES:
            _send(request, 404, PLAIN, f"There are: {', '.join(PAGES)}\n".encode())
        else:
            code = self._answer(structs.replace(request.head, target=path.encode()))[0]
            _send(request, code, PLAIN, b"ok\n" if code == 200 else b"failed\n")

    def _answer(self, head: Head) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        if head.method not in {"GET", "HEAD"}:
            return _READ_ONLY
        where, query = http1.path_and_query(head.target)
        path = where.decode()
        if path == "/metrics":
            accept = b",".join(value for name, value in head.headers if name == b"accept")
            openmetrics = text_format.wants_openmetrics(accept.decode("latin-1"))
            kind = text_format.OPENMETRICS if openmetrics else text_format.PLAIN
            return 200, kind, self._metrics_page(openmetrics=openmetrics)
        if path == LIVE:
            return _health(health.live(self._seen.pulse()), query)
        if path in _CHECKS:
            return _health(_CHECKS[path](self._status()), query)
        there = ", ".join(["/metrics", *PAGES])
        return 404, PLAIN, f"There is no such page; there are: {there}\n".encode()

    def _metrics_page(self, *, openmetrics: bool) -> bytes:
        now = self._clock()
        page, until = self._pages.get(openmetrics, (b"", float("-inf")))
        if now >= until:
            status, readings = self._status(), self._seen.read()
            page = self._metrics.render(status, readings, openmetrics=openmetrics)
            self._pages[openmetrics] = page, now + CACHE_S
        return page

    def _host_ok(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or len(hosts[0]) > HOST_BYTES_MAX:
            return False
        host = _without_port(hosts[0].decode("latin-1")).lower()
        if host in {_LOCAL, self._listen_host} or _is_address(host):
            return True
        place = place_of(hosts[0])
        return place is not None and self._hosts.allow(place)


def _send(request: HttpRequest, code: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if code == 405:
        headers.append((b"allow", b"GET, HEAD"))
    request.answer(http1.head(code, headers), body)


def _health(checks: Sequence[health.HealthCheck], query: bytes) -> tuple[int, str, bytes]:
    asked = _query(query)
    excluded = [value for name, value in asked if name == "exclude"]
    checks, remarks = health.without(checks, excluded)
    fine = health.passes(checks)
    if fine and not any(name == "verbose" for name, _ in asked):
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


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
