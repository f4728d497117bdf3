"""The JSON files of other programs, read as they are."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_supervisor.config.config import Config, ConfigInvalid, Server, ToolConfig
from metamcp_supervisor.config.references import refers
from metamcp_worker.access import api_key
from metamcp_worker.ipc.spec import OAuth
from tests.supervisor.configs import loaded, messages

CLAUDE = """{
  // what Claude Desktop, Cursor and .mcp.json have
  "mcpServers": {
    "My Server": {
      "command": "npx", "args": ["-y", "${PACKAGE:-pkg}"], "type": "stdio",
      "env": {"PORT": 3000, "URL": "http://x//y", "GONE": null}, "autoApprove": ["x"],
    },
    "off": {"command": "x", "disabled": true},
    /* remote ones */
    "linear": {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"A": "${NO:-x}"}},
    "socket": {"type": "ws", "url": "wss://mcp.example.com/mcp"},
  },
  "globalShortcut": "",
}"""
VS_CODE = """{
  "inputs": [
    {"type": "promptString", "id": "github-token", "description": "Token", "password": true},
    {"type": "promptString", "id": "region", "default": "eu"}
  ],
  "servers": {"git": {
    "type": "stdio", "command": "${workspaceFolder}/bin/git",
    "env": {"GITHUB_TOKEN": "${input:github-token}", "REGION": "${input:region}"}
  }}
}"""
META_MCP = """{
  "mcp_servers": [
    {"name": "file_mcp", "type": "stdio", "command": "/path/to/server", "args": ["--config", "/x"]},
    {"name": "git_mcp", "type": "url", "url": "http://localhost:9001/sse", "headers": {"A": "B"}}
  ],
  "ai_api": {"provider": "openai", "endpoint": "https://api.example.com/v1"},
  "storage_path": "~/.meta-mcp/storage.db"
}"""
LEFT_OUT = (
    "is left out: it has the type 'ws', and this version runs programs and reaches servers by HTTP"
)


@pytest.mark.promise("M16")
def test_a_file_of_claude_or_cursor_is_read_as_it_is(tmp_path: Path) -> None:
    got = loaded(tmp_path, CLAUDE, name=".mcp.json")
    assert list(got.servers) == ["my-server", "off", "linear"]
    first = got.servers["my-server"]
    assert first.command == ("npx", "-y", "pkg")
    assert first.env == {"PORT": "3000", "URL": "http://x//y"}
    assert first.cwd == tmp_path
    assert not got.servers["off"].enabled
    linear = got.servers["linear"]
    assert (linear.url, linear.headers) == ("https://mcp.example.com/mcp", {"A": "x"})
    assert [each.split(": ", 2)[2] for each in got.warnings] == [
        "the server 'My Server' is called 'my-server' here",
        "is null and left alone",
        f"the server 'socket' {LEFT_OUT}",
    ]


@pytest.mark.promise("M16")
def test_a_file_of_vs_code_is_read_with_its_inputs_and_folder(tmp_path: Path) -> None:
    environ = {"GITHUB_TOKEN": "t"}
    got = loaded(tmp_path, VS_CODE, name=".vscode/mcp.json", environ=environ).servers["git"]
    assert got.command == (f"{tmp_path}/bin/git",)
    assert got.env == {"GITHUB_TOKEN": "t", "REGION": "eu"}
    assert got.cwd == tmp_path
    (message,) = messages(tmp_path, name=".vscode/mcp.json")
    assert message == (
        ".vscode/mcp.json:8: servers.git.env.GITHUB_TOKEN: the input 'github-token' (Token) is"
        " missing; set the environment variable GITHUB_TOKEN"
    )


@pytest.mark.promise("M16")
def test_a_servers_json_of_mcpflip_is_read_as_it_is(tmp_path: Path) -> None:
    text = '{"chrome": {"command": "npx", "args": ["a", "b"]}, "$schema": "x"}'
    got = loaded(tmp_path, text, name="servers.json")
    assert got.servers["chrome"].command == ("npx", "a", "b")
    assert got.warnings == ()
    assert list(loaded(tmp_path, "{}", name="servers.json").servers) == []


@pytest.mark.promise("M16")
def test_a_config_json_of_meta_mcp_is_read_and_its_rest_named(tmp_path: Path) -> None:
    got = loaded(tmp_path, META_MCP, name="config.json")
    assert got.servers["file_mcp"].command == ("/path/to/server", "--config", "/x")
    remote = got.servers["git_mcp"]
    assert (remote.url, remote.headers) == ("http://localhost:9001/sse", {"A": "B"})
    (warning,) = [each.replace(f"{tmp_path}/", "") for each in got.warnings]
    assert warning == (
        "config.json:7: storage_path: names a file; a gateway with this configuration keeps its"
        " state in a folder beside it"
    )
    assert got.gateway.state_dir == tmp_path / "home/.meta-mcp/storage"
    assert got.workflows.rules_shipped
    assert got.endpoints["default"].builtins == ("catalog", "workflows")
    included = loaded(tmp_path, 'include = ["config.json"]\n')
    assert included.gateway.state_dir != got.gateway.state_dir
    assert not included.workflows.rules_shipped
    assert included.endpoints["default"].builtins == ()
    assert (got.ai.provider, got.ai.url) == ("openai", "https://api.example.com/v1")
    assert (got.ai.key, refers(got.ai.key_written)) == ("", True)


@pytest.mark.promise("M16")
@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://x/"}, "auto"),
        ({"serverUrl": "https://x/"}, "auto"),
        ({"httpUrl": "https://x/"}, "http"),
        ({"type": "url", "url": "https://x/"}, "auto"),
        ({"type": "http", "url": "https://x/"}, "http"),
        ({"type": "streamable-http", "url": "https://x/"}, "http"),
        ({"type": "streamableHttp", "url": "https://x/"}, "http"),
        ({"type": "sse", "url": "https://x/"}, "sse"),
        ({"transport": "streamable_http", "url": "https://x/"}, "http"),
        ({"type": "remote", "url": "https://x/", "command": "ignored"}, "auto"),
    ],
)
def test_every_way_to_write_a_url_is_read(
    tmp_path: Path, entry: dict[str, str], transport: str
) -> None:
    got = loaded(tmp_path, json.dumps({"mcpServers": {"a": entry}}), name="x.json")
    server = got.servers["a"]
    assert (server.url, server.transport, server.command) == ("https://x/", transport, ())
    assert got.warnings == ()


def test_headers_of_clients_that_are_not_theirs_are_left_out(tmp_path: Path) -> None:
    headers = {"Accept": "text/event-stream", "X-Port": 3, "X-None": None, "X-Team": "a"}
    entry = {"url": "https://x/", "headers": headers}
    got = loaded(tmp_path, json.dumps({"mcpServers": {"a": entry}}), name="x.json")
    assert got.servers["a"].headers == {"X-Port": "3", "X-Team": "a"}
    assert [each.rpartition("headers.")[2] for each in got.warnings] == [
        "X-None: is null and left alone",
        "Accept: is set by the gateway for each message; leave it out",
    ]


def test_the_client_that_another_program_is_may_be_ours_too(tmp_path: Path) -> None:
    def oauth(value: object, **more: object) -> OAuth | None:
        entry = {"url": "https://x/", "oauth": value, **more}
        text = json.dumps({"mcpServers": {"a": entry}})
        return loaded(tmp_path, text, name="x.json", environ={"S": "s"}).servers["a"].oauth

    known = {"clientId": "me", "clientSecret": "${S}", "scopes": "a b", "callbackPort": 8080}
    registered = OAuth(client_id="me", client_secret="s", scopes=("a", "b"), callback_port=8080)
    assert oauth(known) == registered
    assert oauth({"scopes": ["a"]}) == OAuth(scopes=("a",))
    assert oauth(True) == OAuth()
    assert oauth(False) is oauth("no") is None
    assert oauth(True, headers={"Authorization": "Bearer ${S}"}) is None


@pytest.mark.promise("M18")
def test_a_namespace_may_name_a_server_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(CLAUDE)
    got = loaded(
        tmp_path,
        'include = [".mcp.json"]\n[namespaces.dev]\nservers = ["off", "socket"]\n'
        'tools."socket.x" = { enabled = false }\n[endpoints.dev]\nnamespace = "dev"\n',
    )
    assert got.namespaces["dev"].servers == ("off",)
    assert got.namespaces["dev"].tools == {}
    assert "the server 'socket' is left out" in got.warnings[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"debug": true}', ": has no servers in a known shape"),
        ('{"mcpServers": {"a": {}}}', ":1: mcpServers.a: has neither 'command' nor 'url'"),
        ('{"mcpServers": {"a": {"type": "sse", "command": "x"}}}',
         ":1: mcpServers.a: has no 'url', and its type is 'sse'"),
        ('{"mcpServers": {"a": {"url": "ws://x/"}}}', ":1: mcpServers.a.url: must begin with"),
        ('{"mcpServers": {"a": {"url": "http://x/", "headers": {"A:": "b"}}}}',
         ':1: mcpServers.a.headers."A:": is not the name of a header'),
        ('{"mcpServers": {"a": 1}}', ":1: mcpServers.a: must be a table, not a number"),
        ('{"mcpServers": {"日": {"command": "x"}}}', ":1: mcpServers.\"日\": '日' has nothing in"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": true}}}}', ":1: mcpServers.a.env.A"),
        ('{"mcpServers": {"a": {"command": "\\ud800"}}}', ":1: mcpServers.a.command: has half"),
        ('{"mcpServers": {"a": {"command": "x", "type": []}, "A": {"command": "y"}}}',
         ":1: mcpServers.A: the server 'a' is already at"),
        ('{"mcpServers": {"a": {"command": "x"},\n"a": {}}}', ":2: the key 'a' is written twice"),
        ('{"mcp_servers": [{"command": "x"}]}', ":1: mcp_servers[0]: has no 'name'"),
        ('{"mcp_servers": [\n7]}', "mcp_servers[0]: must be an object"),
    ],
)  # fmt: skip
@pytest.mark.promise("M98")
def test_an_error_in_a_foreign_file_says_where_it_is(
    tmp_path: Path, text: str, message: str
) -> None:
    (got,) = messages(tmp_path, text, name="x.json")
    assert message in got


def test_unknown_keys_of_clients_give_a_warning_and_known_ones_do_not(tmp_path: Path) -> None:
    entry = '{"command": "x", "description": "d", "_note": 1, "sandbox": true, "headers": {}}'
    got = loaded(tmp_path, f'{{"mcpServers": {{"a": {entry}}}}}', name="x.json")
    (warning,) = got.warnings
    assert warning.endswith("x.json:1: mcpServers.a.sandbox: is not carried over")


KEYS = ["mcpServers", "mcp_servers", "servers", "inputs", "name", "id", "command", "args", "env",
        "cwd", "url", "type", "disabled", "headers", "oauth", "clientId", "A b", "tools", "timeout",
        "mcp", "projects", "context_servers", "env_keys", "requestOptions", "enabledTools",
        "excludeTools", "envFile", "uses", "settings", "scopes", "amp.mcpServers"]  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "x", "${X", "${input:q}", "sse"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
)


@pytest.mark.parametrize(
    ("entry", "switches"),
    [
        ({"excludeTools": ["a"]}, {"a": False}),
        (
            {"enabled_tools": ["a", "b"], "disabled_tools": ["b"]},
            {"*": False, "a": True, "b": False},
        ),
        (
            {"includeTools": ["a_*", "b"], "excludeTools": ["a_*"]},
            {"*": False, "b": True, "a_*": False},
        ),
        ({"tools": ["*"]}, {}),
        ({"tools": []}, {"*": False}),
        ({"available_tools": []}, {}),
        ({"tools": {"a": False, "b": {"enabled": True}}}, {"a": False, "b": True}),
        ({"options": {"toolFilter": {"mode": "block", "list": ["a"]}}}, {"a": False}),
        ({"options": {"toolFilter": {"mode": "allow", "list": ["a"]}}}, {"*": False, "a": True}),
    ],
)
def test_lists_of_tools_become_switches_and_what_is_refused_wins(
    tmp_path: Path, entry: dict[str, Any], switches: dict[str, bool]
) -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x", **entry}}})
    got = loaded(tmp_path, text, name="x.json")
    found = {name: each.enabled for name, each in got.servers["a"].tools.items()}
    assert (found, got.warnings) == (switches, ())


def test_a_tool_of_a_client_s_file_can_be_hidden_and_have_another_name(tmp_path: Path) -> None:
    tools = {"a": {"hidden": True, "name": "b"}, "c": {"hidden": "yes"}}
    text = json.dumps({"mcpServers": {"a": {"command": "x", "tools": tools}}})
    got = loaded(tmp_path, text, name="x.json")
    assert got.servers["a"].tools == {"a": ToolConfig(hidden=True, name="b")}
    assert ["tools.c.hidden: is not carried over" in each for each in got.warnings] == [True]


@pytest.mark.parametrize(
    ("name", "entry", "timeout_s"),
    [
        (".gemini/settings.json", {"timeout": 90_000}, 90),
        (".roo/mcp.json", {"timeout": 90}, 90),
        ("zed/settings.json", {"timeout": 90}, 90),
        (".mcp.json", {"timeout": 90_000}, 90),
        ("any.json", {"timeout": 90, "alwaysAllow": []}, 90),
        ("any.json", {"timeout": 90_000, "includeTools": ["*"]}, 90),
        ("any.json", {"timeout": 90_000, "autoApprove": [], "disabledTools": []}, 90),
        ("any.json", {"timeoutMs": 90_000}, 90),
        ("any.json", {"tool_timeout_sec": 90}, 90),
        ("any.json", {"timeout": 90_000}, None),
        ("any.json", {"timeout": "90s"}, None),
        (".mcp.json", {"timeout": 0}, None),
        (".mcp.json", {"timeout": True}, None),
        (".roo/mcp.json", {"timeout": 90_000}, None),
    ],
)
def test_a_time_limit_is_read_in_the_unit_of_its_client_or_named(
    tmp_path: Path, name: str, entry: dict[str, Any], timeout_s: float | None
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    key = "context_servers" if name.startswith("zed") else "mcpServers"
    got = loaded(tmp_path, json.dumps({key: {"a": {"command": "x", **entry}}}), name=name)
    default = Server(name="a", source="").timeout_s
    assert got.servers["a"].timeout_s == (timeout_s or default)
    assert any(".timeout: is not carried over: " in each for each in got.warnings) is (
        timeout_s is None
    )


@pytest.mark.promise("M98")
@pytest.mark.parametrize(("name", "write"), [("x.json", json.dumps), ("x.yaml", yaml.safe_dump)])
@settings(deadline=None)
@given(values=st.dictionaries(st.sampled_from([*KEYS, "extensions", 1]), JSON, max_size=3))
def test_anything_is_a_configuration_or_a_list_of_errors(
    name: str, write: Callable[[object], str], values: dict[Any, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            assert isinstance(loaded(Path(folder), write(values), name=name), Config)
        except ConfigInvalid as invalid:
            problems = invalid.problems
        else:
            return
        assert all(each.message for each in problems)


@pytest.mark.promise("M98")
def test_yaml_that_stands_for_billions_of_values_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(9)]
    text = "\n".join([*lines, "mcpServers: {a: {command: x, args: *a9}}"])
    (message,) = messages(tmp_path, text, name="x.yaml")
    assert "more than 200000 values, with its aliases written out" in message


BORG = """{
  "mcpServers": {"git": {"command": "git-mcp"}},
  "endpoints": [
    {"id": "1", "name": "Dev tools", "path": "dev", "namespaceId": "default",
     "apiKeyRequired": true, "allowedApiKeys": ["laptop", "KEY"]},
    {"id": "2", "name": "Open", "namespaceId": "default", "apiKeyRequired": false},
    {"id": "3", "name": "All", "path": "All", "namespaceId": "default", "apiKeyRequired": true},
    {"id": "4", "name": "few", "namespaceId": "default", "allowedApiKeys": ["ci"]}
  ]
}"""


@pytest.mark.promise("M16", "M62")
def test_endpoints_that_need_keys_are_read_with_the_keys_that_may(tmp_path: Path) -> None:
    key = api_key.make(bytes(range(40)))
    got = loaded(tmp_path, BORG.replace("KEY", key), name=".mcp.json").endpoints
    assert {name: (one.path, one.auth, one.keys) for name, one in got.items()} == {
        "dev": ("", ("keys",), ("laptop", api_key.id_of(key))),
        "open": ("", (), ()),
        "all": ("All", ("keys",), ()),
        "few": ("", ("keys",), ("ci",)),
    }


GROUPED = """{
  "mcpServers": {
    "git": {"command": "git-mcp"},
    "postgres": {"command": "pg", "namespaceId": "data-tools"},
    "redis": {"command": "redis", "namespaceId": "7d4b"},
    "files": {"command": "files", "namespaceId": "default"},
    "slack": {"command": "slack", "namespaceId": "External"}
  },
  "namespaces": [
    {"id": "default", "name": "Default"},
    {"id": "data-tools", "name": "Data Tools", "description": "For analysis."},
    {"id": "7d4b", "name": "Caches"}
  ],
  "endpoints": [
    {"id": "1", "path": "dev", "namespaceId": "data-tools", "apiKeyRequired": false},
    {"id": "2", "path": "all", "namespaceId": "default", "apiKeyRequired": false}
  ]
}"""


@pytest.mark.promise("M16", "M61")
def test_namespaces_and_the_one_of_each_server_are_read(tmp_path: Path) -> None:
    got = loaded(tmp_path, GROUPED, name=".mcp.json")
    caches, external = got.warnings
    assert "[endpoints.caches]" in caches
    assert "[endpoints.external]" in external
    assert {name: one.servers for name, one in got.namespaces.items()} == {
        "default": ("git", "files"),
        "data-tools": ("postgres",),
        "caches": ("redis",),
        "external": ("slack",),
    }
    assert got.namespaces["data-tools"].description == "For analysis."
    assert {name: one.namespace for name, one in got.endpoints.items()} == {
        "dev": "data-tools",
        "all": "default",
    }


@pytest.mark.parametrize(
    ("namespaces", "server", "message"),
    [
        ('[{"id": "a"}, {"id": "b", "name": "A"}]', "{}", "the namespace 'a' is already at"),
        ('[{"id": "!", "name": "?"}]', "{}", "has no 'name' or 'id' that can be the name of a"),
        ("[]", '{"namespaceId": 5}', "must be a string"),
    ],
)
def test_a_mistake_in_a_namespace_is_named(
    tmp_path: Path, namespaces: str, server: str, message: str
) -> None:
    entry = json.dumps({"command": "x", **json.loads(server)})
    text = f'{{"mcpServers": {{"git": {entry}}}, "namespaces": {namespaces}}}'
    assert any(message in one for one in messages(tmp_path, text, name=".mcp.json"))


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        ('[{"namespaceId": "x", "name": "a"}]', "no namespace is named 'x'"),
        ('[{"namespaceId": "default"}]', "has no 'path' or 'name' that can be the name"),
        ('[{"apiKeyRequired": "yes", "name": "a"}]', "must be true or false"),
        ('[{"apiKeyRequired": true, "allowedApiKeys": [], "name": "a"}]', "names 1 to 64 API keys"),
    ],
)
def test_a_mistake_in_an_endpoint_is_named(tmp_path: Path, endpoints: str, said: str) -> None:
    text = f'{{"mcpServers": {{"git": {{"command": "x"}}}}, "endpoints": {endpoints}}}'
    assert any(said in one for one in messages(tmp_path, text, name=".mcp.json"))


def test_endpoints_of_another_program_mean_nothing(tmp_path: Path) -> None:
    text = '{"mcpServers": {"git": {"command": "x"}}, "endpoints": ["https://a.example"]}'
    assert list(loaded(tmp_path, text, name=".mcp.json").endpoints) == ["default"]
