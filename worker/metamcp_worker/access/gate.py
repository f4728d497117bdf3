"""The one gate: which principal may send which message.

Owns: the principal of a request (`Principal`), the scopes, the table of methods with the scope that
each needs, the decision before anything is listed or routed, parts of endpoints for credentials
that see less than others (`EndpointParts`). Never: finding out who the principal is (`door`),
finding the owner of a name.

A principal reaches an endpoint only through the door, which compares workspaces. Here the scopes
count. The user of this machine, from whom no credential is asked, may do everything; for all others
a method without a row in the table does not exist.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct, structs

from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.spec import ALL_SCOPES, EndpointSpec, FrontSpec, PrincipalFacts

LOCAL = "local"
"""Name of the principal of clients from whom no credential is asked: the user of this machine."""
SCOPES = ALL_SCOPES
"""Scopes that a credential can have; `mcp:call:SERVER` is `mcp:call` for one server alone."""
LIST, CALL, READ, PROMPT, SUBSCRIBE, META = SCOPES
ANY = ""
"""Scope that every principal has."""
WHO_CHARACTERS = 12
"""Characters of the hash of what policies know of a principal, in the name of a part: 48 bits."""
CALL_OF = f"{CALL}:"
"""Prefix of the scope for one server."""
ANSWER = ""
"""In the table: an answer to a question, which has no method."""

#: Scope that a message of each method needs.
TABLE: Mapping[str, str] = {
    ANSWER: ANY,
    "initialize": ANY,
    "ping": ANY,
    "server/discover": ANY,
    "logging/setLevel": ANY,
    "notifications/initialized": ANY,
    "notifications/cancelled": ANY,
    "notifications/progress": ANY,
    "notifications/roots/list_changed": ANY,
    "tools/list": LIST,
    "prompts/list": LIST,
    "resources/list": LIST,
    "resources/templates/list": LIST,
    "tools/call": CALL,
    "metamcp/get_catalog": LIST,
    "metamcp/suggest_workflow": CALL,
    "tasks/get": CALL,
    "tasks/list": CALL,
    "tasks/result": CALL,
    "tasks/update": CALL,
    "tasks/cancel": CALL,
    "resources/read": READ,
    "resources/directory/read": READ,
    "skills/list": LIST,
    "skills/get": READ,
    "prompts/get": PROMPT,
    "completion/complete": PROMPT,
    "resources/subscribe": SUBSCRIBE,
    "resources/unsubscribe": SUBSCRIBE,
    "subscriptions/listen": SUBSCRIBE,
}


EXTENSIONS = frozenset({"skills"})
"""Beginnings of methods beyond the protocol that the table has; of others, credentials get none."""


class Principal(Struct, frozen=True, kw_only=True):
    """Sender of a request. `name`: owner of views, sessions and handles; `workspace`: the only one
    that it may use, empty for any; `scopes`: granted ones, None for all; `servers`: the only ones
    that it sees, by the names that clients know, None for all; `key`: id of the API key, empty
    without one; `auth`: `none`, `keys` or `oauth`; `expires`: seconds since the epoch at which the
    credential ends, 0 for never; `held`: all scopes of a token; `label`: name of the API key."""

    name: str
    workspace: str = ""
    scopes: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    key: str = ""
    auth: str = "none"
    expires: float = 0.0
    held: frozenset[str] = frozenset()
    label: str = ""


USER = Principal(name=LOCAL)
"""The user of this machine."""


class ScopeMissing(ProtocolError):
    """Raised for a message that needs a scope which the credential does not have. `scope`: that
    one; `held`: those of a token, which its client asks for again together with the missing one."""

    def __init__(self, scope: str, method: str, held_scopes: Collection[str] = ()) -> None:
        super().__init__(
            Code.INVALID_REQUEST, f"{method} needs the scope {scope}, which this credential lacks."
        )
        self.scope = scope
        self.held = held_scopes

    def challenge(self, metadata: str = "") -> tuple[bytes, bytes]:
        """Header of the answer 403 (RFC 6750, section 3). `metadata`: URL of the document about the
        endpoint, if it takes tokens."""
        value = challenge('error="insufficient_scope"', {*self.held, self.scope}, metadata)
        return b"www-authenticate", value


def challenge(error: str, scopes: Collection[str], metadata: str) -> bytes:
    """Return the value of `WWW-Authenticate` (RFC 6750, section 3; RFC 9728, section 5.1)."""
    words = ['Bearer realm="metamcp"', error]
    words.append(f'scope="{" ".join(sorted(scopes))}"' if scopes else "")
    words.append(f'resource_metadata="{metadata}"' if metadata else "")
    return ", ".join(filter(None, words)).encode()


def authorize(principal: Principal, endpoint: str, method: str, subject: str) -> None:
    """Raise ProtocolError unless `principal` may send `method` about `subject` (a name, a URI or
    nothing) to `endpoint`: ScopeMissing if a further scope would help."""
    if principal is USER:
        return
    needed = TABLE.get(method)
    if needed is None:
        raise ProtocolError(Code.METHOD_NOT_FOUND, f"Unknown method: {method[:64]}")
    check_scope(principal, needed, method)


def check_scope(principal: Principal, scope: str, operation: str) -> None:
    """Raise ScopeMissing unless the principal has the scope. `operation`: the method or tool
    that needs it."""
    if scope and principal.scopes is not None and scope not in principal.scopes:
        raise ScopeMissing(scope, operation, principal.held)


PARTS_MAX = 256
"""Maximum parts of endpoints, one for each endpoint, set of servers that credentials have, and
facts about principals that policies read."""


class EndpointPart(Struct, frozen=True):
    """Part of an endpoint, for some principals. `servers`: those of the endpoint that they see,
    None for all; `who`: what policies tell them from others by, None if they do not; `reads`: the
    facts that policies read."""

    endpoint: str
    servers: frozenset[str] | None
    who: PrincipalFacts | None = None
    reads: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of it as an endpoint; endpoints have no brackets in their names, servers no
        commas."""
        servers = "*" if self.servers is None else ",".join(sorted(self.servers))
        if self.who is None:
            return f"{self.endpoint}[{servers}]"
        digest = hashlib.sha256(codec.dump([self.who, self.reads])).hexdigest()[:WHO_CHARACTERS]
        return f"{self.endpoint}[{servers};{digest}]"

    def of(self, endpoint: EndpointSpec) -> EndpointSpec:
        """Return the endpoint as these principals see it."""
        part_spec = structs.replace(
            endpoint, name=self.name, path=endpoint.path or endpoint.name, part_of=endpoint.name
        )
        if self.servers is not None:
            seen = tuple(
                server for server in endpoint.servers if process_names.label(server) in self.servers
            )
            part_spec = structs.replace(part_spec, servers=seen)
        return part_spec if self.who is None else structs.replace(part_spec, who=self.who)


class EndpointParts:
    """Parts of the endpoints of a front. `reads`: what policies read of a principal."""

    def __init__(self) -> None:
        self.reads: tuple[str, ...] = ()
        self._parts: dict[str, EndpointPart] = {}

    def __contains__(self, endpoint_part: EndpointPart) -> bool:
        return endpoint_part.name in self._parts

    def join_parts(self, spec: FrontSpec, reads: tuple[str, ...]) -> FrontSpec:
        """Return the configuration with the parts that clients use. `reads`: what its policies read
        of a principal; parts for other policies end."""
        self.reads = reads
        endpoints = {endpoint.name: endpoint for endpoint in spec.endpoints if not endpoint.part_of}
        self._parts = {
            name: endpoint_part
            for name, endpoint_part in self._parts.items()
            if endpoint_part.endpoint in endpoints and endpoint_part.reads == reads
        }
        parts = [
            endpoint_part.of(endpoints[endpoint_part.endpoint])
            for endpoint_part in self._parts.values()
        ]
        return structs.replace(spec, endpoints=(*endpoints.values(), *parts))

    def of(self, endpoint: EndpointSpec, principal: Principal) -> EndpointPart | None:
        """Return the part of an endpoint that a principal sees; None if that is the endpoint."""
        servers = None if principal.servers is None else select_servers(endpoint, principal.servers)
        if servers is None and (not self.reads or principal is USER):
            return None
        facts = {name: getattr(facts_of(principal), name) for name in self.reads}
        who = PrincipalFacts(**facts) if facts else None
        return EndpointPart(endpoint.name, servers, who, self.reads)

    def add(self, endpoint_part: EndpointPart, used: Callable[[], Collection[str]]) -> bool:
        """Add a part, in place of parts that are not used, if all places are taken; False if
        they still are. `used`: returns the names of the parts that clients use now."""
        if len(self._parts) >= PARTS_MAX:
            names = used()
            self._parts = {
                name: used_part for name, used_part in self._parts.items() if name in names
            }
        if len(self._parts) >= PARTS_MAX:
            return False
        self._parts[endpoint_part.name] = endpoint_part
        return True


def facts_of(principal: Principal) -> PrincipalFacts:
    """Return what policies know of a principal."""
    scopes = SCOPES if principal.scopes is None else tuple(sorted(principal.scopes))
    return PrincipalFacts(id=principal.name, name=principal.label or principal.name, scopes=scopes)


def whole_name(name: str) -> str:
    """Return the name of the whole endpoint, also for the name of a part."""
    return name.partition("[")[0]


def select_servers(endpoint: EndpointSpec, servers: frozenset[str]) -> frozenset[str]:
    """Return those of these servers that the endpoint has; credentials may name any others."""
    return servers.intersection(map(process_names.label, endpoint.servers))


def admitting_alike(
    before: Mapping[str, EndpointSpec], now: Mapping[str, EndpointSpec]
) -> frozenset[str]:
    """Return the endpoints of `now` that ask for the same credentials as before, or are new."""

    def select_auth_fields(endpoint: EndpointSpec) -> tuple[object, ...]:
        return endpoint.workspace, endpoint.auth, endpoint.keys, endpoint.url_keys, endpoint.oauth

    return frozenset(
        name
        for name, endpoint in now.items()
        if select_auth_fields(before.get(name, endpoint)) == select_auth_fields(endpoint)
    )


def parse_scopes(
    scopes: Collection[str],
) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """Return the scopes and the servers of a credential with these scopes; None for all. Scopes
    that are not known grant nothing."""
    if not scopes:
        return None, None
    servers = frozenset(
        scope.removeprefix(CALL_OF) for scope in scopes if scope.startswith(CALL_OF)
    )
    known_scopes = frozenset(scope for scope in scopes if scope in SCOPES)
    if CALL in known_scopes or not servers:
        return known_scopes, None
    return known_scopes | {CALL}, servers
