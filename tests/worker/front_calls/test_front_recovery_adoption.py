"""Sessions that one front process leaves to the next."""

import http.client

import pytest

from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.frames import CallFrame, Result
from metamcp_worker.ipc.messages import AdoptSessions, SessionKept, SessionRecord, SessionsOver
from tests.worker.front.peers import WAIT_S
from tests.worker.front.process import Front, Worker, front

pytestmark = pytest.mark.process
PROTOCOL = "2025-11-25"


class Answer:
    """To one request of a session."""

    def __init__(self, one: Front, method: str, session: str = "", **params: object) -> None:
        one.listen()
        host, port = one.listener.getsockname()
        self.http = http.client.HTTPConnection(host, port, timeout=WAIT_S)
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **({"Mcp-Session-Id": session} if session else {}),
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        verb = "DELETE" if method == "DELETE" else "POST"
        body = b"" if verb == "DELETE" else codec.dump(message)
        self.http.request(verb, "/metamcp/default/mcp", body, headers)

    def status(self) -> int:
        answer = self.http.getresponse()
        self.session = answer.getheader("mcp-session-id") or ""
        self.body = answer.read()
        self.http.close()
        return answer.status


def opened(one: Front) -> str:
    """The id of a new session."""
    answer = Answer(one, "initialize", protocolVersion=PROTOCOL, capabilities={})
    assert answer.status() == 200, answer.body
    return answer.session


def news(one: Front, session: str) -> list[str]:
    """The methods of all that is told on the stream of a session until the client ends it."""
    host, port = one.listener.getsockname()
    stream = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": session}
    stream.request("GET", "/metamcp/default/mcp", headers=headers)
    answer = stream.getresponse()
    assert Answer(one, "DELETE", session).status() == 200
    lines = answer.read().splitlines()
    stream.close()
    said = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
    return [codec.envelope(one).method or "" for one in said]


def record(session: str, **more: object) -> bytes:
    fields = {"id": session, "endpoint": "default", "protocol": PROTOCOL, "caller": "{}"}
    return codec.dump({**fields, **more})


def adopt(one: Front, *records: bytes) -> None:
    one.send(AdoptSessions(), [packets.blob(b"[" + b",".join(records) + b"]")])


def subscribed(worker: Worker) -> CallFrame:
    call = worker.call()
    assert call.method == "resources/subscribe"
    worker.write(Result(call.id, b"{}"))
    return call


@pytest.mark.promise("M79")
def test_a_session_goes_on_in_the_front_that_comes_after() -> None:
    with front() as one:
        one.serve()
        session = opened(one)
        one.heard(SessionKept)
        kept = one.blob
        assert codec.decode_as(SessionRecord, kept).id == session
    with front() as two:
        two.serve()
        adopt(two, kept)
        assert Answer(two, "tools/list", session).status() == 200
        assert Answer(two, "tools/list", "another").status() == 404


@pytest.mark.promise("M79")
def test_what_a_session_watched_is_asked_for_by_the_next_front() -> None:
    with front() as one:
        one.serve()
        one.offer("git")
        worker = one.attach("git")
        adopt(one, record("s-1", subscriptions=["file:///a"]))
        one.listen()
        assert subscribed(worker).params == b'{"uri":"file:///a"}'


def test_a_client_that_could_not_hear_of_other_lists_hears_of_them_once() -> None:
    with front() as one:
        one.serve()
        one.offer("git", "status")
        for untold in (True, False):
            records = packets.blob(b"[%b]" % record(f"s-{untold}"))
            one.send(AdoptSessions(untold=untold), [records])
        one.listen()
        assert news(one, "s-True") == ["notifications/tools/list_changed"]
        assert news(one, "s-False") == []


def test_the_end_of_a_session_is_told() -> None:
    with front() as one:
        one.serve()
        session = opened(one)
        assert Answer(one, "DELETE", session).status() == 200
        assert one.heard(SessionsOver).ids == (session,)


def test_sessions_that_cannot_be_read_or_come_too_early_harm_nobody() -> None:
    with front() as one:
        adopt(one, record("early"))
        one.serve()
        one.send(AdoptSessions(), [packets.blob(b'[{"id":7}]')])
        one.send(AdoptSessions())
        adopt(one, record("right"))
        assert Answer(one, "tools/list", "early").status() == 404
        assert Answer(one, "tools/list", "right").status() == 200
