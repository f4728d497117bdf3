"""Which file is the configuration, what it includes, and what comes from outside it."""

import os
from pathlib import Path

import pytest

from metamcp_supervisor.config import places
from metamcp_supervisor.config.config import Address, ConfigInvalid
from metamcp_supervisor.config.places import find
from metamcp_supervisor.config.sources import load, was_found_in
from tests.supervisor.configs import loaded, messages, write

GIT = '[servers.git]\ncommand = ["git-server"]\n'
MCP = '{"mcpServers": {"git": {"command": "git-server"}}}'


def found(folder: Path, given: Path | None = None, **environ: str) -> str:
    path = find(
        given, environ=environ, cwd=folder, home=folder / "home", system=folder / "etc.toml"
    )
    return str(path).removeprefix(f"{folder}/")


def test_the_configuration_is_looked_for_in_the_documented_order(tmp_path: Path) -> None:
    expected = "None"
    for name in (
        "etc.toml", "home/.config/metamcp/metamcp.toml", "config.json", "servers.json",
        ".vscode/mcp.json", ".cursor/mcp.json", "mcp.json", ".mcp.json", "metamcp.toml",
    ):  # fmt: skip
        assert found(tmp_path) == expected
        write(tmp_path, name, MCP)
        expected = name
    assert found(tmp_path) == "metamcp.toml"
    assert found(tmp_path, METAMCP_CONFIG="env.toml") == "env.toml"
    assert found(tmp_path, Path("flag.toml"), METAMCP_CONFIG="env.toml") == "flag.toml"


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {}}',
        '{"mcpServers": {"metamcp": {"command": "metamcp", "args": ["connect", "--start"]}}}',
        "not json",
    ],
)
def test_a_file_of_a_client_without_servers_of_its_own_counts_after_all_others(
    text: str, tmp_path: Path
) -> None:
    write(tmp_path, ".mcp.json", text)
    assert found(tmp_path) == ".mcp.json"
    write(tmp_path, "etc.toml", GIT)
    assert found(tmp_path) == "etc.toml"


def test_a_file_with_a_common_name_counts_only_when_its_shape_is_known(tmp_path: Path) -> None:
    write(tmp_path, "config.json", '{"debug": true}')
    write(tmp_path, "servers.json", "{}")
    write(tmp_path, "mcp.json", "not json")
    assert found(tmp_path) == "None"
    write(tmp_path, "config.json", '{"mcp_servers": []}')
    assert found(tmp_path) == "config.json"


def test_without_any_file_the_error_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="no configuration: there is neither"):
        load(None, environ={}, cwd=tmp_path, home=tmp_path / "home")


def test_only_a_file_that_was_found_in_the_working_directory_was_not_chosen(tmp_path: Path) -> None:
    def chosen(path: Path, given: Path | None = None, **environ: str) -> bool:
        return not was_found_in(tmp_path, path, named_path=given, environ=environ)

    own = tmp_path / "metamcp.toml"
    assert not chosen(own)
    assert not chosen(tmp_path / ".vscode/mcp.json")
    assert chosen(own, given=Path("metamcp.toml"))
    assert chosen(own, METAMCP_CONFIG="metamcp.toml")
    assert chosen(tmp_path / ".config/metamcp/metamcp.toml")


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = (
        '[gateway]\nlisten = "127.0.0.1:1"\nops_listen = "127.0.0.1:2"\nstate_dir = "s"\n'
        'runtime_dir = "~/r"\n'
    )
    environ = {"METAMCP_LISTEN": "[::1]:3", "METAMCP_STATE_DIR": "/e", "METAMCP_OPS_LISTEN": ""}
    got = loaded(tmp_path, text, environ=environ, flags={"listen": "localhost:4"}).gateway
    assert got.listen == Address("localhost", 4)
    assert got.ops_listen == Address("127.0.0.1", 2)
    assert got.state_dir == Path("/e")
    assert got.runtime_dir == tmp_path / "home/r"
    assert loaded(tmp_path, text).gateway.state_dir == tmp_path / "s"


def test_a_project_has_directories_of_its_own_named_after_the_path_of_its_file(
    tmp_path: Path,
) -> None:
    session = {"XDG_RUNTIME_DIR": "/run/user/1", "XDG_STATE_HOME": "/state"}
    (tmp_path / "Web Site!").mkdir()
    web = loaded(tmp_path / "Web Site!", GIT, environ=session).gateway
    api = loaded(tmp_path, GIT, environ=session).gateway
    digest = web.state_dir.name.rpartition("-")[2]
    assert web.state_dir == Path(f"/state/metamcp/projects/web-site-{digest}")
    assert web.runtime_dir == Path(f"/run/user/1/metamcp-{digest}")
    assert web.state_dir != api.state_dir
    assert web.runtime_dir != api.runtime_dir
    (tmp_path / "link").symlink_to("Web Site!")
    assert loaded(tmp_path / "link", environ=session).gateway == web
    plain = loaded(tmp_path, environ={"XDG_STATE_HOME": "relative"}).gateway
    assert plain.state_dir.parent == tmp_path / "home/.local/state/metamcp/projects"
    assert plain.runtime_dir.parts[1] == "tmp"


def test_the_users_own_file_keeps_the_plain_directories(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, ".config/metamcp/metamcp.toml", GIT)
    environ = {"XDG_RUNTIME_DIR": "/run/user/1"}
    own = load(None, environ=environ, cwd=tmp_path, home=home).gateway
    assert (own.state_dir, own.runtime_dir) == (
        home / ".local/state/metamcp",
        Path("/run/user/1/metamcp"),
    )


def test_directories_come_from_systemd_when_nothing_names_them(tmp_path: Path) -> None:
    service = {"STATE_DIRECTORY": "/var/lib/m:/x", "RUNTIME_DIRECTORY": "/run/m"}
    unit = loaded(tmp_path, GIT, environ=service).gateway
    assert (unit.state_dir, unit.runtime_dir) == (Path("/var/lib/m"), Path("/run/m"))


def test_an_error_from_outside_names_the_flag_or_the_variable(tmp_path: Path) -> None:
    got = messages(tmp_path, GIT, environ={"METAMCP_FRONTS": "many"}, flags={"ops_listen": "6271"})
    assert [each.split(":")[0] for each in got] == ["--ops-listen", "$METAMCP_FRONTS"]


def test_whether_files_are_watched_is_said_from_outside_in_the_file_or_by_the_verb(
    tmp_path: Path,
) -> None:
    assert not loaded(tmp_path, GIT).gateway.watch
    assert loaded(tmp_path, GIT, environ={"METAMCP_WATCH": "true"}).gateway.watch
    written = GIT + "[gateway]\nwatch = true\n"
    assert loaded(tmp_path, written).gateway.watch
    assert not loaded(tmp_path, written, flags={"watch": "false"}).gateway.watch
    (wrong,) = messages(tmp_path, GIT, flags={"watch": "often"})
    assert wrong.startswith("--watch: must be true or false")


@pytest.mark.promise("M17")
def test_own_file_includes_files_of_clients_and_others_of_its_kind(tmp_path: Path) -> None:
    write(tmp_path, ".mcp.json", MCP)
    write(tmp_path, "team/more.toml", 'include = ["../metamcp.toml.d"]\n' + GIT.replace("git", "b"))
    write(tmp_path, "metamcp.toml.d", GIT.replace("git", "c"))
    main = 'include = [".mcp.json", "team/more.toml", "./.mcp.json"]\n' + GIT.replace("git", "a")
    got = loaded(tmp_path, main)
    assert list(got.servers) == ["a", "git", "b", "c"]
    assert [each.name for each in got.files] == [
        "metamcp.toml", ".mcp.json", "more.toml", "metamcp.toml.d",
    ]  # fmt: skip
    assert got.servers["git"].cwd == tmp_path
    assert got.servers["b"].cwd == tmp_path / "team"
    assert got.servers["git"].source.endswith("/.mcp.json: mcpServers.git")


def test_files_that_include_each_other_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, "b.toml", 'include = ["metamcp.toml"]\n')
    (message,) = messages(tmp_path, 'include = ["b.toml"]\n')
    assert message == (
        "b.toml:1: include[0]: the files include each other: metamcp.toml → b.toml → metamcp.toml"
    )


def test_a_server_in_two_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    write(tmp_path, ".mcp.json", MCP)
    (message,) = messages(tmp_path, 'include = [".mcp.json"]\n' + GIT)
    assert message == (
        ".mcp.json:1: mcpServers.git: the server 'git' is already at"
        " metamcp.toml: servers.git (line 2); rename one"
    )


def test_tools_of_a_server_in_another_file_are_not_overridden_at_the_server(
    tmp_path: Path,
) -> None:
    write(tmp_path, ".mcp.json", MCP)
    text = 'include = [".mcp.json"]\n[servers.git]\ntools.log = { hidden = true }\n'
    first, _ = messages(tmp_path, text)
    assert first == (
        "metamcp.toml:2: servers.git: has no 'command', 'url' or 'module'; one of them says what it"
        " is; tools of a server in another file are overridden in a namespace or an endpoint"
    )


def test_a_namespace_or_endpoint_in_two_files_is_an_error(tmp_path: Path) -> None:
    text = '[namespaces.dev]\nservers = []\n[endpoints.dev]\nnamespace = "dev"\n'
    write(tmp_path, "b.toml", text)
    first, second = messages(tmp_path, 'include = ["b.toml"]\n' + text)
    assert first == (
        "b.toml:1: namespaces.dev: the namespace 'dev' is already at"
        " metamcp.toml: namespaces.dev (line 2); rename one"
    )
    assert second.endswith("is already at metamcp.toml: endpoints.dev (line 4); rename one")


def test_errors_of_included_files_are_told_with_the_others(tmp_path: Path) -> None:
    write(tmp_path, "b.toml", '[gateway]\nfronts = 1\n[servers.x]\ncommand = ["x"]\nnew = 1\n')
    write(tmp_path, "c.json", "{")
    got = messages(tmp_path, 'include = ["b.toml", "c.json", "no", ""]\nx = 1\n')
    assert [each.split(": ")[:2] for each in got] == [
        ["metamcp.toml:1", "include[2]"],
        ["metamcp.toml:1", "include[3]"],
        ["metamcp.toml:2", "x"],
        ["b.toml:1", "gateway"],
        ["b.toml:5", "servers.x.new"],
        ["c.json:1", "Expecting property name enclosed in double quotes at column 2"],
    ]


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It would have to cross a pipe as text, and it could not."""
    name = b"x\xff.toml".decode(errors="surrogateescape")
    (message,) = messages(tmp_path, GIT, name=name)
    assert message == ("x\\udcff.toml: its path has half a surrogate pair in it, which is not text")


def test_the_number_of_servers_is_limited(tmp_path: Path) -> None:
    text = "".join(f'[servers.s{number}]\ncommand = "x"\n' for number in range(1001))
    assert messages(tmp_path, text) == ["metamcp.toml: has 1001 servers; the limit is 1000"]


def test_the_number_of_files_is_limited(tmp_path: Path) -> None:
    for number in range(80):
        write(tmp_path, f"{number}.toml", f'include = ["{number + 1}.toml"]\n')
    (message,) = messages(tmp_path, name="0.toml")
    assert "is more than the 64 files" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[gateway]\nruntime_dir = "run"\n', "{folder}/run"),
        ('[gateway]\nruntime_dir = "~/run"\n', "{folder}/home/run"),
        ('[gateway]\nruntime_dir = "${PLACE}/run"\n', "/place/run"),
        ("[gateway]\nruntime_dir = 5\n", "default"),
        ('[gateway]\nruntime_dir = "run\n', "default"),
    ],
)
def test_a_gateway_is_found_from_its_folder_by_what_the_file_there_says(
    text: str, expected: str, tmp_path: Path
) -> None:
    main = write(tmp_path, "metamcp.toml", text)
    environ = {"PLACE": "/place"}
    default = places.of(main, environ=environ, home=tmp_path / "home").runtime_dir
    found = places.seen_from(tmp_path, environ=environ, home=tmp_path / "home")
    assert found.of_folder
    assert str(found.runtime_dir) == expected.format(folder=tmp_path).replace(
        "default", str(default)
    )


def test_ports_of_the_last_run_are_known_unless_the_file_is_damaged(tmp_path: Path) -> None:
    assert places.ports(tmp_path) is None
    places.keep_ports(tmp_path, 6272, 6273)
    assert places.ports(tmp_path) == (6272, 6273)
    for text in ("", "1", "a b", "0 1", "6272 99999"):
        write(tmp_path, places.PORTS, text)
        assert places.ports(tmp_path) is None
    (tmp_path / places.PORTS).unlink()
    os.mkfifo(tmp_path / places.PORTS)
    assert places.ports(tmp_path) is None
