"""Page of the configuration: settings in force with their places, the files against what is in
force, the problems of the files.

Owns: the parts of the page, the question before a reload. Never: masking secrets and the plan of a
reload (the gateway).
"""

from collections.abc import Sequence

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import edit_page
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.edit_page import TABS
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.config_orders import ConfigDiff, SettingsShown
from metamcp_supervisor.verbs import Exit, ReloadPlan
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

RELOAD_S = 60.0
"""Seconds for a reload, which runs programs that print secrets."""
SETTINGS = ("Key", "Value", "Set at")
CHANGES = ("Setting", "In force", "In the files", "Set at")
PLAN = ("Name", "Action", "Why")
ACTIONS = (
    "The action restart ends the process of the server and starts a new one. The action in-place"
    " applies the change without a restart."
)


async def show(ask: Ask, request: PageRequest) -> Node:
    if request.path == edit_page.PATH:
        return await edit_page.show(ask, request)
    if request.path == ("files",):
        try:
            raw = await ask("config-diff", timeout_s=RELOAD_S)
        except Failed as error:
            if error.exit != Exit.CONFIG:
                raise
            return invalid(error)
        return files(codec.decode_as(ConfigDiff, raw), request.role)
    table = request.query.get("table", "")
    settings = codec.decode_as(SettingsShown, await ask("config", {"table": table}))
    return in_force(settings, table)


async def change(ask: Ask, request: PageRequest) -> Node:
    if request.path == edit_page.PATH:
        return await edit_page.change(ask, request)
    order = {"expect": request.form.get("plan", ""), "yes": request.form.get("sure") == "yes"}
    raw = await ask("reload", order, timeout_s=RELOAD_S)
    plan = codec.decode_as(ReloadPlan, raw)
    notice = ui.notice(f"The configuration of the files is in force: plan {plan.hash}.")
    return [notice, await show(ask, PageRequest(role=request.role, path=("files",)))]


def in_force(settings: SettingsShown, table: str) -> Node:
    """Return the settings in force: those that something sets, or all of one table."""
    tables: list[list[Node]] = [
        [
            ui.link(
                ui.address("config", query={"table": summary.name}),
                ui.shorten(_table(summary.name)),
            ),
            str(summary.set),
            str(summary.keys),
        ]
        for summary in settings.tables
    ]
    heading = f"Table {_table(table)}, defaults too" if table else "Settings that something sets"
    return [
        ui.build_heading("Config", h.p["Secrets are masked."]),
        ui.tabs("/config", TABS),
        _sentences(settings.problems, settings.warnings),
        settings.newer and _newer(settings.newer),
        ui.pairs([("Files", [h.div[h.code[ui.shorten(path, 500)]] for path in settings.files])]),
        h.h2[ui.shorten(heading, 200)],
        table and h.p[ui.link("/config", "Settings that something sets")],
        _settings(settings, with_table=not table),
        settings.more > 0 and h.p[f"{ui.amount(settings.more)} more settings are not shown."],
        h.h2["Tables"],
        ui.table(
            "Tables, with the number of keys that something sets",
            ("Table", "Set", "Keys"),
            tables,
            empty="The configuration has only defaults.",
            numbers=("Set", "Keys"),
        ),
    ]


def _newer(files: Sequence[str]) -> Element:
    """Return the sentence about files that were written after they were read."""
    names = f"{ui.shorten(', '.join(files), 600)} {'was' if len(files) == 1 else 'were'}"
    read = "The values and lines below are those that were read."
    return h.div(class_="notice warn", role="status")[
        f"{names} written after the gateway read the files. {read} ",
        ui.link("/config/files", "What differs"),
    ]


def _settings(settings: SettingsShown, *, with_table: bool) -> Element:
    rows = [
        [
            ui.shorten(
                f"{setting.table}.{setting.key}" if with_table and setting.table else setting.key,
                200,
            ),
            h.code[ui.shorten(setting.value, 600)],
            h.code[ui.shorten(setting.place, 500)] if setting.place else "default",
        ]
        for setting in settings.settings
    ]
    return ui.table("Settings", SETTINGS, rows, empty="Nothing is set: all keys have defaults.")


def files(diff: ConfigDiff, role: Role) -> Node:
    """Return what a reload of the files would do, and the button that does it."""
    plan = diff.plan
    rows = [[ui.shorten(cell, 500) for cell in row[1:]] for row in columns.plan_rows(plan)]
    idle = all(change.action == "unchanged" for change in plan.changes)
    return [
        ui.build_heading("Config", h.p["The files are not in force before a reload."]),
        ui.tabs("/config/files", TABS),
        _sentences(diff.problems, diff.warnings),
        h.h2["What a reload would do"],
        ui.table("Plan", PLAN, rows, empty="Nothing: the files are in force."),
        rows and h.p[ACTIONS],
        h.h2["Settings that differ"],
        _changes(diff),
        diff.more > 0 and h.p[f"{ui.amount(diff.more)} more changes are not shown."],
        h.p[
            "Secrets are masked: a new value of one shows only in the plan. Tools that changed: ",
            ui.link("/approvals", "Approvals"),
            ".",
        ],
        not idle
        and (_reload(plan) if role >= Role.ADMIN else ui.needs("reload the files", Role.ADMIN)),
    ]


def _changes(diff: ConfigDiff) -> Element:
    rows = [
        [
            ui.shorten(f"{change.table}.{change.key}" if change.table else change.key, 200),
            change.before and h.del_[h.code[ui.shorten(change.before, 600)]],
            change.after and h.ins[h.code[ui.shorten(change.after, 600)]],
            h.code[ui.shorten(change.place, 500)],
        ]
        for change in diff.changes
    ]
    return ui.table("Changes", CHANGES, rows, empty="No setting differs.")


def _reload(plan: ReloadPlan) -> Node:
    """Return the button that applies a plan, with what a person has to confirm first."""
    order = {"plan": plan.hash, "sure": "yes" if plan.question else ""}
    return [
        plan.question and ui.notice("This needs a yes:", "warn", plan.question.splitlines()),
        ui.action(
            "/config", "Reload", order, danger=bool(plan.question),
            confirm=f"Put the files into force (plan {plan.hash})?",
        ),
    ]  # fmt: skip


def invalid(error: Failed) -> Node:
    """Return why the files cannot be used."""
    return [
        ui.build_heading("Config", h.p["The files are not in force before a reload."]),
        ui.tabs("/config/files", TABS),
        ui.notice(str(error), "bad", error.details),
    ]


def _sentences(problems: tuple[str, ...], warnings: tuple[str, ...]) -> Node:
    return [
        problems and ui.notice("Servers with a mistake do not start.", "bad", problems),
        warnings and ui.notice("The files were read with warnings.", "warn", warnings),
    ]


def _table(name: str) -> str:
    return f"[{name}]" if name else "the top of the file"


PAGE = Page(
    name="config", title="Config", show=show, change=change, least=Role.OPERATOR, live=("config",)
)
