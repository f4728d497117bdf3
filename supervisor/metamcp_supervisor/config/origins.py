"""Settings in effect one by one: table, key, value as TOML, and the file and line that sets it.

Owns: the order of the tables, values as text, the place of a setting, the difference between two
configurations. Never: masking secrets (`show`), reading files (`sources`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import (
    ConfigDraft,
    Place,
    SourceLocation,
    list_of,
    printable,
    table_of,
)
from metamcp_supervisor.config.show import tables

GROUPS = ("servers", "namespaces", "endpoints", "workspaces")
"""Tables whose keys are names of tables."""
POLICIES = "[policies]"
"""Text of the brackets of a rule; a list has several rules."""
_INDEX = re.compile(r"policies\[([0-9]+)\]")
#: Keys of other clients' files, which mean a key of ours.
_FOREIGN = {
    "enabled": ("disabled",), "transport": ("type",), "url": ("serverUrl", "httpUrl", "uri"),
    "command": ("args",), "inherit_env": ("envPassthrough",),
}  # fmt: skip


class SettingShown(Struct, frozen=True):
    """Setting in effect. `table`: text of its brackets, empty for the top of the file; `place`:
    file and line, variable or option that sets it, empty for a default."""

    table: str
    key: str
    value: str
    place: str = ""


class SettingChange(Struct, frozen=True):
    """Setting that differs. `before`, `after`: empty if it is not there; `place`: of the new
    one."""

    table: str
    key: str
    before: str
    after: str
    place: str = ""


class Origins(Struct, frozen=True):
    """Places of settings. `outside`: variables and options, which win, the last one first; `files`:
    of the drafts, the main file first; `named`: of tables with a name, by group and name."""

    outside: tuple[SourceLocation, ...] = ()
    files: tuple[SourceLocation, ...] = ()
    named: Mapping[tuple[str, str], SourceLocation] = {}

    def of(self, table: str, key: str) -> str:
        """Return the place of a setting, or without a key that of a table with a name; empty for a
        default."""
        if table == "gateway":
            for site in self.outside:
                if key in site.document.values:
                    return site.document.label
        group, _, name = table.partition(".")
        if group in GROUPS and name:
            named = self.named.get((group, name))
            return "" if named is None else _locate_key(named, key) if key else _line(named)
        numbered = _INDEX.fullmatch(table)
        places: Place = ("policies", int(numbered[1])) if numbered else tuple(filter(None, [table]))
        candidates = (_locate_key(site.at(*places), key) for site in self.files)
        return next(filter(None, candidates), "")


def collect_sites(drafts: Sequence[ConfigDraft], outside: Sequence[SourceLocation]) -> Origins:
    """Return the places of all settings of these files and of what is outside of files."""
    named: dict[tuple[str, str], SourceLocation] = {}
    for draft in drafts:
        for group, named_sites in (
            ("servers", [(server.name, server.site) for server in draft.servers]),
            ("namespaces", [(namespace.name, namespace.site) for namespace in draft.namespaces]),
            (
                "endpoints",
                [(endpoint.endpoint.name, endpoint.site) for endpoint in draft.endpoints],
            ),
        ):
            for name, site in named_sites:
                named.setdefault((group, name), site)
    return Origins(tuple(reversed(outside)), tuple(draft.site for draft in drafts), named)


def settings(config: Config) -> Iterator[SettingShown]:
    """Yield all settings in effect, secrets masked, in the order of `heads`."""
    sections = tables(config)
    if top := sections.pop("workflows", None):
        yield SettingShown("", "workflows", toml(top), config.origin("", "workflows"))
    policies = 0
    for head, content in heads(sections):
        table = head
        if head == POLICIES:
            table, policies = f"policies[{policies}]", policies + 1
        for key, value in content.items():
            yield SettingShown(table, key, toml(value), config.origin(table, key))


def changes(old: Config, new: Config) -> Iterator[SettingChange]:
    """Yield the settings that differ. Secrets are masked on both sides, so that a new value of one
    does not show; the plan of the reload names its key."""
    before = {(setting.table, setting.key): setting for setting in settings(old)}
    after = {(setting.table, setting.key): setting for setting in settings(new)}
    for table, key in dict.fromkeys((*before, *after)):
        was, now = before.get((table, key)), after.get((table, key))
        if was is None or now is None or was.value != now.value:
            yield SettingChange(
                table, key, "" if was is None else was.value, "" if now is None else now.value,
                "" if now is None else now.place,
            )  # fmt: skip


def heads(sections: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the tables with settings in them, each with the text of its brackets."""
    for section, content in sections.items():
        if section == "policies":
            yield from ((POLICIES, table_of(each) or {}) for each in list_of(content) or ())
            continue
        table = table_of(content) or {}
        if section not in GROUPS:
            yield section, table
            continue
        for name, each in table.items():
            yield f"{section}.{name}", table_of(each) or {}


def toml(value: object) -> str:
    """Return a value as TOML. A string of JSON is also a string of TOML once the characters that
    are not printable are escaped."""
    if (table := table_of(value)) is not None:
        items = [f"{toml(key)} = {toml(item)}" for key, item in table.items()]
        return "{ " + ", ".join(items) + " }" if items else "{}"
    if (listed := list_of(value)) is not None:
        return "[" + ", ".join(map(toml, listed)) + "]"
    return printable(json.dumps(value, ensure_ascii=False))


def _locate_key(table: SourceLocation, key: str) -> str:
    """Return file and line of a key of a table; empty if the table does not have the key."""
    content = _at(table)
    values = table_of(content) or {}
    name = next(
        (spelling for spelling in (key, *_FOREIGN.get(key, ())) if spelling in values), None
    )
    if name is None:
        return ""
    return _line(table.at(name))


def _line(site: SourceLocation) -> str:
    line = site.line()
    return site.document.label if line is None else f"{site.document.label}:{line}"


def _at(site: SourceLocation) -> object:
    """Return the value at a place in a file; None if nothing is there."""
    value: object = site.document.values
    for key in site.place:
        listed = list_of(value)
        if isinstance(key, int) and listed is not None and key < len(listed):
            value = listed[key]
        elif (table := table_of(value)) is not None:
            value = table.get(str(key))
        else:
            return None
    return value
