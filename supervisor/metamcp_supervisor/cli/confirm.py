"""`metamcp confirm`: show what a changed configuration starts, ask, and apply it.

Owns: the verb, its question and exit codes. Never: what has to be confirmed
(`config.confirmation`), reloading (`gateway.reload`), the same question on the terminal of
`metamcp up` (`screen`).
"""

import contextlib
import sys

import click

from metamcp_supervisor.cli.ctl import RELOAD_S, json_option, show_plan
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, ReloadPlan
from metamcp_worker.ipc import codec


@click.command()
@click.option("--yes", is_flag=True, help="Unasked.")
@json_option
@click.pass_obj
def confirm(runtime_dir: str | None, yes: bool, as_json: bool) -> None:
    """Show what a changed configuration starts, ask, and apply it.

    Use this verb after the gateway refused a reload: the commands of a file that was found in its
    folder have changed, or no server is left. Exit 1 after a no, 77 without a terminal to ask on.
    """
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("reload", {"dry_run": True}, timeout_s=RELOAD_S)
        plan = codec.typed(ReloadPlan, raw)
        if plan.question:
            click.echo(plan.question, err=True)
            _sure(yes=yes)
        asked = {"expect": plan.hash, "yes": True}
        raw = gateway.call("reload", asked, timeout_s=RELOAD_S)
    show_plan(raw, as_json=as_json)


def _sure(*, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is given. Raises Failed without a yes."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(Exit.NO_PERMISSION, "nobody can be asked here; --yes confirms it")
    with contextlib.suppress(click.Abort):
        if click.confirm("Apply it?", default=False, err=True):
            return
    raise Failed(Exit.FAILED, "not confirmed: nothing is changed")
