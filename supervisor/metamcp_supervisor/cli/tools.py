"""`metamcp tools`: the tools of all servers as they were last offered, and what drifted.

Owns: the options and the table. Never: what drifted (`approval.lockdrift`), the sentence for
a difference (`lock`), tokens (`tokens`), the lists of clients (the fronts).
"""

from collections.abc import Iterator
from pathlib import Path

import click

from metamcp_supervisor.approval import lockdrift
from metamcp_supervisor.approval.fingerprints import fingerprint
from metamcp_supervisor.approval.lockdrift import ToolDrift
from metamcp_supervisor.cli import lock, offered, recorded, show, tokens
from metamcp_supervisor.cli.offered import Sight, Wish
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.validation import NOUNS

COLUMNS = ("SERVER", "TOOL", "FINGERPRINT", "STATE")
FINGERPRINT_CHARACTERS = 15
"""Of the scheme and twelve digits: enough to tell two apart at a glance."""
RECORDED = "not locked"

Row = tuple[str, str, str, str]


@click.command()
@click.argument("what", metavar="[SERVER[.TOOL]]", required=False)
@click.option("--diff", "differences", is_flag=True, help="How they differ from what was approved.")
@click.option("--tokens", "costs", is_flag=True, help="What they cost, and what exposures save.")
@lock.config_option
@lock.state_option
@lock.lock_option
@lock.json_option
def tools(
    what: str | None,
    differences: bool,
    costs: bool,
    path: Path | None,
    state_dir: str | None,
    where: Path | None,
    as_json: bool,
) -> None:
    """List the tools that the servers offered last, and whether they are as approved.

    Compared with metamcp.lock, or with what a server offered when it was first seen. Clients do not
    get what is in quarantine, nor definitions that are not valid: these have a row with place and
    reason, prompts and resources too. No gateway needs to run.
    """
    if differences and costs:
        raise click.UsageError("--diff and --tokens are two questions: ask one of them.")

    def work() -> int:
        if costs:
            tokens.tell(what, path, state_dir, where, as_json=as_json)
            return Exit.OK
        sight = offered.look(path, state_dir, where)
        wish = offered.wish(what, sight)
        if differences:
            found = [each for each in sight.drifts(wish) if each.change != "same"]
            if as_json:
                click.echo(codec.dump(lock.as_value(found)))
            else:
                lock.tell(found)
        else:
            _list(sight, wish, as_json=as_json)
        return Exit.OK

    recorded.ending(work)


def _list(sight: Sight, wish: Wish, *, as_json: bool) -> None:
    rows = [row for row in _rows(sight) if wish.meant(row[0], row[1])]
    if as_json:
        keys = ("server", "tool", "fingerprint", "state")
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        click.echo(codec.dump({"v": VERSION, "tools": listed}))
        return
    shown = [(*row[:2], row[2][:FINGERPRINT_CHARACTERS], row[3]) for row in rows]
    unseen = sight.unseen()
    foot = f"not seen yet: {', '.join(unseen)}" if unseen else ""
    show.picture(show.Picture(COLUMNS, shown, foot=foot))


def _rows(sight: Sight) -> list[Row]:
    drifts = {(each.server, each.tool): each for each in sight.drifts()}
    unlocked = frozenset(sight.unlocked())
    rows = [
        _row(each, kept=sight.keeps_back(each), first=each.server in unlocked)
        for each in drifts.values()
    ]
    for name, each in sight.offered.items():
        for definition in each.tools or ():
            tool = lockdrift.name_of(definition)
            if tool is not None and (name, tool) not in drifts:
                rows.append((name, tool, fingerprint(definition), RECORDED))
    left_out = list(_left_out(sight))
    named = {row[:2] for row in left_out}
    return sorted([*(row for row in rows if row[:2] not in named), *left_out])


def _left_out(sight: Sight) -> Iterator[Row]:
    for name, each in sight.invalid.items():
        for one in each:
            tool = one.kind == "tools"
            called = one.name if tool else f"{NOUNS[one.kind]} {one.name}"
            shown = fingerprint(one.definition) if tool else ""
            yield name, called, shown, f"left out{one.fault.clients}: {one.fault}"


def _row(drift: ToolDrift, *, kept: bool, first: bool) -> Row:
    """`first`: nobody has approved it, so it is held against what was offered at first."""
    known = drift.new or drift.old
    state = drift.word if drift.is_news else "as first seen" if first else "as approved"
    state += ", in quarantine" if kept else ""
    return drift.server, drift.tool, known.fingerprint if known is not None else "", state
