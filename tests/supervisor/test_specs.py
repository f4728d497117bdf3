"""What workers are told, from values to values."""

from dataclasses import replace
from pathlib import Path

import pytest

from metamcp_supervisor.lives.cgroups import Leaf
from metamcp_supervisor.lives.specs import (
    NICE,
    default_endpoint,
    exposed,
    front_spec,
    hosts,
    reachable,
    server_spec,
)
from metamcp_supervisor.wanted.config import (
    Address,
    Config,
    Endpoint,
    Gateway,
    Namespace,
    Server,
    Tool,
)
from metamcp_worker.spec import LimitsSpec, OAuthSpec

SERVER = Server(name="git", source="x", command=("git",), env={"PATH": "/mine", "KEY": "k"})
CONFIG = Config(
    gateway=Gateway(state_dir=Path("/s"), runtime_dir=Path("/r")),
    servers={"git": SERVER, "hidden": replace(SERVER, name="hidden")},
    namespaces={
        "dev": Namespace(
            name="dev", servers=("git",), tools={"git": {"reset": Tool(enabled=False)}}
        )
    },
    endpoints={name: Endpoint(name=name, namespace="dev") for name in ("first", "default")},
)


def test_a_server_gets_what_it_needs_of_our_environment_and_its_own_wins() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "AWS_SECRET": "x",
        "METAMCP_LISTEN": "y",
    }
    spec = server_spec(SERVER, environ, probe=False)
    assert spec.env == {"PATH": "/mine", "HOME": "/h", "LC_ALL": "C", "KEY": "k"}
    assert not spec.probe


def test_a_server_that_is_reached_is_described_whole() -> None:
    far = replace(SERVER, command=(), url="https://x/", transport="sse", headers={"A": "b"})
    oauth = OAuthSpec(store="/s/oauth", key="k")
    spec = server_spec(far, {}, probe=True, oauth=oauth)
    assert (spec.command, spec.url, spec.transport) == ((), "https://x/", "sse")
    assert (spec.headers, spec.oauth) == ({"A": "b"}, oauth)
    queue = server_spec(
        replace(SERVER, command=(), transport="kafka", options={"topic": "t"}), {}, probe=True
    )
    assert (queue.url, queue.transport, queue.options) == (None, "kafka", {"topic": "t"})


def test_a_server_is_told_the_limits_that_its_worker_puts(tmp_path: Path) -> None:
    assert server_spec(SERVER, {}, probe=True).limits == LimitsSpec()
    limited = replace(SERVER, memory_max=1 << 30, nofile_max=64, cpu_max=0.5, processes_max=3)
    assert server_spec(limited, {}, probe=True).limits == LimitsSpec(nofile=64, nice=NICE)
    refused = replace(limited, memory_rlimit=True)
    spec = server_spec(refused, {}, probe=True, leaf=Leaf(tmp_path))
    assert spec.limits == LimitsSpec(nofile=64, data_bytes=1 << 30, nice=NICE, cgroup=str(tmp_path))


def test_the_default_endpoint_is_the_one_of_that_name_or_the_first() -> None:
    assert default_endpoint(CONFIG) is CONFIG.endpoints["default"]
    only = replace(CONFIG, endpoints={"first": CONFIG.endpoints["first"]})
    assert default_endpoint(only) is CONFIG.endpoints["first"]
    assert default_endpoint(replace(CONFIG, endpoints={})) is None


def test_a_front_is_told_whose_calls_may_be_sent_once_more() -> None:
    servers = {**CONFIG.servers, "git": replace(SERVER, retry="read-only")}
    assert front_spec(replace(CONFIG, servers=servers), "1").retries == {"git": "read-only"}
    assert front_spec(CONFIG, "1").retries == {}


def test_a_front_is_told_endpoints_switches_and_timeouts() -> None:
    spec = front_spec(CONFIG, "1.0")
    assert [(e.name, e.servers, e.default) for e in spec.endpoints] == [
        ("first", ("git",), False), ("default", ("git",), True),
    ]  # fmt: skip
    assert spec.endpoints[0].disabled == (("git", "reset"),)
    assert [(e.sse, e.rest) for e in spec.endpoints] == [(True, True), (True, True)]
    quiet = Endpoint(name="x", namespace="dev", sse=False, rest=False)
    (only,) = front_spec(replace(CONFIG, endpoints={"x": quiet}), "1.0").endpoints
    assert (only.sse, only.rest) == (False, False)
    assert spec.timeouts_s == {"git": 60.0, "hidden": 60.0}


def test_only_servers_of_an_endpoint_are_exposed() -> None:
    assert exposed(CONFIG) == {"git"}


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", []), ("::1", []), ("10.0.0.1", ["10.0.0.1"]), ("fe80::1", ["[fe80::1]"]),
     ("0.0.0.0", [])],
)  # fmt: skip
def test_hosts_are_loopback_and_the_listeners_own(host: str, own: list[str]) -> None:
    assert hosts(Address(host, 1)) == ("127.0.0.1", "localhost", "[::1]", *own)


def test_a_client_on_this_machine_reaches_an_open_listener_by_loopback() -> None:
    assert str(reachable(Address("0.0.0.0", 80))) == "127.0.0.1:80"
    assert str(reachable(Address("::1", 80))) == "[::1]:80"
