"""`[log]` and `[recording]`: what a file may say, who wins, and what a reload makes of it."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Config, Log, RecordingConfig, Server
from metamcp_supervisor.config.installation import unknown
from metamcp_supervisor.config.overrides import TimedOverrides
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import secrets_of, tables
from metamcp_supervisor.servers.specs import front_spec, own_log_spec, recording_spec, server_spec
from metamcp_worker.ipc.records import ROOMS
from metamcp_worker.ipc.spec import OAuth
from tests.supervisor.configs import loaded, messages, server, write

pytestmark = pytest.mark.promise("M89")

NONE: set[str] = set()
NOBODY = (
    "is neither a room of the gateway nor an installed library; the rooms are: control, embeddings,"
    " front, http, nursery, recording, traces, worker"
)
FILE = """
[log]
format = "json"
level = "warning"
levels = { http = "debug", asyncio = "error" }

[recording]
calls = "metadata"
file_max = "1M"
files_max = 3
body_max = "4K"

[servers.git]
command = ["git-server"]
env = { GIT_TOKEN = "of-git-alone" }

[servers.notes]
command = ["notes"]
env = { NOTES_TOKEN = "hunter2hunter2", PLAIN = "nothing special" }
recording = "full"

[servers.quiet]
command = ["quiet"]
env = { QUIET_TOKEN = "anothersecret" }
recording = "off"
"""


def test_everything_has_its_place(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE)
    assert found.log == Log(
        format="json", level="warning", levels={"http": "debug", "asyncio": "error"}
    )
    assert found.recording == RecordingConfig(
        calls="metadata", file_max=1024 * 1024, files_max=3, body_max=4096
    )
    shown = tables(found)
    assert shown["recording"] == {
        "calls": "metadata", "file_max": "1M", "files_max": 3, "body_max": "4K",
    }  # fmt: skip


def test_without_a_word_nothing_is_recorded(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[servers.git]\ncommand = ["x"]\n')
    assert found.log == Log()
    assert recording_spec(found).servers == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[log]\nlevel = "loud"', "log.level: 'loud' is not a choice"),
        ('[log]\nlevels = { http = "loud" }', "log.levels.http: 'loud' is not a level"),
        ('[log]\nlevels = { fornt = "info" }', f"metamcp.toml:2: log.levels.fornt: {NOBODY}"),
        ('[log]\ncolour = "red"', "log.colour: unknown key 'colour'"),
        ('[recording]\ncalls = "all"', "recording.calls: 'all' is not a choice"),
        ('[recording]\nbody_max = "2M"', 'recording.body_max: is too large; the largest size here'),
        ('[recording]\nfile_max = "1K"', "recording.file_max: is too small"),
        ("[recording]\nfiles_max = 1", "recording.files_max: must be from 2 to 1000"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    found = messages(tmp_path, text)
    assert any(said in each for each in found), found


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((room, True) for room in sorted(ROOMS)),
        ("asyncio", True),
        ("concurrent.futures", True),
        ("mcp", True),
        ("httpx2._client", True),
        ("fornt", False),
        ("front.calls", False),
        ("metamcp", False),
        ("metamcp.front", False),
        ("metamcp_worker.front", False),
        ("trace", False),  # a module of Python that says nothing, and nearly a room
        ("no_such_library.part", False),
        ("a b", False),
        ("", False),
        (".", False),
        ("__main__", False),
    ],
)
def test_a_level_is_for_a_room_or_for_a_library_that_is_installed(name: str, known: bool) -> None:
    assert unknown([name]) == ({} if known else {name: NOBODY})


def test_an_included_file_may_not_say_it(tmp_path: Path) -> None:
    write(tmp_path, "more.toml", '[recording]\ncalls = "full"\n[log]\nlevel = "debug"\n')
    found = messages(tmp_path, 'include = ["more.toml"]\n')
    assert [each.split(": ")[1] for each in found] == ["recording", "log"]


def test_the_form_can_be_said_from_outside(tmp_path: Path) -> None:
    def form(environ: dict[str, str], flags: dict[str, str]) -> str:
        return loaded(tmp_path, FILE, environ=environ, flags=flags).log.format

    assert form({"METAMCP_LOG_FORMAT": "text"}, {}) == "text"
    assert form({"METAMCP_LOG_FORMAT": "text"}, {"log_format": "auto"}) == "auto"
    found = messages(tmp_path, FILE, flags={"log_format": "xml"})
    assert "--log-format: 'xml' is not a choice" in found[0]


def test_a_front_knows_the_secrets_of_what_it_writes_down_and_no_others(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE)
    spec = front_spec(found, "1")
    assert spec.recording.servers == {"git": "metadata", "notes": "full"}
    assert spec.recording.secrets == ("hunter2hunter2",)
    assert spec.log.secrets == ("hunter2hunter2",)
    audited = loaded(tmp_path, FILE + "[audit]\nlevel = 'redacted'\n")
    assert front_spec(audited, "1").recording.secrets == ("hunter2hunter2",)
    assert len(front_spec(audited, "1").log.secrets) == 3
    assert spec.recording.folder == str(found.gateway.state_dir / "calls")
    assert set(own_log_spec(found).secrets) == {
        "of-git-alone", "hunter2hunter2", "anothersecret",
    }  # fmt: skip


def test_a_worker_knows_the_secrets_of_its_own_server() -> None:
    made = server("git", env={"GIT_TOKEN": "hunter2hunter2", "PLAIN": "x"})
    assert server_spec(made, {}, probe=True).log.secrets == ("hunter2hunter2",)


def _changed(old: Config, new: Config) -> dict[str, str]:
    return {each.server: each.why for each in plan(old, new).changes if each.action != "unchanged"}


def test_a_reload_takes_over_both_in_place(tmp_path: Path) -> None:
    old = loaded(tmp_path, FILE)
    new = loaded(tmp_path, FILE.replace('"warning"', '"debug"').replace('"4K"', '"8K"'))
    assert _changed(old, new) == {"[log]": "level changed", "[recording]": "body_max changed"}
    assert fingerprint(old) != fingerprint(new)


def test_an_operator_can_record_a_server_for_a_time() -> None:
    made = server("git")
    found = TimedOverrides().set(made, {"recording": "full"}, 60.0)
    assert [(each.key, each.text) for each in found.of("git")] == [("recording", "full")]


@pytest.mark.parametrize(
    ("settings", "secrets"),
    [
        ({"env": {"A_TOKEN": "v1", "TOKEN_FILE": "/x", "A": "b"}}, {"v1"}),
        ({"env": {"A": "http://u:v1@h"}, "referred": ("v1",)}, {"v1"}),
        ({"options": {"api_key": "v1", "size": "3"}}, {"v1"}),
        ({"headers": {"Authorization": "Bearer v1", "X-Any": "v2"}}, {"Bearer v1", "v2"}),
        ({"command": ("x", "--api-key", "v1", "PASSWORD=v2", "v3")}, {"v1", "v2"}),
        ({"url": "https://x/a/abcdefghij0123456789k?key=v2&page"},
         {"abcdefghij0123456789k", "v2", "page"}),
        ({"oauth": OAuth(client_id="me", client_secret="v1")}, {"v1"}),
    ],
)  # fmt: skip
def test_what_is_secret_in_a_server(settings: dict[str, object], secrets: set[str]) -> None:
    made: Server = server("git", **{"command": (), **settings})
    assert set(secrets_of(made)) == secrets
