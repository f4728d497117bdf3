"""Databases of each earlier version, as a gateway of then left them, under every verb of today."""

import base64
import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.keys.key_rules import DAY_S, PEPPER
from metamcp_supervisor.store.database import FILE, STEPS
from metamcp_worker.access import api_key
from tests import programs
from tests.live.client import LEGACY, Client
from tests.live.gateway import Gateway, fake
from tests.live.test_keys import ask

pytestmark = [pytest.mark.live, pytest.mark.promise("M115")]

EXTRA = """
[code]
[endpoints.default]
namespace = "default"
auth = "keys"
[endpoints.desk]
namespace = "default"
exposure = "toolset"
[endpoints.coded]
namespace = "default"
exposure = "code"
"""
SECRET = bytes(range(api_key.PEPPER_BYTES))
KEY = api_key.make(b"\7" * api_key.RANDOM_BYTES)
CREATED, VALID_S = 1.8e9, 3000 * DAY_S
LIMITS = {
    "calls_per_minute": 0.0, "burst": 0, "calls_per_day": 0, "in_flight": 0, "streams": 0,
    "body_max": 0,
}  # fmt: skip
KEY_ID = api_key.id_of(KEY)
SPEC = {
    "id": KEY_ID, "digest": base64.b64encode(api_key.digest(SECRET, KEY)).decode(),
    "name": "old", "principal": KEY_ID, "workspace": "default", "endpoints": [],
    "scopes": [], "expires": CREATED + VALID_S, "url": False, "limits": LIMITS,
}  # fmt: skip
TOOLSET = {
    "name": "dev", "tools": [["git", "echo"]], "description": "for work", "created": 1.5,
    "updated": 2.5,
}  # fmt: skip
VIEW = {"tools": [["git", "echo"]], "toolset": "dev"}
STORED_KEY = {"spec": SPEC, "created": CREATED, "created_by": "user id 0"}
SCRIPT = {
    "name": "seven", "version": 1, "code": "return 7", "language": "typescript",
    "description": "", "parameters": "", "expose": False, "created": 3.5,
}  # fmt: skip


def write_database(path: Path, version: int) -> None:
    """The database of a gateway that knew this version alone. `valid_s` of keys is of version 3."""
    key = STORED_KEY | ({"valid_s": VALID_S} if version >= 3 else {})
    rows: tuple[tuple[tuple[str, tuple[object, ...]], ...], ...] = (
        (
            ("toolset", ("dev", json.dumps(TOOLSET))),
            ("view", ("desk", "local", "", json.dumps(VIEW))),
        ),
        (("api_key", (KEY_ID, json.dumps(key))), ("quota", ("key", KEY_ID, 20000, 3))),
        (("script", ("seven", 1, json.dumps(SCRIPT))),),
        (),
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for step, content in zip(STEPS[:version], rows, strict=False):
            for statement in step:
                database.execute(statement)
            for table, values in content:
                marks = ", ".join("?" * len(values))
                database.execute(f"INSERT INTO {table} VALUES ({marks})", values)
        database.execute(f"PRAGMA user_version = {version}")
    path.chmod(0o600)


class OldGateway(Gateway):
    """A gateway whose state directory is of a version."""

    def __init__(self, version: int) -> None:
        super().__init__({"git": fake("--only", "echo,odd")}, extra=EXTRA)
        self.version = version
        self.state = self.folder / "state"
        self.state.mkdir(mode=0o700)
        write_database(self.state / FILE, version)
        self.passphrase = ("--passphrase-file", str(self.folder / "passphrase"))
        (self.folder / "passphrase").write_text("correct horse")
        (self.folder / "passphrase").chmod(0o600)
        if version >= 2:
            (self.state / PEPPER).write_text(SECRET.hex())
            (self.state / PEPPER).chmod(0o600)

    def ends(self, *words: str | Path) -> Any:
        """The JSON of a verb that is carried out in the state directory, or by the gateway while
        it runs."""
        group, *rest = words
        verb = (group, *(() if self.process else ("--state-dir", self.state)), *rest)
        return json.loads(self.run(*verb, "--json").stdout)

    def schema(self) -> int:
        with closing(sqlite3.connect(self.state / FILE)) as database:
            return int(database.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture(params=range(1, len(STEPS) + 1))
def gateway(request: pytest.FixtureRequest) -> Iterator[OldGateway]:
    unstarted = OldGateway(request.param)
    try:
        yield unstarted
    finally:
        shutil.rmtree(unstarted.folder, ignore_errors=True)


def use_keys(gateway: OldGateway) -> str:
    """Every verb of keys. Returns a key that is valid."""
    before = [key["name"] for key in gateway.ends("keys", "list")["keys"]]
    assert before == (["old"] if gateway.version >= 2 else [])
    if before:
        (shown,) = gateway.ends("keys", "show", "old")["keys"]
        assert (shown["state"], shown["created"]) == ("active", "2027-01-15T08:00:00Z")
        rotated = gateway.ends("keys", "rotate", "old", "--grace", "1h")
        (shown,) = gateway.ends("keys", "show", rotated["id"])["keys"]
        assert shown["expires"] > "2034", "it is valid for as long as the first was created"
        gateway.ends("keys", "revoke", KEY_ID, "--yes")
    valid: str = gateway.ends("keys", "create", "new")["key"]
    gateway.ends("keys", "create", "brief")
    assert gateway.ends("keys", "expire", "brief")["state"] == "expired"
    gateway.ends("keys", "revoke", "brief", "--yes")
    states = [key["state"] for key in gateway.ends("keys", "list")["keys"]]
    assert states == ["active"] * (len(before) + 1)
    assert gateway.ends("keys", "rotate-pepper", "--grace", "1d")["keys"] == len(states)
    return valid


def use_scripts(gateway: OldGateway, folder: Path) -> None:
    """Every verb of scripts but `run`, which needs a gateway."""
    before = [script["name"] for script in gateway.ends("scripts", "list")["scripts"]]
    assert before == (["seven"] if gateway.version >= 3 else [])
    folder.mkdir()
    (folder / "seven.ts").write_text("return 3 + 4")
    gateway.ends("scripts", "save", folder / "seven.ts")
    (newest,) = gateway.ends("scripts", "show", "seven")["scripts"]
    assert newest["versions"] == ([1, 2] if before else [1])
    (shown,) = gateway.ends("scripts", "show", "seven", "--version", "1")["scripts"]
    assert shown["code"] == ("return 7" if before else "return 3 + 4")
    gateway.ends("scripts", "export", folder / "out")
    gateway.ends("scripts", "delete", "seven", "--yes")
    gateway.ends("scripts", "import", folder / "out" / "seven.ts")
    assert gateway.ends("scripts", "show", "seven")["scripts"][0]["code"] == "return 3 + 4"


def use_toolsets(gateway: OldGateway, folder: Path) -> None:
    """Every verb of tool sets, and what a client sees of them."""
    assert names_in_view(gateway) == ["git__echo"]
    (shown,) = gateway.ends("toolsets", "list")["toolsets"]
    assert (shown["name"], shown["description"]) == ("dev", "for work")
    gateway.ends("toolsets", "add", "dev", "git.odd")
    assert names_in_view(gateway) == ["git__echo", "git__odd"]
    gateway.ends("toolsets", "remove", "dev", "git.echo")
    gateway.ends("toolsets", "create", "two", "git.echo")
    gateway.ends("toolsets", "equip", "two", "--endpoint", "desk")
    assert names_in_view(gateway) == ["git__echo"]
    gateway.ends("toolsets", "unequip", "--endpoint", "desk")
    (folder / "dev.json").write_text(gateway.run("toolsets", "export", "dev").stdout)
    gateway.ends("toolsets", "delete", "dev", "--yes")
    gateway.ends("toolsets", "import", folder / "dev.json")
    assert "odd" in json.dumps(gateway.ends("toolsets", "show", "dev"))


def names_in_view(gateway: Gateway) -> list[str]:
    client = Client(gateway.port, LEGACY, "/metamcp/desk/mcp")
    try:
        tools = client.request("tools/list", {})["result"]["tools"]
    finally:
        client.end()
    return sorted(tool["name"] for tool in tools if "__" in tool["name"])


def test_a_state_directory_of_an_earlier_version_is_used_at_rest_and_by_a_gateway(
    gateway: OldGateway, tmp_path: Path
) -> None:
    copy, has_keys = tmp_path / "copy", gateway.version >= 2
    content = {"toolsets": 1, "views": 1, "keys": int(has_keys)}
    assert gateway.ends("backup", copy, *gateway.passphrase)["content"] == content
    assert gateway.schema() == gateway.version, "a copy changes nothing"
    use_keys(gateway)
    use_scripts(gateway, tmp_path / "rest")
    assert gateway.schema() == len(STEPS)
    words = ["restore", str(copy), *gateway.passphrase, "--state-dir", str(gateway.state), "--json"]
    command = [sys.executable, "-m", "metamcp_supervisor", *words]
    restored = programs.run(command, check=True)
    assert json.loads(restored.stdout)["content"] == content
    assert gateway.schema() == gateway.version
    with gateway:
        if has_keys:
            assert ask(gateway, KEY) == 200
        use_toolsets(gateway, tmp_path)
        use_scripts(gateway, tmp_path / "run")
        assert "7" in gateway.run("scripts", "run", "seven", "--endpoint", "coded").stdout
        assert ask(gateway, use_keys(gateway)) == 200
        gateway.ends("backup", tmp_path / "later", *gateway.passphrase)
