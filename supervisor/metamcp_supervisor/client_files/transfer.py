"""Servers of other clients as tables of metamcp.toml.

Owns: which servers are imported, under which names, and how references and secrets in them are
written. Never: reading the files of clients (`texts`), writing files.

A secret is never copied: a reference to an environment variable takes its place, and a sentence
says which variable has to be set.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metamcp_supervisor.client_files import texts, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.client_files.entries import ClientServer
from metamcp_supervisor.config import formats, naming, show
from metamcp_supervisor.config.document import list_of, shown, table_of
from metamcp_worker.runtime.masking import Masks, looks_secret

_HARMLESS = {"accept", "accept-language", "content-type", "user-agent"}
_SCHEME = re.compile(r"(?:Bearer|Basic|Token) +", re.IGNORECASE)
_OF_SECRETS = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)
_OF_OPENCODE = re.compile(r"(?<!\$)\{env:([A-Za-z_]\w*)\}", re.ASCII)
_OF_SHELLS = re.compile(r"\$([A-Z_][A-Z0-9_]*)", re.ASCII)
_BRACED = re.compile(r"\$\{([^}]*)\}")
_KNOWN = re.compile(r"(?:env:)?[A-Za-z_]\w*(?::-.*)?|input:.+|file:.+", re.ASCII | re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
_FOLDER = "workspaceFolder"
_OWN = FileFormat("codex", "toml", ("servers",))
"""How metamcp.toml keeps its servers."""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """File to import from. `path`: for messages; `base`: the folder of its project, empty for a
    file that does not belong to a project; `own`: its references are those of metamcp.toml; `who`:
    the program that starts the servers."""

    path: str
    base: str
    servers: Sequence[ClientServer]
    own: bool = False
    who: str = "the gateway"


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of an import. `text`: metamcp.toml with the servers; `names`: the added servers;
    `told`: sentences for the user."""

    text: str
    names: tuple[str, ...]
    told: tuple[str, ...]


@dataclass(slots=True)
class Moving:
    """State of an import. `variables`: the variables that stand for secrets, with the secrets."""

    told: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def secret(
        self, server: str, variable: str, value: str, what: str, source: ImportSource
    ) -> str:
        """Return a reference that takes the place of a secret, and note a sentence about it."""
        if self.variables.setdefault(variable, value) != value:
            variable = f"{_variable(server)}_{variable}"
            self.variables[variable] = value
        self.told.append(
            f"{server}: {what} is not written: set {variable} in the environment of {source.who}"
            f" (its value is in {shown(source.path)})"
        )
        return f"${{env:{variable}}}"


def moved(sources: Sequence[ImportSource], there: Mapping[str, object], text: str) -> Moved:
    """Import the servers of all sources. `there`: the servers that `text`, a metamcp.toml, already
    has. Raises BrokenSyntax and FileUnfit."""
    moving = Moving()
    tables: dict[str, dict[str, object]] = {}
    from_where: dict[str, str] = {}
    for source in sources:
        for server in source.servers:
            name = naming.adapted(server.name) if naming.flaw(server.name) else server.name
            if not name or not (server.words or server.url):
                why = "has neither a command nor a URL" if name else "has no name that can be used"
                moving.told.append(f"{shown(server.name)} in {source.path} is left out: it {why}")
                continue
            attempt = Moving(variables=dict(moving.variables))
            table = settings(name, server, source, attempt)
            if table is None:
                moving.told += attempt.told
            elif name in there or name in tables:
                other = tables.get(name) or table_of(there.get(name)) or {}
                where = from_where.get(name, "metamcp.toml")
                same = _leads(other) == _leads(table)
                moving.told.append(
                    f"{name} in {source.path} is the same as in {where}"
                    if same
                    else f"{name} in {source.path} is left out: {where} has another server of that"
                    " name; rename one"
                )
            else:
                if name != server.name:
                    moving.told.append(f"{shown(server.name)} is called {name} here")
                moving.told += attempt.told
                moving.variables = attempt.variables
                tables[name], from_where[name] = table, source.path
    for name, table in tables.items():
        text = texts.put(_OWN, text, name, table)
    return Moved(text, tuple(tables), tuple(moving.told))


def included(text: str, paths: Sequence[str]) -> str:
    """Return `text`, a metamcp.toml, with these files in its `include`, at the top. Raises
    BrokenSyntax and FileUnfit."""
    values = formats.toml_loads(text)
    there = list_of(values.get("include")) or []
    missing = [path for path in paths if path not in there]
    if not missing:
        return text
    written = toml_edit.dumped(missing)
    if "include" in values:
        raise FileUnfit(f"has an 'include' already; add to it by hand: {written[1:-1]}")
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"include = {written}{newline}{text}"


def _leads(table: Mapping[str, object]) -> tuple[object, object]:
    return table.get("command"), table.get("url")


def settings(
    name: str, server: ClientServer, source: ImportSource, moving: Moving
) -> dict[str, object] | None:
    """Return the settings of a server; None, with a sentence, if the server needs an editor."""
    written = (
        *server.words,
        server.url,
        server.cwd,
        *server.env.values(),
        *server.headers.values(),
    )
    if not source.base and any(f"${{{_FOLDER}" in text for text in written):
        moving.told.append(
            f"{name} in {source.path} is left out: it means the folder that an editor has open"
        )
        return None
    found: dict[str, object] = {}
    if server.words:
        found["command"] = _command(name, server.words, source, moving)
    else:
        found["url"] = _url(name, server.url, source, moving)
        if server.transport != "auto":
            found["transport"] = server.transport
    if headers := _headers(name, server, source, moving):
        found["headers"] = headers
    if env := _env(name, server, source, moving):
        found["env"] = env
    cwd = _referring(server.cwd, source)
    if server.words and (cwd or source.base):
        relative = bool(source.base) and not cwd.startswith(("/", "~", "$"))
        found["cwd"] = f"{source.base}/{cwd}".rstrip("/") if relative else cwd
    if not server.enabled:
        found["enabled"] = False
    return found


def _command(name: str, words: Sequence[str], source: ImportSource, moving: Moving) -> list[str]:
    found: list[str] = []
    for word, masked in zip(words, show.masked(words), strict=True):
        if word != masked or _has_secret(word):
            variable = f"{_variable(name)}_ARGUMENT_{len(found)}"
            what = f"argument {len(found)} of its command"
            found.append(moving.secret(name, variable, word, what, source))
        else:
            found.append(_referring(word, source))
    return found


def _url(name: str, url: str, source: ImportSource, moving: Moving) -> str:
    if show.masked_url(url) != url or _has_secret(url):
        return moving.secret(name, f"{_variable(name)}_URL", url, "its URL", source)
    return _referring(url, source)


def _headers(
    name: str, server: ClientServer, source: ImportSource, moving: Moving
) -> dict[str, str]:
    found: dict[str, str] = {}
    for header, value in server.headers.items():
        written = _referring(value, source)
        if header.lower() in _HARMLESS or written != value or "${" in value:
            found[header] = written
            continue
        scheme = _SCHEME.match(value)
        head = scheme[0] if scheme else ""
        variable = f"{_variable(name)}_{_variable(header)}"
        secret = value.removeprefix(head)
        found[header] = head + moving.secret(name, variable, secret, header, source)
    return found


def _env(name: str, server: ClientServer, source: ImportSource, moving: Moving) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable, value in server.env.items():
        written = _referring(value, source)
        secret = value and (looks_secret(variable) or _has_secret(value))
        if secret and written == value and "${" not in value:
            found[variable] = moving.secret(name, variable, value, variable, source)
        else:
            found[variable] = written
    return found


def _has_secret(text: str) -> bool:
    """Whether a value looks like a secret, whatever its name. References do not."""
    return "${" not in text and Masks().text(text) != text


def _variable(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper()).strip("_")


def _referring(text: str, source: ImportSource) -> str:
    return text if source.own else referring(text, source.base)


def referring(text: str, base: str) -> str:
    """Rewrite the references of a client in the syntax of metamcp.toml. `base`: the folder of its
    project."""
    if whole := _OF_SHELLS.fullmatch(text):
        return f"${{env:{whole[1]}}}"
    text = _OF_SECRETS.sub(r"${env:\1}", text)
    text = _OF_OPENCODE.sub(r"${env:\1}", text)
    return _BRACED.sub(lambda found: _braced(found[0], found[1], base), text)


def _braced(whole: str, inner: str, base: str) -> str:
    if inner == _FOLDER:
        return base
    if inner == f"{_FOLDER}Basename":
        return base.rpartition("/")[2]
    if inner == "userHome":
        return "${HOME}"
    if inner in ("/", "pathSeparator"):
        return "/"
    return whole if _KNOWN.fullmatch(inner) else "$" + whole
