"""The first launch of a configuration that was found, not named: its commands are confirmed.

Owns: what is confirmed (a digest of everything that decides which code runs), whether to ask, and
the words. Never: terminals, files (`confirmed`), where a configuration is found (`sources`).

A repository that one clones may bring a configuration, and starting it runs what its author wrote.
So the commands are shown once, and again whenever they change.
"""

import hashlib
from typing import Literal

from metamcp_supervisor.wanted.config import Config, Server
from metamcp_supervisor.wanted.document import printable
from metamcp_supervisor.wanted.expand import refers
from metamcp_supervisor.wanted.masks import MASK, looks_secret
from metamcp_worker import codec

Decision = Literal["start", "ask", "refuse"]


class NotConfirmed(Exception):
    """The commands are not started. The text is a sentence."""


def digest(config: Config, file: str) -> str:
    """Of the file's path, and of name, command, module, directory and variables of each enabled
    server.

    Variables count as the file has them, with references unresolved: `PATH` or `NODE_OPTIONS` in a
    file may run other code, a token renewed in the environment may not.
    """
    servers = [
        [
            server.name,
            server.command,
            server.module,
            str(server.cwd),
            sorted(server.env_written.items()),
        ]
        for server in _enabled(config)
    ]
    return hashlib.sha256(ascii([file, servers]).encode()).hexdigest()


def decide(*, known: bool, yes: bool, terminal: bool) -> Decision:
    """`known`: this digest was confirmed before. `yes`: the caller confirms by a flag."""
    if known or yes:
        return "start"
    return "ask" if terminal else "refuse"


def question(config: Config, file: str) -> str:
    """What the user reads before answering: every command, exactly, one per line."""
    lines = [f"{printable(file)} was found in this directory and starts:"]
    for server in _enabled(config):
        lines.append(f"  {server.name}: {_words(server)}")
        for name, value in sorted(server.env_written.items()):
            known = value if refers(value) or not looks_secret(name) else MASK
            lines.append(f"    with {printable(name)}={printable(known)}")
    return "\n".join(lines)


def refusal(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands are not confirmed; run"
        " 'metamcp up' on a terminal, add --yes, or name the file with --config"
    )


def changed(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands have changed, so nothing"
        " is reloaded; stop the gateway and run 'metamcp up' again to confirm them"
    )


def _enabled(config: Config) -> list[Server]:
    """A server without a command that would start has nothing to confirm."""
    return [config.servers[name] for name in sorted(config.servers) if config.servers[name].enabled]


def _words(server: Server) -> str:
    if server.module is not None:
        return f"the Python module {server.module} in {printable(str(server.cwd))}"
    # As JSON, so that spaces, quotes and empty arguments cannot be mistaken.
    return printable(codec.dump(server.command).decode())
