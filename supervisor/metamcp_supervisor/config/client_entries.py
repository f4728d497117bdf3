"""Entry of a server in the file of an MCP client, in the words of metamcp.toml.

Owns: keys, units and references of clients, and a sentence for each thing that is not carried over.
Never: where a file keeps its servers (`client_shapes`), what a value of metamcp.toml means
(`parse`).
"""

import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import PureWindowsPath

from msgspec import Struct

from metamcp_supervisor.config.client_shapes import (
    ADDRESSES,
    ClientFacts,
    is_comment,
    is_entry,
    texts_of,
)
from metamcp_supervisor.config.document import Place, list_of, shorten, table_of
from metamcp_supervisor.config.references import input_variable
from metamcp_supervisor.config.units import DURATION_S_MAX

TIMEOUT_S_MIN = 1.0
"""Minimum seconds of a time limit that is carried over; Claude Code ignores shorter ones, too."""


LIMITS: Mapping[str, tuple[str, float]] = {
    "tool_timeout_sec": ("timeout", 1.0), "tool_timeout_seconds": ("timeout", 1.0),
    "read_timeout_seconds": ("timeout", 1.0), "timeoutSeconds": ("timeout", 1.0),
    "timeout_seconds": ("timeout", 1.0), "timeout_sec": ("timeout", 1.0),
    "timeoutMs": ("timeout", 0.001), "timeout_ms": ("timeout", 0.001),
    "requestTimeout": ("timeout", 0.001),
    "startup_timeout_sec": ("start_timeout", 1.0), "startup_timeout_ms": ("start_timeout", 0.001),
    "connectionTimeout": ("start_timeout", 0.001), "initTimeout": ("start_timeout", 0.001),
}  # fmt: skip
"""Time limits that mean the same in every file (Codex, fast-agent, 1MCP, Continue, LibreChat), with
their keys in metamcp.toml and the seconds of one unit."""
_ALLOWED = ("includeTools", "include_tools", "enabledTools", "enabled_tools", "available_tools",
            "allowedTools", "allowed_tools")  # fmt: skip
_REFUSED = ("excludeTools", "exclude_tools", "disabledTools", "disabled_tools", "blockedTools",
            "excluded_tools")  # fmt: skip
"""Keys for lists of tools; those that are refused win."""
_TOOL_SETTINGS: Mapping[str, type] = {"enabled": bool, "hidden": bool, "name": str}
"""Keys that are read of a tool in the table `tools`."""
_KINDS = ("type", "transport", "transportType", "protocol")
"""Keys that can hold the kind of a server; the first one with a string counts."""
_STARTED = {"stdio", "local"}
_REMOTE: Mapping[str, str] = {
    "http": "http", "https": "http", "streamable-http": "http", "streamablehttp": "http",
    "remote": "auto", "sse": "sse", "url": "auto",
}  # fmt: skip
"""Kinds of remote servers, and the transport that each means."""
_OF_GOOSE = {"builtin", "platform", "frontend", "inline-python"}
"""Kinds of goose extensions that are parts of goose itself."""
_OAUTH_KEYS = (
    ("clientId", "client_id", "CLIENT_ID"),
    ("clientSecret", "client_secret", "CLIENT_SECRET"),
    ("clientMetadataUrl", "client_metadata_url"),
)
_OF_CLIENTS = {
    "alwaysAllow", "autoApprove", "bundled", "chatMenu", "default_tools_approval_mode",
    "description", "dev", "disabledAutoApproveTools", "displayName", "display_name", "gallery",
    "icon", "iconPath", "icons", "id", "logo", "metadata", "name", "namespaceId", "note", "notes",
    "supports_parallel_tool_calls", "tags", "title", "trust", "version",
}  # fmt: skip
"""Keys that describe a server to people, or say what its client asks them: nothing is lost."""
_SECRETS = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)
_OPENCODE = re.compile(r"(?<!\$)\{(env|file):([^{}]+)\}", re.ASCII)
_WHOLE_DOLLAR = re.compile(r"((?:(?:Bearer|Basic|Token) +)?)\$([A-Z_][A-Z0-9_]*)", re.ASCII)
_ANY_DOLLAR = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)", re.ASCII)
_BRACED = re.compile(r"\$\{([^}]*)\}")
_REFERENCES = re.compile(
    r"(?:env:)?[A-Za-z_]\w*(?::-.*)?"
    r"|(?:input|file|cred|credential|cmd|keyring|config|command|workspaceFolder):.+",
    re.ASCII | re.DOTALL,
)
_INPUT = re.compile(r"\$\{input:([^}]*)\}")
_FOLDER = "workspaceFolder"
_NOTHING: Mapping[str, str] = {}


class ClientEntry(Struct):
    """Entry of a client in the words of metamcp.toml. `values`: may still have wrong types;
    `renamed`: the client's own place of a key; `oauth_keys`: its names for id, secret and metadata;
    `kind`: of a remote server, as written, else empty; `lost`: what is not carried over, by its
    place below the entry; `faults`: why it cannot run here; `left_out`: why a gateway cannot have
    it; `env_file`: file with variables."""

    values: dict[str, object] = {}
    renamed: dict[str, Place] = {}
    oauth_keys: tuple[str, str, str] = ("clientId", "clientSecret", "clientMetadataUrl")
    kind: str = ""
    lost: list[tuple[Place, str]] = []
    faults: list[tuple[Place, str]] = []
    left_out: str = ""
    env_file: str = ""


# One entry


def read(
    written: Mapping[str, object],
    client: ClientFacts,
    *,
    folder: str,
    home: str,
    defaults: Mapping[str, str] = _NOTHING,
    is_yaml: bool = False,
) -> ClientEntry:
    """Return an entry in the words of metamcp.toml. `folder`: what `${workspaceFolder}` stands for,
    empty where only an editor knows it; `home`: what `${userHome}` stands for; `defaults`: values
    of inputs that VS Code would suggest."""
    reading = _EntryReader(written, client, folder, home, defaults, is_yaml=is_yaml)
    reading.read()
    return reading.made


class _EntryReader:
    """Entry while it is read. `left`: keys that nothing has read yet."""

    def __init__(
        self,
        written: Mapping[str, object],
        client: ClientFacts,
        folder: str,
        home: str,
        defaults: Mapping[str, str],
        *,
        is_yaml: bool,
    ) -> None:
        self.written, self.client = written, client
        self.folder, self.home, self.is_yaml = folder, home, is_yaml
        self.defaults = defaults
        self.left = {key: value for key, value in written.items() if value is not None}
        self.made = ClientEntry()

    def read(self) -> None:
        kind = next((v for key in _KINDS if isinstance(v := self.written.get(key), str)), "")
        kind = kind.lower().replace("_", "-")
        self._drop(*_KINDS, *_OF_CLIENTS, *filter(is_comment, list(self.left)))
        if self._is_left_out(kind):
            return
        address = self._take("url", *ADDRESSES)
        program = self._take("command", "command", "cmd")
        if kind in _REMOTE or (address and not program):
            self.made.kind = kind if kind in _REMOTE else "url"
            self.made.values.pop("command", None)
            self._drop("args")
            transport = "http" if address == "httpUrl" else _REMOTE.get(kind, "auto")
            self.made.values |= {"transport": transport} if transport != "auto" else {}
            self._read_headers()
            self._read_oauth()
        else:
            self.made.values.pop("url", None)
            self._read_program()
            self._read_environment()
        self._read_switches()
        self._read_limits()
        self._read_enabled()
        for key, value in self.left.items():
            if value not in ({}, [], "", False):  # nothing is set there
                self._lose(key)
        self.made.values = {
            key: self._convert_references(each) for key, each in self.made.values.items()
        }
        self._check_platform()
        self._check_folder()

    def _take(self, ours: str, *theirs: str) -> str:
        """Move the value of the first of these keys to `ours`, and return that key; empty if the
        entry has none. Other keys of the same meaning count as read."""
        first = next((key for key in theirs if key in self.left), "")
        if first:
            self.made.values[ours] = self.left[first]
            self.made.renamed[ours] = (first,)
        self._drop(*theirs)
        return first

    def _drop(self, *keys: str) -> None:
        for key in keys:
            self.left.pop(key, None)

    def _lose(self, *location: str | int, reason: str = "") -> None:
        self.made.lost.append((location, f"is not carried over{f': {reason}' if reason else ''}"))

    def _is_left_out(self, kind: str) -> bool:
        if "uses" in self.left:
            self.made.left_out = "is a block of Continue's hub; write its command or URL"
        elif kind in _OF_GOOSE:
            self.made.left_out = "is a part of goose"
        elif self.left.get("source") == "extension" or (
            "settings" in self.left and not is_entry(self.written)
            and table_of(self.written.get("command")) is None
        ):  # fmt: skip
            self.made.left_out = "belongs to an extension of Zed, which starts it"
        elif kind not in {"", "auto", *_REMOTE, *_STARTED} and "command" not in self.left:
            self.made.left_out = (
                f"has the type '{shorten(kind)}', and this version runs programs and reaches"
                " servers by HTTP"
            )
        if not table_of(self.left.get("settings")):
            self._drop("settings")
        self._drop("source")
        return bool(self.made.left_out)

    def _read_program(self) -> None:
        older = table_of(self.made.values.get("command"))  # Zed before 2025
        if older is not None:
            self.made.values["command"] = older.get("path")
            self.left |= {key: each for key, each in older.items() if key != "path"}
        if "args" in self.left:
            self.made.values["args"] = self.left.pop("args")
        self._take("cwd", "cwd", "workingDirectory", "working_directory", "working_dir")

    def _read_environment(self) -> None:
        key = self._take("env", "env", "envs", "environment")
        values = self.made.values.get("env")
        table = table_of(values)
        named: dict[str, object] = {}
        for listed in ("env_keys", "envKeys", "env_vars"):
            for at, item in enumerate(list_of(self.left.pop(listed, None)) or ()):
                inner = table_of(item) or {"name": item}
                if isinstance(name := inner.get("name"), str):
                    named[name] = f"${{env:{name}}}"
                else:
                    self._lose(listed, at)
        if table is not None:
            texts = {
                name: _yaml_text(each) if self.is_yaml else each for name, each in table.items()
            }
            self.made.values["env"] = named | texts
        elif named and not key:
            self.made.values["env"] = named
        file = self.left.get("envFile", self.left.get("env_file"))
        if isinstance(file, str):
            self.made.env_file = str(self._convert_references(file))
            self._drop("envFile", "env_file")

    def _read_headers(self) -> None:
        inner = table_of(self.left.pop("requestOptions", None))
        self._take("headers", "headers", "http_headers")
        if inner is not None:
            for key, each in inner.items():
                if key == "headers" and "headers" not in self.made.values:
                    self.made.values["headers"] = each
                    self.made.renamed["headers"] = ("requestOptions", "headers")
                elif key == "timeout":
                    self._lose("requestOptions", key, reason=self._unclear(each))
                else:
                    self._lose("requestOptions", key)
        further: dict[str, object] = {
            header: f"${{env:{variable}}}"
            for header, variable in (
                table_of(self.left.pop("env_http_headers", None)) or {}
            ).items()
        }
        token = self.left.get("bearer_token_env_var")
        if isinstance(token, str):
            self._drop("bearer_token_env_var")
            further["Authorization"] = f"Bearer ${{env:{token}}}"
        table = table_of(self.made.values.get("headers", {}))
        if further and table is not None:
            self.made.values["headers"] = table | further

    def _read_oauth(self) -> None:
        key = next((each for each in ("oauth", "auth") if each in self.left), "")
        value = self.left.pop(key, None) if key else None
        scopes = next(
            (self.left.pop(each) for each in ("scopes", "oauthScopes", "oauth_scopes")
             if each in self.left), None,
        )  # fmt: skip
        required = self.left.pop("requiresOAuth", None)
        inner = table_of(value)
        if inner is not None and inner.get("enabled") is not False:
            self._read_oauth_table(key, inner, scopes)
        elif value in (True, "oauth") or (value is None and (scopes or required is True)):
            self.made.values["oauth"] = {"scopes": scopes} if scopes else True
        elif value is not None and value is not False and inner is None:
            self._lose(key)
        self.made.renamed["oauth"] = (key or "oauth",)

    def _read_oauth_table(self, key: str, inner: Mapping[str, object], scopes: object) -> None:
        names = [next((k for k in keys if k in inner), keys[0]) for keys in _OAUTH_KEYS]
        self.made.oauth_keys = (names[0], names[1], names[2])
        used: dict[str, object] = {name: inner[name] for name in names if name in inner}
        listed = inner.get("scopes", inner.get("scope", scopes))
        if listed is not None:
            used["scopes"] = listed
        if isinstance(port := inner.get("callbackPort"), int) and not isinstance(port, bool):
            used["callback_port"] = port
        self.made.values["oauth"] = used or True
        for each in inner:
            if each not in {*names, "scopes", "scope", "callbackPort", "enabled"}:
                self._lose(key, each)

    def _read_switches(self) -> None:
        """Read which tools the user has switched on and off."""
        self._read_filter()
        allowed, refused = self._take_names(_ALLOWED), self._take_names(_REFUSED)
        tools = self.left.pop("tools", None)
        if list_of(tools) is not None:
            allowed = [*(allowed or ()), *texts_of(tools)]
        settings: dict[str, dict[str, object]] = {}
        for name, each in (table_of(tools) or {}).items():
            inner = table_of(each)
            tool_settings = {"enabled": each} if inner is None else inner
            carried: dict[str, object] = {
                key: value
                for key, value in tool_settings.items()
                if isinstance(value, _TOOL_SETTINGS.get(key, ()))
            }
            if carried:
                settings[name] = carried
            elif inner is None:
                self._lose("tools", name)
            for key in inner or ():
                if key not in carried:
                    self._lose("tools", name, key)
        if tools is not None and table_of(tools) is None and list_of(tools) is None:
            self._lose("tools")
        if allowed is not None and "*" not in allowed:
            settings["*"] = {"enabled": False}
            for tool in allowed:
                if not any(fnmatchcase(tool, pattern) for pattern in refused or ()):
                    settings.setdefault(tool, {})["enabled"] = True
        for tool in refused or ():
            settings.setdefault(tool, {})["enabled"] = False
        if settings:
            self.made.values["tools"] = settings

    def _read_filter(self) -> None:
        """Read `options.toolFilter` of TBXark's mcp-proxy like the lists of other programs."""
        options = table_of(self.left.get("options")) or {}
        inner = table_of(options.get("toolFilter")) or {}
        key = {"allow": _ALLOWED[0], "block": _REFUSED[0]}.get(str(inner.get("mode")))
        if key is not None and key not in self.left:
            self.left[key] = inner.get("list")
            self.left["options"] = {name: options[name] for name in options if name != "toolFilter"}

    def _take_names(self, keys: tuple[str, ...]) -> list[str] | None:
        names: list[str] | None = None
        for key in keys:
            if key not in self.left:
                continue
            value = self.left.pop(key)
            if list_of(value) is None:
                self._lose(key, reason="it is not a list of names")
            elif value or key != "available_tools":  # goose: an empty list means all tools
                names = [*(names or ()), *texts_of(value)]
        return names

    def _read_limits(self) -> None:
        timeout = self.left.pop("timeout", None)
        inner = table_of(timeout)
        if inner is not None:  # OpenCode 2
            for key, each in inner.items():
                ours = {"request": "timeout", "startup": "start_timeout"}.get(key)
                if ours is None:
                    self._lose("timeout", key)
                else:
                    self._limit(ours, 0.001, each, ("timeout", key))
        elif timeout is not None and self.client.timeout is None:
            self._lose("timeout", reason=self._unclear(timeout))
        elif timeout is not None and self.client.timeout is not None:
            self._limit(*self.client.timeout, timeout, ("timeout",))
        for key, (ours, unit_s) in LIMITS.items():
            if key in self.left:
                self._limit(ours, unit_s, self.left.pop(key), (key,))

    def _unclear(self, value: object) -> str:
        return (
            f"whether {shorten(str(value))} means seconds or milliseconds is not documented; write"
            " 'timeout' in [servers.NAME]"
        )

    def _limit(self, ours: str, unit_s: float, value: object, location: Place) -> None:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
        seconds = number * unit_s
        if TIMEOUT_S_MIN <= seconds <= DURATION_S_MAX:
            self.made.values[ours] = f"{round(seconds * 1000)}ms"
            self.made.renamed[ours] = location
            return
        unit = "s" if unit_s == 1.0 else "ms"
        self._lose(*location, reason=f"{shorten(str(value))} {unit} is not a time from 1s to 24h")

    def _read_enabled(self) -> None:
        for key in ("enabled", "isActive", "disabled", "quarantined"):
            value = self.left.pop(key, None)
            if value is None:
                continue
            if not isinstance(value, bool):
                self.made.values["enabled"], self.made.renamed["enabled"] = value, (key,)
            elif value is (key in ("disabled", "quarantined")):
                self.made.values.setdefault("enabled", False)
        if self.left.pop("required", None) is True and "enabled" not in self.made.values:
            self.made.values["required"] = True

    # References

    def _convert_references(self, value: object) -> object:
        """Return a copy of a value with the references of metamcp.toml in its texts."""
        if isinstance(value, str):
            value = _INPUT.sub(self._add_default, value)
            return refer(value, self.folder, self.home, dollars=self.client.dollars)
        if (table := table_of(value)) is not None:
            return {key: self._convert_references(each) for key, each in table.items()}
        items = list_of(value)
        return value if items is None else [self._convert_references(each) for each in items]

    def _add_default(self, match: re.Match[str]) -> str:
        default = self.defaults.get(match[1])
        variable = input_variable(match[1])
        return match[0] if default is None else f"${{env:{variable}:-{default}}}"

    def _check_folder(self) -> None:
        if f"${{{_FOLDER}" in str(self.made.values) and self._is_on():
            fault = "means the folder that an editor has open; name the file with --from PATH"
            self.made.faults.append(((), fault))

    def _is_on(self) -> bool:
        return self.made.values.get("enabled") is not False

    # Windows

    def _check_platform(self) -> None:
        """Note that a command is one of Windows, with what would run here."""
        command, args = self.made.values.get("command"), self.made.values.get("args", [])
        words = list_of(command) or [command, *(list_of(args) or ())]
        if not words or not all(isinstance(word, str) for word in words) or not self._is_on():
            return
        if _DRIVE.match(str(self.made.values.get("cwd", ""))):
            fault = "is a folder of Windows; write one of this machine"
            self.made.faults.append((self.made.renamed.get("cwd", ("cwd",)), fault))
        here = command_here([str(word) for word in words])
        if here is not None:
            fault = f"is a command of Windows; here it would be: {shlex.join(here)}"
            self.made.faults.append((self.made.renamed.get("command", ("command",)), fault))


def _yaml_text(value: object) -> object:
    """Return a value of the environment as YAML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def refer(text: str, folder: str, home: str, *, dollars: bool = False) -> str:
    """Rewrite the references of a client in the syntax of metamcp.toml. `folder`: the project,
    empty if only an editor knows it; `home`: for `${userHome}`; `dollars`: whether `$NAME` is a
    variable in the middle of a text, too."""
    if reference := _WHOLE_DOLLAR.fullmatch(text):
        return f"{reference[1]}${{env:{reference[2]}}}"
    if dollars:
        text = _ANY_DOLLAR.sub(r"${env:\1}", text)
    text = _SECRETS.sub(r"${env:\1}", text)
    text = _OPENCODE.sub(r"${\1:\2}", text)
    return _BRACED.sub(lambda match: _replace_variable(match[0], match[1], folder, home), text)


def _replace_variable(text: str, inner: str, folder: str, home: str) -> str:
    if inner == "userHome":
        return home
    if inner in ("/", "pathSeparator"):
        return "/"
    if folder and inner in (_FOLDER, f"{_FOLDER}Basename"):
        return folder if inner == _FOLDER else folder.rpartition("/")[2]
    return text if _REFERENCES.fullmatch(inner) else "$" + text


_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_PERCENT = re.compile(r"%([A-Z_][A-Z0-9_]{2,})%", re.ASCII)
_FOLDERS_HERE = {
    "APPDATA": "${HOME}/.config", "LOCALAPPDATA": "${HOME}/.local/share",
    "USERPROFILE": "${HOME}", "HOMEPATH": "${HOME}", "TEMP": "/tmp", "TMP": "/tmp",  # noqa: S108 - a hint
}  # fmt: skip
_SHELLS = {"cmd": "/c", "powershell": "-command", "pwsh": "-command"}
_OF_WSL = {"-d": 1, "--distribution": 1, "--cd": 1, "-u": 1, "--user": 1, "-e": 0, "--exec": 0,
           "--": 0}  # fmt: skip
"""Options of wsl.exe before the command, with the number of their values."""


def command_here(words: list[str]) -> list[str] | None:
    """Return what a command of Windows would be here; None for a command of no system."""
    path = PureWindowsPath(words[0])
    name = path.name.lower().removesuffix(".exe")
    tail = words[1:]
    if name in _SHELLS and tail and tail[0].lower() == _SHELLS[name]:
        inner = tail[1:] if len(tail) > 2 else (tail[1].split() if len(tail) == 2 else [])
        return (command_here(inner) or inner) if inner else [name]
    if name == "wsl":
        while tail and tail[0] in _OF_WSL:
            tail = tail[1 + _OF_WSL[tail[0]] :]
        return tail or ["sh"]
    ends = words[0].lower().endswith((".exe", ".cmd", ".bat"))
    if not ends and not any(_DRIVE.match(word) or _PERCENT.search(word) for word in words):
        return None
    program = path.stem if ends else words[0]
    return [_path_here(word) for word in (program, *tail)]


def _path_here(word: str) -> str:
    if _DRIVE.match(word):
        return f"/path/to/{PureWindowsPath(word).name}"
    if not _PERCENT.search(word):
        return word
    named = _PERCENT.sub(lambda match: _FOLDERS_HERE.get(match[1], f"${{{match[1]}}}"), word)
    return named.replace("\\", "/")


# Files of variables

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*", re.ASCII)


def variables(text: str) -> dict[str, str]:
    """Return the variables of an env file: lines NAME=VALUE, with comments and quotes."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) is None:
            continue
        value = match[2]
        if value[:1] in ("'", '"') and len(value) > 1 and value[0] in value[1:]:
            values[match[1]] = value[1 : value.rindex(value[0])]
        else:
            values[match[1]] = value.partition(" #")[0].rstrip()
    return values
