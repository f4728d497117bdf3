"""Logins at the console by API key, as from another machine: over TLS, at an outer address."""

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from metamcp_supervisor.console.site import OWN_STREAMS_MAX
from tests.live.console_abroad import ConsoleAbroad
from tests.live.gateway import fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M107")]

REFUSED = "this API key does not open the console\n"
MANY = "too many failed logins came from this address"
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def abroad() -> Iterator[ConsoleAbroad]:
    with ConsoleAbroad({"git": fake()}) as found:
        yield found


class Visitor:
    """A browser on another machine, which trusts the authority of the gateway."""

    def __init__(self, abroad: ConsoleAbroad) -> None:
        context = ssl.create_default_context(cafile=str(abroad.authority))
        self.http = http.client.HTTPSConnection(
            abroad.address, abroad.console_port, timeout=30, context=context
        )
        self.token = ""

    def ask(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] = OWN
    ) -> tuple[int, str]:
        given = {**headers, **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        self.http.request(method, path, body, given)
        answer = self.http.getresponse()
        return answer.status, answer.read().decode()

    def login(self, key: str) -> tuple[int, str]:
        status, body = self.ask("POST", "/login", json.dumps({"key": key}))
        if status == 200:
            self.token = json.loads(body)["token"]
        return status, body

    def news(self) -> http.client.HTTPResponse:
        """The open stream of news, after its first event."""
        self.http.request(
            "GET", "/events", headers={**OWN, "Authorization": f"Bearer {self.token}"}
        )
        answer = self.http.getresponse()
        assert answer.readline().startswith(b"event: news")
        return answer


Visit = Callable[[], Visitor]


@pytest.fixture
def visit(abroad: ConsoleAbroad) -> Iterator[Visit]:
    with ExitStack() as stack:

        def visitor() -> Visitor:
            found = Visitor(abroad)
            stack.callback(found.http.close)
            return found

        yield visitor


def test_a_key_opens_the_console_in_its_role_and_no_endpoint(
    abroad: ConsoleAbroad, visit: Visit
) -> None:
    made = abroad.key("ann", "console:viewer", "console:operator")
    visitor = visit()
    status, body = visitor.login(made["key"])
    assert status == 200, body
    assert json.loads(body)["role"] == "operator"
    assert "git" in visitor.ask("GET", "/f/servers")[1]
    assert abroad.listed(made["key"]) == 401, "fronts do not know it"
    assert "0 streams, 1 session and 0 calls" in visitor.ask("GET", f"/f/keys/{made['id']}")[1]

    status, body = visitor.ask("POST", "/f/keys", "do=NewKey&name=mine&scopes=console:admin")
    assert "&#39;keys-change&#39; needs the role admin, and this session is operator here" in body
    (session,) = (one for one in abroad.sessions() if one["key"] == made["id"])
    assert session["role"] == "operator"

    (login,) = (
        one for one in abroad.events() if one["what"] == "login" and made["id"] in one["cause"]
    )
    assert login["cause"].endswith(f"(operator, API key {made['id']}) from {abroad.address}")
    orders = abroad.orders()
    begun = f"'console-login {abroad.address} {session['id']} operator {made['id']}'"
    assert any(one.startswith(begun) and "carried out" in one for one in orders)
    for place in (*orders, abroad.log.read_text()):
        assert made["key"] not in place


def test_a_key_for_both_lists_tools_and_opens_the_console(
    abroad: ConsoleAbroad, visit: Visit
) -> None:
    made = abroad.key("both", "mcp:list", "console:viewer")
    assert abroad.listed(made["key"]) == 200
    assert visit().login(made["key"])[0] == 200


def test_what_ends_a_key_ends_its_sessions_and_their_streams(
    abroad: ConsoleAbroad, visit: Visit
) -> None:
    other = visit()
    assert other.login(abroad.key("stays", "console:viewer")["key"])[0] == 200
    for verb in ("revoke", "expire", "rotate"):
        made = abroad.key(f"ends-{verb}", "console:admin")
        follower, asker = visit(), visit()
        assert follower.login(made["key"])[0] == 200
        asker.token = follower.token
        assert asker.ask("GET", "/frame")[0] == 200
        stream = follower.news()
        abroad.keys(verb, made["id"])
        assert asker.ask("GET", "/frame")[0] == 401, verb
        assert b"event: ended" in stream.read(), "the gateway ends the stream"
        assert asker.login(made["key"]) == (403, REFUSED)
    assert other.ask("GET", "/frame")[0] == 200


def test_a_key_takes_no_stream_from_others_however_often_it_logs_in(
    abroad: ConsoleAbroad, visit: Visit
) -> None:
    key = abroad.key("greedy", "console:viewer")["key"]
    greedy = [visit() for _ in range(OWN_STREAMS_MAX + 1)]
    assert {visitor.login(key)[0] for visitor in greedy} == {200}
    for visitor in greedy[:-1]:
        visitor.news()
    status, why = greedy[-1].ask("GET", "/events")
    assert (status, "for you already" in why) == (503, True)
    other = visit()
    assert other.login(abroad.key("modest", "console:viewer")["key"])[0] == 200
    other.news()


def test_wrong_keys_get_one_sentence_and_are_counted_while_right_ones_still_open(
    abroad: ConsoleAbroad, visit: Visit
) -> None:
    right = abroad.key("late", "console:viewer")["key"]
    everything = abroad.key("programs")["key"]  # all scopes of endpoints
    revoked = abroad.key("gone", "console:viewer")
    abroad.keys("revoke", revoked["id"])
    visitor, said = visit(), set[tuple[int, str]]()
    for wrong in (right[:-1], "x", revoked["key"], everything, f"{right} ", "\udcff"):
        said.add(visitor.login(wrong))
    assert said <= {(403, REFUSED), (400, "A login is a JSON object with a link or a key.\n")}
    until(lambda: MANY in visitor.login("x")[1], "its address has failed often")
    assert visitor.login(right)[0] == 200, "nobody can lock out anybody"
    refused = [one["cause"] for one in abroad.events() if one["what"] == "order refused"]
    assert any(
        one.startswith(f"'console-login {abroad.address}'") and REFUSED.strip() in one
        for one in refused
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_login_that_another_page_sends_is_refused(
    abroad: ConsoleAbroad, visit: Visit, headers: dict[str, str]
) -> None:
    made = abroad.key("lent", "console:admin")
    body = json.dumps({"key": made["key"]})
    status, said = visit().ask("POST", "/login", body, headers)
    assert (status, said) == (403, "Only pages of the console itself may ask for this.\n")
    host = {**OWN, "Host": "evil.example"}
    assert visit().ask("POST", "/login", body, host)[0] == 421
    assert not [one for one in abroad.sessions() if one["key"] == made["id"]]


def test_a_key_in_a_url_or_a_large_body_opens_nothing(abroad: ConsoleAbroad, visit: Visit) -> None:
    made = abroad.key("shown", "console:admin")
    visitor = visit()
    assert visitor.ask("GET", f"/login?key={made['key']}")[0] == 405
    assert visitor.ask("POST", f"/login?key={made['key']}", "{}")[0] == 403
    assert visitor.ask("GET", "/frame", headers={**OWN, "X-API-Key": made["key"]})[0] == 401
    assert visitor.ask("POST", "/login", json.dumps({"key": "x" * 8192}))[0] == 413
