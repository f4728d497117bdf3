"""`metamcp install`, `uninstall` and `snippet`, on files as clients have them."""

import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types

from metamcp_supervisor.client_files import clients, disk, texts
from metamcp_supervisor.client_files.clients import CLIENTS
from metamcp_supervisor.config import formats, sources
from metamcp_supervisor.config.document import table_of
from metamcp_supervisor.verbs import Exit
from metamcp_worker.access import api_key
from tests.supervisor.clienthome import FILES, Home

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")

WITH_PROJECT = {name for name, client in CLIENTS.items() if client.project}
BOM = "\ufeff".encode()
SCRIPT = str(Path(sys.executable).parent / "metamcp")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).with_config(
        '[endpoints.default]\nnamespace = "default"\n[endpoints.dev]\nnamespace = "default"\n'
    )


def parsed(path: Path) -> Any:
    """As the client itself would read it."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.safe_load(text) if path.suffix == ".yaml" else formats.json_loads(text)


def servers(client: str, path: Path) -> dict[str, Any]:
    kept = CLIENTS[client].kept
    value = parsed(path)
    for key in kept.place:
        value = value[key]
    if kept.format == "yaml-list":
        return {each["name"]: each for each in value}
    found: dict[str, Any] = value
    return found


@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_goes_into_the_file_and_out_without_a_trace(home: Home, client: str) -> None:
    path = home.fill(client)
    before, values = path.read_bytes(), parsed(path)
    path.chmod(0o640)
    home.works("install", client)
    found = servers(client, path)
    words, _ = clients.target_of(found["metamcp"])
    where = ("--config", str(home.config), "--runtime-dir", home.environ["METAMCP_RUNTIME_DIR"])
    assert words == (SCRIPT, "connect", "--start", *where)
    assert path.stat().st_mode & 0o777 == 0o640
    assert disk.backup_of(path).read_bytes() == before
    made = path.read_bytes()
    assert "unchanged" in home.works("install", client)
    assert path.read_bytes() == made
    home.works("uninstall", client)
    assert path.read_bytes() == before
    assert parsed(path) == values
    assert not disk.backup_of(path).exists(), "it says nothing that the file does not"


def test_what_a_started_gateway_shows_is_in_the_command(home: Home) -> None:
    shape = ("--exposure", "search", "--naming", "bare", "--builtins", "catalog,workflows")
    home.works("install", "cursor", *shape)
    entry = servers("cursor", home.folder / ".cursor/mcp.json")["metamcp"]
    at = entry["args"].index("--exposure")
    assert tuple(entry["args"][at : at + len(shape)]) == shape
    result = home.run("install", "cursor", "--http", "--exposure", "search")
    assert result.exit_code == 2
    assert "--exposure is for a gateway that the command starts" in result.output


@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_changed_by_hand_meanwhile_stays(home: Home, client: str) -> None:
    path = home.fill(client)
    before = path.read_bytes()
    home.works("install", client)
    mark = b"#" if path.suffix in (".toml", ".yaml") else b"//"
    bom = BOM if before.startswith(BOM) else b""
    path.write_bytes(bom + mark + b" by hand\n" + path.read_bytes().removeprefix(bom))
    output = home.works("uninstall", client)
    assert path.read_bytes() == bom + mark + b" by hand\n" + before.removeprefix(bom)
    assert "still kept" in output
    assert disk.backup_of(path).exists()


@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_is_missing_is_made_and_removed_again(home: Home, client: str) -> None:
    home.works("install", client)
    path = home.folder / FILES[client][0]
    assert "connect" in clients.target_of(servers(client, path)["metamcp"])[0]
    assert path.stat().st_mode & 0o777 == 0o600
    home.works("uninstall", client)
    assert home.listing() == set()


@pytest.mark.parametrize("client", sorted(WITH_PROJECT))
def test_the_file_of_a_project_names_no_path_of_this_machine(home: Home, client: str) -> None:
    home.works("install", client, "--scope", "project", "--endpoint", "dev")
    path = home.project / CLIENTS[client].project
    kept = CLIENTS[client].how("project")
    entry = texts.entries(kept, path.read_text())["metamcp"]
    assert clients.target_of(table_of(entry) or {})[0] == (
        "metamcp",
        "connect",
        "--start",
        "--endpoint",
        "dev",
    )
    home.works("uninstall", client, "--scope", "project")
    assert not path.exists()


@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", [each for each in CLIENTS if each != "claude-desktop"])
def test_an_entry_can_name_the_url(home: Home, client: str) -> None:
    path = home.fill(client)
    before = path.read_bytes()
    home.works("install", client)
    home.works("install", client, "--http", "--endpoint", "dev")
    ours = clients.target_of(servers(client, path)["metamcp"])
    assert ours == ((), "http://127.0.0.1:6270/metamcp/dev/mcp")
    home.works("install", client)
    assert clients.target_of(servers(client, path)["metamcp"])[1] == ""
    home.works("uninstall", client)
    assert path.read_bytes() == before


def test_what_its_user_added_to_our_entry_stays(home: Home) -> None:
    path = home.fill("claude-desktop")
    home.works("install", "claude-desktop")
    values = parsed(path)
    values["mcpServers"]["metamcp"]["env"] = {"A": "b"}
    path.write_text(json.dumps(values))
    assert "unchanged" in home.works("install", "claude-desktop")
    home.works("install", "claude-desktop", "--endpoint", "dev")
    ours = servers("claude-desktop", path)["metamcp"]
    assert ours["env"] == {"A": "b"}
    assert ours["args"][4:6] == ["--endpoint", "dev"]


@pytest.mark.promise("M7")
def test_the_entry_of_somebody_else_is_not_overwritten(home: Home) -> None:
    path = home.folder / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"metamcp": {"url": "http://localhost:12008/metamcp/x/mcp"}}}')
    before = path.read_bytes()
    result = home.run("install", "cursor")
    assert result.exit_code == 1
    assert "has an entry 'metamcp' that does not lead to this gateway" in result.output
    assert home.run("uninstall", "cursor").exit_code == 1
    assert path.read_bytes() == before
    home.works("install", "cursor", "--name", "mine")
    home.works("uninstall", "cursor", "--name", "mine")
    assert path.read_bytes() == before
    home.works("install", "cursor", "--force")
    assert clients.target_of(servers("cursor", path)["metamcp"])[0]
    home.works("uninstall", "cursor")
    assert path.read_bytes() == before


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("client", "text", "sentence"),
    [
        ("zed", '{\n  "a": }', "settings.json, line 2: Expecting value"),
        ("codex", "a = 1\nb =\n", "config.toml, line 2: Invalid value"),
        ("goose", "a: 1\nextensions: {a: {b: c}\n", "config.yaml, line 3: expected ',' or '}'"),
        ("cursor", '{"mcpServers": []}', "has no table in 'mcpServers'"),
        ("cursor", "[]", "must be a JSON object"),
        ("cursor", "\udcff", "is not UTF-8 text (byte 0)"),
    ],
)
def test_a_file_that_cannot_be_read_is_left_alone(
    home: Home, client: str, text: str, sentence: str
) -> None:
    path = home.fill(client)
    path.write_bytes(text.encode(errors="surrogateescape"))
    before = path.read_bytes()
    for verb in ("install", "uninstall"):
        result = home.run(verb, client)
        assert result.exit_code == 65
        assert sentence in result.output
        assert len(result.output.splitlines()) == 1
    assert path.read_bytes() == before
    assert home.listing() == {FILES[client][0]}


def test_a_dry_run_shows_the_difference_and_writes_nothing(home: Home) -> None:
    path = home.fill("codex")
    before = path.read_bytes()
    output = home.works("install", "codex", "--dry-run")
    assert "+[mcp_servers.metamcp]" in output
    assert f'+command = "{SCRIPT}"' in output
    assert path.read_bytes() == before
    assert home.listing() == {".codex/config.toml"}
    home.works("install", "codex")
    assert "-[mcp_servers.metamcp]" in home.works("uninstall", "codex", "--dry-run")
    assert b"metamcp" in path.read_bytes()


def test_a_difference_shows_no_secret(home: Home) -> None:
    path = home.folder / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "env": {"API_KEY": "geheim-123"}}}}')
    output = home.works("install", "cursor", "--config-file", str(path), "--dry-run")
    assert "metamcp" in output
    assert "geheim" not in output


def test_links_are_followed_and_stay(home: Home) -> None:
    path = home.fill("claude-code")
    real = home.folder / "dotfiles" / "claude.json"
    real.parent.mkdir()
    path.rename(real)
    path.symlink_to(real)
    home.works("install", "claude-code")
    assert path.is_symlink()
    assert "metamcp" in servers("claude-code", real)
    assert disk.backup_of(path) == real.with_name("claude.json.metamcp-backup")


def test_backups_are_few_and_the_newest_is_what_was_there(home: Home) -> None:
    path = home.fill("cursor")
    for number in range(disk.BACKUPS_MAX + 2):
        path.write_text(json.dumps({"number": number}))
        home.works("install", "cursor")
        path.write_text(path.read_text() + "\n")
        home.works("uninstall", "cursor")
    kept = sorted(path.parent.glob("*.metamcp-backup*"))
    assert len(kept) == disk.BACKUPS_MAX
    assert json.loads(disk.backup_of(path).read_text()) == {"number": disk.BACKUPS_MAX + 1}


def test_a_backup_of_another_time_is_not_taken_for_the_file(home: Home) -> None:
    path = home.folder / ".cursor/mcp.json"
    path.parent.mkdir()
    disk.backup_of(path).write_text('{"mcpServers": {}}')
    home.works("install", "cursor")
    home.works("uninstall", "cursor")
    assert not path.exists()


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    content = disk.read(path)
    path.write_text("two")
    with pytest.raises(disk.FileChanged):
        disk.write(content, "three")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.promise("M7")
def test_a_url_that_is_not_known_any_more_is_taken_out(home: Home) -> None:
    """The gateway that it was of has another port by now, or is gone."""
    path = home.fill("cursor")
    before = path.read_bytes()
    home.works("install", "cursor", "--url", "https://far.example/mcp")
    assert "unchanged" in home.works("install", "cursor", "--url", "https://far.example/mcp")
    home.works("uninstall", "cursor")
    assert path.read_bytes() == before


def test_an_entry_of_somebody_else_is_removed_when_that_is_said(home: Home) -> None:
    path = home.folder / "mcp.json"
    path.write_text('{"mcpServers": {"metamcp": {"command": "other"}}}')
    home.works("uninstall", "cursor", "--config-file", str(path), "--force")
    assert json.loads(path.read_text()) == {"mcpServers": {}}


def test_an_entry_is_removed_although_the_backup_is_lost(home: Home) -> None:
    path = home.fill("cursor")
    home.works("install", "cursor")
    disk.backup_of(path).unlink()
    home.works("install", "cursor", "--endpoint", "dev")
    assert "metamcp" in servers("cursor", disk.backup_of(path).rename(path.with_suffix(".b.json")))
    path.with_suffix(".b.json").rename(disk.backup_of(path))
    home.works("uninstall", "cursor")
    assert set(servers("cursor", path)) == {"filesystem"}


@pytest.mark.promise("M16")
def test_a_gateway_beside_a_client_does_not_start_its_own_bridge(home: Home) -> None:
    path = home.project / ".mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    home.works("install", "claude-code", "--scope", "project")
    config = sources.load(path, environ={}, cwd=home.project, home=home.folder)
    assert set(config.servers) == {"a"}
    assert "'metamcp' is left out: it is the way to this gateway" in "".join(config.warnings)
    home.works("install", "claude-code", "--scope", "project", "--runtime-dir", "/elsewhere")
    config = sources.load(path, environ={}, cwd=home.project, home=home.folder)
    assert set(config.servers) == {"a", "metamcp"}


@pytest.mark.promise("M16")
def test_an_entry_that_starts_this_gateway_is_not_one_of_its_servers(home: Home) -> None:
    path = home.project / ".mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    home.works("install", "cursor", "--config-file", str(path), "--config", str(path))
    config = sources.load(path, environ={}, cwd=home.project, home=home.folder)
    assert set(config.servers) == {"a"}


def test_an_endpoint_that_asks_for_a_key_is_named_when_the_entry_has_none(home: Home) -> None:
    home.config.write_text(f'{home.config.read_text()}auth = "keys"\n')
    output = home.works("install", "cursor", "--endpoint", "dev")
    assert "the endpoint 'dev' asks for a key: 'metamcp keys create NAME --out FILE'" in output
    key = home.folder / "laptop.key"
    key.write_text(api_key.make(bytes(range(40))))
    key.chmod(0o600)
    output = home.works("install", "cursor", "--endpoint", "dev", "--key-file", str(key))
    assert "asks for a key" not in output
    assert "asks for a key" not in home.works("install", "windsurf")


def test_an_endpoint_that_there_is_not_is_refused(home: Home) -> None:
    result = home.run("install", "cursor", "--endpoint", "dve")
    assert result.exit_code == Exit.UNKNOWN_NAME
    assert result.output.endswith("metamcp: no endpoint is named 'dve'; did you mean 'dev'?\n")
    assert home.listing() == set()


def test_commands_that_were_merely_found_are_confirmed_before_a_client_starts_them(
    home: Home,
) -> None:
    del home.environ["METAMCP_CONFIG"]
    (home.project / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    result = home.run("install", "cursor")
    assert result.exit_code == Exit.NO_PERMISSION
    assert home.listing() == set()
    home.works("install", "cursor", "--yes", "--no-start")
    words = servers("cursor", home.folder / FILES["cursor"][0])["metamcp"]["args"]
    assert words == ["connect", "--runtime-dir", home.environ["METAMCP_RUNTIME_DIR"]]


def test_without_any_configuration_a_client_gets_the_entry_and_its_user_a_warning(
    home: Home,
) -> None:
    del home.environ["METAMCP_CONFIG"]
    assert "warning: the gateway needs a configuration" in home.works("install", "cursor")
    assert home.run("install", "cursor", "--endpoint", "dev").exit_code == Exit.UNKNOWN_NAME


def test_the_second_form_of_opencode_is_written_where_it_is_used(home: Home) -> None:
    path = home.folder / ".config/opencode/opencode.jsonc"
    path.parent.mkdir(parents=True)
    text = (
        '{\n  "mcp": {\n    "servers": {"a": {"type": "local", "command": ["b"]}} // two\n  }\n}\n'
    )
    path.write_text(text)
    home.works("install", "opencode")
    assert set(parsed(path)["mcp"]["servers"]) == {"a", "metamcp"}
    home.works("uninstall", "opencode")
    assert path.read_text() == text


def test_mode_of_a_new_file_keeps_strangers_out(home: Home) -> None:
    home.works("install", "goose")
    path = home.folder / FILES["goose"][0]
    assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_an_entry_with_a_key_is_checked_as_connect_will_check_it(
    home: Home, tmp_path: Path
) -> None:
    key, wide, junk = tmp_path / "a.key", tmp_path / "wide.key", tmp_path / "junk.pem"
    for path, mode in ((key, 0o600), (wide, 0o644), (junk, 0o644)):
        path.write_text("mmcp_a\n")
        path.chmod(mode)
    far = ("--url", "https://gateway.lan/mcp")
    for words, why in (
        (("--key-file", str(tmp_path / "none.key")), "none.key does not exist"),
        (("--key-file", str(wide)), "run 'chmod 600' on it"),
        (("--ca", str(junk)), "junk.pem has no certificates in PEM"),
        (("--key-env", "mmcp_k3Jq9ZxA_x"), "takes the name of a variable, not the key itself"),
        (("--key-env", "A-B"), "takes the name of a variable"),
        (("--key-env", "A", "--key-file", str(key)), "either --key-env or --key-file, not both"),
        (("--key-file", str(key), "--url", "http://192.0.2.2/mcp"), "would travel unencrypted"),
        (("--key-env", "A", "--url", "http://gateway.lan/mcp"), "would travel unencrypted"),
    ):
        for verb in ("install", "snippet"):
            done = home.run(verb, "cursor", *far, *words)
            assert (done.exit_code, why in done.stderr) == (Exit.USAGE, True), done.stderr
    home.works("install", "cursor", "--key-env", "A", "--url", "http://127.0.0.1:6270/mcp")
