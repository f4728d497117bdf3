"""`metamcp config` as it is called."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main
from metamcp_supervisor.config.show import mask_arguments
from tests.supervisor.configs import write

pytestmark = pytest.mark.process

TEXT = """
[servers.git]
command = ["x", "--api-key", "sk-canary", "${PATH}"]
env = { API_KEY = "top-canary", "odd name" = "é\\u202e" }
timeout = "90s"
[servers.wiki]
url = "https://x.example/mcp?key=url-canary"
headers = { Authorization = "Bearer head-canary" }
[servers.mail]
url = "${MAIL_URL:-https://mail.example/}"
oauth = { client_id = "me", client_secret = "client-canary", scopes = ["read"] }
[servers.chat]
url = "https://chat.example/sse"
transport = "sse"
oauth = { client_metadata_url = "https://me.example/client.json?k=meta-canary" }
[servers.notes]
module = "notes:server"
[servers.queue]
transport = "none-such"
options = { password = "option-canary" }
enabled = false
[namespaces.dev]
servers = ["git"]
tools."git.reset" = { enabled = false }
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, arguments)])


def test_check_says_what_there_is(tmp_path: Path) -> None:
    path = write(tmp_path, "metamcp.toml", '[servers.git]\ncommand = ["x"]\n')
    got = run("check", "--config", path)
    assert got.output == f"ok: 1 server, 1 namespace, 1 endpoint from {path}\n"
    assert got.exit_code == 0


@pytest.mark.promise("M17")
def test_check_tells_every_error_and_exits_with_65(tmp_path: Path) -> None:
    path = write(tmp_path, "metamcp.toml", "[servers.git]\ncomand = 1\n[gateway]\nfronts = 0\n")
    got = run("check", "--config", path)
    assert got.exit_code == 65
    assert got.stdout == ""
    assert len(got.stderr.splitlines()) == 2, "a mistyped key is one mistake, not two"


def test_files_of_tls_with_which_no_gateway_starts_are_told(tmp_path: Path) -> None:
    text = '[gateway]\ntls = { cert = "no.pem", key = "no.key" }\n[servers.a]\ncommand = "x"\n'
    path = write(tmp_path, "metamcp.toml", text)
    got = run("check", "--config", path)
    why = f"TLS: {tmp_path}/no.pem does not exist; the gateway would not start here"
    assert (got.exit_code, got.stderr) == (0, f"warning: {why}\n")
    assert run("check", "--strict", "--config", path).exit_code == 65


@pytest.mark.promise("M98")
def test_an_unknown_key_in_a_file_of_others_is_an_error_only_for_a_strict_check(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, ".mcp.json", '{"mcpServers": {"a": {"command": "x", "foo": 1}}}')
    assert run("check", "--config", path).exit_code == 0
    got = run("check", "--config", path, "--strict")
    assert (got.exit_code, got.stdout) == (65, "")
    assert "mcpServers.a.foo: is not carried over" in got.stderr


@pytest.mark.promise("M95")
def test_show_has_no_secret_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, "metamcp.toml", TEXT)
    for form in ((), ("--json",)):
        got = run("show", "--config", path, *form)
        assert got.exit_code == 0
        assert "canary" not in got.stdout
        assert "${PATH}" in got.stdout
        assert "https://x.example/mcp?key=***" in got.stdout


def test_show_prints_toml_with_every_default(tmp_path: Path) -> None:
    path = write(tmp_path, "metamcp.toml", TEXT)
    text = run("show", "--config", path).stdout
    assert tomllib.loads(text)["servers"]["git"]["timeout"] == "90s"
    again = write(tmp_path, "again.toml", text)
    assert run("show", "--config", again).stdout.partition("\n")[2] == text.partition("\n")[2]


def test_show_json_has_a_version_and_the_same_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "metamcp.toml", TEXT)
    got = json.loads(run("show", "--config", path, "--json").stdout)
    tables = tomllib.loads(run("show", "--config", path).stdout)
    assert got == {"v": 1, "files": [str(path)], **tables}


def test_schema_is_json() -> None:
    assert json.loads(run("schema").stdout)["title"] == "metamcp.toml"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (("x", "--token", "abc", "y"), ("x", "--token", "***", "y")),
        (("--token=abc", "-e", "API_KEY=abc"), ("--token=***", "-e", "API_KEY=***")),
        (("--token", "${T}", "--token=${T:-abc}"), ("--token", "${T}", "--token=***")),
        (("Authorization: Bearer abc",), ("Authorization: Bearer ***",)),
        (("postgres://user:abc@host/db",), ("postgres://***@host/db",)),
        (("--max-tokens", "9", "--token-file", "/t"), ("--max-tokens", "9", "--token-file", "/t")),
    ],
)
def test_secrets_in_commands_are_masked(given: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert mask_arguments(given) == shown


@pytest.mark.promise("M87")
def test_the_rules_link_to_the_runbook_that_is_named(tmp_path: Path) -> None:
    def links(*arguments: str) -> set[str]:
        got = CliRunner().invoke(main, ["dashboards", str(tmp_path / "m"), *arguments])
        assert got.exit_code == 0, got.output
        text = (tmp_path / "m" / "prometheus" / "alerts.yml").read_text()
        return {line.split(": ")[1] for line in text.splitlines() if "runbook_url: " in line}

    shipped = links()
    assert "docs/runbook.md#metamcpgatewaydown" in shipped
    wiki = "https://wiki.example/ops/metamcp?v=2"
    assert links("--runbook-url", wiki) == {
        link.replace("docs/runbook.md", wiki) for link in shipped
    }
    assert links() == shipped


@pytest.mark.parametrize("url", ["wiki", "ftp://x/y", "https://x/y#z", "https://x/{{ . }}", ""])
def test_a_runbook_that_no_alert_can_link_to_is_refused(tmp_path: Path, url: str) -> None:
    command = ["dashboards", str(tmp_path / "m"), "--runbook-url", url]
    got = CliRunner().invoke(main, command)
    assert "--runbook-url is the http(s) URL of a page" in got.output
    assert got.exit_code != 0
    assert not (tmp_path / "m").exists()
