"""Completion in shells: the script for each, and names of servers from the gateway that runs.

Owns: both, and the file in which names are kept for the next key press. Never: which argument is
the name of a server (`ctl`).
"""

import contextlib
import hashlib
import os
import time

import click

from metamcp_supervisor import runtime
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_supervisor.watched import client
from metamcp_worker import codec

KEPT_S = 2.0
"""Names are asked for once for a few presses of the key."""
ANSWER_S = 1.0
"""Nobody waits longer for a key; a gateway that hangs completes nothing."""
PROGRAM = "metamcp"
VARIABLE = "_METAMCP_COMPLETE"
"""What click looks for when the program is named PROGRAM."""


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
    """Of the servers; none, without a word, when no gateway can be asked."""
    directory = runtime_dir or runtime.default(os.environ)
    path = _path(directory)
    if (kept := _kept(path)) is not None:
        return kept
    try:
        with client.connect(runtime_dir, timeout_s=ANSWER_S) as gateway:
            status = codec.typed(GatewayStatus, gateway.call("status", timeout_s=ANSWER_S))
    except (client.Failed, codec.Malformed):
        return []
    found = [server.name for server in status.servers]
    _keep(path, found)
    return found


def _path(directory: str) -> str:
    """One file per gateway, in this user's own cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest()[:16]
    return os.path.join(cache, "metamcp", f"names-{digest}")


def _kept(path: str) -> list[str] | None:
    try:
        if not 0 <= time.time() - os.stat(path).st_mtime < KEPT_S:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read().split()
    except (OSError, UnicodeDecodeError):
        return None


def _keep(path: str, found: list[str]) -> None:
    """Without it the next key press asks again: no reason to complain."""
    new = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(new, "w", encoding="utf-8") as file:
            file.write("\n".join(found))
        os.replace(new, path)
