"""Contexts: gateways on other machines that a user steers from here.

Owns: the user's file of contexts, which verbs go to another machine, the client that asks the
console of a gateway over HTTP, the command that ssh runs there. Never: what a verb does, rights
(the gateway there knows the API key), how the console answers (`console.site`).

    [contexts.prod]
    url = "https://gateway.lan:6272"
    key = "${file:~/prod.key}"
    ca = "ca.pem"                     # for an authority that this machine does not trust

    [contexts.lab]
    ssh = "ops@lab.lan"

Only a command with a context imports this module.
"""

import functools
import http.client
import os
import shlex
import ssl
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from msgspec import structs

from metamcp_supervisor import runtime
from metamcp_supervisor.config import files, places, references, units
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.printed_values import PrintedValues
from metamcp_supervisor.config.program import directory
from metamcp_supervisor.control.client import (
    LINES,
    PROGRAMS,
    ControlClient,
    Failed,
    context_dir,
    result,
)
from metamcp_supervisor.verbs import Exit
from metamcp_worker.http import tcp
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.spec import SecretStruct

FILE = "contexts.toml"
"""Name of the file, beside the user's own configuration."""
REMOTE = frozenset({
    "status", "logs", "events", "top", "start", "stop", "restart", "reload", "confirm", "wait",
    "explain", "toolsets", "consent", "results", "ctl",
})  # fmt: skip
"""Verbs that ask only the gateway, but for LOCAL."""
LOCAL = frozenset({"ctl down", "ctl upgrade", "ctl doctor", "ctl completion"})
VALUED = frozenset({"--config", "--runtime-dir"})
"""Options of `ctl` whose value is the next word."""
UNAIMED = frozenset({"connect", "completion", "contexts"})
"""Verbs for which the environment variable does not count. Clients start `connect`, with the
environment of their user."""


class Context(SecretStruct, frozen=True, kw_only=True):
    """Gateway on another machine. `url`: of its console, for which there are `key`, an API key, and
    `ca`, a file with the authority of its certificate, empty for those of this machine; or `ssh`:
    host on which its verbs run. `label`: table and file of the context, for people."""

    url: str = ""
    key: str = ""
    ca: str = ""
    ssh: str = ""
    label: str = ""

    @property
    def address(self) -> str:
        return self.url or f"ssh {self.ssh}"


def file_path() -> Path:
    return places.own_file(Path.home()).with_name(FILE)


def read_tables(path: Path) -> dict[str, object]:
    """Return the tables of a file by the names of their contexts. The file must be one that no
    other user could have written, nor may read if an API key stands in it. Raises Failed."""
    try:
        text, flaw = files.owned_text(path)
        if flaw:
            raise files.FileUnreadable(flaw)
        tables = tables_of(text)
        if any(_holds_key(table) for table in tables.values()):
            files.secret(path)
    except (files.FileUnreadable, ValueError) as error:
        raise Failed(Exit.CONFIG, f"{path}: {error}") from None
    except references.Unresolved as error:
        raise Failed(Exit.CONFIG, str(error)) from None
    return tables


def tables_of(text: str) -> dict[str, object]:
    """Return the tables in the text of a file. Raises ValueError with a sentence."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    tables = document.pop("contexts", {})
    if document or not isinstance(tables, dict):
        raise ValueError("has something else than tables [contexts.NAME]")
    return tables


def _holds_key(table: object) -> bool:
    key = table.get("key") if isinstance(table, dict) else None
    return isinstance(key, str) and not references.refers(key)


@functools.cache
def read_context(name: str) -> Context:
    """Return the context of this name, its key resolved. Raises Failed."""
    path = file_path()
    tables = read_tables(path)
    if name not in tables:
        text = f"no context is named {name[:64]!r}; {hint(name, tables)}"
        raise Failed(Exit.UNKNOWN_NAME, f"{text} {path} has them")
    try:
        context = context_of(tables[name])
        key = references.expand(context.key, _references(path.parent))
        if not (key.isascii() and key.isprintable()):
            raise ValueError("'key' has characters that no key has")
    except ValueError as error:
        raise Failed(Exit.CONFIG, f"{path}: contexts.{name}: {error}") from None
    except references.Unresolved as error:
        raise Failed(Exit.CONFIG, f"{path}: contexts.{name}: 'key': {error}") from None
    ca = str(directory(context.ca, base=path.parent, home=Path.home())) if context.ca else ""
    url, label = context.url.rstrip("/"), f"[contexts.{name}] in {path}"
    return structs.replace(context, url=url, key=key, ca=ca, label=label)


def context_of(table: object) -> Context:
    """Return the context of a table, as it is written. Raises ValueError with a sentence."""
    members = ("url", "key", "ca", "ssh")
    if not isinstance(table, dict):
        raise ValueError("is not a table")
    if unknown := [key for key in table if key not in members]:
        raise ValueError(f"{unknown[0][:64]!r} is not known here; {hint(unknown[0], members)}")
    if wrong := [key for key, value in table.items() if not isinstance(value, str) or not value]:
        raise ValueError(f"{wrong[0]!r} is not a text")
    context = Context(**table)
    if bool(context.url) is bool(context.ssh):
        raise ValueError("needs either 'url', of a console, or 'ssh', a host")
    if context.ssh:
        _check_host(context)
    else:
        _check_url(context)
    return context


def _check_host(context: Context) -> None:
    if context.key or context.ca:
        raise ValueError("'ssh' needs no 'key' and no 'ca'")
    if context.ssh.startswith("-"):
        raise ValueError("'ssh' begins with '-', which ssh takes for an option")


def _check_url(context: Context) -> None:
    try:
        parts = urlsplit(context.url)
        unfit = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        unfit = True
    if unfit or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError("'url' is not the URL of a console, such as https://gateway.lan:6272")
    if not context.key:
        make = "'metamcp keys create NAME --scope console:operator' makes one on its machine"
        raise ValueError(f"needs 'key', an API key for the console; {make}")
    if parts.scheme == "http" and not units.is_loopback(parts.hostname or ""):
        raise ValueError("the key would travel unencrypted; use an https URL")


def _references(base: Path) -> references.References:
    """Return the sources of keys. Programs that print them are of the user, as the file is."""
    printed = PrintedValues(os.environ)
    printed.runs = True
    return references.References(
        environ=os.environ,
        secret=lambda name: files.secret(directory(name, base=base, home=Path.home())),
        printed=printed.of_file(base, ""),
    )


def enter(words: Sequence[str], *, is_typed: bool) -> None:
    """Check that a verb can go to the context of the environment, and let ssh run it where the
    context is one of ssh. `words`: command line from the verb on; `is_typed`: it has `--context`.
    Raises Failed."""
    name = os.environ[runtime.CONTEXT]
    if words[0] in UNAIMED and not is_typed:
        del os.environ[runtime.CONTEXT]
        return
    verb = verb_of(words)
    if words[0] not in REMOTE or verb in LOCAL:
        problem = f"'metamcp {verb}' is about this machine, and the context {name!r} is another one"
        remedy = f"leave out --context, or unset {runtime.CONTEXT}"
        raise Failed(Exit.USAGE, f"{problem}: {remedy}")
    context = read_context(name)
    if context.ssh:
        _run_over_ssh(context.ssh, words)


def verb_of(words: Sequence[str]) -> str:
    """Return the verb of a command line, with the one below it for `ctl`."""
    further = iter(words[1:] if words[0] == "ctl" else ())
    for word in further:
        if word in VALUED:
            next(further, "")
        elif not word.startswith("-"):
            return f"ctl {word}"
    return words[0]


def _run_over_ssh(host: str, words: Sequence[str]) -> NoReturn:
    """Become the ssh that runs the same verb there, with a terminal if there is one here. Raises
    Failed."""
    del os.environ[runtime.CONTEXT]  # ssh may hand on variables
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    command = ["ssh", *terminal, host, shlex.join(["metamcp", *words])]
    try:
        os.execvp(command[0], command)  # noqa: S606 - the words are quoted
    except OSError as error:
        raise Failed(Exit.FAILED, f"ssh cannot be started: {error.strerror}") from None


def connect_context(name: str, runtime_dir: str | None, timeout_s: float) -> ControlClient:
    """Connect to the gateway of a context. Raises Failed."""
    if runtime_dir not in (None, context_dir(name)):
        problem = (
            f"--runtime-dir and --config name a gateway here, and the context {name!r} another"
        )
        raise Failed(Exit.USAGE, f"{problem}; leave out one of them")
    context = read_context(name)
    if context.ssh:
        raise Failed(Exit.USAGE, f"{context.label} runs its verbs over ssh")
    return ContextClient(context, timeout_s)


class ContextClient(ControlClient):
    """Client of the console of a gateway, with a connection for each verb."""

    def __init__(self, context: Context, timeout_s: float) -> None:
        self._context = context
        self._connection = _open(context, timeout_s)
        super().__init__(self._connection.sock, context.url)

    def close(self) -> None:
        super().close()
        self._connection.close()

    def _ask(self, method: str, params: object, timeout_s: float) -> None:
        if self._asked:
            self.close()
            self._connection = _open(self._context, timeout_s)
            self._sock = self._connection.sock
        self._asked += 1
        self._sock.settimeout(timeout_s)
        body = codec.dump({"method": method, "params": {} if params is None else params})
        headers = {"authorization": f"Bearer {self._context.key}"}
        try:
            self._connection.request("POST", PROGRAMS, body, headers)
            answer = self._connection.getresponse()
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise _unreachable(self._context, error) from None
        except http.client.HTTPException as error:
            raise self._foreign(str(error) or type(error).__name__) from None
        self._reader.close()
        self._reader = answer
        if answer.headers.get_content_type() != LINES:
            raise self._foreign(f"HTTP status {answer.status}")
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            self._refuse_key()

    def _refuse_key(self) -> None:
        """Raise Failed with the reason why the key is refused."""
        try:
            result(self._read())
        except Failed as refusal:
            text = f"{self._path}: {refusal}; 'key' of {self._context.label} names it"
            raise Failed(refusal.exit, text) from None

    def _read(self) -> Envelope:
        try:
            return super()._read()
        except http.client.HTTPException:
            raise Failed(Exit.NOT_RUNNING, f"{self._path} broke off its answer") from None

    def _foreign(self, reason: str) -> Failed:
        text = f"{self._path} is not the console of a gateway of this version: {reason}"
        return Failed(Exit.FAILED, text)


def _open(context: Context, timeout_s: float) -> http.client.HTTPConnection:
    """Connect to the console of a context. Raises Failed."""
    parts = urlsplit(context.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        connection = http.client.HTTPConnection(host, parts.port, timeout_s)
    else:
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout_s, context=_trust(context)
        )
    try:
        connection.connect()
        for option in tcp.OPTIONS:
            connection.sock.setsockopt(*option)
    except (OSError, UnicodeError) as error:
        connection.close()
        raise _unreachable(context, error) from None
    return connection


def _trust(context: Context) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=context.ca or None)
    except OSError as error:  # an SSLError is one
        reason = getattr(error, "reason", None) or error.strerror
        text = f"'ca' of {context.label}: {context.ca} has no certificates in PEM: {reason}"
        raise Failed(Exit.CONFIG, text) from None


def _unreachable(context: Context, error: Exception) -> Failed:
    if isinstance(error, TimeoutError):
        return Failed(Exit.TIMEOUT, f"the gateway at {context.url} accepts no connection")
    if reason := tcp.distrust(error):
        remedy = (
            f"; 'ca' of {context.label} may name an authority" if "certificate" in reason else ""
        )
        return Failed(Exit.FAILED, f"{context.url} is not trusted because {reason}{remedy}")
    text = f"{context.url} cannot be reached: {tcp.words(error)}; {context.label} names it"
    return Failed(Exit.NOT_RUNNING, text)
