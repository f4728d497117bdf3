"""Whose a resource is, and under which URI an endpoint exposes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.catalog.catalog import Catalog, MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.uris import CONTENTS_MAX, URI_BYTES_MAX, in_contents, under
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from tests.worker.front.offers import MODERN, endpoint, offer, resource, template


def merged(**offers: ServerCatalogue) -> MergedCatalog:
    """One endpoint with these servers, in their order."""
    found = Catalog()
    for server, catalogue in offers.items():
        found.put(server, catalogue)
        found.set_listed(server, True)
    return found.merge(endpoint(*offers))


def listed(found: MergedCatalog, kind: str = "resources") -> list[str]:
    return [entry.key for entry in found.lists[kind]]


def leads_to(found: MergedCatalog, uri: str) -> tuple[str, str] | None:
    """The server, and what the resource is called there."""
    owner = found.resource(uri)
    if owner is None:
        return None
    return owner.server, codec.value(owner.original) if owner.original else uri


@pytest.mark.promise("M20", "M21")
@pytest.mark.parametrize(
    ("uri", "exposed"),
    [
        ("ui://clock/app.html", "ui://two/clock/app.html"),
        ("file:///a/b", "file://two//a/b"),
        ("note:1", "note:two/1"),
        ("x+y.z-1://h?q", "x+y.z-1://two/h?q"),
    ],
)
def test_the_first_server_keeps_a_uri_and_the_second_is_read_under_another(
    uri: str, exposed: str
) -> None:
    found = merged(one=offer(resources=[resource(uri)]), two=offer(resources=[resource(uri)]))
    assert listed(found) == [uri, exposed]
    assert leads_to(found, uri) == ("one", uri)
    assert leads_to(found, exposed) == ("two", uri)
    assert found.notes == ()


def test_a_uri_that_is_taken_even_with_the_servers_name_gets_a_tail() -> None:
    other = offer(resources=[resource("a:1")])
    found = merged(one=offer(resources=[resource("a:1"), resource("a:two/1")]), two=other)
    first, second, third = listed(found)
    assert (first, second) == ("a:1", "a:two/1")
    assert third.startswith("a:two~")
    assert leads_to(found, second) == ("one", second)
    assert leads_to(found, third) == ("two", "a:1")


def test_what_cannot_be_exposed_is_left_out_with_a_note() -> None:
    long = "file:///" + "x" * URI_BYTES_MAX
    barely = "a:" + "x" * (URI_BYTES_MAX - 2)
    one = offer(resources=[resource(long), resource(barely)])
    found = merged(one=one, two=offer(resources=[resource(barely)]))
    assert listed(found) == [barely]
    first, second = found.notes
    assert first == f"one lists a URI of more than {URI_BYTES_MAX} bytes"
    assert second.startswith("two also lists 'a:xxx")
    assert second.endswith("it stays with one")


@pytest.mark.promise("M20", "M21")
@pytest.mark.parametrize(
    ("text", "exposed", "uri", "own"),
    [
        ("file:///{+path}", "file://two//{+path}", "file://two//etc/x", "file:///etc/x"),
        ("db://{table}/{row}", "db://two/{table}/{row}", "db://two/t/7", "db://t/7"),
        ("{scheme}://x", "two/{scheme}://x", "two/a://x", "a://x"),
    ],
)
def test_templates_of_two_servers_lead_to_their_own(
    text: str, exposed: str, uri: str, own: str
) -> None:
    found = merged(one=offer(templates=[template(text)]), two=offer(templates=[template(text)]))
    assert listed(found, "resourceTemplates") == [text, exposed]
    assert leads_to(found, uri) == ("two", own)
    assert leads_to(found, own) == ("one", own)
    owner = found.resource_or_template(exposed)
    assert owner is not None
    assert (owner.server, codec.text(owner.original)) == ("two", text)
    assert found.resource_or_template(text) == Owner("one")


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("file:///notes/today", "notes"),
        ("file:///notes/2026/today", "files"),
        ("file:///", "files"),
        ("db://main/users?limit=3", "db"),
        ("db://main/users", "db"),
        ("http://elsewhere/", None),
        ("xfile:///notes/today", None),
        ("fixed://one", "db"),
    ],
)
def test_a_uri_that_is_not_listed_goes_to_the_most_specific_template(
    uri: str, server: str | None
) -> None:
    found = merged(
        files=offer(templates=[template("file:///{+path}")]),
        notes=offer(templates=[template("file:///notes/{day}")]),
        db=offer(templates=[template("db://main/{table}{?limit}"), template("fixed://one")]),
    )
    owner = found.resource(uri)
    assert (owner.server if owner else None) == server


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("https://one.example/b", "one"),
        ("https://two.example/b", "two"),
        ("https://three.example/b", None),
        ("db://views/x", "two"),
        ("test://any", "one"),
        ("file:///b", None),
        ("note:2", "one"),
        ("no scheme", None),
    ],
)
def test_a_uri_that_nobody_lists_goes_where_everything_of_its_kind_belongs(
    uri: str, server: str | None
) -> None:
    one = ("https://one.example/a", "file:///a", "note:1")
    two = ("https://two.example/a", "file:///c", "db://tables")
    found = merged(
        one=offer(resources=list(map(resource, one)), templates=[template("test://{host}/x")]),
        two=offer(resources=list(map(resource, two))),
    )
    owner = found.resource(uri)
    assert (owner.server if owner else None) == server


@pytest.mark.promise("M98")
def test_a_hostile_template_does_not_hold_up_matching() -> None:
    evil = template("x:" + "{+a}a" * 200 + "b")
    found = merged(a=offer(templates=[evil]), b=offer(resources=[resource("x:1")]))
    assert found.resource("x:" + "a" * 2000) is None


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_can_be_a_template_and_a_uri(text: str, uri: str) -> None:
    found = merged(a=offer(templates=[template(text)]), b=offer(templates=[template(text)]))
    assert (
        found.resource(uri) is None or found.resource(uri) == Owner("a") or text in under("b", "")
    )
    assert found.resource_or_template(text) is not None


@given(st.text(max_size=60).map("note:".__add__))
def test_any_uri_of_two_servers_leads_to_both(uri: str) -> None:
    found = merged(a=offer(resources=[resource(uri)]), b=offer(resources=[resource(uri)]))
    assert [leads_to(found, exposed) for exposed in listed(found)] == [("a", uri), ("b", uri)]


def test_the_only_server_of_an_endpoint_gets_every_other_uri() -> None:
    assert merged(a=offer(protocol=MODERN)).resource("any://thing") == Owner("a", legacy=False)
    assert merged(a=offer(), b=offer()).resource("any://thing") is None


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("sent", "received"),
    [
        # The resource itself, another one that both servers have, and one that only the second has.
        ([b"ui://a", b"ui://b", b"ui://c"], [b"ui://two/a", b"ui://two/b", b"ui://c"]),
        (
            [b"ui://t/7", b"ui://none", b"two/a", b""],
            [b"ui://two/t/7", b"ui://none", b"two/a", b""],
        ),
    ],
)
def test_a_result_names_resources_as_the_endpoint_does(
    sent: list[bytes], received: list[bytes]
) -> None:
    resources, templates = [resource("ui://a"), resource("ui://b")], [template("ui://t/{x}")]
    second = offer(resources=[*resources, resource("ui://c")], templates=templates)
    known = merged(one=offer(resources=resources, templates=templates), two=second)
    owner = known.resource("ui://two/a")
    assert owner is not None
    text = b'{"ttlMs":1.0,"contents":[%b]}'
    entries = [
        b",".join(b'{"uri":"%b","text":"\\u00e9"}' % uri for uri in uris)
        for uris in (sent, received)
    ]
    assert in_contents(text % entries[0], "ui://two/a", owner, known.resource) == text % entries[1]


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b'{"contents":{}}', b'{"contents":[1]}',
        b'{"contents":[%b]}' % b",".join([b'{"uri":"a:1"}'] * (CONTENTS_MAX + 1)),
    ],
)  # fmt: skip
def test_what_is_no_result_of_a_read_or_a_huge_one_stays_as_it_is(body: bytes) -> None:
    known = merged(one=offer(resources=[resource("a:1")]), two=offer(resources=[resource("a:1")]))
    owner = known.resource("a:two/1")
    assert owner is not None
    assert in_contents(body, "a:two/1", owner, known.resource) == body
