"""`metamcp tools`: the tools of all servers as they were last offered, what drifted, and their cost
in tokens.

Owns: the options, the tables, the sums. Never: what drifted (`approval.lock_drift`), the estimate
(`metamcp_worker.ipc.builtin_definitions`), searching (`call`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from msgspec import Struct

from metamcp_supervisor.approval import lock_drift
from metamcp_supervisor.approval.lock import definitions, fingerprint
from metamcp_supervisor.approval.lock_drift import ToolDrift
from metamcp_supervisor.approval.quarantine import QuarantineState
from metamcp_supervisor.cli import call, lock, offers, server_entries, show
from metamcp_supervisor.cli.ctl import complete_endpoints, complete_names, json_option
from metamcp_supervisor.cli.errors import (
    Command,
    Group,
    RenamedOption,
    gateway_options,
    options_of,
    run_and_exit,
    state_option,
)
from metamcp_supervisor.cli.offers import OfferComparison, StoredOffers, ToolFilter
from metamcp_supervisor.config.config import Pinning
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.servers.specs import front_spec
from metamcp_supervisor.verbs import VERSION, Exit
from metamcp_supervisor.views import tool_costs
from metamcp_worker.ipc import builtin_definitions, codec, server_catalog
from metamcp_worker.ipc.disclosure import Exposure, Pair
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec
from metamcp_worker.ipc.validation import NOUNS

ENDPOINTS = (
    "ENDPOINT", "EXPOSURE", "TOOLS", "AT START", "SAVED", "%",
    *map(str.upper, tool_costs.EXPOSURES),
)  # fmt: skip
SERVERS = ("SERVER", "TOOLS", "TOKENS", "%", "LARGEST TOOL")
TOOLS = ("TOOL", "TOKENS", "% OF SERVER")
RIGHT = frozenset({*ENDPOINTS[2:], "TOKENS", "%", "% OF SERVER"})
SERVERS_MAX = 20
LARGEST_MAX = 10
"""Maximum number of tools in the table of the largest tools. `--json` shows all tools, and a table
for a single server shows all of its tools."""
ADVISED: Exposure = "search"
"""Exposure to advise: everything can still be found and called, and the cost does not depend on the
number of tools."""


class ToolCost(Struct, frozen=True):
    """Cost of a tool. `tokens`: of the definition as its server gives it."""

    server: str
    tool: str
    tokens: int


class ServerCost(Struct, frozen=True):
    """Cost of the tools of a server. `percent`: share in the cost of all servers; `largest`: its
    largest tool, empty for a server without tools."""

    name: str
    tools: int
    tokens: int
    percent: int
    largest: str


class EndpointCost(Struct, frozen=True):
    """Cost of an endpoint. `tools`: number of its tools; `at_start`: tokens that a client has in
    context under the configured exposure before it has asked for anything; `all`: tokens of all
    tools of its servers; `exposures`: tokens at the start under each exposure."""

    name: str
    exposure: Exposure
    tools: int
    at_start: int
    all: int
    saved: int
    saved_percent: int
    exposures: dict[Exposure, int]

    @property
    def advice(self) -> str:
        """Advice to change the exposure, with the saving; empty if there is nothing to save."""
        other = self.exposures[ADVISED]
        if self.exposure != "all" or other >= self.at_start:
            return ""
        percent = builtin_definitions.TokenSavings(self.at_start, other).percent
        return f'{self.name}: exposure = "{ADVISED}" would make it {other} tokens, {percent} % less'


class Costs(Struct, frozen=True):
    """Costs of everything, the most tokens first, but endpoints in the order of the configuration.
    `unseen`: servers that were not seen yet."""

    endpoints: tuple[EndpointCost, ...]
    servers: tuple[ServerCost, ...]
    tools: tuple[ToolCost, ...]
    unseen: tuple[str, ...]
    v: int = VERSION
    estimated: bool = True
    token_bytes: int = builtin_definitions.TOKEN_BYTES


def tell(
    word: str | None,
    path: Path | None,
    state_dir: str | None,
    lock: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the costs. Raises Failed."""
    stored = offers.read_offers(path, state_dir, lock)
    wish = _wish(word, stored)
    all_of_it = calculate_costs(stored)
    if as_json:
        click.echo(codec.dump(_filter_costs(all_of_it, wish)))
        return
    for note in stored.notes:
        click.echo(f"metamcp: {show.printable(note)}", err=True)
    if wish.server is not None:
        _tell_server(_filter_costs(all_of_it, wish), wish.server)
    else:
        _tell_all(all_of_it)


def calculate_costs(stored: StoredOffers) -> Costs:
    """Calculate the costs from the offers on disk."""
    seen = {name: each for name, each in stored.catalogues.items() if each is not None}
    tools = sorted(_tools(seen), key=lambda tool: -tool.tokens)
    sums = {name: builtin_definitions.tokens_of_all(each.tools) for name, each in seen.items()}
    total = sum(sums.values())
    servers = [
        ServerCost(
            name,
            sum(tool.server == name for tool in tools),
            tokens,
            _percent(tokens, total),
            next((f"{tool.tool} ({tool.tokens})" for tool in tools if tool.server == name), ""),
        )
        for name, tokens in sorted(sums.items(), key=lambda each: -each[1])
    ]
    withheld = _withheld(stored, seen)
    return Costs(
        tuple(
            _endpoint(endpoint, tool_costs.tools(endpoint, seen, withheld))
            for endpoint in front_spec(stored.config, "").endpoints
        ),
        tuple(servers),
        tuple(tools),
        tuple(name for name, each in stored.catalogues.items() if each is None),
    )


def _tools(seen: Mapping[str, ServerCatalogue]) -> Iterator[ToolCost]:
    for name, each in seen.items():
        for tool in server_catalog.iter_definitions("tools", each.tools):
            yield ToolCost(name, tool.key, builtin_definitions.tokens(tool.raw))


def _endpoint(spec: EndpointSpec, tools: Sequence[tool_costs.SizedTool]) -> EndpointCost:
    code = spec.code is not None
    exposures: dict[Exposure, int] = {
        exposure: tool_costs.at_start(exposure, tools, code=code, builtins=spec.builtins)
        for exposure in tool_costs.EXPOSURES
    }
    saving = builtin_definitions.TokenSavings(
        tool_costs.at_start("all", tools), exposures[spec.exposure]
    )
    return EndpointCost(
        spec.name,
        spec.exposure,
        len(tools),
        saving.shown,
        saving.everything,
        saving.tokens,
        saving.percent,
        exposures,
    )


def _withheld(stored: StoredOffers, seen: Mapping[str, ServerCatalogue]) -> frozenset[Pair]:
    """Return the tools in quarantine, which clients do not get."""
    servers = stored.config.servers
    pinnings: dict[str, Pinning | None] = {name: servers[name].pinning for name in seen}
    pins = QuarantineState(stored.seen, stored.lock, pinnings, definitions(servers.values()))
    return frozenset(
        (name, each.tool)
        for name, offer in seen.items()
        for each in pins.judge(name, offer.tools).kept
    )


def _percent(tokens: int, total: int) -> int:
    return tokens * 100 // total if total else 0


# What is shown


def _wish(word: str | None, stored: StoredOffers) -> ToolFilter:
    """Return the filter for the wished tools. Raises Failed."""

    def tools(server: str) -> list[str] | None:
        each = stored.catalogues[server]
        return (
            None
            if each is None
            else [tool.key for tool in server_catalog.iter_definitions("tools", each.tools)]
        )

    return offers.parse_filter(word, stored.catalogues, tools)


def _filter_costs(costs: Costs, wish: ToolFilter) -> Costs:
    if wish.server is None:
        return costs
    return Costs(
        costs.endpoints,
        tuple(cost for cost in costs.servers if cost.name == wish.server),
        tuple(tool for tool in costs.tools if wish.is_selected(tool.server, tool.tool)),
        tuple(name for name in costs.unseen if name == wish.server),
    )


def _tell_all(costs: Costs) -> None:
    _show(ENDPOINTS, [_endpoint_row(endpoint) for endpoint in costs.endpoints])
    for endpoint in costs.endpoints:
        if endpoint.advice:
            click.echo(show.printable(endpoint.advice))
    if costs.servers:
        click.echo()
        _show(SERVERS, [_server_row(cost) for cost in costs.servers[:SERVERS_MAX]])
    if costs.tools:
        click.echo()
    rows = [_tool_row(tool, costs) for tool in costs.tools[:LARGEST_MAX]]
    _show(TOOLS, rows, "\n".join(_words(costs)))


def _tell_server(costs: Costs, server: str) -> None:
    rows = [_tool_row(tool, costs) for tool in costs.tools]
    tokens = sum(cost.tokens for cost in costs.servers)
    count = sum(cost.tools for cost in costs.servers)
    foot = f"{server}: {count} tools, {tokens} tokens\n{_estimate()}"
    if costs.unseen:
        foot = offers.unseen(server)
    _show(TOOLS, rows, foot)


def _show(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], foot: str = "") -> None:
    """Print a table; without rows, print only the foot."""
    head = columns if rows else ("",)
    show.picture(show.PrintedTable(head, rows, foot=foot, right=RIGHT, sentences=False))


def _endpoint_row(endpoint: EndpointCost) -> tuple[str, ...]:
    figures = (
        endpoint.tools,
        endpoint.at_start,
        endpoint.saved,
        endpoint.saved_percent,
        *endpoint.exposures.values(),
    )
    return endpoint.name, endpoint.exposure, *map(str, figures)


def _server_row(cost: ServerCost) -> tuple[str, ...]:
    return cost.name, str(cost.tools), str(cost.tokens), str(cost.percent), cost.largest


def _tool_row(tool: ToolCost, costs: Costs) -> tuple[str, ...]:
    total = sum(each.tokens for each in costs.servers if each.name == tool.server)
    return f"{tool.server}.{tool.tool}", str(tool.tokens), str(_percent(tool.tokens, total))


def _words(costs: Costs) -> Iterator[str]:
    if (more := len(costs.servers) - SERVERS_MAX) > 0:
        yield f"{more} more servers, which cost less: --json has them"
    if (more := len(costs.tools) - LARGEST_MAX) > 0:
        yield f"{more} more tools: 'metamcp tools --tokens SERVER' shows those of one server"
    if costs.unseen:
        yield f"not seen yet: {', '.join(costs.unseen)}; start the gateway once"
    yield _estimate()


def _estimate() -> str:
    return (
        f"tokens are estimated: {builtin_definitions.TOKEN_BYTES} bytes of a definition each;"
        " 'metamcp ctl views' has what is in view now"
    )


COLUMNS = ("SERVER", "TOOL", "FINGERPRINT", "STATE")
FINGERPRINT_CHARACTERS = 15
"""Characters of a fingerprint in the table: the scheme and twelve digits, enough to see at a glance
that two differ."""
RECORDED = "not locked"

Row = tuple[str, str, str, str]


class _Tools(Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Search without the name of a verb, which may stand behind its options."""
        options = [pair for verb in self.commands.values() for pair in options_of(verb).items()]
        valued = {name for name, option in options if not option.is_flag}
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in valued else 1
        word = args[at] if at < len(args) else ""
        if word in self.commands:
            args = [word, *args[:at], *args[at + 1 :]]
        elif not args or args[0] not in ctx.help_option_names:
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Tools, commands=[*server_entries.TOOL_VERBS])
def tools() -> None:
    """List and search the tools of all servers; hide, switch and rename one in the configuration.

    Without the name of a verb it is `search`: metamcp tools WORDS.
    """


@tools.command(cls=Command)
@click.argument("words", metavar="[SERVER[.TOOL] | WORDS…]", nargs=-1)
@click.option("--server", metavar="NAME", help="Only tools of this server; with WORDS.",
              shell_complete=complete_names)  # fmt: skip
@click.option("--endpoint", metavar="NAME", help="Where to search; without it the default one.",
              shell_complete=complete_endpoints)  # fmt: skip
@click.option("--key", cls=RenamedOption, before=("--as",), metavar="KEY",
              help="Search what the holder of this API key sees.")  # fmt: skip
@click.option("--diff", "differences", is_flag=True, help="How they differ from what was approved.")
@click.option("--tokens", "costs", is_flag=True, help="What they cost, and what exposures save.")
@gateway_options()
@state_option
@lock.lock_option
@json_option
def search(
    words: tuple[str, ...],
    server: str | None,
    endpoint: str | None,
    key: str | None,
    runtime_dir: str | None,
    differences: bool,
    costs: bool,
    path: Path | None,
    state_dir: str | None,
    where: Path | None,
    as_json: bool,
) -> None:
    """List the tools that the servers offered last, and whether they are as approved; with WORDS,
    search the tools of the running gateway.

    A search looks for the same words as search_tools. The name of a tool, as git__status,
    git.status or git/status, shows its arguments.

    Without WORDS, tools are compared with metamcp.lock, or with what a server offered when it was
    first seen. Clients do not get tools in quarantine, nor definitions that are not valid. Each
    definition that is not valid, also of a prompt or resource, has a row with place and reason. The
    row of a tool names a schema that clients or APIs of models may refuse. The gateway need not
    run.
    """
    if differences and costs:
        raise click.UsageError("--diff and --tokens are two questions: ask one of them.")
    if (differences or costs) and len(words) > 1:
        raise click.UsageError("--diff and --tokens are about one SERVER or SERVER.TOOL.")
    params = {"server": server or "", "endpoint": endpoint or "", "key": key or ""}
    narrowed = any(params.values()) or runtime_dir is not None or len(words) > 1

    directory = (
        runtime_dir if path is None or runtime_dir is not None else client.directory_of(path)
    )

    def run_search() -> int:
        params["query"] = " ".join(words)
        return call.search(directory, params, as_json=as_json)

    def work() -> int:
        word = words[0] if words else None
        if costs:
            tell(word, path, state_dir, where, as_json=as_json)
            return Exit.OK
        if narrowed and not differences:
            return run_search()
        try:
            sight = offers.look(path, state_dir, where)
            wish = offers.wish(word, sight)
        except Failed as unknown:
            named = not words or "." in words[0]  # SERVER.TOOL, with a mistake
            if differences or named or not call.runs(directory):
                raise unknown from None
            return run_search()
        if wish.tool is not None and not differences:
            if as_json and words[0].startswith(f"{wish.server}__") and call.runs(directory):
                return run_search()
            if not as_json and call.show_page(directory, words[0]):
                return Exit.OK
        if differences:
            drifts = [each for each in sight.drifts(wish) if each.change != "same"]
            if as_json:
                click.echo(codec.dump(lock.as_value(drifts)))
            else:
                lock.tell(drifts)
        else:
            _list(sight, wish, as_json=as_json)
        return Exit.OK

    run_and_exit(work)


def _list(sight: OfferComparison, wish: ToolFilter, *, as_json: bool) -> None:
    rows = [row for row in _rows(sight) if wish.is_selected(row[0], row[1])]
    if as_json:
        keys = ("server", "tool", "fingerprint", "state")
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        click.echo(codec.dump({"v": VERSION, "tools": listed}))
        return
    short_rows = [(*row[:2], row[2][:FINGERPRINT_CHARACTERS], row[3]) for row in rows]
    unseen = sight.unseen()
    foot = f"not seen yet: {', '.join(unseen)}" if unseen else ""
    show.picture(show.PrintedTable(COLUMNS, short_rows, foot=foot))


def _rows(sight: OfferComparison) -> list[Row]:
    drifts = {(each.server, each.tool): each for each in sight.drifts()}
    unlocked = frozenset(sight.list_unlocked_servers())
    rows = [
        _row(each, quarantined=sight.keeps_back(each), first=each.server in unlocked)
        for each in drifts.values()
    ]
    for name, each in sight.offered.items():
        for definition in each.tools or ():
            tool = lock_drift.name_of(definition)
            if tool is not None and (name, tool) not in drifts:
                rows.append((name, tool, fingerprint(definition), RECORDED))
    left_out = list(_left_out(sight))
    named = {row[:2] for row in left_out}
    rows = [_with_schemas(row, sight) for row in rows if row[:2] not in named]
    return sorted([*rows, *left_out])


def _with_schemas(row: Row, sight: OfferComparison) -> Row:
    """Return the row of a tool with what is wrong with its schemas."""
    server, tool, digest, state = row
    faults = sight.schemas.get(server, {}).get(tool)
    return row if faults is None else (server, tool, digest, f"{state}; {faults}")


def _left_out(sight: OfferComparison) -> Iterator[Row]:
    for name, each in sight.invalid.items():
        for invalid in each:
            tool = invalid.kind == "tools"
            called = invalid.name if tool else f"{NOUNS[invalid.kind]} {invalid.name}"
            digest = fingerprint(invalid.definition) if tool else ""
            yield name, called, digest, f"left out{invalid.fault.clients}: {invalid.fault}"


def _row(drift: ToolDrift, *, quarantined: bool, first: bool) -> Row:
    """Return the row of a tool. `first`: whether the tool is not in the lock, and so compared with
    what its server offered at first."""
    locked_tool = drift.new or drift.old
    state = drift.word if drift.is_news else "as first seen" if first else "as approved"
    state += ", in quarantine" if quarantined else ""
    return (
        drift.server,
        drift.tool,
        locked_tool.fingerprint if locked_tool is not None else "",
        state,
    )


CATALOG = ("SERVER", "COMMAND", "DESCRIPTION")


class CatalogServer(Struct, frozen=True):
    """Offer of a server. `available`: whether it was seen yet; `descriptions`: of the commands,
    in the same order; `resources`: URIs, and templates of URIs."""

    server_id: str
    available: bool
    commands: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


@click.command(cls=Command)
@click.argument("server", metavar="[SERVER]", required=False)
@gateway_options("path", "state_dir")
@json_option
def catalog(server: str | None, path: Path | None, state_dir: str | None, as_json: bool) -> None:
    """List all commands of all servers, as they were last offered.

    The gateway need not run, nor its servers.
    """

    def work() -> int:
        stored = offers.read_offers(path, state_dir, None)
        wish = _wish(server, stored)
        servers = [
            _catalog(name, each)
            for name, each in stored.catalogues.items()
            if wish.is_selected(name, "")
        ]
        if as_json:
            click.echo(codec.dump({"v": VERSION, "servers": servers}))
        else:
            _tell_catalog(servers)
        return Exit.OK

    run_and_exit(work)


def _tell_catalog(servers: Sequence[CatalogServer]) -> None:
    rows = [
        (server.server_id, command, description)
        for server in servers
        for command, description in zip(server.commands, server.descriptions, strict=True)
    ]
    unseen = ", ".join(server.server_id for server in servers if not server.available)
    foot = f"not seen yet: {unseen}; start the gateway once" if unseen else ""
    show.picture(show.PrintedTable(CATALOG if rows else ("",), rows, foot=foot, sentences=True))


def _catalog(name: str, each: ServerCatalogue | None) -> CatalogServer:
    if each is None:
        return CatalogServer(name, available=False)
    keys = {
        kind: list(server_catalog.iter_definitions(kind, each.of(kind)))
        for kind in server_catalog.KINDS
    }
    tools = keys["tools"]
    uris = (*keys["resources"], *keys["resourceTemplates"])
    return CatalogServer(
        name,
        True,
        tuple(tool.key for tool in tools),
        tuple(
            codec.text(codec.level(tool.raw).get("description", b"null")) or "" for tool in tools
        ),
        tuple(prompt.key for prompt in keys["prompts"]),
        tuple(resource.key for resource in uris),
    )
