"""The program of a server: command, environment and directory, in files of every shape; and the
commands of `[notify]` and `[hooks]`.

Owns: the reading and expanding of `command`, `args`, `env` and `cwd`, and their limits. Never: the
other settings of a server (`parse`), the places of servers in foreign files (`foreign_files`).
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from metamcp_supervisor.config.config import HookConfig, Server
from metamcp_supervisor.config.document import SourceLocation, Table, flaw, shorten
from metamcp_supervisor.config.references import PROJECT, ReferenceResolver, refers
from metamcp_supervisor.config.show import looks_secret
from metamcp_worker.runtime.masking import SECRET_CHARACTERS_MIN

ARGUMENTS_MAX = 1024
VARIABLES_MAX = 1024
LAUNCHERS = {"bunx", "docker", "npx", "pipx", "pnpx", "podman", "uvx"}
"""Programs that download a server before they start it."""
LAUNCHER_START_TIMEOUT_S = 180.0
"""Seconds of the default `start_timeout` for LAUNCHERS: an interrupted download begins again."""
_OURSELVES = {"metamcp", "metamcp_supervisor"}


def read(
    table: Table, resolving: ReferenceResolver, server: Server, home: Path, *, foreign: bool
) -> Server:
    """Return the server with its program. In a `foreign` file, numbers in `env` count as text."""
    written, sites = _command(table)
    env_written = _env(table, foreign=foreign)
    env_site = table.site.at("env")
    cwd = table.text("cwd")
    server = replace(
        server,
        command=tuple(
            resolving.text(word, site) for word, site in zip(written, sites, strict=True)
        ),
        command_written=written,
        env={name: resolving.text(text, env_site.at(name)) for name, text in env_written.items()},
        env_written=env_written,
        cwd=directory(
            (resolving.path(cwd, table.site.at("cwd")) or cwd) if cwd else ".",
            base=table.site.document.base,
            home=home,
        ),
    )
    if server.command and not server.command[0]:
        table.error("command", "is empty; name a program")
    return server


def read_hook(table: Table) -> HookConfig:
    """Return `[notify]` or `[hooks]`. References in the command are not expanded."""
    hook = HookConfig(**table.settings())
    words = table.texts("command") if table.has("command") else ()
    if words is None:
        return hook
    if not any(words[:1]):
        table.error("command", "is empty; name a program")
    if len(words) > ARGUMENTS_MAX:
        table.error("command", f"has more than {ARGUMENTS_MAX} arguments")
    return replace(hook, command=words)


def start_timeout_s(command: Sequence[str], otherwise: float) -> float:
    """Return the seconds that the start of a command may take if no file sets them."""
    launched = bool(command) and PurePath(command[0]).name in LAUNCHERS
    return LAUNCHER_START_TIMEOUT_S if launched else otherwise


def directory(text: str, *, base: Path, home: Path) -> Path:
    """Return the path for a text: `~` is the home directory, a relative path starts at `base`."""
    if text.startswith(PROJECT):
        return Path(text)
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def is_bridge(command: Sequence[str]) -> bool:
    """Whether a command is `metamcp connect`, no matter how it is started."""
    return any(
        following == "connect" and PurePath(word).name in _OURSELVES
        for word, following in itertools.pairwise(command)
    )


def _command(table: Table) -> tuple[tuple[str, ...], tuple[SourceLocation, ...]]:
    """Return every argument, and the place of each."""
    at, args_at = table.site.at("command"), table.site.at("args")
    args = table.texts("args") or ()
    if isinstance(table.values.get("command"), list):
        words = table.texts("command") or ()
        sites = tuple(at.at(number) for number in range(len(words)))
        if args:
            table.error("args", "'command' is a list and has all arguments; leave 'args' out")
        if not words:
            table.error("command", "is empty; name a program")
    else:
        name = table.text("command")
        if name is None:
            return (), ()
        _warn_of_spaces(name, args, at, table)
        words = (name, *args)
        sites = (at, *(args_at.at(number) for number in range(len(args))))
    if len(words) > ARGUMENTS_MAX:
        table.error("command", f"has more than {ARGUMENTS_MAX} arguments")
        return (), ()
    for word, site in zip(words, sites, strict=True):
        _warn_of_secret(word, site, table)
    return words, sites


def _warn_of_spaces(name: str, args: tuple[str, ...], site: SourceLocation, table: Table) -> None:
    head, space, _ = name.partition(" ")
    if space and not args and "/" not in head:
        table.findings.add_warning(
            site,
            f"'{shorten(name)}' is started as one program with spaces in its name; if these are"
            " arguments, write a list",
        )


def _warn_of_secret(word: str, site: SourceLocation, table: Table) -> None:
    if refers(word) and looks_secret(word):
        table.findings.add_warning(
            site, "every user of this machine can see arguments; put the secret into 'env'"
        )


def _env(table: Table, *, foreign: bool) -> dict[str, str]:
    variables = table.named_texts("env", lenient=foreign)
    if len(variables) > VARIABLES_MAX:
        table.error("env", f"has more than {VARIABLES_MAX} variables")
        return {}
    site = table.site.at("env")
    for name in [name for name in variables if not name or "=" in name or flaw(name)]:
        table.findings.error(site.at(name), "is not a name for an environment variable")
        del variables[name]
    for name, value in variables.items():
        if looks_secret(name):
            warn_of_literal(name, value, site.at(name), table)
    return variables


def warn_of_short(secrets: Iterable[str], table: Table) -> None:
    """Warn of a secret that is too short to be found in a text."""
    if any(secret and len(secret) < SECRET_CHARACTERS_MIN for secret in secrets):
        table.findings.add_warning(
            table.site,
            f"has a secret of fewer than {SECRET_CHARACTERS_MIN} characters, which no log masks;"
            " use a longer one",
        )


def warn_of_literal(variable: str, value: str, site: SourceLocation, table: Table) -> None:
    """Warn of a secret that is written in the file. `variable`: where it could be instead."""
    if value and not refers(value):
        table.findings.add_warning(
            site,
            f"looks like a secret written into the file; ${{env:{shorten(variable)}}} takes it from"
            " the environment",
        )
