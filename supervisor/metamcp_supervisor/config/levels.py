"""Levels of the gateway's log that are other than in the file, for a time.

Owns: what they are called at a prompt, and reading them as the file is read. Never: until when they
count (`overrides`), carrying a change out (`reloading`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from metamcp_supervisor.config import told
from metamcp_supervisor.config.config import ConfigInvalid, Log
from metamcp_supervisor.config.document import Document, Findings, Site, shown
from metamcp_supervisor.config.options import option
from metamcp_supervisor.config.table import Table
from metamcp_worker.ipc.records import ROOMS

PREFIX = "log."
"""Before what is no setting of a server: no name of one has a dot."""
LEVEL, OF_ROOM = "log.level", "log.levels."
#: What can be written; a library has the name of its logger in place of a room.
KEYS = (LEVEL, *(f"{OF_ROOM}{room}" for room in sorted(ROOMS)))
WORDS = option("log", "level").choices

_ROOM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


def read(log: Log, settings: Mapping[str, str]) -> Log:
    """The log with these: by the rules of the file, in the words of the file. Raises
    ConfigInvalid."""
    findings = Findings()
    site = Site(Document("", Path(), {}), ("log",))
    rooms: dict[str, str] = {}
    for key, word in settings.items():
        if key.startswith(OF_ROOM) and _ROOM.fullmatch(room := key.removeprefix(OF_ROOM)):
            rooms[room] = word
        elif key != LEVEL:
            where = site.at(shown(key.removeprefix(PREFIX)))
            what = f"cannot be set for a time; these can: {LEVEL}, {OF_ROOM}ROOM"
            findings.error(where, what)
    level = {"level": settings[LEVEL]} if LEVEL in settings else {}
    found = told.log(Table({**level, "levels": rooms}, site, findings, "log"))
    if findings.problems:
        raise ConfigInvalid(findings.everything())
    wanted = found.level if LEVEL in settings else log.level
    return replace(log, level=wanted, levels={**log.levels, **found.levels})


def rooms_of(settings: Iterable[str]) -> dict[str, str]:
    """Whose level it is, by room or library: the setting."""
    return {key.removeprefix(OF_ROOM): key for key in settings if key.startswith(OF_ROOM)}


def text_of(log: Log, key: str) -> str:
    """What counts, as people write it; `none` for a room without a level of its own."""
    return log.level if key == LEVEL else log.levels.get(key.removeprefix(OF_ROOM), "none")
