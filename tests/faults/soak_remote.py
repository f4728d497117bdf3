"""Remote servers of both eras that misbehave in turns, for minutes, while clients call all of them.

    python -m tests.faults.soak_remote --seconds 600

Owns: the servers and their manners, the calls, the books, what must be in the journal. Ends with 0
when everything held, else with 1 and a sentence for each thing that did not. Never: local servers
and faults of the gateway's own processes (`soak`).

Each call has a text of its own. A server notes the texts that it executes, so that a call that was
executed twice, or answered without being executed, is seen.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from metamcp_supervisor.verbs import GatewayStatus
from tests.fakes.http_server import FLOODS, Json, Options, Server, event, refuse, text_result
from tests.faults.soak_report import grown
from tests.faults.soak_watch import Figures, bugs, figures
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway
from tests.waiting import until
from tests.worker.scripted import Request, Wire, serving

CLIENTS = 8
TURN_S = 6.0
"""How long a server misbehaves. The one after it begins when this one is well again."""
LONG_S = {"lines": 20.0}
"""Manners that need more: a flood of less than ten seconds is taken for a burst."""
WELL_S_MAX = 60.0
"""From the end of a turn to calls that are answered: the longest delay of a restart, and more."""
THINK_S = 0.05
PROBLEMS_MAX = 40
WELL = ("→ready", "→warming", "launched")
"""Ends of events that say that all is well, or will be."""
TIMEOUT_S = 2.0
SERVERS: dict[str, dict[str, Any]] = {
    "legacy-json": {"era": "legacy"},
    "legacy-events": {"era": "legacy", "answer": "events"},
    "modern-json": {"era": "modern"},
    "modern-events": {"era": "modern", "answer": "events"},
    "both": {"era": "both"},
}
OLDER = "both@legacy"
"""The second connection of a server of both eras. The first call of a client of 2025 starts it."""
#: What a server does in its turn -> words of the journal that name it, or nothing for what hurts
#: only single calls, whose answers name it.
MANNERS: dict[str, str] = {
    "unavailable": "http 503: it answered a request with HTTP 503 Service Unavailable",
    "unauthorized": "http 401: it answered a request with HTTP 401 Unauthorized",
    "page": "broken reply: it sent an answer that is not valid JSON-RPC",
    "torn": "broken answer: it broke off an answer",
    "silent": "",
    "resets": "ready→error: connect: it is not there any more",
    "other-id": "",
    "twice": "",
    "forgets": "",
    "redirects": "ready→error: redirect",
    "lines": "throttled",
}


class Unruly(Server):
    """`manner`: how it misbehaves now, or nothing."""

    manner = ""

    async def post(self, wire: Wire, request: Request) -> bool:
        match self.manner:
            case "unavailable":
                return await refuse(wire, 503)
            case "unauthorized":
                return await refuse(wire, 401)
            case "page":
                await wire.answer(b"<html>maintenance</html>", "Content-Type: text/html")
                return True
            case "silent":
                await wire.closed()
                return False
            case "resets":
                return False
            case "redirects":
                await wire.answer(b"", "Location: http://127.0.0.1:9/mcp", status="302 Found")
                return True
            case "forgets":
                self.sessions.clear()
            case "lines":
                for one in self.sessions.values():
                    if one.stream is not None:
                        await one.stream.write(FLOODS["lines"])
            case _:
                pass
        return await super().post(wire, request)

    async def tool_echo(self, wire: Wire, number: object, arguments: Json, session: object) -> bool:
        text = str(arguments["text"])
        self.calls.append(text)
        answer = event({"jsonrpc": "2.0", "id": number, "result": text_result(text)})
        if self.manner == "torn":
            await wire.stream(answer[: len(answer) // 2])
            return False
        if self.manner == "other-id":
            number = 4711
        if self.manner == "twice":
            await wire.stream(answer, answer)
            return False
        return await self._answer(wire, number, text_result(text))


@dataclass
class Books:
    """`ends`: (manner of the server meanwhile, end) -> calls; `right`: texts that were answered."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    right: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    problems: list[str] = field(default_factory=list[str])
    worst_s: float = 0.0


class Soak:
    """`servers`: by name. `over`: set when no client is to call any more."""

    def __init__(
        self,
        gateway: Gateway,
        servers: dict[str, Unruly],
        turn_s: float,
        manners: Sequence[str],
    ) -> None:
        self.gateway, self.servers, self.turn_s, self.manners = gateway, servers, turn_s, manners
        self.books = Books()
        self.over = threading.Event()
        self.turns: list[tuple[str, str]] = []
        self._healing = ""

    async def run(self, seconds: float) -> None:
        threads = ThreadPoolExecutor(CLIENTS + 1)
        asyncio.get_running_loop().set_default_executor(threads)
        await asyncio.to_thread(self.gateway.wait_ready)
        clients = [asyncio.to_thread(self._call_on, number) for number in range(CLIENTS)]
        calling = asyncio.gather(*clients)
        try:
            turns = [
                (name, manner)
                for manner in self.manners
                for name, options in SERVERS.items()
                if manner != "lines" or options["era"] == "legacy"  # with a stream of its own
            ]
            await self._turn(*turns[0])  # whatever grows once grows now
            await asyncio.to_thread(until, self._older_is_there, f"{OLDER} is there")
            before = await self._look()
            end = time.monotonic() + seconds
            for name, manner in itertools.cycle(turns):
                if time.monotonic() >= end:
                    break
                await self._turn(name, manner)
            self.over.set()
            await calling
            after = await self._settle(before)
        finally:
            self.over.set()
            await calling
        self.books.problems += grown(before.by_role, after.by_role)
        self.books.problems += self._doubled()

    def _older_is_there(self) -> bool:
        states = {one["name"]: one["state"] for one in self.gateway.status()["servers"]}
        return states.get(OLDER) == "active"

    async def _turn(self, name: str, manner: str) -> None:
        """One server misbehaves in one way, and has to be well again after it."""
        server = self.servers[name]
        self.turns.append((name, manner))
        seen = self.gateway.log.stat().st_size
        server.manner = manner
        await pause(max(self.turn_s, LONG_S.get(manner, 0.0)))
        self._healing, server.manner = name, ""
        ports = Client(self.gateway.port, MODERN)
        try:
            well = await asyncio.to_thread(self._well, ports, name)
        finally:
            ports.close()
            self._healing = ""
        if not well:
            self.books.problems.append(f"{name} did not come back after '{manner}'")
        told = self._named(name, seen)
        named = sum(MANNERS[manner] in one for one in told)
        first = self.turns.count((name, manner)) == 1
        if MANNERS[manner] and (named > 1 or named < first):
            self.books.problems.append(f"{name}, '{manner}': the journal says {told}")

    def _well(self, client: Client, name: str) -> bool:
        end = time.monotonic() + WELL_S_MAX
        while time.monotonic() < end:
            if "result" in client.call(f"{name}__echo", text=f"well-{time.monotonic_ns()}"):
                return True
        return False

    def _named(self, name: str, since: int) -> list[str]:
        """What the journal says of what went wrong at a server. `since`: bytes of the log."""
        lines = self.gateway.log.read_bytes()[since:].splitlines()
        events = [json.loads(line) for line in lines if line.startswith(b"{")]
        return [
            f"{one['what']}: {one.get('cause', '')}"
            for one in events
            if one.get("who") == name and not one["what"].endswith(WELL)
        ]

    async def _settle(self, before: Figures) -> Figures:
        """The figures once they are as before, or those at the end of the time for that. One
        client goes on calling: a call is what closes connections that were idle for too long."""
        end = time.monotonic() + WELL_S_MAX
        client = Client(self.gateway.port, MODERN)
        after = await self._look()
        for turn in itertools.count():
            if not grown(before.by_role, after.by_role) or time.monotonic() > end:
                break
            for name in SERVERS:
                await asyncio.to_thread(client.call, f"{name}__echo", text=f"settle-{turn}")
            await pause(1.0)
            after = await self._look()
        client.close()
        return after

    async def _look(self) -> Figures:
        return await asyncio.to_thread(
            lambda: figures(msgspec.convert(self.gateway.status(), GatewayStatus))
        )

    def _call_on(self, number: int) -> None:
        """One client calls all servers in turn until the end."""
        client = Client(self.gateway.port, (MODERN, LEGACY)[number % 2])
        for count, name in enumerate(itertools.cycle(SERVERS)):
            if self.over.wait(THINK_S):
                break
            text = f"{number}-{count}"
            before, begun = self._manner(name), time.monotonic()
            try:
                answer = client.call(f"{name}__echo", text=text)
            except Exception as error:  # noqa: BLE001 - any is one that the gateway must not cause
                self.books.problems.append(f"client {number}, {name}: {error!r}")
                return
            self.books.worst_s = max(self.books.worst_s, time.monotonic() - begun)
            self._note(name, text, answer, before or self._manner(name))
        client.end()

    def _manner(self, name: str) -> str:
        return self.servers[name].manner or ("healing" if self._healing == name else "")

    def _note(self, name: str, text: str, answer: dict[str, Any], manner: str) -> None:
        books = self.books
        if "error" in answer:
            end = f"error {answer['error']['code']}"
            if not manner:
                books.problems.append(f"{name} was well: {answer['error']}")
        elif answer["result"].get("isError") or answer["result"]["content"][0]["text"] != text:
            end = "wrong"
            books.problems.append(f"{name}, '{manner}': {answer['result']}")
        else:
            end = "right"
            books.right.append((name, text))
        books.ends[manner, end] += 1

    def _doubled(self) -> list[str]:
        """Calls that were executed more than once, or answered and not executed."""
        ran = {name: Counter(server.calls) for name, server in self.servers.items()}
        twice = [
            f"{name} executed {text} {times} times"
            for name, texts in ran.items()
            for text, times in texts.items()
            if times > 1
        ]
        return twice + [f"{n} never saw {text}" for n, text in self.books.right if not ran[n][text]]


async def pause(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


async def main(seconds: float, turn_s: float, manners: Sequence[str] = tuple(MANNERS)) -> Books:
    servers = {name: Unruly(Options(**options)) for name, options in SERVERS.items()}
    async with contextlib.AsyncExitStack() as stack:
        entries: dict[str, dict[str, Any]] = {}
        for name, server in servers.items():
            url = await stack.enter_async_context(serving(server.serve))
            entries[name] = {"url": url, "timeout": f"{TIMEOUT_S:g}s"}
        gateway = Gateway(entries, wait=False)
        soak = Soak(gateway, servers, turn_s, manners)
        await asyncio.to_thread(gateway.__enter__)
        try:
            await soak.run(seconds)
            soak.books.problems += [f"in the journal: {one}" for one in bugs(gateway.log)]
        finally:
            await asyncio.to_thread(gateway.__exit__, None, None, None)
    return soak.books


def words(books: Books) -> str:
    """The report: how calls ended, by what their server did meanwhile."""
    lines = ["| server | end | calls |", "|---|---|---|"]
    lines += [f"| {how or 'well'} | {end} | {n} |" for (how, end), n in sorted(books.ends.items())]
    lines += ["", f"worst wait: {books.worst_s:.2f} s"]
    lines += [f"BROKEN: {one}" for one in books.problems[:PROBLEMS_MAX]]
    return "\n".join([*lines, f"{len(books.problems)} broken"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--turn", type=float, default=TURN_S)
    given = parser.parse_args()
    found = asyncio.run(main(given.seconds, given.turn))
    sys.stdout.write(words(found) + "\n")
    sys.exit(1 if found.problems else 0)
