"""What endpoints declare, in all four combinations of eras."""

import itertools
import json
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.catalog.catalog import Catalog
from metamcp_worker.catalog.offers import DeclaredCapabilities, of_many, of_one, sole_claims
from metamcp_worker.catalog.views import View
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from tests.worker.front.offers import LEGACY, MODERN, endpoint, offer

CELLS = pytest.mark.parametrize(
    ("client_modern", "server_modern"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["L->L", "L->M", "M->L", "M->M"],
)
TASKS = "io.modelcontextprotocol/tasks"
LISTED = {"listChanged": True}


def declared(members: dict[str, Any], *, modern: bool) -> DeclaredCapabilities:
    return DeclaredCapabilities.read(Raw(json.dumps(members).encode()), legacy=not modern)


def many(*servers: DeclaredCapabilities, lists: str = "tools", modern: bool) -> dict[str, Any]:
    routed = sole_claims({str(number): server for number, server in enumerate(servers)})
    found: dict[str, Any] = codec.value(
        of_many(servers, lists.split(), modern=modern, routed=routed)
    )
    return found


@pytest.mark.promise("M20")
@CELLS
def test_the_only_server_is_declared_as_it_declares_itself(
    client_modern: bool, server_modern: bool
) -> None:
    raw = (
        b'{"x-own":{"n": 1.0},"tools":{"listChanged": true,"x":1.0},'
        b'"resources":{"subscribe": true},"logging":{ },"completions":{"y":[]},'
        b'"experimental":{"z":1.0},"extensions":{"a/ui":{ }},'
        b'"prompts":{"listChanged":false}}'
    )
    server = DeclaredCapabilities.read(Raw(raw), legacy=not server_modern)
    expected = raw.replace(b'"subscribe": true}', b'"subscribe":true,"listChanged":true}')
    expected = expected.replace(b'"listChanged":false', b'"listChanged":true')
    assert of_one(server, ["tools"], modern=client_modern) == expected


@pytest.mark.promise("M24")
@CELLS
def test_tasks_are_declared_within_an_era_only(client_modern: bool, server_modern: bool) -> None:
    core: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    server = declared({"tasks": core, "extensions": {TASKS: {}, "a/b": {}}}, modern=server_modern)
    one = codec.value(of_one(server, [], modern=client_modern))
    both = many(server, declared({}, modern=server_modern), modern=client_modern)
    assert one.get("tasks") == (None if client_modern or server_modern else core)
    assert (TASKS in one["extensions"]) is (client_modern and server_modern)
    assert (TASKS in both["extensions"]) is (client_modern and server_modern)
    assert "a/b" in one["extensions"]
    assert "a/b" in both["extensions"]
    routed: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert both.get("tasks") == (None if client_modern or server_modern else routed)


def test_an_extension_that_does_not_cross_leaves_no_empty_shell() -> None:
    server = declared({"extensions": {TASKS: {}}}, modern=True)
    assert of_one(server, [], modern=False) == b"{}"
    assert many(server, lists="", modern=False) == {}


@pytest.mark.promise("M20")
@CELLS
def test_several_servers_declare_what_one_of_them_can_do(
    client_modern: bool, server_modern: bool
) -> None:
    one = declared({"tools": {}, "logging": {}, "experimental": {"k": 1, "l": 1}}, modern=True)
    two = declared(
        {
            "resources": {"subscribe": True}, "completions": {}, "x-own": {},
            "experimental": {"k": 2}, "extensions": {"a/b": {"n": 1.0}},
        },
        modern=server_modern,
    )  # fmt: skip
    assert many(one, two, lists="tools resources", modern=client_modern) == {
        "tools": LISTED,
        "resources": {"subscribe": True, "listChanged": True},
        "completions": {},
        "logging": {},
        "x-own": {},
        "experimental": {"l": 1},
        "extensions": {"a/b": {"n": 1.0}},
    }


@CELLS
def test_nothing_is_declared_that_no_server_has(client_modern: bool, server_modern: bool) -> None:
    server = declared({"tools": None, "resources": [], "logging": 7}, modern=server_modern)
    assert many(server, server, lists="", modern=client_modern) == {}
    quiet = declared({"resources": {"subscribe": False}}, modern=server_modern)
    assert many(quiet, lists="resources", modern=client_modern) == {"resources": LISTED}
    broken = DeclaredCapabilities.read(Raw(b"[]"), legacy=not server_modern)
    assert of_one(broken, [], modern=client_modern) == b"{}"


def test_tasks_that_nobody_can_begin_are_not_declared() -> None:
    listing = declared({"tasks": {"list": {}, "cancel": {}}}, modern=False)
    assert many(listing, modern=False) == {"tools": LISTED}


def view(*servers: str, **offers: ServerCatalogue) -> View:
    catalog = Catalog()
    for server, catalogue in offers.items():
        catalog.put(server, catalogue)
        catalog.set_listed(server, True)
    spec = endpoint(*(servers or offers))
    return View(catalog.merge(spec), spec, "1")


def test_a_server_of_which_nothing_is_known_may_have_any_list() -> None:
    for early in (view("a", "b", a=offer("x")), view("a")):
        for modern in (False, True):
            assert codec.value(early.capabilities(modern=modern)) == {
                "tools": LISTED, "prompts": LISTED, "resources": {"subscribe": True, **LISTED},
                "completions": {}, "logging": {},
            }  # fmt: skip


@pytest.mark.parametrize("protocol", [LEGACY, MODERN])
def test_one_server_is_declared_raw_and_two_are_merged(protocol: str) -> None:
    capabilities = Raw(b'{"tools":{"listChanged":true,"x":1},"x-own":{}}')
    server = ServerCatalogue(protocol=protocol, capabilities=capabilities)
    alone = view(a=server)
    assert alone.capabilities(modern=True) == bytes(capabilities)
    assert alone.capabilities(modern=True) is alone.capabilities(modern=True)
    merged = {"tools": LISTED, "x-own": {}}
    assert codec.value(view(a=server, b=offer()).capabilities(modern=True)) == merged
    assert codec.value(view(a=server, b=server).capabilities(modern=True)) == {"tools": LISTED}


#: What servers declare beyond the protocol, and methods that they have for it.
BEYOND: dict[str, tuple[dict[str, Any], list[str]]] = {
    "skills": (
        {"extensions": {"io.modelcontextprotocol/skills": {}}}, ["skills/list", "skills/get"],
    ),
    "vendor": ({"extensions": {"com.example/search": {}}}, ["com.example/search", "search/all"]),
    "events": ({"events": {}}, ["events/list", "events/subscribe"]),
    "trial": ({"experimental": {"beta": {}}}, ["beta", "beta/a/b"]),
    "apps": ({"extensions": {"io.modelcontextprotocol/ui": {}}}, []),
    "plain": ({"tools": {}}, []),
}  # fmt: skip


@pytest.mark.promise("M20")
@pytest.mark.parametrize("protocol", [LEGACY, MODERN])
@pytest.mark.parametrize("servers", list(itertools.combinations(BEYOND, 2)), ids="-".join)
def test_what_one_of_several_servers_declares_is_announced_and_led_to_it(
    servers: tuple[str, str], protocol: str
) -> None:
    catalogues = {
        name: ServerCatalogue(protocol=protocol, capabilities=Raw(codec.dump(BEYOND[name][0])))
        for name in servers
    }
    seen = view(**catalogues)
    for modern in (False, True):
        announced = codec.value(seen.capabilities(modern=modern))
        for name in servers:
            declared, methods = BEYOND[name]
            kept = {key: value for key, value in declared.items() if key != "tools"}
            assert {
                key: {inner: announced[key][inner] for inner in kept[key]} if kept[key] else {}
                for key in kept
            } == kept
            for method in methods:
                owner = seen.of(modern=modern).claimant(method)
                assert owner is not None
                assert owner.server == name
        assert seen.of(modern=modern).claimant("unknown/method") is None


@pytest.mark.promise("M20")
@pytest.mark.parametrize("name", ["skills", "vendor", "events", "trial"])
def test_what_two_servers_declare_alike_is_neither_announced_nor_led_to_one(name: str) -> None:
    members, methods = BEYOND[name]
    server = ServerCatalogue(protocol=MODERN, capabilities=Raw(codec.dump(members)))
    seen = view(a=server, b=server, c=offer("t"))
    assert codec.value(seen.capabilities(modern=True)) == {"tools": LISTED}
    assert [seen.merged.claimant(method) for method in methods] == [None for _ in methods]


def test_a_credential_is_announced_what_it_may_ask_for() -> None:
    catalog = Catalog()
    for name in ("skills", "vendor", "plain"):
        members = Raw(codec.dump(BEYOND[name][0]))
        catalog.put(name, ServerCatalogue(protocol=MODERN, capabilities=members))
    spec = endpoint("skills", "vendor", "plain")
    announced = View(catalog.merge(spec), spec, "1", "key:a").capabilities(modern=True)
    assert codec.value(announced)["extensions"] == {"io.modelcontextprotocol/skills": {}}


def test_no_server_claims_a_method_of_the_protocol() -> None:
    members: dict[str, Any] = {
        "extensions": {"evil/tools": {}, "x/server": {}},
        "experimental": {"ping": {}},
    }
    server = ServerCatalogue(protocol=MODERN, capabilities=Raw(codec.dump(members)))
    seen = view(a=server, b=offer("t"))
    for method in ("tools/new", "server/x", "ping", "ping/x"):
        assert seen.merged.claimant(method) is None
    assert seen.merged.claimant("evil/tools/x") is not None
