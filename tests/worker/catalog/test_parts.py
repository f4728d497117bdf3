"""What a merge takes over from the one before is what it would make anew."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec import Raw, structs

from metamcp_worker.catalog.catalog import Catalog, MergedCatalog
from metamcp_worker.ipc.disclosure import Pair
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, NamingSpec, ToolOverride
from tests.examples import examples
from tests.worker.front.offers import (
    LEGACY,
    MODERN,
    endpoint,
    offer,
    prompt,
    resource,
    template,
    tool,
)

SERVERS = ("a", "b", "a_b")
TOOLS = ("t", "b_t", "u-v", "a long name " * 6)
PAIRS = [(server, name) for server in SERVERS for name in TOOLS]
APP = "ui://app/page"


def _tool(name: str, words: str, *, app: bool) -> Raw:
    meta: dict[str, object] = {"_meta": {"ui": {"resourceUri": APP}}} if app else {}
    return tool(name, description=words, **meta)


def _catalogue(
    tools: list[Raw], prompts: list[str], uris: list[str], *, modern: bool
) -> ServerCatalogue:
    return offer(
        *tools,
        protocol=MODERN if modern else LEGACY,
        prompts=[prompt(name) for name in prompts],
        resources=[resource(uri) for uri in uris],
        templates=[template(f"{uri}/{{x}}") for uri in uris],
    )


def _override(
    pair: Pair, name: str, words: str | None, *, hidden: bool, fixed: bool
) -> ToolOverride:
    return ToolOverride(
        server=pair[0],
        tool=pair[1],
        name=name,
        description=words,
        hidden=hidden,
        fixed={"x": "1"} if fixed else {},
        aliases=("other", "a__t"),
    )


def _spec(
    servers: list[str], naming: NamingSpec, off: set[Pair], wanted: list[ToolOverride]
) -> EndpointSpec:
    return EndpointSpec(
        name="default",
        servers=tuple(servers),
        naming=naming,
        disabled=tuple(sorted(off)),
        overrides=tuple({(one.server, one.tool): one for one in wanted}.values()),
    )


pairs = some.sampled_from(PAIRS)
catalogues = some.builds(
    _catalogue,
    some.lists(
        some.builds(_tool, some.sampled_from(TOOLS), some.sampled_from("xy"), app=some.booleans()),
        max_size=4,
    ),
    some.lists(some.sampled_from(TOOLS), max_size=2),
    some.lists(some.sampled_from((APP, "file:///a")), max_size=2),
    modern=some.booleans(),
)
overrides = some.builds(
    _override,
    pairs,
    some.sampled_from(("", "mine", "a_b_t")),
    some.sampled_from((None, "words")),
    hidden=some.booleans(),
    fixed=some.booleans(),
)
namings = some.builds(
    NamingSpec,
    style=some.sampled_from(("namespaced", "flat", "bare")),
    length_max=some.sampled_from((64, 20)),
)
specs = some.builds(
    _spec,
    some.lists(some.sampled_from(SERVERS), unique=True, min_size=1),
    namings,
    some.sets(pairs, max_size=2),
    some.lists(overrides, max_size=2),
)


@dataclass(frozen=True)
class Put:
    server: str
    catalogue: ServerCatalogue


@dataclass(frozen=True)
class List:
    server: str
    yes: bool


@dataclass(frozen=True)
class Forget:
    server: str


@dataclass(frozen=True)
class Keep:
    pairs: frozenset[tuple[str, str]]
    why: str


@dataclass(frozen=True)
class Serve:
    spec: EndpointSpec
    reserved: frozenset[str]


Step = Put | List | Forget | Keep | Serve
names = some.sampled_from(SERVERS)
steps = some.one_of(
    some.builds(Put, names, catalogues),
    some.builds(List, names, some.booleans()),
    some.builds(Forget, names),
    some.builds(Keep, some.frozensets(pairs, max_size=2), some.sampled_from("?!")),
    some.builds(Serve, specs, some.frozensets(some.sampled_from(("a__t", "mine")), max_size=1)),
)


def carried_out(step: Step, catalog: Catalog) -> None:
    match step:
        case Put(server, catalogue):
            catalog.put(server, catalogue)
        case List(server, yes):
            catalog.set_listed(server, yes)
        case Forget(server):
            catalog.forget(server)
        case Keep(pairs, why):
            catalog.keep_back(dict.fromkeys(sorted(pairs), why))
        case Serve():
            pass


def told(merged: MergedCatalog) -> dict[str, object]:
    """All of it, and the order of its tables; what it is made of is compared by that."""
    found: dict[str, object] = structs.asdict(merged)
    del found["parts"], found["listed"]
    parts = merged.parts, merged.listed
    entries = [[entry for part in each for entry in part.entries] for each in parts]
    marks = [[mark for part in each for mark in part.marks] for each in parts]
    tables = [list(merged.tools), list(merged.prompts), list(merged.aliases), list(merged.kept)]
    return found | {"of parts": entries, "their marks": marks, "order": tables}


@settings(max_examples=examples(300), deadline=None)
@given(specs, some.lists(steps, min_size=1, max_size=12))
def test_a_merge_after_any_changes_is_that_of_a_front_that_never_merged_before(
    spec: EndpointSpec, changes: list[Step]
) -> None:
    lasting, reserved = Catalog(), frozenset[str]()
    done: list[Step] = []
    for server in SERVERS:
        done += [Put(server, offer("t", "b_t")), List(server, yes=True)]
    for step in done:
        carried_out(step, lasting)
    lasting.merge(spec, reserved)
    for step in changes:
        done.append(step)
        carried_out(step, lasting)
        if isinstance(step, Serve):
            spec, reserved = step.spec, step.reserved
        fresh = Catalog()
        for each in done:
            carried_out(each, fresh)
        assert told(lasting.merge(spec, reserved)) == told(fresh.merge(spec, reserved))


def test_what_one_server_changes_leaves_the_parts_of_the_others_as_they_are() -> None:
    catalog = Catalog()
    for server in SERVERS:
        catalog.put(server, offer("t", "u"))
        catalog.set_listed(server, True)
    spec = endpoint(*SERVERS)
    before = catalog.merge(spec).parts
    catalog.put("b", offer("t"))
    after = catalog.merge(spec).parts
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    catalog.set_listed("b", False)
    again = catalog.merge(spec)
    assert [part.server for part in again.listed] == ["a", "a_b"]
    assert [one is other for one, other in zip(after, again.parts, strict=True)] == [True] * 3
