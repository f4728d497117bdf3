"""A configuration file: its text with places, its tables key by key, and its settings before all
files are joined.

Never: the meaning of keys (`parse`), joining files (`assemble`).

A wrong value is reported and its default returned, so that reading goes on and every error is
reported.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct, field

from metamcp_supervisor.config import units
from metamcp_supervisor.config.config import (
    Address,
    AnyAddress,
    Endpoint,
    PrivateStruct,
    Problem,
    Server,
    StoreConfig,
    Tls,
    ToolConfig,
    UnixAddress,
    Workers,
)
from metamcp_supervisor.config.naming import ELSEWHERE, hint
from metamcp_supervisor.config.options import (
    LATER,
    all_options,
    keys,
    members,
    option,
)
from metamcp_supervisor.config.tables import Option, Section
from metamcp_worker.ipc.spec import UseLimits

Value = TypeVar("Value")
Place = tuple[str | int, ...]
"""Keys and indices from the top of a file down to a value."""

PROBLEMS_MAX = 200
"""Maximum number of errors that are kept, more than anyone reads; without a limit, a broken file of
4 MiB gives hundreds of thousands."""
LISTED_MAX = 5
"""Maximum number of names that a sentence lists."""
_SHOWN_CHARACTERS_MAX = 80
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class BrokenSyntax(Exception):
    """The text is not valid TOML, JSON or YAML. `line`: its number, None when unknown."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def no_lines() -> Mapping[Place, int]:
    return {}


class ConfigDocument(Struct, frozen=True):
    """Decoded file. `label`: the file's name in messages; `base`: the directory that relative paths
    start from; `lines`: returns the line of each key, called only when a message needs it."""

    label: str
    base: Path
    values: Mapping[str, object]
    lines: Callable[[], Mapping[Place, int]] = no_lines


class SourceLocation(PrivateStruct, frozen=True):
    """Place in a file that a message points to. `renamed`: the file's own place of a key below it,
    where that is another one."""

    UNCOMPARED = frozenset({"renamed"})

    document: ConfigDocument
    place: Place = ()
    renamed: Mapping[str, Place] = {}

    def at(self, *keys: str | int) -> "SourceLocation":
        if self.renamed and keys:
            keys = (*self.renamed.get(str(keys[0]), keys[:1]), *keys[1:])
        return SourceLocation(self.document, self.place + keys)

    def line(self) -> int | None:
        """Return the line of the key, or of the nearest key above it whose line is known."""
        lines = self.document.lines()
        for length in range(len(self.place), 0, -1):
            if (line := lines.get(self.place[:length])) is not None:
                return line
        return None

    def problem(self, message: str) -> Problem:
        return Problem(self.document.label, format_place(self.place), message, self.line())

    def __str__(self) -> str:
        location = format_place(self.place)
        return f"{self.document.label}: {location}" if location else self.document.label


class ConfigFindings(Struct):
    """All errors and warnings found so far, so that they can be reported at once. `lost`: those of
    the warnings that say what a file of another program has and is not carried over;
    `renamed`: those about servers with another name here; `fatal`: whether an error is not about
    single servers."""

    problems: list[Problem] = []
    warnings: list[str] = []
    lost: list[str] = []
    renamed: list[str] = []
    fatal: bool = False
    _unsaid: int = 0
    _server: SourceLocation | None = None
    _first: dict[str, Problem] = {}
    _counts: Counter[str] = field(default_factory=Counter[str])

    @contextlib.contextmanager
    def about(self, server: SourceLocation) -> Generator[None]:
        """Make errors inside the `with` block count for the server at this place alone."""
        self._server = server
        try:
            yield
        finally:
            self._server = None

    def mistake(self, server: SourceLocation) -> str:
        """Return the first error about the server at this place, as a sentence, or an empty
        string."""
        first = self._first.get(str(server))
        more = self._counts[str(server)] - 1
        return "" if first is None else f"{first}{f' (and {more} more)' if more else ''}"

    def error(
        self, site: SourceLocation, message: str, *, servers: Sequence[SourceLocation] = ()
    ) -> None:
        """Add an error. `servers`: the places of the servers that the error is about, if it is
        about single servers."""
        about = servers or (() if self._server is None else (self._server,))
        self.fatal = self.fatal or not about
        for server in map(str, about):
            self._counts[server] += 1
            if server not in self._first:
                self._first[server] = site.problem(message)
        self._add(lambda: site.problem(message))

    def problem(self, made: Problem) -> None:
        self.fatal = True
        self._add(lambda: made)

    def _add(self, make: Callable[[], Problem]) -> None:
        """Add a problem. `make` is called only while there is room, because finding the line of a
        place takes time."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(make())
        else:
            self._unsaid += 1

    def add_warning(self, site: SourceLocation, message: str) -> None:
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(str(site.problem(message)))

    def lose(self, site: SourceLocation, message: str) -> None:
        """Add a warning about a thing in the file of another program that is not carried over."""
        self.lost.append(str(site.problem(message)))
        self.add_warning(site, message)

    def list_errors(self) -> tuple[Problem, ...]:
        """Return the errors, file by file, from top to bottom."""
        files = list(dict.fromkeys(each.file for each in self.problems))
        errors = sorted(self.problems, key=lambda each: (files.index(each.file), each.line or 0))
        if self._unsaid:
            errors.append(Problem("", "", f"and {self._unsaid} more errors"))
        return tuple(errors)


def format_place(location: Place) -> str:
    """Write a place as `servers.git.command[0]`, with keys in quotes where TOML needs them."""
    text = ""
    for key in location:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            name = key if _BARE_KEY.fullmatch(key) else f'"{shorten(key)}"'
            text += f".{name}" if text else name
    return text


def shorten(text: str) -> str:
    """Return a text for a message: shortened, and without characters that could control a
    terminal."""
    cut = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
    return printable(cut)


def join_names(names: Sequence[str]) -> str:
    """Return the first names for a message, and how many more there are."""
    text = ", ".join(map(shorten, names[:LISTED_MAX]))
    return text + (f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else "")


def printable(text: str) -> str:
    """Replace control, direction and other invisible characters by escapes, so that a reader sees
    everything in the text. The escapes are those of TOML."""
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def table_of(value: object) -> dict[str, object] | None:
    """Return `value` if it is a table (in JSON: an object), else None."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def list_of(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def kind_of(value: object) -> str:
    """Return the type of a value, in words for a message."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time"


EVERY = ("*",)
"""Value of `servers` in a namespace that has every server."""


class GatewayDraft(Struct, frozen=True, kw_only=True):
    """Settings of `[gateway]` from a single source, with their places; None: not set there."""

    listen: tuple[Address, SourceLocation] | None = None
    ops_listen: tuple[AnyAddress, SourceLocation] | None = None
    health_listen: tuple[Address, SourceLocation] | None = None
    console_listen: tuple[Address, SourceLocation] | None = None
    socket: tuple[UnixAddress, SourceLocation] | None = None
    auth: tuple[str, ...] | None = None
    behind_proxy: bool | None = None
    tls: "Tls | str | None" = None
    """Files, or the word that is written."""
    allowed_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] | None = None
    fronts: int | None = None
    workers: Workers | None = None
    watch: bool | None = None
    state_dir: Path | None = None
    runtime_dir: Path | None = None
    store: tuple[StoreConfig, SourceLocation] | None = None
    cluster_secret: str | None = None
    drain_delay_s: float | None = None


class ToolDraft(Struct, frozen=True, kw_only=True):
    """Settings of a tool at a single place. `tool`: the server's own name of it."""

    server: str
    tool: str
    said: ToolConfig
    site: SourceLocation


class ServerDraft(Struct, frozen=True, kw_only=True):
    """Server of a file. `server`: None for a server that is left out with a warning. `written`: its
    name in the file, if that name is not valid; `name` is then the nearest valid name, or empty.
    `tools`: the settings of tools in `server`, with their places."""

    name: str
    site: SourceLocation
    server: Server | None = None
    written: str = ""
    tools: tuple[ToolDraft, ...] = ()


class NamespaceDraft(Struct, frozen=True, kw_only=True):
    """Namespace of a file. `servers`: None for all servers that no other namespace names."""

    name: str
    site: SourceLocation
    servers: tuple[str, ...] | None
    description: str = ""
    tools: tuple[ToolDraft, ...] = ()


class EndpointDraft(Struct, frozen=True, kw_only=True):
    """Endpoint of a file. `sse`, `auth`: as written, None if not set."""

    site: SourceLocation
    endpoint: Endpoint
    sse: bool | None = None
    auth: tuple[str, ...] | None = None
    tools: tuple[ToolDraft, ...] = ()


class NamedPath(Struct, frozen=True):
    """File or folder that a setting names. `written`: as in the file; `path`: from the root."""

    written: str
    path: str
    site: SourceLocation


class WorkspaceDraft(Struct, frozen=True, kw_only=True):
    """Workspace of a file; its servers, namespaces and endpoints are among those of the file."""

    name: str
    site: SourceLocation
    limits: UseLimits
    workflows: tuple["NamedPath", ...] = ()


class ConfigDraft(Struct, frozen=True, kw_only=True):
    """Settings of a file. `tables`: records of the tables of the gateway itself, by members of
    `Config`; `workflows`: paths of files and folders; `rules`: of suggestions, None
    without the table `[suggestions]`; `shipped_rules`: whether to use those that are shipped;
    `builtins`: families of tools at the default endpoint, if no file has endpoints."""

    site: SourceLocation
    includes: tuple[tuple[str, SourceLocation], ...] = ()
    gateway: GatewayDraft = GatewayDraft()
    tables: Mapping[str, Any] = {}
    workflows: tuple["NamedPath", ...] = ()
    rules: tuple["NamedPath", ...] | None = None
    shipped_rules: bool = True
    servers: tuple[ServerDraft, ...] = ()
    namespaces: tuple[NamespaceDraft, ...] = ()
    endpoints: tuple[EndpointDraft, ...] = ()
    builtins: tuple[str, ...] = ()
    workspaces: tuple[WorkspaceDraft, ...] = ()


def _at_home(key: str) -> str:
    """Return a hint about the section that a key belongs to; empty if no section or several
    sections have the key."""
    homes = [each.section for each in all_options() if each.key == key and each.section]
    home = "servers.*" if "servers.*" in homes else homes[0] if len(homes) == 1 else ""
    return f"write it in [{home.replace('*', 'NAME')}]" if home else ""


class Table:
    """Table of a file. `section`: names the options that the table may have; None for a file of a
    foreign shape."""

    def __init__(
        self,
        values: Mapping[str, object],
        site: SourceLocation,
        findings: ConfigFindings,
        section: Section | None = None,
    ) -> None:
        self.values = values
        self.site = site
        self.findings = findings
        self.section: Section | None = section

    def refuse_unknown(self) -> None:
        """Report every key that `section` does not have."""
        assert self.section is not None
        allowed = keys(self.section)
        for key in self.values:
            if key in allowed:
                continue
            if key in LATER.get(self.section, ()):
                message = f"'{key}' is not available in this version"
            else:
                meant = ELSEWHERE.get(self.section, {}).get(key) or _at_home(key)
                meant = meant or hint(key, allowed)
                message = f"unknown key '{shorten(key)}'; {meant}"
            self.findings.error(self.site.at(key), message)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return None if value is None else _text(value, self.site.at(key), self.findings)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings; an item that is not a string is reported and left out."""
        value = self.values.get(key)
        if value is None:
            return None
        items = list_of(value)
        if items is None:
            self._wrong(key, "a list of strings", value)
            return None
        site = self.site.at(key)
        texts = [_text(item, site.at(at), self.findings) for at, item in enumerate(items)]
        return tuple(item for item in texts if item is not None)

    def named_texts(self, key: str, *, lenient: bool = False) -> dict[str, str]:
        """Return a table of strings; a value that is not a string is reported and left out.
        `lenient`: accept the form of other programs, with numbers as text and null for values to
        leave alone."""
        inner = self.table(key)
        texts: dict[str, str] = {}
        for name, value in inner.values.items() if inner else ():
            site = self.site.at(key, name)
            if lenient and isinstance(value, int | float) and not isinstance(value, bool):
                texts[name] = str(value)
            elif lenient and value is None:
                self.findings.lose(site, "is null and left alone")
            elif not isinstance(value, str):
                self.findings.error(site, f"must be a string, in quotes, not {kind_of(value)}")
            elif fault := flaw(value):
                self.findings.error(site, fault)
            else:
                texts[name] = value
        return texts

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._wrong(key, "true or false", value)
        return default

    def whole(self, key: str, *, low: int, high: int) -> int | None:
        """Return a whole number; None if it is absent or was reported."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(key, "a whole number", value)
        elif not low <= value <= high:
            self.error(key, f"must be from {low} to {high}")
        else:
            return value
        return None

    def number(self, key: str, *, high: float) -> float | None:
        """Return a number from 0 to `high`; None if it is absent or was reported."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._wrong(key, "a number", value)
        elif not 0 <= value <= high:
            self.error(key, f"must be from 0 to {high:.0f}")
        else:
            return float(value)
        return None

    def duration(self, key: str, *, default: float) -> float:
        seconds = self._convert(key, units.duration)
        return default if seconds is None else seconds

    def size(self, key: str, *, low: int) -> int | None:
        """Return a size in bytes; None if it is absent or was reported."""
        return self._convert(key, lambda value: units.size(value, low))

    def address(self, key: str) -> Address | None:
        text = self.text(key)
        return None if text is None else self._convert(key, lambda _: units.address(text))

    def _convert(self, key: str, convert: Callable[[object], Value]) -> Value | None:
        """Return the value of a key; None if it is absent or `convert` refused it."""
        value = self.values.get(key)
        try:
            return None if value is None else convert(value)
        except ValueError as error:
            self.error(key, str(error))
            return None

    def settings(self) -> dict[str, Any]:
        """Return what `read_members` does; keys that `section` does not have are reported."""
        self.refuse_unknown()
        return self.read_members()

    def read_members(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the settings that are written and read by their kind, by the members of their
        record; wrong ones are reported and left out. `but`: keys to leave out."""
        assert self.section is not None
        settings: dict[str, Any] = {}
        for spec, member in members(self.section):
            value = self._read_member(spec) if self.has(spec.key) and spec.key not in but else None
            if value is not None:
                settings[member] = round(value * 1000) if member.endswith("_ms") else value
        return settings

    def _read_member(self, spec: Option) -> Any:
        """Return the value of a setting by its kind and bounds; None if it was reported."""
        key, low, high = spec.key, spec.low, spec.high
        match spec.kind:
            case "boolean":
                return self.flag(key, default=spec.default == "true")
            case "integer":
                return self.whole(key, low=int(low), high=int(high))
            case "number" | "number from 0 to 1":
                return self.number(key, high=float(high))
            case "strings":
                return self.texts(key)
            case "choice":
                return self.choice(key)
            case "choices":
                return self.choices(key)
            case "cores":
                return self._convert(key, units.cores)
            case "size":
                return self._convert(key, lambda value: units.size_within(value, low, high))
            case _:
                return self._convert(key, lambda value: units.duration_within(value, low, high))

    def choice(self, key: str) -> str | None:
        """Return a value that the option allows; None if it is absent or was reported."""
        assert self.section is not None
        spec = option(self.section, key)
        text = self.text(key)
        if text is None or text in spec.choices:
            return text
        self.error(key, f"'{shorten(text)}' is not a choice; {hint(text, spec.choices)}")
        return None

    def choices(self, key: str) -> tuple[str, ...] | None:
        """Return the values of an option that takes one choice or several; None if it is absent or
        was reported."""
        value = self.values.get(key)
        if value is None:
            return None
        words = value.split(",") if isinstance(value, str) else list_of(value)
        if not words or not all(isinstance(word, str) for word in words):
            self._wrong(key, "a string or a list of strings", value)
            return None
        chosen = tuple(dict.fromkeys(str(word).strip() for word in words))
        assert self.section is not None
        spec = option(self.section, key)
        for word in chosen:
            if word not in spec.choices:
                self.error(key, f"'{shorten(word)}' is not a choice; {hint(word, spec.choices)}")
                return None
        return chosen

    def table(self, key: str, section: Section | None = None) -> "Table | None":
        value = self.values.get(key)
        if value is None:
            return None
        values = table_of(value)
        if values is None:
            self._wrong(key, "a table", value)
            return None
        return Table(values, self.site.at(key), self.findings, section)

    def tables(self, key: str, section: Section | None = None) -> "dict[str, Table]":
        """Return the tables in a table such as `servers`, by name."""
        outer = self.table(key)
        if outer is None:
            return {}
        tables = {name: outer.table(name, section) for name in outer.values}
        return {name: table for name, table in tables.items() if table is not None}

    def list_tables(self, key: str, section: Section) -> "tuple[Table, ...]":
        """Return the tables in a list; an item that is not a table is reported and left out."""
        value = self.values.get(key)
        items = [] if value is None else list_of(value)
        if items is None:
            self._wrong(key, "a list of tables", value)
            return ()
        tables: list[Table] = []
        for at, item in enumerate(items):
            site, inner = self.site.at(key, at), table_of(item)
            if inner is None:
                self.findings.error(site, f"must be a table, not {kind_of(item)}")
            else:
                tables.append(Table(inner, site, self.findings, section))
        return tuple(tables)

    def error(self, key: str, message: str) -> None:
        self.findings.error(self.site.at(key), message)

    def _wrong(self, key: str, expected: str, value: object) -> None:
        self.error(key, f"must be {expected}, not {kind_of(value)}")


def _text(value: object, site: SourceLocation, findings: ConfigFindings) -> str | None:
    if not isinstance(value, str):
        findings.error(site, f"must be a string, not {kind_of(value)}")
    elif fault := flaw(value):
        findings.error(site, fault)
    else:
        return value
    return None


def flaw(text: str) -> str:
    """Return why a text cannot be passed to a process, or an empty string."""
    if "\0" in text:
        return "has a NUL character in it, which no program can be given"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair in it, which is not text"
    return ""
