"""Choice of the process of a server that serves a client.

Owns: what the supervisor says about the processes of servers, the choice by the words for a client
(`process_names`), and reports to the supervisor about the clients of processes that are not for
all; the numbers (`frames.CallFrame.peer`) and words of clients without a session (`Peers`). Never:
the form of words, asking a client for its roots (`dialogue`, `mrtr`), starting a process.

Requests of one principal to one endpoint with the same identity count as one client: a legacy
server on a pipe does not say in which call it asks a question, so the question goes to the only
client that it can mean.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct, structs

from metamcp_worker.ipc import frames, process_names
from metamcp_worker.ipc.messages import ServerState, ServerWanted, Tenant
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX, By
from metamcp_worker.ipc.roots import Asked

CALLER_BYTES_MAX = 8192
"""Maximum bytes that a client says of itself; a client that says more counts as one that can be
asked nothing."""
TENANTS_MAX = 4096
"""Maximum number of processes whose clients are remembered; beyond that all are forgotten and
reported again."""


class ProcessClient(Protocol):
    """Client for which a process is chosen. `who`: word for the client, empty if it does not say
    who it is; `rooted`: word for the client with its roots, empty if it has none; `project`: word
    for all clients with the same roots or in the same folder, empty if it has neither. `unasked`:
    the client has to be asked for its roots before these are known. `caller`: raw JSON that the
    client says of itself; `roots`: raw answer to `roots/list` with the client's roots, or with the
    folder that it works in, empty if none are known; `modern`: the client has no session."""

    who: str
    rooted: str
    project: str
    unasked: bool
    caller: bytes

    @property
    def roots(self) -> bytes: ...

    @property
    def modern(self) -> bool: ...


class RootsUnknown(Exception):
    """Raised if the client has to be asked for its roots before its process is known."""


class _ProcessSplit(Struct, frozen=True):
    by: By
    roots: Asked
    both: bool


class _Tenancy(Struct):
    """Clients of one process. `tenant`: the newest; `told`: words for the clients that the
    supervisor knows."""

    tenant: Tenant
    told: set[str]


class ServerProcesses:
    """Processes of all servers. `tell`: sends to the supervisor; `apart`: servers that have
    processes for one client each, or for the clients of one era."""

    def __init__(self, tell: Callable[[ServerWanted], None]) -> None:
        self._tell = tell
        self.apart: dict[str, _ProcessSplit] = {}
        self._tenancies: dict[str, _Tenancy] = {}

    def learn(self, news: ServerState) -> None:
        if news.by or news.roots or news.both:
            self.apart[news.server] = _ProcessSplit(news.by, news.roots, news.both)
        else:
            self.apart.pop(news.server, None)

    def forget(self, server: str) -> None:
        """Forget a server that is not configured any more, or a process that has ended."""
        self.apart.pop(server, None)
        if server in self._tenancies:
            self._tenancies[server].told.clear()

    def find(self, server: str, client: ProcessClient, *, calls: bool = False) -> str:
        """Return the name of the process for this client. `calls`: the request can wait until the
        client was asked for its roots. Raises Unasked then."""
        apart = self.apart.get(server)
        if apart is None:
            return server
        if calls and client.unasked and self._needs_roots_first(apart, client):
            raise RootsUnknown
        rooted = self._needs_roots_first(apart, client) and client.rooted
        if apart.by == "project":
            word = client.project
        elif apart.by == "client":
            word = rooted or client.who
        else:
            word = client.project if rooted else ""
        if word:
            name = process_names.own(server, word)
            self._host(name, client, several=apart.by != "client")
            return name
        earlier = apart.both and process_names.has_session(client.who)
        return process_names.own(server, process_names.LEGACY) if earlier else server

    def asks_first(self, servers: Iterable[str], client: ProcessClient) -> bool:
        """Whether the client has to be asked for its roots before it may call any of these
        servers."""
        apart = (self.apart[server] for server in servers if server in self.apart)
        return client.unasked and any(self._needs_roots_first(rule, client) for rule in apart)

    def _needs_roots_first(self, apart: _ProcessSplit, client: ProcessClient) -> bool:
        """Whether the roots of this client must be known before its call. A server that asks for
        roots itself during the call, as every server does in the later era, does not need them
        before."""
        if apart.by == "project":
            return True
        return apart.roots == "ahead" and not (apart.both and client.modern)

    def heir(self, process: str) -> str:
        """Return the process that serves the clients of `process`: the server itself, if `process`
        is for an era that the server turned out not to speak."""
        base = process_names.base(process)
        apart = self.apart.get(base)
        both = apart is not None and apart.both
        return (
            process if both or process_names.parse_client(process) != process_names.LEGACY else base
        )

    def request_process(self, server: str) -> None:
        """Ask the supervisor for this process, which does not run, because a call needs it."""
        tenancy = self._tenancies.get(server)
        self._tell(ServerWanted(server=server, tenant=None if tenancy is None else tenancy.tenant))

    def update_roots(self, client: ProcessClient) -> list[str]:
        """Return the processes that serve this client alone and want its roots. From now on the
        supervisor gets these roots when such a process is to start."""
        names = [
            process_names.own(name, client.who) for name, rule in self.apart.items() if rule.roots
        ]
        processes = [name for name in names if name in self._tenancies]
        for name in processes:
            tenancy = self._tenancies[name]
            tenancy.tenant = structs.replace(tenancy.tenant, roots=client.roots.decode())
        return processes

    def _host(self, name: str, client: ProcessClient, *, several: bool) -> None:
        """Note that this process is to serve this client. If the process may have other clients
        too, the supervisor learns of each client, so that the process ends with the last of
        them."""
        tenancy = self._tenancies.get(name)
        if tenancy is not None and client.who in tenancy.told:
            return
        tenant = _tenant(client, several=several)
        if tenancy is None:
            if len(self._tenancies) >= TENANTS_MAX:
                self._tenancies.clear()
            tenancy = self._tenancies[name] = _Tenancy(tenant, set())
        tenancy.tenant = tenant
        tenancy.told.add(client.who)
        if several:
            self._tell(ServerWanted(server=name, tenant=tenant))


def _tenant(client: ProcessClient, *, several: bool) -> Tenant:
    """Return the client of a process. `several`: the process may have more clients, which can do
    other things, so nothing that this one says of itself counts there."""
    caller = client.caller if len(client.caller) <= CALLER_BYTES_MAX else b"{}"
    caller = b"" if several else caller
    return Tenant(
        who=client.who, caller=caller.decode(), roots=client.roots.decode(), modern=client.modern
    )


FIRST = 2**31
"""First number of these clients; sessions have the numbers below."""
PEERS_MAX = 4096
"""Maximum number of known clients; beyond this limit all are forgotten and get new numbers."""


class ModernClient(Struct, frozen=True, gc=False):
    """Client without a session. `number`: as in `frames.CallFrame.peer`; `who`: its word
    (`process_names`)."""

    number: int = 0
    who: str = ""


NOBODY = ModernClient()
"""Client of a request that stands alone."""


class Peers:
    """Known clients of one front."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes], ModernClient] = {}
        self._next = itertools.count(FIRST)

    def find(self, principal: str, endpoint: str, identity: bytes) -> ModernClient:
        """Return the client. `identity`: raw JSON that the client sends about itself in each
        request; empty if it does not identify itself, and then the result is `NOBODY`."""
        key = (principal, endpoint, identity)
        peer = self._known.get(key)
        if peer is not None:
            return peer
        if not identity or len(identity) > IDENTITY_BYTES_MAX:
            return NOBODY
        if len(self._known) >= PEERS_MAX:
            self._known.clear()
        number = FIRST + next(self._next) % FIRST
        peer = self._known[key] = ModernClient(number, process_names.of_client(*key))
        return peer


assert 2 * FIRST - 1 <= frames.NUMBER_MAX  # the largest number has its place in a frame
