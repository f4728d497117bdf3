"""The verbs `set`, for settings of a server or levels of the log, and `signal`, for a server.

Owns: their parameters and limits, the known signals, the journal's words. Never: reading a setting
(`config.overrides`, `config.installation`), carrying an order out (the gateway, by
`GatewayControl`)."""

import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import field

from metamcp_supervisor.config import installation, naming, overrides
from metamcp_supervisor.config.config import ConfigInvalid, Problem
from metamcp_supervisor.config.overrides import GATEWAY
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    find_servers,
    unsaved_warning,
)
from metamcp_supervisor.verbs import VERSION, Exit, OverriddenSetting
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError

SET_S_MAX = 86_400.0
"""Maximum seconds of an override: a day; a setting that is to last longer belongs in the file."""
SIGNAL_MAX = 64
"""Highest signal number of Linux."""
#: Signals by name, without SIG: those that end a server, notify it, or halt it.
SIGNALS: dict[str, int] = {
    name: signal.Signals[f"SIG{name}"].value
    for name in ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH")
}


class SetParams(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `set`. `name`: server; empty for levels of the gateway's log. `settings`:
    values by key, as in the file but without quotes. `for_s`: seconds that they are in force.
    `clear`: end everything that was set before, and set nothing."""

    name: str = GATEWAY
    settings: dict[str, str] = field(default_factory=dict[str, str])
    for_s: float = 3600.0
    clear: bool = False


class SignalParams(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `signal`. `signal`: a name, with SIG or without, or a number."""

    name: str
    signal: str


def about(params: SetParams, result: object) -> Sequence[str]:
    """Return the settings that an order changed, for the audit; their values are not there."""
    return ["clear"] if params.clear else [*params.settings]


async def set_(gateway: GatewayControl, line: ControlStream, params: SetParams) -> object:
    own = params.name == GATEWAY
    find_servers(gateway, [] if own else [params.name])
    if params.clear is bool(params.settings):
        raise ProtocolError(Exit.USAGE, "say what to set, as in timeout=5s, or else --clear")
    if not 0 < params.for_s <= SET_S_MAX:
        raise ProtocolError(Exit.USAGE, f"a setting can be for at most {SET_S_MAX / 3600:g} h")
    if params.clear:
        overridden = gateway.as_written(params.name)
        _record(
            gateway, line, params.name, "set over", [f"{o.key} {o.written}" for o in overridden]
        )
    else:
        try:
            if own:
                _check_rooms(params.settings)
            gateway.override(params.name, params.settings, params.for_s, line.caller)
        except ConfigInvalid as error:
            data = codec.dump({"problems": [str(problem) for problem in error.problems]})
            raise ProtocolError(Exit.CONFIG, "nothing is set", data) from None
        name = params.name
        overridden = gateway.status().overrides if own else gateway.particulars(name).overrides
        new = [sentence(override) for override in overridden if override.key in params.settings]
        _record(gateway, line, params.name, "set", new)
    answer = {"name": params.name, "overrides": () if params.clear else overridden}
    return {"v": VERSION, **answer, **await unsaved_warning(gateway)}


async def signal_(gateway: GatewayControl, line: ControlStream, params: SignalParams) -> object:
    find_servers(gateway, [params.name])
    number = number_of(params.signal)
    pid = gateway.signal(params.name, number)
    text = f"{name_of(number)} to process {pid}"
    _record(gateway, line, params.name, "signal", [text])
    return {"v": VERSION, "name": params.name, "pid": pid, "signal": name_of(number)}


def number_of(text: str) -> int:
    """Return the number of a signal. Raises ProtocolError."""
    if text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= SIGNAL_MAX:
        return int(text)
    number = SIGNALS.get(text.upper().removeprefix("SIG"))
    if number is None:
        near = naming.nearest(text, [name.lower() for name in SIGNALS])
        there = f"there are: {', '.join(SIGNALS)}, and 1 to {SIGNAL_MAX}"
        advice = f"did you mean '{near.upper()}'?" if near else there
        message = f"{text[:20]!r} is not a signal; {advice}"
        raise ProtocolError(Exit.USAGE, message)
    return number


def name_of(number: int) -> str:
    names = {value: f"SIG{name}" for name, value in SIGNALS.items()}
    return names.get(number, f"signal {number}")


def sentence(each: OverriddenSetting) -> str:
    until = time.strftime("%H:%M:%S", time.localtime(each.until))
    return f"{each.key} {each.value} until {until} (else {each.written})"


def _check_rooms(settings: Mapping[str, str]) -> None:
    """Raise ConfigInvalid for levels of unknown rooms and libraries."""
    rooms = overrides.rooms_of(settings)
    if wrong := installation.unknown(rooms):
        raise ConfigInvalid(
            tuple(Problem("", rooms[name], problem) for name, problem in wrong.items())
        )


def _record(
    gateway: GatewayControl, line: ControlStream, name: str, event: str, details: Iterable[str]
) -> None:
    gateway.journal.add(name or "gateway", event, "; ".join([*details, f"asked by {line.caller}"]))
