"""Table of the control socket's verbs, from name to function.

Owns: the verbs' parameters, their limits, the role that each needs, and which exit code of `ctl`
stands for which refusal.
Never: the socket and its lines (`control`), carrying orders out (the gateway, by `GatewayControl`).

The code of an error answer is the exit code that `metamcp ctl` ends with (`verbs.Exit`), except for
the errors of JSON-RPC itself.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pkgutil import resolve_name

from msgspec import Struct, structs

from metamcp_supervisor.backoff import EntryRateLimiter
from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.control import (
    access,
    config_orders,
    describe,
    follow,
    path_orders,
    set_signal,
    tool_orders,
    toolsets,
)
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import ConsoleSession
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    NoParams,
    NotNow,
    ReloadRefused,
    UnknownName,
    Verb,
    find_servers,
    unsaved_warning,
)
from metamcp_supervisor.features import all_features
from metamcp_supervisor.verbs import (
    VERSION,
    Exit,
    Expire,
    KeyChanged,
    KeyOrder,
    NewKey,
    Revoke,
    Rotate,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, MetaMCPError, ProtocolError
from metamcp_worker.ipc.figures import PathQuery, ToolQuery


class ServerNames(ChangeParams, frozen=True):
    names: tuple[str, ...]


class Reload(ChangeParams, frozen=True):
    dry_run: bool = False
    expect: str | None = None
    yes: bool = False


class StopParams(ServerNames, frozen=True):
    """Parameters of `stop`. `this_run`: the next start of the gateway starts the servers again."""

    this_run: bool = False


class QuarantineParams(ServerNames, frozen=True):
    """Parameters of `quarantine`. `why`: reason that people are shown."""

    why: str = ""


class CallsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `calls`. `slow_s`: only calls that have taken so many seconds."""

    names: tuple[str, ...] = ()
    slow_s: float = 0.0


class EndpointsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Endpoints to show; all of them without names."""

    names: tuple[str, ...] = ()


class RestartParams(ServerNames, frozen=True):
    """Parameters of `restart`. `worker`: worker that these servers share, which is started again,
    too."""

    worker: str = ""


class NameParams(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


async def _status(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    return gateway.status()


async def _start(gateway: GatewayControl, line: ControlStream, params: ServerNames) -> object:
    servers = find_servers(gateway, params.names)
    # A server that runs already counts as it is; the others only after a new start.
    above = {s.name: s.generation for s in servers if s.state not in {"ready", "active"}}
    _record(gateway, line, params.names, "start")
    gateway.start(params.names)
    return {"v": VERSION, "names": params.names, "above": above, **await unsaved_warning(gateway)}


async def _stop(gateway: GatewayControl, line: ControlStream, params: StopParams) -> object:
    find_servers(gateway, params.names)
    _record(gateway, line, params.names, "stop")
    gateway.stop(params.names, "" if params.this_run else line.caller)
    return {"v": VERSION, "names": params.names, "above": {}, **await unsaved_warning(gateway)}


async def _restart(gateway: GatewayControl, line: ControlStream, params: RestartParams) -> object:
    above = {s.name: s.generation for s in find_servers(gateway, params.names)}
    _record(gateway, line, params.names, "restart")
    gateway.restart(params.names, params.worker)
    return {"v": VERSION, "names": params.names, "above": above, **await unsaved_warning(gateway)}


async def _drain(gateway: GatewayControl, line: ControlStream, params: ServerNames) -> object:
    for server in find_servers(gateway, params.names):
        if server.phase != "ready":
            raise ProtocolError(
                Exit.SERVER_NOT_RUNNING, f"{server.name} is {server.state}: nothing goes there"
            )
    _record(gateway, line, params.names, "drain")
    gateway.drain(params.names, line.caller, yes=True)
    return {"v": VERSION, "names": params.names, **await unsaved_warning(gateway)}


async def _undrain(gateway: GatewayControl, line: ControlStream, params: ServerNames) -> object:
    find_servers(gateway, params.names)
    _record(gateway, line, params.names, "undrain")
    gateway.drain(params.names, line.caller, yes=False)
    return {"v": VERSION, "names": params.names, **await unsaved_warning(gateway)}


async def _quarantine(
    gateway: GatewayControl, line: ControlStream, params: QuarantineParams
) -> object:
    find_servers(gateway, params.names)
    _record(gateway, line, params.names, "quarantine")
    gateway.quarantine(params.names, params.why or "an operator put it there", line.caller)
    return {"v": VERSION, "names": params.names, **await unsaved_warning(gateway)}


async def _clear(gateway: GatewayControl, line: ControlStream, params: ServerNames) -> object:
    for server in find_servers(gateway, params.names):
        if server.phase != "quarantined":
            raise ProtocolError(Exit.FAILED, f"{server.name} is {server.state}, not in quarantine")
    _record(gateway, line, params.names, "clear")
    gateway.start(params.names)
    return {"v": VERSION, "names": params.names, **await unsaved_warning(gateway)}


async def _roll(gateway: GatewayControl, line: ControlStream, params: ChangeParams) -> object:
    gateway.journal.add("gateway", "roll", f"asked by {line.caller}")
    await gateway.roll()
    return {"v": VERSION}


async def _stacks(gateway: GatewayControl, line: ControlStream, params: NameParams) -> object:
    return {"v": VERSION, "name": params.name, "stacks": await gateway.stacks(params.name)}


async def _upgrade(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    gateway.journal.add("gateway", "upgrade", f"asked by {line.caller}")
    await gateway.upgrade(lambda facts: line.push("upgrading", facts))
    raise AssertionError("another program runs")


async def _reload(gateway: GatewayControl, line: ControlStream, params: Reload) -> object:
    if not params.dry_run:
        gateway.journal.add("gateway", "reload", f"asked by {line.caller}")
    return await gateway.reload(params.dry_run, params.expect, params.yes)


class KeysWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `keys`. `names`: ids or names of the keys to show; empty means all, in the
    order of their ids, as many as an answer has, that come after the id `after`."""

    names: tuple[str, ...] = ()
    after: str = ""


class KeysChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `keys-change`."""

    order: KeyOrder


class PepperRotation(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `keys-rotate-pepper`. `grace`: until the keys before it end, as `24h`."""

    grace: str


_DONE: dict[type[Struct], str] = {
    NewKey: "created", Rotate: "rotated", Expire: "expired", Revoke: "revoked",
}  # fmt: skip


async def _keys(gateway: GatewayControl, line: ControlStream, params: KeysWanted) -> object:
    try:
        return await gateway.keys.list_keys(params.names, params.after)
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None


async def _key_use(gateway: GatewayControl, line: ControlStream, params: NameParams) -> object:
    try:
        use = await gateway.keys.read_key_use(params.name)
        key = (await gateway.keys.list_keys([params.name])).keys[0].id
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    ours = sum(session.key == key for session in gateway.sessions.all())
    return structs.replace(use, sessions=use.sessions + ours)


async def _keys_change(gateway: GatewayControl, line: ControlStream, params: KeysChange) -> object:
    try:
        changed = await gateway.keys.carry_out_order(params.order, line.caller)
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    gateway.on_keys_changed()
    action = _DONE[type(params.order)]
    gateway.journal.add("gateway", "keys", f"{changed.id} {action} by {line.caller}")
    return changed


async def _rotate_pepper(
    gateway: GatewayControl, line: ControlStream, params: PepperRotation
) -> object:
    try:
        rotated = await gateway.keys.rotate_pepper(params.grace)
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    gateway.on_keys_changed()
    end = f"{rotated.keys} keys end at {rotated.until}"
    gateway.journal.add("gateway", "keys", f"pepper rotated by {line.caller}; {end}")
    return rotated


async def _describe(gateway: GatewayControl, line: ControlStream, params: NameParams) -> object:
    (server,) = find_servers(gateway, [params.name])
    return await describe.describe(gateway, server, private=line.role > Role.VIEWER)


async def _calls(gateway: GatewayControl, line: ControlStream, params: CallsParams) -> object:
    return await gateway.calls(params.names, params.slow_s)


async def _views(gateway: GatewayControl, line: ControlStream, params: EndpointsParams) -> object:
    return describe.views(gateway, params.names)


async def _tree(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    return gateway.tree()


async def _top(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    return await describe.load(gateway)


def _record(gateway: GatewayControl, line: ControlStream, names: Sequence[str], verb: str) -> None:
    for name in names:
        gateway.journal.add(name, verb, f"asked by {line.caller}")


def _about_key(params: KeysChange, changed: KeyChanged) -> Sequence[str]:
    return _DONE[type(params.order)], changed.id, changed.name


_CORE: dict[str, Verb] = {
    "status": Verb(NoParams, _status, Role.VIEWER),
    "start": Verb(ServerNames, _start, Role.OPERATOR),
    "stop": Verb(StopParams, _stop, Role.OPERATOR),
    "restart": Verb(RestartParams, _restart, Role.OPERATOR),
    "drain": Verb(ServerNames, _drain, Role.OPERATOR),
    "undrain": Verb(ServerNames, _undrain, Role.OPERATOR),
    "quarantine": Verb(QuarantineParams, _quarantine, Role.ADMIN),
    "clear": Verb(ServerNames, _clear, Role.ADMIN),
    "roll": Verb(ChangeParams, _roll, Role.OPERATOR),
    "dump-stacks": Verb(NameParams, _stacks, Role.OPERATOR),
    "set": Verb(set_signal.SetParams, set_signal.set_, Role.ADMIN, about=set_signal.about),
    "signal": Verb(set_signal.SignalParams, set_signal.signal_, Role.ADMIN),
    "upgrade": Verb(NoParams, _upgrade, of_machine=True),
    "reload": Verb(Reload, _reload, Role.ADMIN),
    "describe": Verb(NameParams, _describe, Role.VIEWER),
    "top": Verb(NoParams, _top, Role.VIEWER),
    "calls": Verb(CallsParams, _calls, Role.VIEWER),
    "views": Verb(EndpointsParams, _views, Role.VIEWER),
    "tree": Verb(NoParams, _tree, Role.VIEWER),
    "logs": Verb(follow.LogsParams, follow.logs, Role.VIEWER),
    "events": Verb(follow.EventsParams, follow.events, Role.VIEWER),
    "toolsets": Verb(toolsets.ToolsetsParams, toolsets.toolsets, Role.VIEWER),
    "toolsets-change": Verb(
        toolsets.ToolsetsChange, toolsets.toolsets_change, Role.OPERATOR, about=toolsets.about
    ),
    "explain": Verb(PathQuery, path_orders.path, Role.OPERATOR, reads=True),
    "tools": Verb(ToolQuery, tool_orders.tools, Role.VIEWER),
    "tool-try": Verb(
        tool_orders.ToolTry, tool_orders.tool_try, Role.DEVELOPER, about=tool_orders.about_try
    ),
    "recordings": Verb(NoParams, tool_orders.recordings, Role.DEVELOPER, reads=True),
    "keys": Verb(KeysWanted, _keys, Role.OPERATOR, reads=True),
    "key-use": Verb(NameParams, _key_use, Role.OPERATOR, reads=True),
    "keys-change": Verb(KeysChange, _keys_change, Role.ADMIN, about=_about_key),
    "keys-rotate-pepper": Verb(PepperRotation, _rotate_pepper, Role.ADMIN),
    "config": Verb(config_orders.SettingsWanted, config_orders.settings, Role.OPERATOR, reads=True),
    "config-diff": Verb(NoParams, config_orders.diff, Role.OPERATOR, reads=True),
    "edit-preview": Verb(config_orders.FileEdit, config_orders.preview, reads=True),
    "edit": Verb(config_orders.FileEdit, config_orders.edit, about=config_orders.about_edit),
    "drift": Verb(config_orders.DriftWanted, config_orders.drift, Role.OPERATOR, reads=True),
    "lock-approve": Verb(
        config_orders.Approval, config_orders.approve, Role.OPERATOR, about=config_orders.about
    ),
    "sandbox-trial": Verb(path_orders.TrialParams, path_orders.trial, of_machine=True),
    "wait": Verb(follow.Wait, follow.wait, Role.VIEWER),
}


@cache
def verbs() -> Mapping[str, Verb]:
    """Return the verbs by name, with those of the features."""
    tables = (resolve_name(feature.verbs) for feature in all_features() if feature.verbs)
    return dict(chain(_CORE.items(), *(table.items() for table in tables)))


class Hello(Struct, frozen=True):
    """First request. `session`: token of a session of the console, or `key`: API key of a program
    at this `address` that asks the console; both are empty for the user itself."""

    token: str = ""
    session: str = ""
    key: str = ""
    address: str = ""


def admit(
    gateway: GatewayControl, line: ControlStream, refusals: EntryRateLimiter, hello: Hello
) -> ConsoleSession | None:
    """Return the session in whose name a client asks, None for the user itself. Raises
    ProtocolError; the journal records a refused key."""
    if hello.session:
        session = gateway.sessions.use_session(hello.session)
        if session is None:
            raise ProtocolError(Exit.DENIED, access.SESSION_ENDED)
        return session
    if not hello.key:
        return None
    try:
        return gateway.sessions.admit_key(gateway.keys.find_valid_key(hello.key), hello.address)
    except ProtocolError as refusal:
        params = codec.dump({"address": hello.address})
        _record_refusal(gateway, line, refusals, "hello", params, refusal)
        raise


async def carry_out(
    gateway: GatewayControl,
    line: ControlStream,
    refusals: EntryRateLimiter,
    method: str,
    params: bytes,
) -> object:
    """Carry out one verb. Return its result, or None if the verb has sent everything itself. Raises
    ProtocolError; the journal records that too, for a verb that would change something, and for a
    client without the right."""
    verb = verbs().get(method)
    try:
        result = await _carried_out(gateway, line, method, params)
        if verb is not None and verb.least > Role.VIEWER and not verb.reads:
            about = verb.about(codec.decode_as(verb.params, params or b"{}"), result)
            _record_order(gateway, line, method, params, about)
        return result
    except ProtocolError as refusal:
        changes = verb is not None and verb.least > Role.VIEWER and not verb.reads
        if verb is not None and (changes or refusal.code == Exit.DENIED):
            _record_refusal(gateway, line, refusals, method, params, refusal)
        raise


def _record_order(
    gateway: GatewayControl, line: ControlStream, method: str, params: bytes, about: Sequence[str]
) -> None:
    """Report an order that was carried out to the audit."""
    try:
        aimed = codec.decode_as(access.TargetParams, params or b"{}")
    except codec.Malformed:
        aimed = access.TargetParams()
    if not aimed.dry_run:
        words = (*aimed.all, *about)
        gateway.journal.ordered(access.sentence(method, words, line.caller, "carried out"))


def _record_refusal(
    gateway: GatewayControl,
    line: ControlStream,
    refusals: EntryRateLimiter,
    method: str,
    params: bytes,
    refusal: ProtocolError,
) -> None:
    """Report an order that was refused to the journal, unless it shows many others already."""
    try:
        aimed = codec.decode_as(access.TargetParams, params or b"{}")
    except codec.Malformed:
        aimed = access.TargetParams()
    left_out = None if aimed.dry_run else refusals.take(time.monotonic())
    if left_out is None:
        return
    reason = access.reason(refusal.message, _problems(refusal.data))
    sentence = access.sentence(method, aimed.all, line.caller, reason, left_out)
    # The client may have written any names, so no server's history is to hold the refusal.
    gateway.journal.add("gateway", "order refused", sentence)


def _problems(data: bytes) -> tuple[str, ...]:
    try:
        return codec.decode_as(access.Details, data or b"{}").problems
    except codec.Malformed:
        return ()


async def _carried_out(
    gateway: GatewayControl, line: ControlStream, method: str, params: bytes
) -> object:
    verb = verbs().get(method)
    if verb is None:
        raise ProtocolError(
            Code.METHOD_NOT_FOUND,
            f"no verb is named {method[:80]!r}; there are: {', '.join(verbs())}",
        )
    if line.role < verb.least:
        session = line.session
        asks = f"user id {line.uid}" if session is None else "this session"
        other = "run it as the user of the gateway, or " if session is None else ""
        raise ProtocolError(
            Exit.DENIED,
            f"'{method}' needs the role {verb.least}, and {asks} is {line.role} here;"
            f" {other}ask who runs it",
        )
    if verb.of_machine and line.session is not None and line.session.key:
        text = f"'{method}' is for users of the gateway's machine, and not for an API key"
        raise ProtocolError(Exit.DENIED, text)
    try:
        arguments = codec.decode_as(verb.params, params or b"{}")
    except codec.Malformed as error:
        raise ProtocolError(Code.INVALID_PARAMS, f"parameters of {method}: {error}") from None
    try:
        return await verb.run(gateway, line, arguments)
    except UnknownName as error:
        data = codec.dump({"names": error.names, "nearest": error.nearest})
        raise ProtocolError(Exit.UNKNOWN_NAME, str(error), data) from None
    except ConfigInvalid as error:
        data = codec.dump({"problems": [str(problem) for problem in error.problems]})
        raise ProtocolError(Exit.CONFIG, error.why, data) from None
    except (NotNow, ReloadRefused) as error:
        raise ProtocolError(Exit.FAILED, str(error)) from None
