"""`metamcp tls`: the local authority of a gateway, and what clients need of it.

Owns: these verbs at the prompt. Never: making certificates (`certificates.authority`), stores of
the system.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import Group, gateway_options, told
from metamcp_supervisor.cli.keys import configured
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import codec

if TYPE_CHECKING:
    from metamcp_supervisor.certificates.authority import Certificate

HELP = """\
Clients have to trust {ca}; it can vouch for this gateway alone.
  Python, uv, pip:   export SSL_CERT_FILE={ca}
  Node.js:           export NODE_EXTRA_CA_CERTS={ca}
  curl:              curl --cacert {ca} …
  another machine:   copy the file; it is not a secret. ca.key beside it is one and stays here.
MetaMCP never changes the stores of the system or of browsers."""


class _Place(Struct):
    config: Path | None
    given: str | None

    @property
    def state_dir(self) -> Path:
        """State directory of the gateway. Raises Failed."""
        return Path(self.given) if self.given else configured(self.config).gateway.state_dir


@click.group(cls=Group, words={"create": "did you mean 'init'?", "list": "did you mean 'show'?"})
@gateway_options("path", "state_dir")
@click.pass_context
def tls(ctx: click.Context, path: Path | None, state_dir: str | None) -> None:
    """Make and show the certificates of a gateway that has none of its own."""
    ctx.obj = _Place(path, state_dir)


@tls.command()
@click.option("--name", "names", multiple=True, metavar="HOST", help="By which clients reach it.")
@errors.yes_option
@json_option
@click.pass_obj
def init(place: _Place, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Make a local authority for these names, and a certificate of the gateway."""
    from metamcp_supervisor.certificates import authority

    ca = place.state_dir / authority.CA
    if again := ca.exists():
        what = f"{ca} is there: every client that trusts it will need the new one"
        more = "say --yes to make it, 'metamcp tls show' shows this one"
        errors.confirm(f"{what}. Make it?", yes=yes, refusal=Failed(Exit.USAGE, f"{what}; {more}"))
    try:
        authority.make(place.state_dir, names)
    except authority.AuthorityUnfit as why:
        raise Failed(Exit.FAILED, str(why)) from None
    found = _found(place)
    if again:
        what = "this authority takes the place of another one; clients need the new file"
        click.echo(f"{what} {found.ca}", err=True)
    _show(found, as_json=as_json)


@tls.command("show")
@json_option
@click.pass_obj
def show_(place: _Place, as_json: bool) -> None:
    """Show the files, the names in the certificate, and until when it is valid."""
    _show(_found(place), as_json=as_json)


@tls.command("trust-help")
@click.pass_obj
@told
def trust_help(place: _Place) -> None:
    """Say how clients come to trust the local authority."""
    click.echo(HELP.format(ca=_found(place).ca))


def _found(place: _Place) -> "Certificate":
    from metamcp_supervisor.certificates import authority

    try:
        return authority.shown(place.state_dir)
    except authority.AuthorityUnfit as why:
        raise Failed(Exit.FAILED, str(why)) from None


def _show(found: "Certificate", *, as_json: bool) -> None:
    if as_json:
        click.echo(codec.dump({"v": VERSION, **structs.asdict(found)}))
        return
    for what, value in (
        ("authority", found.ca), ("certificate", found.cert), ("key", found.key),
        ("names", ", ".join(found.names)), ("valid until", found.expires),
        ("authority until", found.ca_expires), ("SHA-256", found.ca_sha256),
    ):  # fmt: skip
        click.echo(show.printable(f"{what:<16} {value}"))
