"""What a server runs: command, environment and directory, as every shape of file writes them.

Owns: the reading and expanding of `command`, `args`, `env` and `cwd`, and their limits. Never: the
other settings of a server (`parse`), where files of a foreign shape keep these (`shapes`).
"""

from dataclasses import dataclass, field
from pathlib import Path

from metamcp_supervisor.wanted.document import Site, kind_of, shown
from metamcp_supervisor.wanted.expand import References, Unresolved, expand, refers
from metamcp_supervisor.wanted.masks import looks_secret
from metamcp_supervisor.wanted.table import Table, flaw

ARGUMENTS_MAX = 1024
VARIABLES_MAX = 1024
TEXT_BYTES_MAX = 128 * 1024 - 1
"""Linux starts no program with a longer argument or `NAME=value` (MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Expanded, and beside it as the file has it. `command` is empty when there is none.

    `unresolved`: references that lead to nothing. They are errors, unless the server is disabled.
    """

    command: tuple[str, ...]
    command_written: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    env_written: dict[str, str] = field(repr=False)
    cwd: Path
    unresolved: tuple[tuple[Site, str], ...]


def read(table: Table, references: References, home: Path, *, foreign: bool) -> Program:
    """The program of one server. In a `foreign` file numbers in `env` are taken as text."""
    unresolved: list[tuple[Site, str]] = []

    def resolved(text: str, site: Site) -> str:
        try:
            found = expand(text, references)
        except Unresolved as error:
            unresolved.append((site, str(error)))
            return text
        if why := flaw(found):
            unresolved.append((site, f"after its references are resolved it {why}"))
        elif len(found.encode()) > TEXT_BYTES_MAX:
            unresolved.append((site, f"is longer than {TEXT_BYTES_MAX} bytes"))
        return found

    written, sites = _command(table)
    env_written = _env(table, foreign=foreign)
    env_site = table.site.at("env")
    cwd = table.text("cwd")
    program = Program(
        command=tuple(resolved(text, site) for text, site in zip(written, sites, strict=True)),
        command_written=written,
        env={name: resolved(text, env_site.at(name)) for name, text in env_written.items()},
        env_written=env_written,
        cwd=directory(
            resolved(cwd, table.site.at("cwd")) if cwd else ".",
            base=table.site.document.base,
            home=home,
        ),
        unresolved=tuple(unresolved),
    )
    if program.command and not program.command[0]:
        table.error("command", "is empty; name a program")
    return program


def directory(text: str, *, base: Path, home: Path) -> Path:
    """A path as people write it: `~` is the home directory, a relative one starts at `base`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def _command(table: Table) -> tuple[tuple[str, ...], tuple[Site, ...]]:
    """Every argument, with the place that it stands at."""
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


def _warn_of_spaces(name: str, args: tuple[str, ...], site: Site, table: Table) -> None:
    head, space, _ = name.partition(" ")
    if space and not args and "/" not in head:
        table.findings.warning(
            site,
            f"'{shown(name)}' is started as one program with spaces in its name; if these are"
            " arguments, write a list",
        )


def _warn_of_secret(word: str, site: Site, table: Table) -> None:
    if refers(word) and looks_secret(word):
        table.findings.warning(
            site, "every user of this machine can see arguments; put the secret into 'env'"
        )


def _env(table: Table, *, foreign: bool) -> dict[str, str]:
    inner = table.table("env")
    if inner is None:
        return {}
    if len(inner.values) > VARIABLES_MAX:
        table.error("env", f"has more than {VARIABLES_MAX} variables")
        return {}
    found: dict[str, str] = {}
    for name, value in inner.values.items():
        if not name or "=" in name or flaw(name):
            inner.error(name, "is no name for an environment variable")
        elif foreign and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = str(value)
        elif foreign and value is None:
            inner.findings.warning(inner.site.at(name), "is null; the variable is left alone")
        elif not isinstance(value, str):
            inner.error(name, f"must be a string, in quotes, not {kind_of(value)}")
        elif why := flaw(value):
            inner.error(name, why)
        else:
            found[name] = value
            _warn_of_literal(name, value, inner)
    return found


def _warn_of_literal(name: str, value: str, table: Table) -> None:
    if value and looks_secret(name) and not refers(value):
        table.findings.warning(
            table.site.at(name),
            f"looks like a secret written into the file; ${{env:{shown(name)}}} takes it from the"
            " environment",
        )
