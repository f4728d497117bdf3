"""Settings that differ from the file for a time: of servers, and levels of the log.

Owns: which settings can be overridden, and reading values by the rules of the file. Never: ending
an override when its time is over (`control.set_signal`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config import sections
from metamcp_supervisor.config.config import Config, ConfigInvalid, Log, Server
from metamcp_supervisor.config.document import (
    ConfigDocument,
    ConfigFindings,
    SourceLocation,
    Table,
    shorten,
)
from metamcp_supervisor.config.options import option, options_of
from metamcp_supervisor.config.parse import with_settings
from metamcp_supervisor.config.show import server_table
from metamcp_supervisor.config.tables import Option
from metamcp_worker.ipc.records import ROOMS

PREFIX = "log."
"""Prefix of settings that do not belong to a server: names of servers have no dot."""
LEVEL, OF_ROOM = "log.level", "log.levels."
#: Keys of levels that can be set; for a library, its logger's name takes the place of the room.
KEYS = (LEVEL, *(f"{OF_ROOM}{room}" for room in sorted(ROOMS)))
WORDS = option("log", "level").choices

_ROOM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


def read_level(log: Log, settings: Mapping[str, str]) -> Log:
    """Return the log with these levels, which follow the rules of the file. Raises
    ConfigInvalid."""
    findings = ConfigFindings()
    site = SourceLocation(ConfigDocument("", Path(), {}), ("log",))
    rooms: dict[str, str] = {}
    for key, word in settings.items():
        if key.startswith(OF_ROOM) and _ROOM.fullmatch(room := key.removeprefix(OF_ROOM)):
            rooms[room] = word
        elif key != LEVEL:
            key_site = site.at(shorten(key.removeprefix(PREFIX)))
            message = f"cannot be set for a time; these can: {LEVEL}, {OF_ROOM}ROOM"
            findings.error(key_site, message)
    level = {"level": settings[LEVEL]} if LEVEL in settings else {}
    parsed = sections.log(Table({**level, "levels": rooms}, site, findings, "log"))
    if findings.problems:
        raise ConfigInvalid(findings.list_errors())
    new_level = parsed.level if LEVEL in settings else log.level
    return replace(log, level=new_level, levels={**log.levels, **parsed.levels})


def rooms_of(settings: Iterable[str]) -> dict[str, str]:
    """Return the settings that are levels of rooms or libraries, by room or library."""
    return {key.removeprefix(OF_ROOM): key for key in settings if key.startswith(OF_ROOM)}


def level_text(log: Log, key: str) -> str:
    """Return the level in force for a key, as a user writes it; `none` for a room without its own
    level."""
    return log.level if key == LEVEL else log.levels.get(key.removeprefix(OF_ROOM), "none")


GATEWAY = ""
"""Name for the gateway itself in place of a server; only the levels of its log can be set."""
_LASTING = frozenset({
    "spares", "sharing", "depends_on", "pinning", "tools", "limits", "trust_annotations",
})  # fmt: skip
"""Settings of servers that take effect at once but cannot be set for a time, because they are
tables, or decide which processes run, which tools clients get and about which a person is asked."""
_SERVERS = {each.key: each for each in options_of("servers.*")}
#: Settings of servers that can be set for a time: those that a reload applies at once.
SETTINGS = tuple(
    key for key, each in _SERVERS.items() if each.effect == "in place" and key not in _LASTING
)


class Override(Struct, frozen=True):
    """Setting of a server, or of GATEWAY, for a time. `value`: as in the configuration; `text`: as
    a user writes it; `ends`: time of its end, in seconds of the gateway's own clock."""

    server: str
    key: str
    value: object
    text: str
    ends: float


class TimedOverrides(Struct, frozen=True):
    """All overrides in force, as a frozen value: methods that change them return a new one."""

    all: tuple[Override, ...] = ()

    def of(self, server: str) -> tuple[Override, ...]:
        return tuple(each for each in self.all if each.server == server)

    def set(self, server: Server, settings: Mapping[str, str], ends: float) -> "TimedOverrides":
        """Add settings of a server. `server`: as it is in force; `settings`: values by key, written
        as in the file, but without quotes. Raises ConfigInvalid."""
        changed_server = read(server, settings)
        table = server_table(changed_server)
        new = tuple(
            Override(
                server.name, key, getattr(changed_server, _field(key)), text_of(table, key), ends
            )
            for key in settings
        )
        return TimedOverrides((*self._but(server.name, settings), *new))

    def set_levels(self, log: Log, settings: Mapping[str, str], ends: float) -> "TimedOverrides":
        """Add levels of the log. `log`: as it is in force. Raises ConfigInvalid."""
        changed_log = read_level(log, settings)
        new = tuple(
            Override(GATEWAY, key, word, word, ends)
            for key in settings
            for word in [level_text(changed_log, key)]
        )
        return TimedOverrides((*self._but(GATEWAY, settings), *new))

    def restore(
        self, server: Server, settings: Mapping[str, tuple[str, float]]
    ) -> "TimedOverrides":
        """Add settings that were in force before. `server`: as in the file; `settings`: text and
        end by key. All are read together, because they may need each other. Raises
        ConfigInvalid."""
        overrides = self.set(server, {key: text for key, (text, _) in settings.items()}, 0.0)
        ends = {(server.name, key): end for key, (_, end) in settings.items()}
        again = (
            replace(override, ends=ends.get((override.server, override.key), override.ends))
            for override in overrides.all
        )
        return TimedOverrides(tuple(again))

    def without(self, server: str) -> "TimedOverrides":
        return TimedOverrides(tuple(each for each in self.all if each.server != server))

    def list_expired(self, now: float) -> tuple[Override, ...]:
        """Return the overrides whose time is over."""
        return tuple(each for each in self.all if each.ends <= now)

    def after(self, now: float) -> "TimedOverrides":
        return TimedOverrides(tuple(each for each in self.all if each.ends > now))

    def restrict_to(self, config: Config) -> "TimedOverrides":
        """Keep only the overrides of servers in this configuration; overrides of levels end."""
        return TimedOverrides(tuple(each for each in self.all if each.server in config.servers))

    def next_end(self) -> float | None:
        return min((each.ends for each in self.all), default=None)

    def apply(self, config: Config) -> Config:
        """Return the configuration with the overrides in place of its own settings."""
        servers = dict(config.servers)
        for each in self.all:
            if each.server in servers:
                server = servers[each.server]
                servers[each.server] = replace(server, **{_field(each.key): each.value})
        own = {each.key: each.text for each in self.of(GATEWAY)}
        log = read_level(config.log, own) if own else config.log
        return replace(config, servers=servers, log=log)

    def _but(self, server: str, keys: Mapping[str, str]) -> Iterator[Override]:
        return (each for each in self.all if each.server != server or each.key not in keys)


def read(server: Server, settings: Mapping[str, str]) -> Server:
    """Return the server with these settings, which follow the rules of the file. Raises
    ConfigInvalid."""
    findings = ConfigFindings()
    site = SourceLocation(ConfigDocument("", Path(), {}), ("servers", server.name))
    values = {key: _value(_SERVERS.get(key), text) for key, text in settings.items()}
    # With all settings of the server, because there are rules between settings.
    table = Table(server_table(server) | values, site, findings, "servers.*")
    Table(values, site, findings, "servers.*").refuse_unknown()
    for key in values:
        if key in _SERVERS and key not in SETTINGS:
            findings.error(site.at(key), f"{_why_not(key)}; these can be set: {_list_settings()}")
    changed_server = server if findings.problems else with_settings(table, server)
    if findings.problems:
        raise ConfigInvalid(findings.list_errors())
    return replace(
        server, **{_field(key): getattr(changed_server, _field(key)) for key in settings}
    )


def text_of(table: Mapping[str, object], key: str) -> str:
    """Return the value of a setting as a user writes it; `none` without a value."""
    value = table.get(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _value(option: Option | None, text: str) -> object:
    """Decode a text to the value that TOML would give; strings need no quotes here."""
    kind = option.kind if option is not None else "string"
    if kind == "boolean" and text in {"true", "false"}:
        return text == "true"
    if kind in {"integer", "cores"}:
        for number in (int, float) if kind == "cores" else (int,):
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _why_not(key: str) -> str:
    effect = _SERVERS[key].effect
    if key in _LASTING:
        return f"'{shorten(key)}' belongs into the file"
    reason = "the server would have to restart" if effect == "restart" else "it counts from a start"
    return f"'{shorten(key)}' cannot be set for a time: {reason}"


def _list_settings() -> str:
    return ", ".join(SETTINGS)


def _field(key: str) -> str:
    """Return the field of `Server` for a key; the name of the field has the unit."""
    return f"{key}_s" if _SERVERS[key].kind == "duration" else key
