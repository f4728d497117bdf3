"""What a client must have seen when it did everything once, whoever wrote it."""

from typing import Any

from tests.clients.places import ERAS, Place
from tests.live.client import MODERN

Seen = dict[str, Any]

TOOLS = 36
LOGGED = ["Tool execution started", "Tool processing data", "Tool completed"]
DEFAULTS = (
    'action=accept, content={"name": "John Doe", "age": 30, "score": 95.5, "status": "active",'
    ' "verified": true}'
)
ANSWERS: Seen = {
    "text": "This is a simple text response for testing.",
    "mixed": ["text", "image", "resource"],
    "failed": True,
    "unknown_tool": -32602,
    "region": "region=Zürich",
    "logged": [["info", words] for words in LOGGED],
    "cancelled": "cancelled",
    "read": "This is the content of the static text resource.",
    "blob": "image/png",
    "item": "7",
    "prompt": "This is a simple prompt for testing.",
    "prompt_with": "Prompt with arguments: arg1='a', arg2='b'",
    "prompt_asked": "Use the following context: Ada",
    "completed": ["paris", "park", "party"],
    "elicited": 'User response: action=accept, content={"response": "Ada"}',
    "defaults": f"Elicitation result: {DEFAULTS}",
    "sampled": "LLM response: Paris",
    "roots": "Client exposed 1 root(s).",
    "several": "All inputs received from Ada.",
    "rounds": "Ada likes Ada.",
    "visited": {"action": "accept"},
    "updated": ["test://watched-resource"],
    "changed": 2,
    "gained": True,
}
PROGRESS = [[0, 100], [50, 100], [100, 100]]
#: What the client was asked before the three questions that come at once, and after them.
ASKED_FIRST = [
    ["form", "What context should the prompt use?"],
    ["form", "Who?"],
    ["form", "Please provide user information"],
    ["sampling", "Capital?"],
    ["roots", ""],
]
ASKED_AT_ONCE = [["form", "What is your name?"], ["roots", ""], ["sampling", "Generate a greeting"]]
ASKED_LAST = [
    ["form", "Step 1: What is your name?"],
    ["form", "Step 2: What is your favorite color?"],
    ["url", "Sign in"],
]


def check(seen: Seen, place: Place, era: str) -> None:
    """`era`: which the client speaks; one that finds out speaks the newer."""
    assert "failure" not in seen, seen["failure"]
    assert {name: seen.get(name) for name in ANSWERS} == ANSWERS
    assert seen["version"] == ERAS.get(era, MODERN)
    assert set(seen["capabilities"]) >= {"completions", "logging", "prompts", "resources", "tools"}
    assert "Every feature once." in seen["instructions"]
    newer = seen["version"] == MODERN or seen.get("newer_codes")
    assert seen["unknown_resource"] == (-32602 if newer else -32002)
    # What comes in one packet with the answer is lost on the clients for TypeScript: they have
    # forgotten whom it is for when they look at it.
    told = len(seen["progress"]) if "newer_codes" in seen else len(PROGRESS)
    assert seen["progress"] == PROGRESS[:told]
    check_lists(seen, place)
    at = len(ASKED_FIRST)
    assert seen["asked"][:at] == ASKED_FIRST
    assert sorted(seen["asked"][at : at + 3]) == ASKED_AT_ONCE
    assert seen["asked"][at + 3 :] == ASKED_LAST


def check_lists(seen: Seen, place: Place) -> None:
    ours = [name for name in seen["tools"] if name.startswith(f"{place.main}__")]
    assert len(ours) == TOOLS
    assert f"{place.names['side']}__elicit" in seen["tools"]
    assert len(seen["tools"]) == len(set(seen["tools"]))
    greet = f"{place.names['side']}__greet"
    assert [name for name in seen["prompts"] if not name.startswith(place.main)] == [greet]
    assert len(seen["prompts"]) == 6
    named = ["static-text", "static-binary", "watched-resource"]
    ours = [f"test://{name}" for name in named]
    assert seen["resources"] == [*ours, "fake://one", "fake://two"]
    assert seen["templates"] == ["test://template/{id}/data", "fake://item/{id}"]
