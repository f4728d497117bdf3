"""`metamcp down`: end the gateway of this folder, and return when it is gone.

Owns: the verb, the signal, the wait. Never: how a gateway ends (`gateway`), finding it (`client`).
"""

import os
import signal
import time

import click

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.ipc import codec

AGAIN_S = 0.05
"""Seconds between two checks whether the gateway is gone."""


@click.command()
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="90s", show_default=True,
    help="How long to wait.",
)  # fmt: skip
@json_option
@click.pass_obj
def down(runtime_dir: str | None, timeout_s: float, as_json: bool) -> None:
    """End the gateway of this folder, and its servers after their calls. Exit 5 if none runs."""
    with client.connect_here(runtime_dir) as gateway:
        pid = gateway.pid()
        if pid <= 0:
            pid = codec.typed(GatewayStatus, gateway.call("status")).pid
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        text = f"the gateway (process {pid}) belongs to another user; run this as that user"
        raise Failed(Exit.DENIED, text) from None
    except ProcessLookupError:
        pass  # it was about to end
    end = time.monotonic() + timeout_s
    while _runs(pid):
        if time.monotonic() > end:
            text = f"the gateway (process {pid}) is still ending after {timeout_s:g} s"
            raise Failed(Exit.TIMEOUT, f"{text}; 'metamcp status' shows what it waits for")
        time.sleep(AGAIN_S)
    if as_json:
        errors.tell(pid=pid, ended=True)
    else:
        click.echo(f"the gateway (process {pid}) has ended")


def _runs(pid: int) -> bool:
    """Whether the process runs. A dead process that its parent has not waited for has ended."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # just gone, as the next check finds, or a system without /proc
        return True
