"""The first launch of a configuration that was found, not named: its commands are confirmed.

Owns: what is confirmed (a digest of everything that decides which code runs, and who is sent what
of this user's secrets), whether to ask, and the words. Never: terminals, files (`confirmation_io`),
where a configuration is found (`sources`).

A repository that one clones may bring a configuration, and starting it runs what its author wrote.
So the commands are shown once, and again whenever they change.
"""

import hashlib
from collections.abc import Collection
from typing import Literal

from metamcp_supervisor.config import environment
from metamcp_supervisor.config.config import Config, OAuth, Server
from metamcp_supervisor.config.document import listed, printable
from metamcp_supervisor.config.headers import is_secret
from metamcp_supervisor.config.references import refers
from metamcp_supervisor.config.show import MASK, looks_secret, masked_url
from metamcp_worker.ipc import codec

Decision = Literal["start", "ask", "refuse"]


class NotConfirmed(Exception):
    """Nothing is started. The text is a sentence; `question`: what somebody who could confirm it
    reads."""

    def __init__(self, why: str, question: str = "") -> None:
        super().__init__(why)
        self.question = question


def needed(config: Config) -> bool:
    """Is there anything to confirm?"""
    return any(_bound(server) is not None for server in _enabled(config))


def digest(config: Config, file: str) -> str:
    """Of the file's path, and of what each enabled server would start or give away.

    Variables and headers count as the file has them, with references unresolved: `PATH` or
    `NODE_OPTIONS` in a file may run other code, a token renewed in the environment may not.
    """
    servers = [bound for server in _enabled(config) if (bound := _bound(server)) is not None]
    return hashlib.sha256(ascii([file, servers]).encode()).hexdigest()


def _bound(server: Server) -> list[object] | None:
    """What of a server is confirmed; None for nothing. Reaching a URL runs no code here, but what
    references in the file lead to is sent there: it could be any secret of this user."""
    place: list[object] = [str(server.cwd), sorted(server.env_written.items())]
    if server.inherit_env != environment.DEFAULT:
        place.append(list(server.inherit_env))
    if server.command or server.module is not None:
        return [server.name, server.command, server.module, *place]
    if server.url is None:
        options = sorted(server.options_written.items())
        return [server.name, "transport", server.transport, options, *place]
    oauth = server.oauth_written or OAuth()
    sent = [oauth.client_id, oauth.client_secret, oauth.client_metadata_url]
    written = [server.url_written or "", *server.headers_written.values(), *filter(None, sent)]
    if not any(map(refers, written)):
        return None
    return [server.name, "url", server.url_written, sorted(server.headers_written.items()), sent]


def decide(*, known: bool, yes: bool, terminal: bool) -> Decision:
    """`known`: this digest was confirmed before. `yes`: the caller confirms by a flag."""
    if known or yes:
        return "start"
    return "ask" if terminal else "refuse"


def question(config: Config, file: str) -> str:
    """What the user reads before answering: every command, exactly, and every URL, one per line."""
    servers = _enabled(config)
    what = "starts or reaches" if any(server.url for server in servers) else "starts"
    lines = [f"{printable(file)} was found in this directory and {what}:"]
    for server in servers:
        lines.append(f"  {server.name}: {_words(server)}")
        lines += [f"    with {printable(name)}={printable(text)}" for name, text in _given(server)]
    return "\n".join(lines)


def _given(server: Server) -> list[tuple[str, str]]:
    """What a server is given, as the file has it, with secrets that it has masked."""
    found = {**server.env_written, **server.headers_written, **server.options_written}
    if server.oauth_written is not None and server.oauth_written.client_secret is not None:
        found["client_secret"] = server.oauth_written.client_secret
    return [
        (name, text if refers(text) or not (looks_secret(name) or is_secret(name)) else MASK)
        for name, text in sorted(found.items())
    ]


def refusal(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands are not confirmed; run"
        " 'metamcp up' on a terminal, add --yes, or name the file with --config"
    )


def changed(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands have changed, so nothing"
        " is reloaded; 'metamcp confirm' shows them and asks"
    )


def lost(servers: Collection[str]) -> NotConfirmed:
    """A configuration that was written badly or by halves looks like this, too."""
    what = f"the configuration has no server any more, and {listed(sorted(servers))} would go"
    advice = "'metamcp reload --yes' applies it"
    return NotConfirmed(f"{what}, so nothing is reloaded; {advice}", f"{what}.")


def _enabled(config: Config) -> list[Server]:
    """One that does not start has nothing to confirm."""
    servers = (config.servers[name] for name in sorted(config.servers))
    return [server for server in servers if server.enabled and not server.mistake]


def _words(server: Server) -> str:
    if server.module is not None:
        return f"the Python module {server.module} in {printable(str(server.cwd))}"
    if server.url is not None:
        return printable(masked_url(server.url_written or server.url))
    if not server.command:
        return f"the transport {printable(server.transport)}, which an installed package brings"
    # As JSON, so that spaces, quotes and empty arguments cannot be mistaken.
    return printable(codec.dump(server.command).decode())
