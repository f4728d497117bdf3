"""The plan of a reload, and the hash that names a configuration."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metamcp_supervisor.config.config import (
    Address,
    AuditConfig,
    Config,
    Endpoint,
    Namespace,
    ToolConfig,
)
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_worker.ipc.spec import NamingSpec, OAuth, UseLimits
from tests.supervisor.configs import config, loaded, server


def lines(old: Config, new: Config) -> list[str]:
    return [f"{each.server} {each.action} {each.why}".strip() for each in plan(old, new).changes]


@pytest.mark.promise("M78")
def test_only_what_changed_is_touched() -> None:
    old = config(
        server("git", env={"GIT_DIR": "a"}), server("fs"), server("chrome"), server("same")
    )
    new = config(
        server("git", env={"GIT_DIR": "b"}), server("fs", timeout_s=9.0, queue=1), server("same"),
        server("github"),
    )  # fmt: skip
    assert lines(old, new) == [
        "git restart env.GIT_DIR changed",
        "fs in-place timeout changed, queue changed (from its next start)",
        "same unchanged",
        "github add",
        "chrome remove",
    ]
    assert not plan(old, new).applied


def test_the_reason_names_variables_and_never_their_values() -> None:
    old = config(server("a", env={"GONE": "secret1", "KEPT": "secret2", "TURNED": "secret3"}))
    new = config(server("a", env={"KEPT": "secret2", "TURNED": "secret4", "NEW": "secret5"}))
    assert lines(old, new) == ["a restart env.GONE removed, env.NEW added, env.TURNED changed"]
    many = config(server("a", env={f"V{number:02}": "x" for number in range(20)}))
    assert lines(config(server("a")), many)[0].endswith("env.V07 added and 12 more")


def test_a_server_that_is_reached_otherwise_restarts() -> None:
    def far(**settings: Any) -> Config:
        return config(server("a", **{"command": (), "url": "https://x/?k=secret1", **settings}))

    old = far(headers={"GONE": "secret2", "X-Api-Key": "secret3"}, oauth=OAuth(client_id="a"))
    new = far(url="https://x/?k=secret4", headers={"X-Api-Key": "secret5"})
    assert lines(old, new) == [
        "a restart url changed, headers.GONE removed, headers.X-Api-Key changed, oauth changed"
    ]
    queue = far(url=None, transport="kafka", options={"topic": "secret6"})
    assert lines(far(), queue) == ["a restart url changed, transport changed, options.topic added"]
    marks = {fingerprint(each) for each in (old, new, far(), queue, far(oauth=OAuth()))}
    assert len(marks) == 5


def test_what_runs_nowhere_is_changed_in_place() -> None:
    off = server("a", enabled=False)
    assert lines(config(off), config(server("a", command=("new",), enabled=False))) == [
        "a in-place command changed"
    ]
    assert lines(config(off), config(server("a"))) == ["a restart enabled"]
    assert lines(config(server("a")), config(off)) == ["a restart no longer enabled"]
    assert lines(config(), config(off)) == ["a add not enabled"]


def test_settings_of_the_gateway_wait_for_a_full_restart() -> None:
    new = config(listen=Address("127.0.0.1", 1), state_dir=Path("/elsewhere"))
    assert lines(config(), new) == [
        "gateway unchanged listen changed, state_dir changed: needs a full restart"
    ]


def test_namespaces_and_endpoints_change_in_place() -> None:
    servers = (server("a"), server("b"))
    old = config(
        *servers,
        namespaces={"dev": Namespace(name="dev", servers=("a",)), "old": Namespace(
            name="old", servers=())},
        endpoints={"dev": Endpoint(name="dev", namespace="dev")},
    )  # fmt: skip
    new = config(
        *servers,
        namespaces={
            "dev": Namespace(
                name="dev", servers=("a", "b"), tools={"a": {"x": ToolConfig(hidden=True)}}
            )
        },
        endpoints={
            "dev": Endpoint(name="dev", namespace="dev", naming=NamingSpec(style="flat")),
            "new": Endpoint(name="new", namespace="dev"),
        },
    )
    assert lines(old, new)[2:] == [
        "namespaces.dev in-place servers changed, tools changed",
        "namespaces.old remove",
        "endpoints.dev in-place naming changed",
        "endpoints.new add",
    ]


def test_limits_of_a_workspace_change_in_place_and_keys_have_the_names_of_the_file() -> None:
    old = replace(config(), workspace_limits={"a": UseLimits(streams=1)})
    new = replace(
        config(),
        workspace_limits={"b": UseLimits(streams=1)},
        audit=AuditConfig(retention_s=1.0),
    )
    assert lines(old, new) == [
        "[audit] in-place retention changed",
        "workspaces.a in-place limits changed",
        "workspaces.b in-place limits changed",
    ]
    assert fingerprint(old) != fingerprint(config())


def test_where_a_server_is_written_does_not_matter(tmp_path: Path) -> None:
    first = loaded(tmp_path, '[servers.a]\ncommand = ["x", "y"]\n[servers.b]\ncommand = ["z"]\n')
    (tmp_path / "b.toml").write_text('# moved\n[servers.b]\ncommand = "z"\n')
    second = loaded(
        tmp_path, 'include = ["b.toml"]\n[servers.a]\ncommand = "x"\nargs = ["${Y:-y}"]\n'
    )
    assert fingerprint(first) == fingerprint(second)
    assert {each.action for each in plan(first, second).changes} == {"unchanged"}


@pytest.mark.promise("M78")
def test_the_hash_of_a_plan_is_another_when_either_side_moved() -> None:
    one, two, three = config(), config(server("a")), config(server("a", env={"A": "b"}))
    hashes = {plan(old, new).hash for old in (one, two, three) for new in (one, two, three)}
    assert len(hashes) == 9
    assert plan(one, two).hash == plan(config(), config(server("a"))).hash


@given(st.text(min_size=8), st.text(min_size=8))
def test_a_fingerprint_changes_with_a_secret_and_does_not_hold_it(one: str, two: str) -> None:
    def mark(value: str) -> str:
        return fingerprint(config(server("a", env={"TOKEN": value})))

    assert (mark(one) == mark(two)) == (one == two)
    assert one not in mark(one)
