"""The verbs about scripts: list and show those of a workspace, save and delete them.

Owns: their parameters, the check of names, the form of the answers, the journal's words. Never: the
rules of an order (`views.ledger`, by `ScriptStore`), running a script (clients do, at an endpoint).

An answer does not need a gateway that runs: `metamcp scripts` asks for the same about a state
directory.
"""

import time
from collections.abc import Collection, Sequence

from msgspec import Raw, Struct

from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    ScriptStore,
    Verb,
    read_store,
)
from metamcp_supervisor.verbs import Exit, ScriptChanged, ScriptList, ScriptShown
from metamcp_worker.ipc.disclosure import (
    DeleteScript,
    SaveScript,
    ViewOrder,
    ViewOwner,
    with_full_name,
)
from metamcp_worker.ipc.errors import MetaMCPError, ProtocolError
from metamcp_worker.ipc.process_names import DEFAULT, label, within, workspace_of
from metamcp_worker.ipc.saved_scripts import Script, check_script_name

_NOBODY = ViewOwner("", "")
"""View that no order about scripts changes."""


class ScriptsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `scripts`, which lists all scripts of a workspace without their code."""

    workspace: str = DEFAULT


class ScriptWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `scripts-show`. `version`: the version to show; 0 means the newest."""

    workspace: str
    name: str
    version: int = 0


class ScriptsChange(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `scripts-change`."""

    order: SaveScript | DeleteScript
    workspace: str = DEFAULT


def about(params: ScriptsChange, result: object) -> Sequence[str]:
    """Return the words of the audit for an order."""
    action = "saved" if isinstance(params.order, SaveScript) else "deleted"
    return (action, within(params.workspace, params.order.script))


async def scripts(gateway: GatewayControl, line: ControlStream, params: ScriptsParams) -> object:
    check_workspace(params.workspace, [workspace.name for workspace in gateway.tree().workspaces])
    return await list_scripts(gateway.shelf, params.workspace)


async def show(gateway: GatewayControl, line: ControlStream, params: ScriptWanted) -> object:
    check_workspace(params.workspace, [workspace.name for workspace in gateway.tree().workspaces])
    return await find_script(gateway.shelf, params)


async def scripts_change(
    gateway: GatewayControl, line: ControlStream, params: ScriptsChange
) -> object:
    check_workspace(params.workspace, [workspace.name for workspace in gateway.tree().workspaces])
    changed = await carry_out_order(gateway.shelf, params)
    action = "deleted" if changed.script is None else f"saved as version {changed.script.version}"
    name = with_full_name(params.order, params.workspace)
    assert isinstance(name, SaveScript | DeleteScript)
    gateway.journal.add("gateway", "scripts", f"{name.script!r} {action} by {line.caller}")
    return changed


def check_workspace(workspace: str, workspaces: Collection[str]) -> None:
    """Raise ProtocolError for a workspace that is not configured."""
    if workspace != DEFAULT and workspace not in workspaces:
        message = (
            f"no workspace is named {workspace[:64]!r}; {hint(workspace, {DEFAULT, *workspaces})}"
        )
        raise ProtocolError(Exit.UNKNOWN_NAME, message)


async def list_scripts(store: ScriptStore, workspace: str) -> ScriptList:
    """Return all scripts of a workspace, without their code."""
    everything = await read_store(store)
    ours = (script for script in everything.scripts if workspace_of(script.name) == workspace)
    return ScriptList(workspace=workspace, scripts=tuple(map(_describe_script, ours)))


async def find_script(store: ScriptStore, query: ScriptWanted) -> ScriptList:
    """Return one script with its code. Raises ProtocolError."""
    names = [script.name for script in (await list_scripts(store, query.workspace)).scripts]
    if query.name not in names:
        message = f"no script is named {query.name[:64]!r}; {hint(query.name, names)}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    try:
        versions = await store.versions(within(query.workspace, query.name))
    except MetaMCPError as error:
        raise ProtocolError(Exit.FAILED, str(error)) from None
    by_version = {script.version: script for script in versions}
    version = query.version or max(by_version, default=0)
    if version not in by_version:
        listing = ", ".join(map(str, by_version))
        message = f"version {version} of {query.name!r} is not kept; there are: {listing}"
        raise ProtocolError(Exit.UNKNOWN_NAME, message)
    shown_script = _describe_script(by_version[version], code=True, versions=tuple(by_version))
    return ScriptList(workspace=query.workspace, scripts=(shown_script,))


async def carry_out_order(store: ScriptStore, params: ScriptsChange) -> ScriptChanged:
    """Carry out an order about a script. Raises ProtocolError."""
    name, workspace = params.order.script, params.workspace
    if problem := check_script_name(name):
        raise ProtocolError(Exit.FAILED, problem)
    if isinstance(params.order, DeleteScript):
        await find_script(store, ScriptWanted(workspace, name))
    outcome = await store.carry_out(ViewOrder(_NOBODY, with_full_name(params.order, workspace)))
    if outcome.error:
        raise ProtocolError(Exit.FAILED, outcome.error)
    made = outcome.script
    shown_script = None if made is None else _describe_script(made)
    return ScriptChanged(workspace=workspace, script=shown_script)


def _describe_script(
    script: Script, *, code: bool = False, versions: tuple[int, ...] = ()
) -> ScriptShown:
    return ScriptShown(
        name=label(script.name),
        version=script.version,
        description=script.description,
        language=script.language,
        parameters=Raw(script.parameters.encode() or b"{}"),
        expose=script.expose,
        savedAt=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(script.created)),
        code=script.code if code else "",
        versions=versions,
    )


VERBS = {
    "scripts": Verb(ScriptsParams, scripts, Role.VIEWER),
    "scripts-show": Verb(ScriptWanted, show, Role.DEVELOPER, reads=True),
    "scripts-change": Verb(ScriptsChange, scripts_change, about=about),
}
