"""A call that somebody tries from the console: the call, what came back, questions of the server.

Owns: the fields of a form and their values, the rounds of a call that asks, the parts of a page
about them. Never: the rest of the page (`tools_page`), sending (`calls.endpoint_client`), who may
do so (the verb `tool-try`).

A server's question ends the request. So the page shows the question as a form, and the answer goes
back with the same arguments and the state of the call, as the protocol has it.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

import htpy as h
from htpy import Element, Node
from msgspec import Raw, Struct

from metamcp_supervisor.calls import tool_call, tool_form
from metamcp_supervisor.calls.tool_call import (
    CALL,
    ELICIT,
    HttpExchange,
    InputQuestion,
    InputWanted,
    RequestForm,
)
from metamcp_supervisor.calls.tool_form import ArgumentsUnfit, FormField
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, PageRequest
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.tool_orders import TryPlace
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.figures import ShownTool

TRY_S = 50.0
"""Seconds for an answer; the page itself waits a minute for the console."""
LONGER = "'metamcp call' and 'metamcp replay' wait longer."
"""Sentence about a call that takes longer."""
PARTS_MAX = 50
"""Maximum parts of a result on the page; the raw answer has all."""
RAW_CHARACTERS_MAX = 100_000
"""Maximum characters of a raw request or answer on the page."""
FORM = RequestForm(name="metamcp console", capabilities={"elicitation": {"form": {}, "url": {}}})
_ANSWERS = (("accept", "answer"), ("decline", "decline"), ("cancel", "cancel"))


class TryOutcome(Struct, frozen=True):
    """Outcome of a call that was tried, as a part of a page."""

    part: Node


class TriedCall(Struct, frozen=True, kw_only=True):
    """Call and what came back. `keyed`: it went with an API key."""

    tool: str
    place: TryPlace
    arguments: bytes
    keyed: bool
    seconds: float
    exchange: HttpExchange
    answer: Envelope


async def try_tool(
    ask: Ask, request: PageRequest, tool: ShownTool, definition: Mapping[str, Any]
) -> TryOutcome:
    """Call a tool as the form of its page says, and return what came back. Raises Failed."""
    from metamcp_supervisor.bridge.http_client import Trust
    from metamcp_supervisor.calls.endpoint_client import EndpointClient  # loads a lot

    schema = tool_form.table(definition.get("inputSchema"))
    try:
        arguments = _arguments(schema, request.form)
    except ArgumentsUnfit as unfit:
        text = "The tool was not called: its arguments are wrong."
        return TryOutcome(ui.notice(text, "bad", unfit.problems))
    try:
        params = _params(tool.name, arguments, request.form)
    except ArgumentsUnfit as unfit:
        text = "The answer was not sent: it does not fit the question."
        return TryOutcome(ui.notice(text, "bad", unfit.problems))
    order = {"name": tool.name, "endpoint": request.query.get("endpoint", "")}
    target = codec.decode_as(TryPlace, await ask("tool-try", order))
    key = request.form.get("key", "").strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise Failed(Exit.USAGE, "the key has characters that no key has")
    exchanges: list[HttpExchange] = []
    begun = time.monotonic()
    async with EndpointClient(target.url, Trust(key, target.ca), FORM, TRY_S) as client:
        client.watch = exchanges.append
        try:
            answer = await client.ask(CALL, params, definition)
        except Failed as error:
            more = (LONGER,) if error.exit == Exit.TIMEOUT else error.details
            return TryOutcome([ui.notice(str(error), "bad", more), _raw(exchanges[-1:])])
    call = TriedCall(
        tool=tool.name, place=target, arguments=arguments, keyed=bool(key),
        seconds=time.monotonic() - begun, exchange=exchanges[-1], answer=answer,
    )  # fmt: skip
    return TryOutcome(outcome(call, request))


def _arguments(schema: dict[str, Any], inputs: Mapping[str, str]) -> bytes:
    """Return the raw arguments of a form. Raises ArgumentsUnfit."""
    text = inputs.get("json", "").strip()
    if text:
        try:
            codec.level(text.encode())
        except codec.Malformed as error:
            raise ArgumentsUnfit([f"the arguments are not a JSON object: {error}"]) from None
        return text.encode()
    return codec.dump(
        tool_form.arguments(schema, tool_form.collect_texts(schema, _under("a.", inputs)))
    )


def _under(prefix: str, inputs: Mapping[str, str]) -> dict[str, str]:
    size = len(prefix)
    return {name[size:]: text for name, text in inputs.items() if name.startswith(prefix)}


def _params(tool: str, arguments: bytes, inputs: Mapping[str, str]) -> dict[str, object]:
    """Return the parameters of the request: of a new call, or of one whose server has asked. Raises
    ArgumentsUnfit."""
    params: dict[str, object] = {"name": tool, "arguments": Raw(arguments)}
    raw_questions = inputs.get("asked", "")
    input_wanted = tool_call.questions(raw_questions.encode()) if raw_questions else None
    if input_wanted is None:
        return params
    answers = {question.key: _answer(question, inputs) for question in input_wanted.questions}
    return tool_call.with_answers(params, input_wanted, answers)


def _answer(question: InputQuestion, inputs: Mapping[str, str]) -> dict[str, object]:
    action = inputs.get(f"does.{question.key}", "cancel")
    if action != "accept" or question.url:
        return {"action": action}
    fields = _under(f"q.{question.key}.", inputs)
    content = tool_form.arguments(question.schema, tool_form.collect_texts(question.schema, fields))
    return {"action": action, "content": content}


# The parts of the page


def outcome(call: TriedCall, request: PageRequest) -> Node:
    """Return what came back, or the questions that the server asks first."""
    ended, result = tool_call.outcome_of(call.answer)
    took = f"{call.seconds * 1000:,.0f} ms"
    input_wanted = None if bytes(call.answer.error) else tool_call.questions(result)
    if input_wanted is not None:
        return [_questions(input_wanted, result, call, request), _raw([call.exchange])]
    if bytes(call.answer.error):
        text = codec.error_object(call.answer.error).message
        head: Node = ui.notice(f"Error {ended} after {took}: {text}", "bad")
        parts: Node = None
    else:
        good = ended == "ok"
        summary = "It answered" if good else "The tool reports an error"
        head = ui.notice(f"{summary} after {took}.", "ok" if good else "bad")
        every = list(tool_call.parts(result))
        parts = [_part(block) for block in every[:PARTS_MAX]]
    return [head, parts, _copies(call), _raw([call.exchange])]


def _part(block: tool_call.ResultPart) -> Node:
    if block.data:
        kind = block.media_type or "bytes"
        size = ui.amount(len(block.data))
        return h.p[f"{ui.shorten(block.kind, 40)}: {ui.shorten(kind, 100)}, {size} bytes"]
    return ui.code(block.text, copy=True, label=ui.shorten(block.kind, 40))


def _copies(call: TriedCall) -> Element:
    """Return the same call as commands for a shell."""
    curl = tool_call.as_curl(
        call.place.url, call.exchange.headers, call.exchange.sent, keyed=call.keyed
    )
    command = tool_call.as_command(call.tool, call.place.endpoint, call.arguments)
    return h.details[
        h.summary["Copy as"],
        ui.code(command, copy=True, label="metamcp"),
        ui.code(curl, copy=True, label="curl"),
    ]


def _raw(exchanges: list[HttpExchange]) -> Node:
    """Return requests and answers as they crossed the wire."""
    return [
        h.details[
            h.summary["Raw request and answer"],
            ui.code(_request(exchange), copy=True, label="Request"),
            ui.code(_text(exchange.received), copy=True, label=f"Answer, HTTP {exchange.status}"),
        ]
        for exchange in exchanges
    ]


def _request(exchange: HttpExchange) -> str:
    lines = [f"{name}: {value}" for name, value in exchange.headers.items()]
    return "\n".join([*lines, "", _text(exchange.sent)])


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    try:
        value: object = codec.value(data)
    except codec.Malformed:
        return text[:RAW_CHARACTERS_MAX]
    return json.dumps(value, indent=2, ensure_ascii=False)[:RAW_CHARACTERS_MAX]


def _questions(
    input_wanted: InputWanted, result: Raw, call: TriedCall, request: PageRequest
) -> Node:
    """Return the questions of a server as a form."""
    fields: list[Node] = [
        h.input(type="hidden", name="json", value=call.arguments.decode("utf-8", "replace")),
        h.input(type="hidden", name="asked", value=bytes(result).decode("utf-8", "replace")),
    ]
    if call.keyed:
        box = h.input(type="password", name="key", autocomplete="off", maxlength=500)
        fields.append(ui.field("API key", box, "The same one again: it is not kept."))
    for question in input_wanted.questions:
        is_elicitation = question.method == ELICIT
        text = (
            question.message
            if is_elicitation
            else f"{question.method}, which a console cannot answer"
        )
        options = _ANSWERS if is_elicitation else _ANSWERS[2:]
        fields.append(
            h.fieldset[
                h.legend[ui.shorten(text, 500)],
                question.url and h.p["Visit ", h.code[ui.shorten(question.url, 500)], " first."],
                [
                    control(field, "", f"q.{question.key}.")
                    for field in (
                        tool_form.fields(question.schema)
                        if is_elicitation and not question.url
                        else ()
                    )
                ],
                ui.field("Then", ui.choice(f"does.{question.key}", options)),
            ]
        )
    seen = {name: request.query.get(name, "") for name in ("endpoint", "key")}
    path = ui.address("tools", call.tool, query=seen)
    return [
        ui.notice("The server asks something before it goes on.", "warn"),
        ui.form(path, fields, submit="Send the answer"),
    ]


def control(field: FormField, value: str, prefix: str = "a.") -> Element:
    """Return the control for one argument. `prefix`: of its name in the form."""
    name = prefix + field.name
    label = f"{ui.shorten(field.name, 100)}{' *' if field.required else ''}"
    about = field.description or (field.title if field.title.lower() != field.name.lower() else "")
    hint = " ".join(filter(None, [ui.shorten(about, 500), f"({_kind(field)})"]))
    if field.kind in ("choice", "boolean"):
        values = field.choices if field.kind == "choice" else ("true", "false")
        options = [("", ""), *((each, ui.shorten(each, 100)) for each in values)]
        box: Node = ui.choice(name, options, value, required=field.required)
    elif field.kind in ("list", "json"):
        box = h.textarea(name=name, required=field.required, spellcheck="false")[value]
    else:
        mode = {"integer": "numeric", "number": "decimal"}.get(field.kind)
        box = h.input(type="text", name=name, value=value, inputmode=mode, autocomplete="off")
    return ui.field(label, box, hint)


def _kind(field: FormField) -> str:
    words = ui.shorten(field.type, 200)
    lines = ", one in each line" if field.kind == "list" else ""
    default = f", else {ui.shorten(field.default, 100)}" if field.default is not None else ""
    return words + lines + default
