"""Pages that edit files: the servers, tools and settings of the configuration, and the files of
clients. Each shows the difference first.

Owns: the forms, the order that a form is, the links to them. Never: an edit and its difference (the
gateway runs the verb of `metamcp`), which verbs may run (`control.config_orders`).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.config_orders import FileEdited, SettingsShown
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec

EDIT_S = 15.0
"""Seconds for an edit, which a process of its own carries out."""
PATH = ("edit",)
WRITE = "write"
_OFF = re.compile(r"servers\.(?P<server>[^.]+)(?:\.tools\.\"?(?P<tool>.+?)\"?)?")
"""Tables of servers, and of their tools."""


class EditField(Struct, frozen=True):
    """Field of a form. `kind`: of its control; the values of `lines` are its lines, those of
    `command` its words; `option`: of the verb, empty for an argument; `choices`: value and text."""

    name: str
    label: str
    hint: str = ""
    kind: Literal["text", "lines", "command", "choice", "tick"] = "text"
    option: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    optional: bool = False


class EditForm(Struct, frozen=True):
    """Form for a verb of `metamcp`, with the title of its page."""

    title: str
    fields: tuple[EditField, ...]


_SERVER = EditField("server", "Server")
_TOOL = EditField("tool", "Tool", "Server and own name of the tool: git.git_status")
_NEW = EditField("new", "New name")
_NAME = EditField("name", "Name", "In a workspace: WORKSPACE:NAME")
_SETTINGS = EditField("settings", "Settings", "A line each: KEY=VALUE", "lines")
_PLACES = (
    EditField("endpoint", "Only at the endpoint", option="--endpoint", optional=True),
    EditField("namespace", "Only in the namespace", option="--namespace", optional=True),
)
_SCOPE = EditField(
    "scope", "File", "Project: the one in the folder of the configuration.", "choice", "--scope",
    (("user", "of the user"), ("project", "of the project")),
)  # fmt: skip
_EXPOSURE = EditField(
    "exposure", "Tools at first", "", "choice", "--exposure",
    (("", "as the endpoint says"), ("all", "all"), ("search", "found by a search"),
     ("servers", "those of servers that are activated"), ("toolset", "a tool set"),
     ("code", "a program calls them")), optional=True,
)  # fmt: skip
_ADD = (
    EditField("server", "Name"),
    EditField(
        "command", "Command", "As at a prompt: uvx mcp-server-time", "command", optional=True
    ),
    EditField("url", "Or URL", "Of a server elsewhere.", option="--url", optional=True),
    EditField("env", "Variables", "A line each: KEY=VALUE", "lines", "--env", optional=True),
    EditField("header", "Headers", "A line each: KEY: VALUE", "lines", "--header", optional=True),
)
_CLIENT = EditField("client", "Client", kind="choice")
_TABLES = ("namespaces", "endpoints", "workspaces")
FORMS: Mapping[str, EditForm] = {
    "add": EditForm("Add a server", _ADD),
    "disable": EditForm("Switch a server off", (_SERVER,)),
    "enable": EditForm("Switch a server on", (_SERVER,)),
    "rename": EditForm("Rename a server", (_SERVER, _NEW)),
    "remove": EditForm("Remove a server", (_SERVER,)),
    "tools hide": EditForm("Hide a tool", (_TOOL, *_PLACES)),
    "tools show": EditForm("Show a hidden tool", (_TOOL, *_PLACES)),
    "tools disable": EditForm("Switch a tool off", (_TOOL, *_PLACES)),
    "tools enable": EditForm("Switch a tool on", (_TOOL, *_PLACES)),
    "tools rename": EditForm("Rename a tool", (_TOOL, _NEW, *_PLACES)),
    "install": EditForm(
        "Connect a client",
        (
            _CLIENT, _SCOPE, _EXPOSURE,
            EditField("http", "Name the URL of the gateway, not a command", "", "tick", "--http"),
            EditField("over", "Move its servers behind the gateway", "", "tick", "--take-over"),
        ),
    ),
    "uninstall": EditForm("Disconnect a client", (_CLIENT, _SCOPE)),
    "config set": EditForm("Change settings", (_SETTINGS,)),
    **{
        f"{table} {verb}": EditForm(
            f"{title} {'an' if table == 'endpoints' else 'a'} {table[:-1]}",
            (_NAME,) if verb == "remove" else (_NAME, _SETTINGS),
        )
        for table in _TABLES
        for verb, title in (("add", "Add"), ("set", "Change"), ("remove", "Remove"))
    },
}  # fmt: skip


def address(verb: str, **values: str) -> str:
    """Return the address of the form for a verb. `values`: of its fields."""
    return ui.address("config", *PATH, query={"verb": verb, **values})


def links(role: Role, verbs: Sequence[str], **values: str) -> Node:
    """Return the links to forms on another page, none for a role that may not edit. `values`: of
    their fields."""
    return (
        role >= Role.ADMIN
        and h.p(class_="beside")[
            [ui.link(address(verb, **values), FORMS[verb].title) for verb in verbs]
        ]
    )


async def show(ask: Ask, request: PageRequest) -> Node:
    if request.role < Role.ADMIN:
        return _page("Edit", ui.needs("edit files", Role.ADMIN))
    verb = request.query.get("verb", "")
    form = FORMS.get(verb)
    if form is None:
        raw = await ask("config", {"table": ""})
        return overview(codec.decode_as(SettingsShown, raw))
    needed = [field.name for field in form.fields if not field.option and not field.optional]
    if form.fields == _ADD or not all(request.query.get(name) for name in needed):
        return _page(form.title, fields(verb, form, request.query))
    return await _preview(ask, verb, form, request.query)


async def change(ask: Ask, request: PageRequest) -> Node:
    """Show what an edit would change, or carry it out."""
    inputs = request.form
    verb = inputs.get("verb", "")
    form = FORMS.get(verb)
    if form is None:
        raise Failed(Exit.USAGE, f"no edit is named '{verb[:40]}'")
    try:
        if inputs.get("do") != WRITE:
            return await _preview(ask, verb, form, inputs)
        raw = await ask("edit", build_order(verb, form, inputs), timeout_s=EDIT_S)
    except Failed as error:
        refused = ui.notice(str(error), "bad", error.details)
        return _page(form.title, [refused, fields(verb, form, inputs)])
    return render_outcome(verb, form, codec.decode_as(FileEdited, raw))


async def _preview(ask: Ask, verb: str, form: EditForm, inputs: Mapping[str, str]) -> Node:
    raw = await ask("edit-preview", build_order(verb, form, inputs), timeout_s=EDIT_S)
    return difference(verb, form, inputs, codec.decode_as(FileEdited, raw))


def build_order(verb: str, form: EditForm, inputs: Mapping[str, str]) -> dict[str, object]:
    """Return the order that a form with these values is. Raises Failed."""
    words: list[str] = []
    options: dict[str, list[str]] = {}
    for field in form.fields:
        text = inputs.get(field.name, "").strip()
        try:
            values = _values(field, text)
        except ValueError as error:
            raise Failed(Exit.USAGE, f"the command cannot be read: {error}") from None
        if not field.option:
            words += values
        elif text:
            options[field.option] = values
    return {"verb": verb, "words": words, "options": options}


def _values(field: EditField, text: str) -> list[str]:
    """Return the values of a field. Raises ValueError for a command with an open quote."""
    match field.kind:
        case "tick":
            return []
        case "lines":
            return [line for each in text.splitlines() if (line := each.strip())]
        case "command":
            return shlex.split(text)
        case _:
            return [text]


# Parts of the pages


def overview(settings: SettingsShown) -> Node:
    """Return links to all forms, and what the files switch off."""
    rows = [
        (ui.shorten(subject, 200), word, ui.link(address(verb, **values), FORMS[verb].title))
        for subject, word, verb, values in _list_switched_off(settings)
    ]
    heads = ("Server or tool", "State", "Edit")
    empty = "No file switches off or hides anything."
    return _page(
        "Edit",
        [
            h.ul[[h.li[ui.link(address(verb), form.title)] for verb, form in FORMS.items()]],
            h.h2["Switched off or hidden"],
            ui.table("What the files switch off or hide", heads, rows, empty=empty),
        ],
    )


def _list_switched_off(settings: SettingsShown) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Yield what the files switch off: what, a word, and the verb with values of its fields."""
    for setting in settings.settings:
        match = _OFF.fullmatch(setting.table)
        state = {("enabled", "false"): "switched off", ("hidden", "true"): "hidden"}
        if match is None or (word := state.get((setting.key, setting.value))) is None:
            continue
        server, tool = match["server"], match["tool"]
        if tool is None:
            yield server, word, "enable", {"server": server}
        else:
            verb = "tools show" if setting.key == "hidden" else "tools enable"
            yield f"{server}.{tool}", word, verb, {"tool": f"{server}.{tool}"}


def fields(verb: str, form: EditForm, inputs: Mapping[str, str]) -> Element:
    """Return the form with these values."""
    return ui.form(
        ui.address("config", *PATH),
        h.input(type="hidden", name="verb", value=verb),
        [ui.field(field.label, _control(field, inputs.get(field.name, "")), field.hint)
         for field in form.fields],
        submit="Show the difference",
    )  # fmt: skip


def _control(field: EditField, value: str) -> Node:
    match field.kind:
        case "choice":
            return ui.choice(field.name, field.choices or _clients(), value)
        case "tick":
            is_ticked = value == "yes"
            return h.input(type="checkbox", name=field.name, value="yes", checked=is_ticked)
        case "lines":
            return h.textarea(name=field.name, spellcheck="false", required=not field.optional)[
                value
            ]
        case _:
            return h.input(
                name=field.name, value=value, maxlength=4000, required=not field.optional
            )


def _clients() -> Sequence[tuple[str, str]]:
    from metamcp_supervisor.client_files.clients import CLIENTS  # loads a lot, for this form

    return [(client.name, client.title) for client in CLIENTS.values()]


def difference(verb: str, form: EditForm, inputs: Mapping[str, str], edited: FileEdited) -> Node:
    """Return what an edit would change, the button that does it, and the form again."""
    values = {field.name: text for field in form.fields if (text := inputs.get(field.name, ""))}
    changes = any(line.startswith(("+", "-")) for line in edited.said)
    return _page(
        form.title,
        [
            edited.warnings and ui.notice("Before you go on:", "warn", edited.warnings),
            _lines(edited.said),
            changes
            and ui.action(
                ui.address("config", *PATH),
                "Write it",
                {"verb": verb, "do": WRITE, **values},
                danger=verb.endswith("remove"),
            ),
            h.details[h.summary["Change the form"], fields(verb, form, inputs)],
        ],
    )


def _lines(lines: Sequence[str]) -> Element:
    """Return a unified difference as a part of a page."""
    parts: list[Node] = []
    for line in lines:
        text = f"{ui.shorten(line, 2000)}\n"
        head = line.startswith(("+++", "---"))
        mark = h.ins if line.startswith("+") else h.del_ if line.startswith("-") else None
        parts.append(text if head or mark is None else mark[text])
    return h.figure(class_="code")[
        h.figcaption["What changes"],
        h.pre(tabindex="0", aria_label="What changes", class_="diff")[h.code[parts]],
    ]


def render_outcome(verb: str, form: EditForm, done: FileEdited) -> Node:
    """Return what was written, and what puts it into force."""
    of_client = verb in ("install", "uninstall")
    effect = "A gateway of 'metamcp up' reads the file by itself, any other one at a reload. "
    return h.div(data_keep=True)[
        _page(
            form.title,
            [
                ui.notice("Written.", details=done.said),
                done.warnings and ui.notice("With warnings:", "warn", done.warnings),
                not of_client and h.p[effect, ui.link("/config/files", "What a reload would do")],
                h.p[ui.link("/config/edit", "Another edit")],
            ],
        )
    ]


def _page(title: str, content: Node) -> Node:
    return [
        ui.build_heading(title, h.p["Nothing is written before you have seen the difference."]),
        ui.tabs("/config/edit", TABS),
        content,
    ]


TABS = (("/config", "In force"), ("/config/files", "Files"), ("/config/edit", "Edit"))
