"""`metamcp lock`: record which definitions of tools are approved, show what drifted, approve it.

Owns: the verbs, their options, exit codes and output. Never: the file (`approval.lock`), what
drifted (`approval.lock_drift`), finding what the servers offer (`offers`).
"""

import json
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path

import click
from msgspec import Raw, structs
from msgspec.structs import replace

from metamcp_supervisor.approval import lock_drift, lock_io
from metamcp_supervisor.approval.lock import Lock, LockedServer, LockedTool
from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.cli import offers
from metamcp_supervisor.cli.ctl import json_option
from metamcp_supervisor.cli.errors import Group, add_json_option, gateway_options, run_and_exit
from metamcp_supervisor.cli.offers import OfferComparison
from metamcp_supervisor.config.document import printable
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_worker.ipc import codec

DIFF_LINES_MAX = 300
"""Maximum lines of the difference of a tool; the lock and the server have the whole definitions."""

lock_option = click.option(
    "--lock",
    "where",
    type=click.Path(path_type=Path),
    help="The file; else metamcp.lock beside the configuration.",
)
what_argument = click.argument("what", metavar="[SERVER[.TOOL]]", required=False)


#: Words of other programs, each with the sentence that answers it.
WORDS = {
    "check": "did you mean 'diff'?",
    "verify": "did you mean 'diff'?",
    "show": "did you mean 'diff'?",
    "update": "did you mean 'approve'?",
    "create": "did you mean 'write'?",
    "init": "did you mean 'write'?",
}


@click.group(cls=Group, words=WORDS)
def lock() -> None:
    """Say which definitions of tools are approved, and see what drifted since.

    The file is metamcp.lock beside the configuration, and made for version control. The servers
    need not run: their tools are taken from what the gateway keeps in its state directory.
    """


@lock.command()
@gateway_options("path", "state_dir")
@lock_option
@add_json_option
def write(path: Path | None, state_dir: str | None, where: Path | None) -> None:
    """Approve everything that is offered now, in a new file."""

    def work() -> int:
        sight = offers.look(path, state_dir, where)
        if sight.lock is not None:
            problem = (
                f"{sight.path} is there already; 'metamcp lock approve' takes over what changed"
            )
            raise Failed(Exit.FAILED, problem)
        servers = {
            name: lock_drift.approve_tools(LockedServer(), each.tools, None, each.info)
            for name, each in sight.offered.items()
            if each.tools is not None
        }
        _tell_unseen(sight)
        if not servers:
            problem = (
                "no server was seen yet, so there is nothing to approve; start the gateway once"
            )
            raise Failed(Exit.FAILED, problem)
        _save(sight.path, Lock(servers))
        tools = sum(len(each.tools) for each in servers.values())
        counts = f"{_count(tools, 'tool')} of {_count(len(servers), 'server')}"
        click.echo(f"{printable(str(sight.path))}: {counts}")
        _tell_running()
        return Exit.OK

    run_and_exit(work)


@lock.command()
@what_argument
@gateway_options("path", "state_dir")
@lock_option
@json_option
def diff(
    what: str | None, path: Path | None, state_dir: str | None, where: Path | None, as_json: bool
) -> None:
    """Show the tools that differ from what is approved. Exit 1 if any does."""

    def work() -> int:
        sight = _require_lock(offers.look(path, state_dir, where))
        drifts = [each for each in sight.drifts(offers.wish(what, sight)) if each.change != "same"]
        if as_json:
            click.echo(codec.dump(as_value(drifts)))
        else:
            _tell_unseen(sight)
            tell(drifts)
        return Exit.FAILED if drifts else Exit.OK

    run_and_exit(work)


@lock.command()
@what_argument
@gateway_options("path", "state_dir")
@lock_option
@add_json_option
def approve(what: str | None, path: Path | None, state_dir: str | None, where: Path | None) -> None:
    """Approve what is offered now: by all servers, by one server, or a single tool.

    Approving one server makes the file if it does not exist.
    """

    def work() -> int:
        sight = offers.look(path, state_dir, where)
        wish = offers.wish(what, sight)
        if wish.server is not None and sight.offered[wish.server].tools is None:
            raise Failed(Exit.FAILED, offers.unseen(wish.server))
        approved_lock = sight.lock if wish.server is not None else _require_lock(sight).lock
        approved_lock = approved_lock or Lock()
        servers, notices = dict(approved_lock.servers), list[str]()
        if wish.tool is not None and wish.server not in servers:
            problem = f"{sight.path} has no entry of '{wish.server}'"
            more = f"'metamcp lock approve {wish.server}' approves all of its tools"
            raise Failed(Exit.FAILED, f"{problem}; {more}")
        for name, each in sight.offered.items():
            if wish.server in (None, name) and each.tools is not None:
                before = servers.get(name, LockedServer())
                servers[name] = lock_drift.approve_tools(before, each.tools, wish.tool, each.info)
                notices += _describe_approvals(name, before, servers[name], each.tools)
        for name in servers.keys() - sight.config.servers.keys() if what is None else ():
            notices.append(f"{name}: not configured any more, taken out")
            del servers[name]
        now = replace(approved_lock, servers=servers)
        _save(sight.path, now)
        _tell_unseen(structs.replace(sight, lock=now))
        for line in notices or ["everything is as approved"]:
            click.echo(printable(line))
        if notices:
            _tell_running()
        return Exit.OK

    run_and_exit(work)


def tell(drifts: Sequence[ToolDrift]) -> None:
    """Print each tool with the findings, and with its definition before and after."""
    if not drifts:
        click.echo("everything is as approved")
    for each in drifts:
        click.echo(printable(f"{each.server}.{each.tool}: {each.word}: {each.difference_text}"))
        for finding in each.comparison.findings if each.comparison is not None else ():
            pointer = finding.pointer or "/"
            click.echo(printable(f"  {finding.weight}  {pointer}: {finding.text}"))
        for line in lines(each):
            click.echo(printable(f"    {line}"))


def lines(drift: ToolDrift) -> Iterator[str]:
    """Yield the difference between both definitions, line by line."""
    before, after = _pretty(drift.old), _pretty(drift.new)
    if drift.change in ("same", "unreadable"):
        return
    for number, line in enumerate(unified_diff(before, after, "approved", "offered", lineterm="")):
        if number >= DIFF_LINES_MAX:
            yield "…"
            return
        yield line


def as_value(drifts: Sequence[ToolDrift]) -> dict[str, object]:
    """Return the drift as a value for JSON, for programs."""
    return {
        "v": VERSION,
        "tools": [
            {
                "server": each.server,
                "tool": each.tool,
                "change": each.change,
                "verdict": None if each.comparison is None else str(each.comparison.verdict),
                "words": each.comparison is not None and each.comparison.drift,
                "harmless": each.harmless,
                "approved": None if each.old is None else each.old.fingerprint,
                "offered": None if each.new is None else each.new.fingerprint,
                "findings": [
                    {
                        "pointer": finding.pointer,
                        "kind": finding.kind,
                        "weight": str(finding.weight),
                        "text": finding.text,
                    }
                    for finding in (each.comparison.findings if each.comparison else ())
                ],
            }
            for each in drifts
        ],
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _pretty(tool: LockedTool | None) -> list[str]:
    if tool is None:
        return []
    text = json.dumps(tool.definition, ensure_ascii=False, indent=2, sort_keys=True)
    return text.split("\n")


def _describe_approvals(
    server: str, before: LockedServer, after: LockedServer, tools: Sequence[Raw]
) -> Iterator[str]:
    for each in lock_drift.drifts(server, before, tools):
        if each.change == "unreadable":
            yield f"{server}.{each.tool}: not approved: {each.difference_text}"
        elif before.tools.get(each.tool) != after.tools.get(each.tool):
            yield f"{server}.{each.tool}: approved: {each.word}"


def _require_lock(sight: OfferComparison) -> OfferComparison:
    """Return the comparison if it has a lock. Raises Failed without a lock."""
    if sight.lock is None:
        problem = (
            f"{sight.path} does not exist; 'metamcp lock write' makes one of what is offered now"
        )
        raise Failed(Exit.FAILED, problem)
    return sight


def _tell_unseen(sight: OfferComparison) -> None:
    for note in sight.notes:
        click.echo(f"metamcp: {printable(note)}", err=True)
    for name in sight.unseen():
        text = f"{name} was not seen yet as it is configured now; its tools are not looked at"
        click.echo(f"metamcp: {printable(text)}", err=True)
    for name in sight.list_unlocked_servers() if sight.lock is not None else ():
        text = f"{name} is not in {sight.path}; 'metamcp lock approve {name}' takes it in"
        click.echo(f"metamcp: {printable(text)}", err=True)


def _tell_running() -> None:
    click.echo("a gateway that runs knows it after 'metamcp reload'", err=True)


def _save(path: Path, content: Lock) -> None:
    """Write the lock. Raises Failed."""
    try:
        lock_io.save(path, content)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise Failed(Exit.NO_PERMISSION, problem) from None
