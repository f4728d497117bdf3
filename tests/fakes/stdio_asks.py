"""Tools of the scripted server that need the client: they elicit, sample, ask for roots.

A legacy client gets requests, a modern one an `input_required` result; in both cases the text of
the last result is the JSON of what was answered.
"""

import json
import os
from collections.abc import Mapping

from tests.fakes.stdio_wire import MODERN, Json, Refused, Then, Wire, content, outcome

FORM: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "x-kept": 1.0}},
    "required": ["name"],
}
NEEDS: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class Asks(Wire):
    def tool_ask(
        self,
        number: object,
        method: str = "sampling/createMessage",
        params: object = None,
        id: object = None,  # noqa: A002 - an argument of the tool
    ) -> None:
        """Any request to the client; the call ends with the line that answered it."""
        self.request(
            method,
            params or {},
            lambda _, line: self.reply(number, result=content(line.decode())),
            id,
        )

    def tool_elicit(
        self, number: object, message: str = "Name?", mode: str = "form"
    ) -> Json | None:
        return self.wanted(number, {"who": self.form(message) if mode == "form" else self.link()})

    def tool_sample(self, number: object, text: str = "Say hello.") -> Json | None:
        message = {"role": "user", "content": {"type": "text", "text": text}}
        params = {"messages": [message], "maxTokens": 10, "x-kept": 1.0}
        return self.wanted(number, {"said": asked("sampling/createMessage", params)})

    def tool_roots(self, number: object) -> Json | None:
        return self.wanted(number, {"roots": asked("roots/list", {})})

    def tool_ask_many(self, number: object, n: int = 3) -> Json | None:
        """So many questions at once; the text is a list of the answers in their order."""
        return self.wanted(number, {f"k{at}": self.form(f"Question {at}") for at in range(n)})

    def tool_ask_rounds(self, number: object, n: int = 3) -> Json | None:
        """So many questions, one after the other; the text counts them."""
        if not self.modern:
            self.round(number, 0, n)
            return None
        state: str = self.params.get("requestState", "round 0")
        done = int(state.split()[1]) + ("inputResponses" in self.params)
        if done >= n:
            return content(f"{n} rounds")
        return required({"who": self.form(f"Round {done}")}, f"round {done}")

    def tool_ask_withdrawn(self, number: object) -> None:
        """A question that the server takes back at once. An answer to it goes to stderr; the call
        ends with the answer to a ping that is sent behind it."""
        question = self.request(
            "elicitation/create", self.form("Never mind")["params"], self.find_caller
        )
        del self.waiting[json.dumps(question)]
        self.notify("notifications/cancelled", requestId=question, reason="solved")
        self.request("ping", {}, lambda _, __: self.reply(number, result=content("withdrawn")))

    def tool_ask_and_end(self, number: object) -> None:
        """A question that stays open when the call ends; its answer goes to stderr."""
        self.request("elicitation/create", self.form("Too late")["params"], self.find_caller)
        self.reply(number, result=content("ended"))

    def tool_ask_late(self, number: object, ms: float = 100) -> None:
        """A question after a while, whatever became of the call meanwhile."""
        form = self.form("Still there?")["params"]

        def ask() -> None:
            self.request("elicitation/create", form, self.find_caller)
            self.reply(number, result=content("asked late"))

        self.later(ms, ask)

    def tool_link_done(self, _: object, id: str = "e1") -> Json:  # noqa: A002 - a tool's argument
        self.notify("notifications/elicitation/complete", elicitationId=id)
        return content("told")

    # --- how -------------------------------------------------------------------------------

    def wanted(self, number: object, questions: dict[str, Json]) -> Json | None:
        """Ask all of these; the result, or None if the answers come later."""
        if not self.modern:
            self.ask_all(number, questions)
            return None
        for question in questions.values():
            need = NEEDS[question["method"]]
            if need not in self.capabilities_of_client:
                data: Json = {"requiredCapabilities": {need: {}}}
                raise Refused(-32021, f"the client has no {need}", data)
        got: Json = self.params.get("inputResponses", {})
        if not set(questions) <= set(got):
            return required(questions, "asked once")
        return told([got[key] for key in questions])

    def ask_all(self, number: object, questions: dict[str, Json]) -> None:
        got: dict[str, object] = {}

        def heard(key: str, message: Json) -> None:
            got[key] = outcome(message)
            if len(got) == len(questions):
                self.reply(number, result=told([got[key] for key in questions]))

        def then(key: str) -> Then:
            return lambda message, _: heard(key, message)

        for key, question in questions.items():
            self.request(question["method"], question["params"], then(key))

    def round(self, number: object, done: int, n: int) -> None:
        if done == n:
            self.reply(number, result=content(f"{n} rounds"))
            return
        form = self.form(f"Round {done}")["params"]
        self.request("elicitation/create", form, lambda _, __: self.round(number, done + 1, n))

    def find_caller(self, _: Json, line: bytes) -> None:
        os.write(2, b"heard " + line)

    def form(self, message: str) -> Json:
        params: Json = {"message": message, "requestedSchema": FORM}
        if self.modern or self.declared.get("protocolVersion", MODERN) >= "2025-11-25":
            params["mode"] = "form"
        return asked("elicitation/create", params)

    def link(self) -> Json:
        params: Json = {"mode": "url", "message": "Sign in", "url": "https://example.com/in"}
        if not self.modern:
            params["elicitationId"] = "e1"
        return asked("elicitation/create", params)


def asked(method: str, params: Json) -> Json:
    return {"method": method, "params": params}


def required(questions: dict[str, Json], state: str) -> Json:
    return {"resultType": "input_required", "inputRequests": questions, "requestState": state}


def told(answers: list[object]) -> Json:
    return content(json.dumps(answers[0] if len(answers) == 1 else answers))
