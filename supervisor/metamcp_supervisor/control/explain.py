"""Why a server is in its state, and what comes next, in one sentence.

Owns: the wording. Never: decisions, clocks, finding the facts.
"""

import math
from collections.abc import Callable, Mapping

from msgspec import Struct

from metamcp_supervisor.config.units import duration_text
from metamcp_supervisor.verbs import Description, ServerStatus
from metamcp_worker.ipc.figures import Refusals
from metamcp_worker.ipc.spec import RECORDING

CONFIGURATION = "configuration"
"""Reason of a server whose table in the configuration has a mistake."""
MESSAGE_CHARACTERS_MAX = 300
"""Maximum characters of a quoted message, so that the whole stays one sentence."""


class Tries(Struct, frozen=True, kw_only=True):
    """Attempts to start a server. Failed starts: `failures` in a row, `recent` of `recent_max`
    within `window_s` seconds. `trips`: how often in a row the circuit opened. `because`: the last
    cause in the journal. `restart`: the server's policy; `start_timeout_s`: seconds that a start
    may take. `degraded`: the worker does not answer now; `parted`: an operator keeps new calls from
    the server; `probing`: the start is the one attempt of an open circuit; `for_others`: the server
    starts before its turn, because others wait for the same."""

    failures: int = 0
    recent: int = 0
    recent_max: int = 8
    window_s: float = 120.0
    trips: int = 0
    because: str = ""
    restart: str = "on-failure"
    start_timeout_s: float = 30.0
    degraded: bool = False
    parted: bool = False
    probing: bool = False
    for_others: bool = False


def explain_state(server: ServerStatus, tries: Tries) -> str:
    """Return the sentence, without its period."""
    say = _BY_PHASE.get(server.phase)
    return say(server, tries) if say else f"it is {server.state}{_after(_trouble(server))}"


def format_tries(tries: Tries) -> str:
    """Return the arithmetic of the backoff: `3 failures in a row, 2 within 120 s (8 are
    allowed)`."""
    return f"{_failures(tries.failures)} in a row, {within(tries)}"


def within(tries: "Tries | Description") -> str:
    """Return the failed starts of the window, and how many of them open no circuit."""
    return f"{tries.recent} within {tries.window_s:g} s ({tries.recent_max} are allowed)"


def _idle(server: ServerStatus, tries: Tries) -> str:
    return "no process of it runs; the first call starts it"


def _explain_disabled(server: ServerStatus, tries: Tries) -> str:
    start = f"'metamcp ctl start {server.name}' starts it"
    if trouble := _trouble(server):
        policy = f'restart = "{tries.restart}" leaves it down'
        return f"it ended by itself ({trouble}) and {policy}; {start}"
    return f"{_shorten(tries.because) or 'it is switched off'}; {start}"


def _explain_queued(server: ServerStatus, tries: Tries) -> str:
    return f"it waits for its turn to start{_after(_trouble(server))}{_for_others(tries)}"


def _explain_warming(server: ServerStatus, tries: Tries) -> str:
    limit = duration_text(tries.start_timeout_s)
    before = _after(_trouble(server))
    alone = tries.probing and not tries.for_others
    activity = "it gets the one attempt of an open circuit" if alone else "it is starting"
    others = _for_others(tries)
    return f"{activity}, and has {limit} for its handshake and its lists{before}{others}"


def _ready(server: ServerStatus, tries: Tries) -> str:
    trouble = _trouble(server)
    if server.state == "error":
        return f"it is ready, and calls do not reach it ({trouble}); this is tried every second"
    if server.reason == "throttled":
        return f"it answers calls, and is held back ({trouble})"
    again = f"; it went down before ({trouble}), {format_tries(tries)}" if trouble else ""
    if tries.parted:
        back = f"'metamcp ctl undrain {server.name}' lets them come again"
        return f"an operator keeps new calls from it, it runs on; {back}"
    if tries.degraded:
        return f"its worker does not answer at this moment, and is killed if that lasts{again}"
    return f"it answers calls{again}"


def _explain_draining(server: ServerStatus, tries: Tries) -> str:
    cause = f" ({_shorten(tries.because)})" if tries.because else ""
    return f"it takes no new calls{cause}; {server.inflight} in flight are finished, then it ends"


def _explain_stopping(server: ServerStatus, tries: Tries) -> str:
    cause = f" ({_shorten(tries.because)})" if tries.because else ""
    return f"it was told to end{cause}, and what does not end by itself is killed"


def _backoff(server: ServerStatus, tries: Tries) -> str:
    return f"{_explain_down(server)}; {format_tries(tries)}; {_next(server, 'next start')}"


def _explain_failed(server: ServerStatus, tries: Tries) -> str:
    if server.reason == CONFIGURATION:
        mended = "mend it and run 'metamcp reload'"
        return f"it is not started: its configuration has a mistake ({server.message}); {mended}"
    if server.retry_in_s is None:
        policy = f'restart = "{tries.restart}" plans no start'
        return f"{_explain_down(server)}; {policy}, 'metamcp ctl start {server.name}' does"
    opened = f"the circuit is open for the {_nth(tries.trips)} time in a row"
    coming = _next(server, "one attempt")
    return (
        f"{_explain_down(server)}; {format_tries(tries)}; {opened}; {coming}, or with the next call"
    )


def _explain_quarantined(server: ServerStatus, tries: Tries) -> str:
    trouble = _trouble(server) or _shorten(tries.because)
    because = f" ({trouble})" if trouble else ""
    only = f"'metamcp ctl clear {server.name}' does"
    return f"it is kept out{because}; no timer and no call starts it, {only}"


_BY_PHASE: Mapping[str, Callable[[ServerStatus, Tries], str]] = {
    "idle": _idle,
    "disabled": _explain_disabled,
    "queued": _explain_queued,
    "warming": _explain_warming,
    "ready": _ready,
    "draining": _explain_draining,
    "stopping": _explain_stopping,
    "backoff": _backoff,
    "failed": _explain_failed,
    "quarantined": _explain_quarantined,
}


def _explain_down(server: ServerStatus) -> str:
    return f"it went down ({_trouble(server)})" if _trouble(server) else "it went down"


def _next(server: ServerStatus, noun: str) -> str:
    if server.retry_in_s is None:
        return f"no {noun} is planned"
    minutes, seconds = divmod(math.ceil(server.retry_in_s), 60)
    return f"{noun} in {f'{minutes}m{seconds:02}s' if minutes else f'{seconds}s'}"


def _trouble(server: ServerStatus) -> str:
    return ": ".join(text for text in (server.reason, _shorten(server.message)) if text)


def _shorten(text: str) -> str:
    """Return `text` on one line, cut to MESSAGE_CHARACTERS_MAX."""
    flat = " ".join(text.split())
    return flat if len(flat) <= MESSAGE_CHARACTERS_MAX else flat[: MESSAGE_CHARACTERS_MAX - 1] + "…"


def _after(trouble: str) -> str:
    return f", after it went down ({trouble})" if trouble else ""


def _for_others(tries: Tries) -> str:
    if not tries.for_others:
        return ""
    return "; others wait for the same, and if it fails as before, that does not count against it"


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures"


def _nth(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teen = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teen else endings.get(number % 10, 'th')}"


def sandbox_text(server: ServerStatus) -> str:
    """Return how a server is to be confined, and how it is."""
    if server.sandbox == "none":
        return "none: it may do what the gateway may do"
    if server.achieved == RECORDING:
        return f"{server.sandbox}: off for a trial, which records what it uses"
    achieved = f": {server.achieved}" if server.achieved else ""
    missed = f"; not kept from {' and '.join(server.lacking)}" if server.lacking else ""
    opened = f"; {server.opened}" if server.opened else ""
    return f"{server.sandbox}{achieved}{missed}{opened}"


def refused_text(refused: Refusals) -> str:
    """Return what a sandbox refused a server, and how often."""
    times = "once" if refused.count == 1 else f"{refused.count} times, the last time"
    return f"{times}: {refused.advice}"
