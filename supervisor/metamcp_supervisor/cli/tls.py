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
from metamcp_supervisor.cli.errors import Group, add_json_option, gateway_options
from metamcp_supervisor.cli.keys import load_config
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
        return Path(self.given) if self.given else load_config(self.config).gateway.state_dir


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
def init(location: _Place, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Make a local authority for these names, and a certificate of the gateway."""
    from metamcp_supervisor.certificates import authority

    ca = location.state_dir / authority.CA
    if again := ca.exists():
        warning = f"{ca} is there: every client that trusts it will need the new one"
        more = "say --yes to make it, 'metamcp tls show' shows this one"
        errors.confirm(
            f"{warning}. Make it?", yes=yes, refusal=Failed(Exit.USAGE, f"{warning}; {more}")
        )
    try:
        authority.make(location.state_dir, names)
    except authority.AuthorityUnfit as error:
        raise Failed(Exit.FAILED, str(error)) from None
    certificate = _read_certificate(location)
    if again:
        warning = "this authority takes the place of another one; clients need the new file"
        click.echo(f"{warning} {certificate.ca}", err=True)
    _show(certificate, as_json=as_json)


@tls.command("show")
@json_option
@click.pass_obj
def show_(location: _Place, as_json: bool) -> None:
    """Show the files, the names in the certificate, and until when it is valid."""
    _show(_read_certificate(location), as_json=as_json)


@tls.command("trust-help")
@click.pass_obj
@add_json_option
def trust_help(location: _Place) -> None:
    """Say how clients come to trust the local authority."""
    click.echo(HELP.format(ca=_read_certificate(location).ca))


def _read_certificate(location: _Place) -> "Certificate":
    from metamcp_supervisor.certificates import authority

    try:
        return authority.read_certificate(location.state_dir)
    except authority.AuthorityUnfit as error:
        raise Failed(Exit.FAILED, str(error)) from None


def _show(certificate: "Certificate", *, as_json: bool) -> None:
    if as_json:
        click.echo(codec.dump({"v": VERSION, **structs.asdict(certificate)}))
        return
    for label, value in (
        ("authority", certificate.ca), ("certificate", certificate.cert), ("key", certificate.key),
        ("names", ", ".join(certificate.names)), ("valid until", certificate.expires),
        ("authority until", certificate.ca_expires), ("SHA-256", certificate.ca_sha256),
    ):  # fmt: skip
        click.echo(show.printable(f"{label:<16} {value}"))
