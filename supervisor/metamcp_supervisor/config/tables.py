"""Tables of metamcp.toml that features add, and what is said of a key: its kind, its default, and
the effect of a change at a reload.

Owns: the form of both. Never: which features there are (`features`), single values (`document`),
the keys of the core (`options`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any, Literal

from msgspec import Struct

from metamcp_supervisor.features import all_features

Section = str
"""Table of the file, with `*` for names and `[]` for a list of tables; empty for the top."""
Kind = Literal[
    "string", "strings", "command", "table of strings", "table of values", "table", "tables",
    "boolean or table", "choice or table", "boolean", "integer", "integers", "number",
    "number from 0 to 1", "duration", "size", "cores", "path", "address", "address or socket",
    "choice", "choices",
]  # fmt: skip
Effect = Literal["in place", "next start", "restart", "full restart"]
"""Effect of a changed setting at a reload: at once; from the next start of this server; this server
restarts; the gateway must be restarted."""

OWN = ""
"""For `member`: a function of its table reads and shows the setting."""


class Option(Struct, frozen=True):
    """Key of metamcp.toml. `default`: as a user writes it, empty without a default; `choices`: the
    allowed values of a choice.

    `low`, `high`: bounds, as a user writes them. `member`: of the record with the value, or OWN.
    `if_set`: it is shown only if it is set. `after`: key behind which it is shown, if not behind
    the one above. `example`: a value, for a key without a default.
    """

    section: Section
    key: str
    kind: Kind
    default: str
    effect: Effect
    why: str
    choices: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    member: str | None = None
    if_set: bool = False
    after: str = ""
    example: str = ""


Pairs = Iterable[tuple[str, str]]


class ConfigTable(Struct, frozen=True, kw_only=True):
    """Table at the top of the file. `why`: sentence about it for docs/configuration.md; `options`:
    its keys; `record`: dataclass of its values, without arguments for a file without the table.

    `read(table, resolver, home)`: returns the record of a `document.Table`, and reports mistakes;
    `show(record)`: returns the table as a user writes it, with secrets masked; without them, keys
    follow from `options`. `always`: it is shown if nothing in it differs from the defaults, too.
    `check(record, site, findings)`: reports what only shows once all files are read. `secrets`:
    values that no log may have; `sent`: names and texts, as written, of what the gateway sends to
    others.
    """

    name: str
    why: str
    options: tuple[Option, ...]
    record: type[Any]
    read: Callable[..., Any] | None = None
    show: Callable[[Any], Mapping[str, object]] | None = None
    always: bool = False
    check: Callable[..., None] = lambda record, site, findings: None
    secrets: Callable[[Any], Iterable[str]] = lambda record: ()
    sent: Callable[[Any], Pairs] = lambda record: ()

    def rows(self) -> tuple[Option, ...]:
        """Return its keys, and its own row among those of the file."""
        return (Option("", self.name, "table", "", "in place", self.why), *self.options)


@cache
def feature_tables() -> tuple[ConfigTable, ...]:
    """Return the tables of all features."""
    references = (reference for feature in all_features() for reference in feature.tables)
    return tuple(resolve_name(reference) for reference in references)
