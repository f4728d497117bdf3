"""Which runs there are: the revision of the client, the era of the server, and what is between.

The suite's client never falls back, so a pair of eras is made by pinning the fixture to one.
"""

from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from typing import Literal

LEGACY, MODERN = "2025-11-25", "2026-07-28"
Era = Literal["legacy", "modern", "both"]
Transport = Literal["stdio", "http"]
Endpoint = Literal["bare", "aggregate"]

ERA_OF: dict[str, Era] = {LEGACY: "legacy", MODERN: "modern"}

#: What the fixture is reached by behind a gateway.
TRANSPORTS: tuple[Transport, ...] = ("stdio", "http")

#: An endpoint with the fixture alone, and one with two other servers beside it.
ENDPOINTS: tuple[Endpoint, ...] = ("bare", "aggregate")

#: Scenarios of an extension belong to no revision; the suite plays them in the one of 2026.
TASKS = tuple(
    f"tasks-{name}"
    for name in (
        "lifecycle", "capability-negotiation", "wire-fields", "request-state-removal",
        "mrtr-input", "request-headers", "dispatch-and-envelope", "required-task-error",
        "mrtr-composition",
    )
)  # fmt: skip

#: What the suite asks of a client beside authorization, in the revision in which it asks it.
CLIENT_SCENARIOS: dict[str, tuple[str, ...]] = {
    LEGACY: (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ),
    MODERN: (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}

_AUTH = tuple(
    f"auth/{name}"
    for name in (
        "metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd",
        "scope-from-www-authenticate", "scope-from-scopes-supported",
        "scope-omitted-when-undefined", "scope-step-up", "scope-retry-limit",
        "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none",
        "pre-registration",
    )
)  # fmt: skip

#: What it asks of a client that gets itself authorized. Not among them are the extensions that the
#: gateway has not: clients with a key of their own (`client-credentials-jwt`), identity providers
#: (`enterprise-managed-authorization`, `wif-jwt-bearer`), tokens bound to a key (`dpop`,
#: `dpop-nonce`).
AUTH_SCENARIOS: dict[str, tuple[str, ...]] = {
    "2025-03-26": (
        "auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback",
    ),
    LEGACY: _AUTH,
    MODERN: (
        *_AUTH, "auth/resource-mismatch", "auth/offline-access-scope",
        "auth/offline-access-not-supported", "auth/authorization-server-migration",
        "auth/iss-supported", "auth/iss-not-advertised", "auth/iss-supported-missing",
        "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized",
        "auth/metadata-issuer-mismatch", "auth/client-credentials-basic",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Direct:
    """The fixture without a gateway: what can be reached at all."""

    revision: str
    scenarios: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{'tasks' if self.scenarios else self.revision}/direct"

    @property
    def lane(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Behind:
    """The fixture behind a gateway."""

    revision: str
    era: Era
    transport: Transport
    endpoint: Endpoint
    scenarios: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        of = "tasks" if self.scenarios else self.revision
        return f"{of}/{self.era}/{self.transport}/{self.endpoint}"

    @property
    def served(self) -> str:
        """The gateway's name for this fixture: one for each revision of the client, because calls
        that clients of one left behind could be the cause of what is asked of the other. What
        serves both eras is there once, and each client is to be served in its own."""
        if self.era == "both":
            return f"{self.transport}-both"
        return f"{self.transport}-{self.era}-{self.revision[:4]}"

    @property
    def lane(self) -> str:
        """A run changes the lists of its server, which another would notice; tasks have none."""
        return self.name if self.scenarios else self.served

    @property
    def at(self) -> str:
        """The gateway's name for this endpoint."""
        return f"{self.served}-{self.endpoint}"

    @property
    def same_era(self) -> bool:
        return self.era in (ERA_OF[self.revision], "both")

    @property
    def guesses(self) -> bool:
        """Whether only its other calls tell to whom a question of the server belongs."""
        return self.transport == "stdio" and self.era == "legacy" and not self.same_era

    @property
    def direct(self) -> Direct:
        return Direct(self.revision, self.scenarios)


@dataclass(frozen=True, slots=True)
class Played:
    """A server of the suite behind a gateway, and a client of ours before it."""

    revision: str
    era: Era
    scenarios: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.revision}/client/{'auth' if self.scenarios else self.era}"


Cell = Direct | Behind | Played


def every() -> list[Cell]:
    """All that can be run now."""
    direct: list[Cell] = [Direct(LEGACY), Direct(MODERN), Direct(MODERN, TASKS)]
    behind: list[Cell] = [
        Behind(revision, era, transport, endpoint)
        for transport, era, endpoint, revision in product(
            TRANSPORTS, ERA_OF.values(), ENDPOINTS, ERA_OF
        )
    ]
    behind += [Behind(revision, "both", way, "bare") for way in TRANSPORTS for revision in ERA_OF]
    tasks: list[Cell] = [Behind(MODERN, "modern", way, "aggregate", TASKS) for way in TRANSPORTS]
    played: list[Cell] = [Played(revision, era) for revision in ERA_OF for era in ERA_OF.values()]
    authorized: list[Cell] = [
        Played(revision, ERA_OF.get(revision, "legacy"), scenarios)
        for revision, scenarios in AUTH_SCENARIOS.items()
    ]
    return [*direct, *behind, *tasks, *played, *authorized]


def chosen(patterns: list[str]) -> list[Cell]:
    """The cells whose name fits one of the patterns, as in a shell; all of them without patterns.

    A `*` fits any number of the parts of a name.
    """
    if not patterns:
        return every()
    return [cell for cell in every() if any(fnmatch(cell.name, one) for one in patterns)]
