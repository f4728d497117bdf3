"""Rules about calls, compiled once: which tools, prompts and resources they concern, and how.

Owns: matching names against the globs of rules, the guard of one thing (`CallGuard`), the verdict
on one call (`CallVerdict`). Never: carrying a verdict out (`held_calls`), asking a person
(`consent`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Literal

from msgspec import Struct

from metamcp_worker.access.gate import Principal
from metamcp_worker.guard.conditions import CallContext, PolicySubject, PolicyTarget, ThingKind
from metamcp_worker.guard.policies import Policies, PolicyNote, PolicyRuling, PolicyVerdict
from metamcp_worker.ipc import codec, process_names, resource_uris
from metamcp_worker.ipc.consent_records import rules_mark
from metamcp_worker.ipc.figures import PolicyValue
from metamcp_worker.ipc.middleware_calls import MiddlewareSpec
from metamcp_worker.ipc.spec import (
    ConsentSpec,
    EndpointSpec,
    GuardEffect,
    PolicySpec,
    PrincipalFacts,
)

KINDS: Mapping[str, ThingKind] = {
    "tools/call": "tools",
    "prompts/get": "prompts",
    "resources/read": "resources",
}
"""Methods that can be guarded, with the kind of thing that each is about."""
CallSource = Literal["client", "code", "agent", "workflow"]


class CallFacts(Struct, frozen=True, kw_only=True, gc=False):
    """Facts about one call. `exposed`: name or URI as the client knows it; `arguments`: raw, as the
    server gets them; `who`: the word for the client or session; `client`: raw JSON that the client
    says of itself, empty for none; `modern`: it has no session; `state`: of a request that brings
    the input that its server asked for, else None."""

    exposed: str
    arguments: bytes
    principal: Principal
    endpoint: str
    workspace: str
    who: str = ""
    client: bytes = b""
    modern: bool = True
    source: CallSource = "client"
    state: bytes | None = None


class CallVerdict(Struct, frozen=True, gc=False):
    """Verdict on one call. `why`: a sentence for the client that is refused, or asked; `policy`:
    the one that decides; `notes`: policies that are counted."""

    effect: GuardEffect = "allow"
    why: str = ""
    policy: str = ""
    notes: tuple[PolicyNote, ...] = ()


_ALLOWED = CallVerdict()
NO_POLICIES = Policies()
LOCAL = PolicySubject(PrincipalFacts())
NAMES_MAX = 4096
"""Maximum guards that are kept of things that no list has."""
FAILURES_MAX = 4096
"""Maximum failures that are reported; clients may call any name, and each is another sentence."""


class CallGuard(Struct, frozen=True, gc=False):
    """Guard of one thing of a server. `kind`: one of the values of KINDS; `name`: the server's own
    name; `raw`: the definition, `digest`: its hash; `consent`: effect of `[consent]`; `policy`:
    what policies say of it; `middleware`: names of the middleware that its calls go through, from
    the outside in. A guard without a name is for all things of the server that no list has
    (`find_guard`)."""

    rules: "GuardRules"
    server: str
    kind: ThingKind | Literal[""] = ""
    name: str = ""
    digest: bytes = b""
    consent: GuardEffect = "allow"
    policy: PolicyRuling | None = None
    raw: bytes = b""
    middleware: tuple[str, ...] = ()

    @property
    def definition(self) -> str:
        """Hash of kind, name and definition, in hexadecimal."""
        name = f"{self.kind}\0{self.name}\0".encode("utf-8", "surrogatepass")
        return hashlib.sha256(name + self.digest).hexdigest()

    @property
    def annotations(self) -> bytes:
        """Raw annotations of a tool; `null` for none."""
        return _annotations(self.raw)

    @property
    def asks(self) -> bool:
        """Whether no call gets through without consent."""
        return self.consent == "ask" and self.rules.consent.unaskable != "allow"

    @property
    def path(self) -> str:
        """Name for people: `server/name`."""
        return f"{self.server}/{self.name}"

    @property
    def is_hidden(self) -> bool:
        """Whether lists leave the thing out."""
        return self.policy is not None and self.policy.hidden

    @property
    def denies(self) -> bool:
        """Whether policies deny each call of the thing."""
        return self.policy is not None and self.policy.verdict.effect == "deny"

    def find_guard(self, kind: ThingKind, name: str) -> "CallGuard | None":
        """Return the guard of the thing with this name; None if no rule concerns it."""
        return self if self.name else self.rules.guard_unlisted(kind, self.server, name)

    def decide(self, facts: CallFacts) -> CallVerdict:
        """Return the verdict on a call: the stricter one of consent and policies."""
        verdict = PolicyVerdict()
        if self.policy is not None:
            verdict = self.policy.decide(CallContext(facts.arguments, facts.client, facts.source))
        if verdict.effect == "deny":
            return CallVerdict("deny", verdict.message, verdict.policy, verdict.notes)
        if self.consent == "deny":
            message = f"The rules of this gateway do not allow {self.path}."
            return CallVerdict("deny", message, notes=verdict.notes)
        if verdict.effect == "ask":
            return CallVerdict("ask", verdict.message, verdict.policy, verdict.notes)
        if self.consent == "allow" and not verdict.notes:
            return _ALLOWED
        return CallVerdict(self.consent, notes=verdict.notes)


class GuardRules:
    """Rules of one configuration, for these clients. `mark`: as of
    `consent_records.rules_mark`."""

    def __init__(
        self,
        consent: ConsentSpec,
        policies: Policies = NO_POLICIES,
        subject: PolicySubject = LOCAL,
        *,
        middleware: Sequence[MiddlewareSpec] = (),
    ) -> None:
        self.consent = consent
        self.policies = policies
        self.subject = subject
        self.middleware = tuple(middleware)
        self._through = [
            (spec.name, re.compile("|".join(map(translate, spec.match)))) for spec in middleware
        ]
        self.failures: dict[str, PolicyNote] = {}
        """Policies that failed for a thing while lists were built, by a sentence about that."""
        self._named: dict[tuple[ThingKind, str, str], CallGuard | None] = {}
        self._others: dict[PolicySubject, GuardRules] = {}
        self.mark = rules_mark(consent, policies.specs)
        self._strict = consent.hints or any(rule.effect != "allow" for rule in consent.rules)
        effects: list[GuardEffect] = [rule.effect for rule in consent.rules for _ in rule.match]
        self._effects = effects
        globs = [glob for rule in consent.rules for glob in rule.match]
        self._globs = re.compile("|".join(f"({translate(glob)})" for glob in globs))

    def like(
        self,
        consent: ConsentSpec,
        policies: tuple[PolicySpec, ...],
        middleware: tuple[MiddlewareSpec, ...],
    ) -> bool:
        """Whether these are the rules of this configuration."""
        same = self.consent == consent and self.policies.specs == policies
        return same and self.middleware == middleware

    def at(self, endpoint: EndpointSpec) -> "GuardRules":
        """Return the rules as they are for the clients of an endpoint; the same object each
        time."""
        subject = self.policies.subject(endpoint)
        if subject == self.subject:
            return self
        if subject not in self._others:
            self._others[subject] = GuardRules(
                self.consent, self.policies, subject, middleware=self.middleware
            )
        return self._others[subject]

    def guard(
        self, kind: ThingKind, server: str, name: str, definition: bytes = b"", digest: bytes = b""
    ) -> CallGuard | None:
        """Return the guard of a thing; None if no rule concerns its calls. `name`: the server's
        own; `definition`: raw JSON, `digest`: its hash, both empty for a thing in no list."""
        effect = self._consent(server, name, definition) if kind == "tools" else "allow"
        thing = PolicyTarget(kind, server, name, definition)
        ruling = self.policies.find_ruling(thing, self.subject)
        through = self._middleware(server, kind, name) if self._through else ()
        if effect == "allow" and ruling is None and not through:
            return None
        for note in () if ruling is None else ruling.verdict.notes:
            if note.why and len(self.failures) < FAILURES_MAX:
                self.failures[f"policy '{note.policy}' fails for {server}/{name}: {note.why}"] = (
                    note
                )
        return CallGuard(self, server, kind, name, digest, effect, ruling, definition, through)

    def rest(self, server: str) -> CallGuard | None:
        """Return the guard of all things of a server that no list has; None if no rule could
        concern one of them."""
        may_concern = self._strict or self._through or self.policies.concern(server)
        return CallGuard(self, server) if may_concern else None

    def values(self, thing: PolicyTarget, facts: CallFacts | None) -> tuple[PolicyValue, ...]:
        """Return the value of each policy that concerns a thing. `facts`: None if no call is
        known."""
        call = None
        if facts is not None:
            call = CallContext(facts.arguments, facts.client, facts.source)
        return tuple(self.policies.values(thing, self.subject, call))

    def hides(self, kind: ThingKind, server: str, name: str) -> bool:
        """Whether lists leave out something other than a tool."""
        guard = self.guard_unlisted(kind, server, name) if self.policies.specs else None
        return guard is not None and guard.is_hidden

    def guard_unlisted(self, kind: ThingKind, server: str, name: str) -> CallGuard | None:
        """Return the guard of a thing that no list has, and keep it for the next call."""
        key = kind, server, name
        if key not in self._named:
            if len(self._named) >= NAMES_MAX:
                self._named.clear()
            self._named[key] = self.guard(*key)
        return self._named[key]

    def _middleware(self, server: str, kind: ThingKind, name: str) -> tuple[str, ...]:
        """Return the middleware of a thing; a resource matches by each spelling of its URI."""
        paths = process_names.paths(server, name)
        if kind == "resources":
            normal = resource_uris.normal_uri(name) or name
            paths |= process_names.paths(server, normal)
        return tuple(
            middleware for middleware, globs in self._through if any(map(globs.match, paths))
        )

    def _consent(self, server: str, name: str, definition: bytes) -> GuardEffect:
        """Return the effect of the first rule that matches. Annotations of a tool, which its server
        made up, can make it stricter; only those of a trusted server can also make it milder."""
        if not self._strict:
            return "allow"
        effect = self._find_effect(server, name)
        trusted = effect == "ask" and server in self.consent.trusted
        if not trusted and not (effect == "allow" and self.consent.hints):
            return effect
        return "allow" if _only_reads(definition) else "ask"

    def _find_effect(self, server: str, name: str) -> GuardEffect:
        """Return the effect of the first rule with a glob for this name. A server of a workspace
        matches under its full name and under the name that it has there."""
        paths = process_names.paths(server, name)
        groups = [at.lastindex for path in paths if (at := self._globs.fullmatch(path))]
        matched = [group for group in groups if group]
        return self._effects[min(matched) - 1] if matched else "allow"


def _annotations(definition: bytes) -> bytes:
    """Return the raw annotations of a tool; `null` for none."""
    return bytes(codec.members(definition).get("annotations", b"null"))


def _only_reads(definition: bytes) -> bool:
    """Whether a tool says that it changes nothing."""
    hints = codec.members(_annotations(definition))
    destroys = bytes(hints.get("destructiveHint", b"")) == b"true"
    return bytes(hints.get("readOnlyHint", b"")) == b"true" and not destroys
