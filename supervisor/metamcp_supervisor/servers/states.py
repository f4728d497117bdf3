"""The life of a server as one table: phases, events, and the actions of the tree.

Owns: the names of phases, events, actions and exit classes, the transition table, and the page
`docs/states.md` that is created from it. Never: numbers, delays, policy (`server`, `backoff`),
doing anything (`server_io`).

The theory. A *server* is an entry of the configuration; an *instance* is one running copy of it: a
worker process with the server's own process below it, numbered by its generation. The phase belongs
to the server and outlives its instances.

A server starts in one way: queued -> warming -> ready. The start gate admits from `queued`, and
only when the previous instance is gone with everything below it, so at most one instance of a
server lives. A server with a spare has a second instance that fronts do not know. The spare takes
the place of the first instance when that goes down or must be restarted (PROMOTE): the server stays
ready, with a different generation.

A server goes down in two ways. On request: ready -> draining -> stopping -> disabled; from there a
restart queues again. A lazy server that clients do not use goes the same way, to idle; there a call
queues the server again. By itself: warming or ready -> backoff, failed, disabled or quarantined.
The choice depends on numbers and policy, so `server` makes it and gives the table one of the events
RETRY, GIVE_UP, RESTED, QUARANTINE. The worker of an instance that went down may need a moment to
leave: so GONE is an event of the resting phases too, and changes nothing there.

`failed` does not last forever: a timer or a client's call starts a single attempt (half-open). Only
`quarantined` waits for a person.
"""

from collections.abc import Mapping
from enum import StrEnum

from metamcp_supervisor.servers import catalog_changes


class ServerPhase(StrEnum):
    DISABLED = "disabled"
    IDLE = "idle"
    QUEUED = "queued"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"
    QUARANTINED = "quarantined"


class ServerEvent(StrEnum):
    START = "start"
    STOP = "stop"
    ADMIT = "admit"
    READY = "ready"
    RETRY = "retry"
    GIVE_UP = "give up"
    QUARANTINE = "quarantine"
    DRAINED = "drained"
    GONE = "gone"
    PROMOTE = "promote"
    REFUSE = "refuse"
    REST = "rest"
    RESTED = "rested"


class Action(StrEnum):
    """Actions of the tree after a move. Always done, so not listed: notifying fronts and journal of
    a new phase, and the timer that limits each phase in which a process starts or stops."""

    JOIN_GATE = "join the start gate"
    LEAVE_GATE = "leave the start gate"
    FORK = "fork a worker"
    ROUTE = "connect it to the fronts"
    PROMOTE = "let the spare take its place"
    ASK_TO_STOP = "ask the worker to finish and stop"
    ARM_RETRY = "arm the timer of the next start"
    DISARM_RETRY = "disarm the timer of the next start"


class ExitClass(StrEnum):
    """Reasons why an instance went down; shown as `reason` to people, fronts and metrics."""

    CLEAN = "clean"
    EXIT = "exit"
    SIGNAL = "signal"
    SPAWN = "spawn"
    CONNECT = "connect"
    START_TIMEOUT = "start_timeout"
    AUTHORIZATION = "authorization"
    PROTOCOL = "protocol"
    LIMIT = "limit"
    HANG = "hang"
    NURSERY = "nursery"
    OPERATOR = "operator"
    TLS = "tls"
    REDIRECT = "redirect"
    LOOP = "loop"
    FLOOD = "flood"
    CONFIGURATION = "configuration"


MEANING: Mapping[ServerEvent, str] = {
    ServerEvent.START: "it is to run: at the start of the gateway, by an operator, by its timer, "
    "by a client's call, because a sibling with the same trouble recovered, or to see for all that "
    "wait for the same whether it is back",
    ServerEvent.STOP: "it is to stop: by an operator, by a reload, or with the gateway",
    ServerEvent.ADMIT: "the start gate has a free place and no earlier instance is left",
    ServerEvent.READY: "handshake done, and lists read or given up",
    ServerEvent.RETRY: "it went down; the next start is planned",
    ServerEvent.GIVE_UP: "it went down too often, or in a way that time does not heal",
    ServerEvent.QUARANTINE: "it broke the limits again and again or sent without end, or an "
    "operator wants it so",
    ServerEvent.DRAINED: "nothing is in flight any more, or its time is up",
    ServerEvent.GONE: "the worker and everything below it has left",
    ServerEvent.PROMOTE: "its place is taken by its spare: it went down, or is to be restarted",
    ServerEvent.REFUSE: "it is to run, and its table in the configuration has a mistake",
    ServerEvent.REST: "it starts when it is called, and nobody has called it for `idle_stop`, or "
    "it was only started to be listed",
    ServerEvent.RESTED: "one that starts when it is called has left, or ended by itself without "
    "trouble",
}

EXIT_MEANING: Mapping[ExitClass, str] = {
    ExitClass.CLEAN: "it was ready and ended with status 0 although nobody asked; `on-failure` "
    "leaves it down until a call needs it",
    ExitClass.EXIT: "it ended with another status, or before it was ready",
    ExitClass.SIGNAL: "a signal ended it",
    ExitClass.SPAWN: "its command could not be started, or what it needs for that is missing; time "
    "does not heal that, so the circuit opens at once and retries come at the slow rate, on "
    "demand, or with a new configuration",
    ExitClass.CONNECT: "a server that is reached by URL: no connection, or it ended it",
    ExitClass.START_TIMEOUT: "the handshake was not done within `start_timeout`",
    ExitClass.AUTHORIZATION: "a server that is reached by URL wants to be authorized, which needs "
    "a person: `metamcp login`, or `headers` that it accepts; until then as with `spawn`",
    ExitClass.PROTOCOL: "it does not speak the protocol",
    ExitClass.LIMIT: "it exceeded a limit; three times in ten minutes is quarantine",
    ExitClass.HANG: "its worker, or the server itself, stopped answering and was killed",
    ExitClass.NURSERY: "our own nursery died, which counts against no server, or could not fork",
    ExitClass.OPERATOR: "an operator put it into quarantine",
    ExitClass.TLS: "a server that is reached by URL: TLS with it fails, or its certificate "
    "is not accepted; as with `spawn`",
    ExitClass.REDIRECT: "a server that is reached by URL redirects to another origin or in a "
    "circle; as with `spawn`",
    ExitClass.LOOP: "it is this gateway, or a gateway that serves the tools of this one; as with "
    "`spawn`",
    ExitClass.FLOOD: "it was `throttled` for a minute: it sends notifications, requests or noise "
    "without end; that is quarantine at once",
    ExitClass.CONFIGURATION: "its table in the configuration has a mistake, so it is not started; "
    "only a reload of the mended configuration starts it",
}

PUBLIC: Mapping[ServerPhase, str] = {
    ServerPhase.DISABLED: "stopped",
    ServerPhase.IDLE: "idle",
    ServerPhase.QUEUED: "warming",
    ServerPhase.WARMING: "warming",
    ServerPhase.READY: "ready",
    ServerPhase.DRAINING: "draining",
    ServerPhase.STOPPING: "draining",
    ServerPhase.BACKOFF: "error",
    ServerPhase.FAILED: "error",
    ServerPhase.QUARANTINED: "quarantined",
}
"""States that people and clients see. A `ready` server that an endpoint exposes is shown as
`active`."""

DOWN = frozenset({"error", "quarantined"})
"""States of a server that went down by itself, or that must not be used."""
STEPS: Mapping[ServerPhase, str] = {
    ServerPhase.WARMING: "launched",
    ServerPhase.STOPPING: "drained",
}
"""Names, in journal events, of a move to this phase that does not change the state."""

Move = tuple[ServerPhase, tuple[Action, ...]]

_STAYS: dict[ServerPhase, Move] = {phase: (phase, ()) for phase in ServerPhase}

#: phase -> event -> (next phase, actions of the tree). A pair that is not here is an error.
TABLE: Mapping[ServerPhase, Mapping[ServerEvent, Move]] = {
    ServerPhase.DISABLED: {
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, ()),
        ServerEvent.START: (ServerPhase.QUEUED, (Action.JOIN_GATE,)),
        ServerEvent.REFUSE: (ServerPhase.FAILED, (Action.ARM_RETRY,)),
        ServerEvent.STOP: _STAYS[ServerPhase.DISABLED],
        ServerEvent.GONE: _STAYS[ServerPhase.DISABLED],
    },
    ServerPhase.IDLE: {
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, ()),
        ServerEvent.START: (ServerPhase.QUEUED, (Action.JOIN_GATE,)),
        ServerEvent.REFUSE: (ServerPhase.FAILED, (Action.ARM_RETRY,)),
        ServerEvent.STOP: (ServerPhase.DISABLED, ()),
        ServerEvent.GONE: _STAYS[ServerPhase.IDLE],
    },
    ServerPhase.QUEUED: {
        ServerEvent.START: _STAYS[ServerPhase.QUEUED],
        ServerEvent.STOP: (ServerPhase.DISABLED, (Action.LEAVE_GATE,)),
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, (Action.LEAVE_GATE,)),
        ServerEvent.ADMIT: (ServerPhase.WARMING, (Action.FORK,)),
        ServerEvent.GONE: _STAYS[ServerPhase.QUEUED],
    },
    ServerPhase.WARMING: {
        ServerEvent.START: _STAYS[ServerPhase.WARMING],
        ServerEvent.STOP: (ServerPhase.STOPPING, (Action.LEAVE_GATE, Action.ASK_TO_STOP)),
        ServerEvent.READY: (ServerPhase.READY, (Action.LEAVE_GATE, Action.ROUTE)),
        ServerEvent.RETRY: (ServerPhase.BACKOFF, (Action.LEAVE_GATE, Action.ARM_RETRY)),
        ServerEvent.GIVE_UP: (ServerPhase.FAILED, (Action.LEAVE_GATE, Action.ARM_RETRY)),
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, (Action.LEAVE_GATE,)),
    },
    ServerPhase.READY: {
        ServerEvent.START: _STAYS[ServerPhase.READY],
        ServerEvent.STOP: (ServerPhase.DRAINING, (Action.ASK_TO_STOP,)),
        ServerEvent.PROMOTE: (ServerPhase.READY, (Action.PROMOTE,)),
        ServerEvent.REST: (ServerPhase.DRAINING, (Action.ASK_TO_STOP,)),
        ServerEvent.RESTED: (ServerPhase.IDLE, ()),
        ServerEvent.RETRY: (ServerPhase.BACKOFF, (Action.ARM_RETRY,)),
        ServerEvent.GIVE_UP: (ServerPhase.FAILED, (Action.ARM_RETRY,)),
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, ()),
    },
    ServerPhase.DRAINING: {
        ServerEvent.START: _STAYS[
            ServerPhase.DRAINING
        ],  # A restart: it queues again once it is gone.
        ServerEvent.STOP: _STAYS[ServerPhase.DRAINING],
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, ()),
        ServerEvent.DRAINED: (ServerPhase.STOPPING, ()),
        ServerEvent.GONE: (ServerPhase.DISABLED, ()),
        ServerEvent.RESTED: (ServerPhase.IDLE, ()),
    },
    ServerPhase.STOPPING: {
        ServerEvent.START: _STAYS[ServerPhase.STOPPING],
        ServerEvent.STOP: _STAYS[ServerPhase.STOPPING],
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, ()),
        ServerEvent.DRAINED: _STAYS[ServerPhase.STOPPING],
        ServerEvent.GONE: (ServerPhase.DISABLED, ()),
        ServerEvent.RESTED: (ServerPhase.IDLE, ()),
    },
    ServerPhase.BACKOFF: {
        ServerEvent.START: (ServerPhase.QUEUED, (Action.DISARM_RETRY, Action.JOIN_GATE)),
        ServerEvent.REFUSE: (ServerPhase.FAILED, ()),
        ServerEvent.STOP: (ServerPhase.DISABLED, (Action.DISARM_RETRY,)),
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, (Action.DISARM_RETRY,)),
        ServerEvent.GONE: _STAYS[ServerPhase.BACKOFF],
    },
    ServerPhase.FAILED: {
        ServerEvent.START: (ServerPhase.QUEUED, (Action.DISARM_RETRY, Action.JOIN_GATE)),
        ServerEvent.REFUSE: _STAYS[ServerPhase.FAILED],
        ServerEvent.STOP: (ServerPhase.DISABLED, (Action.DISARM_RETRY,)),
        ServerEvent.QUARANTINE: (ServerPhase.QUARANTINED, (Action.DISARM_RETRY,)),
        ServerEvent.GONE: _STAYS[ServerPhase.FAILED],
    },
    ServerPhase.QUARANTINED: {
        ServerEvent.STOP: (
            ServerPhase.DISABLED,
            (),
        ),  # Only by an operator, or at the gateway's end.
        ServerEvent.QUARANTINE: _STAYS[ServerPhase.QUARANTINED],
        ServerEvent.GONE: _STAYS[ServerPhase.QUARANTINED],
    },
}


class ImpossibleEvent(Exception):
    """An event that cannot happen in this phase: a bug of the gateway, never a server's fault."""


def move(phase: ServerPhase, event: ServerEvent) -> Move:
    """Return the next phase and the actions. Raises Impossible."""
    try:
        return TABLE[phase][event]
    except KeyError:
        raise ImpossibleEvent(f"'{event}' in phase '{phase}'") from None


def format_move(before: ServerPhase, after: ServerPhase) -> str:
    """Return the name of a move in journal events: `warming→error`, or the step within a state."""
    if before is not after and PUBLIC[before] == PUBLIC[after]:
        return STEPS[after]
    return f"{PUBLIC[before]}→{PUBLIC[after]}"


def page() -> str:
    """Return the text of `docs/states.md`."""
    return "\n".join([*_introduction(), *_draw_diagram(), *_moves(), *_meanings()])


def _introduction() -> list[str]:
    public = [f"| `{phase}` | `{PUBLIC[phase]}` |" for phase in ServerPhase]
    return [
        "# The states of a server",
        "",
        "This page is drawn from the table in `supervisor/metamcp_supervisor/servers/states.py`;",
        "a test fails when it is stale. To write it again:",
        "",
        "    python -c 'from metamcp_supervisor.servers.states import page; print(page())' \\",
        "        > docs/states.md",
        "",
        "The *phase* is what the supervisor works with; the *state* is what `metamcp ctl status`,",
        "events, metrics and clients see. A `ready` server that an endpoint exposes is shown as",
        "`active`. An event tells a change of state, `warming→error`, or a step within one:",
        f"{_steps()}.",
        "",
        "| phase | state |",
        "|---|---|",
        *public,
        "",
    ]


def _steps() -> str:
    steps = [f"`{step}` (to `{phase}`)" for phase, step in STEPS.items()]
    return " and ".join(steps)


def _draw_diagram() -> list[str]:
    arrows = [
        f"    {phase} --> {target}: {event}"
        for phase, row in TABLE.items()
        for event, (target, _) in row.items()
        if target is not phase
    ]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> idle", *arrows, "```", ""]


def _moves() -> list[str]:
    rows = [
        f"| `{phase}` | {event} | `{target}` | {', '.join(actions) or '-'} |"
        for phase, row in TABLE.items()
        for event, (target, actions) in row.items()
    ]
    note = "A pair that is not in this table is a bug; the journal gets an event `bug`."
    return [note, "", "| phase | event | next | then |", "|---|---|---|---|", *rows, ""]


def _meanings() -> list[str]:
    events = [f"| {event} | {meaning} |" for event, meaning in MEANING.items()]
    classes = [f"| `{exit_class}` | {meaning} |" for exit_class, meaning in EXIT_MEANING.items()]
    return [
        "## Events",
        "",
        "| event | meaning |",
        "|---|---|",
        *events,
        "",
        "## Why a server went down",
        "",
        "The `reason` in `status`, in events, in metrics and in the errors that clients get.",
        "",
        "| reason | meaning |",
        "|---|---|",
        *classes,
        "",
        (
            f"A server that runs can have the reason `{catalog_changes.THROTTLED}`:"
            f" {catalog_changes.HELD_BACK}."
        ),
    ]
