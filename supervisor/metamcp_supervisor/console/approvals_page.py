"""Page of the approvals: calls and workflows that wait for a person, consent that counts for a
time, tools that differ from what was approved.

Owns: columns, the parts of the page, orders. Never: which calls wait (fronts decide), how bad a
difference is (`approval`).
"""

import time
from collections.abc import Mapping, Sequence

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console import keys_page
from metamcp_supervisor.console.pages import Ask, Page, PageRequest, feature_pages
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.config_orders import ApprovalResult, DriftList, DriftShown
from metamcp_supervisor.verbs import ConsentList, Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import ConsentGrant, OpenConsent

POLL = "every 1s"
"""How often the page counts down what waits."""
SCOPES = (("once", "Allow once"), ("session", "Allow in this session"), ("24h", "Allow for 24 h"))
SAYS_ELSE = (
    "Texts of this tool changed. Models read them, and may obey what they say. No program can judge"
    " that: read the difference, and approve the tool only if it says nothing that you do not want."
)
_SAID = {"approve": "is allowed", "deny": "is denied", "revoke": "is revoked"}


async def show(ask: Ask, request: PageRequest) -> Node:
    if len(request.path) == 2:
        server, tool = request.path
        raw = await ask("drift", {"server": server, "tool": tool})
        return one_tool(codec.decode_as(DriftList, raw).tools[0])
    consent = codec.decode_as(ConsentList, await ask("consent"))
    drift = codec.decode_as(DriftList, await ask("drift"))
    names: Mapping[str, str] = {}
    if consent.questions or consent.grants:
        names = await keys_page.names(ask, request.role)
    return [
        ui.build_heading("Approvals", h.p["What a person decides."]),
        render_waiting_calls(consent.questions, time.time(), names),
        [await page.waiting(ask, request) for page in feature_pages() if page.waiting is not None],
        grants(consent.grants, names),
        render_drifts(drift),
    ]


async def change(ask: Ask, request: PageRequest) -> Node:
    form, start = request.form, PageRequest(role=request.role)
    if form.get("do") == "lock":
        params = {
            "name": form.get("server", ""), "tool": form.get("tool", ""),
            "offered": form.get("offered", ""),
        }  # fmt: skip
        done = codec.decode_as(ApprovalResult, await ask("lock-approve", params))
        subject = f"{done.server}.{done.tool}" if done.tool else f"What {done.server} offers"
        text = f"{subject} is approved; metamcp.lock has {done.tools} tools of {done.server} now."
        return [ui.notice(text), await show(ask, start)]
    for page in feature_pages():
        if (answer := page.answers.get(form.get("do", ""))) is not None:
            return [ui.notice(await answer(ask, form)), await show(ask, start)]
    order: dict[str, object] = {
        "what": form.get("do", ""), "ids": form.get("id", "").split(),
        "scope": form.get("scope", "") or "once",
    }  # fmt: skip
    if order["what"] not in _SAID:
        raise Failed(Exit.USAGE, "choose what to do with the question: approve, deny or revoke")
    decided = codec.decode_as(ConsentList, await ask("consent-change", order))
    about = [f"{question.server}/{question.tool}" for question in decided.questions]
    about += [f"{grant.server}/{grant.tool}" for grant in decided.grants]
    text = f"{', '.join(about)} {_SAID[form.get('do', '')]}."
    return [ui.notice(text), await show(ask, start)]


def render_waiting_calls(
    questions: Sequence[OpenConsent], now: float, names: Mapping[str, str] = {}
) -> Element:
    """Return the calls that wait for an answer, which the browser asks for again while one does.
    `names`: of API keys, by their ids."""
    polls = {
        "hx-get": "/f/approvals", "hx-trigger": POLL, "hx-select": "#waiting",
        "hx-target": "#waiting", "hx-swap": "outerMorph",
    }  # fmt: skip
    return h.section(polls if questions else {}, id="waiting")[
        h.h2["Calls that wait"],
        [_question(question, now, names) for question in questions]
        or h.p(class_="empty")["No call waits for an answer."],
    ]


def _question(question: OpenConsent, now: float, names: Mapping[str, str]) -> Element:
    name = f"{question.server}/{question.tool}"
    who = question.client or question.principal or "a client"
    order = {"id": question.id}
    return h.section(class_="question", id=f"q-{question.id}")[
        h.h3[ui.shorten(name, 200)],
        ui.pairs(
            [
                ("Time left", ui.state(f"{ui.ago(max(0.0, question.until - now))} left", "warn")),
                (
                    "Asked",
                    [
                        ui.render_time(question.since), ", as call ",
                        h.code[ui.shorten(question.id, 80)],
                    ],
                ),
                (
                    "Asked by",
                    [
                        f"{ui.shorten(who, 100)}, ",
                        keys_page.render_holder(question.principal, names),
                        f", at {ui.shorten(question.endpoint, 100)}",
                    ],
                ),
                (
                    "From",
                    (
                        f"{ui.shorten(question.source, 40)}"
                        f"{'; the client is asked too' * question.asked}"
                    ),
                ),
            ]
        ),
        ui.code(question.arguments, label="Arguments"),
        h.div(class_="beside")[
            [
                ui.action(
                    "/approvals", label, {**order, "do": "approve", "scope": scope},
                    confirm=f"Let {who} call {name} ({label.lower()})?",
                )
                for scope, label in SCOPES
            ],
            ui.action(
                "/approvals", "Deny", {**order, "do": "deny"}, danger=True,
                confirm=f"Refuse this call of {name} by {who}?",
            ),
        ],
    ]  # fmt: skip


def grants(consents: Sequence[ConsentGrant], names: Mapping[str, str] = {}) -> Node:
    """Return the consent that counts until a time. `names`: of API keys, by their ids."""
    rows = [
        [
            ui.shorten(f"{grant.server}/{grant.tool}", 200),
            keys_page.render_holder(grant.principal, names),
            ui.render_time(grant.until),
            ui.shorten(grant.by, 100),
            ui.action(
                "/approvals", "Revoke", {"do": "revoke", "id": grant.id}, danger=True,
                confirm=f"End the consent of {grant.principal} to {grant.server}/{grant.tool}?",
            ),
        ]
        for grant in consents
    ]  # fmt: skip
    heads = ("Tool", "Of", "Until", "Agreed by", "Order")
    empty = "No consent counts beyond its call."
    return [h.h2["Consent for a time"], ui.table("Consent", heads, rows, empty=empty)]


def render_drifts(drifts: DriftList) -> Node:
    """Return the tools that differ from what was approved."""
    rows: list[list[Node]] = [
        [
            ui.link(ui.address("approvals", drift.server, drift.tool), _name(drift)),
            ui.state("quarantine", "bad") if drift.kept else ui.state("recorded", "warn"),
            ui.shorten(verdict(drift.word), 100),
            ui.shorten(drift.why, 300),
        ]
        for drift in drifts.tools
    ]
    heads = ("Tool", "State", "Verdict", "Difference")
    return [
        h.h2["Tools that are not as approved"],
        ui.table("Drift", heads, rows, empty="Every tool that was seen is as approved."),
        drifts.more > 0 and h.p[f"{drifts.more} more are not shown."],
    ]


def one_tool(drift: DriftShown) -> Node:
    """Return both definitions of a tool, what differs, and how to approve it."""
    order = {"do": "lock", "server": drift.server, "offered": drift.offered}
    everything = f"Approve everything that {drift.server} offers now, in metamcp.lock?"
    return [
        ui.build_heading(_name(drift), ui.link("/approvals", "all approvals")),
        ui.pairs(
            [
                ("State", ui.state("quarantine" if drift.kept else "recorded",
                                   "bad" if drift.kept else "warn")),
                ("Verdict", ui.shorten(verdict(drift.word), 100)),
                ("Difference", ui.shorten(drift.why)),
            ]
        ),
        says_else(drift.word) and ui.notice(SAYS_ELSE, "bad"),
        bool(drift.findings)
        and ui.table(
            "Findings",
            ("Place", "For callers", "Finding"),
            [
                [ui.shorten(finding.pointer, 200), finding.weight, ui.shorten(finding.text, 500)]
                for finding in drift.findings
            ],
            empty="",
        ),
        ui.diff(drift.before, drift.after, "Definition: approved, and offered now"),
        h.div(class_="beside")[
            drift.locked
            and ui.action(
                "/approvals",
                f"Approve {ui.shorten(drift.tool, 60)}",
                {**order, "tool": drift.tool},
                confirm=f"Approve {drift.server}.{drift.tool} as it is offered now, in"
                " metamcp.lock?",
            ),
            ui.action(
                "/approvals", f"Approve all of {ui.shorten(drift.server, 60)}", order,
                confirm=everything,
            ),
        ],
        not drift.locked
        and h.p[
            f"metamcp.lock has nothing of {ui.shorten(drift.server, 60)} yet: the first approval is"
            " of all of its tools."
        ],
    ]  # fmt: skip


def says_else(word: str) -> bool:
    """Whether a kind of difference has texts that changed."""
    return "words" in word.split(", ")


def verdict(word: str) -> str:
    """Return a kind of difference for people: `compatible` is about programs that call a tool, and
    does not judge texts."""
    kinds = word.split(", ")
    if not says_else(word):
        return word
    return ", ".join(["texts changed", f"{kinds[0]} for callers", *kinds[2:]])


def _name(drift: DriftShown) -> str:
    return ui.shorten(f"{drift.server}.{drift.tool}", 200)


PAGE = Page(
    name="approvals", title="Approvals", show=show, change=change, least=Role.OPERATOR,
    live=("approvals", "servers"),
)  # fmt: skip
