"""Units of systemd that are not those of this version, for `metamcp ctl doctor`.

Owns: what a difference means. Never: writing units, and what they should say (`systemd`).
"""

from collections.abc import Iterator

from msgspec import Struct

from metamcp_supervisor.cli import systemd
from metamcp_supervisor.cli.finding import Finding


class Unit(Struct, frozen=True):
    """One file. `there`: its text, None if it is missing; `due`: what this version writes; `older`:
    than this installation; `program`: that `due` starts, if it starts any."""

    path: str
    there: str | None
    due: str
    older: bool = False
    program: str = ""


def units() -> Iterator[Finding]:
    """Of the machine and of this user, as far as any are installed."""
    for user in (False, True):
        for path, there, due in systemd.installed(user):
            yield judged(
                Unit(
                    path=str(path),
                    there=there,
                    due=due,
                    older=there is not None and systemd.older(path),
                    program=systemd.started(due),
                ),
                "metamcp systemd install" + (" --user" if user else ""),
            )


def judged(unit: Unit, install: str) -> Finding:
    """`install`: the command that writes it anew."""
    if unit.there == unit.due:
        return Finding("unit", "ok", f"{unit.path} is that of this version")
    anew = f"'{install}' writes it anew; what you have changed belongs into 'systemctl edit'"
    if unit.there is None:
        return Finding("unit", "warn", f"{unit.path} is missing", anew)
    program = systemd.started(unit.there)
    if program != unit.program:
        text = f"{unit.path} starts another installation: {program or 'none'}"
        return Finding("unit", "warn", text, anew)
    since = ", and is older than it" if unit.older else ""
    text = f"{unit.path} is not what this version writes{since}"
    return Finding("unit", "warn", text, anew)
