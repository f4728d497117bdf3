"""Tables of the moment: `metamcp ctl top`, `calls`, `views` and `describe`; `metamcp contexts`.

Owns: `top`, how much each server uses now, with its rates, order and keys; `calls`, the calls in
flight; `views`, what each view has in its list of tools, and what that saves; `contexts`, the
gateways on other machines, and whether they answer. Never: measuring, finding the calls (the
gateway), what is in view (the fronts), terminals (`show`).
"""

import time
from collections.abc import Callable, Sequence

import click
from msgspec import Struct

from metamcp_supervisor import verbs
from metamcp_supervisor.cli import errors, show
from metamcp_supervisor.cli.ctl import (
    Duration,
    any_names_argument,
    complete_endpoints,
    complete_names,
    json_option,
)
from metamcp_supervisor.control import client
from metamcp_supervisor.telemetry.histograms import between, quantile
from metamcp_supervisor.verbs import (
    ConfigTree,
    Description,
    Footprint,
    GatewayStatus,
    ServerStatus,
    TopFigures,
    ViewShown,
    ViewsShown,
)
from metamcp_supervisor.wording import columns, descriptions
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.figures import CallUnderWay

EVERY_S = 2.0
ONE_TABLE_S = 1.0
"""Seconds between the two measurements of a single table; rates need two."""
COLUMNS = (
    "SERVER", "STATE", "CALLS/S", "ERRORS/S", "INFL", "P95", "CPU%", "MEM", "FDS", "PROCS",
    "RESTARTS",
)  # fmt: skip
#: Key -> the column by which it sorts; that column gets a mark.
KEYS = {"c": "CPU%", "m": "MEM", "n": "CALLS/S", "e": "ERRORS/S"}


class ServerUsage(Struct, frozen=True):
    """Use of a server between two measurements. Rates are 0 until there are two. `p95_s`: of the
    requests that were answered between them, None without any."""

    server: ServerStatus
    footprint: Footprint
    calls_per_s: float = 0.0
    errors_per_s: float = 0.0
    cpu_percent: float = 0.0
    p95_s: float | None = None

    @property
    def memory_bytes(self) -> int:
        """Share of the memory, as `status` shows it; resident memory before that is known."""
        return self.server.memory_bytes or self.footprint.rss_bytes


_BY: dict[str, Callable[[ServerUsage], float]] = {
    "c": lambda use: use.cpu_percent,
    "m": lambda use: use.memory_bytes,
    "n": lambda use: use.calls_per_s,
    "e": lambda use: use.errors_per_s,
}


@click.command()
@click.option(
    "--sort", type=click.Choice(list(KEYS)), default="c", show_default=True,
    help="By CPU, memory, number of calls or errors; the same keys while it runs.",
)  # fmt: skip
@click.option(
    "--every", "every_s", type=Duration(), metavar="DURATION", help="Time between two views. [2s]"
)
@json_option
@click.pass_obj
def top(runtime_dir: str | None, sort: str, every_s: float | None, as_json: bool) -> None:
    """Show how much each server uses: live on a terminal (q quits), else in one table."""
    with client.connect(runtime_dir) as gateway:
        if as_json:
            click.echo(gateway.call("top"))
            return

        def look() -> TopFigures:
            return codec.decode_as(TopFigures, gateway.call("top"))

        if show.on_terminal():
            _live(look, sort, every_s or EVERY_S)
        else:
            before = look()
            time.sleep(min(every_s or ONE_TABLE_S, ONE_TABLE_S))
            show.picture(picture(before, look(), sort))


def uses(before: TopFigures, now: TopFigures) -> list[ServerUsage]:
    """Return how much each server of `now` did and used since `before`."""
    passed_s = now.clock - before.clock
    earlier = {server.name: server for server in before.status.servers}
    use_list: list[ServerUsage] = []
    for server in now.status.servers:
        footprint = now.footprints.get(server.name, Footprint())
        old, old_footprint = earlier.get(server.name), before.footprints.get(server.name)
        if old is None or passed_s <= 0:
            use_list.append(ServerUsage(server, footprint))
            continue
        # The time of a process ends with it, so after a restart the difference may be negative.
        cpu_s = footprint.cpu_s - old_footprint.cpu_s if old_footprint else 0.0
        use_list.append(
            ServerUsage(
                server,
                footprint,
                calls_per_s=max(0, server.calls - old.calls) / passed_s,
                errors_per_s=max(0, server.errors - old.errors) / passed_s,
                cpu_percent=max(0.0, cpu_s) / passed_s * 100,
                p95_s=_p95_s(before, now, server.name),
            )
        )
    return use_list


def picture(before: TopFigures, now: TopFigures, sort: str) -> show.PrintedTable:
    """Return the table, with the highest value of the sorted column first."""
    ranked = sorted(uses(before, now), key=_BY[sort], reverse=True)
    titles = tuple(f"{title}↓" if title == KEYS[sort] else title for title in COLUMNS)
    calls = sum(use.calls_per_s for use in ranked)
    return show.PrintedTable(
        titles,
        [_row(use) for use in ranked],
        head=f"{columns.status_head(now.status)}  calls/s {calls:.1f}",
        foot="sort: c CPU, m memory, n calls, e errors; q quits" if show.on_terminal() else "",
        right=frozenset(titles[2:]),
        sentences=False,
        spared=("PROCS", "FDS", "RESTARTS", "INFL", "P95", "ERRORS/S"),
    )


def _p95_s(before: TopFigures, now: TopFigures, server: str) -> float | None:
    counts_before, counts = before.latencies.get(server, ()), now.latencies.get(server, ())
    longest_s = now.longest_s.get(server, 0.0)
    return quantile(between(counts_before, counts), now.bounds_s, 0.95, longest_s)


def _live(look: Callable[[], TopFigures], sort: str, every_s: float) -> None:
    before = now = look()
    taken = time.monotonic()

    def take() -> show.PrintedTable:
        nonlocal before, now, taken
        if time.monotonic() - taken >= every_s:
            before, now, taken = now, look(), time.monotonic()
        return picture(before, now, sort)

    def press(key: str) -> bool:
        nonlocal sort
        sort = key if key in KEYS else sort
        return key == "q"

    show.live(take, every_s, press)


def _row(use: ServerUsage) -> tuple[str, ...]:
    server, footprint = use.server, use.footprint
    return (
        server.name,
        server.state,
        f"{use.calls_per_s:.1f}",
        f"{use.errors_per_s:.1f}",
        str(server.inflight),
        columns.latency(use.p95_s),
        f"{use.cpu_percent:.1f}",
        columns.size(use.memory_bytes) if use.memory_bytes else columns.NONE,
        str(footprint.descriptors) if footprint.processes else columns.NONE,
        str(footprint.processes) if footprint.processes else columns.NONE,
        str(server.restarts),
    )


CALL_COLUMNS = (
    "SERVER", "METHOD", "NAME", "AGE", "STATE", "PROGRESS", "CLIENT", "SESSION", "ENDPOINT",
    "FRONT",
)  # fmt: skip
CLIENT_CHARACTERS_MAX = 24
"""Maximum characters of a client's name in the table; `--json` shows all of it."""


@click.command()
@any_names_argument
@click.option(
    "--slow",
    "slow_s",
    type=Duration(),
    metavar="DURATION",
    help="Only those that have taken so long already.",
)
@json_option
@click.pass_obj
def calls(
    runtime_dir: str | None, names: tuple[str, ...], slow_s: float | None, as_json: bool
) -> None:
    """Show the calls that are not answered yet, the longest first, without their contents.

    'metamcp calls' shows calls that are over, where they are recorded.
    """
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("calls", {"names": names, "slow_s": slow_s or 0.0})
    if as_json:
        click.echo(raw)
        return
    under_way = codec.decode_as(verbs.CallsUnderWay, raw)
    show.picture(
        show.PrintedTable(
            CALL_COLUMNS if under_way.calls else ("",),
            call_rows(under_way.calls),
            foot=calls_foot(under_way),
            right=frozenset({"AGE"}),
            sentences=False,
            spared=("FRONT", "PROGRESS", "SESSION", "METHOD", "ENDPOINT", "CLIENT"),
        )
    )


def call_rows(in_flight: Sequence[CallUnderWay]) -> list[tuple[str, ...]]:
    return [
        (
            call.server,
            call.method,
            call.name or columns.NONE,
            columns.latency(call.age_s),
            call.state,
            "yes" if call.progress else "no",
            columns.cut(" ".join(call.client.split()), CLIENT_CHARACTERS_MAX) or columns.NONE,
            call.session or columns.NONE,
            call.endpoint or columns.NONE,
            call.front,
        )
        for call in in_flight
    ]


def calls_foot(under_way: verbs.CallsUnderWay) -> str:
    """Return the number of calls, and what is missing from the table."""
    parts = [f"{len(under_way.calls)} under way" if under_way.calls else "no call is under way"]
    if under_way.more:
        parts.append(f"{under_way.more} more are not shown")
    parts += [f"{front} did not say" for front in under_way.silent]
    return "; ".join(parts)


VIEW_COLUMNS = (
    "ENDPOINT", "EXPOSURE", "PRINCIPAL", "SESSION", "TOOL SET", "TOOLS", "OF", "TOKENS", "OF ALL",
    "SAVED", "%",
)  # fmt: skip
RIGHT = frozenset({"TOOLS", "OF", "TOKENS", "OF ALL", "SAVED", "%"})


@click.command()
@click.argument("names", nargs=-1, metavar="[ENDPOINT…]", shell_complete=complete_endpoints)
@json_option
@click.pass_obj
def views(runtime_dir: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Show what is in view now: how many tools, and what they cost a client in tokens.

    'metamcp tools --tokens' shows the cost of each server and tool, and under another exposure.
    """
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("views", {"names": names})
    if as_json:
        click.echo(raw)
        return
    listing = codec.decode_as(ViewsShown, raw)
    show.picture(
        show.PrintedTable(
            VIEW_COLUMNS if listing.views else ("",),
            view_rows(listing.views),
            foot=views_foot(listing),
            right=RIGHT,
            sentences=False,
            spared=("OF ALL", "SAVED", "OF", "PRINCIPAL", "SESSION", "EXPOSURE", "TOOL SET"),
        )
    )


@click.command()
@json_option
@click.pass_obj
def tree(runtime_dir: str | None, as_json: bool) -> None:
    """Show workspaces with their namespaces, endpoints and servers."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("tree")
    if as_json:
        click.echo(raw)
        return
    config_tree = codec.decode_as(ConfigTree, raw)
    used = columns.limit_texts(config_tree.limits)

    def line(indent: str, kind: str, name: str, text: str = "") -> None:
        parts = f"{kind} {name}".removeprefix("workspace "), text, used.get((kind, name), "")
        click.echo(show.printable(indent + "  ".join(column for column in parts if column)))

    for workspace in config_tree.workspaces:
        line("", "workspace", workspace.name)
        for namespace in workspace.namespaces:
            line("  ", "namespace", namespace.name)
            for name, url in namespace.endpoints.items():
                line("    ", "endpoint", name, url)
            for name, state in namespace.servers.items():
                line("    ", "server", name, state)
    if keys := used.get(("key", "")):
        click.echo(f"API keys  {keys}")


def view_rows(shown_views: Sequence[ViewShown]) -> list[tuple[str, ...]]:
    """Return a row for each view, the most tokens first."""
    return [
        (
            view.endpoint,
            view.exposure,
            view.principal,
            view.session or columns.NONE,
            view.toolset or columns.NONE,
            str(view.tools),
            str(view.offered),
            str(view.tokens),
            str(view.everything),
            str(view.saved),
            str(view.saved_percent),
        )
        for view in sorted(shown_views, key=lambda view: -view.tokens)
    ]


def views_foot(listing: ViewsShown) -> str:
    if not listing.views:
        return "no front has told yet what is in view; ask again in two seconds"
    return (
        f"tokens are estimated: {listing.token_bytes} bytes of JSON each; TOOLS and TOKENS are with"
        " the built-in tools"
    )


DESCRIPTION_LABEL_WIDTH = 12


@click.command()
@click.argument("name", shell_complete=complete_names)
@json_option
@click.pass_obj
def describe(runtime_dir: str | None, name: str, as_json: bool) -> None:
    """Explain a server: its settings, why it is in its state, and what happens next."""
    with client.connect(runtime_dir) as gateway:
        raw = gateway.call("describe", {"name": name})
    if as_json:
        click.echo(raw)
        return
    description = codec.decode_as(Description, raw)
    now = time.time()
    for label, text in descriptions.facts(description, now):
        click.echo(show.printable(f"{label:<{DESCRIPTION_LABEL_WIDTH}}{text}").rstrip())
    _print_section("Configuration", ("", ""), _config_rows(description))
    _print_section(
        "Processes",
        ("PID", "MEM", "PSS", "CPU", "FDS", "COMMAND"),
        descriptions.processes(description.processes),
    )
    _print_section(
        "Exits",
        ("WHEN", "GEN", "READY", "REASON", "THEN", "MESSAGE"),
        descriptions.exits(description, now),
    )
    if description.log:
        click.echo("\nLast lines of its log")
        for line in description.log:
            text = columns.log_text(line, columns.clock(line.time))
            click.echo(f"  {show.printable(text)}")


def _config_rows(description: Description) -> list[tuple[str, str]]:
    return [(f"  {key}", codec.dump(value).decode()) for key, value in description.config.items()]


def _print_section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    click.echo(f"\n{title}")
    right = frozenset({"PID", "MEM", "CPU", "FDS", "GEN"})
    show.picture(show.PrintedTable(head, rows, right=right))


CONTEXTS = ("NAME", "WHERE", "STATE")
CONTEXT_S = 5.0
"""Seconds for a gateway on another machine to connect, and as many to answer."""
ASKED_MAX = 16
"""Maximum gateways that are asked at once."""


@click.command(cls=errors.Command)
@json_option
def contexts(as_json: bool) -> None:
    """List the gateways on other machines that `--context` may name, and their states."""
    from concurrent.futures import ThreadPoolExecutor

    from metamcp_supervisor.control import contexts

    path = contexts.file_path()
    names = sorted(contexts.read_tables(path)) if path.exists() else []
    with ThreadPoolExecutor(ASKED_MAX) as pool:
        rows = list(pool.map(_ask_context, names))
    if as_json:
        members = ("name", "where", "state")
        errors.tell(contexts=[dict(zip(members, row, strict=True)) for row in rows])
        return
    foot = "" if rows else f"no context; tables [contexts.NAME] in {path} make some"
    printable = [tuple(map(show.printable, row)) for row in rows]
    show.picture(show.PrintedTable(CONTEXTS if rows else ("",), printable, foot=foot))


def _ask_context(name: str) -> tuple[str, str, str]:
    """Return the row of a context: where its gateway is, and its state or why that is not known."""
    from metamcp_supervisor.cli.progress import states
    from metamcp_supervisor.control import contexts

    address = ""
    try:
        context = contexts.read_context(name)
        address = context.address
        if context.ssh:
            return name, address, "not asked: its verbs run over ssh"
        with contexts.ContextClient(context, CONTEXT_S) as gateway:
            status = codec.decode_as(GatewayStatus, gateway.call("status", timeout_s=CONTEXT_S))
    except client.Failed as failed:
        return name, address, str(failed)
    except codec.Malformed as error:
        return name, address, f"its gateway is of another version: {error}"
    return name, address, f"{status.state}: {states(status)}"
