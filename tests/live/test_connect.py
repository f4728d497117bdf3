"""`metamcp connect` on the true binary: real clients, real servers, and what goes wrong between."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.client.client import Client as SdkClient
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.live import processes
from tests.live.bridge import STAMP, Bridge
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

ERAS = [LEGACY, MODERN]
DOWN = -10001
EXTRA = """
[endpoints.default]
namespace = "default"

[endpoints.bare]
namespace = "default"
naming = { style = "bare" }
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {"alpha": fake("--era", "legacy"), "beta": fake("--era", "modern")}
    with Gateway(servers, extra=EXTRA) as running:
        yield running


@pytest.fixture(scope="module")
def mortal() -> Iterator[Gateway]:
    with Gateway({"alpha": fake("--era", "both")}) as running:
        yield running


@pytest.fixture
def fragile(mortal: Gateway) -> Gateway:
    """A gateway that the test may kill, if it starts it again."""
    mortal.wait_ready()
    return mortal


def bridge(gateway: Gateway, *arguments: str, era: str = LEGACY, forked: bool = True) -> Bridge:
    where = ("--runtime-dir", str(gateway.folder / "run"))
    return Bridge(*where, *arguments, folder=gateway.folder, era=era, forked=forked)


def sdk(gateway: Gateway, mode: str) -> SdkClient:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "metamcp_supervisor", "connect", "--runtime-dir", f"{gateway.folder}/run"],
        cwd=ROOT,
        env=dict(os.environ),
    )
    return SdkClient(stdio_client(parameters), mode=mode)


@pytest.mark.promise("M5")
@pytest.mark.parametrize("mode", ["legacy", "auto", MODERN])
def test_the_official_client_lists_and_calls_over_its_pipes(gateway: Gateway, mode: str) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def talk() -> str:
        async with asyncio.timeout(30), sdk(gateway, mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"alpha__echo", "beta__echo"} <= names
            await client.call_tool("beta__progress", {"n": 3}, progress_callback=note)
            result = await client.call_tool("alpha__echo", {"text": "hello"})
            return getattr(result.content[0], "text", "")

    assert asyncio.run(talk()) == "hello"
    assert seen == [1, 2, 3]


@pytest.mark.promise("M5")
def test_five_clients_share_one_gateway_and_its_servers(gateway: Gateway) -> None:
    bridges = [bridge(gateway, era=era) for era in (*ERAS, *ERAS, LEGACY)]
    pids: set[str] = set()
    for one in bridges:
        with one:
            pids.add(one.text("alpha__pid"))
            servers = processes.marked(gateway.mark)
            running = [pid for pid in servers if "stdio_server" in command(pid)]
            assert len(running) == len(gateway.status()["servers"])
    assert pids == {str(gateway.server("alpha")["pid"])}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def echo(text: str) -> dict[str, object]:
    return {"name": "alpha__echo", "arguments": {"text": text}}


@pytest.mark.promise("M5")
def test_all_at_once_they_get_their_own_answers(gateway: Gateway) -> None:
    bridges = [bridge(gateway, era=era) for era in (*ERAS, *ERAS, LEGACY)]
    try:
        for one in bridges:
            one.__enter__()
        for count in range(20):
            ids = [one.ask("tools/call", echo(f"{count}.{n}")) for n, one in enumerate(bridges)]
            for n, (one, number) in enumerate(zip(bridges, ids, strict=True)):
                answer = one.hear()
                assert answer["id"] == number
                assert answer["result"]["content"][0]["text"] == f"{count}.{n}"
    finally:
        assert [one.close() for one in bridges] == [0] * 5


@pytest.mark.promise("M22")
@pytest.mark.parametrize("era", ERAS)
def test_a_message_is_the_same_bytes_behind_the_bridge_as_over_http(
    gateway: Gateway, era: str
) -> None:
    raw = b'{ "z":1.0,"a" :123456789012345678901234567890, "n":null,"u":"\\u00e9\\/", "z":2 }'
    meta = b',"_meta":' + json.dumps(STAMP).encode() if era == MODERN else b""
    direct = Client(gateway.port, era)
    with bridge(gateway, era=era) as one:
        for number in (b"7000", b'"7"', b'"\\u0041"', b"-3"):
            params = b'"params":{"name":"alpha__raw","arguments":' + raw + meta + b"}}"
            body = b'{"jsonrpc":"2.0","id":' + number + b',"method":"tools/call",' + params
            one.say(body)
            theirs = direct.post(body, "tools/call", "alpha__raw")
            ours = one.line()
            assert b'"id":' + number + b"," in ours
            # The worker gives every request of a legacy server a number of its own.
            assert without_token(ours.rstrip()) == without_token(theirs)
    direct.close()


def without_token(answer: bytes) -> bytes:
    """The answer without the number of the gateway's progress token, which its server tells."""
    return re.sub(rb'(progressToken\\":)\d+', rb"\1", answer)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kib", [1024, 15 * 1024])
def test_large_results_come_through(gateway: Gateway, era: str, kib: int) -> None:
    with bridge(gateway, era=era) as one:
        assert len(one.text("beta__blob", kib=kib)) == kib * 1024
        assert one.text("beta__echo", text="still there") == "still there"


@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["alpha", "beta"])
@pytest.mark.parametrize("era", ERAS)
def test_a_cancellation_reaches_the_server_and_nothing_is_answered(
    gateway: Gateway, era: str, server: str
) -> None:
    def cancelled() -> int:
        known = json.loads(one.text(f"{server}__state"))
        return sum(told["method"] == "notifications/cancelled" for told in known["told"])

    with bridge(gateway, era=era) as one:
        before = cancelled()
        params = {"name": f"{server}__sleep", "arguments": {"ms": 3_600_000}}
        number = one.ask("tools/call", params)
        one.say({"jsonrpc": "2.0", "method": "notifications/cancelled",
                 "params": {"requestId": number}})  # fmt: skip
        until(lambda: cancelled() > before, "the server was told")
        assert number not in [message.get("id") for message in one.seen]


@pytest.mark.promise("M23")
@pytest.mark.parametrize("era", ERAS)
def test_a_changed_list_is_told(gateway: Gateway, era: str) -> None:
    with bridge(gateway, era=era) as one:
        if era == MODERN:
            one.ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            assert one.hear()["method"] == "notifications/subscriptions/acknowledged"
        one.request("tools/list")
        one.call("beta__change")
        changed = "notifications/tools/list_changed"
        while changed not in [message.get("method") for message in one.seen]:
            one.seen.append(one.hear())


@pytest.mark.parametrize("era", ERAS)
def test_a_named_endpoint_is_the_one_that_is_bridged(gateway: Gateway, era: str) -> None:
    with bridge(gateway, "--endpoint", "bare", era=era) as one:
        assert "environ" in "".join(one.tools())
        assert not any(name.startswith("alpha__") for name in one.tools())
    with bridge(gateway, "--url", gateway.url, era=era) as one:
        assert "alpha__echo" in one.tools()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--endpoint", "nope"), 8, "no endpoint is named 'nope'; there are: default, bare"),
        (("--url", "file:///etc/passwd"), 2, "only URLs that begin with http"),
        (("--url", "http://127.0.0.1:9/mcp", "--start"), 2, "--url says it all"),
        (("--keep",), 2, "--keep is for the gateway that --start starts"),
    ],
)
def test_what_cannot_be_bridged_is_one_sentence_and_an_exit_code(
    gateway: Gateway, arguments: tuple[str, ...], code: int, words: str
) -> None:
    one = bridge(gateway, *arguments)
    assert one.close() == code
    assert words in one.told


def test_without_a_gateway_it_ends_and_says_what_to_do(tmp_path: Path) -> None:
    alone = {"XDG_RUNTIME_DIR": str(tmp_path)}  # another gateway may run on this machine
    one = Bridge("--runtime-dir", str(tmp_path / "run"), folder=tmp_path, env=alone)
    assert one.close() == 5
    assert "start one with 'metamcp up'" in one.told
    assert one.told.count("\n") == 1


def sessions(gateway: Gateway) -> int:
    return sum(front["sessions"] for front in gateway.status()["fronts"])


def test_the_end_of_the_input_closes_the_session_and_leaves_no_process(fragile: Gateway) -> None:
    one, before = bridge(fragile, forked=False), sessions(fragile)
    with one:
        one.ask("tools/call", {"name": "alpha__sleep", "arguments": {"ms": 3_600_000}})
        until(lambda: sessions(fragile) == before + 1, "the session is open")
    assert not processes.alive({one.process.pid})
    until(lambda: sessions(fragile) == before, "the session is closed")


def test_a_killed_bridge_harms_nobody(fragile: Gateway) -> None:
    before = fragile.server("alpha")["generation"]
    with bridge(fragile) as other:
        victim = bridge(fragile)
        victim.initialize()
        victim.process.kill()
        assert victim.close() == -signal.SIGKILL
        assert other.text("alpha__echo", text="here") == "here"
    assert fragile.server("alpha")["generation"] == before


@pytest.mark.promise("M79")
@pytest.mark.parametrize("era", ERAS)
def test_after_the_front_was_killed_the_next_request_is_answered(
    fragile: Gateway, era: str
) -> None:
    with bridge(fragile, era=era) as one:
        for _ in range(3):
            assert one.text("alpha__echo", text="a") == "a"
            number = one.ask("tools/call", {"name": "alpha__sleep", "arguments": {"ms": 3_600_000}})
            until(lambda: fragile.server("alpha")["inflight"] == 1, "the call is under way")
            old = fragile.status()["fronts"][0]["pid"]
            os.kill(old, signal.SIGKILL)
            while (message := one.hear()).get("id") != number:
                one.seen.append(message)
            assert message["error"]["code"] == DOWN
            assert "may have been processed" in message["error"]["message"]
            assert one.text("alpha__echo", text="b") == "b"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("era", ERAS)
def test_while_the_gateway_is_away_there_are_errors_and_then_answers(
    fragile: Gateway, era: str, end: signal.Signals
) -> None:
    with bridge(fragile, era=era) as one:
        assert one.text("alpha__echo", text="a") == "a"
        os.kill(fragile.pid, end)
        assert fragile.process is not None
        fragile.process.wait(timeout=30)
        until(lambda: not fragile.left(), "all of it is gone")
        error = one.call("alpha__echo", text="b")["error"]
        assert error["code"] == DOWN
        assert "metamcp up" in error["message"]
        fragile.start()
        assert one.text("alpha__echo", text="c") == "c"
        until(lambda: "is back" in one.told, "people are told too")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_at_once(gateway: Gateway, number: signal.Signals) -> None:
    one = bridge(gateway, forked=False)
    one.initialize()
    one.ask("tools/call", {"name": "alpha__sleep", "arguments": {"ms": 3_600_000}})
    one.process.send_signal(number)
    assert one.process.wait(timeout=30) == (130 if number == signal.SIGINT else 0)
    one.close()
