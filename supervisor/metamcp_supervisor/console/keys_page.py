"""Page of the API keys: all keys, one key and what it has open, a new key with ready lines for
clients.

Owns: columns, forms, the lines for clients. Never: the rules of keys (`keys.key_rules`).
"""

import json
from collections.abc import Iterable, Mapping

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.verbs import GatewayStatus, KeyChanged, KeyList, KeyShown
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.figures import KeyUse
from metamcp_worker.ipc.key_table import CONSOLE_SCOPES, METRICS_SCOPE

CHANGE_S = 15.0
"""Seconds for a change: fronts have 3 s to confirm it, and the disk may be slow."""
PAGES_MAX = 20
"""Maximum answers of a hundred keys that the list has."""
LIMITS = ("calls_per_minute", "calls_per_day", "in_flight", "streams")
HEADS = ("Name", "Id", "Workspace", "Endpoints", "Scopes", "Expires", "State")
_TONES: Mapping[str, ui.Tone] = {"active": "ok", "expired": "off"}


async def show(ask: Ask, request: PageRequest) -> Node:
    if request.path:
        key = codec.decode_as(KeyList, await ask("keys", {"names": [request.path[0]]})).keys[0]
        use = codec.decode_as(KeyUse, await ask("key-use", {"name": key.id}))
        return one_key(key, use, request.role)
    keys = await _all(ask)
    status = codec.decode_as(GatewayStatus, await ask("status"))
    return key_list(keys, status.endpoints, request)


async def _all(ask: Ask) -> list[KeyShown]:
    keys: list[KeyShown] = []
    for _ in range(PAGES_MAX):
        raw = await ask("keys", {"after": keys[-1].id if keys else ""})
        page = codec.decode_as(KeyList, raw)
        keys += page.keys
        if not page.more:
            break
    return keys


async def names(ask: Ask, role: Role) -> Mapping[str, str]:
    """Return the names of the keys by their ids; an empty table for a role that may not see
    them."""
    if role < PAGE.least:
        return {}
    return {key.id: key.name for key in await _all(ask)}


def render_holder(holder: str, names: Mapping[str, str]) -> Node:
    """Return the holder of a credential for people. `holder`: id of a key, or the name of a
    principal such as `key:ID`; a known key has its name and the link to its page."""
    key = holder.removeprefix("key:")
    if key not in names:
        return ui.shorten(holder, 100)
    return ui.link(ui.address("keys", key), f"{ui.shorten(names[key], 80)} ({ui.shorten(key, 80)})")


async def change(ask: Ask, request: PageRequest) -> Node:
    form = request.form
    order = build_order(form, request.path[0] if request.path else "")
    # Before the order, which may end the key of this very session.
    status = codec.decode_as(GatewayStatus, await ask("status"))
    raw = await ask("keys-change", {"order": order}, timeout_s=CHANGE_S)
    made = codec.decode_as(KeyChanged, raw)
    if made.key:
        return new_key(made, status)
    outcome = {"Expire": "has expired", "Revoke": "is revoked"}[str(order["type"])]
    notice = ui.notice(
        f"The key {made.name} ({made.id}) {outcome}.", details=_list_unconfirmed(made)
    )
    return [notice, await show(ask, PageRequest(role=request.role))]


def build_order(form: Mapping[str, str], key: str) -> dict[str, object]:
    """Return the order of a form about the key `key`, or for a new one."""
    kind = form.get("do", "")
    if kind in ("Expire", "Revoke"):
        return {"type": kind, "key": key}
    if kind == "Rotate":
        return {"type": kind, "key": key, "grace": form.get("grace", "").strip()}
    limits = {name: float(text) for name in LIMITS if (text := form.get(name, "")).isdecimal()}
    return {
        "type": "NewKey",
        "name": form.get("name", "").strip(),
        "workspace": form.get("workspace", "").strip() or "default",
        "endpoints": form.get("endpoints", "").split(),
        "scopes": form.get("scopes", "").replace(",", " ").split(),
        "expires": form.get("expires", "").strip(),
        "principal": form.get("principal", "").strip(),
        "url": form.get("url", "") == "yes",
        "limits": limits,
    }


def key_list(keys: Iterable[KeyShown], endpoints: Iterable[str], request: PageRequest) -> Node:
    """Return the keys that a filter leaves, and the form for a new one."""
    words = request.query.get("q", "").lower().split()
    matches = [
        key for key in keys
        if all(word in f"{key.name} {key.id} {key.principal} {key.workspace}".lower()
               for word in words)
    ]  # fmt: skip
    empty = "No key fits the filter." if words else "No key was made yet."
    return [
        ui.build_heading("Keys", h.p["Credentials of programs and people on other machines."]),
        ui.search("/keys", request.query, "Name, id, principal or workspace"),
        ui.table("API keys", HEADS, map(_row, matches), empty=empty),
        _new_form(endpoints)
        if request.role >= Role.ADMIN
        else ui.needs("make, replace or end keys", Role.ADMIN),
    ]


def one_key(key: KeyShown, use: KeyUse, role: Role) -> Node:
    """Return all about a key, and what can be done with it."""
    path = ui.address("keys", key.id)
    ends = use_text(use)
    name = ui.shorten(key.name, 80)
    by = ui.shorten(key.created_by or "an unknown user")
    return [
        ui.build_heading(["Key ", name], ui.link("/keys", "all keys")),
        ui.pairs(
            [
                ("Id", h.code[key.id]),
                ("State", ui.state(key.state, _TONES.get(key.state, "warn"))),
                ("Workspace", ui.shorten(key.workspace)),
                ("Endpoints", ui.shorten(", ".join(key.endpoints) or "all")),
                ("Scopes", ui.shorten(", ".join(key.scopes) or "all")),
                ("Principal", ui.shorten(key.principal)),
                ("Expires", ui.moment(key.expires) if key.expires else "never"),
                ("In URLs", "where the endpoint allows it" if key.url else "no"),
                ("Limits", ", ".join(f"{k} {v:g}" for k, v in key.limits.items()) or "none"),
                ("Created", [ui.moment(key.created), f" by {by}"]),
                ("Open now", f"{ends}; when the key ends, these are closed at once"),
            ]
        ),
        [
            h.h2["Replace it"],
            ui.form(
                path,
                h.input(type="hidden", name="do", value="Rotate"),
                ui.field(
                    "Both are valid for",
                    h.input(name="grace", placeholder="24h", maxlength=20),
                    "Empty: the old key ends at once.",
                ),
                submit="Rotate",
                confirm=f"Make a key in place of {key.name} ({key.id})?",
            ),
            h.h2["End it"],
            ui.action(
                path, "Expire", {"do": "Expire"},
                confirm=f"Let the key {key.name} ({key.id}) expire now? {ends} will end.",
            ),
            ui.action(
                path, "Revoke", {"do": "Revoke"}, danger=True,
                confirm=f"Revoke the key {key.name} ({key.id}) and forget it? {ends} will close.",
            ),
        ]
        if role >= Role.ADMIN
        else ui.needs("replace or end a key", Role.ADMIN),
    ]  # fmt: skip


def new_key(made: KeyChanged, status: GatewayStatus) -> Node:
    """Return the text of a new key, which is shown this once, with lines for clients."""
    names = made.endpoints or tuple(status.endpoints)
    url = next((status.endpoints[name] for name in names if name in status.endpoints), status.url)
    until = ui.moment(made.expires) if made.expires else "it is revoked"
    valid: list[tuple[str, Node]] = [("Valid until", until)]
    if made.old_until:
        valid.append(("The key before it is valid until", ui.moment(made.old_until)))
    # News do not load a page with `data-keep` again: the key is nowhere else.
    return h.div(data_keep=True)[
        ui.build_heading(["Key ", ui.shorten(made.name, 80)], ui.link("/keys", "all keys")),
        ui.notice(
            f"The key {made.name} ({made.id}) is made. It is shown this once.",
            details=[*made.doubts, *_list_unconfirmed(made)],
        ),
        ui.pairs(valid),
        ui.code(made.key, copy=True, label="Key"),
        _lines(made, url),
    ]


def _lines(made: KeyChanged, url: str) -> Node:
    """Return what to do with a new key."""
    if made.scopes == (METRICS_SCOPE,):
        return h.p["The key reads metrics from other machines, and opens no endpoint."]
    if made.scopes and set(made.scopes) <= {*CONSOLE_SCOPES, METRICS_SCOPE}:
        return h.p["The key opens this console, and no endpoint: paste it at the login."]
    return [
        h.h2["Lines for clients"],
        [ui.code(text, copy=True, label=name) for name, text in snippets(made.key, url)],
    ]


def snippets(key: str, url: str) -> list[tuple[str, str]]:
    """Return what to paste where, so that a client uses a key at an endpoint."""
    bearer = f"Bearer {key}"
    entry = {"type": "http", "url": url, "headers": {"Authorization": bearer}}
    curl = (
        f"curl {url} -H 'Authorization: {bearer}' -H 'Content-Type: application/json'"
        " -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2025-06-18'"
    )
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    return [
        (
            "Claude Code",
            f"claude mcp add --transport http metamcp {url} --header 'Authorization: {bearer}'",
        ),
        (".mcp.json", json.dumps({"mcpServers": {"metamcp": entry}}, indent=2)),
        (".vscode/mcp.json", json.dumps({"servers": {"metamcp": entry}}, indent=2)),
        (
            "A client that starts a command",
            f"METAMCP_KEY={key} metamcp connect --url {url} --key-env METAMCP_KEY",
        ),
        ("curl", f"{curl} -d '{json.dumps(listed)}'"),
    ]


def use_text(use: KeyUse) -> str:
    """Return what a key has open, as words."""
    counts = ((use.streams, "stream"), (use.sessions, "session"), (use.calls, "call"))
    *first, last = (f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"{', '.join(first)} and {last}"


def _row(key: KeyShown) -> list[Node]:
    return [
        ui.link(ui.address("keys", key.id), ui.shorten(key.name, 80)),
        h.code[key.id],
        ui.shorten(key.workspace, 80),
        ui.shorten(", ".join(key.endpoints) or "all", 200),
        ui.shorten(", ".join(key.scopes) or "all", 200),
        ui.moment(key.expires) if key.expires else "never",
        ui.state(key.state, _TONES.get(key.state, "warn")),
    ]


def _new_form(endpoints: Iterable[str]) -> Element:
    endpoint_names = ", ".join(endpoints)
    return h.details[
        h.summary["New key"],
        ui.form(
            "/keys",
            h.input(type="hidden", name="do", value="NewKey"),
            ui.field("Name", h.input(name="name", required=True, maxlength=64)),
            ui.field("Workspace", h.input(name="workspace", placeholder="default", maxlength=64)),
            ui.field(
                "Endpoints",
                h.input(name="endpoints", maxlength=2000),
                "Names with blanks between; empty: all. There are:"
                f" {ui.shorten(endpoint_names, 300)}",
            ),
            ui.field(
                "Scopes",
                h.input(name="scopes", maxlength=2000),
                "Such as mcp:call:git or console:viewer; empty: all that clients need.",
            ),
            ui.field("Expires", h.input(name="expires", value="90d", maxlength=40), "Or never."),
            ui.field(
                "Principal",
                h.input(name="principal", maxlength=64),
                "Keys of one principal share views and sessions; empty: its own.",
            ),
            [
                ui.field(name.replace("_", " ").capitalize(), _number(name), "Empty: no limit.")
                for name in LIMITS
            ],
            h.label[
                h.span["In URLs"],
                h.span[
                    h.input(type="checkbox", name="url", value="yes"),
                    " It may stand in a URL, where an endpoint allows that.",
                ],
            ],
            submit="Make the key",
        ),
    ]


def _number(name: str) -> Node:
    return h.input(name=name, type="number", min="0", max="1000000000")


def _list_unconfirmed(made: KeyChanged) -> list[str]:
    return [f"{front} did not confirm this in time." for front in made.unconfirmed]


PAGE = Page(
    name="keys", title="Keys", show=show, change=change, least=Role.OPERATOR, live=("keys",)
)
