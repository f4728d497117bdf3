"""Confirmation of commands in a configuration that was found in a folder, not named by the user.

Owns: the content of a confirmation (a digest of everything that decides which code runs, and to
whom this user's secrets are sent), whether to ask, and the words. Never: terminals, files
(`confirmation_io`), the search for a configuration (`sources`).

A repository that a user clones may bring a configuration, and starting it runs commands of its
author. So the user is shown the commands once, and again whenever they change.
"""

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from metamcp_supervisor.config import environment, sandboxes
from metamcp_supervisor.config.config import Config, Server
from metamcp_supervisor.config.document import join_names, printable
from metamcp_supervisor.config.references import refers, starts_program
from metamcp_supervisor.config.sections import is_secret
from metamcp_supervisor.config.show import MASK, looks_secret, masked_url
from metamcp_supervisor.config.tables import feature_tables
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import OAuth

Decision = Literal["start", "ask", "refuse"]
DIGITS = 32
"""Digits of the digest of a part."""
_PROGRAM, _SENT = "program ", "sent by the gateway"
_NOTIFY, _HOOKS = "command of [notify]", "command of [hooks]"
"""Names of parts; no server has a space in its name."""


class NotConfirmed(Exception):
    """The configuration is not confirmed, and no server is started. The text is a sentence;
    `question`: text for a user who can confirm it."""

    def __init__(self, reason: str, question: str = "") -> None:
        super().__init__(reason)
        self.question = question


def parts(config: Config) -> Mapping[str, str]:
    """Return the digest of each part that needs confirmation: what an enabled server would start or
    give away (by its name), each program of a reference, what the gateway itself would send, and
    the commands of `[notify]` and `[hooks]`.

    Variables and headers count as written in the file, with references not resolved: `PATH` or
    `NODE_OPTIONS` in the file may run other code, but a new token in the environment cannot.
    """
    contents: dict[str, object] = {
        server.name: bound
        for server in _enabled_servers(config)
        if (bound := _settings_to_confirm(server)) is not None
    }
    contents |= {_PROGRAM + reference: reference for reference in config.programs}
    contents |= {_SENT: sent} if (sent := _outgoing_values(config)) else {}
    contents |= {_NOTIFY: config.notify} if config.notify else {}
    contents |= {_HOOKS: config.hooks.command} if config.hooks.command else {}
    return {
        name: hashlib.sha256(ascii(content).encode()).hexdigest()[:DIGITS]
        for name, content in contents.items()
    }


def digest(config: Config, file: str) -> str:
    """Return the digest of all parts together, as versions before 0.2 kept it for a file."""
    servers = [
        bound
        for server in _enabled_servers(config)
        if (bound := _settings_to_confirm(server)) is not None
    ]
    everything = [
        file,
        servers,
        *filter(None, [config.programs, _outgoing_values(config)]),
        *filter(None, [config.notify, config.hooks.command]),
    ]
    return hashlib.sha256(ascii(everything).encode()).hexdigest()


def _outgoing_values(config: Config) -> list[tuple[str, str]]:
    """Return what the gateway itself would send, if a reference is in it: the address and headers
    for spans, the address and key for vectors and for models, the addresses and secrets for
    questions about tokens, as written in the file."""
    traces, ai = config.traces, config.ai
    groups = [
        *(
            [("introspection", each.oauth.introspection), ("client_secret", each.secret_written)]
            for _, each in sorted(config.endpoints.items())
            if each.oauth is not None
        ),
        [("endpoint", traces.endpoint_written), *sorted(traces.headers_written.items())],
        *(list(table.sent(config.table(table.record))) for table in feature_tables()),
        [("ai url", ai.url_written), ("ai key", ai.key_written)],
    ]
    store = config.gateway.store
    groups.append([("store", store.url_written if store else "")])
    return [
        pair
        for group in groups
        if any(refers(text) or (name in _DATABASES and text) for name, text in group)
        for pair in group
    ]


def _settings_to_confirm(server: Server) -> list[object] | None:
    """Return the settings of a server that need confirmation; None if it needs none. A server with
    a URL runs no code here, but the values of references in the file are sent to it: they could be
    any secret of this user."""
    context: list[object] = [str(server.cwd), sorted(server.env_written.items())]
    if server.inherit_env != environment.DEFAULT:
        context.append(list(server.inherit_env))
    if opened := sandboxes.needs_text(server):
        context.append(opened)
    if server.command or server.module is not None:
        return [server.name, _command(server), server.module, *context]
    if server.url is None:
        options = sorted(server.options_written.items())
        return [server.name, "transport", server.transport, options, *context]
    oauth = server.oauth_written or OAuth()
    sent = [oauth.client_id, oauth.client_secret, oauth.client_metadata_url]
    written = [server.url_written or "", *server.headers_written.values(), *filter(None, sent)]
    if not any(map(refers, written)):
        return None
    return [server.name, "url", server.url_written, sorted(server.headers_written.items()), sent]


_DATABASES = {"store", "database"}
"""Addresses to which a password may go that the environment has, and not the file."""


def decide(*, is_confirmed: bool, yes: bool, terminal: bool) -> Decision:
    """Decide whether to start. `is_confirmed`: the digest was confirmed before; `yes`: the caller
    confirms with a flag; `terminal`: a user can be asked."""
    if is_confirmed or yes:
        return "start"
    return "ask" if terminal else "refuse"


def question(config: Config, file: str, confirmed: Collection[str] = ()) -> str:
    """Return the text for the user to confirm: every command exactly, and every URL, one a line.
    `confirmed`: digests of parts that are confirmed, which are left out."""
    new = {name for name, digest in parts(config).items() if digest not in confirmed}
    servers = [each for each in _enabled_servers(config) if each.name in new or not confirmed]
    verb = "starts or reaches" if any(server.url for server in servers) else "starts"
    more = ", beside what is confirmed" if confirmed else ""
    lines = [f"{printable(file)} was found in this directory and {verb}{more}:"]
    for server in servers:
        lines.append(f"  {server.name}: {_words(server)}")
        lines += [
            f"    with {printable(name)}={printable(text)}" for name, text in _masked_values(server)
        ]
        lines += [f"    {opened}"] if (opened := sandboxes.needs_text(server)) else []
    for name, text in _outgoing_values(config) if _SENT in new else ():
        lines.append(f"  it sends: {printable(name)}={printable(_mask_secret(name, text))}")
    if _NOTIFY in new:
        lines.append(f"  when something waits: {_json(config.notify)}")
    if _HOOKS in new:
        lines.append(f"  on {', '.join(config.hooks.on)}: {_json(config.hooks.command)}")
    programs = (each for each in config.programs if _PROGRAM + each in new)
    lines += [f"  for a value: {printable(reference)}" for reference in programs]
    return "\n".join(lines)


def _command(server: Server) -> tuple[str, ...]:
    """Return the command, but as written in the file where a program prints a part of it: the user
    confirms that program, and not what it prints."""
    pairs = itertools.zip_longest(server.command, server.command_written, fillvalue="")
    return tuple(written if starts_program(written) else word for word, written in pairs)


def _masked_values(server: Server) -> list[tuple[str, str]]:
    """Return variables, headers and options as written in the file, with secrets masked."""
    texts = {**server.env_written, **server.headers_written, **server.options_written}
    if server.oauth_written is not None and server.oauth_written.client_secret is not None:
        texts["client_secret"] = server.oauth_written.client_secret
    return [(name, _mask_secret(name, text)) for name, text in sorted(texts.items())]


def _mask_secret(name: str, text: str) -> str:
    if refers(text):
        return text
    secret = looks_secret(name) or is_secret(name) or name == "key"
    return MASK if secret else masked_url(text) if "://" in text else text


def refusal(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands are not confirmed; run"
        " 'metamcp up' on a terminal ('metamcp up --yes' elsewhere), or name the file with --config"
    )


def explain_change(file: str) -> str:
    return (
        f"{printable(file)} was found in this directory and its commands have changed, so nothing"
        " is reloaded; 'metamcp confirm' shows them and asks"
    )


def refuse_empty_config(servers: Collection[str]) -> NotConfirmed:
    """Return the refusal of a configuration without any server: a file that is broken or only half
    written looks like that too."""
    problem = (
        f"the configuration has no server any more, and {join_names(sorted(servers))} would go"
    )
    advice = "'metamcp reload --yes' applies it"
    return NotConfirmed(f"{problem}, so nothing is reloaded; {advice}", f"{problem}.")


def _enabled_servers(config: Config) -> list[Server]:
    """Return the servers that would start; only these need confirmation."""
    servers = (config.servers[name] for name in sorted(config.servers))
    return [server for server in servers if server.enabled and not server.mistake]


def _words(server: Server) -> str:
    if server.module is not None:
        return f"the Python module {server.module} in {printable(str(server.cwd))}"
    if server.url is not None:
        return printable(masked_url(server.url_written or server.url))
    if not server.command:
        return f"the transport {printable(server.transport)}, which an installed package brings"
    return _json(_command(server))


def _json(words: Sequence[str]) -> str:
    """Return a command as JSON, so that spaces, quotes and empty arguments cannot be mistaken."""
    return printable(codec.dump(words).decode())
