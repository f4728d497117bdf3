"""Progress of verbs that take longer than a second, on standard error of a terminal.

Owns: when progress is drawn, spinner, bar and seconds, and the steps of a workflow. Never: how far
a verb is (the verb), the line of `metamcp up` (`output`).

In a pipe, with `--json`, with `--quiet` and on a terminal that knows no more than lines
(`TERM=dumb`), nothing is drawn. rich is imported by the thread that draws, after SHOWN_AFTER_S, so
a quick verb does not wait for it.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Generator

import click

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.show import NAMES_MAX, SHOWN_AFTER_S, can_redraw, printable
from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.ipc import codec

REDRAW_S = 0.1
LOOK_S = 1.0
"""Seconds between two looks at the servers that a verb waits for."""
STEP_OVER = frozenset({"done", "failed", "skipped", "cancelled"})
"""States of a step that are its end."""


class VerbProgress:
    """State of a verb that is shown. `what`: what the verb does; `done` of `total`: how far it is,
    if `total` is not 0. The verb changes them whenever it likes."""

    def __init__(self, label: str, total: float = 0) -> None:
        self.what = label
        self.done = 0.0
        self.total = total


def is_drawn() -> bool:
    """Whether this terminal and this command line want to see progress."""
    return sys.stderr.isatty() and can_redraw() and not errors.json_asked() and not _is_quiet()


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.params.get("quiet"):
            return True
        context = context.parent
    return False


@contextlib.contextmanager
def progress(
    label: str, *, total: float = 0, look: Callable[[], str] | None = None
) -> Generator[VerbProgress]:
    """Show on a terminal that the verb is busy, from SHOWN_AFTER_S to the end of the block. `look`
    is called by the thread that draws, every LOOK_S, and returns a new text for `label`."""
    verb_progress = VerbProgress(label, total)
    if not is_drawn():
        yield verb_progress
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_draw, args=(verb_progress, over, look), daemon=True, name="progress"
    )
    thread.start()
    try:
        yield verb_progress
    finally:
        over.set()
        thread.join()


def _draw(
    verb_progress: VerbProgress, over: threading.Event, look: Callable[[], str] | None
) -> None:
    if over.wait(SHOWN_AFTER_S):
        return
    from rich import progress as drawn
    from rich.console import Console

    bar = (drawn.BarColumn(), drawn.TaskProgressColumn()) if verb_progress.total else ()
    columns = (
        drawn.SpinnerColumn(),
        drawn.TextColumn("{task.description}", markup=False),
        *bar,
        drawn.TextColumn("{task.fields[seconds]} s"),
    )
    begun, looked = time.monotonic() - SHOWN_AFTER_S, 0.0
    with drawn.Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as display:
        task = display.add_task("", total=verb_progress.total or None, seconds=0)
        while True:
            now = time.monotonic()
            if look is not None and now - looked >= LOOK_S:
                verb_progress.what, looked = look(), now
            display.update(
                task,
                description=printable(verb_progress.what),
                completed=verb_progress.done,
                seconds=round(now - begun),
            )
            display.refresh()
            if over.wait(REDRAW_S):
                return


@contextlib.contextmanager
def show_wait(
    runtime_dir: str | None, names: tuple[str, ...], target_state: str
) -> Generator[None]:
    """Show which servers a verb waits for, while it does."""
    label = f"waits for {', '.join(names[:NAMES_MAX]) or 'the servers'} to be {target_state}"

    def look() -> str:
        try:
            with client.connect(runtime_dir, timeout_s=LOOK_S) as gateway:
                raw = gateway.call("status", timeout_s=LOOK_S)
            return f"{label}: {states(codec.decode_as(GatewayStatus, raw), names)}"
        except (client.Failed, codec.Malformed):
            return f"{label}: no gateway runs yet"

    with progress(label, look=look):
        yield


def states(status: GatewayStatus, names: tuple[str, ...] = ()) -> str:
    """Return how many of these servers are ready, and the states of others."""
    chosen = [server for server in status.servers if not names or server.name in names]
    others = [server for server in chosen if server.phase != "ready"]
    unready = [f"{server.name} {server.state}" for server in others[:NAMES_MAX]]
    more = [f"{len(others) - NAMES_MAX} more"] if len(others) > NAMES_MAX else []
    return "; ".join([f"{len(chosen) - len(others)} of {len(chosen)} ready", *unready, *more])


@contextlib.contextmanager
def steps() -> Generator[Callable[[str, str, str], None]]:
    """Show how a run goes on, on standard error. The function takes a message, and the step and its
    state if it is about one. A step that is over has a line of its own; where progress is drawn,
    the steps under way stand below. With `--json` nothing is shown."""
    under_way: dict[str, tuple[str, float]] = {}
    on_screen, begun = is_drawn(), time.monotonic()

    def line(step: str, state: str, since: float) -> str:
        return f"{state:<14} {time.monotonic() - since:>6.1f} s  {printable(step)}"

    def show_step(message: str, step: str, state: str) -> None:
        if step:
            since = under_way.pop(step, ("", time.monotonic()))[1]
            if state not in STEP_OVER:
                under_way[step] = (state, since)
            else:
                click.echo(line(step, state, since), err=True)  # above what `Live` draws
        elif not on_screen:
            click.echo(printable(message), err=True)

    if errors.json_asked():
        yield lambda message, step, state: None
        return
    if not on_screen:
        yield show_step
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def render_steps() -> Text:
        lines = [line(step, state, since) for step, (state, since) in list(under_way.items())]
        if not lines and time.monotonic() - begun >= SHOWN_AFTER_S:
            lines = [line("the engine", "works", begun)]
        return Text("\n".join(lines))

    with Live(console=Console(stderr=True), get_renderable=render_steps, transient=True):
        yield show_step
