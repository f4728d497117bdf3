"""`metamcp namespaces|endpoints|workspaces` edit the tables of the configuration, and the rest of
the file keeps its layout."""

import json

import pytest

from metamcp_supervisor.verbs import Exit
from tests.supervisor.clienthome import Home

TOML = """# mine
[servers.git]   # first
command = ["x"] # c

[servers.other]
command=["y"]
"""
ENDPOINTS = """
[namespaces.tools]
servers = ["git"]

[endpoints.default]
namespace = "default"

[endpoints.t] # for tools
namespace = "tools"
exposure = "search" # few

[endpoints.t.limits]
streams = 5
"""


def edited(home: Home, text: str, *words: str) -> str:
    """Return the file after a verb."""
    path = home.project / "metamcp.toml"
    path.write_text(text)
    home.works(*words)
    return path.read_text()


@pytest.mark.promise("M67")
def test_a_namespace_is_added_changed_and_removed(home: Home) -> None:
    added = edited(home, TOML, "namespaces", "add", "tools", "servers=git", "description=My tools")
    assert added == f'{TOML}\n[namespaces.tools]\nservers = ["git"]\ndescription = "My tools"\n'
    changed = edited(
        home, added, "namespaces", "set", "tools", "servers=git, other", "description="
    )
    assert changed == f'{TOML}\n[namespaces.tools]\nservers = ["git", "other"]\n'
    assert edited(home, changed, "namespaces", "remove", "tools", "--yes") == TOML


def test_what_leaves_the_default_namespace_is_told(home: Home) -> None:
    (home.project / "metamcp.toml").write_text(TOML)
    result = home.run("namespaces", "add", "tools", "servers=git")
    assert "the namespace 'default' no longer has: git;" in result.output
    result = home.run("namespaces", "set", "tools", "description=x")
    assert "no longer" not in result.output
    result = home.run("namespaces", "remove", "tools", "--yes", "--dry-run")
    assert "the namespace 'default' now has: git;" in result.output


def test_no_endpoint_comes_back_open_when_its_table_goes(home: Home) -> None:
    path = home.project / "metamcp.toml"
    text = f'{TOML}\n[endpoints.default]\nnamespace = "default"\nauth = "keys"\n'
    path.write_text(text)
    result = home.run("endpoints", "remove", "default", "--yes")
    assert (result.exit_code, path.read_text()) == (Exit.FAILED, text)
    assert "'default' is the only endpoint of its workspace" in result.output


@pytest.mark.promise("M67")
def test_the_first_endpoint_leaves_the_default_one_in_place(home: Home) -> None:
    words = ("t", "namespace=default", "exposure=search", "limits.calls_per_minute=60", "sse=false")
    text = edited(home, TOML, "endpoints", "add", *words)
    assert text == (
        f'{TOML}\n[endpoints.default]\nnamespace = "default"\n\n[endpoints.t]\n'
        'namespace = "default"\nexposure = "search"\nlimits = {calls_per_minute = 60}\n'
        "sse = false\n"
    )


@pytest.mark.parametrize(
    ("settings", "old", "new"),
    [
        (("exposure=all",), 'exposure = "search" # few', 'exposure = "all" # few'),
        (("limits.streams=7",), "streams = 5", "streams = 7"),
        (("limits.streams=",), "\n[endpoints.t.limits]\nstreams = 5\n", ""),
        (("sse=false",), "few\n", "few\nsse = false\n"),
        (("builtins=catalog,agent",), "few\n", 'few\nbuiltins = ["catalog", "agent"]\n'),
        (('builtins=["catalog"]',), "few\n", 'few\nbuiltins = ["catalog"]\n'),
        (("naming.style=bare", "sse="), "few\n", 'few\nnaming = {style = "bare"}\n'),
    ],
)
def test_a_setting_changes_its_own_line(
    settings: tuple[str, ...], old: str, new: str, home: Home
) -> None:
    assert old in ENDPOINTS
    text = edited(home, TOML + ENDPOINTS, "endpoints", "set", "t", *settings)
    assert text == TOML + ENDPOINTS.replace(old, new)


def test_an_endpoint_without_a_table_gets_one(home: Home) -> None:
    text = edited(home, TOML, "endpoints", "set", "default", "exposure=search")
    assert text == f'{TOML}\n[endpoints.default]\nnamespace = "default"\nexposure = "search"\n'


@pytest.mark.promise("M67")
def test_a_workspace_gets_its_namespace_and_endpoint(home: Home) -> None:
    text = edited(home, TOML, "workspaces", "add", "acme", "limits.calls_per_minute=600")
    text = edited(home, text, "namespaces", "add", "acme:default", "servers=default:git")
    text = edited(home, text, "endpoints", "add", "acme:acme", "namespace=default")
    assert text == (
        f"{TOML}\n[workspaces.acme]\nlimits = {{calls_per_minute = 600}}\n\n"
        '[workspaces.acme.namespaces.default]\nservers = ["default:git"]\n\n'
        '[workspaces.acme.endpoints.acme]\nnamespace = "default"\n'
    )
    rows = json.loads(home.works("workspaces", "list", "--json"))["workspaces"]
    assert rows[1] == {
        "workspace": "acme", "namespaces": ["default"], "endpoints": ["acme"],
        "servers": ["acme:git"],
    }  # fmt: skip
    text = edited(home, text, "endpoints", "set", "acme", "exposure=search")
    assert text.endswith(
        '[workspaces.acme.endpoints.acme]\nnamespace = "default"\nexposure = "search"\n'
    )
    text = edited(home, text, "workspaces", "remove", "acme", "--yes")
    assert text == TOML


def test_an_endpoint_is_known_with_its_workspace_too(home: Home) -> None:
    own = '[workspaces.acme.servers.own]\ncommand = ["x"]\n'
    endpoint = '[workspaces.acme.endpoints.acme]\nnamespace = "default"\nauth = "keys"\n'
    text = edited(home, TOML + own + endpoint, "endpoints", "set", "acme:acme", "sse=false")
    assert text == f"{TOML}{own}{endpoint}sse = false\n"
    assert 'auth = ["keys"]' in home.works("endpoints", "show", "acme:acme")
    result = home.run("endpoints", "remove", "acme:acme", "--yes")
    assert "is the only endpoint of its workspace" in result.output
    assert home.run("endpoints", "set", "bolt:acme", "sse=true").exit_code == Exit.UNKNOWN_NAME


def test_a_workspace_keeps_the_endpoint_that_it_has_without_a_table(home: Home) -> None:
    text = edited(home, TOML, "workspaces", "add", "acme")
    text = edited(home, text, "endpoints", "add", "acme:more", "namespace=default")
    assert "[workspaces.acme.endpoints.acme]" in text
    assert "acme:default" in home.works("endpoints", "list")


@pytest.mark.parametrize(
    ("settings", "old", "new"),
    [
        (("gateway.auth=keys", "log.level="), "", '\n[gateway]\nauth = ["keys"]\n'),
        (("servers.git.timeout=7m",), "# c\n", '# c\ntimeout = "7m"\n'),
        (("servers.git.limits.in_flight=4",), "# c\n", "# c\nlimits = {in_flight = 4}\n"),
        (
            ("servers.git.tools.reset.hidden=true",),
            "",
            "\n[servers.git.tools.reset]\nhidden = true\n",
        ),
        (("endpoints.t.limits.streams=7",), "streams = 5", "streams = 7"),
        (("servers.git.env.A=1",), "# c\n", '# c\nenv = {A = "1"}\n'),
        (("servers.git.command=uvx 'my server'",), '["x"] # c', '["uvx", "my server"] # c'),
        (('servers.git.tools."a.b".name=c',), "", '\n[servers.git.tools."a.b"]\nname = "c"\n'),
    ],
)
def test_a_key_anywhere_is_set(settings: tuple[str, ...], old: str, new: str, home: Home) -> None:
    text = edited(home, TOML + ENDPOINTS, "config", "set", *settings)
    before = TOML + ENDPOINTS
    assert text == (before.replace(old, new, 1) if old else before + new)


def test_a_key_of_a_workspace_is_set(home: Home) -> None:
    text = f'{TOML}\n[workspaces.acme.servers.own]\ncommand = ["x"]\n'
    assert edited(home, text, "config", "set", "workspaces.acme.servers.own.timeout=5m") == (
        f'{text}timeout = "5m"\n'
    )
    text = edited(home, text, "endpoints", "set", "acme", "exposure=search")
    assert '[workspaces.acme.endpoints.acme]\nnamespace = "default"\nexposure = "search"' in text


def test_the_first_endpoint_that_a_key_makes_leaves_the_default_one(home: Home) -> None:
    text = edited(home, TOML, "config", "set", "endpoints.desk.namespace=default")
    assert text.count("[endpoints.default]") == 1
    text = edited(home, TOML, "config", "set", "endpoints.default.exposure=search")
    assert text == f'{TOML}\n[endpoints.default]\nnamespace = "default"\nexposure = "search"\n'


def test_an_edit_mends_a_mistake(home: Home) -> None:
    text = f'{TOML}\n[endpoints.desk]\nnamespace = "nope"\n'
    mended = edited(home, text, "endpoints", "set", "desk", "namespace=default")
    assert mended == text.replace("nope", "default")


def test_a_table_of_an_included_file_is_told(home: Home) -> None:
    (home.project / "inc.toml").write_text('[endpoints.inc]\nnamespace = "default"\n')
    (home.project / "metamcp.toml").write_text(f'include = ["inc.toml"]\n{TOML}')
    result = home.run("endpoints", "set", "inc", "exposure=search")
    assert "name that file with --config" in result.output


def test_comments_in_a_list_stay(home: Home) -> None:
    text = f'{TOML}[namespaces.n]\nservers = [\n  "git", # one\n  "other", # two\n]\n'
    assert edited(home, text, "namespaces", "set", "n", "servers=other,git") == text.replace(
        '"git", # one\n  "other"', '"other", # one\n  "git"'
    )


def test_what_needs_a_start_of_the_gateway_is_told(home: Home) -> None:
    (home.project / "metamcp.toml").write_text(TOML)
    said = home.run("config", "set", "gateway.fronts=2").output
    assert "gateway.fronts is in force when the gateway is started again" in said


def test_a_table_goes_with_its_last_key(home: Home) -> None:
    text = edited(home, TOML, "config", "set", "log.level=debug")
    assert edited(home, text, "config", "set", "log.level=") == TOML


def test_lists_and_settings_are_shown(home: Home) -> None:
    (home.project / "metamcp.toml").write_text(TOML + ENDPOINTS)
    assert "t         /metamcp/t/mcp        tools      search" in home.works("endpoints", "list")
    assert 'exposure = "search"' in home.works("endpoints", "show", "t")
    assert "tools      git      t" in home.works("namespaces", "list")
    shown = json.loads(home.works("namespaces", "show", "tools", "--json"))
    assert shown == {"v": 1, "name": "tools", "settings": {"servers": ["git"]}}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("endpoints", "set", "x", "sse=false"), Exit.UNKNOWN_NAME, "no endpoint 'x'; there are:"),
        (("endpoints", "set", "t"), Exit.USAGE, "say what to change: metamcp endpoints set NAME"),
        (("endpoints", "set", "t", "sse"), Exit.USAGE, "a setting is written KEY=VALUE, not 'sse'"),
        (("endpoints", "set", "t", "exposur=all"), Exit.USAGE, "did you mean 'exposure'?"),
        (("endpoints", "set", "t", "exposure=al"), Exit.CONFIG, "did you mean 'all'?; nothing is"),
        (("endpoints", "set", "t", "limits=4"), Exit.USAGE, "write one of limits.calls_per_minute"),
        (("endpoints", "set", "t", "tools=4"), Exit.USAGE, "have verbs of their own"),
        (("endpoints", "set", "t", "limits.stream=4"), Exit.USAGE, "did you mean 'streams'?"),
        (("endpoints", "set", "t", "limits.streams=x"), Exit.CONFIG, "nothing is changed"),
        (("endpoints", "add", "t", "namespace=tools"), Exit.FAILED, "metamcp endpoints set t"),
        (("endpoints", "add", "u", "namespace=tool"), Exit.CONFIG, "nothing is changed"),
        (
            ("endpoints", "add", "amce:u", "namespace=default"),
            Exit.UNKNOWN_NAME,
            "workspace 'amce'",
        ),
        (("endpoints", "create", "u"), Exit.USAGE, "did you mean 'add'?"),
        (("namespaces", "remove", "tools", "--yes"), Exit.CONFIG, "nothing is changed"),
        (("namespaces", "remove", "default", "--yes"), Exit.UNKNOWN_NAME, "without a table"),
        (("config", "set", "gatewy.auth=keys"), Exit.USAGE, "did you mean 'gateway'?"),
        (("config", "set", "gateway.aut=keys"), Exit.USAGE, "did you mean 'auth'?"),
        (("config", "set", "gateway.auth=kys"), Exit.CONFIG, "did you mean 'keys'?; nothing is"),
        (("config", "set", "auth=keys"), Exit.USAGE, "write gateway.auth"),
        (("config", "set", "endpoints.t.tools=4"), Exit.USAGE, "have verbs of their own"),
        (("config", "set"), Exit.USAGE, "say what to change"),
        (("config", "set", "servers.git=x"), Exit.USAGE, "write servers.git.KEY"),
        (("config", "set", "include=x"), Exit.USAGE, "edit the file"),
        (("config", "set", "servers.gti.timeout=5m"), Exit.UNKNOWN_NAME, "did you mean 'git'?"),
        (("workspaces", "show", "acme"), Exit.UNKNOWN_NAME, "no workspace 'acme'"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_changed(
    words: tuple[str, ...], code: Exit, sentence: str, home: Home
) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML + ENDPOINTS)
    result = home.run(*words)
    assert (result.exit_code, sentence in result.output) == (code, True), result.output
    assert path.read_text() == TOML + ENDPOINTS


def test_nothing_is_written_with_dry_run_nor_into_a_file_of_json(home: Home) -> None:
    path = home.project / "metamcp.toml"
    path.write_text(TOML)
    assert "+[namespaces.tools]" in home.works(
        "namespaces", "add", "tools", "servers=git", "--dry-run"
    )
    assert path.read_text() == TOML
    path.unlink()
    (home.project / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "x"}}}')
    result = home.run("namespaces", "add", "tools", "servers=git")
    assert (result.exit_code, "'metamcp init'" in result.output) == (Exit.CONFIG, True)


def test_a_server_with_tables_of_tools_is_switched_off_and_on(home: Home) -> None:
    tools = "\n[servers.git.tools.reset]\nhidden = true\n"
    off = edited(home, TOML + tools, "disable", "git")
    assert off == TOML.replace("# c\n", "# c\nenabled = false\n") + tools
    assert edited(home, off, "enable", "git") == TOML + tools


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("settings"))
