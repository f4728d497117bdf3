"""Path of a call of a tool, step by step, without making the call.

Owns: the words about each step that a front knows: name, server, override, view, credential,
limits, policies, consent, middleware. Never: making a call (`calls` of the front), the state of a
server (the supervisor).
"""

from collections.abc import Iterator

from msgspec import Raw, Struct

from metamcp_worker.access import gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.access.use_limits import Meters
from metamcp_worker.catalog import offers
from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.guard.conditions import PolicyTarget
from metamcp_worker.guard.guard_rules import CallFacts, CallVerdict, GuardRules
from metamcp_worker.guard.policies import CLOSED
from metamcp_worker.ipc import codec, disclosure
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.figures import CallPath, PathStep, PolicyValue

NAMES_MAX = 5000
"""Maximum names in an answer about a name that no tool has."""
CALL = "tools/call"


class HypotheticalCall(Struct, frozen=True):
    """Call that would be made. `name`: as clients know the tool, or `server.tool`; `arguments`:
    raw, empty if they are not known; `now`: seconds of a clock that never jumps; `date`: since the
    epoch."""

    name: str
    principal: Principal
    arguments: bytes
    now: float
    date: float


def explain(
    view: View, everything: MergedCatalog, call: HypotheticalCall, meters: Meters, rules: GuardRules
) -> CallPath:
    """Return the path of a call as far as a front knows it. `everything`: all that is behind the
    endpoint, in view or not; `rules`: those for its clients."""
    endpoint = view.whole
    name, owner = _find_owner(view, everything, call.name)
    if owner is None:
        names = tuple(everything.tools)[:NAMES_MAX]
        return CallPath(endpoint=endpoint, names=names)
    tool = codec.text(owner.original) or name
    if not owner.server:
        steps = [PathStep("name", f"{name} is a tool of the gateway itself"), *_gate(call)]
        return CallPath(endpoint=endpoint, server="metamcp", tool=tool, steps=tuple(steps))
    guard = None if owner.guard is None else owner.guard.find_guard("tools", tool)
    raw = next((entry.item.raw for entry in everything.offered if entry.key == name), b"")
    thing = PolicyTarget("tools", owner.server, tool, raw if guard is None else guard.raw)
    facts = _facts(view, owner, call, name)
    verdict = CallVerdict() if guard is None else guard.decide(facts)
    has_facts = call.arguments != b"" or (guard is not None and guard.is_hidden)
    values = rules.values(thing, facts if has_facts else None)
    steps = [
        *_iter_view_steps(view, everything, name, tool, owner), *_gate(call),
        _limit(call, endpoint, owner, meters), *_policy(call, verdict, values),
    ]  # fmt: skip
    if guard is not None and guard.consent != "allow":
        asks_text = "[consent] asks a person, unless a grant holds"
        text = asks_text if guard.consent == "ask" else "[consent] denies it"
        steps.append(PathStep("consent", text, guard.consent == "deny"))
    else:
        asks = verdict.effect == "ask"
        steps.append(PathStep("consent", "a person is asked" if asks else "not needed"))
    if guard is not None and guard.middleware:
        steps.append(PathStep("middleware", ", ".join(guard.middleware)))
    return CallPath(
        endpoint=endpoint, server=owner.server, tool=tool, steps=tuple(steps), policies=values,
        decides=verdict.policy, effect=verdict.effect,
    )  # fmt: skip


def _find_owner(view: View, everything: MergedCatalog, name: str) -> tuple[str, Owner | None]:
    """Return the owner of a name, and the name as clients know it."""
    merged = view.merged
    owner = merged.tools.get(name) or merged.aliases.get(name) or everything.tool_named(name)
    if owner is not None:
        return name, owner
    pair = disclosure.read(name)
    for exposed, each in everything.tools.items():
        if pair == (each.server, codec.text(each.original)):
            return exposed, each
    return name, None


def _iter_view_steps(
    view: View, everything: MergedCatalog, name: str, tool: str, owner: Owner
) -> Iterator[PathStep]:
    """Yield the steps up to the view."""
    alias = name not in everything.tools and name in everything.aliases
    yield PathStep("name", f"{name} is {'an alias of ' if alias else ''}{owner.server}.{tool}")
    changed = [
        word
        for word, yes in (
            ("arguments are fixed or have defaults", owner.mend is not None),
            ("another definition", any(
                override.server == owner.server and override.tool == tool
                for override in view.spec.overrides
            )),
        )
        if yes
    ]  # fmt: skip
    yield PathStep("override", ", ".join(changed) or "none")
    listed = any(entry.key == name for entry in view.merged.lists["tools"])
    reached = name in view.merged.tools or name in view.merged.aliases
    if owner.kept or owner.invalid:
        yield PathStep("view", owner.kept or owner.invalid, stops=True)
    elif listed:
        yield PathStep("view", "in the list")
    else:
        absence = "in no list" if (owner.server, tool) in everything.hidden else "not in view"
        text = (
            f"{absence}, and can be called"
            if reached
            else f"{absence}, and only what is in view can"
        )
        yield PathStep("view", text, stops=not reached)


def _gate(call: HypotheticalCall) -> Iterator[PathStep]:
    who = call.principal
    caller = "the user of this machine" if who is gate.USER else who.label or who.name
    try:
        gate.authorize(who, "", CALL, call.name)
    except ProtocolError as error:
        yield PathStep("gate", error.message, stops=True)
    else:
        yield PathStep("gate", f"{caller} may call tools")


def _limit(call: HypotheticalCall, endpoint: str, owner: Owner, meters: Meters) -> PathStep:
    meter_key = call.principal.key, endpoint, owner.server, call.now, call.date
    reached = meters.find_limit(*meter_key) if meters.any else None
    if reached is not None:
        return PathStep("limits", reached.message, stops=True)
    return PathStep("limits", "within all" if meters.any else "none")


def _facts(view: View, owner: Owner, call: HypotheticalCall, name: str) -> CallFacts:
    arguments = call.arguments or b"{}"
    if owner.mend is not None:
        params = offers.fill_arguments({"arguments": Raw(arguments)}, owner.mend)
        arguments = bytes(params["arguments"])
    return CallFacts(
        exposed=name, arguments=arguments, principal=call.principal,
        endpoint=view.endpoint, workspace=view.spec.workspace,
    )  # fmt: skip


def _policy(
    call: HypotheticalCall, verdict: CallVerdict, values: tuple[PolicyValue, ...]
) -> Iterator[PathStep]:
    """Yield the steps about policies, each rule with its value."""
    if not values and verdict.why != CLOSED:
        yield PathStep("policies", "none concerns it")
        return
    for policy_value in values:
        mode = ", permissive" if policy_value.mode == "permissive" else ""
        yield PathStep(
            "policy", f"{policy_value.policy} ({policy_value.effect}{mode}): {policy_value.value}"
        )
    if (
        not call.arguments
        and verdict.effect != "ask"
        and any(_open(policy_value) for policy_value in values)
    ):
        yield PathStep("policies", "depends on the call; give --args")
    elif verdict.policy or verdict.why == CLOSED:
        reason = f"{verdict.policy} decides" if verdict.policy else CLOSED
        yield PathStep("policies", f"{verdict.effect}: {reason}", stops=verdict.effect == "deny")
    else:
        yield PathStep("policies", "allow")


def _open(policy_value: PolicyValue) -> bool:
    return (
        policy_value.value == "at the call"
        and policy_value.mode == "enforce"
        and policy_value.effect != "log"
    )
