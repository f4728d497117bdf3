"""`metamcp export`: the servers of this gateway in the files of other programs."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.cli.import_servers import FORMS, TOML
from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.config import sources
from tests.supervisor.clienthome import Home

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux"),
    pytest.mark.promise("M108"),
]

SUFFIXES = {"codex": ".toml", "toml": ".toml", "continue": ".yaml", "goose": ".yaml"}
TYPED = {"claude", "claude-code", "mcp-json", "vscode", "gemini", "gemini-cli", "cline",
         "continue", "goose"}  # fmt: skip
"""Forms in which a URL says which transport it has."""
OURS = """
[servers.plain]
command = ["uvx", "server", "--depth", "3", "a b"]

[servers.full]
command = ["npx", "-y", "server"]
cwd = "/srv/data"
enabled = false
timeout = "90s"
sharing = "per-session"
env = { LEVEL = "info", API_KEY = "${env:API_KEY}", OTHER = "${env:ELSEWHERE}", ODD = "a$${b}" }

[servers.defaulted]
command = ["server", "${env:ROOT:-/srv}"]

[servers.filed]
command = ["server"]
env = { TOKEN = "${file:SECRET}" }

[servers.far]
url = "https://mcp.example.com/mcp"
headers.X-Team = "${env:TEAM}"
headers.Authorization = "Bearer ${env:API_KEY}"
headers.Accept-Language = "de"

[servers.streamed]
url = "https://mcp.example.com/sse"
transport = "sse"
"""
ENVIRON = {"API_KEY": "1", "TEAM": "2", "ELSEWHERE": "3"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.environ |= ENVIRON
    return made


def exported(home: Home, form: str, *names: str) -> tuple[Path, dict[str, list[str]]]:
    """The file, and what was said of each server."""
    path = home.project / f"out{SUFFIXES.get(form, '.json')}"
    said = json.loads(
        home.works("export", "--to", form, "-o", str(path), "--json", *names).splitlines()[-1]
    )
    assert path.read_text() == said["text"]
    about: dict[str, list[str]] = {}
    for sentence in said["said"]:
        about.setdefault(re.split(r"[: ]", sentence)[0], []).append(sentence)
    return path, about


def imported(home: Home, path: Path) -> tuple[dict[str, Any], str]:
    """The servers, and what was said of them."""
    target = home.folder / "again.toml"
    output = home.works("import", "--from", str(path), "--to", str(target))
    text = re.sub(r"\$\{(?!file:|env:)(\w+)", r"${env:\1", target.read_text())
    return tomllib.loads(text)["servers"], output


def what_is_left(before: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """The table without what a sentence says is left out."""
    named = " ".join(said)
    found = {key: value for key, value in before.items() if not re.search(rf"\b{key}\b", named)}
    for key, what in (("env", "variable"), ("headers", "header")):
        inner = {
            name: value
            for name, value in before.get(key, {}).items()
            if not re.search(rf"\bthe {what} {name}\b", named)
        }
        found.pop(key, None)
        if inner:
            found[key] = inner
    return found


@pytest.mark.parametrize("form", FORMS)
def test_what_is_imported_again_is_what_was_exported_but_for_what_was_said(
    home: Home, form: str
) -> None:
    secret = home.folder / "secret"
    secret.write_text("a-long-secret")
    secret.chmod(0o600)
    text = OURS.replace("SECRET", str(secret))
    home.with_config(text)
    before = tomllib.loads(text)["servers"]
    path, about = exported(home, form)
    again, told = (
        (tomllib.loads(path.read_text())["servers"], "") if form == TOML else imported(home, path)
    )
    out = {name for name, said in about.items() if f"{name} is left out: " in said[0]}
    assert set(again) == set(before) - out
    if form == TOML:
        assert again == before
        assert not about
        return
    for name, table in again.items():
        expected = what_is_left(
            before[name], [*about.get(name, []), *re.findall(rf"\.{name}\..*", told)]
        )
        if "command" in expected:
            expected.setdefault("cwd", str(home.project))  # a file that is named keeps its folder
        if form in TYPED and "url" in expected:
            expected.setdefault("transport", "http")
        assert table == expected, name
    assert len(out) < len(before)
    assert all(len(said) == 1 for said in about.values()), "one sentence for each server"


@pytest.mark.parametrize("form", [*CLIENTS, TOML])
@pytest.mark.parametrize("client", ["claude-code", "claude-desktop", "codex", "vscode", "opencode",
                                    "continue", "goose"])  # fmt: skip
def test_servers_of_a_client_reach_another_client(home: Home, client: str, form: str) -> None:
    home.fill(client)
    target = home.project / "metamcp.toml"
    home.works("import", client, "--to", str(target))
    home.environ["DB_URL"] = "x"
    before = tomllib.loads(target.read_text())["servers"]
    result = home.run("export", "--to", form, "-o", str(home.project / "out.json"))
    path = (home.project / "out.json").rename(home.project / f"x{SUFFIXES.get(form, '.json')}") \
        if result.exit_code == 0 else None  # fmt: skip
    if path is None:
        assert " is left out: " in result.output
        return
    again = tomllib.loads(path.read_text())["servers"] if form == TOML else imported(home, path)[0]
    for name, table in again.items():
        for key in ("command", "url"):
            assert table.get(key) == before[name].get(key)


def test_no_secret_is_exported_in_any_form(home: Home) -> None:
    secret = "tief-geheim-1234567"
    home.with_config(f"""
[servers.near]
command = ["server", "--api-key", "{secret}"]
env = {{ GITHUB_TOKEN = "{secret}", A_KEY = "${{OTHER_TOKEN:-{secret}}}" }}
[servers.far]
url = "https://x.example/mcp?api_key={secret}"
headers = {{ X-Key = "{secret}" }}
oauth = {{ client_id = "me", client_secret = "{secret}" }}
""")
    for form in FORMS:
        result = home.run("export", "--to", form)
        assert secret not in result.output, form
    told = home.works("export", "--to", "toml")
    for variable in ("NEAR_ARGUMENT_2", "GITHUB_TOKEN", "FAR_URL", "FAR_X_KEY",
                     "FAR_CLIENT_SECRET"):  # fmt: skip
        assert f"set {variable} in the environment of the gateway" in told
        assert f"${{env:{variable}}}" in told


def test_toml_is_a_configuration_with_the_endpoints_and_everything_that_is_set(home: Home) -> None:
    text = """
[servers.git]
command = ["uvx", "git"]
restart = "always"
memory_max = "1G"
tools = { commit = { hidden = true } }

[servers.other]
command = ["other"]

[namespaces.dev]
servers = ["git"]
description = "For work"

[endpoints.dev]
namespace = "dev"
exposure = "search"
"""
    home.with_config(text)
    path = home.project / "out.toml"
    home.works("export", "--to", "toml", "-o", str(path))
    assert tomllib.loads(path.read_text()) == tomllib.loads(text)
    said = home.works("export", "--to", "toml", "--endpoint", "dev")
    one = tomllib.loads(said)
    assert set(one["servers"]) == {"git"}
    found = [
        sources.load(each, environ={}, cwd=home.project, home=home.folder)
        for each in (home.config, path)
    ]
    assert found[0].namespaces == found[1].namespaces
    assert found[0].endpoints == found[1].endpoints


def test_what_cannot_be_meant_is_said(home: Home) -> None:
    home.with_config('[servers.git]\ncommand = ["git"]\n[servers.off]\nmodule = "x.y:z"\n')
    taken = home.project / "taken.json"
    taken.write_text("mine")
    for arguments, code, sentence in (
        (["gti", "--to", "cursor"], 8, "no server is named 'gti'; did you mean 'git'?"),
        (["--to", "cursor", "--endpoint", "x"], 8, "no endpoint is named 'x'"),
        (["--to", "cursor", "-o", str(taken)], 1, "taken.json exists already"),
        (["off", "--to", "cursor"], 1, "off is left out: it is neither a command nor a URL"),
        (["--to", "nosuch"], 2, "'nosuch' is not one of"),
        ([], 2, "--to"),
    ):
        result = home.run("export", *arguments)
        assert (result.exit_code, sentence in result.output) == (code, True), result.output
    assert taken.read_text() == "mine"


def test_a_server_of_a_workspace_stays_in_it(home: Home) -> None:
    home.with_config('[servers.a]\ncommand = ["a"]\n[workspaces.acme.servers.b]\ncommand = ["b"]\n')
    output = home.works("export", "--to", "mcp-json")
    assert "metamcp: acme:b is left out: it belongs to a workspace" in output
    assert '"a"' in output
    assert '"b"' not in output


def test_an_endpoint_of_a_workspace_stays_in_it(home: Home) -> None:
    home.with_config(
        '[servers.a]\ncommand = ["a"]\n[endpoints.mine]\nnamespace = "default"\n'
        '[workspaces.acme.namespaces.n]\nservers = ["default:a"]\n'
        '[workspaces.acme.endpoints.e]\nnamespace = "n"\n'
    )
    path = home.project / "out.toml"
    output = home.works("export", "--to", "toml", "-o", str(path))
    assert "metamcp: the endpoint e is left out: it belongs to a workspace" in output
    found = sources.load(path, environ={}, cwd=home.project, home=home.folder)
    assert [*found.endpoints] == ["mine"]
