"""Servers of this gateway as the file of another program.

Owns: what each form of file can hold, and the sentences about what it cannot. Never: reading the
configuration, writing files.

A secret is never written: a reference takes its place. A file whose program knows no references
does not get the value at all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.client_files import clients, texts, transfer
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit, Shape
from metamcp_supervisor.client_files.transfer import OWN, CannotHold, TransferState
from metamcp_supervisor.config import client_entries, references, show, units
from metamcp_supervisor.config.config import Config, Endpoint, Server
from metamcp_supervisor.config.document import list_of, table_of
from metamcp_worker.ipc.process_names import DEFAULT, workspace_of
from metamcp_worker.runtime.masking import looks_secret

_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}", re.ASCII)
_BEARER = re.compile(r"Bearer \$\{(?:env:)?([A-Za-z_]\w*)\}", re.ASCII)
_GAP = "\0"
"""Character in the place of a reference; no value has it."""


class _FormatFeatures(Struct, frozen=True):
    """Things that a form of file can hold. `reference`: a reference to the variable NAME;
    `default`: the same with the default VALUE; `listed`: key of the variables that are passed on by
    name; `cwd`: whether a server can have a folder; `enabled`: key that says whether it runs;
    `kinds`: the word for each transport; `env`: key of the environment; `limits`: keys of time
    limits with the seconds of one unit; `allowed`, `refused`: keys of the lists of tools."""

    reference: str = ""
    default: str = ""
    listed: str = ""
    cwd: bool = False
    enabled: Literal["", "enabled", "disabled"] = ""
    kinds: Mapping[str, str] = {}
    env: str = "env"
    limits: Mapping[str, tuple[str, float]] = {}
    allowed: str = ""
    refused: str = ""


_HTTP_OR_SSE = {"http": "http", "sse": "sse"}
_MS, _S = {"timeout": ("timeout", 0.001)}, {"timeout": ("timeout", 1.0)}
_HOLDS: Mapping[Shape, _FormatFeatures] = {
    "claude": _FormatFeatures("${NAME}", default="${NAME:-VALUE}", kinds=_HTTP_OR_SSE, limits=_MS),
    "desktop": _FormatFeatures(),
    "cursor": _FormatFeatures("${env:NAME}"),
    "vscode": _FormatFeatures("${env:NAME}", cwd=True, kinds=_HTTP_OR_SSE),
    "windsurf": _FormatFeatures("${env:NAME}", enabled="disabled", refused="disabledTools"),
    "codex": _FormatFeatures(
        listed="env_vars", cwd=True, enabled="enabled",
        limits={"timeout": ("tool_timeout_sec", 1.0),
                "start_timeout": ("startup_timeout_sec", 1.0)},
        allowed="enabled_tools", refused="disabled_tools",
    ),
    "gemini": _FormatFeatures(
        "${NAME}", cwd=True, kinds=_HTTP_OR_SSE, limits=_MS, allowed="includeTools",
        refused="excludeTools",
    ),
    "zed": _FormatFeatures(enabled="enabled", limits=_S),
    "cline": _FormatFeatures(
        cwd=True, enabled="disabled", kinds={"http": "streamableHttp", "sse": "sse"}, limits=_S,
    ),
    "continue": _FormatFeatures(
        "${{ secrets.NAME }}", cwd=True, kinds={"http": "streamable-http", "sse": "sse"},
        limits={"start_timeout": ("connectionTimeout", 0.001)},
    ),
    "goose": _FormatFeatures(
        listed="env_keys", enabled="enabled", env="envs",
        kinds={"http": "streamable_http", "sse": "sse"}, limits=_S, allowed="available_tools",
    ),
    "opencode": _FormatFeatures("{env:NAME}", enabled="enabled", env="environment",
                       limits={"start_timeout": ("timeout", 0.001)}),
}  # fmt: skip


class ExportResult(Struct, frozen=True):
    """Result of an export. `names`: servers in `text`; `told`: sentences for the user."""

    text: str
    names: tuple[str, ...]
    told: tuple[str, ...]


def export_servers(
    config: Config, names: Sequence[str], file_format: FileFormat, title: str, home: str
) -> ExportResult:
    """Return these servers as a file of a client. `title`: the client, for messages. Raises
    FileUnfit."""
    notes: list[str] = []
    written: list[str] = []
    text = ""
    for name in names:
        try:
            common, ours, sentences = _settings(config.servers[name], title)
            lost = list(ours)
            entry = _entry(file_format.shape, name, common, lost, home)
            entry |= _limits(_HOLDS[file_format.shape], ours, lost)
            entry |= _switches(_HOLDS[file_format.shape], ours, lost)
            text = texts.put(file_format, text, name, entry)
        except (CannotHold, FileUnfit) as error:
            notes.append(f"{name} is left out: {error}")
            continue
        written.append(name)
        notes += sentences
        if lost:
            notes.append(_left_out(name, lost, title))
    return ExportResult(text, tuple(written), tuple(notes))


def _left_out(name: str, lost: Sequence[str], title: str) -> str:
    *more, last = lost
    subject = f"{', '.join(more)} and {last} are" if more else f"{last} is"
    pronoun = "them" if more else "it"
    return f"{name}: {subject} left out: the file of {title} has no place for {pronoun}"


def own(config: Config, names: Sequence[str], endpoints: Iterable[str]) -> ExportResult:
    """Return these servers as metamcp.toml, with these endpoints and their namespaces. Raises
    FileUnfit."""
    text, notes, written = "", list[str](), list[str]()
    for name in names:
        try:
            common, ours, sentences = _settings(config.servers[name], "the gateway")
        except CannotHold as error:
            notes.append(f"{name} is left out: {error}")
            continue
        text = texts.put(OWN, text, name, common | ours)
        written.append(name)
        notes += sentences
    chosen: list[Endpoint] = []
    for endpoint in (config.endpoints[name] for name in endpoints):
        if workspace_of(endpoint.namespace) == DEFAULT:
            chosen.append(endpoint)
        else:
            notes.append(f"the endpoint {endpoint.name} is left out: it belongs to a workspace")
    for namespace in dict.fromkeys(endpoint.namespace for endpoint in chosen):
        servers = [name for name in config.namespaces[namespace].servers if name in written]
        table = show.find_changed_settings(config, "namespaces", namespace) | {"servers": servers}
        text = texts.put(replace(OWN, place=("namespaces",)), text, namespace, table)
    for endpoint in chosen:
        table = show.find_changed_settings(config, "endpoints", endpoint.name)
        if show.MASK in str(table.get("oauth")):
            del table["oauth"]
            notes.append(f"{endpoint.name}: oauth is left out: its client_secret is not written")
        text = texts.put(replace(OWN, place=("endpoints",)), text, endpoint.name, table)
    return ExportResult(text, tuple(written), tuple(notes))


def _settings(server: Server, who: str) -> tuple[dict[str, object], dict[str, object], list[str]]:
    """Return the settings of a server that other programs have too, those of this gateway alone,
    and sentences. Raises CannotHold."""
    moving = TransferState(server.source.partition(": ")[0], who)
    return *transfer.settings(server, moving, (server.folder,)), moving.told


def _entry(
    shape: Shape, name: str, common: Mapping[str, object], lost: list[str], home: str
) -> dict[str, object]:
    """Return a server as an entry of a client, and add to `lost` what has no place in it. Raises
    CannotHold."""
    holds = _HOLDS[shape]
    words = [_render_required(word, holds) for word in list_of(common.get("command")) or ()]
    url = _render_required(common.get("url", ""), holds)
    transport = str(common.get("transport", "auto"))
    if not words and not url:
        raise CannotHold("it is neither a command nor a URL")
    if url and not clients.can_http(shape):
        raise CannotHold("the file can name commands only")
    entry = clients.entry(shape, name, words=words, url=url)
    if shape == "goose":
        entry["description"] = name
        del entry["timeout"]
    if url and holds.kinds and not (shape == "gemini" and transport != "sse"):
        entry.pop("httpUrl", "")
        address = {} if shape == "goose" else {"url": url}
        entry |= {"type": holds.kinds["sse" if transport == "sse" else "http"], **address}
    elif transport != "auto" and not holds.kinds:
        lost.append("transport")
    entry |= _environment(holds, _texts(common.get("env")), lost)
    entry |= _headers(shape, holds, _texts(common.get("headers")), lost)
    if cwd := str(common.get("cwd", "")):
        folder = _render_value(cwd.replace("~", home, 1) if cwd.startswith("~") else cwd, holds)
        if holds.cwd and folder is not None:
            entry["cwd"] = folder
        else:
            lost.append("cwd")
    if common.get("enabled", True) is False:
        if not holds.enabled:
            raise CannotHold("it is not enabled, and the file has no word for that")
        entry[holds.enabled] = holds.enabled == "disabled"
    return entry


def _environment(
    holds: _FormatFeatures, env: Mapping[str, str], lost: list[str]
) -> dict[str, object]:
    """Return the environment of a server, and the variables that its client passes on by name."""
    values: dict[str, str] = {}
    listed_names: list[str] = []
    for variable, text in env.items():
        rendered = _render_value(text, holds)
        if holds.listed and text in (f"${{env:{variable}}}", f"${{{variable}}}"):
            listed_names.append(variable)
        elif rendered is None:
            lost.append(f"the variable {variable}")
        else:
            values[variable] = rendered
    settings: dict[str, object] = {holds.env: values} if values else {}
    return settings | ({holds.listed: listed_names} if listed_names else {})


def _limits(
    holds: _FormatFeatures, ours: Mapping[str, object], lost: list[str]
) -> dict[str, object]:
    """Return the time limits of a server under the keys of a client."""
    limits: dict[str, object] = {}
    for key, (theirs, unit_s) in holds.limits.items():
        count = units.duration(ours[key]) / unit_s if key in ours else 0
        if count and count == round(count):
            limits[theirs] = round(count)
            lost.remove(key)
    return limits


def _switches(
    holds: _FormatFeatures, ours: Mapping[str, object], lost: list[str]
) -> dict[str, object]:
    """Return the lists of tools of a client, if they can say the same."""
    tools = {
        name: table_of(each) or {} for name, each in (table_of(ours.get("tools")) or {}).items()
    }
    switches = {name: each.get("enabled") for name, each in tools.items()}
    allowed = [name for name, on in switches.items() if on]
    refused = [name for name, on in switches.items() if on is False and name != "*"]
    only = switches.get("*") is False
    fits = all(each.keys() == {"enabled"} for each in tools.values()) and (
        (bool(holds.allowed) if only else not allowed) and (not refused or bool(holds.refused))
    )
    if not tools or not fits:
        return {}
    lost.remove("tools")
    lists: dict[str, object] = {holds.allowed: allowed} if only else {}
    return lists | ({holds.refused: refused} if refused else {})


def _headers(
    shape: Shape, holds: _FormatFeatures, headers: Mapping[str, str], lost: list[str]
) -> dict[str, object]:
    """Return the headers that are sent to a remote server, under the keys of a client."""
    values: dict[str, str] = {}
    variables: dict[str, str] = {}
    token = ""
    for header, text in headers.items():
        rendered = _render_value(text, holds)
        if rendered is not None:
            values[header] = rendered
        elif shape == "codex" and (match := _REFERENCE.fullmatch(text)):
            variables[header] = match[1]
        elif shape == "codex" and header == "Authorization" and (match := _BEARER.fullmatch(text)):
            token = match[1]
        else:
            lost.append(f"the header {header}")
    if shape == "codex":
        tables = (("http_headers", values), ("env_http_headers", variables))
        settings: dict[str, object] = {key: table for key, table in tables if table}
        return settings | ({"bearer_token_env_var": token} if token else {})
    if not values:
        return {}
    return {"requestOptions": {"headers": values}} if shape == "continue" else {"headers": values}


def _render_required(value: object, holds: _FormatFeatures) -> str:
    """Return a value without which a server does not work. Raises CannotHold."""
    rendered = _render_value(str(value), holds)
    if rendered is None:
        raise CannotHold("its command or URL has a reference that the file cannot hold")
    return rendered


def _render_value(text: str, holds: _FormatFeatures) -> str | None:
    """Return a value of metamcp.toml as a client reads it; None if its file cannot hold it."""
    rendered: list[str] = []
    plain = "".join(
        _GAP if is_reference else piece for piece, is_reference in references.pieces(text)
    )
    if references.refers(plain) or client_entries.refer(plain, "", "") != plain:
        return None  # plain text here, but a reference for the client or for `import`
    for piece, is_reference in references.pieces(text):
        variable = references.variable_of(piece) if is_reference else None
        if not is_reference:
            rendered.append(piece)
        elif variable is None or not holds.reference:
            return None
        elif variable[1] is None or looks_secret(variable[0]):
            rendered.append(holds.reference.replace("NAME", variable[0]))
        elif holds.default:
            written = holds.default.replace("NAME", variable[0])
            rendered.append(written.replace("VALUE", variable[1]))
        else:
            return None
    return "".join(rendered)


def _texts(value: object) -> dict[str, str]:
    return {name: str(text) for name, text in (table_of(value) or {}).items()}
