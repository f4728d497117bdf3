"""One table of a configuration file, read key by key with the type that each must have.

Owns: the check of types, choices and limits of single values, and the words about those that are
wrong. Never: what the values are for (`program`, `parse`, `shapes`).

A wrong value is reported and its default returned, so that reading goes on and every error is told.
"""

from collections.abc import Mapping

from metamcp_supervisor.config import units
from metamcp_supervisor.config.config import Address
from metamcp_supervisor.config.document import Findings, Site, kind_of, list_of, shown, table_of
from metamcp_supervisor.config.nearest import hint
from metamcp_supervisor.config.options import ELSEWHERE, LATER, OPTIONS, Section, keys, option


def _at_home(key: str) -> str:
    """The section that this key belongs into; empty for one of none, or of several."""
    homes = [each.section for each in OPTIONS if each.key == key and each.section]
    home = "servers.*" if "servers.*" in homes else homes[0] if len(homes) == 1 else ""
    return f"write it in [{home.replace('*', 'NAME')}]" if home else ""


class Table:
    """`section` names the options that it may have; None for a file of a foreign shape."""

    def __init__(
        self,
        values: Mapping[str, object],
        site: Site,
        findings: Findings,
        section: Section | None = None,
    ) -> None:
        self.values = values
        self.site = site
        self.findings = findings
        self.section: Section | None = section

    def refuse_unknown(self) -> None:
        """An error for every key that `section` does not have."""
        assert self.section is not None
        known = keys(self.section)
        for key in self.values:
            if key in known:
                continue
            if key in LATER.get(self.section, ()):
                message = f"'{key}' is not available in this version"
            else:
                meant = ELSEWHERE.get(self.section, {}).get(key) or _at_home(key)
                meant = meant or hint(key, known)
                message = f"unknown key '{shown(key)}'; {meant}"
            self.findings.error(self.site.at(key), message)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return None if value is None else _text(value, self.site.at(key), self.findings)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings; an item that is none is reported and left out."""
        value = self.values.get(key)
        if value is None:
            return None
        items = list_of(value)
        if items is None:
            self._wrong(key, "a list of strings", value)
            return None
        site = self.site.at(key)
        found = [_text(item, site.at(at), self.findings) for at, item in enumerate(items)]
        return tuple(item for item in found if item is not None)

    def named_texts(self, key: str, *, lenient: bool = False) -> dict[str, str]:
        """A table of strings; what is none is reported and left out. `lenient`: as other programs
        write it, with numbers as text and null for what is to be left alone."""
        inner = self.table(key)
        found: dict[str, str] = {}
        for name, value in inner.values.items() if inner else ():
            site = self.site.at(key, name)
            if lenient and isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = str(value)
            elif lenient and value is None:
                self.findings.warning(site, "is null and left alone")
            elif not isinstance(value, str):
                self.findings.error(site, f"must be a string, in quotes, not {kind_of(value)}")
            elif why := flaw(value):
                self.findings.error(site, why)
            else:
                found[name] = value
        return found

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._wrong(key, "true or false", value)
        return default

    def whole(self, key: str, *, default: int, low: int, high: int) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(key, "a whole number", value)
        elif not low <= value <= high:
            self.error(key, f"must be from {low} to {high}")
        else:
            return value
        return default

    def share(self, key: str, *, default: float) -> float:
        """From 0 to 1."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._wrong(key, "a number", value)
        elif not 0 <= value <= 1:
            self.error(key, "must be from 0 to 1")
        else:
            return float(value)
        return default

    def duration(self, key: str, *, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        try:
            return units.duration(value)
        except ValueError as why:
            self.error(key, str(why))
            return default

    def size(self, key: str, *, low: int) -> int | None:
        """In bytes; None: absent, or reported."""
        value = self.values.get(key)
        try:
            return None if value is None else units.size(value, low)
        except ValueError as why:
            self.error(key, str(why))
            return None

    def cores(self, key: str) -> float | None:
        value = self.values.get(key)
        try:
            return None if value is None else units.cores(value)
        except ValueError as why:
            self.error(key, str(why))
            return None

    def address(self, key: str) -> Address | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return units.address(text)
        except ValueError as why:
            self.error(key, str(why))
            return None

    def choice(self, key: str) -> str | None:
        """One of the choices of the option, or None: absent, or reported."""
        assert self.section is not None
        known = option(self.section, key)
        text = self.text(key)
        if text is None or text in known.choices:
            return text
        if text in known.later:
            self.error(key, f'{key} = "{text}" is not available in this version')
        else:
            self.error(key, f"'{shown(text)}' is not a choice; {hint(text, known.choices)}")
        return None

    def table(self, key: str, section: Section | None = None) -> "Table | None":
        value = self.values.get(key)
        if value is None:
            return None
        found = table_of(value)
        if found is None:
            self._wrong(key, "a table", value)
            return None
        return Table(found, self.site.at(key), self.findings, section)

    def tables(self, key: str, section: Section | None = None) -> "dict[str, Table]":
        """A table of tables, such as `servers`."""
        outer = self.table(key)
        if outer is None:
            return {}
        found = {name: outer.table(name, section) for name in outer.values}
        return {name: table for name, table in found.items() if table is not None}

    def error(self, key: str, message: str) -> None:
        self.findings.error(self.site.at(key), message)

    def _wrong(self, key: str, wanted: str, value: object) -> None:
        self.error(key, f"must be {wanted}, not {kind_of(value)}")


def _text(value: object, site: Site, findings: Findings) -> str | None:
    if not isinstance(value, str):
        findings.error(site, f"must be a string, not {kind_of(value)}")
    elif why := flaw(value):
        findings.error(site, why)
    else:
        return value
    return None


def flaw(text: str) -> str:
    """Why no process can be given this text, or nothing."""
    if "\0" in text:
        return "has a NUL character in it, which no program can be given"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair in it, which is no text"
    return ""
