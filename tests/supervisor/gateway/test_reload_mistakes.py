"""A mistake in one server stops that server; every error is still told at once."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config import confirmation
from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.config.files import (
    QUIET_S,
    READS_MAX,
    FileChangeDetector,
    Stamps,
    read_stamped,
    stamp_files,
)
from metamcp_supervisor.config.reload import find_stopping_errors, plan
from metamcp_supervisor.servers.server import (
    Retuned,
    ServerLife,
    Start,
    StopServer,
    WorkerLeft,
    step,
)
from metamcp_supervisor.servers.states import Action, ExitClass, ServerPhase
from tests.supervisor.configs import config, loaded, messages, server

GOOD = '[servers.good]\ncommand = ["x"]\n'
#: What is wrong -> the file beside `good`, the name it is shown under, the sentence.
MISTAKES = {
    "a variable": (
        '[servers.a]\ncommand = ["x"]\nenv = { K = "${NOT_SET}" }\n', "a",
        "metamcp.toml:5: servers.a.env.K: the environment variable NOT_SET is not set",
    ),
    "an impossible name": (
        '[servers.b__d]\ncommand = ["x"]\n', "b_d",
        "metamcp.toml:3: servers.b__d: the name 'b__d' has '__' in it",
    ),
    "a name of which nothing stays": (
        '[servers."é!"]\ncommand = ["x"]\n', "e", "may have only a-z",
    ),
    "the name of another": (
        '[servers.Good]\ncommand = ["x"]\n', "good-2", "the name 'Good' may have only a-z",
    ),
    "an unknown key": (
        '[servers.a]\ncommand = ["x"]\ntimeuot = "5s"\n', "a", "did you mean 'timeout'?",
    ),
    "no table": ("[servers]\na = 5\n", "a", "must be a table, not a number"),
    "two errors": (
        '[servers.a]\ncommand = ["x"]\nqueue = -1\nfoo = 1\n', "a", "'foo'",
    ),
    "a dependency": (
        '[servers.a]\ncommand = ["x"]\ndepends_on = ["goood"]\n', "a", "did you mean 'good'?",
    ),
    "a transport": ('[servers.a]\ntransport = "kafka"\n', "a", "no installed package brings"),
}  # fmt: skip


@pytest.mark.promise("M98")
@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_in_one_server_leaves_the_others_as_they_are(tmp_path: Path, what: str) -> None:
    text, name, sentence = MISTAKES[what]
    got = loaded(tmp_path, text + GOOD if what == "no table" else GOOD + text)
    assert got.servers["good"].command == ("x",)
    broken = got.servers[name]
    assert sentence in broken.mistake
    assert (broken.command, broken.url, broken.module) == ((), None, None)
    assert set(got.servers) == {"good", name} == set(got.namespaces["default"].servers)
    assert any(sentence in str(problem) for problem in got.problems)


@pytest.mark.promise("M98")
def test_all_mistakes_are_told_at_once_and_each_server_has_its_own(tmp_path: Path) -> None:
    text = GOOD + '[servers.a]\ncommand = ["x"]\nfoo = 1\nqueue = -1\n[servers.b]\nbar = 1\n'
    got = loaded(tmp_path, text)
    assert len(got.problems) == 4
    assert "(and 1 more)" in got.servers["a"].mistake
    with pytest.raises(ConfigInvalid) as invalid:
        loaded(tmp_path, text + "[gateway]\nfront = 2\n")
    assert len(invalid.value.problems) == 5


def test_without_a_server_that_could_run_the_whole_configuration_is_refused(tmp_path: Path) -> None:
    text = '[servers.a]\nfoo = 1\n[servers.off]\ncommand = ["x"]\nenabled = false\n'
    with pytest.raises(ConfigInvalid):
        loaded(tmp_path, text)


def test_a_server_of_which_a_namespace_or_a_dependency_speaks_may_have_a_mistake(
    tmp_path: Path,
) -> None:
    text = (
        '[servers.good]\ncommand = ["x"]\ndepends_on = ["a"]\n[servers.a]\nfoo = 1\n'
        '[servers.b__d]\ncommand = ["x"]\n'
        '[namespaces.dev]\nservers = ["a", "b__d", "good"]\ntools."a.x" = { enabled = false }\n'
        '[endpoints.dev]\nnamespace = "dev"\n'
    )
    got = loaded(tmp_path, text)
    assert got.namespaces["dev"].servers == ("a", "b_d", "good")
    assert not got.servers["good"].mistake


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ('{"mcpServers": {"good": {"command": "x"}, "a": {"command": "${NOT_SET}"}}}', "a"),
        ('{"mcpServers": {"good": {"command": "x"}, "a": 7}}', "a"),
        ('{"mcpServers": {"good": {"command": "x"}, "!": {"command": "x"}}}', "unnamed"),
        ('{"mcp_servers": [{"name": "good", "command": "x"}, {"command": "x"}, 7]}', "unnamed-2"),
        ('{"good": {"command": "x"}, "a": {"command": "x", "env": 7}}', "a"),
    ],
)
def test_so_it_is_in_the_files_of_other_programs(tmp_path: Path, shape: str, name: str) -> None:
    got = loaded(tmp_path, shape, name=".mcp.json")
    assert got.servers["good"].command == ("x",)
    assert got.servers[name].mistake


def test_a_name_that_two_servers_have_stops_both_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text('[servers.a]\ncommand = ["y"]\n')
    got = loaded(tmp_path, 'include = ["more.toml"]\n[servers.a]\ncommand = ["x"]\n' + GOOD)
    assert "the server 'a' is already at" in got.servers["a"].mistake
    assert got.servers["good"].command == ("x",)


def test_a_disabled_server_with_a_mistake_stays_disabled(tmp_path: Path) -> None:
    got = loaded(tmp_path, f"{GOOD}[servers.a]\ncommand = ['x']\nenabled = false\nfoo = 1\n")
    assert not got.servers["a"].enabled
    assert "metamcp.toml:6: servers.a.foo: unknown key 'foo'" in messages(tmp_path)[0]


def test_what_has_a_mistake_starts_nothing_that_would_have_to_be_confirmed() -> None:
    assert not confirmation.parts(config(server("a", command=(), mistake="m")))


# What becomes of it


def test_a_server_with_a_mistake_fails_at_every_start_until_it_is_mended() -> None:
    life = ServerLife(mistake="m")
    for by in ("boot", "client", "operator", "timer", "dependent"):
        life, actions = step(life, Start(by), 0.0, 0.0)
        assert (life.phase, life.reason, life.message) == (
            ServerPhase.FAILED, ExitClass.CONFIGURATION, "m",
        )  # fmt: skip
        assert Action.JOIN_GATE not in actions
        assert life.retry_at is None
    life, _ = step(life, Retuned("on-failure"), 0.0, 0.0)
    life, actions = step(life, StopServer(restarting=True), 0.0, 0.0)
    assert (life.phase, life.reason) == (ServerPhase.QUEUED, None)
    assert Action.JOIN_GATE in actions


def test_a_running_server_that_gets_a_mistake_stops_in_order_and_then_fails() -> None:
    life = ServerLife(phase=ServerPhase.READY, ready_at=0.0)
    life, _ = step(life, Retuned("on-failure", mistake="m"), 1.0, 0.0)
    life, actions = step(life, StopServer(restarting=True), 1.0, 0.0)
    assert (life.phase, actions) == (ServerPhase.DRAINING, (Action.ASK_TO_STOP,))
    life, _ = step(life, WorkerLeft(), 2.0, 0.0)
    assert (life.phase, life.message) == (ServerPhase.FAILED, "m")


def test_the_plan_of_a_reload_says_which_server_has_a_mistake_and_which_is_mended() -> None:
    good, bad = server("a"), replace(server("a", command=()), mistake="x: wrong")
    (change,) = plan(config(good), config(bad)).changes
    assert (change.action, change.why) == ("restart", "x: wrong")
    (change,) = plan(config(bad), config(good)).changes
    assert (change.action, change.why) == ("restart", "its mistake is mended")
    assert plan(config(bad), config(bad)).changes[0].action == "unchanged"


def test_only_a_mistake_in_a_server_that_is_in_order_now_spoils_a_reload(tmp_path: Path) -> None:
    old = loaded(tmp_path, GOOD + "[servers.a]\nfoo = 1\n")
    assert not find_stopping_errors(
        old, loaded(tmp_path, GOOD + "[servers.a]\nbar = 1\n[servers.new]\nx = 1\n")
    )
    new = loaded(tmp_path, f'{GOOD}foo = 1\n[servers.b]\ncommand = ["x"]\n')
    assert [each.place for each in find_stopping_errors(old, new)] == ["servers.good.foo"]


# Files that change


def test_a_file_is_read_when_it_has_been_left_alone_for_a_second() -> None:
    stamps: list[Stamps] = [{Path("f"): (1, size, size)} for size in (9, 3, 12)]
    old, cut, whole = stamps
    quiet = FileChangeDetector(old)
    assert not quiet.look(old, 0.0)
    assert not quiet.look(cut, 0.5)
    assert not quiet.look(cut, 1.0)
    assert not quiet.look(whole, 1.4)
    assert not quiet.look(whole, 1.4 + QUIET_S / 2)
    assert quiet.look(whole, 1.4 + QUIET_S)
    assert not quiet.look(old, 9.0), "it is as it was"


def test_a_file_that_changes_just_after_it_was_read_has_the_stamp_from_before(
    tmp_path: Path,
) -> None:
    main, included = tmp_path / "main", tmp_path / "included"
    main.write_text("includes")
    texts: list[str] = []

    def read() -> tuple[str, tuple[Path, ...]]:
        text = included.read_text() if included.exists() else "missing"
        texts.append(text)
        included.write_text(text + "!")
        return text, (main, included)

    text, stamps = read_stamped(read, (main, tmp_path / "no more"))
    assert (text, texts) == ("missing!", ["missing", "missing!"])
    assert list(stamps) == [main, included]
    now = stamp_files(stamps)
    assert stamps[main] == now[main]
    assert stamps[included] != now[included]


def test_files_that_come_with_each_read_do_not_keep_a_reload_for_ever(tmp_path: Path) -> None:
    files: list[Path] = []

    def read() -> tuple[int, tuple[Path, ...]]:
        files.append(tmp_path / str(len(files)))
        files[-1].touch()
        return len(files), tuple(files)

    reads, stamps = read_stamped(read, ())
    assert reads == READS_MAX
    now = stamp_files(files)
    assert [path for path in files if stamps[path] != now[path]] == files[-1:], "it is read later"
