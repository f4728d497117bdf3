"""Page of the scripts: those of a workspace, the code and versions of one, a run with arguments.

Owns: columns, the difference between versions, the form of a run. Never: running a script: the page
of the tool `run_script` calls it at an endpoint, like any other tool.
"""

import json
from collections.abc import Sequence
from typing import Any

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.calls import tool_form
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.verbs import ConfigTree, ScriptList, ScriptShown
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.process_names import DEFAULT

HEADS = ("Name", "Version", "Language", "Tool", "Saved", "Description")
RUN = "run_script"
EXAMPLE_NAMES_MAX = 50
"""Maximum arguments that the form of a run names."""
_EXAMPLES: dict[str, object] = {
    "string": "", "number": 0, "integer": 0, "boolean": False, "array": [], "object": {},
}  # fmt: skip


async def show(ask: Ask, request: PageRequest) -> Node:
    workspace = request.query.get("workspace", "") or DEFAULT
    tree = codec.decode_as(ConfigTree, await ask("tree"))
    if request.path:
        return await _one(ask, request, workspace, endpoints(tree, workspace))
    scripts = codec.decode_as(ScriptList, await ask("scripts", {"workspace": workspace}))
    return script_list(scripts, [space.name for space in tree.workspaces], request)


async def _one(ask: Ask, request: PageRequest, workspace: str, places: Sequence[str]) -> Node:
    params: dict[str, object] = {"workspace": workspace, "name": request.path[0]}
    version = request.query.get("version", "")
    if version.isdecimal():
        params["version"] = int(version[:9])
    raw = await ask("scripts-show", params)
    script = codec.decode_as(ScriptList, raw).scripts[0]
    before = None
    older = [each for each in script.versions if each < script.version]
    if request.query.get("diff") and older:
        raw = await ask("scripts-show", {**params, "version": max(older)})
        before = codec.decode_as(ScriptList, raw).scripts[0]
    return one_script(script, before, workspace, places)


def endpoints(tree: ConfigTree, workspace: str) -> list[str]:
    """Return the endpoints of a workspace."""
    spaces = [space for space in tree.workspaces if space.name == workspace]
    return [
        name for space in spaces for namespace in space.namespaces for name in namespace.endpoints
    ]


def script_list(scripts: ScriptList, workspaces: Sequence[str], request: PageRequest) -> Node:
    """Return the scripts of a workspace that a filter leaves."""
    words = request.query.get("q", "").lower().split()
    rows = [
        _row(script, scripts.workspace, request.role)
        for script in scripts.scripts
        if all(word in f"{script.name} {script.description}".lower() for word in words)
    ]
    options = [(name, name) for name in workspaces]
    choice = h.label[h.span["Workspace"], ui.choice("workspace", options, scripts.workspace)]
    empty = "No script fits the filter." if words else "No script is saved in this workspace."
    return [
        ui.build_heading("Scripts", h.p["Programs that a workspace keeps for its agents."]),
        ui.search("/scripts", request.query, "Name or description", len(options) > 1 and choice),
        ui.table("Scripts", HEADS, rows, empty=empty, numbers=("Version",)),
    ]


def _row(script: ScriptShown, workspace: str, role: Role) -> Sequence[Node]:
    name = ui.shorten(script.name, 80)
    path = ui.address("scripts", script.name, query={"workspace": workspace})
    return [
        ui.link(path, name) if role >= Role.DEVELOPER else name,
        str(script.version),
        script.language,
        "yes" if script.expose else "no",
        ui.moment(script.savedAt),
        ui.shorten(" ".join(script.description.split()), 200),
    ]


def one_script(
    script: ScriptShown, before: ScriptShown | None, workspace: str, places: Sequence[str]
) -> Node:
    """Return a script with its code, or with what differs from the version `before`."""

    def at(**query: str) -> str:
        return ui.address("scripts", script.name, query={"workspace": workspace, **query})

    versions: list[Node] = []
    for number in sorted(script.versions, reverse=True):
        here = "page" if number == script.version else None
        link = ui.link(at(version=str(number)), str(number), aria_current=here)
        versions += [link, " "]
    older = any(number < script.version for number in script.versions)
    title = f"Version {script.version}"
    return [
        ui.build_heading(
            ["Script ", ui.shorten(script.name, 80)], ui.link("/scripts", "all scripts")
        ),
        ui.pairs(
            [
                ("Description", ui.shorten(script.description)),
                ("Language", script.language),
                ("In lists", "as a tool of its own" if script.expose else "no"),
                ("Saved", ui.moment(script.savedAt)),
                ("Versions kept", versions),
            ]
        ),
        ui.diff(before.code, script.code, f"Version {before.version} and {script.version}")
        if before is not None
        else ui.code(script.code, copy=True, label=title),
        older
        and before is None
        and ui.link(at(version=str(script.version), diff="1"), "Compare with the version before"),
        ui.code(_pretty(codec.value(script.parameters)), label="Parameters"),
        run_form(script, places),
    ]


def run_form(script: ScriptShown, places: Sequence[str]) -> Node:
    """Return the form that runs a script, one for each endpoint."""
    if not places:
        return h.p(class_="empty")["No endpoint belongs to this workspace, so nothing can run it."]
    call: dict[str, object] = {"name": script.name, "args": example(codec.value(script.parameters))}
    return [
        h.h2["Run it"],
        [_run(endpoint, call) for endpoint in places],
        h.p["The call is made by the tool ", h.code[RUN], ", in its newest version."],
    ]


def _run(endpoint: str, call: dict[str, object]) -> Element:
    text = h.textarea(name="json", rows="6", spellcheck="false")[_pretty(call)]
    return ui.form(
        ui.address("tools", RUN, query={"endpoint": endpoint}),
        ui.field(f"Arguments of the call at {ui.shorten(endpoint, 80)}", text),
        submit=f"Run at {ui.shorten(endpoint, 80)}",
    )


def example(schema: Any) -> dict[str, object]:
    """Return arguments that have the names of a schema, to be filled in."""
    arguments: dict[str, object] = {}
    properties = tool_form.table(tool_form.table(schema).get("properties"))
    for name, each in list(properties.items())[:EXAMPLE_NAMES_MAX]:
        property_schema = tool_form.table(each)
        default = property_schema.get("default")
        arguments[name] = (
            default if default is not None else _EXAMPLES.get(str(property_schema.get("type")))
        )
    return arguments


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


PAGE = Page(name="scripts", title="Scripts", show=show, live=("runs",), after="calls")
