"""`metamcp config` and `metamcp confirm`: check the configuration, show the settings in effect, and
confirm the commands that a changed configuration starts; `metamcp dashboards`.

Owns: the verbs `check`, `show`, `schema` and `confirm`, their output and exit codes, where files
for other programs go. Never: masking secrets (`config.show`), the meaning of a setting (`sources`,
`options`), what has to be confirmed (`config.confirmation`), changing settings (`settings`),
reloading (`gateway.reload`), the content of those files (`deploy/grafana` and `deploy/prometheus`,
which the package carries; `config.json_schema`).
"""

import os
import re
from collections.abc import Iterator, Sized
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.ctl import RELOAD_S, json_option, show_plan
from metamcp_supervisor.cli.errors import gateway_options
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, ReloadPlan
from metamcp_worker.ipc import codec

if TYPE_CHECKING:
    from metamcp_supervisor.config.config import Config

#: Words of other programs, each with the sentence that answers it.
WORDS = {
    "validate": "did you mean 'check'?",
    "test": "did you mean 'check'?",
    "print": "did you mean 'show'?",
    "get": "did you mean 'show'?",
    "edit": "a server is put in by 'metamcp add', a setting by 'metamcp config set KEY=VALUE'",
    "init": "it stands alone: 'metamcp init'",
    "add": "it stands alone: 'metamcp add NAME -- COMMAND…'",
    "remove": "it stands alone: 'metamcp remove NAME'",
}
_ELSEWHERE = {"set": "metamcp_supervisor.cli.settings:set_keys"}
FOLDERS = ("grafana", "prometheus")
"""Folders of the package, and of DIR."""
_TESTS = ".test.yml"
"""Ending of tests of rules, which a checkout has beside the rules."""
_RUNBOOK, _LINK = "docs/runbook.md", "runbook_url: "
"""Page of the links in the rules, and what stands before them."""
_URL = re.compile(r"https?://[\w./?&=%~+:@,;-]+", re.ASCII)
"""The URL of a page, without characters that mean something in YAML or in templates of rules."""
SCHEMA = "metamcp.schema.json"
_NAMED = "#:schema "
"""Beginning of the line by which editors find the schema of a TOML file."""


@click.group(cls=errors.Group, words=WORDS, elsewhere=_ELSEWHERE)
def config() -> None:
    """Check and show the configuration."""


@config.command()
@gateway_options("path")
@json_option
@click.option("--strict", is_flag=True, help="A warning is an error.")
def check(path: Path | None, strict: bool, as_json: bool) -> None:
    """Check the configuration and report every error at once (exit code 65)."""
    from metamcp_supervisor.verbs import Exit

    configuration = load_or_exit(path, as_json=as_json)
    good = not (configuration.problems or (strict and configuration.warnings))
    if as_json:
        errors.tell(
            ok=good,
            files=list(map(str, configuration.files)),
            problems=list(map(str, configuration.problems)),
            warnings=list(map(str, configuration.warnings)),
        )
    if not good:
        raise SystemExit(Exit.CONFIG)
    if as_json:
        return
    counts = (
        _count(configuration.servers, "server"),
        _count(configuration.namespaces, "namespace"),
        _count(configuration.endpoints, "endpoint"),
    )
    click.echo(f"ok: {', '.join(counts)} from {', '.join(map(_format_path, configuration.files))}")


@config.command()
@gateway_options("path")
@json_option
def show(path: Path | None, as_json: bool) -> None:
    """Print the settings in effect, with defaults, and with secrets masked."""
    from metamcp_supervisor.config.origins import heads, toml
    from metamcp_supervisor.config.show import tables

    configuration = load_or_exit(path)
    if as_json:
        errors.tell(files=list(map(str, configuration.files)), **tables(configuration))
        return
    for file in configuration.files:
        click.echo(f"# {_format_path(file)}")
    masked = tables(configuration)
    if workflows := masked.pop("workflows", None):
        click.echo(f"\nworkflows = {toml(workflows)}")
    for head, settings in heads(masked):
        click.echo(f"\n[{head}]")
        for key, value in settings.items():
            click.echo(f"{key} = {toml(value)}")


def load_or_exit(path: Path | None, *, as_json: bool = False, quiet: bool = False) -> "Config":
    """Load the configuration and print its errors and warnings on stderr. End the command if it
    cannot be used. With `as_json` only the errors of such a configuration are printed, as JSON;
    `quiet`: no warnings."""
    from metamcp_supervisor.cli.progress import progress
    from metamcp_supervisor.config.config import ConfigInvalid
    from metamcp_supervisor.config.sources import load
    from metamcp_supervisor.verbs import Exit

    try:
        with progress("reads the configuration"):
            configuration = load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid as invalid:
        if not as_json and errors.json_asked():
            raise Failed(Exit.CONFIG, errors.UNFIT, tuple(map(str, invalid.problems))) from None
        for problem in () if as_json else invalid.problems:
            click.echo(str(problem), err=True)
        if as_json:
            problems = list(map(str, invalid.problems))
            errors.tell(ok=False, files=list(map(str, invalid.files)), problems=problems)
        raise SystemExit(Exit.CONFIG) from None
    configuration = replace(
        configuration, warnings=(*configuration.warnings, *_of_tls(configuration))
    )
    for sentence in (
        () if as_json or quiet else (*configuration.problems, *_warnings(configuration))
    ):
        click.echo(str(sentence), err=True)
    return configuration


def _of_tls(configuration: "Config") -> Iterator[str]:
    """Yield why the gateway would not start with the files of TLS that the operator keeps."""
    from metamcp_supervisor.servers.specs import tls_spec
    from metamcp_worker.http.tls_files import context_of
    from metamcp_worker.ipc.errors import TlsUnfit

    tls = configuration.gateway.tls
    spec = tls_spec(tls) if tls is not None and not tls.local else None
    try:
        if spec is not None:
            context_of(spec)
    except TlsUnfit as error:
        yield f"{error}; the gateway would not start here"


def _warnings(configuration: "Config") -> list[str]:
    return [f"warning: {warning}" for warning in configuration.warnings]


def _count(things: Sized, noun: str) -> str:
    count = len(things)
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _format_path(path: Path) -> str:
    from metamcp_supervisor.config.document import printable

    return printable(str(path))


@click.command()
@errors.yes_option
@json_option
@click.pass_obj
def confirm(runtime_dir: str | None, yes: bool, as_json: bool) -> None:
    """Show what a changed configuration starts, ask, and apply it.

    Use this verb after the gateway refused a reload: the commands of a file that was found in its
    folder have changed, or no server is left. Exit 1 after a no, 77 without a terminal to ask on.
    """
    with client.connect(runtime_dir) as gateway:
        raw = apply_asked(gateway, yes=yes)
    show_plan(raw, as_json=as_json)


def apply_asked(gateway: client.ControlClient, *, yes: bool) -> bytes:
    """Show what a changed configuration starts, ask unless `yes` is given, apply it, and return the
    plan. Raises Failed without a yes."""
    raw = gateway.call("reload", {"dry_run": True}, timeout_s=RELOAD_S)
    plan = codec.decode_as(ReloadPlan, raw)
    if plan.question:
        click.echo(plan.question, err=True)
        nobody = Failed(Exit.NO_PERMISSION, "nobody can be asked here; --yes confirms it")
        errors.confirm("Apply it?", yes=yes, refusal=nobody)
    params = {"expect": plan.hash, "yes": True}
    return gateway.call("reload", params, timeout_s=RELOAD_S)


# Files for other programs


@click.command(cls=errors.Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--runbook-url", default=_RUNBOOK, metavar="URL", help="Page to which the alerts link."
)
@errors.add_json_option
def dashboards(folder: Path, runbook_url: str) -> None:
    """Write dashboards for Grafana and rules for Prometheus into DIR/grafana and DIR/prometheus.
    Files of another version are replaced."""
    if folder.exists() and not folder.is_dir():
        raise errors.CommandRefused(f"{_format_path(folder)} is a file; name a folder")
    if runbook_url != _RUNBOOK and not _URL.fullmatch(runbook_url):
        raise errors.CommandRefused(
            "--runbook-url is the http(s) URL of a page, without '#': each alert adds its section"
        )
    for name, source in _shipped_files():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text().replace(f"{_LINK}{_RUNBOOK}#", f"{_LINK}{runbook_url}#")
        click.echo(f"{_format_path(path)}: {_write_file(path, text.encode())}")


def _shipped_files() -> Iterator[tuple[str, Traversable]]:
    """Yield each file that this version ships, with its place below DIR."""
    package = resources.files("metamcp_supervisor")
    for folder in FOLDERS:
        files = sorted((package / folder).iterdir(), key=lambda file: file.name)
        for file in files:
            if not file.name.endswith(_TESTS):
                yield f"{folder}/{file.name}", file


def _write_file(path: Path, new: bytes) -> str:
    """Write a file, and return what that did."""
    old = path.read_bytes() if path.exists() else None
    if old == new:
        return "unchanged"
    path.write_bytes(new)
    return "written" if old is None else "replaced"


@config.command()
@click.option("--write", is_flag=True, help="Write it beside the file, and name it there.")
@gateway_options("path")
def schema(write: bool, path: Path | None) -> None:
    """Print a JSON schema of metamcp.toml, for editors that complete and check during typing."""
    from metamcp_supervisor.client_files import disk
    from metamcp_supervisor.config import json_schema

    text = codec.dump(json_schema.schema()).decode() + "\n"
    if not write:
        click.echo(text, nl=False)
        return
    path = path or Path("metamcp.toml")
    label = _format_path(path)
    content = disk.read(path)
    if not content.exists:
        raise errors.CommandRefused(
            f"{label} does not exist; 'metamcp init' makes one in this folder"
        )
    if path.suffix != ".toml":
        raise errors.CommandRefused(
            f"{label} is not a TOML file; the schema is one of metamcp.toml"
        )
    target = path.with_name(SCHEMA)
    click.echo(f"{_format_path(target)}: {_write_file(target, text.encode())}")
    if any(line.startswith(_NAMED) for line in content.text.splitlines()):
        click.echo(f"{label}: names a schema already")
        return
    try:
        disk.write(content, f"{_NAMED}./{SCHEMA}\n{content.text}")
    except disk.FileChanged:
        raise errors.CommandRefused(f"{label} was changed meanwhile; run this again") from None
    click.echo(f"{label}: names it in its first line")
