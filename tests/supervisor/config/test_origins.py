"""Places of settings: the file and line, the variable or the option that sets each."""

from pathlib import Path

from metamcp_supervisor.config import origins
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.sources import load
from tests.supervisor import configs

MAIN = """\
include = ["mine.json"]
[gateway]
listen = "127.0.0.1:7000"
fronts = 1
[servers.git]
command = ["git-server", "--token", "${env:TOKEN:-secret}"]
[[policies]]
name = "first"
match = "git/*"
effect = "deny"
[[policies]]
name = "second"
match = "git/*"
effect = "allow"
"""
MINE = """{
  "mcpServers": {
    "db": {
      "command": "db-server",
      "disabled": true
    }
  }
}
"""


def loaded(folder: Path, text: str = MAIN) -> Config:
    configs.write(folder, "mine.json", MINE)
    path = configs.write(folder, "metamcp.toml", text)
    environ = {"METAMCP_LISTEN": "127.0.0.1:7001", "METAMCP_FRONTS": "2"}
    return load(path, environ=environ, cwd=folder, home=folder, flags={"fronts": "3"})


def test_each_setting_has_the_place_that_won(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    places = {(one.table, one.key): one.place for one in origins.settings(config)}
    main, mine = tmp_path / "metamcp.toml", tmp_path / "mine.json"
    assert places["gateway", "listen"] == "$METAMCP_LISTEN"
    assert places["gateway", "fronts"] == "--fronts"
    assert places["servers.git", "command"] == f"{main}:6"
    assert places["servers.db", "command"] == f"{mine}:4"
    assert places["servers.db", "enabled"] == f"{mine}:5"  # written as `disabled`
    assert places["policies[1]", "effect"] == f"{main}:14"
    assert places["servers.git", "timeout"] == ""
    assert config.origin("servers.git", "") == f"{main}:5"
    assert config.origin("servers.db", "") == f"{mine}:3"


def test_a_difference_has_both_values_and_no_secret(tmp_path: Path) -> None:
    before = loaded(tmp_path)
    after = loaded(tmp_path, MAIN.replace('"git-server"', '"other"').replace("second", "2nd"))
    found = {
        (one.table, one.key): (one.before, one.after) for one in origins.changes(before, after)
    }
    assert found.keys() == {("servers.git", "command"), ("policies[1]", "name")}
    assert found["policies[1]", "name"] == ('"second"', '"2nd"')
    assert "secret" not in str(found)
