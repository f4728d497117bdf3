"""Single tools that are to be otherwise: what the files say, what counts, and what is a mistake."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from metamcp_supervisor.config.config import Config, ToolConfig
from metamcp_supervisor.config.options import keys
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.config.tools import ALIASES_MAX, DESCRIPTION_CHARACTERS_MAX, VALUE_DEPTH_MAX
from metamcp_supervisor.gateway import upgrade_state
from metamcp_supervisor.servers.specs import front_spec
from metamcp_worker.catalog.tool_overrides import ORIGINAL
from metamcp_worker.ipc.spec import ToolOverride
from tests.supervisor.configs import loaded, messages
from tests.supervisor.gateway.test_upgrade_state import STATE

SERVERS = '[servers.git]\ncommand = ["x"]\n[servers.fs]\ncommand = ["x"]\n'
BOTH = '[namespaces.dev]\nservers = ["git", "fs"]\n'
DEEP = "is nested in 32 lists and tables, and no more are allowed"
ONLY = "may have only letters, digits, '_', '-' and '.' here"
QUOTED = 'a tool is written in quotes, with its server: tools."git.log"'
C = 'namespaces.dev.tools."git.c"'
D, E = (f'endpoints.dev.tools."fs.{tool}"' for tool in "de")
DATE = "is a date or time, which JSON does not have; write it as a string, in quotes"
HERE = '[endpoints.dev]\nnamespace = "dev"\n'


def overrides(config: Config, endpoint: str = "dev") -> tuple[ToolOverride, ...]:
    spec = front_spec(config, "1")
    return next(one.overrides for one in spec.endpoints if one.name == endpoint)


def mistakes(folder: Path, text: str) -> list[str]:
    return [each.split(": ", 1)[1] for each in messages(folder, text)]


@pytest.mark.promise("M27")
def test_an_endpoint_goes_before_its_namespace_and_that_before_the_server(tmp_path: Path) -> None:
    got = loaded(
        tmp_path,
        '[servers.git]\ncommand = ["x"]\n'
        'tools.log = { name = "a", title = "A", description = "A.", aliases = ["old"] }\n'
        "tools.reset = { enabled = false }\n"
        '[namespaces.dev]\nservers = ["git"]\n'
        'tools."git.log" = { title = "B", description = "B.", hidden = true }\n'
        f'{HERE}tools."git.log" = {{ description = "C.", aliases = [] }}\n'
        'tools."git.reset" = { enabled = true }\n'
        '[endpoints.plain]\nnamespace = "dev"\n',
    )
    log = ToolOverride(
        server="git", tool="log", name="a", title="B", description="C.", hidden=True
    )  # fmt: skip
    assert overrides(got) == (log,)
    spec = front_spec(got, "1")
    assert [one.disabled for one in spec.endpoints] == [(), (("git", "reset"),)]
    (plain,) = overrides(got, "plain")
    assert (plain.description, plain.aliases) == ("B.", ("old",))


@pytest.mark.promise("M27")
def test_fixed_and_default_arguments_are_put_together_one_by_one(tmp_path: Path) -> None:
    got = loaded(
        tmp_path,
        '[servers.git]\ncommand = ["x"]\n'
        "[servers.git.tools.log]\nfixed = { a = 1, b = 2 }\ndefaults = { c = 3 }\n"
        '[namespaces.dev]\nservers = ["git"]\n'
        '[namespaces.dev.tools."git.log"]\nfixed = { c = "x" }\ndefaults = { a = [1.5] }\n'
        f'{HERE}[endpoints.dev.tools."git.log".fixed]\nd = {{ z = true, y = "é" }}\n',
    )
    (log,) = overrides(got)
    assert log.fixed == {"b": "2", "c": '"x"', "d": '{"y":"é","z":true}'}
    assert log.defaults == {"a": "[1.5]"}


@pytest.mark.promise("M27")
def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    deep = "[" * (VALUE_DEPTH_MAX + 1) + "]" * (VALUE_DEPTH_MAX + 1)
    many = [f"a{number}" for number in range(ALIASES_MAX + 1)]
    got = mistakes(
        tmp_path,
        '[servers.git]\ncommand = ["x"]\n'
        "tools.git.log = { enabled = false }\n"
        "tools.a = { hiden = true }\n"
        'tools.b = { enabled = "no", aliases = ["x", "x", "y z"] }\n'
        "tools.c = { fixed = { when = 2026-01-31, big = nan } }\n"
        'tools.d = { fixed = { a = 1 }, defaults = { a = 2 }, title = "" }\n'
        f"tools.e = {{ fixed = {{ a = {deep} }} }}\n"
        f"tools.f = {{ aliases = {many} }}\n"
        'tools.g = { name = "" }\n'
        'tools."" = { hidden = true }\n'
        f"{HERE.replace('dev', 'default')}tools.git.log = {{ hidden = true }}\n"
        'tools."gti.log" = { hidden = true }\n',
    )
    assert got == [
        (
            "servers.git.tools.git: a tool with a dot in its name is written in quotes:"
            ' tools."git.log"'
        ),
        "servers.git.tools.a.hiden: unknown key 'hiden'; did you mean 'hidden'?",
        "servers.git.tools.b.enabled: must be true or false, not a string",
        "servers.git.tools.b.aliases[1]: 'x' is listed twice",
        f"servers.git.tools.b.aliases[2]: 'y z' {ONLY}",
        "servers.git.tools.c.fixed.big: is not a number that JSON has",
        f"servers.git.tools.c.fixed.when: {DATE}",
        "servers.git.tools.d.title: must have from 1 to 200 characters",
        "servers.git.tools.d.defaults.a: 'a' is in 'fixed' too; an argument is in one of them",
        f"servers.git.tools.e.fixed.a{'[0]' * 32}: {DEEP}",
        "servers.git.tools.f.aliases: has 33 names; a tool has at most 32",
        "servers.git.tools.g.name: '' is empty",
        'servers.git.tools."": a tool has a name',
        f"endpoints.default.tools.git: {QUOTED}",
        "endpoints.default.tools.\"gti.log\": no server is named 'gti'; did you mean 'git'?",
    ]


@pytest.mark.promise("M25", "M27")
def test_names_fit_the_naming_of_each_endpoint_that_has_them(tmp_path: Path) -> None:
    names = f'tools.log = {{ name = "my.log" }}\ntools.add = {{ name = "add-{"x" * 20}" }}\n'
    got = mistakes(
        tmp_path,
        f'[servers.git]\ncommand = ["x"]\n{names}[servers.fs]\ncommand = ["x"]\n{BOTH}'
        '[endpoints.dotted]\nnamespace = "dev"\nnaming = { style = "dotted" }\n'
        '[endpoints.plain]\nnamespace = "dev"\n[endpoints.same]\nnamespace = "dev"\n'
        '[endpoints.short]\nnamespace = "dev"\nnaming = { separator = ".", length_max = 16 }\n'
        '[endpoints.old]\nnamespace = "dev"\nnaming = { style="dotted", hyphens = "underscore" }\n',
    )
    at, long = "servers.git.tools.", f"'add-{'x' * 20}'"
    some, most = "letters, digits, '_' and '-'", "here a name has at most 16"
    none = 'names here have none (hyphens = "underscore")'
    assert got == [
        f"{at}log.name: 'my.log' may have only {some} here, at the endpoint 'plain'",
        f"{at}add.name: {long} has 24 characters, and {most}, at the endpoint 'short'",
        f"{at}add.name: {long} has a '-' in it, and {none}, at the endpoint 'old'",
    ]


@pytest.mark.promise("M25", "M27")
def test_a_name_is_that_of_one_tool_and_of_no_built_in_one(tmp_path: Path) -> None:
    got = mistakes(
        tmp_path,
        f"{SERVERS}{BOTH}"
        'tools."git.a" = { name = "go", aliases = ["one", "x"] }\n'
        'tools."git.b" = { name = "go" }\n'
        'tools."git.c" = { aliases = ["go", "one"] }\n'
        'tools."fs.off" = { name = "go", enabled = false }\n'
        'tools."fs.own" = { name = "gone", aliases = ["gone"] }\n'
        f'{HERE}exposure = "search"\n'
        'tools."fs.d" = { name = "call_tool" }\n'
        'tools."fs.e" = { aliases = ["search_tools", "twice", "twice"] }\n',
    )
    assert got == [
        "namespaces.dev.tools.\"git.b\".name: 'go' is the name of git.a too, at the endpoint 'dev'",
        f"{C}.aliases[0]: 'go' is the name of git.a, at the endpoint 'dev'",
        f"{C}.aliases[1]: 'one' is an alias of git.a too, at the endpoint 'dev'",
        f"{D}.name: 'call_tool' is the name of a built-in tool, at the endpoint 'dev'",
        f"{E}.aliases[2]: 'twice' is listed twice",
        f"{E}.aliases[0]: 'search_tools' is the name of a built-in tool, at the endpoint 'dev'",
    ]


@pytest.mark.promise("M27")
def test_an_override_needs_a_server_of_the_namespace(tmp_path: Path) -> None:
    got = mistakes(
        tmp_path,
        f'{SERVERS}[namespaces.dev]\nservers = ["git"]\n{HERE}tools."fs.x" = {{ hidden = true }}\n',
    )
    assert got == ["endpoints.dev.tools.\"fs.x\": the server 'fs' is not in this namespace"]


def test_names_are_checked_without_any_endpoint_and_without_its_namespace(tmp_path: Path) -> None:
    two = (
        '[servers.git]\ncommand = ["x"]\ntools.a = { name = "go" }\n'
        '[servers.fs]\ncommand = ["x"]\ntools.b = { name = "go" }\n'
    )
    assert mistakes(tmp_path, two) == [
        "servers.fs.tools.b.name: 'go' is the name of git.a too, at the endpoint 'default'"
    ]
    lost = f'{SERVERS}[endpoints.dev]\nnamespace = "dve"\ntools."git.a" = {{ name = "." }}\n'
    (only,) = mistakes(tmp_path, lost)
    assert only.startswith("endpoints.dev.namespace: no namespace is named 'dve'")


def test_what_says_nothing_is_nothing(tmp_path: Path) -> None:
    got = loaded(tmp_path, f'{SERVERS}{BOTH}tools."git.a" = {{}}\n{HERE}tools."git.b" = {{}}\n')
    assert (got.namespaces["dev"].tools, got.endpoints["dev"].tools) == ({}, {})
    got = loaded(tmp_path, f'{SERVERS}{BOTH}{HERE}tools."git.b" = {{ hidden = false }}\n')
    assert got.endpoints["dev"].tools == {"git": {"b": ToolConfig(hidden=False)}}
    assert overrides(got) == ()


SAID = (
    '[servers.git]\ncommand = ["x"]\ntools.log = { fixed = { b = [1, { c = 0.7 }], a = "é" } }\n'
    '[namespaces.dev]\nservers = ["git"]\ntools."git.a.b" = { name = "x", aliases = ["y"] }\n'
    f'{HERE}tools."git.log" = {{ hidden = true, title = "T", defaults = {{ n = 5 }} }}\n'
)


@pytest.mark.promise("M27")
def test_what_is_shown_is_what_was_written(tmp_path: Path) -> None:
    shown = tables(loaded(tmp_path, SAID))
    assert shown["servers"]["git"]["tools"] == {  # type: ignore[index] # tables of tables
        "log": {"fixed": {"a": "é", "b": [1, {"c": 0.7}]}}
    }
    assert shown["namespaces"]["dev"]["tools"] == {  # type: ignore[index] # tables of tables
        "git.a.b": {"name": "x", "aliases": ["y"]}
    }
    assert shown["endpoints"]["dev"]["tools"] == {  # type: ignore[index] # tables of tables
        "git.log": {"hidden": True, "title": "T", "defaults": {"n": 5}}
    }


@pytest.mark.promise("M27", "M78")
def test_another_override_changes_its_place_and_restarts_nothing(tmp_path: Path) -> None:
    old = loaded(tmp_path, SAID)
    for key, place in (("0.7", "git"), ('"y"', "namespaces.dev"), ("5 }", "endpoints.dev")):
        new = loaded(tmp_path, SAID.replace(key, key.translate(str.maketrans("75y", "86z"))))
        changes = {one.server: (one.action, one.why) for one in plan(old, new).changes}
        assert changes.pop(place) == ("in-place", "tools changed")
        assert {action for action, _ in changes.values()} <= {"unchanged"}
        assert fingerprint(old) != fingerprint(new)


def test_the_order_of_overrides_is_of_no_account(tmp_path: Path) -> None:
    one = '"git.a" = { fixed = { x = { p = 1, q = 2 }, y = 3 } }\n'
    other = '"git.b" = { hidden = true }\n'
    turned = '"git.a" = { fixed = { y = 3, x = { q = 2, p = 1 } } }\n'
    head = f"{SERVERS}{BOTH}{HERE}[endpoints.dev.tools]\n"
    first, second = (loaded(tmp_path, head + text) for text in (one + other, other + turned))
    assert fingerprint(first) == fingerprint(second)
    assert plan(first, second).changes == plan(first, first).changes


def test_an_upgrade_hands_them_on(tmp_path: Path) -> None:
    config = loaded(tmp_path, SAID)
    gateway = structs.replace(STATE.gateway, config=upgrade_state.pack_config(config))
    assert upgrade_state.config(structs.replace(STATE, gateway=gateway)) == config


def test_a_description_has_its_limit(tmp_path: Path) -> None:
    for more, wrong in ((0, []), (1, ["may have at most 16384 characters"])):
        text = f'tools.g = {{ description = "{"x" * (DESCRIPTION_CHARACTERS_MAX + more)}" }}'
        path = tmp_path / "metamcp.toml"
        path.write_text(f'[servers.git]\ncommand = ["x"]\n{text}\n')
        found = messages(tmp_path) if wrong else []
        assert [each.rpartition(": ")[2] for each in found] == wrong
        if not wrong:
            assert loaded(tmp_path).servers["git"].tools


def test_the_sections_of_tools_are_alike() -> None:
    assert keys("servers.*.tools.*") == keys("endpoints.*.tools.*")


def test_switches_of_tools_need_a_server_of_the_namespace(tmp_path: Path) -> None:
    got = messages(
        tmp_path,
        '[servers.git]\ncommand = ["x"]\n[servers.fs]\ncommand = ["x"]\n'
        '[namespaces.dev]\nservers = ["git", "git"]\n'
        "tools.git.reset = { enabled = false }\n"
        'tools."fs.x" = { enabled = false }\n'
        'tools."gti.x" = { enabled = false }\n'
        'tools."git.y" = { nmae = "z" }\n',
    )
    assert [each.split(": ", 2)[2] for each in got] == [
        "'git' is listed twice",
        'a tool is written in quotes, with its server: tools."git.reset"',
        "the server 'fs' is not in this namespace",
        "no server is named 'gti'; did you mean 'git'?",
        "unknown key 'nmae'; did you mean 'name'?",
    ]


VIEWS = (Path(__file__).parents[3] / "docs" / "views.md").read_text()


def test_a_pattern_switches_tools_of_a_server_and_nothing_else(tmp_path: Path) -> None:
    text = """
        [servers.git]
        command = ["x"]
        tools."*" = { enabled = false }
        tools.log = { enabled = true }
        [namespaces.dev]
        servers = ["git"]
        tools."git.re*" = { enabled = true }
        [endpoints.dev]
        namespace = "dev"
    """
    config = loaded(tmp_path, text)
    spec = next(each for each in front_spec(config, "1").endpoints if each.name == "dev")
    assert spec.switches == {"git": ({"*": False, "log": True}, {"re*": True}, {})}
    assert spec.disabled == ()
    (why,) = mistakes(tmp_path, text.replace("{ enabled = false }", '{ title = "x" }'))
    assert why.endswith("is for a single tool; a pattern goes with 'enabled' alone")


@pytest.mark.promise("M27")
def test_the_documented_example_is_what_the_text_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", _section("Single tools"), re.DOTALL)
    got = loaded(tmp_path, block)
    (spec,) = front_spec(got, "1").endpoints
    assert spec.disabled == (("git", "git_reset"),)
    found = {one.tool: one for one in spec.overrides}
    assert found.keys() == {"git_commit", "git_init", "git_log"}
    assert (found["git_commit"].name, found["git_init"].hidden) == ("save", True)
    assert found["git_log"].defaults == {"max_count": "20"}
    assert f'"{ORIGINAL}": {{"server": "git", "name": "git_commit"}}' in _section("Single tools")


def _section(heading: str) -> str:
    return VIEWS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
