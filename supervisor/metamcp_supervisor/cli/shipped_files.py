"""`metamcp dashboards` and `metamcp config schema`: files of this version for other programs.

Owns: where each file goes, and the words about it. Never: their content (`deploy/grafana` and
`deploy/prometheus`, which the package carries; `config.json_schema`).
"""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from metamcp_supervisor.cli.errors import Command, CommandRefused, gateway_options, told
from metamcp_supervisor.client_files import disk
from metamcp_supervisor.config.document import printable
from metamcp_supervisor.config.json_schema import schema as made
from metamcp_worker.ipc import codec

FOLDERS = ("grafana", "prometheus")
"""Folders of the package, and of DIR."""
_TESTS = ".test.yml"
"""Ending of tests of rules, which a checkout has beside the rules."""
SCHEMA = "metamcp.schema.json"
_NAMED = "#:schema "
"""Beginning of the line by which editors find the schema of a TOML file."""


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@told
def dashboards(folder: Path) -> None:
    """Write dashboards for Grafana and rules for Prometheus into DIR/grafana and DIR/prometheus.
    Files of another version are replaced."""
    if folder.exists() and not folder.is_dir():
        raise CommandRefused(f"{printable(str(folder))} is a file; name a folder")
    for name, source in _shipped():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        click.echo(f"{printable(str(path))}: {_written(path, source.read_bytes())}")


def _shipped() -> Iterator[tuple[str, Traversable]]:
    """Yield each file that this version ships, with its place below DIR."""
    package = resources.files("metamcp_supervisor")
    for folder in FOLDERS:
        files = sorted((package / folder).iterdir(), key=lambda file: file.name)
        for file in files:
            if not file.name.endswith(_TESTS):
                yield f"{folder}/{file.name}", file


def _written(path: Path, new: bytes) -> str:
    """Write a file, and return what that did."""
    old = path.read_bytes() if path.exists() else None
    if old == new:
        return "unchanged"
    path.write_bytes(new)
    return "written" if old is None else "replaced"


@click.command(cls=Command)
@click.option("--write", is_flag=True, help="Write it beside the file, and name it there.")
@gateway_options("path")
def schema(write: bool, path: Path | None) -> None:
    """Print a JSON schema of metamcp.toml, for editors that complete and check during typing."""
    text = codec.dump(made()).decode() + "\n"
    if not write:
        click.echo(text, nl=False)
        return
    path = path or Path("metamcp.toml")
    label = printable(str(path))
    content = disk.read(path)
    if not content.exists:
        raise CommandRefused(f"{label} does not exist; 'metamcp init' makes one in this folder")
    if path.suffix != ".toml":
        raise CommandRefused(f"{label} is not a TOML file; the schema is one of metamcp.toml")
    target = path.with_name(SCHEMA)
    click.echo(f"{printable(str(target))}: {_written(target, text.encode())}")
    if any(line.startswith(_NAMED) for line in content.text.splitlines()):
        click.echo(f"{label}: names a schema already")
        return
    try:
        disk.write(content, f"{_NAMED}./{SCHEMA}\n{content.text}")
    except disk.FileChanged:
        raise CommandRefused(f"{label} was changed meanwhile; run this again") from None
    click.echo(f"{label}: names it in its first line")
