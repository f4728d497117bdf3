"""Header policy: the checks of a request before its body is read.

Owns: the kinds of paths, the rules for Host, Origin, target, path, method, Content-Type, Accept and
Content-Length, the text of each refusal, the facts of a head that passes, where a client behind
proxies is. Never: bytes of a body, MCP, sending.

HTTP servers are not strict about everything, so the front checks all of this again, in the raw list
of headers, which still shows a repeated header. Browsers are the reason to check Host and Origin: a
page of any site can reach a listener on this machine, but cannot choose these two headers.
"""

import functools
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import unquote

from metamcp_worker.access.door import Denial
from metamcp_worker.access.gate import USER, Principal
from metamcp_worker.front_calls.request_facts import (
    API,
    MCP,
    MESSAGES,
    METADATA,
    SSE,
    Route,
)
from metamcp_worker.http.request_head import (
    BLANKS,
    Headers,
    Hosts,
    Place,
    path_and_query,
    place_of,
)
from metamcp_worker.http.requests import HttpRequest
from metamcp_worker.ipc import roots
from metamcp_worker.ipc.frames import BODY_BYTES_MAX
from metamcp_worker.ipc.spec import CONFINED_HOST, RESOURCE_METADATA, EndpointSpec

#: Methods that are served at each kind of path.
METHODS: Mapping[str, tuple[str, ...]] = {
    MCP: ("POST", "GET", "DELETE", "OPTIONS"),
    SSE: ("GET", "OPTIONS"),
    MESSAGES: ("POST", "OPTIONS"),
    API: ("GET", "POST", "OPTIONS"),
    METADATA: ("GET", "OPTIONS"),
}
BEFORE_PATH = frozenset({"host", "host_foreign", "origin", "repeated_header", "target"})
"""Reasons of refusals that do not depend on the path, so the answer shows nothing of endpoints."""
_OURS = b"/metamcp/"
"""Beginning of the paths below which nobody learns, without a credential, what there is."""
VERDICTS_KEPT = 128
"""Number of verdicts that are remembered, one for each combination of values; clients use few."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Verdict = tuple["Route", bool, bool, bytes, bytes]
"""Verdict on a request that passed: the route, whether the client reads event streams, whether it
prefers them to JSON, the rest of the path, the query."""


#: Headers that two programs could read differently when they are repeated.
_SINGLE = frozenset({
    b"content-length", b"content-type", b"host", b"last-event-id", b"mcp-session-id", b"origin",
})  # fmt: skip
_ROUTING = frozenset({b"mcp-method", b"mcp-name", b"mcp-protocol-version"})
#: Repeated headers that matter more than other repeated ones; the version decides on the era.
_WORST = _SINGLE | {b"mcp-protocol-version"}
DIRECTORY = b"metamcp-directory"
"""Header with the folder that a client works in, percent-encoded; `metamcp connect` sends it."""
_ORIGIN = re.compile(rb"https?://(?P<authority>[^/?#]+)", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)(?P<rest>/.*)", re.IGNORECASE | re.DOTALL)
_JSON = re.compile(
    rb'application/json[ \t]*(?:;[ \t]*charset[ \t]*=[ \t]*"?utf-8"?[ \t]*)?;?', re.IGNORECASE
)
_DIGITS = re.compile(rb"[0-9]{1,15}")
_ALLOW = "allowed_hosts in [gateway] says which names are allowed"
_CONFINED = (
    "Confined servers of this gateway may not use an endpoint that asks for no credential; write "
    'auth = "keys" for it, and give the server a key ("metamcp keys create NAME").'
)
_NOTHING_HERE = (
    "Nothing is served at this path; MCP is at /mcp and, for each endpoint, at "
    "/metamcp/{endpoint}/mcp, REST at …/api/{tool}."
)


FORWARDED_MAX = 32
"""Maximum number of addresses in a request that are read, those that the nearest proxies wrote."""
_FORWARDED_PAIR = re.compile(
    rb"""[ \t]*(?:([\w!#$%&'*+.^`|~-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*))?[ \t]*(;|,|$)""", re.ASCII
)
"""Name and value of a pair in `Forwarded`, and what ends it."""


class TrustedProxies:
    """Proxies whose headers say where a client is. `networks`: their networks and addresses."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def find_client(self, peer: str, headers: Headers) -> str:
        """Return the address of the client of a request that came from `peer`. If the peer is a
        trusted proxy, read the addresses in `X-Forwarded-For` or `Forwarded` from the last to the
        first, and return the first that is not a trusted proxy. A proxy that writes one of these
        headers lets the other one through; so if both are there and do not agree, return the
        peer. Behind an address that cannot be read, the last trusted proxy is the client."""
        if not self._networks or not self._trusts(client := _parse_address(peer)):
            return peer
        clients = {
            self._follow(client, addresses)
            for addresses in (_read_x_forwarded_for(headers), _read_forwarded(headers))
            if addresses
        }
        return clients.pop() if len(clients) == 1 else peer

    def _follow(self, client: IpAddress | None, addresses: Sequence[bytes]) -> str:
        """Return the client. `addresses`: as the proxies wrote them, the nearest proxy last."""
        for text in reversed(addresses[-FORWARDED_MAX:]):
            address = _parse_address(text.decode("latin-1"))
            if address is None:
                break
            client = address
            if not self._trusts(address):
                break
        return str(client)

    def _trusts(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _read_x_forwarded_for(headers: Headers) -> list[bytes]:
    lines = [value for name, value in headers if name == b"x-forwarded-for"]
    return [entry.strip(b" \t") for entry in b",".join(lines).split(b",")] if lines else []


def _read_forwarded(headers: Headers) -> list[bytes]:
    """Return the addresses of `Forwarded` (RFC 7239), empty ones where an entry has none, and a
    single empty one if the header cannot be read."""
    lines = [value for name, value in headers if name == b"forwarded"]
    text, addresses, address, at = b",".join(lines), [], b"", 0
    while lines and (match := _FORWARDED_PAIR.match(text, at)):
        name, value, end = match.groups()
        if name is not None and name.lower() == b"for":
            address = value.strip(b'"')
        if end != b";":
            addresses.append(address)
            address = b""
        if not end:
            return addresses
        at = match.end()
    return [b""] if lines else []


def _parse_address(text: str) -> IpAddress | None:
    """Return an address that may have a port behind it; None if there is none."""
    host = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    host = host.partition(":")[0] if host.count(":") == 1 else host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_confined(address: str) -> bool:
    """Whether a confined server of this gateway connects from this address."""
    return address.endswith(CONFINED_HOST)  # behind ::ffff: at a listener for both versions of IP


def paths_of(endpoint: EndpointSpec) -> dict[bytes, Route]:
    """Return the routes of an endpoint, by path."""
    name = endpoint.name
    kinds = {"mcp": MCP}
    if endpoint.sse:
        kinds |= {"sse": SSE, "messages": MESSAGES}
    if endpoint.rest:
        kinds |= {"api": API, "api/": API}
    paths = {f"{endpoint.base}/{last}".encode(): Route(name, kind) for last, kind in kinds.items()}
    if endpoint.default:
        paths |= {f"/{last}".encode(): Route(name, kind) for last, kind in kinds.items()}
    if endpoint.oauth is not None:
        resource_paths = [path for path, route in paths.items() if route.kind in (MCP, SSE)]
        ours = endpoint.oauth.metadata.partition(RESOURCE_METADATA)[2].encode()
        there = {RESOURCE_METADATA.encode() + path for path in (ours, *resource_paths)}
        paths |= dict.fromkeys(there, Route(name, METADATA))
    return paths


class RequestFacts:
    """Facts about a request that passed. Values of headers are stripped of blanks; an absent header
    is None. `repeated`: a routing header that came more than once.
    `prefers_sse`: the client prefers a stream to JSON. `directory`: folder that the client works
    in, if it says so.

    The other facts are not set for a POST of MCP. `rest`: the part of the path below a route that
    leads to a whole tree; `query`: the part behind the question mark; both as they came. `resume`:
    the header Last-Event-ID. `principal`: who sends the request, as the door found.
    """

    __slots__ = (
        "accepts_sse", "directory", "endpoint", "kind", "method", "name", "prefers_sse",
        "principal", "query", "repeated", "rest", "resume", "session", "version",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: str,
        *,
        accepts_sse: bool,
        version: bytes | None = None,
        session: bytes | None = None,
        method: bytes | None = None,
        name: bytes | None = None,
        repeated: bytes = b"",
        resume: bytes | None = None,
        kind: str = MCP,
        rest: bytes = b"",
        query: bytes = b"",
        prefers_sse: bool = False,
        directory: str = "",
        principal: Principal = USER,
    ) -> None:
        self.endpoint = endpoint
        self.accepts_sse = accepts_sse
        self.version = version
        self.session = session
        self.method = method
        self.name = name
        self.repeated = repeated
        self.resume = resume
        self.kind = kind
        self.rest = rest
        self.query = query
        self.prefers_sse = prefers_sse
        self.directory = directory
        self.principal = principal


class KnownVerdict:
    """Result of `HeaderPolicy.check` that is kept with a head."""

    __slots__ = ("found", "policy")

    def __init__(self, policy: "HeaderPolicy", verdict: RequestFacts | Denial) -> None:
        self.policy = policy
        self.found = verdict


class HeaderPolicy:
    """Header policy of one configuration. `hosts`: as in `request_head.Hosts`; `paths`: the route
    of each path. A path that ends with a slash leads there with everything below it, and any other
    path also with a slash at its end. `unlocked`:
    endpoints that ask for no credential."""

    def __init__(
        self, hosts: Iterable[str], paths: Mapping[bytes, Route], unlocked: Collection[str] = ()
    ) -> None:
        self._hosts = Hosts(hosts)
        self._unlocked = unlocked
        self._paths = dict(paths)
        self._trees = {path: route for path, route in paths.items() if path.endswith(b"/")}
        # A client sends the same values each time, so nearly every verdict is known already.
        self._verdict = functools.lru_cache(VERDICTS_KEPT)(self._judge)

    def facts(self, request: HttpRequest) -> RequestFacts | Denial:
        """Return the result of `check` for this request, or the refusal of a confined server. A
        head that comes again on its connection is not checked again."""
        head = request.head
        earlier = head.verdict
        if isinstance(earlier, KnownVerdict) and earlier.policy is self:
            return earlier.found
        verdict = self.check(head.method, head.target, head.headers)
        if is_confined(request.address):
            verdict = self._of_confined(verdict)
        head.verdict = KnownVerdict(self, verdict)
        return verdict

    def _of_confined(self, verdict: RequestFacts | Denial) -> RequestFacts | Denial:
        """Return the refusal of a confined server where it has no credential; it gets no page that
        names endpoints, either."""
        if verdict.endpoint in self._unlocked:
            return Denial(403, _CONFINED, "confined", endpoint=verdict.endpoint)
        if isinstance(verdict, Denial) and verdict.reason == "path":
            return Denial(verdict.status, verdict.message, "confined")
        return verdict

    def check(self, method: str, target: bytes, headers: Headers) -> RequestFacts | Denial:
        """Return a refusal for the first rule that the request breaks, or its facts."""
        by_name = dict(headers)
        repeated = b""
        if len(by_name) != len(headers):
            by_name, repeated = _merge_headers(headers)
            if repeated in _SINGLE:
                name = repeated.decode().title()
                return Denial(400, f"The header {name} came more than once.", "repeated_header")
        get = by_name.get
        verdict = self._verdict(
            method, target, get(b"host"), get(b"origin"), get(b"content-type"), get(b"accept")
        )
        if isinstance(verdict, Denial):
            return verdict
        if method == "POST" and not _length_ok(get(b"content-length")):
            return too_large(verdict[0].endpoint)
        route, accepts_sse, prefers_sse, subpath, query = verdict
        version, session = get(b"mcp-protocol-version"), get(b"mcp-session-id")
        routed, subject = get(b"mcp-method"), get(b"mcp-name")
        facts = RequestFacts(
            route.endpoint,
            accepts_sse=accepts_sse,
            version=version and version.strip(BLANKS),
            session=session and session.strip(BLANKS),
            method=routed and routed.strip(BLANKS),
            name=subject and subject.strip(BLANKS),
            repeated=repeated,
            prefers_sse=prefers_sse,
            directory=_directory(get(DIRECTORY)),
        )
        if route.kind != MCP or method != "POST":
            facts.kind, facts.rest, facts.query = route.kind, subpath, query
            facts.resume = get(b"last-event-id")
        return facts

    def _judge(
        self,
        method: str,
        target: bytes,
        host: bytes | None,
        origin: bytes | None,
        content_type: bytes | None,
        accept: bytes | None,
    ) -> "Denial | Verdict":
        """Return the refusal of a request, or the verdict on a request that passes."""
        refusal = self._check_caller(host, origin)
        if refusal is not None:
            return refusal
        path, _, query = target.partition(b"?")
        if not target.startswith(b"/"):
            absolute = _ABSOLUTE.fullmatch(target)
            if absolute is None or _host(absolute["authority"]) != _host(host or b""):
                return Denial(400, "The request target names another host than Host.", "target")
            path, _, query = absolute["rest"].partition(b"?")
        route, subpath = self._route(path)
        if route is None:
            return Denial(404, _NOTHING_HERE, "path")
        if method not in METHODS[route.kind]:
            allow = ", ".join(METHODS[route.kind])
            message = f"The method {method} is not served here; use {METHODS[route.kind][0]}."
            headers = ((b"allow", allow.encode()),)
            return Denial(405, message, "method", headers=headers, endpoint=route.endpoint)
        accepts_json, accepts_sse = parse_accept(b"*/*" if accept is None else accept)
        prefers_sse = accepts_sse and prefers_stream(accept or b"")
        if method == "POST":
            if not is_json(content_type or b""):
                message = "The Content-Type must be application/json."
                return Denial(415, message, "content_type", endpoint=route.endpoint)
            # A POST for a stream of HTTP+SSE is answered on the stream, so it needs no JSON.
            if not accepts_json and route.kind != MESSAGES:
                message = "Accept must allow application/json and text/event-stream."
                return Denial(406, message, "accept", endpoint=route.endpoint)
        return route, accepts_sse, prefers_sse, subpath, query

    def _route(self, path: bytes) -> tuple[Route | None, bytes]:
        """Return the route of a path, None if it has none, and the rest of the path below it."""
        route = self._paths.get(path)
        if route is not None:
            return route, b""
        for tree, leads in self._trees.items():
            if path.startswith(tree):
                return leads, path[len(tree) :]
        return self._paths.get(path.removesuffix(b"/")), b""

    def _check_caller(self, host: bytes | None, origin: bytes | None) -> Denial | None:
        if host is None:
            return Denial(400, "The Host header is missing.", "host")
        authority = place_of(host)
        if authority is None:
            return Denial(400, "The Host header is malformed.", "host")
        if not self._hosts.allow(authority):
            name = _format_authority(authority)
            message = f"This gateway does not answer to the name {name}; {_ALLOW}."
            return Denial(421, message, "host_foreign")
        if origin is not None:
            authority = origin_place(origin)
            if authority is None or not self._hosts.allow(authority):
                who = _format_authority(authority) if authority else "this Origin"
                message = f"Pages of {who} may not use this gateway; {_ALLOW}."
                return Denial(403, message, "origin")
        return None


def _host(value: bytes) -> bytes | None:
    authority = place_of(value)
    return authority[0] if authority else None


def _format_authority(authority: Place) -> str:
    return authority[0].decode()


def origin_place(value: bytes) -> Place | None:
    """Return host and port of an Origin; None for a value that is not a web origin, as `null`."""
    match = _ORIGIN.fullmatch(value.strip(BLANKS))
    return place_of(match["authority"]) if match else None


def parse_accept(value: bytes) -> tuple[bool, bool]:
    """Return whether this Accept header allows JSON, and whether it allows server-sent events."""
    kinds: set[bytes] = set()
    for item in value.lower().split(b","):
        kind, *parameters = (piece.strip(b" \t") for piece in item.split(b";"))
        if not any(
            re.fullmatch(rb"q[ \t]*=[ \t]*0(?:\.0*)?", parameter) for parameter in parameters
        ):
            kinds.add(kind)
    return (
        not kinds.isdisjoint({b"application/json", b"application/*", b"*/*"}),
        not kinds.isdisjoint({b"text/event-stream", b"text/*", b"*/*"}),
    )


def prefers_stream(value: bytes) -> bool:
    """Whether this Accept header names server-sent events before JSON. Weights are ignored; the
    order shows what the client prefers."""
    kinds = [item.partition(b";")[0].strip(BLANKS) for item in value.lower().split(b",")]
    events, json = b"text/event-stream", b"application/json"
    return events in kinds and (json not in kinds or kinds.index(events) < kinds.index(json))


def is_json(value: bytes) -> bool:
    """Whether this Content-Type is exactly application/json, and its charset, if named, UTF-8."""
    return _JSON.fullmatch(value.strip(BLANKS)) is not None


def too_large(endpoint: str | None = None, bytes_max: int = BODY_BYTES_MAX) -> Denial:
    message = f"The body has more than {bytes_max} bytes."
    return Denial(413, message, "too_large", close=True, endpoint=endpoint)


def _directory(value: bytes | None) -> str:
    """Return the path in the header `DIRECTORY`; empty if it is not a usable path of a folder."""
    path = "" if value is None else unquote(value.strip(BLANKS).decode("latin-1"))
    return path if roots.fit(path) else ""


def _length_ok(value: bytes | None) -> bool:
    if value is None:
        return True
    digits = _DIGITS.fullmatch(value.strip(BLANKS))
    return digits is not None and int(digits[0]) <= BODY_BYTES_MAX


def _merge_headers(headers: Headers) -> tuple[dict[bytes, bytes], bytes]:
    """Return the headers, and the worst of the repeated ones. An Accept header may come in several
    pieces, which are joined."""
    merged: dict[bytes, bytes] = {}
    repeated = b""
    for name, value in headers:
        if name not in merged:
            merged[name] = value
        elif name == b"accept":
            merged[name] += b"," + value
        elif name in _SINGLE or (name in _ROUTING and repeated not in _WORST):
            repeated = name
    return merged, repeated


def is_telling(target: bytes, header_refusal: Denial) -> bool:
    """Whether this refusal could show which endpoints there are."""
    if header_refusal.reason in BEFORE_PATH:
        return False
    return header_refusal.endpoint is not None or path_and_query(target)[0].startswith(_OURS)
