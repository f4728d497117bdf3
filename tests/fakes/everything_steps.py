"""What the fixture's tools ask of their caller, and what they make of the answers.

A step is a function from what is known so far to a result or to the next questions. It does not
know how a question travels: `everything_calls` puts it into an InputRequiredResult, into requests
of the server's own, or into a task, as the era and the client of the call want it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

#: Which capability a client declares for each kind of question.
CAPABILITY = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a step knows: the call, the answers to its last questions, and what it wrote down."""

    arguments: Json
    capabilities: Mapping[str, Any]
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Questions by their key; `state` comes back with the answers."""

    requests: Mapping[str, Json]
    state: str | None = None


Step = Callable[[Turn], Ask | Json]


def text(words: str, *, error: bool = False) -> Json:
    result: Json = {"content": [{"type": "text", "text": words}]}
    return {**result, "isError": True} if error else result


def form(message: str, properties: Json, required: list[str] | None = None) -> Json:
    schema: Json = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def one_field(message: str, name: str, kind: str = "string") -> Json:
    return form(message, {name: {"type": kind}}, [name])


def sample(words: str, tokens: int) -> Json:
    messages = [{"role": "user", "content": {"type": "text", "text": words}}]
    params: Json = {"messages": messages, "maxTokens": tokens}
    return {"method": "sampling/createMessage", "params": params}


ROOTS: Json = {"method": "roots/list"}


def entered(turn: Turn, key: str, name: str) -> str:
    """What the user entered into one field of a form; a dash if the user did not accept it."""
    answer = turn.answers[key]
    return str(answer.get("content", {}).get(name, "-")) if answer["action"] == "accept" else "-"


def outcome(answer: Json) -> str:
    return f"action={answer['action']}, content={json.dumps(answer.get('content', {}))}"


# --- tools of the handshake era ---------------------------------------------------------------


def sampling(turn: Turn) -> Ask | Json:
    if "reply" not in turn.answers:
        return Ask({"reply": sample(str(turn.arguments.get("prompt", "Hello")), 100)})
    return text(f"LLM response: {turn.answers['reply']['content'].get('text', 'no text')}")


def elicitation(turn: Turn) -> Ask | Json:
    if "user" not in turn.answers:
        message = str(turn.arguments.get("message", "Please answer"))
        return Ask({"user": one_field(message, "response")})
    return text(f"User response: {outcome(turn.answers['user'])}")


DEFAULTS: Json = {
    "name": {"type": "string", "description": "User name", "default": "John Doe"},
    "age": {"type": "integer", "description": "User age", "default": 30},
    "score": {"type": "number", "description": "User score", "default": 95.5},
    "status": {
        "type": "string",
        "description": "User status",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    "verified": {"type": "boolean", "description": "Verification status", "default": True},
}


def defaults(turn: Turn) -> Ask | Json:
    if "user" not in turn.answers:
        return Ask({"user": form("Please provide user information", DEFAULTS)})
    return text(f"Elicitation result: {outcome(turn.answers['user'])}")


def titled(*pairs: tuple[str, str]) -> list[Json]:
    return [{"const": const, "title": title} for const, title in pairs]


ENUMS: Json = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {
        "type": "string",
        "oneOf": titled(("value1", "First"), ("value2", "Second"), ("value3", "Third")),
    },
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {
        "type": "array",
        "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
    },
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": titled(("value1", "First"), ("value2", "Second"), ("value3", "Third"))},
    },
}


def enums(turn: Turn) -> Ask | Json:
    if "user" not in turn.answers:
        return Ask({"user": form("Please choose", ENUMS)})
    return text(f"Elicitation completed: {outcome(turn.answers['user'])}")


# --- tools of the multi-round-trip era --------------------------------------------------------


def name(turn: Turn) -> Ask | Json:
    if "user_name" not in turn.answers:
        return Ask({"user_name": one_field("What is your name?", "name")})
    return text(f"Hello, {entered(turn, 'user_name', 'name')}!")


def capital(turn: Turn) -> Ask | Json:
    if "capital_question" not in turn.answers:
        return Ask({"capital_question": sample("What is the capital of France?", 100)})
    return text(f"Model said: {turn.answers['capital_question']['content'].get('text', '-')}")


def roots(turn: Turn) -> Ask | Json:
    if "client_roots" not in turn.answers:
        return Ask({"client_roots": ROOTS})
    return text(f"Client exposed {len(turn.answers['client_roots']['roots'])} root(s).")


CONFIRM = one_field("Please confirm", "ok", "boolean")


def remembered(turn: Turn) -> Ask | Json:
    if "confirm" not in turn.answers or turn.state != "written down":
        return Ask({"confirm": CONFIRM}, "written down")
    return text("state-ok: confirmation received")


def several(turn: Turn) -> Ask | Json:
    questions = {
        "user_name": one_field("What is your name?", "name"),
        "greeting": sample("Generate a greeting", 50),
        "client_roots": ROOTS,
    }
    if not questions.keys() <= turn.answers.keys():
        return Ask(questions, "several")
    return text(f"All inputs received from {entered(turn, 'user_name', 'name')}.")


def rounds(turn: Turn) -> Ask | Json:
    known: Json = json.loads(turn.state) if turn.state else {}
    if "step2" in turn.answers and "name" in known:
        return text(f"{known['name']} likes {entered(turn, 'step2', 'color')}.")
    if "step1" in turn.answers:
        question = one_field("Step 2: What is your favorite color?", "color")
        return Ask({"step2": question}, json.dumps({"name": entered(turn, "step1", "name")}))
    return Ask({"step1": one_field("Step 1: What is your name?", "name")}, json.dumps({}))


def sealed(turn: Turn) -> Ask | Json:
    if turn.state is None:
        return Ask({"confirm": CONFIRM}, "sealed")
    return text(f"state-ok: {turn.state}")


def declared(turn: Turn) -> Ask | Json:
    """Asks only what the client declared."""
    if turn.answers:
        return text(f"Answered: {', '.join(sorted(turn.answers))}")
    wanted = {
        "sample": sample("Say hello", 50),
        "ask": one_field("What is your name?", "name"),
        "roots": ROOTS,
    }
    asked = {
        key: question
        for key, question in wanted.items()
        if CAPABILITY[question["method"]] in turn.capabilities
    }
    return Ask(asked, "declared") if asked else text("The client can answer nothing.")


def needs_sampling(turn: Turn) -> Ask | Json:
    """Cannot work without sampling, so that a client without it gets an error."""
    if "reply" not in turn.answers:
        return Ask({"reply": sample("Are you there?", 10)})
    return text("The client has a model.")


def context(turn: Turn) -> Ask | Json:
    """The prompt that asks."""
    if "user_context" not in turn.answers:
        question = one_field("What context should the prompt use?", "context")
        return Ask({"user_context": question})
    words = f"Use the following context: {entered(turn, 'user_context', 'context')}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}


# --- tools that become tasks ------------------------------------------------------------------


def confirm_delete(turn: Turn) -> Ask | Json:
    file = str(turn.arguments.get("filename", "a file"))
    if "confirm" not in turn.answers:
        return Ask({"confirm": one_field(f"Delete {file}?", "confirm", "boolean")})
    return text(f"Deleted {file}: {entered(turn, 'confirm', 'confirm')}")


def multi_input(turn: Turn) -> Ask | Json:
    keys = ("first", "second")
    if not set(keys) <= turn.answers.keys():
        return Ask({key: one_field(f"The {key} name?", "name") for key in keys})
    return text(" and ".join(entered(turn, key, "name") for key in keys))


#: Tools that servers of the handshake era have: they ask by requests of their own.
PUSHING = frozenset({
    "test_sampling", "test_elicitation", "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
})  # fmt: skip

PROMPT = "test_input_required_result_prompt"

STEPS: dict[str, Step] = {
    "test_sampling": sampling,
    "test_elicitation": elicitation,
    "test_elicitation_sep1034_defaults": defaults,
    "test_elicitation_sep1330_enums": enums,
    "test_streaming_elicitation": elicitation,
    "test_missing_capability": needs_sampling,
    "test_input_required_result_elicitation": name,
    "test_input_required_result_sampling": capital,
    "test_input_required_result_list_roots": roots,
    "test_input_required_result_request_state": remembered,
    "test_input_required_result_multiple_inputs": several,
    "test_input_required_result_multi_round": rounds,
    "test_input_required_result_tampered_state": sealed,
    "test_input_required_result_capabilities": declared,
    "test_tool_with_task": name,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
    PROMPT: context,
}
