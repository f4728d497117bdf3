"""Answers of the verbs `describe`, `top` and `views`.

Owns: the facts that belong in each answer, and hiding the secrets in the commands of processes.
Never: the sentence about a server's state (`explain`), printing (`cli`), measuring (`usage`).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from msgspec import structs

from metamcp_supervisor.config import environment
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.show import mask_arguments
from metamcp_supervisor.control import explain
from metamcp_supervisor.control.services import GatewayControl
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.telemetry.health import READY_STATES
from metamcp_supervisor.telemetry.logs import LAST_LINES
from metamcp_supervisor.verbs import (
    Description,
    Exit,
    Footprint,
    ServerProcess,
    ServerStatus,
    TopFigures,
    ViewShown,
    ViewsShown,
)
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.messages import BUCKETS_S

NAME_CHARACTERS_MAX = 64
"""Maximum characters of a caller's name in a message."""
HIDDEN_CHARACTERS_MIN = 6
"""Minimum characters of a secret that is hidden inside an argument; a shorter secret is hidden only
where it is the whole argument, because inside of others it is there by chance."""
#: Keys of a configuration that say with which arguments, credentials or files a server works.
_PRIVATE = frozenset(
    {"command", "module", "env", "inherit_env", "cwd", "url", "headers", "oauth", "options"}
)


async def describe(gateway: GatewayControl, server: ServerStatus, *, private: bool) -> Description:
    """Return everything about one server. `private`: with commands, environment and addresses, for
    a caller who may steer the gateway."""
    particulars = gateway.particulars(server.name)
    history = gateway.journal.histories.of(server.name)
    tries = structs.replace(particulars.tries, because=history.because)
    roots = _find_roots(server)
    trees = await asyncio.to_thread(usage.trees, roots) if roots else {}
    processes = [process for tree in trees.values() for process in tree]
    workers = {server.worker_pid, *server.worker_pids}
    down = bool(server.reason) and server.state not in READY_STATES
    withheld = particulars.withheld if private and down else ()
    return Description(
        server=server,
        why="; ".join(
            filter(None, (explain.explain_state(server, tries), environment.sentence(withheld)))
        ),
        withheld=withheld,
        since=history.since,
        failures=tries.failures,
        recent=tries.recent,
        recent_max=tries.recent_max,
        window_s=tries.window_s,
        trips=tries.trips,
        config={
            key: value
            for key, value in particulars.config.items()
            if private or key not in _PRIVATE
        },
        source=particulars.source if private else "",
        endpoints=particulars.endpoints,
        list_hash=particulars.list_hash,
        exits=history.ends,
        processes=tuple(
            structs.replace(process, command=("metamcp", "worker", server.name))
            if process.pid in workers  # a fork, with the nursery's command
            else _mask_command(process, particulars.hidden, private=private)
            for process in processes
        ),
        overrides=particulars.overrides,
        drift=particulars.drift,
        left_out=particulars.left_out,
        log=tuple(gateway.logs.tail(server.name, LAST_LINES, earlier=True)),
    )


async def load(gateway: GatewayControl) -> TopFigures:
    """Return the figures of every server at this moment, for `top`."""
    status = gateway.status()
    roots = {server.name: _find_roots(server) for server in status.servers}
    trees = await asyncio.to_thread(usage.trees, [pid for pids in roots.values() for pid in pids])
    processes_by_server = {
        name: [process for pid in pids for process in trees.get(pid, ())]
        for name, pids in roots.items()
    }
    return TopFigures(
        clock=time.monotonic(),
        status=status,
        latencies=gateway.latencies(),
        longest_s=gateway.longest_s(),
        bounds_s=BUCKETS_S,
        footprints={
            name: _sum(processes) for name, processes in processes_by_server.items() if processes
        },
    )


def views(gateway: GatewayControl, endpoints: Sequence[str]) -> ViewsShown:
    """Return the figures of the views of these endpoints, or of all. Raises ProtocolError for an
    unknown endpoint."""
    urls = gateway.status().endpoints
    for name in endpoints:
        if name not in urls:
            short_name = name[:NAME_CHARACTERS_MAX]
            raise ProtocolError(
                Exit.UNKNOWN_NAME, f"no endpoint is named {short_name!r}; {hint(name, urls)}"
            )
    return ViewsShown(
        token_bytes=builtin_definitions.TOKEN_BYTES,
        views=tuple(
            _view(stats)
            for stats in gateway.views()
            if stats.endpoint in urls and (not endpoints or stats.endpoint in endpoints)
        ),
    )


def _view(stats: ViewStats) -> ViewShown:
    saving = builtin_definitions.TokenSavings(stats.everything, stats.tokens)
    return ViewShown(**structs.asdict(stats), saved=saving.tokens, saved_percent=saving.percent)


def _find_roots(server: ServerStatus) -> list[int]:
    """Return the processes above all others of a server: the workers of all copies, first the one
    that serves; the process of the server itself if it shares its worker."""
    if server.worker:
        return [server.pid] if server.pid else []
    return [pid for pid in dict.fromkeys((server.worker_pid, *server.worker_pids)) if pid]


def command_shown(command: tuple[str, ...], hidden: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command without secrets: those that the server's configuration names, and arguments
    that look like secrets."""
    return mask_arguments([_without(argument, hidden) for argument in command])


def _without(argument: str, hidden: Mapping[str, str]) -> str:
    if argument in hidden:
        return hidden[argument]
    # The longest first: one secret may be a part of another.
    for secret in sorted(hidden, key=len, reverse=True):
        if len(secret) >= HIDDEN_CHARACTERS_MIN:
            argument = argument.replace(secret, hidden[secret])
    return argument


def _mask_command(
    process: ServerProcess, hidden: Mapping[str, str], *, private: bool
) -> ServerProcess:
    command = command_shown(process.command, hidden) if private else process.command[:1]
    return structs.replace(process, command=command)


def _sum(tree: list[ServerProcess]) -> Footprint:
    return Footprint(
        processes=len(tree),
        rss_bytes=sum(process.rss_bytes for process in tree),
        cpu_s=sum(process.cpu_s for process in tree),
        descriptors=sum(process.descriptors or 0 for process in tree),
    )
