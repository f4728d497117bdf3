"""A JSON Schema of workflow definitions, for editors that complete and check during typing.

Owns: the form of the schema. Never: the keys (`definition`), rules that a schema cannot express, as
that a step refers only to earlier ones.
"""

from collections.abc import Mapping
from typing import Final

from metamcp_worker.engine import definition
from metamcp_worker.engine.workflow import FAILURES, LANGUAGES

_TEXT: Final[dict[str, object]] = {"type": "string", "minLength": 1}
_STEPS: Final[dict[str, object]] = {"$ref": "#/$defs/steps"}
_DURATION: Final[dict[str, object]] = {
    "type": "string",
    "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$",
}
_OBJECT: Final[dict[str, object]] = {"type": "object"}
_RETRY: Final[dict[str, object]] = {
    "attempts": {"type": "integer", "minimum": 1, "maximum": definition.ATTEMPTS_MAX},
    "backoff": _DURATION,
    "on": {
        "anyOf": [
            {"enum": list(FAILURES)},
            {"type": "array", "items": {"enum": list(FAILURES)}, "minItems": 1},
        ]
    },
}
_CASE: Final[dict[str, object]] = {"when": _TEXT, "else": {"const": True}, "steps": _STEPS}


def _table(values: Mapping[str, object], *required: str) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(values),
        **({"required": list(required)} if required else {}),
    }


_VALUES: Final[Mapping[str, tuple[str, dict[str, object]]]] = {
    "name": ("Name, by which the workflow is run.", {**_TEXT, "pattern": "^[a-z0-9][a-z0-9_-]*$"}),
    "description": ("For people and models that choose a workflow.", {"type": "string"}),
    "inputs": (
        "Values that a run begins with, each with a JSON Schema; required without `default`.",
        {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "default": {"description": "Value if a run has none."},
                    "secret": {
                        "type": "boolean",
                        "description": "Keeps the value out of journal, logs and answers.",
                    },
                },
            },
            "maxProperties": definition.INPUTS_MAX,
        },
    ),
    "steps": ("Steps, one after the other.", _STEPS),
    "id": ("Name in expressions, as in `steps.ID.result`.", {"pattern": "^[A-Za-z_]\\w*$"}),
    "when": ("Expression; the step runs only if it is true.", _TEXT),
    "timeout": ("Longest time of one attempt, or until an answer.", _DURATION),
    "retry": (
        "Attempts after a failure.",
        {"anyOf": [{"const": "safe"}, _table(_RETRY)]},
    ),
    "safe": ("The step may run twice.", {"type": "boolean"}),
    "may_fail": ("A failure does not end the run.", {"type": "boolean"}),
    "with": ("Arguments of the tool.", {"type": ["object", "null"]}),
    "as": ("Name of the item in expressions.", {"pattern": "^[A-Za-z_]\\w*$"}),
    "call": ("Call a tool: `server.tool`, or its name as listed.", _TEXT),
    "parallel": (
        "Run steps at the same time.",
        {"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1,
         "maxItems": definition.BRANCHES_MAX},
    ),
    "foreach": (
        "Run steps for each item of a list.",
        {"anyOf": [_TEXT, {"type": "array", "maxItems": definition.FOREACH_ITEMS_MAX}]},
    ),
    "switch": (
        "Run the steps of the first case that is true.",
        {"type": "array", "items": _table(_CASE, "steps"), "minItems": 1,
         "maxItems": definition.BRANCHES_MAX},
    ),
    "run_code": (
        "Run TypeScript, JavaScript or Python in the sandbox.",
        {"anyOf": [_TEXT, _table({"code": _TEXT, "language": {"enum": list(LANGUAGES)},
                                  "args": {"type": ["object", "null"]}}, "code")]},
    ),
    "ai": (
        "Ask a model.",
        {"anyOf": [_TEXT, _table({"prompt": _TEXT, "schema": _OBJECT}, "prompt")]},
    ),
    "elicit": (
        "Ask the user.",
        _table({"message": _TEXT, "schema": _OBJECT}, "message", "schema"),
    ),
    "wait": (
        "Wait for a duration, or until a time.",
        {"anyOf": [_TEXT, _table({"until": _TEXT}, "until")]},
    ),
    "output": ("Make a value of others. The last one is the output of the run.", {}),
}  # fmt: skip
"""Description and schema of each key."""


def schema() -> dict[str, object]:
    """Return the schema of a file with one workflow."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Workflow of MetaMCP",
        **_table({key: _value(key) for key in definition.TOP_KEYS}, "name", "steps"),
        "$defs": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1},
            "step": {"anyOf": [_step(kind) for kind in definition.KINDS]},
        },
    }


def _value(key: str) -> dict[str, object]:
    about, content = _VALUES[key]
    return {"description": about, **content}


def _step(kind: str) -> dict[str, object]:
    keys = (kind, *definition.KINDS[kind], *definition.COMMON_KEYS)
    required = (kind, "steps") if "steps" in keys else (kind,)
    return {"title": kind, **_table({key: _value(key) for key in keys}, *required)}
