"""A gateway as its own server, in each way that a user comes to it: no tool is there twice."""

import json
import selectors
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from tests.live.gateway import Gateway, fake
from tests.live.raw import MODERN, Raw
from tests.live.test_projects import Machine
from tests.live.test_projects import machine as machine  # noqa: PLC0414 - a fixture
from tests.waiting import until

pytestmark = pytest.mark.live

IS_SELF = "it is this gateway, which cannot be its own server"
LEFT_OUT = "the server 'loop' is left out: its URL is this gateway"
CHUNK_BYTES = 65536


def tools(port: int, era: str = MODERN) -> list[str]:
    return Raw(port, era).names()


def is_found(gateway: Gateway, name: str, sentence: str) -> bool:
    """Whether the gateway says of this server what it is."""
    server = gateway.server(name)
    return bool(server["state"] == "error" and sentence in server["message"])


def await_found(gateway: Gateway, *names: str) -> None:
    until(
        lambda: all(is_found(gateway, name, IS_SELF) for name in names),
        f"the gateway recognizes itself as {names}",
    )


@contextmanager
def proxied(port: int) -> Generator[int]:
    """The port of a proxy that passes all bytes on to `port`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=relay, args=(near, far), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


def relay(near: socket.socket, far: socket.socket) -> None:
    with selectors.DefaultSelector() as ready, near, far:
        ready.register(near, selectors.EVENT_READ, far)
        ready.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                try:
                    data = key.fileobj.recv(CHUNK_BYTES)
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return


def test_an_entry_that_a_client_wrote_is_left_out_with_a_sentence(machine: Machine) -> None:
    folder = machine.project("web")
    port = machine.up(folder)
    until(lambda: "web__echo" in tools(port), "its lists are there")
    own = tools(port)
    done = machine.run(folder, "install", "claude-code", "--http", "--scope", "project", "--yes")
    assert done.returncode == 0, done.stderr
    written = (folder / ".mcp.json").read_text()
    assert f"127.0.0.1:{port}" in written

    def heard() -> bool:
        events = machine.run(folder, "ctl", "events").stdout
        return "is left out: its URL is this gateway" in events

    until(heard, "the journal says what was left out")
    assert tools(port) == own
    servers = json.loads(machine.run(folder, "ctl", "status", "--json").stdout)["servers"]
    assert [server["name"] for server in servers] == ["web"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.10"])
def test_a_url_that_is_this_gateway_is_left_out_whoever_wrote_it(host: str) -> None:
    with Gateway({"near": fake()}) as gateway:
        own = tools(gateway.port)
        url = f"http://{host}:{gateway.port}/mcp"
        gateway.write({"near": fake(), "loop": {"url": url}})
        gateway.ctl("reload")
        assert LEFT_OUT in gateway.journal()
        assert tools(gateway.port) == own
        assert [one["name"] for one in gateway.status()["servers"]] == ["near"]


def test_a_url_with_another_name_of_this_gateway_is_left_out() -> None:
    """2130706433 is 127.0.0.1 as a number. A name that the gateway has not is refused by it."""
    own = '[gateway]\nallowed_hosts = ["2130706433"]\n'
    with Gateway({"near": fake()}, extra=own, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.wait("near")
        listed = tools(gateway.port)
        entries = {"loop": "2130706433", "octal": "017700000001"}
        far = {name: {"url": f"http://{host}:{gateway.port}/mcp"} for name, host in entries.items()}
        gateway.write({"near": fake(), **far})
        gateway.ctl("reload")
        assert LEFT_OUT in gateway.journal()
        refused = "This gateway does not answer to the name"
        until(lambda: is_found(gateway, "octal", refused), "the gateway refuses itself")
        assert tools(gateway.port) == listed


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_gateway_recognizes_itself_behind_a_proxy_and_behind_a_bridge(era: str) -> None:
    with Gateway({"near": fake()}, wait=False) as gateway, proxied(gateway.port) as port:
        until(gateway.answers, "the gateway answers")
        gateway.wait("near")
        own = tools(gateway.port)
        bridge = [sys.executable, "-m", "metamcp_supervisor", "connect", "--url"]
        entries = {
            "far": {"url": f"http://127.0.0.1:{port}/mcp", "era": era},
            "near": fake(),
            "pipe": {"command": [*bridge, gateway.url], "sandbox": "none"},
        }
        gateway.write(entries)
        gateway.ctl("reload")
        await_found(gateway, "far", "pipe")
        assert tools(gateway.port) == own
        gateway.stop()
        gateway.start()
        until(gateway.answers, "the gateway answers again")
        await_found(gateway, "far", "pipe")
        gateway.wait("near")
        assert tools(gateway.port) == own


@pytest.mark.parametrize("count", [2, 3])
def test_gateways_in_a_ring_keep_their_own_tools_and_the_way_back_is_an_error(count: int) -> None:
    """Each gateway has a server of its own, and the next gateway as another one."""
    with ExitStack() as stack:
        ring = [Gateway({}, wait=False) for _ in range(count)]
        for at, gateway in enumerate(ring):
            following = ring[(at + 1) % count]
            gateway.write({f"own{at}": fake(), f"next{at}": {"url": following.url}})
        for gateway in ring:
            stack.enter_context(gateway)
        for gateway in ring:
            until(gateway.answers, "the gateway answers")

        def backwards() -> list[int]:
            said = "it leads back to this gateway"
            return [at for at, one in enumerate(ring) if is_found(one, f"next{at}", said)]

        def is_settled() -> bool:
            """Whether at least one entry leads back, and the others are ready."""
            back = backwards()
            rest = [at for at in range(count) if at not in back]
            states = {ring[at].server(f"next{at}")["state"] for at in rest}
            return bool(back) and states <= {"active"}

        until(is_settled, "the way back is an error")
        for at, gateway in enumerate(ring):
            gateway.wait(f"own{at}")
            until(partial(own_tools, gateway, f"own{at}"), "its own tools are there")
            listed = [name for name in tools(gateway.port) if name.endswith("__echo")]
            origins = [name.split("__")[-2] for name in listed]
            assert len(origins) == len(set(origins)), listed


def own_tools(gateway: Gateway, server: str) -> bool:
    return f"{server}__echo" in tools(gateway.port)
