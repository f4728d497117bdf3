"""Policies: what the rules of the configuration say of a thing in a list, and of a call.

Owns: the rules that concern a server and a name, found once; the order of their effects; what they
say when lists are made (`PolicyRuling`), and at a call (`PolicyVerdict`). Never: the language of
conditions (`conditions`), asking, the audit, views, calls.

A rule that denies wins over one that asks, and that one over one that allows. If a rule allows
something of a kind, all else of that kind is denied. A rule that fails is a deny. A permissive rule
decides nothing and is only counted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from metamcp_worker.guard import conditions
from metamcp_worker.guard.conditions import (
    KINDS,
    CallContext,
    Condition,
    ConditionError,
    PolicySubject,
    PolicyTarget,
    ThingKind,
    Variables,
)
from metamcp_worker.ipc import process_names, resource_uris
from metamcp_worker.ipc.figures import PolicyValue
from metamcp_worker.ipc.spec import EndpointSpec, PolicySpec, PrincipalFacts

if TYPE_CHECKING:
    import cel

KNOWN_MAX = 65_536
"""Maximum values of one rule that are kept, one for each thing that it distinguishes."""
SERVERS_MAX = 4096
"""Maximum servers whose rules are kept; a configuration has fewer."""
DENIED: Final = "The policy '{}' denies this call."
CLOSED: Final = "No policy allows this call."
FAILED: Final = "The policy '{}' fails for this call, which is denied; its operator sees why."
UNCLEAR: Final = "The policy '{}' cannot judge this call: in its arguments {}."
FORMLESS: Final = (
    "The policies of this gateway cannot judge this URI, which has no normal form; write it as RFC"
    " 3986 and RFC 8089 say."
)
AT_CALL: Final = "at the call"
OUTCOMES: Final = ("denied", "asked", "logged", "failed", "would_deny", "would_ask", "would_allow")
"""Outcomes that are counted of a rule; `would_…` of a permissive one."""
_ORDER: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2}
_WILD = re.compile(r"[*?\[]")


class PolicyNote(Struct, frozen=True, gc=False):
    """PolicyRule that is counted. `outcome`: one of OUTCOMES; `why`: of a failure, a sentence."""

    policy: str
    outcome: str
    why: str = ""


class PolicyVerdict(Struct, frozen=True):
    """Decision about a call. `effect`: `allow`, `deny` or `ask`; `policy`: the rule that decides,
    empty if none does; `message`: for the client; `notes`: rules that are counted."""

    effect: str = "allow"
    policy: str = ""
    message: str = ""
    notes: tuple[PolicyNote, ...] = ()


ALLOWED: Final = PolicyVerdict()


class PolicyRule:
    """PolicyRule of the configuration that is ready to run. Raises ExpressionError."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.condition: Condition | None = conditions.parse(spec.when) if spec.when else None
        self.kinds: tuple[ThingKind, ...] = self.condition.kinds if self.condition else KINDS
        self.late = self.condition is not None and self.condition.needs_call
        self.allows = spec.effect == "allow" and spec.mode == "enforce"
        self._order = tuple(sorted(self.condition.reads)) if self.condition else ()
        self._known: dict[tuple[object, ...], bool | ConditionError] = {}

    def evaluate_without_call(
        self, facts: Mapping[str, object], variables: Variables
    ) -> bool | ConditionError:
        """Return the value of a rule that does not need the call, or why it fails. The same value
        counts for all things that the rule cannot distinguish."""
        if self.condition is None:
            return True
        key = tuple([facts.get(name) for name in self._order])
        value = self._known.get(key)
        if value is None:
            value = self.value(variables.build_list_context())
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = value
        return value

    def value(
        self, variables: "cel.Context", unread: Mapping[str, str] = MappingProxyType({})
    ) -> bool | ConditionError:
        """Return the value for a call, or why it fails. `unread`: see `conditions.Variables.of`."""
        try:
            return self.condition is None or self.condition.value(variables, unread)
        except ConditionError as error:
            return error.with_traceback(None)


class _Tally:
    """Decision in the making. `verdict`: a decision to begin with."""

    def __init__(self, verdict: PolicyVerdict = ALLOWED) -> None:
        self.allowed = False
        self._decides = verdict
        self._notes = verdict.notes

    def add(self, rule: PolicyRule, value: bool | ConditionError) -> None:
        """Add the value of a rule, or why it fails."""
        if value is False:
            return
        spec, fails = rule.spec, value if isinstance(value, ConditionError) else None
        reason = "" if fails is None else str(fails)
        effect = "deny" if reason else spec.effect
        permissive = spec.mode == "permissive"
        outcome = (
            "failed" if reason
            else "logged" if effect == "log"
            else f"would_{effect}" if permissive
            else {"deny": "denied", "ask": "asked"}.get(effect, "")
        )  # fmt: skip
        if outcome:
            self._notes = (*self._notes, PolicyNote(spec.name, outcome, reason))
        if permissive or (effect == "log" and not reason):
            return
        if effect == "allow":
            self.allowed = True
        elif _ORDER[effect] > _ORDER[self._decides.effect]:
            denied = spec.message or DENIED.format(spec.name)
            if fails is not None:
                unclear = UNCLEAR.format(spec.name, fails.unclear)
                denied = unclear if fails.unclear else FAILED.format(spec.name)
            message = denied if effect == "deny" else spec.message
            self._decides = PolicyVerdict(effect, spec.name, message)

    def verdict(self, *, closed: bool) -> PolicyVerdict:
        """Return the decision. `closed`: some rule has to allow it."""
        verdict = self._decides
        if closed and not self.allowed and verdict.effect != "deny":
            verdict = PolicyVerdict("deny", "", CLOSED)
        return structs.replace(verdict, notes=self._notes)


class PolicyRuling:
    """Part of the verdict that is known when lists are made. `verdict`: by the rules that do not
    need the call; `late`: the others; `hidden`: whether lists leave the thing out, because no call
    of it can be allowed. Calls of a thing whose name has no normal form are denied; lists have it
    if a rule that knows its name as it is does not hide it: templates have no normal form."""

    __slots__ = ("_closed", "_variables", "hidden", "late", "verdict")

    def __init__(
        self,
        rules: Sequence[PolicyRule],
        facts: Mapping[str, object],
        *,
        closed: bool,
        formless: bool = False,
    ) -> None:
        """Judge a thing. `rules`: those that concern it; `closed`: whether some rule has to allow
        it; `formless`: its name has no normal form."""
        tally, self._variables = _Tally(), _variables(rules, facts)
        self.late = tuple(rule for rule in rules if rule.late)
        for rule in rules:
            if not rule.late:
                tally.add(rule, rule.evaluate_without_call(facts, self._variables))
        self._closed = closed and not tally.allowed
        hopeless = self._closed and not any(rule.allows for rule in self.late)
        self.verdict = tally.verdict(closed=hopeless)
        self.hidden = self.verdict.effect == "deny"
        if formless and not self.hidden:
            self.verdict, self.late = PolicyVerdict("deny", "", FORMLESS), ()

    def __eq__(self, other: object) -> bool:
        """Whether both are of the same rules, and say the same."""
        if not isinstance(other, PolicyRuling):
            return NotImplemented
        return (self.verdict, self.late) == (other.verdict, other.late)

    __hash__ = None  # type: ignore[assignment]  # - it is never a key

    def decide(self, call: CallContext) -> PolicyVerdict:
        """Return the decision about a call."""
        if not self.late or self.hidden:
            return self.verdict
        tally = _Tally(self.verdict)
        variables, unread = self._variables.of(call)
        for rule in self.late:
            tally.add(rule, rule.value(variables, unread))
        return tally.verdict(closed=self._closed)


def _variables(rules: Iterable[PolicyRule], facts: Mapping[str, object]) -> Variables:
    return Variables(facts, (rule.condition for rule in rules if rule.condition is not None))


class _ServerRules:
    """Rules that concern a server, by their positions in the configuration. `every`: whatever the
    name; `exact`: by name; `general`: by a pattern of names."""

    def __init__(self, server: str, rules: Sequence[PolicyRule]) -> None:
        self.every: set[int] = set()
        self.exact: dict[str, set[int]] = {}
        self.general: list[tuple[re.Pattern[str], int]] = []
        names = {server, process_names.label(server)}
        for at, rule in enumerate(rules):
            for glob in rule.spec.match:
                server_glob, _, name = glob.partition("/")
                if not any(fnmatchcase(server_name, server_glob) for server_name in names):
                    continue
                if name == "*":
                    self.every.add(at)
                    continue
                for spelled in {name, resource_uris.normal_glob(name)}:
                    if _WILD.search(spelled):
                        self.general.append((re.compile(translate(spelled)), at))
                    else:
                        self.exact.setdefault(spelled, set()).add(at)

    def all(self) -> set[int]:
        """Return the positions of all rules that concern some name."""
        return self.every.union(*self.exact.values(), (at for _, at in self.general))

    def of(self, name: str) -> list[int]:
        """Return the positions of the rules that concern this name, in their order."""
        positions = self.every | self.exact.get(name, set())
        positions.update(at for pattern, at in self.general if pattern.match(name))
        return sorted(positions)


class Policies:
    """Rules of a configuration. `reads`: what they read of a principal, of `id`, `name` and
    `scopes`; `reads_where`: the variables of the endpoint. Raises ExpressionError for a condition
    that was not checked."""

    def __init__(self, specs: Sequence[PolicySpec] = ()) -> None:
        self.specs = tuple(specs)
        self._rules = tuple(map(PolicyRule, specs))
        self._closed = frozenset(kind for rule in self._rules if rule.allows for kind in rule.kinds)
        self._servers: dict[str, _ServerRules] = {}
        read = {name for rule in self._rules if rule.condition for name in rule.condition.reads}
        self.reads = tuple(
            field for field in PrincipalFacts.__struct_fields__ if f"principal.{field}" in read
        )
        self.reads_where = frozenset({"endpoint.name", "endpoint.namespace"} & read)

    def subject(self, endpoint: EndpointSpec) -> PolicySubject:
        """Return who asks at an endpoint, and where, as far as the rules read it: clients with the
        same see the same."""
        who = PrincipalFacts(**{name: getattr(endpoint.who, name) for name in self.reads})
        return PolicySubject(
            who,
            endpoint.workspace,
            endpoint.name if "endpoint.name" in self.reads_where else "",
            endpoint.namespace if "endpoint.namespace" in self.reads_where else "",
        )

    def find_ruling(self, thing: PolicyTarget, subject: PolicySubject) -> PolicyRuling | None:
        """Return what is known of a thing when lists are made; None if the rules let every call of
        it through, without a word."""
        if not self._rules:
            return None
        closed = thing.kind in self._closed
        named = _normal(thing)
        formless = named is None and (closed or self._judges(thing))
        rules = self._find_rules(named or thing)
        if not rules and not closed and not formless:
            return None
        facts = conditions.facts(named or thing, subject)
        ruling = PolicyRuling(rules, facts, closed=closed, formless=formless)
        return ruling if ruling.late or ruling.verdict != ALLOWED else None

    def concern(self, server: str) -> bool:
        """Whether a rule could concern something of this server."""
        return bool(self._closed) or bool(self._of(server).all())

    def values(
        self, thing: PolicyTarget, subject: PolicySubject, call: CallContext | None = None
    ) -> Iterator[PolicyValue]:
        """Yield the value of each rule that concerns a thing, in the order of the configuration.
        `call`: None if none is known."""
        thing = _normal(thing) or thing
        facts, rules = conditions.facts(thing, subject), self._find_rules(thing)
        variables = _variables(rules, facts)
        for rule in rules:
            spec = rule.spec
            if not rule.late:
                value = _format_value(rule.evaluate_without_call(facts, variables))
            else:
                value = AT_CALL if call is None else _format_value(rule.value(*variables.of(call)))
            yield PolicyValue(spec.name, spec.effect, spec.mode, spec.when, value)

    def _find_rules(self, thing: PolicyTarget) -> list[PolicyRule]:
        rules = (self._rules[at] for at in self._of(thing.server).of(thing.name))
        return [rule for rule in rules if thing.kind in rule.kinds]

    def _judges(self, thing: PolicyTarget) -> bool:
        """Whether a rule could concern a thing of this kind and server."""
        return any(thing.kind in self._rules[at].kinds for at in self._of(thing.server).all())

    def _of(self, server: str) -> _ServerRules:
        server_rules = self._servers.get(server)
        if server_rules is None:
            if len(self._servers) >= SERVERS_MAX:
                self._servers.clear()
            server_rules = self._servers[server] = _ServerRules(server, self._rules)
        return server_rules


def _normal(thing: PolicyTarget) -> PolicyTarget | None:
    """Return a thing by the normal form of its name; None if it has none. Only names of resources
    have several forms."""
    if thing.kind != "resources":
        return thing
    name = resource_uris.normal_uri(thing.name)
    return None if name is None else structs.replace(thing, name=name)


def _format_value(value: bool | ConditionError) -> str:
    return f"fails: {value}" if isinstance(value, ConditionError) else str(value).lower()
