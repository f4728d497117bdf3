"""The verbs `explain`, the path of a call of a tool without the call, and `sandbox-trial`.

Owns: their parameters, the key that is meant, the last steps, which the supervisor knows, when a
trial ends. Never: the steps before those (`catalog.call_path` of the worker), why a server is in
its state (`explain`), what a trial records (`child.connect_broker` of the worker).
"""

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct, structs

from metamcp_supervisor.config import tools
from metamcp_supervisor.config.config import ToolConfig
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import explain
from metamcp_supervisor.control.services import (
    ControlStream,
    GatewayControl,
    NotNow,
    UnknownName,
    find_servers,
)
from metamcp_supervisor.telemetry.health import READY_STATES
from metamcp_supervisor.verbs import VERSION, Exit, PathShown, ServerStatus
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError
from metamcp_worker.ipc.figures import PATH_ARGUMENTS_BYTES_MAX, CallPath, PathQuery, PathStep
from metamcp_worker.ipc.spec import RECORDING

NAME_CHARACTERS_MAX = 256
"""Maximum characters of the name of a tool."""
MARKS = ("__", ".", "/", "_")
"""Texts between a server and its tool, as users write both."""
NO_CALL = frozenset({"disabled", "quarantined"})
"""Phases of a server that no call reaches or starts."""


TRIAL_S_MAX = 3600.0
"""Maximum seconds of a trial."""
NEWS_S = 0.5
"""Seconds between two messages of a trial."""
NEWS_MAX = 200
"""Maximum rights in one message of a trial."""


class TrialParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `sandbox-trial`. `for_s`: seconds after which the trial ends at the latest."""

    name: str
    for_s: float


class TrialUpdate(Struct, frozen=True, kw_only=True):
    """Message of a trial with the rights that are new. `state`: of the server; `records`: whether
    it runs without its sandbox and takes calls."""

    state: str
    records: bool
    rights: tuple[DeniedRight, ...]


async def trial(gateway: GatewayControl, line: ControlStream, params: TrialParams) -> object:
    """Run a server without its sandbox until the client leaves or the time is over, and report
    which rights it uses that it would lack. Raises ProtocolError and PeerGone."""
    (server,) = find_servers(gateway, [params.name])
    if server.sandbox != "basic" or gateway.settings.config.servers[params.name].sandbox_required:
        reason = "it is not confined" if server.sandbox in ("", "none") else "its sandbox stays on"
        raise ProtocolError(Exit.USAGE, f"{params.name} has nothing to learn: {reason}")
    if server.phase in NO_CALL:
        raise ProtocolError(Exit.SERVER_NOT_RUNNING, f"{params.name} is {server.state}: start it")
    if not 0 < params.for_s <= TRIAL_S_MAX:
        raise ProtocolError(Exit.USAGE, f"a trial takes at most {TRIAL_S_MAX / 60:g} minutes")
    rights, sent = set[DeniedRight](), set[DeniedRight]()
    cause = f"it runs without its sandbox, asked by {line.caller}"
    gateway.trial(params.name, rights)
    gateway.journal.add(params.name, "trial", cause)
    end = time.monotonic() + params.for_s
    try:
        while time.monotonic() < end:
            await line.wait_for_wake(NEWS_S)
            (server,) = find_servers(gateway, [params.name])
            records = server.achieved == RECORDING and server.state in READY_STATES
            new = sorted(rights - sent)[:NEWS_MAX]
            sent.update(new)
            news = TrialUpdate(state=server.state, records=records, rights=tuple(new))
            line.push("trial", news)
    finally:
        with contextlib.suppress(UnknownName, NotNow):  # it was removed, or the gateway ends
            gateway.trial(params.name, None)
            gateway.journal.add(params.name, "trial over", "it runs in its sandbox again")
    return {"v": VERSION, "name": params.name}


async def path(gateway: GatewayControl, line: ControlStream, params: PathQuery) -> object:
    """Return the path of a call. Raises ProtocolError for unknown names."""
    check_endpoint(gateway, params.endpoint)
    if len(params.arguments) > PATH_ARGUMENTS_BYTES_MAX:
        message = f"arguments to be explained have at most {PATH_ARGUMENTS_BYTES_MAX} bytes"
        raise ProtocolError(Exit.USAGE, message)
    tool, key = params.tool[:NAME_CHARACTERS_MAX], await key_id(gateway, params.key)
    call_path = await gateway.path(structs.replace(params, tool=tool, key=key))
    if not call_path.server:
        raise unknown_tool(gateway, params.tool, call_path.endpoint, call_path.names)
    steps = (*_locate_overrides(gateway, call_path), *_server(gateway, call_path))
    return PathShown(
        endpoint=call_path.endpoint,
        server=call_path.server,
        tool=call_path.tool,
        steps=steps,
        policies=call_path.policies,
        decides=call_path.decides,
        effect=call_path.effect,
        runs=not any(step.stops for step in steps),
    )


def unknown_tool(
    gateway: GatewayControl, name: str, endpoint: str, names: Collection[str]
) -> ProtocolError:
    """Return why no tool has this name at an endpoint: its server is not there, the configuration
    switches the tool off, or neither. `names`: of all tools that there are."""
    near = hint(name, names)
    for server in _servers(gateway, endpoint):
        label = process_names.label(server)
        mark = next((mark for mark in MARKS if name.startswith(label + mark)), "")
        tool = name.removeprefix(label + mark)
        if not mark or not tool:
            continue
        by = _places(gateway, endpoint, server, tool)
        enabled = {
            words: tool_config.enabled
            for words, tool_config in by
            if tool_config.enabled is not None
        }
        if enabled and not (last := [*enabled.items()][-1])[1]:
            message = f"{label}.{tool} is switched off: {last[0]}"
            return ProtocolError(Exit.FAILED, f"{message}; {near}" if "*" in last[0] else message)
        if not any(tool_name.startswith(label + mark) for tool_name in names) and (
            state := _state(gateway, server)
        ):
            return ProtocolError(Exit.FAILED, f"the tools of {label} are not known now: {state}")
    location = f" at the endpoint {endpoint}" if endpoint else ""
    return ProtocolError(Exit.UNKNOWN_NAME, f"no tool is named {name[:64]!r}{location}; {near}")


def _servers(gateway: GatewayControl, endpoint: str) -> Sequence[str]:
    """Return the servers of an endpoint, those with long names first."""
    config = gateway.settings.config
    endpoint_config = config.endpoints.get(endpoint)
    servers = (
        () if endpoint_config is None else config.namespaces[endpoint_config.namespace].servers
    )
    return sorted(servers, key=len, reverse=True)


def _places(
    gateway: GatewayControl, endpoint: str, server: str, tool: str
) -> list[tuple[str, ToolConfig]]:
    config = gateway.settings.config
    endpoint_config = config.endpoints.get(endpoint)
    return [] if endpoint_config is None else tools.places(config, endpoint_config, server, tool)


def _locate_overrides(gateway: GatewayControl, call_path: CallPath) -> Iterator[PathStep]:
    """Yield the steps that a front knows; one about an override says where it is written."""
    for step in call_path.steps:
        by = _places(gateway, call_path.endpoint, call_path.server, call_path.tool)
        if step.step == "override" and step.text != "none" and by:
            words = "; ".join(words for words, _ in by)
            yield structs.replace(step, text=f"{step.text}: {words}")
        else:
            yield step


def _state(gateway: GatewayControl, name: str) -> str:
    """Return the state of a server that cannot be used now, and why; empty for another one."""
    server = next((server for server in gateway.status().servers if server.name == name), None)
    return "" if server is None or server.state in READY_STATES else _reason(gateway, server)


def _reason(gateway: GatewayControl, server: ServerStatus) -> str:
    facts = gateway.particulars(server.name)
    history = gateway.journal.histories.of(server.name)
    reason = explain.explain_state(server, structs.replace(facts.tries, because=history.because))
    return f"{server.name} is {server.state}: {reason}"


def check_endpoint(gateway: GatewayControl, name: str) -> None:
    """Raise ProtocolError for the name of an endpoint that does not exist. An empty name is that of
    the default one."""
    endpoints = gateway.shelf.endpoints()
    if name and name not in endpoints:
        message = f"no endpoint is named {name[:64]!r}; {hint(name, endpoints)}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)


async def key_id(gateway: GatewayControl, name: str) -> str:
    """Return the id of the API key that is meant; empty without a name. Raises ProtocolError."""
    if not name:
        return ""
    try:
        keys = (await gateway.keys.list_keys([name])).keys
    except MetaMCPError as error:
        raise ProtocolError(Exit.of(error), str(error)) from None
    return keys[0].id


def _server(gateway: GatewayControl, call_path: CallPath) -> tuple[PathStep, ...]:
    """Return the steps about the server of a tool and its confinement."""
    server = next(
        (server for server in gateway.status().servers if server.name == call_path.server), None
    )
    if server is None:
        return ()
    waits = server.state in READY_STATES | {"warming"}
    down = server.phase in NO_CALL or not waits
    state = PathStep("server", _reason(gateway, server), stops=down)
    if not server.sandbox:
        return (state,)
    refused = (f"; refused {explain.refused_text(refusal)}" for refusal in server.refusals)
    return state, PathStep("confinement", explain.sandbox_text(server) + "".join(refused))
