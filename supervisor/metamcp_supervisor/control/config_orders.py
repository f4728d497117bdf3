"""The verbs about the configuration and what is approved: settings with their places, the files
against what is in force, edits of files, tools that differ from what was approved, approvals.

Owns: their parameters and limits, the form of the answers, the journal's words, which verbs of
`metamcp` edit files. Never: the place of a setting (`config.origins`), the plan of a reload
(`config.reload`), an edit itself (a process of `metamcp` runs its verb), the decision about a tool
(`approval`).
"""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metamcp_supervisor.approval.lock import LockedTool
from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.config import environment, origins
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.origins import SettingChange, SettingShown
from metamcp_supervisor.config.printed_values import program_output
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    NoParams,
    find_servers,
)
from metamcp_supervisor.verbs import VERSION, Exit, ReloadPlan
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError

if TYPE_CHECKING:
    from metamcp_supervisor.approval.schema import SchemaFinding

SETTINGS_MAX = 500
"""Maximum settings of one answer; a table has some forty, and a page with more is not read."""
VALUE_CHARACTERS_MAX = 500
"""Maximum characters of a value; the file has all of it."""
DRIFT_MAX = 500
"""Maximum tools of one answer."""
DEFINITION_CHARACTERS_MAX = 60_000
"""Maximum characters of one definition; two of them fit into a line of the control socket."""
FINDINGS_MAX = 100
EDIT_BYTES_MAX = 512 * 1024
"""Maximum bytes that a verb prints about an edit; the answer is one line of the control socket."""


class SettingsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `config`. `table`: text of its brackets; without it all settings that
    something sets."""

    table: str = ""


class DriftWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `drift`. `tool`: with `server`, the tool to show with its definitions."""

    server: str = ""
    tool: str = ""


class Approval(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `lock-approve`. `tool`: empty for all of the server; `offered`: mark of what
    was looked at, as `DriftShown.offered`."""

    name: str
    tool: str = ""
    offered: str


class SettingsTable(Struct, frozen=True):
    """Table of the configuration. `set`: number of its keys that something sets."""

    name: str
    keys: int
    set: int


class SettingsShown(Struct, frozen=True, kw_only=True):
    """Settings in force. `more`: number of settings that are left out; `problems`, `warnings`:
    sentences about the files as they were read; `newer`: files that were written after that, or
    are gone."""

    v: int = VERSION
    files: tuple[str, ...]
    tables: tuple[SettingsTable, ...]
    settings: tuple[SettingShown, ...]
    newer: tuple[str, ...] = ()
    more: int = 0
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ConfigDiff(Struct, frozen=True, kw_only=True):
    """Files against what is in force. `plan`: of a reload; `more`: number of changes that are left
    out."""

    v: int = VERSION
    plan: ReloadPlan
    changes: tuple[SettingChange, ...]
    more: int = 0
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class DriftFinding(Struct, frozen=True):
    """Difference between two definitions. `pointer`: place in the definition."""

    pointer: str
    weight: str
    text: str


class DriftShown(Struct, frozen=True, kw_only=True):
    """Tool that is not as approved. `word`, `why`: kind of the difference and a sentence; `kept`:
    it is in quarantine; `locked`: `metamcp.lock` has its server; `offered`: mark of what the server
    offers now; `before`, `after`: definitions as JSON, of one tool alone."""

    server: str
    tool: str
    word: str
    why: str
    kept: bool
    locked: bool
    offered: str
    before: str = ""
    after: str = ""
    findings: tuple[DriftFinding, ...] = ()


class DriftList(Struct, frozen=True, kw_only=True):
    """Tools that are not as approved, in the order of their servers. `more`: number of tools that
    are left out."""

    v: int = VERSION
    tools: tuple[DriftShown, ...]
    more: int = 0


class ApprovalResult(Struct, frozen=True, kw_only=True):
    """Result of `lock-approve`. `tools`: number of approved tools of the server."""

    v: int = VERSION
    server: str
    tool: str
    tools: int


class FileEdit(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `edit` and `edit-preview`. `verb`: a verb of `metamcp`, one of EDITS; `words`:
    its arguments; `options`: values by option, none for a flag."""

    verb: str
    words: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]] = {}


class FileEdited(Struct, frozen=True, kw_only=True):
    """Result of both. `said`: lines that the verb prints, a unified difference for a preview;
    `warnings`: what to know about it."""

    v: int = VERSION
    said: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class EditVerb(Struct, frozen=True):
    """Verb of `metamcp` that edits files. `options`: those that it may get; `commands`: the edit
    can bring a command that a process of the gateway or of a client runs."""

    options: frozenset[str] = frozenset()
    commands: bool = False


_PLACES = frozenset({"--endpoint", "--namespace"})
EDITS: Mapping[str, EditVerb] = {
    "add": EditVerb(frozenset({"--url", "--env", "--header", "--replace"}), commands=True),
    **dict.fromkeys(("remove", "rename", "disable", "enable"), EditVerb()),
    **{f"tools {verb}": EditVerb(_PLACES)
       for verb in ("hide", "show", "disable", "enable", "rename")},
    **{f"{table} {verb}": EditVerb(commands=table == "workspaces" and verb != "remove")
       for table in ("namespaces", "endpoints", "workspaces") for verb in ("add", "set", "remove")},
    "config set": EditVerb(commands=True),
    "install": EditVerb(
        frozenset({"--scope", "--endpoint", "--exposure", "--take-over", "--http"}), commands=True
    ),
    "uninstall": EditVerb(frozenset({"--scope"}), commands=True),
}  # fmt: skip


class _Failure(Struct, frozen=True):
    code: str = ""
    message: str = ""
    details: tuple[str, ...] = ()


class _VerbOutput(Struct, frozen=True):
    """Line of JSON that a verb prints."""

    said: tuple[str, ...] = ()
    error: _Failure | None = None


async def settings(gateway: GatewayControl, line: ControlStream, params: SettingsWanted) -> object:
    """Return the settings in force. Raises ProtocolError for a table that does not exist."""
    config = gateway.settings.config
    age_s = gateway.status().config_age_s
    all_settings = await asyncio.to_thread(lambda: list(origins.settings(config)))
    keys, written = Counter[str](), Counter[str]()
    for setting in all_settings:
        keys[setting.table] += 1
        written[setting.table] += bool(setting.place)
    if params.table and params.table not in keys:
        message = f"the configuration has no table {params.table[:100]!r}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    selected = [
        setting
        for setting in all_settings
        if (setting.table == params.table if params.table else bool(setting.place))
    ]
    return SettingsShown(
        files=tuple(map(os.fspath, config.files)),
        tables=tuple(SettingsTable(name, keys[name], written[name]) for name in keys),
        settings=tuple(_cut(setting) for setting in selected[:SETTINGS_MAX]),
        newer=await asyncio.to_thread(_newer, config.files, time.time() - age_s),
        more=max(0, len(selected) - SETTINGS_MAX),
        problems=tuple(map(str, config.problems)),
        warnings=config.warnings,
    )


async def diff(gateway: GatewayControl, line: ControlStream, params: NoParams) -> object:
    """Return what a reload would do and which settings differ. Raises ConfigInvalid."""
    now = gateway.settings.written_config
    plan, new = await gateway.settings.plan_reload()
    changes = await asyncio.to_thread(_changes, now, new)
    return ConfigDiff(
        plan=plan,
        changes=tuple(changes[:SETTINGS_MAX]),
        more=max(0, len(changes) - SETTINGS_MAX),
        problems=tuple(map(str, new.problems)),
        warnings=new.warnings,
    )


async def preview(gateway: GatewayControl, line: ControlStream, params: FileEdit) -> object:
    """Return what an edit would change. Raises ProtocolError."""
    return await _run_edit(gateway, line, params, ["--dry-run"])


async def edit(gateway: GatewayControl, line: ControlStream, params: FileEdit) -> object:
    """Edit the file of the configuration, or those of a client. Raises ProtocolError."""
    done = await _run_edit(gateway, line, params, [])
    text = " ".join(about_edit(params, done))
    gateway.journal.add("gateway", "edit", f"'{text}' by {line.caller}")
    return done


def about_edit(params: FileEdit, result: object) -> Sequence[str]:
    """Return the words of the journal and the audit for an edit; a value may be secret."""
    return (params.verb, *params.words[:1]) if params.verb != "config set" else (params.verb,)


async def _run_edit(
    gateway: GatewayControl, line: ControlStream, params: FileEdit, last: Sequence[str]
) -> FileEdited:
    """Run the verb in a process of its own. Raises ProtocolError."""
    rule = EDITS.get(params.verb)
    if rule is None or not params.options.keys() <= rule.options:
        word = f"{params.verb} {' '.join(params.options)}".strip()
        raise ProtocolError(Exit.USAGE, f"no edit is named {word[:100]!r}")
    if rule.commands and line.session is not None and line.session.key:
        raise ProtocolError(
            Exit.DENIED,
            f"'{params.verb}' can bring a command that runs as the user of the gateway: 'metamcp"
            " console' on its machine opens a session that may, one of an API key may not",
        )
    config = gateway.settings.written_config
    if not config.files:
        raise ProtocolError(
            Exit.CONFIG, "the gateway has no file; 'metamcp init' makes metamcp.toml in a folder"
        )
    location = ["--config", str(config.files[0]), "--runtime-dir", str(config.gateway.runtime_dir)]
    options = [f"{name}={value}" for name, values in params.options.items() for value in values]
    flags = [name for name, values in params.options.items() if not values]
    command = [
        sys.executable, "-P", "-m", "metamcp_supervisor", *params.verb.split(), *location,
        "--json", *last, *options, *flags, "--", *params.words,
    ]  # fmt: skip
    variables = environment.select_variables(os.environ, ["*"])
    printed, failure = await asyncio.to_thread(
        program_output, command, config.files[0].parent,
        {name: os.environ[name] for name in variables}, f"'metamcp {params.verb}'",
        EDIT_BYTES_MAX, subprocess.STDOUT,
    )  # fmt: skip
    return _outcome(printed.decode("utf-8", "replace").splitlines(), failure)


def _outcome(printed: Sequence[str], failure: str) -> FileEdited:
    """Return what a verb said. `failure`: why its process failed, empty if it did not. Raises
    ProtocolError."""
    lines: list[str] = []
    for text in printed:
        try:
            answer = codec.decode_as(_VerbOutput, text.encode())
        except codec.Malformed:
            continue
        if (error := answer.error) is not None:
            data = codec.dump({"problems": error.details}) if error.details else b""
            code = Exit.__members__.get(error.code.upper(), Exit.FAILED)
            raise ProtocolError(code, error.message, data)
        lines += answer.said
    if failure:
        raise ProtocolError(Exit.FAILED, failure)
    mark = "metamcp: warning: "
    warnings = (text.removeprefix(mark) for text in printed if text.startswith(mark))
    return FileEdited(said=tuple(lines), warnings=tuple(warnings))


async def drift(gateway: GatewayControl, line: ControlStream, params: DriftWanted) -> object:
    """Return the tools that are not as approved. Raises UnknownName, and ProtocolError for a tool
    that is as approved."""
    if params.server:
        find_servers(gateway, [params.server])
    drifts: list[DriftShown] = []
    for server in [params.server] if params.server else gateway.settings.list_drifted_servers():
        tools, mark = await gateway.settings.drift(server)
        selected = [tool for tool in tools if params.tool in {"", tool.tool}]
        drifts += [_drift(gateway, tool, mark, with_details=bool(params.tool)) for tool in selected]
    if params.tool and not drifts:
        message = f"{params.server}.{params.tool[:100]} is as approved, or it is not known"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    return DriftList(tools=tuple(drifts[:DRIFT_MAX]), more=max(0, len(drifts) - DRIFT_MAX))


async def approve(gateway: GatewayControl, line: ControlStream, params: Approval) -> object:
    """Approve what a server offers. Raises UnknownName and ReloadRefused."""
    find_servers(gateway, [params.name])
    count = await gateway.settings.approve(params.name, params.tool, params.offered)
    subject = f"{params.name}.{params.tool}" if params.tool else f"all tools of {params.name}"
    gateway.journal.add("gateway", "approved", f"{subject} by {line.caller}")
    return ApprovalResult(server=params.name, tool=params.tool, tools=count)


def about(params: Approval, result: object) -> Sequence[str]:
    """Return the words of the audit for an approval."""
    return (params.tool,) if params.tool else ()


def _newer(files: Iterable[Path], read_at: float) -> tuple[str, ...]:
    """Return the files that were written after a moment, in seconds since the epoch."""

    def read_mtime(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return math.inf

    return tuple(os.fspath(path) for path in files if read_mtime(path) > read_at)


def _changes(old: Config, new: Config) -> list[SettingChange]:
    return [
        SettingChange(
            change.table, change.key, _short(change.before), _short(change.after), change.place
        )
        for change in origins.changes(old, new)
    ]


def _cut(setting: SettingShown) -> SettingShown:
    return SettingShown(setting.table, setting.key, _short(setting.value), setting.place)


def _short(text: str, most: int = VALUE_CHARACTERS_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def _drift(
    gateway: GatewayControl, tool_drift: ToolDrift, mark: str, *, with_details: bool
) -> DriftShown:
    findings = (
        tool_drift.comparison.findings if with_details and tool_drift.comparison is not None else ()
    )
    return DriftShown(
        server=tool_drift.server,
        tool=tool_drift.tool,
        word=tool_drift.word,
        why=tool_drift.difference_text,
        kept=(tool_drift.server, tool_drift.tool) in gateway.shelf.list_quarantined(),
        locked=gateway.settings.has_lock_entry(tool_drift.server),
        offered=mark,
        before=_pretty(tool_drift.old) if with_details else "",
        after=_pretty(tool_drift.new) if with_details else "",
        findings=tuple(_findings(findings)),
    )


def _findings(findings: Iterable["SchemaFinding"]) -> Iterable[DriftFinding]:
    for finding in islice(findings, FINDINGS_MAX):
        yield DriftFinding(finding.pointer or "/", str(finding.weight), finding.text)


def _pretty(tool: LockedTool | None) -> str:
    if tool is None:
        return ""
    text = json.dumps(dict(tool.definition), ensure_ascii=False, indent=2, sort_keys=True)
    return _short(text, DEFINITION_CHARACTERS_MAX)
