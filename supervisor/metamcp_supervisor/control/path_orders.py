"""The verb `explain`: the path of a call of a tool, without making the call.

Owns: its parameters, the key that is meant, the last steps, which the supervisor knows. Never: the
steps before those (`catalog.call_path` of the worker), why a server is in its state (`explain`).
"""

from msgspec import Raw, Struct, structs

from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import explain
from metamcp_supervisor.control.services import ControlStream, Steering
from metamcp_supervisor.telemetry.health import READY_STATES
from metamcp_supervisor.verbs import Exit, PathShown
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError
from metamcp_worker.ipc.figures import PATH_ARGUMENTS_BYTES_MAX, CallPath, PathStep, ShowPath

NAME_CHARACTERS_MAX = 256
"""Maximum characters of the name of a tool."""
NO_CALL = frozenset({"disabled", "quarantined"})
"""Phases of a server that no call reaches or starts."""


class PathQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of `explain`. `tool`: as clients know it, or `server.tool`; `endpoint`: empty for
    the default one; `key`: name or id of an API key, empty for the local user; `arguments`: an
    object, empty if they are not known."""

    tool: str
    endpoint: str = ""
    key: str = ""
    arguments: Raw = Raw(b"")


async def path(steering: Steering, line: ControlStream, params: PathQuery) -> object:
    """Return the path of a call. Raises ProtocolError for unknown names."""
    check_endpoint(steering, params.endpoint)
    if len(params.arguments) > PATH_ARGUMENTS_BYTES_MAX:
        why = f"arguments to be explained have at most {PATH_ARGUMENTS_BYTES_MAX} bytes"
        raise ProtocolError(Exit.USAGE, why)
    found = await steering.path(
        ShowPath(
            ticket=0,
            name=params.tool[:NAME_CHARACTERS_MAX],
            endpoint=params.endpoint,
            key=await key_id(steering, params.key),
            arguments=bytes(params.arguments).decode(),
        )
    )
    if not found.server:
        where = f" at the endpoint {found.endpoint}" if found.endpoint else ""
        known = hint(params.tool, found.names)
        why = f"no tool is named {params.tool[:64]!r}{where}; {known}"
        raise ProtocolError(Exit.UNKNOWN_NAME, why)
    steps = (*found.steps, *_server(steering, found))
    return PathShown(
        endpoint=found.endpoint,
        server=found.server,
        tool=found.tool,
        steps=steps,
        policies=found.policies,
        decides=found.decides,
        effect=found.effect,
        runs=not any(one.stops for one in steps),
    )


def check_endpoint(steering: Steering, name: str) -> None:
    """Raise ProtocolError for the name of an endpoint that does not exist. An empty name is that of
    the default one."""
    endpoints = steering.shelf.endpoints()
    if name and name not in endpoints:
        why = f"no endpoint is named {name[:64]!r}; {hint(name, endpoints)}"
        raise ProtocolError(Exit.UNKNOWN_NAME, why)


async def key_id(steering: Steering, name: str) -> str:
    """Return the id of the API key that is meant; empty without a name. Raises ProtocolError."""
    if not name:
        return ""
    try:
        keys = (await steering.keys.listed([name])).keys
    except MetaMCPError as why:
        raise ProtocolError(Exit.of(why), str(why)) from None
    return keys[0].id


def _server(steering: Steering, found: CallPath) -> tuple[PathStep, ...]:
    """Return the steps about the server of a tool and its confinement."""
    server = next((one for one in steering.status().servers if one.name == found.server), None)
    if server is None:
        return ()
    known = steering.particulars(server.name)
    history = steering.journal.histories.of(server.name)
    why = explain.why(server, structs.replace(known.tries, because=history.because))
    waits = server.state in READY_STATES | {"warming"}
    down = server.phase in NO_CALL or not waits
    state = PathStep("server", f"{server.name} is {server.state}: {why}", stops=down)
    if not server.sandbox:
        return (state,)
    refused = (f"; refused {explain.refused_text(one)}" for one in server.refusals)
    return state, PathStep("confinement", explain.sandbox_text(server) + "".join(refused))
