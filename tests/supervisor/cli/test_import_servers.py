"""What users meant: files of clients under `import`, `up`, `include`, `export` and back.

`client_configurations` has 24 files as the users of 20 programs have them, shapes of public ones.
NAME.servers.toml says what each becomes: its usual path, the client for `export`, what is not
carried over (without file and line), and its servers; PROJECT is the folder.
"""

import os
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.config import places, sources
from metamcp_supervisor.config.config import Config, Server
from metamcp_supervisor.config.document import list_of, table_of
from tests.supervisor.cli.test_import_servers_export import SUFFIXES, what_is_left
from tests.supervisor.clienthome import Home

FOLDER = Path(__file__).parent.parent / "client_configurations"
VARIABLES = ("API", "CHAT_TOKEN", "EXAMPLE_KEY", "EXAMPLE_TOKEN", "HOME_DOMAIN", "HOME_TOKEN",
             "KEY", "LINEAR_TOKEN", "TRACKER_TOKEN")  # fmt: skip


@dataclass(frozen=True)
class Case:
    path: str
    client: str
    lost: frozenset[str]
    text: str
    toml: str


def case(file: Path) -> Case:
    """The case that this NAME.servers.toml describes."""
    name, toml = file.name.removesuffix("servers.toml"), file.read_text()
    (given,) = (each for each in FOLDER.glob(f"{name}*") if each != file)
    said = re.findall(r"^# (path|client|lost): (.*)$", toml, re.MULTILINE)
    path, client = (next(text for key, text in said if key == each) for each in ("path", "client"))
    lost = frozenset(text for key, text in said if key == "lost")
    return Case(path, client, lost, given.read_text(), toml)


CASES = {
    file.name.removesuffix(".servers.toml"): case(file)
    for file in sorted(FOLDER.glob("*.servers.toml"))
}
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux"),
    pytest.mark.promise("M16"),
    pytest.mark.parametrize("case", CASES.values(), ids=list(CASES)),
]
SAME = ("command", "env", "cwd", "url", "transport", "headers", "oauth", "enabled", "tools",
        "timeout_s", "start_timeout_s", "required")  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.environ |= dict.fromkeys(VARIABLES, "value")
    return made


def written(home: Home, case: Case) -> Path:
    path = home.project / case.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(case.text.replace("PROJECT", str(home.project)))
    (home.project / ".env").write_text("# variables\nexport FROM_FILE='1'\n")
    return path


def loaded(home: Home, path: Path) -> Config:
    return sources.load(path, environ=home.environ, cwd=home.project, home=home.folder)


def imported(home: Home, path: Path, name: str) -> tuple[dict[str, Any], list[str]]:
    """The servers in metamcp.toml, and the lines that were printed."""
    target = home.folder / name
    lines = home.works("import", "--from", str(path), "--to", str(target)).splitlines()
    return tomllib.loads(target.read_text())["servers"], lines


def expected(home: Home, case: Case) -> dict[str, Any]:
    text = re.sub(r",\n +", ", ", case.toml).replace("PROJECT", str(home.project))
    found: dict[str, Any] = tomllib.loads(text)
    for table in found.values():
        if "command" in table:
            table.setdefault("cwd", str(places.folder_of(home.project / case.path)))
    return found


def seen(server: Server) -> dict[str, Any]:
    values = {key: getattr(server, key) for key in SAME}
    return values | {"cwd": os.path.normpath(server.cwd) if server.command and server.cwd else None}


def test_everything_is_carried_over_or_named_in_the_same_words(home: Home, case: Case) -> None:
    path = written(home, case)
    servers, lines = imported(home, path, "metamcp.toml")
    assert {name: normal(table) for name, table in servers.items()} == expected(home, case)
    lost = {f"{path}:{each}" for each in case.lost}
    without_lines = {re.sub(rf"^({re.escape(str(path))})(:\d+)?: ", r"\1:", each) for each in lines}
    lost = {each.replace("PROJECT", str(home.project)) for each in lost}
    named = {each for each in without_lines if each.startswith(f"{path}:")}
    renamed = {each for each in named if " is called " in each}
    assert named - renamed == lost
    (main := home.project / "main.toml").write_text(f'include = ["{path}"]\n')
    for config in (loaded(home, path), loaded(home, main)):
        messages = [*map(str, config.problems), *config.warnings]
        assert {each for each in lines if each.startswith(str(path))} <= set(messages)
    result = home.run("import", "--from", str(path), "--to", str(home.folder / "no"), "--strict")
    assert (result.exit_code, (home.folder / "no").exists()) == ((65, False) if lost else (0, True))


def normal(table: dict[str, Any]) -> dict[str, Any]:
    return table | ({"cwd": os.path.normpath(table["cwd"])} if "cwd" in table else {})


def test_up_include_and_import_make_the_same_servers(home: Home, case: Case) -> None:
    path = written(home, case)
    servers, _ = imported(home, path, "metamcp.toml")
    (main := home.project / "main.toml").write_text(f'include = ["{path}"]\n')
    configs = [loaded(home, each) for each in (path, main, home.folder / "metamcp.toml")]
    up, include, copied = (
        {name: seen(each) for name, each in config.servers.items() if not each.mistake}
        for config in configs
    )
    assert up == include
    assert up == copied
    assert set(copied) == set(servers)


def test_an_export_to_the_same_client_and_back_is_the_same_but_for_what_is_said(
    home: Home, case: Case
) -> None:
    path = written(home, case)
    servers, _ = imported(home, path, "metamcp.toml")
    home.environ["METAMCP_CONFIG"] = str(home.folder / "metamcp.toml")
    out = home.project / f"out{SUFFIXES.get(case.client, '.json')}"
    result = home.run("export", "--to", case.client, "-o", str(out))
    said = result.output.splitlines()
    if not out.exists():
        assert all(any(f"{name} is left out: " in line for line in said) for name in servers)
        return
    again, lines = imported(home, out, "again.toml")
    for name, table in servers.items():
        about = [
            line
            for line in (*said, *lines)
            if re.search(rf"(?:^|[ .]){name}(?: is left out|[.:])", line)
        ]
        if name not in again:
            assert any("is left out" in line for line in about), name
            continue
        left = what_is_left(table, about)
        if "command" in left:
            left.setdefault("cwd", str(home.project))
        if "url" in left:
            left["transport"] = again[name].get("transport")
            again[name].setdefault("transport", None)
        assert plain(again[name]) == plain(left), name


def plain(value: Any) -> Any:
    """The same with one spelling for references to variables."""
    if (table := table_of(value)) is not None:
        return {key: plain(each) for key, each in table.items()}
    if (items := list_of(value)) is not None:
        return [plain(each) for each in items]
    return re.sub(r"\$\{env:(\w+)\}", r"${\1}", value) if isinstance(value, str) else value
