"""What workers are told, from values to values."""

from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from metamcp_supervisor.certificates import authority
from metamcp_supervisor.config.config import (
    Address,
    Config,
    Endpoint,
    Era,
    GatewayConfig,
    Namespace,
    Server,
    Tls,
    ToolConfig,
)
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.servers.specs import (
    NICE,
    allowed_hosts,
    default_endpoint,
    find_exposed_servers,
    front_spec,
    hosts,
    reachable,
    server_spec,
)
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.spec import LimitsSpec, OAuthSpec

SERVER = Server(name="git", source="x", command=("git",), env={"PATH": "/mine", "KEY": "k"})
CONFIG = Config(
    gateway=GatewayConfig(state_dir=Path("/s"), runtime_dir=Path("/r")),
    servers={"git": SERVER, "hidden": replace(SERVER, name="hidden")},
    namespaces={
        "dev": Namespace(
            name="dev", servers=("git",), tools={"git": {"reset": ToolConfig(enabled=False)}}
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
    assert spec.era == "legacy-first"


def test_a_server_gets_variables_that_are_named_for_it_and_never_those_of_the_gateway() -> None:
    environ = {
        "PATH": "/bin",
        "https_proxy": "p",
        "AWS_REGION": "r",
        "METAMCP_OAUTH_KEY": "secret",
        "NOTIFY_SOCKET": "s",
    }

    def names(*globs: str) -> set[str]:
        plain = Server(name="x", source="", inherit_env=globs)
        return set(server_spec(plain, environ, probe=False).env)

    default = server_spec(Server(name="x", source=""), environ, probe=False)
    assert set(default.env) == {"PATH", "https_proxy"}
    assert names() == {"PATH"}
    assert names("AWS_*") == {"PATH", "AWS_REGION"}
    assert names("*") == {"PATH", "https_proxy", "AWS_REGION"}


@pytest.mark.promise("M83")
@pytest.mark.parametrize("modern", [True, False])
def test_a_process_for_a_project_speaks_the_era_of_its_first_client(modern: bool) -> None:
    server = replace(
        SERVER, name=process_names.own("git", process_names.of_project("", ["file:///a"]))
    )
    tenant = Tenant(who="0", caller="{}", modern=modern)
    found = server_spec(server, {}, probe=True, tenant=tenant).era
    assert found == ("auto" if modern else "legacy-first")


@pytest.mark.parametrize("era", get_args(Era))
@pytest.mark.parametrize("probe", [True, False])
def test_the_era_that_was_chosen_needs_no_probe(era: Era, probe: bool) -> None:
    found = server_spec(replace(SERVER, era=era), {}, probe=probe).era
    assert found == ("legacy-first" if era == "auto" and not probe else era)


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
    free = replace(SERVER, sandbox="none")
    assert server_spec(free, {}, probe=True).limits == LimitsSpec()
    limited = replace(SERVER, memory_max=1 << 30, nofile_max=64, cpu_max=0.5, processes_max=3)
    held = LimitsSpec(nofile=64, nice=NICE, processes=3)
    assert server_spec(limited, {}, probe=True).limits == held
    refused = replace(limited, memory_rlimit=True)
    (tmp_path / "pids.max").write_text("max")  # the kernel counts
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
    assert spec.timeouts_s == {"git": 300.0, "hidden": 300.0}


def test_only_servers_of_an_endpoint_are_exposed() -> None:
    assert find_exposed_servers(CONFIG) == {"git"}


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


HERE = Tenant(who="0a", caller='{"a":1}', roots='{"roots":[{"uri":"file:///my%20project"}]}')


@pytest.mark.promise("M82")
def test_a_process_for_a_project_starts_in_its_folder_and_all_others_in_that_of_the_file() -> None:
    team = replace(
        SERVER, sharing="per-project", command=("git", "-C", "${project}/x"), folder="/file",
        env={"PATH": "/mine", "AT": "a${project}"}, cwd=Path("${project}"),
    )  # fmt: skip
    for tenant, folder in ((HERE, "/my project"), (None, "/file")):
        spec = server_spec(team, {}, probe=True, tenant=tenant)
        assert (spec.command, spec.cwd) == (("git", "-C", f"{folder}/x"), folder)
        assert spec.env["AT"] == f"a{folder}"
        assert (spec.caller, bool(spec.roots)) == ("", tenant is not None)


@pytest.mark.promise("M23")
def test_a_process_for_one_client_is_told_what_that_says_of_itself_and_its_roots() -> None:
    spec = server_spec(SERVER, {}, probe=True, tenant=HERE, asks_roots="ahead")
    assert (spec.caller, spec.roots, spec.asks_roots) == (HERE.caller, HERE.roots, "ahead")


def test_a_listener_is_called_by_its_address_by_allowed_names_and_by_those_in_its_certificate(
    tmp_path: Path,
) -> None:
    authority.make(tmp_path, ["gateway.lan"])
    paths = tmp_path / authority.CERT, tmp_path / authority.KEY
    gateway = replace(CONFIG.gateway, state_dir=tmp_path, allowed_hosts=("box:8443",))
    anywhere = Address("0.0.0.0", 6272)
    assert allowed_hosts(anywhere, gateway) == (*hosts(anywhere), "box:8443")
    own = replace(gateway, tls=Tls(cert=paths[0], key=paths[1], local=True))
    assert {"box:8443", "gateway.lan", "[::1]"} <= {*allowed_hosts(anywhere, own)}
    others = replace(gateway, tls=Tls(cert=paths[0], key=paths[1]))
    assert "gateway.lan" not in allowed_hosts(anywhere, others)
