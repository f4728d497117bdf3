"""The header policy, rule by rule. The refusals as clients see them are in test_http."""

import pytest

from metamcp_worker.access.door import Denial
from metamcp_worker.front_calls.request_facts import (
    API,
    MCP,
    MESSAGES,
    SSE,
    Route,
)
from metamcp_worker.front_clients.header_policy import (
    HeaderPolicy,
    RequestFacts,
    TrustedProxies,
    is_confined,
    is_json,
    parse_accept,
    prefers_stream,
)
from metamcp_worker.http.request_head import Headers, place_of
from tests.hosts import MORE_THAN_A_HOST

PATHS = {
    b"/mcp": Route("default"),
    b"/metamcp/a/mcp": Route("a"),
    b"/sse": Route("default", SSE),
    b"/messages": Route("default", MESSAGES),
    b"/api": Route("default", API),
    b"/api/": Route("default", API),
}
POLICY = HeaderPolicy(("localhost", "[::1]", "Box.example"), PATHS)
POST: Headers = [
    (b"host", b"localhost:6270"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]


def test_a_request_that_passes_gives_its_facts_without_blanks() -> None:
    headers = [
        *POST,
        (b"mcp-protocol-version", b"2026-07-28 \t"),
        (b"mcp-method", b"\ttools/call"),
        (b"mcp-name", b"t"),
        (b"mcp-session-id", b"s"),
        (b"x-other", b"1"),
        (b"x-other", b"2"),
    ]
    facts = POLICY.check("POST", b"/metamcp/a/mcp?x=/mcp", headers)
    assert isinstance(facts, RequestFacts)
    assert (facts.endpoint, facts.accepts_sse, facts.repeated) == ("a", True, b"")
    assert (facts.version, facts.session) == (b"2026-07-28", b"s")
    assert (facts.method, facts.name) == (b"tools/call", b"t")


@pytest.mark.parametrize(
    ("method", "target", "kind", "rest", "query"),
    [
        ("GET", b"/mcp?a", MCP, b"", b"a"),
        ("GET", b"/sse?a", SSE, b"", b"a"),
        ("POST", b"/messages?session_id=1", MESSAGES, b"", b"session_id=1"),
        ("GET", b"/api", API, b"", b""),
        ("POST", b"/mcp/", MCP, b"", b""),
        ("GET", b"/sse/?a", SSE, b"", b"a"),
        ("POST", b"http://localhost/messages/?session_id=1", MESSAGES, b"", b"session_id=1"),
        ("POST", b"/api/tools/a%2Fb?x=1?y", API, b"tools/a%2Fb", b"x=1?y"),
        ("GET", b"http://localhost/api//?q", API, b"/", b"q"),
    ],
)
def test_a_path_leads_to_an_endpoint_and_a_kind(
    method: str, target: bytes, kind: str, rest: bytes, query: bytes
) -> None:
    facts = POLICY.check(method, target, POST)
    assert isinstance(facts, RequestFacts)
    assert (facts.endpoint, facts.kind) == ("default", kind)
    assert (facts.rest, facts.query) == (rest, query)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", b"/sse", 405),  # what newer clients try first, and then know which era it is
        ("DELETE", b"/sse", 405),
        ("GET", b"/messages", 405),
        ("DELETE", b"/api", 405),
        ("GET", b"/apis", 404),
        ("GET", b"/messages/", 405),
        ("GET", b"/mcp//", 404),
        ("GET", b"/", 404),
    ],
)
def test_each_kind_of_path_has_its_own_methods(method: str, target: bytes, status: int) -> None:
    refusal = POLICY.check(method, target, POST)
    assert isinstance(refusal, Denial)
    assert refusal.status == status


def test_what_is_posted_to_a_stream_needs_no_accept() -> None:
    headers = [*POST[:2], (b"accept", b"text/plain")]
    assert isinstance(POLICY.check("POST", b"/messages", headers), RequestFacts)
    assert isinstance(POLICY.check("POST", b"/mcp", headers), Denial)
    assert isinstance(POLICY.check("POST", b"/messages", [POST[0], POST[2]]), Denial)


def test_a_repeated_routing_header_is_left_to_the_era_to_refuse() -> None:
    facts = POLICY.check("POST", b"/mcp", [*POST, (b"mcp-name", b"a"), (b"mcp-name", b"a")])
    assert isinstance(facts, RequestFacts)
    assert facts.repeated == b"mcp-name"


@pytest.mark.parametrize("name", [b"host", b"origin", b"content-type", b"mcp-session-id"])
def test_any_other_header_that_decides_must_not_be_repeated(name: bytes) -> None:
    headers = [header for header in POST if header[0] != name]
    refusal = POLICY.check("POST", b"/mcp", [*headers, (name, b"localhost"), (name, b"localhost")])
    assert isinstance(refusal, Denial)
    assert (refusal.status, refusal.reason) == (400, "repeated_header")


def test_who_asks_is_checked_before_what_is_asked() -> None:
    refusals = [
        POLICY.check("PUT", b"/nope", [(b"host", b"evil"), (b"origin", b"http://evil")]),
        POLICY.check("PUT", b"/nope", [(b"host", b"localhost"), (b"origin", b"http://evil")]),
        POLICY.check("PUT", b"/nope", [(b"host", b"localhost")]),
        POLICY.check("PUT", b"/mcp", [(b"host", b"localhost")]),
        POLICY.check("POST", b"/mcp", [(b"host", b"localhost"), (b"accept", b"a/b")]),
    ]
    reasons = [one.reason for one in refusals if isinstance(one, Denial)]
    assert reasons == ["host_foreign", "origin", "path", "method", "content_type"]


def test_only_a_post_needs_a_content_type() -> None:
    for method in ("GET", "DELETE", "OPTIONS"):
        assert isinstance(POLICY.check(method, b"/mcp", [(b"host", b"localhost")]), RequestFacts)


def test_names_of_hosts_are_compared_in_one_spelling() -> None:
    for host in (b"BOX.EXAMPLE", b"[0::1]:80", b"[::1]", b"LocalHost"):
        headers = [(b"host", host), (b"origin", b"http://" + host)]
        assert isinstance(POLICY.check("GET", b"/mcp", headers), RequestFacts)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"box:8443", 200),
        (b"box", 421),
        (b"box:8444", 421),
        (b"a.example.com", 200),
        (b"a.b.example.com:80", 200),
        (b"example.com", 421),
        (b"badexample.com", 421),
        (b"secure.example.org", 200),
        (b"secure.example.org:444", 421),
    ],
)
def test_allowed_names_may_have_ports_and_stand_for_all_below(host: bytes, status: int) -> None:
    policy = HeaderPolicy(("box:8443", "*.example.com", "secure.example.org:443"), PATHS)
    found = policy.check("GET", b"/mcp", [(b"host", host)])
    assert (found.status if isinstance(found, Denial) else 200) == status
    origin = [(b"host", b"a.example.com"), (b"origin", b"https://" + host)]
    found = policy.check("GET", b"/mcp", origin)
    assert (found.status if isinstance(found, Denial) else 200) == (403 if status == 421 else 200)


def test_who_asks_by_a_foreign_name_is_told_the_key_that_allows_it() -> None:
    found = POLICY.check("GET", b"/mcp", [(b"host", b"gateway.example.com:80")])
    assert isinstance(found, Denial)
    assert "gateway.example.com" in found.message
    assert "allowed_hosts" in found.message


PROXIES = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "2001:db8::/32"])
X_FORWARDED_FOR, FORWARDED = b"x-forwarded-for", b"forwarded"


@pytest.mark.parametrize(
    ("peer", "values", "client"),
    [
        ("192.0.2.7", ["203.0.113.9"], "192.0.2.7"),
        ("", ["203.0.113.9"], ""),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8::1", ["2001:db9::5"], "2001:db9::5"),
        ("10.0.0.1", ["203.0.113.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9,10.0.0.2 ,10.0.0.3"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9", "10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db9::5]:4711"], "2001:db9::5"),
        ("10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, not-an-address, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9," + "10.0.0.2," * 40 + "10.0.0.3"], "10.0.0.2"),
    ],
)
def test_a_client_behind_trusted_proxies_is_the_last_address_that_is_none_of_them(
    peer: str, values: list[str], client: str
) -> None:
    headers = [(b"host", b"x"), *((X_FORWARDED_FOR, value.encode()) for value in values)]
    assert PROXIES.find_client(peer, headers) == client


@pytest.mark.parametrize(
    ("value", "client"),
    [
        ("for=203.0.113.9", "203.0.113.9"),
        ('For="203.0.113.9:80";proto=http;by=10.0.0.1', "203.0.113.9"),
        ('proto=https; for="[2001:db9::5]:4711", for=10.0.0.2', "2001:db9::5"),
        ("for=203.0.113.9, by=10.0.0.2", "10.0.0.1"),
        ("for=203.0.113.9, for=_hidden", "10.0.0.1"),
        ("before=203.0.113.9", "10.0.0.1"),
        ('proto=http;host="x;for=1.2.3.4";for=203.0.113.9', "203.0.113.9"),
        ('for=203.0.113.9;host="x,for=1.2.3.4"', "203.0.113.9"),
        ('for=203.0.113.9;host="a\\",for=1.2.3.4"', "203.0.113.9"),
        ('for="1.2.3.4, for=203.0.113.9', "10.0.0.1"),
        ("for=1.2.3.4 for=203.0.113.9", "10.0.0.1"),
        (";", "10.0.0.1"),
    ],
)
def test_the_header_of_the_standard_is_read_too(value: str, client: str) -> None:
    assert PROXIES.find_client("10.0.0.1", [(FORWARDED, value.encode())]) == client


def test_of_two_headers_that_do_not_agree_a_client_may_have_written_one() -> None:
    ours = X_FORWARDED_FOR, b"203.0.113.9"
    assert PROXIES.find_client("10.0.0.1", [ours, (FORWARDED, b"for=203.0.113.1")]) == "10.0.0.1"
    assert PROXIES.find_client("10.0.0.1", [ours, (FORWARDED, b"for=203.0.113.9")]) == "203.0.113.9"


def test_without_trusted_proxies_no_header_says_where_a_client_is() -> None:
    headers = [(X_FORWARDED_FOR, b"203.0.113.9")]
    assert TrustedProxies().find_client("127.0.0.1", headers) == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "confined"),
    [
        ("127.0.67.67", True), ("::ffff:127.0.67.67", True), ("127.0.0.1", False), ("::1", False),
        ("", False), ("127.0.67.6", False),
    ],
)  # fmt: skip
def test_a_confined_server_is_known_by_its_address(address: str, confined: bool) -> None:
    assert is_confined(address) is confined


@pytest.mark.parametrize(
    ("value", "host"),
    [
        (b"a", b"a"),
        (b"A.b-c_d:0", b"a.b-c_d"),
        (b"127.0.0.1:65535", b"127.0.0.1"),
        (b"[FE80::1]:1", b"[fe80::1]"),
        (b"", None),
        (b":80", None),
        (b"a:", None),
        (b"a:80:80", None),
        (b"a:65536", None),
        (b"a:-1", None),
        (b"a b", None),
        (b"a/b", None),
        (b"a?x=", None),
        (b"a#x", None),
        (b"u@a", None),
        (b"a,b", None),
        (b".a", None),
        (b"a.", None),
        (b"::1", None),
        (b"[::1", None),
        (b"[1.2.3.4]", None),
        (b"[::1%25eth0]", None),
        (b"\xc3\xa4", None),
        (b"a\n", None),
    ],
)
def test_a_host_is_a_name_or_an_address_and_perhaps_a_port(
    value: bytes, host: bytes | None
) -> None:
    place = place_of(value)
    assert (place and place[0]) == host


@pytest.mark.promise("M99")
@pytest.mark.parametrize("value", MORE_THAN_A_HOST)
def test_more_than_a_host_is_not_a_name_of_the_gateway(value: str) -> None:
    found = POLICY.check("GET", b"/metamcp/default/mcp", [(b"host", value.encode())])
    assert isinstance(found, Denial)
    assert (found.status, found.reason) == (400, "host")


@pytest.mark.parametrize(
    ("value", "json", "sse"),
    [
        (b"application/json, text/event-stream", True, True),
        (b"text/event-stream;q=0.9,application/json;charset=utf-8", True, True),
        (b"*/*", True, True),
        (b"application/*", True, False),
        (b"text/*", False, True),
        (b"APPLICATION/JSON", True, False),
        (b"application/json;q=0", False, False),
        (b"application/json; q=0.000, */*;q=0.1", True, True),
        (b"application/jsonx", False, False),
        (b"text/html", False, False),
        (b"", False, False),
    ],
)
def test_accept_is_read_as_a_list_of_media_ranges(value: bytes, json: bool, sse: bool) -> None:
    assert parse_accept(value) == (json, sse)


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        (b"application/json, text/event-stream", False),
        (b"text/event-stream, application/json", True),
        (b"Text/Event-Stream ;q=1, */*", True),
        (b"*/*", False),
        (b"", False),
    ],
)
def test_who_names_event_streams_first_would_rather_read_one(value: bytes, streams: bool) -> None:
    assert prefers_stream(value) == streams


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (b"application/json", True),
        (b"Application/JSON ; charset=UTF-8", True),
        (b'application/json;charset="utf-8"', True),
        (b"application/json;", True),
        (b"application/json; charset=latin-1", False),
        (b"application/json; x=y", False),
        (b"application/json-rpc", False),
        (b"application/vnd.x+json", False),
        (b"text/json", False),
        (b"", False),
    ],
)
def test_the_content_type_is_exactly_json(value: bytes, good: bool) -> None:
    assert is_json(value) is good


def test_a_repeated_version_is_never_hidden_behind_another_repeated_header() -> None:
    versions = [(b"mcp-protocol-version", b"2025-11-25"), (b"mcp-protocol-version", b"2026-07-28")]
    names = [(b"mcp-name", b"a"), (b"mcp-name", b"a")]
    for headers in ([*versions, *names], [*names, *versions]):
        facts = POLICY.check("POST", b"/mcp", [*POST, *headers])
        assert isinstance(facts, RequestFacts)
        assert facts.repeated == b"mcp-protocol-version"
