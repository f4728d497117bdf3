"""Scripts: programs that a workspace keeps, and the rules that each of them keeps to.

Owns: a script and its limits, what is wrong with one, the form of its file. Never: keeping scripts
(the supervisor's `views.ledger` and `views.store`), running them, the judgement of arguments
(`parameters`).

A file of a script is its code. A first line says the rest, if there is any, in a comment:

    // metamcp: {"description": "…", "parameters": {…}, "expose": true}
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec, parameters
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.process_names import label

NAME_CHARACTERS_MAX = 48
"""Maximum characters of a script's name: it fits into the name of a tool, and of a file."""
DESCRIPTION_CHARACTERS_MAX = 1024
"""Maximum characters of a script's description."""
CODE_BYTES_MAX = 64 * 1024
"""Maximum bytes of a script's code; a thousand lines and more."""
SCRIPTS_MAX = 500
"""Maximum scripts of one workspace."""
VERSIONS_MAX = 20
"""Maximum versions of a script that are kept; older ones are forgotten."""
SCRIPTS_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the scripts of all workspaces together: every front has all of them."""
SUFFIXES: Final[Mapping[Language, str]] = {
    "typescript": ".ts",
    "javascript": ".js",
    "python": ".py",
}
"""End of a file's name, by the languages that scripts have."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_NONE = Raw(b"")
_HEAD = re.compile(r"(?://|#) ?metamcp:(.*)")


class Script(Struct, frozen=True):
    """Version of a script. `name`: with its workspace (`process_names.within`); `parameters`: JSON
    Schema of its arguments as JSON, empty if it takes any; `expose`: whether it is a tool of its
    own in lists; `created`: when this version was saved, in seconds since the epoch."""

    name: str
    version: int
    code: str
    language: Language = "typescript"
    description: str = ""
    parameters: str = ""
    expose: bool = False
    created: float = 0.0


def check_script_name(name: str) -> str:
    """Return why no script can have this name in its workspace, or an empty string."""
    if len(name) <= NAME_CHARACTERS_MAX and NAME.match(name):
        return ""
    rule = f"1 to {NAME_CHARACTERS_MAX} letters, digits, '_' and '-', and begins with none of these"
    return f"the name of a script has {rule} two"


def unfit(script: Script) -> str:
    """Return why a script cannot be kept, or an empty string."""
    if reason := check_script_name(label(script.name)):
        return reason
    if not script.code.strip():
        return "a script has some code"
    if (size := len(script.code.encode("utf-8", "surrogatepass"))) > CODE_BYTES_MAX:
        return f"the code of a script has at most {CODE_BYTES_MAX} bytes, and this has {size}"
    if len(script.description) > DESCRIPTION_CHARACTERS_MAX:
        return f"the description of a script has at most {DESCRIPTION_CHARACTERS_MAX} characters"
    return parameters.unfit(script.parameters) if script.parameters else ""


def weight(script: Script) -> int:
    """Return about how many bytes a script takes."""
    return len(script.code) + len(script.parameters) + len(script.description)


# --- files ------------------------------------------------------------------------------------


class ScriptHead(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """First line of a file: everything about a script but its name, language and code. None, and
    empty parameters: it does not say."""

    description: str | None = None
    parameters: Raw = _NONE
    expose: bool | None = None


def format_script(script: Script) -> str:
    """Return the file of a script, which `file_read` reads."""
    head = ScriptHead(
        script.description or None,
        Raw(script.parameters.encode()) if script.parameters else _NONE,
        script.expose or None,
    )
    if head == ScriptHead() and _HEAD.match(script.code) is None:
        return script.code
    mark = "#" if script.language == "python" else "//"
    return f"{mark} metamcp: {codec.dump(head).decode()}\n{script.code}"


def file_read(text: str) -> tuple[ScriptHead, str]:
    """Return the head of a file, and the code after it. Raises codec.Malformed."""
    first, _, code = text.partition("\n")
    match = _HEAD.match(first)
    if match is None:
        return ScriptHead(), text
    return codec.decode_as(ScriptHead, match[1].encode()), code
