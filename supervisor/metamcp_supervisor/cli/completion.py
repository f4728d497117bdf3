"""Completion in shells: the script for each shell, and names from the running gateway.

Owns: both, and the files that keep names for the next key press. Never: which argument is the name
of a server, an endpoint or a tool set (`ctl`, `toolsets`).
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import GatewayStatus, ToolSets
from metamcp_worker.ipc import codec

if TYPE_CHECKING:
    from metamcp_supervisor.verbs import ToolList

KEPT_S = 2.0
"""Seconds that names are kept, so that a few presses of the key ask the gateway only once."""
ANSWER_S = 1.0
"""Seconds to wait for the gateway, since a user does not wait longer for a key; a gateway that
hangs completes nothing."""
TOOLS_MAX = 5000
"""Maximum tools whose names are completed."""
PROGRAM = "metamcp"
VARIABLE = "_METAMCP_COMPLETE"
"""Environment variable that click reads if the program is named PROGRAM."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `metamcp` in this shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    words = {
        "complete_func": f"_{PROGRAM}_completion",
        "complete_var": VARIABLE,
        "prog_name": PROGRAM,
    }
    click.echo(kind.source_template % words)


def names(runtime_dir: str | None) -> list[str]:
    """Return the names of the servers; an empty list, without a message, if no gateway answers."""
    return _names(
        "names", runtime_dir, lambda gateway: [server.name for server in _status(gateway).servers]
    )


def endpoints(runtime_dir: str | None) -> list[str]:
    """Return the names of the endpoints, as `names` does."""
    return _names("endpoints", runtime_dir, lambda gateway: list(_status(gateway).endpoints))


def toolsets(runtime_dir: str | None) -> list[str]:
    """Return the names of the tool sets, as `names` does."""

    def ask(gateway: client.ControlClient) -> list[str]:
        raw = gateway.call("toolsets", timeout_s=ANSWER_S)
        return [toolset.name for toolset in codec.decode_as(ToolSets, raw).toolsets]

    return _names("toolsets", runtime_dir, ask)


def tools(runtime_dir: str | None, endpoint: str) -> list[str]:
    """Return the names of the tools of an endpoint, as `names` does."""

    def ask(gateway: client.ControlClient) -> list[str]:
        page = _tools(gateway, endpoint)
        seen = list(page.tools)
        while page.more and len(seen) < TOOLS_MAX:
            page = _tools(gateway, endpoint, offset=len(seen))
            seen += page.tools
        return [tool.name for tool in seen if not tool.why]

    return _names(f"tools-{_word(endpoint)}", runtime_dir, ask)


def arguments(runtime_dir: str | None, endpoint: str, tool: str) -> list[str]:
    """Return `KEY=` for each argument of a tool, and `KEY=VALUE` where few values are allowed, as
    `names` does."""

    def ask(gateway: client.ControlClient) -> list[str]:
        from metamcp_supervisor.calls.tool_form import fields, table

        matches = _tools(gateway, endpoint, tool).tools
        schema = table(codec.value(matches[0].definition).get("inputSchema")) if matches else {}
        words: list[str] = []
        for field in fields(schema):
            values = ("true", "false") if field.kind == "boolean" else field.choices
            words += [f"{field.name}=", *(f"{field.name}={value}" for value in values)]
        return words

    return _names(f"arguments-{_word(endpoint, tool)}", runtime_dir, ask)


def _tools(
    gateway: client.ControlClient, endpoint: str, tool: str = "", offset: int = 0
) -> "ToolList":
    from metamcp_supervisor.verbs import ToolList

    params = {"endpoint": endpoint, "name": tool, "offset": offset}
    return codec.decode_as(ToolList, gateway.call("tools", params, timeout_s=ANSWER_S))


def _word(*texts: str) -> str:
    """Return a word for a file's name that stands for these texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:16]


def _status(gateway: client.ControlClient) -> GatewayStatus:
    return codec.decode_as(GatewayStatus, gateway.call("status", timeout_s=ANSWER_S))


def _names(
    cache_key: str, runtime_dir: str | None, ask: Callable[[client.ControlClient], list[str]]
) -> list[str]:
    try:
        directory = runtime_dir or client.find_runtime_dir()
    except client.Failed:
        return []
    path = _path(cache_key, directory)
    if (cached := _read_cache(path)) is not None:
        return cached
    try:
        with client.connect(directory, timeout_s=ANSWER_S) as gateway:
            completions = ask(gateway)
    except (client.Failed, codec.Malformed):
        return []
    _keep(path, completions)
    return completions


def _path(cache_key: str, directory: str) -> str:
    """Return the file that keeps names of one gateway, in the cache of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest()[:16]
    return os.path.join(cache, "metamcp", f"{cache_key}-{digest}")


def _read_cache(path: str) -> list[str] | None:
    try:
        if not 0 <= time.time() - os.stat(path).st_mtime < KEPT_S:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return None


def _keep(path: str, completions: list[str]) -> None:
    """Keep the names for the next key press. Failures are ignored: that key press asks again."""
    new = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(new, "w", encoding="utf-8") as file:
            file.write("\n".join(completions))
        os.replace(new, path)
