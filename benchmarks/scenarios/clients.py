"""Clients that send what real ones send, each beside the luckiest client of its era.

The luckiest client has one session for all callers, and its requests have nearly the same length
and no header of their own. The others differ from it in one thing each: their lengths, their
sessions, a header, a key, TLS. All of them are called in turns, beside the ceiling.
"""

import http.client
import json
import ssl
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import load, rigs, roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most
from benchmarks.load import Speech
from benchmarks.scenarios import door
from benchmarks.turns import in_turns
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway

TITLE = "Clients of all kinds beside the luckiest one"
CALLERS = 64
ROUNDS, SHARE = 7, 2 / 3
LENGTHS = 399
"""Bytes that a request may have more than another one."""
SESSIONS = 64
BAR, TRACED_BAR = 1.15, 1.2
LUCKIEST, TLS = "luckiest", "TLS"
TRACED = "a traceparent"
CPU = "cpu us/call"
"""It leads: the spread is shown of what is judged."""
PATHS = {"open": "/metamcp/open/mcp", "keys": "/metamcp/keys/mcp", "tls": "/mcp"}
CREDENTIAL = {"Authorization": "Bearer of-an-endpoint-that-asks-for-none-0123456789"}


@dataclass(frozen=True, slots=True)
class Kind:
    """Callers of one gateway. With `own`, each of them has a session of its own."""

    port: int
    pids: roles.Pids
    said: Sequence[Speech]
    own: bool = False
    tls: ssl.SSLContext | None = None

    def sample(self, seconds: float) -> Sample:
        """Load over TLS comes from Python, and for longer: its handshakes are counted, too."""
        whole_s = seconds / SHARE
        run = partial(load.call_by_python, self.port, self.said, CALLERS, whole_s, self.tls)
        if self.tls is None:
            run = partial(load.call, self.port, self.said, CALLERS, seconds, own=self.own)
        found = roles.spent(self.pids, run).sample()
        return Sample({CPU: found.figures[CPU], **found.figures}, found.wrong)


def measure(effort: Effort) -> Table:
    servers, seconds = {rigs.NAME: rigs.child()}, effort.seconds * SHARE
    with ExitStack() as stack:
        relay = stack.enter_context(rigs.relay("ceiling"))
        plain = stack.enter_context(Gateway(servers, extra=door.EXTRA))
        safe = stack.enter_context(Gateway(servers, extra=door.TLS))
        kinds = {
            "ceiling": Kind(relay.port, relay.pids, [rigs.bare(relay.port)]),
            **legacy(plain, safe, effort.of(SESSIONS, 4)),
            **modern(plain, safe),
        }
        turns = {name: partial(kind.sample, seconds) for name, kind in kinds.items()}
        rows = in_turns(turns, effort.of(ROUNDS, 1))
    said = f"{CALLERS} callers in every row. Load over TLS comes from Python, all other from a"
    said += " program in C where there is a compiler."
    return Table("clients", TITLE, rows, tuple(bars(rows)), (said,))


def bars(rows: Sequence[Row]) -> list[Bar]:
    """TLS is judged with the door."""
    found = {row.name: row for row in rows}
    return [
        most(
            f"{row.name}: processor time of a call beside the {LUCKIEST}",
            compared(row, found[f"{era}, {LUCKIEST}"], CPU),
            TRACED_BAR if kind == TRACED else BAR,
        )
        for row in rows
        for era, _, kind in [row.name.partition(", ")]
        if kind not in {"", LUCKIEST, TLS}
    ]


def legacy(plain: Gateway, safe: Gateway, count: int) -> dict[str, Kind]:
    pids, port = roles.of_gateway(plain), plain.port
    one = session(port, PATHS["open"])
    many = [session(port, PATHS["open"]) for _ in range(count)]
    key = {"Authorization": f"Bearer {door.made(plain)}"}
    keyed = session(port, PATHS["keys"], key) | key

    said = partial(spoken, port, LEGACY)
    some = {
        LUCKIEST: said(one),
        "other lengths": replace(said(one), filling=LENGTHS),
        "Authorization": said(one | CREDENTIAL),
        TRACED: replace(said(one), traced=True),
        "a key": said(keyed, "keys"),
    }
    each = [said(headers) for headers in many]
    unlike = [replace(speech, filling=LENGTHS) for speech in each]
    return {
        **{f"legacy, {name}": Kind(port, pids, [speech]) for name, speech in some.items()},
        f"legacy, {count} sessions": Kind(port, pids, each, own=True),
        f"legacy, {count} sessions and other lengths": Kind(port, pids, unlike, own=True),
        f"legacy, {TLS}": over_tls(safe, LEGACY),
    }


def modern(plain: Gateway, safe: Gateway) -> dict[str, Kind]:
    pids, port = roles.of_gateway(plain), plain.port
    key = {"Authorization": f"Bearer {door.made(plain)}"}
    said = partial(spoken, port, MODERN)
    some = {
        LUCKIEST: said({}),
        "other lengths": replace(said({}), filling=LENGTHS),
        "Authorization": said(CREDENTIAL),
        TRACED: replace(said({}), traced=True),
        "a key": said(key, "keys"),
    }
    return {
        **{f"modern, {name}": Kind(port, pids, [speech]) for name, speech in some.items()},
        f"modern, {TLS}": over_tls(safe, MODERN),
    }


def over_tls(safe: Gateway, era: str) -> Kind:
    trusted = ssl.create_default_context(cafile=str(safe.folder / "state/tls/ca.pem"))
    headers = session(safe.port, PATHS["tls"], tls=trusted) if era == LEGACY else {}
    said = [spoken(safe.port, era, headers, "tls")]
    return Kind(safe.port, roles.of_gateway(safe), said, tls=trusted)


def spoken(port: int, era: str, headers: dict[str, str], endpoint: str = "open") -> Speech:
    name, meta = f"{rigs.NAME}__echo", None
    if era == MODERN:
        client = Client(port, MODERN)
        headers, meta = client.headers("tools/call", name) | headers, client.meta()
    return load.speech(port, headers, name, path=PATHS[endpoint], meta=meta)


def session(
    port: int, path: str, more: dict[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> dict[str, str]:
    """The headers of a new legacy session."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    about = {"clientInfo": {"name": "bench", "version": "1"}, "capabilities": {}}
    hello = {"id": 1, "method": "initialize", "params": {"protocolVersion": LEGACY, **about}}
    with closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=load.ANSWER_S_MAX)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=load.ANSWER_S_MAX, context=tls)
    ) as connection:
        for message in (hello, {"method": "notifications/initialized"}):
            body = json.dumps({"jsonrpc": "2.0", **message})
            connection.request("POST", path, body, headers | (more or {}))
            answer = connection.getresponse()
            answer.read()
            assert answer.status < 300, answer.status
            if (name := answer.getheader("Mcp-Session-Id")) is not None:
                headers |= {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": name}
    return headers
