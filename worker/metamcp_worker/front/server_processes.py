"""Which process of a server serves which client.

Owns: what the supervisor says of that, the choice by the words for a client (`process_names`), and
what the supervisor is told of the clients of processes that are not for all. Never: the words,
asking a client for its roots (`dialogue`), starting anything.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, structs

from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.messages import ServerState, Tenant, Wanted
from metamcp_worker.ipc.process_names import By
from metamcp_worker.ipc.roots import Asked

CALLER_BYTES_MAX = 8192
"""Of what a client says of itself; with more it counts as one that can be asked nothing."""
TENANTS_MAX = 4096
"""Processes whose clients are remembered; beyond that all are forgotten and told anew."""


class ProcessClient(Protocol):
    """A client. `who`: the word for it, empty if it does not say who it is; `rooted`: the one for
    it as a client that has roots, empty if it has none; `project`: the one for its project, empty
    if it has none. `unasked`: what it has of these is not known before it was asked for its roots.
    `caller`: raw JSON of what it says of itself; `roots`: its own, or the folder that it works in,
    as a raw answer to `roots/list`, empty if none are known; `modern`: it has no session."""

    who: str
    rooted: str
    project: str
    unasked: bool
    caller: bytes

    @property
    def roots(self) -> bytes: ...

    @property
    def modern(self) -> bool: ...


class Unasked(Exception):
    """The client has to be asked for its roots before it is known which process serves it."""


class _Apart(Struct, frozen=True):
    by: By
    roots: Asked
    both: bool


class _Tenancy(Struct):
    """`tenant`: the newest of one process; `told`: the words of those that the supervisor knows."""

    tenant: Tenant
    told: set[str]


class ServerProcesses:
    """Of all servers. `tell`: the supervisor."""

    def __init__(self, tell: Callable[[Wanted], None]) -> None:
        self._tell = tell
        self._apart: dict[str, _Apart] = {}
        self._tenancies: dict[str, _Tenancy] = {}

    def learn(self, news: ServerState) -> None:
        if news.by or news.roots or news.both:
            self._apart[news.server] = _Apart(news.by, news.roots, news.both)
        else:
            self._apart.pop(news.server, None)

    def forget(self, server: str) -> None:
        """It is not configured any more, or nothing is left of this process."""
        self._apart.pop(server, None)
        if server in self._tenancies:
            self._tenancies[server].told.clear()

    def find(self, server: str, client: ProcessClient, *, calls: bool = False) -> str:
        """The name of the process. `calls`: for a request that can wait until the client was asked
        for its roots. Raises Unasked then."""
        apart = self._apart.get(server)
        if apart is None:
            return server
        if calls and client.unasked and self._ahead(apart, client):
            raise Unasked
        if apart.by == "project":
            word = client.project
        elif apart.by == "client":
            word = (self._ahead(apart, client) and client.rooted) or client.who
        else:
            word = client.rooted if self._ahead(apart, client) else ""
        if word:
            name = process_names.own(server, word)
            self._host(name, client, several=apart.by == "project")
            return name
        earlier = apart.both and process_names.has_session(client.who)
        return process_names.own(server, process_names.LEGACY) if earlier else server

    def _ahead(self, apart: _Apart, client: ProcessClient) -> bool:
        """Have the roots of this client to be known before its call? Not if its server asks by
        itself while it has the call, as every one does in the later era."""
        if apart.by == "project":
            return True
        return apart.roots == "ahead" and not (apart.both and client.modern)

    def heir(self, process: str) -> str:
        """The process that serves those for whom this one was meant: another one, if it is the one
        of an era that its server turned out not to speak."""
        base = process_names.base(process)
        apart = self._apart.get(base)
        both = apart is not None and apart.both
        return process if both or process_names.whose(process) != process_names.LEGACY else base

    def wanted(self, server: str) -> None:
        """A call asks for this process, which does not run."""
        tenancy = self._tenancies.get(server)
        self._tell(Wanted(server=server, tenant=None if tenancy is None else tenancy.tenant))

    def rooted(self, client: ProcessClient) -> list[str]:
        """The processes that serve this client alone and want its roots, which are told from now
        on when one of them is to start."""
        names = [
            process_names.own(name, client.who) for name, one in self._apart.items() if one.roots
        ]
        found = [name for name in names if name in self._tenancies]
        for name in found:
            tenancy = self._tenancies[name]
            tenancy.tenant = structs.replace(tenancy.tenant, roots=client.roots.decode())
        return found

    def _host(self, name: str, client: ProcessClient, *, several: bool) -> None:
        """This process is to serve this client. If it may have other clients too, the supervisor
        is told of each, so that it ends with the last of them."""
        tenancy = self._tenancies.get(name)
        if tenancy is not None and client.who in tenancy.told:
            return
        tenant = _tenant(client)
        if tenancy is None:
            if len(self._tenancies) >= TENANTS_MAX:
                self._tenancies.clear()
            tenancy = self._tenancies[name] = _Tenancy(tenant, set())
        tenancy.tenant = tenant
        tenancy.told.add(client.who)
        if several:
            self._tell(Wanted(server=name, tenant=tenant))


def _tenant(client: ProcessClient) -> Tenant:
    said = client.caller if len(client.caller) <= CALLER_BYTES_MAX else b"{}"
    return Tenant(
        who=client.who, caller=said.decode(), roots=client.roots.decode(), modern=client.modern
    )
