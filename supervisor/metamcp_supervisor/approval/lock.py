"""`metamcp.lock`: the approved definitions of tools, in a file for version control.

Owns: the fingerprint of a definition, the values of the file, its text in both directions, and one
sentence for each mistake in it. Never: reading files (`lock_io`).

    {
      "version": 1,
      "servers": {
        "git": {
          "serverInfo": {"name":"mcp-git","version":"1.2.0"},
          "tools": {
            "git_commit": {
              "fingerprint": "v1:…",
              "definition": {
                "description": "…",
                "inputSchema": {…}
              }
            }
          }
        }
      }
    }

The file is JSON because definitions are JSON: TOML would have to keep a schema as text in quotes.
Each member of a definition has its own line, servers and tools are sorted by name, and nothing
changes its place, so that a diff between two versions of the file shows exactly what changed in the
tools. Comments and trailing commas are accepted, as in every JSON file here; they are lost when the
file is written again.

The fingerprint belongs to the definition below it. A user who changes one by hand has to change the
other too; `metamcp lock approve` does both.

A fingerprint is `v1:` and the SHA-256 of the members in canonical JSON (RFC 8785: no spaces,
members in order of their UTF-16 code units, a single way to write a string and a number). So
another order of members, `1.0` for `1` and `\\u0041` for `A` change nothing, but an invisible
character does. Whole numbers keep all their digits, which RFC 8785 cuts to those of a double: two
different numbers never look the same here.

`_meta` does not count. Programs use it to tell each other about a definition (times, ids of a
deployment), and the protocol gives it no meaning; people approve a fingerprint that changes without
cause without looking. A definition that programs read in different ways (a member written twice,
where some take the first and others the last; a number that no double holds; nested too deeply)
gets a fingerprint of its bytes: `raw:` and their SHA-256.

The decoder of bodies (`codec`) ignores members that are written twice and makes doubles of long
numbers, so this module has its own decoder, which is too slow for calls.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from msgspec import Raw, Struct

from metamcp_supervisor.config import formats, naming
from metamcp_supervisor.config.config import ConfigInvalid, Problem, Server
from metamcp_supervisor.config.document import (
    BrokenSyntax,
    ConfigDocument,
    ConfigFindings,
    SourceLocation,
    join_names,
    kind_of,
    shorten,
    table_of,
)
from metamcp_supervisor.config.naming import hint
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.codec import Malformed

MEMBERS = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons",
    "execution",
)  # fmt: skip
"""Members of a definition that count."""
SCHEME, RAW_SCHEME = "v1:", "raw:"
DEPTH_MAX = 100
"""Maximum levels of nested values. Schemas that people write have fewer than twenty."""
_POINT_DIGITS_MAX = 6
"""Number of zeros after the decimal point from which JavaScript writes an exponent."""


class Ambiguous(Malformed):
    """JSON that programs read in different ways. The text is the end of a sentence."""


def fingerprint(definition: bytes | Raw) -> str:
    """Return the fingerprint of a tool's definition, or of its bytes if it is broken. Never
    raises."""
    try:
        return fingerprint_of(read_definition(definition))
    except Malformed:
        return RAW_SCHEME + hashlib.sha256(bytes(definition)).hexdigest()


def fingerprint_of(definition: Mapping[str, object]) -> str:
    """Return the fingerprint of a definition that was read. Raises Ambiguous."""
    return SCHEME + hashlib.sha256(canonical(select_members(definition))).hexdigest()


def select_members(definition: Mapping[str, object]) -> dict[str, object]:
    """Return the members that count, in the order of MEMBERS."""
    return {name: definition[name] for name in MEMBERS if name in definition}


def read_definition(definition: bytes | Raw) -> dict[str, object]:
    """Decode a definition to plain values, whole numbers with all their digits. Raises
    codec.Malformed (Ambiguous is a kind of it)."""
    try:
        value: object = json.loads(
            bytes(definition),
            object_pairs_hook=_reject_duplicates,
            parse_float=_double,
            parse_constant=_none,
        )
    except Malformed:
        raise
    except RecursionError:
        raise Ambiguous("is nested too deeply") from None
    except ValueError as error:  # bytes that are not text, and more digits than Python converts
        raise Malformed(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("is not a JSON object")
    return cast("dict[str, object]", value)


def canonical(value: object) -> bytes:
    """Return a value in canonical JSON. Raises Ambiguous for a value that has none."""
    parts: list[str] = []
    _write(value, parts, 0)
    return "".join(parts).encode("utf-8", "surrogatepass")


def same(value: object, other: object) -> bool:
    """Whether both are the same JSON value. Unlike in Python, true is not 1. Raises Ambiguous."""
    return value == other and canonical(value) == canonical(other)


def _write(value: object, parts: list[str], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Ambiguous("is nested too deeply")
    if isinstance(value, str):
        parts.append(json.dumps(value, ensure_ascii=False))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int | float):
        parts.append(number(value))
    elif isinstance(value, list):
        mark = "["
        for item in cast("list[object]", value):
            parts.append(mark)
            _write(item, parts, depth + 1)
            mark = ","
        parts.append("]" if mark == "," else "[]")
    elif isinstance(value, dict):
        mark = "{"
        table = cast("dict[str, object]", value)
        for key in sorted(table, key=_units):
            parts.append(f"{mark}{json.dumps(key, ensure_ascii=False)}:")
            _write(table[key], parts, depth + 1)
            mark = ","
        parts.append("}" if mark == "," else "{}")
    else:
        raise Ambiguous(f"has a {type(value).__name__} in it, which JSON does not have")


def number(value: float) -> str:
    """Write a number as RFC 8785 does, but a whole number with all its digits. Raises Ambiguous."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Ambiguous("has a number in it that is none")
    try:
        if value == int(value):
            return str(int(value))
    except ValueError:  # more digits than Python converts
        raise Ambiguous("has a number with too many digits in it") from None
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    zeros = -int(exponent) - 1
    if zeros >= _POINT_DIGITS_MAX:
        return f"{digits}e{int(exponent)}"
    sign, bare = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    return f"{sign}0.{'0' * zeros}{bare.replace('.', '')}"


def _units(key: str) -> bytes:
    """Return the sort key of a member by RFC 8785: the order of JavaScript."""
    return key.encode("utf-16-be", "surrogatepass")


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Ambiguous("has a member twice")
    return members


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Ambiguous("has a number in it that no double holds")
    return value


def _none(name: str) -> object:
    raise Malformed(f"is not JSON: {name}")


VERSION = 1
NAME_CHARACTERS, DIGITS = 40, 16
"""Characters of the server's name, and digits of the digest, in a name from `definitions`: together
still a valid name of a server, behind its workspace."""
TOOLS_MAX = 100_000
"""Maximum tools in a file: a hundred times what a hundred servers have."""
_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>")


class LockedTool(Struct, frozen=True):
    """Approved tool. `definition`: the members that count (MEMBERS), without the name, as
    values."""

    fingerprint: str
    definition: Mapping[str, object]


class LockedServer(Struct, frozen=True):
    """Approved tools of a server. `name`, `version`: given by the server itself when its tools were
    approved, only for people to read."""

    name: str = ""
    version: str = ""
    tools: Mapping[str, LockedTool] = {}


class Lock(Struct, frozen=True):
    """Content of the file. `servers`: by their names in the configuration."""

    servers: Mapping[str, LockedServer] = {}


def definitions(servers: Iterable[Server]) -> dict[str, str]:
    """Return a key for the definitions of each server, by the name of the server: its name and a
    digest of its command, module or URL, so that another program under the same name has another
    key."""
    keys: dict[str, str] = {}
    for server in servers:
        written = server.command_written or server.command
        identity = [server.transport, written, server.module, server.url_written or server.url]
        digest = hashlib.sha256(json.dumps(identity).encode(errors="surrogateescape")).hexdigest()
        workspace, label = process_names.workspace_of(server.name), process_names.label(server.name)
        key = f"{label[:NAME_CHARACTERS]}-{digest[:DIGITS]}"
        keys[server.name] = process_names.within(workspace, key)
    return keys


class EncodedDefinition(Mapping[str, object]):
    """Definition kept as bytes and decoded at each access: a lock in memory consists mostly of
    definitions, which take ten times as much memory as values."""

    __slots__ = ("_bytes",)

    def __init__(self, definition: Mapping[str, object]) -> None:
        self._bytes = json.dumps(dict(definition), separators=(",", ":")).encode()

    def __getitem__(self, key: str) -> object:
        return self._parse_members()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parse_members())

    def __len__(self) -> int:
        return len(self._parse_members())

    def _parse_members(self) -> dict[str, object]:
        return cast("dict[str, object]", json.loads(self._bytes))


def fold_lock(lock: Lock) -> Lock:
    """Return the same lock with folded definitions, for a program that keeps the lock in memory."""
    return Lock({name: folded_server(server) for name, server in lock.servers.items()})


def folded_server(server: LockedServer) -> LockedServer:
    """Return the same entry with folded definitions."""
    tools = {
        name: LockedTool(tool.fingerprint, EncodedDefinition(tool.definition))
        for name, tool in server.tools.items()
    }
    return LockedServer(server.name, server.version, tools)


def prints(lock: Lock | None) -> dict[str, dict[str, str]] | None:
    """Return the approved fingerprints by server and tool; None without a lock."""
    if lock is None:
        return None
    return {
        name: {tool: each.fingerprint for tool, each in server.tools.items()}
        for name, server in lock.servers.items()
    }


def difference(old: Lock | None, new: Lock | None) -> str:
    """Return a sentence about the change from `old` to `new`, for the plan of a reload."""
    if new is None:
        return "it is gone, and what it held is not in force any more"
    count = sum(len(server.tools) for server in new.servers.values())
    tools = f"{count} tool" if count == 1 else f"{count} tools"
    of = "1 server" if len(new.servers) == 1 else f"{len(new.servers)} servers"
    summary = f"{tools} of {of} {'are approved' if count != 1 else 'is approved'}" + (
        "" if old is not None else ", in a file that was not there before"
    )
    before, now = _by_name(old or Lock()), _by_name(new)
    sorts = {
        "new": now.keys() - before.keys(),
        "otherwise than before": {name for name in now if before.get(name, now[name]) != now[name]},
        "no longer": before.keys() - now.keys(),
    }
    named = (f"{sort}: {join_names(sorted(names))}" for sort, names in sorts.items() if names)
    return "; ".join([summary, *named])


def _by_name(lock: Lock) -> dict[str, str]:
    """Return the fingerprints of all tools by `server.tool`."""
    return {
        f"{server}.{name}": tool.fingerprint
        for server, each in lock.servers.items()
        for name, tool in each.tools.items()
    }


def text(lock: Lock) -> str:
    """Write the lock as the text of a file. The same lock always gives the same text."""
    servers = [_server(name, lock.servers[name]) for name in sorted(lock.servers)]
    return f'{{\n  "version": {VERSION},\n  "servers": {_format_object(servers, 2)}\n}}\n'


def read(content: str, label: str) -> Lock:
    """Read the text of a file. `label`: name of the file in messages. Raises ConfigInvalid with
    every mistake."""
    findings = ConfigFindings()
    document = ConfigDocument(label, Path(), {}, lambda: formats.json_lines(content))
    try:
        values = formats.json_loads(content)
    except BrokenSyntax as error:
        message, line = _conflict(content) or (error.message, error.line)
        raise ConfigInvalid((Problem(label, "", message, line),)) from None
    lock = _Reader(SourceLocation(document), findings).lock(values)
    if findings.problems:
        raise ConfigInvalid(findings.list_errors())
    return lock


# Writing


def _server(name: str, server: LockedServer) -> str:
    members: list[str] = []
    if server.name or server.version:
        info = {"name": server.name, "version": server.version}
        members.append(f'"serverInfo": {_compact(info)}')
    tools = [_tool(each, server.tools[each]) for each in sorted(server.tools)]
    members.append(f'"tools": {_format_object(tools, 6)}')
    return f"{_format_string(name)}: {_format_object(members, 4)}"


def _tool(name: str, tool: LockedTool) -> str:
    definition = dict(tool.definition)
    definition_members = [
        f"{_format_string(key)}: {_compact(definition[key])}"
        for key in MEMBERS
        if key in definition
    ]
    members = [
        f'"fingerprint": {_format_string(tool.fingerprint)}',
        f'"definition": {_format_object(definition_members, 10)}',
    ]
    return f"{_format_string(name)}: {_format_object(members, 8)}"


def _format_object(members: list[str], indent: int) -> str:
    if not members:
        return "{}"
    inner = ",\n".join(" " * (indent + 2) + each for each in members)
    return f"{{\n{inner}\n{' ' * indent}}}"


def _compact(value: object) -> str:
    """Write a value in canonical JSON, so that the text does not depend on how the server writes
    it, and with invisible characters as escapes, so that a reviewer of the file sees them."""
    return _visible(canonical(value).decode("utf-8", "surrogatepass"))


def _format_string(text: str) -> str:
    return _visible(json.dumps(text, ensure_ascii=False))


def _visible(spelled: str) -> str:
    """Replace characters that are not printable by escapes; they occur only inside strings."""
    if spelled.isprintable():
        return spelled
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in spelled)


# Reading


class _Reader:
    def __init__(self, site: SourceLocation, findings: ConfigFindings) -> None:
        self._site = site
        self._findings = findings
        self._tools = 0

    def lock(self, values: Mapping[str, object]) -> Lock:
        self._check_keys(values, ("version", "servers"), self._site)
        version = values.get("version")
        if version is None:
            self._error(self._site, f"has no version; this program writes {VERSION}")
        elif version != VERSION or isinstance(version, bool):
            newer = f"{shorten(str(version))} is not known here; this program reads {VERSION}"
            self._error(self._site.at("version"), newer)
            return Lock()
        servers: dict[str, LockedServer] = {}
        for name, value in self._table(values, "servers", self._site).items():
            site = self._site.at("servers", name)
            if flaw := naming.full_flaw(name):
                self._error(site, f"the name of the server {flaw}")
            servers[name] = self._server(value, site)
        return Lock(servers)

    def _server(self, value: object, site: SourceLocation) -> LockedServer:
        table = table_of(value)
        if table is None:
            self._error(site, f"must be a table, not {kind_of(value)}")
            return LockedServer()
        self._check_keys(table, ("serverInfo", "tools"), site)
        info_site = site.at("serverInfo")
        info = self._table(table, "serverInfo", site, needed=False)
        self._check_keys(info, ("name", "version"), info_site)
        tools: dict[str, LockedTool] = {}
        for name, each in self._table(table, "tools", site).items():
            self._tools += 1
            if self._tools > TOOLS_MAX:
                self._error(site, f"has more than the {TOOLS_MAX} tools that are read at most")
                break
            tool = self._tool(name, each, site.at("tools", name))
            if tool is not None:
                tools[name] = tool
        return LockedServer(
            self._text(info, "name", info_site) or "",
            self._text(info, "version", info_site) or "",
            tools,
        )

    def _tool(self, name: str, value: object, site: SourceLocation) -> LockedTool | None:
        table = table_of(value)
        if table is None:
            self._error(site, f"must be a table, not {kind_of(value)}")
            return None
        self._check_keys(table, ("fingerprint", "definition"), site)
        file_fingerprint = self._text(table, "fingerprint", site, needed=True)
        definition = self._table(table, "definition", site)
        self._check_keys(
            definition, tuple(key for key in MEMBERS if key != "name"), site.at("definition")
        )
        if file_fingerprint is None or "definition" not in table:
            return None
        try:
            due = fingerprint_of({"name": name, **definition})
        except Malformed as error:
            self._error(site.at("definition"), str(error))
            return None
        if not file_fingerprint.startswith(SCHEME):
            self._error(
                site.at("fingerprint"),
                f"'{shorten(file_fingerprint)}' is not a fingerprint that is known here",
            )
        elif file_fingerprint != due:
            self._error(
                site.at("fingerprint"),
                "is not that of the definition below it: one of them was changed by hand; undo"
                " that, or take the tool out of the file and run 'metamcp lock approve'",
            )
        return LockedTool(due, definition)

    def _check_keys(
        self, table: Mapping[str, object], keys: tuple[str, ...], site: SourceLocation
    ) -> None:
        for key in table:
            if key not in keys:
                self._error(site.at(key), f"unknown key '{shorten(key)}'; {hint(key, keys)}")

    def _table(
        self, values: Mapping[str, object], key: str, site: SourceLocation, *, needed: bool = True
    ) -> Mapping[str, object]:
        value = values.get(key)
        table = table_of(value)
        if table is None and key in values:
            self._error(site.at(key), f"must be a table, not {kind_of(value)}")
        elif table is None and needed:
            self._error(site, f"has no '{key}'")
        return table or {}

    def _text(
        self, values: Mapping[str, object], key: str, site: SourceLocation, *, needed: bool = False
    ) -> str | None:
        value = values.get(key)
        if isinstance(value, str):
            return value
        if key in values:
            self._error(site.at(key), f"must be a string, not {kind_of(value)}")
        elif needed:
            self._error(site, f"has no '{key}'")
        return None

    def _error(self, site: SourceLocation, message: str) -> None:
        self._findings.error(site, message)


def _conflict(content: str) -> tuple[str, int] | None:
    """Find the first line that a merge conflict left. Return a message and the number of the line;
    None if there is none."""
    for number, line in enumerate(content.split("\n"), 1):
        if line.startswith(_CONFLICT):
            return "has a conflict that a merge left; settle it and read the file again", number
    return None
