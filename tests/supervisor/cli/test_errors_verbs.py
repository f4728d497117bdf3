"""Verbs are found where people look for them, and every one that prints can print for programs."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metamcp_supervisor.__main__ import HEADINGS, main, verbs
from metamcp_supervisor.cli.errors import RenamedOption
from metamcp_supervisor.verbs import Exit
from tests.supervisor.small_gateway import server, steered

ALONE = (
    "status", "logs", "events", "top", "start", "stop", "restart", "reload", "wait", "doctor",
    "down",
)  # fmt: skip
WITHOUT_JSON = {
    "up": "stays in the foreground and talks to a person",
    "serve": "is a service, and `--log-format json` is its output for programs",
    "connect": "speaks MCP on standard output",
    "completion": "prints a program for a shell",
    "ctl completion": "is the same verb",
    "config schema": "prints JSON in any case",
    "workflow schema": "prints JSON in any case",
    "toolsets export": "prints JSON in any case",
}
"""Verbs without `--json`, and the reason."""
WITHOUT_GATEWAY = {
    "init": "makes the configuration of this folder",
    "dashboards": "writes files that are the same for every gateway",
    "contexts": "asks those that its file names",
    "systemd install": "writes a unit, whose gateway has a directory of systemd",
    "systemd show": "prints that unit",
    "systemd uninstall": "removes that unit",
    "workflow check": "reads files of workflows",
    "workflow graph": "reads a file of a workflow",
    "workflow schema": "prints what is the same for every gateway",
}
"""Verbs that meet no gateway, and the reason."""
RENAMED = {
    "add --replace": "--force",
    "install --replace": "--force",
    "call --out": "--output",
    "export --out": "--output",
    "toolsets export --out": "--output",
    "status --fields": "-o --output",
    "ctl status --fields": "-o --output",
    "explain --key": "--as",
    "policy explain --key": "--as",
    "tools search --key": "--as",
    "workflow run --args": "--inputs",
    "keys create --quota": "--limit",
    "import --config": "--to",
}
"""Options, and their names of earlier versions."""
SHORT = {"-n": {"--limit", "--tail"}, "-o": {"--out"}}
"""Short options, and the only long ones that they stand for."""


async def said(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one `metamcp`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "metamcp_supervisor", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def groups(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Group]]:
    """All of them at all levels, each with the words that lead there."""
    yield words, group
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from groups(found, f"{words}{name} ")


def every() -> dict[str, click.Command]:
    """All verbs, by their words."""
    assert isinstance(main, click.Group)
    verbs: dict[str, click.Command] = {}
    for words, group in groups(main):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if found is not None and not isinstance(found, click.Group):
                verbs[f"{words}{name}"] = found
    return verbs


def options_at_all_levels() -> dict[str, set[str]]:
    """Options of every verb, and of the groups before it."""
    assert isinstance(main, click.Group)
    above = {words.strip(): _options(group) for words, group in groups(main)}
    return {
        words: _options(verb).union(
            *(above[group] for group in above if words.startswith(f"{group} "))
        )
        for words, verb in every().items()
    }


@pytest.mark.promise("M109")
def test_every_verb_that_prints_can_do_it_for_programs() -> None:
    found = {words for words, verb in every().items() if "--json" not in _options(verb)}
    assert found == WITHOUT_JSON.keys()


@pytest.mark.parametrize("name", ALONE)
def test_a_verb_of_ctl_that_stands_alone_knows_the_same_and_where_the_gateway_is(name: str) -> None:
    found = every()
    beside = {"--config", "--runtime-dir", "--no-color", "--quiet", "-q"}
    assert _options(found[name]) == _options(found[f"ctl {name}"]) | beside
    assert found[name].help == found[f"ctl {name}"].help


def test_every_verb_that_meets_a_gateway_is_told_which_one_by_its_directory_or_its_file() -> None:
    without = {
        words
        for words, options in options_at_all_levels().items()
        if not {"--config", "--runtime-dir"} <= options
    }
    assert without == WITHOUT_GATEWAY.keys()


def test_an_option_of_a_group_stands_before_or_behind_the_verb_with_the_same_effect(
    tmp_path: Path,
) -> None:
    place = ("--state-dir", str(tmp_path / "state"))
    CliRunner().invoke(main, ["keys", *place, "create", "config"], catch_exceptions=False)
    lines = [
        ["keys", *place, "list", "--json"],
        ["keys", "list", *place, "--json"],
        ["keys", "list", "--json", f"{place[0]}={place[1]}"],
        ["keys", "show", "config", "--json", *place],
    ]
    shown = [CliRunner().invoke(main, line).stdout for line in lines]
    assert shown[0].count('"name":"config"') == 1
    assert shown == [shown[0]] * len(lines)
    quiet = CliRunner().invoke(main, ["keys", "list", "-q", *place])
    assert (quiet.exit_code, quiet.stdout) == (0, "")


@pytest.mark.parametrize("order", ["config check", "audit list", "lock diff", "policy check"])
def test_what_names_a_gateway_may_stand_before_a_verb_whose_group_does_not_have_it(
    tmp_path: Path, order: str
) -> None:
    group, verb = order.split()
    place = ("--config", str(tmp_path / "no.toml"))
    before = CliRunner().invoke(main, [group, *place, verb])
    behind = CliRunner().invoke(main, [group, verb, *place])
    assert (before.exit_code, before.stderr) == (behind.exit_code, behind.stderr)
    assert "no.toml: does not exist" in before.stderr


def test_an_option_that_verb_and_group_have_is_that_of_the_verb_behind_it() -> None:
    done = CliRunner().invoke(main, ["console", "sessions", "--json", "--runtime-dir", "/none"])
    assert done.exit_code == Exit.NOT_RUNNING
    assert json.loads(done.stderr)["error"]["code"] == "not_running"


@pytest.mark.process
async def test_a_gateway_is_found_by_its_configuration_and_a_configuration_by_its_gateway(
    tmp_path: Path,
) -> None:
    async with steered(server("git")) as (_, directory):
        file = tmp_path / "metamcp.toml"
        file.write_text(f'[gateway]\nruntime_dir = "{directory}"\n')
        for order in ("status", "ctl status"):
            code, out, _ = await said(*order.split(), "--config", str(file), "-o", "name")
            assert (code, out) == (Exit.OK, "git\n")
        no = str(tmp_path / "no.toml")
        missing = Exit.CONFIG, "", f"metamcp: {no}: does not exist\n"
        assert await said("status", "--config", no) == missing
        place = ("--runtime-dir", str(directory))
        _, _, shown = await said("config", "show", *place)
        assert "/etc/metamcp/metamcp.toml: does not exist" in shown
        _, _, listed = await said("calls", "--state-dir", str(tmp_path), *place)
        assert "/etc/metamcp/metamcp.toml: does not exist" in listed
        _, _, read = await said("audit", "list", *place)
        assert "/state/audit" in read


def test_an_option_of_an_earlier_version_works_and_no_help_shows_it() -> None:
    renamed = {
        f"{words} {max(option.opts, key=len)}": " ".join(option.before)
        for words, verb in every().items()
        for option in verb.params
        if isinstance(option, RenamedOption)
    }
    assert renamed | {"import --config": "--to"} == RENAMED
    for option, before in RENAMED.items():
        *words, _ = option.split()
        shown = CliRunner().invoke(main, [*words, "--help"]).output
        verb = every()[" ".join(words)]
        for name in before.split():
            assert not re.search(rf"(?<![\w-]){name}(?![\w-])", shown), (words, name)
            done = CliRunner().invoke(verb, [name])
            assert "No such option" not in done.output, (words, name)


def test_one_thing_has_one_option_at_every_verb() -> None:
    for words, verb in every().items():
        for option in verb.params:
            names = set(option.opts) if isinstance(option, click.Option) else set()
            for short, long in SHORT.items():
                if short in names:
                    assert names & long, f"{words}: {names}"
                elif names & long:
                    raise AssertionError(f"{words}: {names} without {short}")
    gone = {"--as", "--inputs", "--output"}
    assert not [words for words, verb in every().items() if gone & _options(verb)]


def test_values_are_the_same_by_the_name_of_an_earlier_version(tmp_path: Path) -> None:
    place = ("--state-dir", str(tmp_path))
    for number, option in enumerate(("--quota", "--limit")):
        line = ["keys", "create", f"k{number}", option, "calls_per_minute=7", *place, "--json"]
        done = CliRunner().invoke(main, line)
        assert done.exit_code == 0, done.output
        shown = CliRunner().invoke(main, ["keys", "show", f"k{number}", *place]).stdout
        assert "calls_per_minute=7" in shown


def test_a_misspelt_verb_is_told_the_right_one_at_every_level() -> None:
    assert isinstance(main, click.Group)
    for words, group in groups(main):
        context = click.Context(group)
        right = max(group.list_commands(context), key=len)
        with pytest.raises(click.UsageError) as wrong:
            group.resolve_command(context, [f"{right[:-1]}x"])
        assert f"did you mean '{right}'?" in str(wrong.value), words


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("statsu", "did you mean 'status'?"),
        ("conenct", "did you mean 'connect'?"),
        ("describe", "'metamcp ctl describe'"),
        ("ctl connect", "'metamcp connect'"),
        ("kill", "'metamcp down'"),
        ("toolsets load", "'metamcp toolsets equip NAME'"),
        ("toolsets save", "'metamcp toolsets create NAME SERVER.TOOL…'"),
        ("equip-toolset", "clients call it at an endpoint"),
        ("gateway_activate", "clients call it at an endpoint"),
        ("start", "the gateway itself starts with 'metamcp up'"),
        ("stop", "the gateway itself ends with 'metamcp down'"),
    ],
)
def test_a_word_of_other_programs_is_answered_with_the_one_of_this(words: str, answer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", *words.split()],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.USAGE
    assert answer in done.stderr
    assert not done.stdout


@pytest.mark.process
async def test_orders_that_stand_alone_are_carried_out_and_told_to_programs(tmp_path: Path) -> None:
    async with steered(server("git")) as (gateway, directory):
        where = ("--runtime-dir", str(directory))
        assert (await said("status", *where))[1].splitlines()[1].startswith("SERVER")
        assert (await said("status", "-q", *where)) == (0, "", "")
        code, out, _ = await said("restart", "git", "--wait", "--json", *where)
        assert (code, json.loads(out)) == (
            0, {"v": 1, "verb": "restart", "names": ["git"], "reached": "ready"},
        )  # fmt: skip
        assert gateway.servers["git"].generation == 2
        code, out, _ = await said("wait", "git", "--json", *where)
        assert json.loads(out)["reached"] == "ready"
        code, out, err = await said("stop", "gti", *where)
        assert (code, out) == (Exit.UNKNOWN_NAME, "")
        assert err.startswith("metamcp: ")
    assert (await said("down", *where))[0] == Exit.NOT_RUNNING


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "text", "added"),
    [
        (
            "metamcp.toml",
            '# mine\n[servers.a]\ncommand = ["a"]  # why\n\n[gateway]\nfronts = 1\n',
            '\n[servers.git]\ncommand = ["uvx", "mcp-server-git", "-v"]\nenv = {A = "b=c"}\n',
        ),
        (
            ".mcp.json",
            '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "a"}\n  },\n  "x": 1\n}\n',
            (
                ',\n    "git": {\n      "command": "uvx",\n      "args": ["mcp-server-git", "-v"],'
                '\n      "env": {\n        "A": "b=c"\n      }\n    }'
            ),
        ),
    ],
)
def test_a_server_is_put_in_and_taken_out_and_nothing_else_changes(
    tmp_path: Path, file: str, text: str, added: str
) -> None:
    path = tmp_path / file
    path.write_text(text)
    shown = metamcp(tmp_path, "add", "git", "--dry-run", "-e", "API_KEY=geheim", "--", "uvx")
    assert (shown.returncode, path.read_text()) == (0, text)
    assert "uvx" in shown.stdout
    assert "geheim" not in shown.stdout
    done = metamcp(tmp_path, "add", "git", "-e", "A=b=c", "--", "uvx", "mcp-server-git", "-v")
    assert done.returncode == 0, done.stderr
    assert "'metamcp up' starts" in done.stderr, "no gateway runs"
    made = path.read_text()
    assert added in made
    assert made.replace(added, "") == text
    again = metamcp(tmp_path, "add", "git", "--url", "https://x.example/mcp")
    assert again.returncode == Exit.FAILED
    assert "--replace" in again.stderr
    assert path.read_text() == made
    assert metamcp(tmp_path, "remove", "git", "--json").returncode == 0
    assert path.read_text() == text
    gone = metamcp(tmp_path, "remove", "aa")
    assert gone.returncode == Exit.UNKNOWN_NAME
    assert "did you mean 'a'?" in gone.stderr


@pytest.mark.process
def test_a_configuration_is_made_with_what_a_client_has_here(tmp_path: Path) -> None:
    none = metamcp(tmp_path, "add", "x", "--url", "https://x.example/mcp")
    assert none.returncode == Exit.CONFIG
    assert "'metamcp init'" in none.stderr
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    assert metamcp(tmp_path, "init").returncode == 0
    assert metamcp(tmp_path, "add", "x", "--url", "https://x.example/mcp").returncode == 0
    checked = metamcp(tmp_path, "config", "check", "--json")
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["ok"] is True
    shown = json.loads(metamcp(tmp_path, "config", "show", "--json").stdout)
    assert set(shown["servers"]) == {"a", "x"}
    inside = metamcp(tmp_path, "remove", "a")
    assert inside.returncode == Exit.UNKNOWN_NAME
    assert ".mcp.json" in inside.stderr
    assert metamcp(tmp_path, "init").returncode == Exit.FAILED


@pytest.mark.process
def test_a_command_without_the_two_dashes_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "metamcp.toml").write_text("")
    done = metamcp(tmp_path, "add", "x", "npx", "-y", "some-server")
    assert done.returncode == Exit.USAGE
    assert "metamcp add NAME -- COMMAND…" in done.stderr
    told = metamcp(tmp_path, "add", "x", "https://x.example/mcp")
    assert told.returncode == Exit.USAGE
    assert "is a URL; write --url https://x.example/mcp" in told.stderr
    assert metamcp(tmp_path, "add", "x", "npx -y some-server").returncode == 0
    assert 'command = ["npx", "-y", "some-server"]' in (tmp_path / "metamcp.toml").read_text()


def metamcp(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", *arguments],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _options(verb: click.Command) -> set[str]:
    return {word for each in verb.params if isinstance(each, click.Option) for word in each.opts}


def test_every_verb_has_its_line_in_the_help() -> None:
    assert isinstance(main, click.Group)
    done = CliRunner().invoke(main, ["--help", "--all"])
    for name in verbs():
        assert f"\n  {name} " in done.output


def test_the_short_help_has_twenty_verbs_and_says_how_to_see_the_others() -> None:
    for words in (["--help"], []):
        output = CliRunner().invoke(main, words).output
        shown = [name for name in verbs() if f"\n  {name} " in output]
        assert len(shown) == 20
        assert f"'metamcp --help --all' shows all {len(verbs())} verbs." in output


def test_the_help_of_a_verb_needs_no_configuration(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        for words in every():
            verb = [*words.split(), "--help"]
            done = CliRunner().invoke(main, verb, env={"HOME": str(tmp_path)})
            assert (done.exit_code, done.output[:6]) == (0, "Usage:"), words


def test_a_configuration_that_is_missing_is_told_before_what_follows_from_it(
    tmp_path: Path,
) -> None:
    for verb, order in (("tls", "init"), ("keys", "list")):
        done = CliRunner().invoke(main, [verb, "--config", str(tmp_path / "no.toml"), order])
        first, second = done.stderr.splitlines()
        assert done.exit_code == Exit.CONFIG
        assert first.endswith("no.toml: does not exist")
        assert second == "metamcp: so the state directory is not known; name it with --state-dir"


def test_the_help_has_every_verb_once_in_a_group() -> None:
    named = [name for names in HEADINGS.values() for name in names]
    assert sorted(named) == sorted(verbs())
