"""Servers as tables of metamcp.toml that hold no secret.

Owns: which servers are imported, under which names, and how references and secrets in them are
written. Never: reading the files of clients (`disk`, `config.foreign_files`), writing files.

A secret is never copied: a reference to an environment variable takes its place, and a sentence
says which variable has to be set; or a reference to a file for its value alone, where the caller
names a folder for them.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from metamcp_supervisor.client_files import texts, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config import formats, references, show
from metamcp_supervisor.config.config import PrivateStruct, Server
from metamcp_supervisor.config.document import list_of, shorten, table_of
from metamcp_supervisor.config.program import start_timeout_s
from metamcp_worker.ipc.process_names import DEFAULT, workspace_of
from metamcp_worker.runtime.masking import SecretMasker, looks_secret

OWN = FileFormat("codex", "toml", ("servers",))
"""How metamcp.toml keeps its servers."""
_HARMLESS = {"accept", "accept-language", "content-type", "user-agent"}
_SCHEME = re.compile(r"(?:Bearer|Basic|Token) +", re.IGNORECASE)
_DEFAULT = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*):-[^}]*\}", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
COMMON = ("command", "url", "transport", "headers", "env", "cwd", "enabled")
"""Keys that most forms of files have in some way."""


class CannotHold(Exception):
    """A server has no place in a file; the text ends a sentence."""


class ImportSource(Struct, frozen=True):
    """File to import from. `path`: for messages; `folders`: in which a server starts without a word
    about it."""

    path: str
    servers: Sequence[Server]
    folders: Collection[str] = ()


class ImportResult(PrivateStruct, frozen=True):
    """Result of an import. `text`: metamcp.toml with the servers; `names`: the added servers;
    `same`: servers that it had already; `told`: sentences for the user; `secrets`: the values in
    the folder of secrets, by name."""

    HIDDEN = frozenset({"secrets"})

    text: str
    names: tuple[str, ...]
    told: tuple[str, ...]
    same: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}


class TransferState(PrivateStruct, frozen=True):
    """State of an import or an export. `path`: the file that has the secrets; `who`: the program
    that starts the servers; `folder`: where each secret gets a file, empty if it gets none;
    `variables`: the variables, or names of files, that stand for secrets, with the secrets."""

    HIDDEN = frozenset({"variables"})

    path: str = ""
    who: str = "the gateway"
    folder: str = ""
    told: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def secret(self, server: str, variable: str, value: str, subject: str) -> str:
        """Return a reference that takes the place of a secret, and note a sentence about it."""
        if self.variables.setdefault(variable, value) != value:
            variable = f"{_variable(server)}_{variable}"
            self.variables[variable] = value
        if self.folder:
            return f"${{file:{self.folder}/{variable}}}"
        self.told.append(
            f"{server}: {subject} is not written: set {variable} in the environment of {self.who}"
            f" (its value is in {shorten(self.path)})"
        )
        return f"${{env:{variable}}}"


def import_sources(
    sources: Sequence[ImportSource],
    there: Mapping[str, object],
    text: str,
    folder: str = "",
    secrets: Mapping[str, str] | None = None,
) -> ImportResult:
    """Import the servers of all sources. `there`: the servers that `text`, a metamcp.toml, already
    has; `folder`: where each secret gets a file of its own, empty for variables in place of files;
    `secrets`: those that it has, by name. Raises BrokenSyntax and FileUnfit."""
    moving = TransferState(folder=folder, variables=dict(secrets or {}))
    same: list[str] = []
    tables: dict[str, dict[str, object]] = {}
    from_where: dict[str, str] = {}
    for source in sources:
        for server in source.servers:
            attempt = TransferState(source.path, folder=folder, variables=dict(moving.variables))
            common, ours = settings(server, attempt, source.folders)
            table, name = common | ours, server.name
            if name in there or name in tables:
                other = tables.get(name) or table_of(there.get(name)) or {}
                other_path = from_where.get(name, "metamcp.toml")
                is_same = _leads(other) == _leads(table)
                same += [name] * is_same
                moving.told.append(
                    f"{name} in {source.path} is the same as in {other_path}"
                    if is_same
                    else f"{name} in {source.path} is left out: {other_path} has another server of"
                    " that name; rename one"
                )
            else:
                moving.told.extend(attempt.told)
                moving.variables.update(attempt.variables)
                tables[name], from_where[name] = table, source.path
    for name, table in tables.items():
        text = texts.put(OWN, text, name, table)
    secret_files = moving.variables if folder else {}
    return ImportResult(text, tuple(tables), tuple(moving.told), tuple(same), secret_files)


def with_include(text: str, paths: Sequence[str]) -> str:
    """Return `text`, a metamcp.toml, with these files in its `include`, at the top. Raises
    BrokenSyntax and FileUnfit."""
    values = formats.toml_loads(text)
    there = list_of(values.get("include")) or []
    missing = [path for path in paths if path not in there]
    if not missing:
        return text
    written = toml_edit.format_value(missing)
    if "include" in values:
        raise FileUnfit(f"has an 'include' already; add to it by hand: {written[1:-1]}")
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"include = {written}{newline}{text}"


def _leads(table: Mapping[str, object]) -> tuple[object, object]:
    return table.get("command"), table.get("url")


def settings(
    server: Server, moving: TransferState, folders: Collection[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the settings of a server that other programs have too, and the settings of this
    gateway alone that differ from their defaults. Both are as metamcp.toml writes them, with a
    reference for each secret. `folders`: those that are not written. Raises CannotHold."""
    if server.mistake:
        raise CannotHold("its table has a mistake, which 'metamcp config check' names")
    if workspace_of(server.name) != DEFAULT:
        raise CannotHold("it belongs to a workspace")
    name = server.name
    common: dict[str, object] = {}
    if words := [_drop_secret_defaults(word) for word in server.command_written]:
        common["command"] = _command(name, words, moving)
    elif url := _drop_secret_defaults(server.url_written or ""):
        common["url"] = _url(name, url, moving)
        if server.transport != "auto":
            common["transport"] = server.transport
    if headers := _headers(name, _clean_values(server.headers_written), moving):
        common["headers"] = headers
    if env := _env(name, _clean_values(server.env_written), moving):
        common["env"] = env
    folder = str(server.cwd or "")
    if words and folder and folder not in folders:
        common["cwd"] = folder
    if not server.enabled:
        common["enabled"] = False
    return common, _only_ours(server, moving)


def _only_ours(server: Server, moving: TransferState) -> dict[str, object]:
    """Return the settings of this gateway alone that differ from their defaults."""
    bare = Server(name=server.name, source=server.source)
    timeout_s = start_timeout_s(server.command, bare.start_timeout_s)
    default = replace(
        bare, command=server.command, url=server.url, strict_listing=False,
        start_timeout_s=timeout_s,
    )  # fmt: skip
    table, unset = show.server_table(server), show.server_table(default)
    ours = {
        key: value
        for key, value in table.items()
        if (key not in COMMON or (key == "transport" and not server.url))
        and value != unset.get(key, False)
    }
    if server.options_written:
        ours["options"] = _env(server.name, _clean_values(server.options_written), moving)
    if server.oauth_written is not None and (secret := server.oauth_written.client_secret):
        if not references.refers(secret):
            variable = f"{_variable(server.name)}_CLIENT_SECRET"
            subject = "the client_secret of its oauth"
            secret = moving.secret(server.name, variable, secret, subject)
        ours["oauth"] = {**(table_of(ours["oauth"]) or {}), "client_secret": secret}
    return ours


def _drop_secret_defaults(text: str) -> str:
    """Return a value whose references to secrets have no default, since the default is one."""
    return _DEFAULT.sub(
        lambda match: f"${{env:{match[1]}}}" if looks_secret(match[1]) else match[0], text
    )


def _clean_values(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _drop_secret_defaults(text) for name, text in values.items()}


def _command(name: str, words: Sequence[str], moving: TransferState) -> list[str]:
    command: list[str] = []
    for word, masked in zip(words, show.mask_arguments(words), strict=True):
        if word != masked or _has_secret(word):
            variable = f"{_variable(name)}_ARGUMENT_{len(command)}"
            subject = f"argument {len(command)} of its command"
            command.append(moving.secret(name, variable, word, subject))
        else:
            command.append(word)
    return command


def _url(name: str, url: str, moving: TransferState) -> str:
    if show.masked_url(url) != url or _has_secret(url):
        return moving.secret(name, f"{_variable(name)}_URL", url, "its URL")
    return url


def _headers(name: str, headers: Mapping[str, str], moving: TransferState) -> dict[str, str]:
    written: dict[str, str] = {}
    for header, value in headers.items():
        if header.lower() in _HARMLESS or "${" in value:
            written[header] = value
            continue
        scheme = _SCHEME.match(value)
        head = scheme[0] if scheme else ""
        variable = f"{_variable(name)}_{_variable(header)}"
        written[header] = head + moving.secret(name, variable, value.removeprefix(head), header)
    return written


def _env(name: str, env: Mapping[str, str], moving: TransferState) -> dict[str, str]:
    written: dict[str, str] = {}
    for variable, value in env.items():
        secret = value and (looks_secret(variable) or _has_secret(value)) and "${" not in value
        written[variable] = moving.secret(name, variable, value, variable) if secret else value
    return written


def _has_secret(text: str) -> bool:
    """Whether a value looks like a secret, whatever its name. References do not."""
    return "${" not in text and SecretMasker().text(text) != text


def _variable(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper()).strip("_")
