"""Files that a confined server gets, over a machine that is written down here."""

from collections.abc import Mapping
from posixpath import dirname
from typing import Any

import pytest

from metamcp_worker.confinement import rules
from metamcp_worker.confinement.rules import FileRights, ServerPlaces
from metamcp_worker.ipc.spec import ConfinementSpec

HOME = "/home/ann"
PLACES = ServerPlaces(HOME, "", "/tmp/mcp-7", "", root=False)
STRICT = ServerPlaces(HOME, "/state/git/home", "/tmp/mcp-7", "/state/git/cache", root=False)
PATH = "/usr/bin:/home/ann/.local/bin"


class Machine:
    """Files by path: their beginnings, or as `->` the path that a link leads to."""

    def __init__(self, *files: str, **texts: str) -> None:
        self._texts: dict[str, str] = dict.fromkeys(files, "")
        self._texts |= {name.replace("__", "/"): text for name, text in texts.items()}
        self.links: dict[str, str] = {}

    def having(self, texts: Mapping[str, str]) -> "Machine":
        self._texts |= texts
        return self

    def linking(self, links: Mapping[str, str]) -> "Machine":
        self.links |= links
        return self

    def kind(self, path: str) -> str:
        path = self.real(path)
        if path in self._texts:
            return "file"
        return (
            "folder" if any(one.startswith(f"{path.rstrip('/')}/") for one in self._texts) else ""
        )

    def real(self, path: str) -> str:
        return self.links.get(path, path)

    def head(self, path: str) -> bytes:
        return self._texts.get(self.real(path), "").encode()

    def names(self, path: str) -> list[str]:
        inside = [one[len(path.rstrip("/")) + 1 :] for one in self._texts if dirname(one) != one]
        below = [
            name
            for one, name in zip(self._texts, inside, strict=True)
            if one.startswith(f"{path}/")
        ]
        return list(dict.fromkeys(name.partition("/")[0] for name in below))


def granted(
    look: Machine, *command: str, cwd: str = "/conf", env: Mapping[str, str] = {}, **spec: Any
) -> FileRights:
    known = ConfinementSpec(profile="basic", own=tuple(env), **spec)
    ours = rules.environment(known, {"PATH": PATH, **env}, command, PLACES, look)
    return rules.grants(known, command, ours, cwd, PLACES, look)


def writable(found: FileRights) -> set[str]:
    """What the server may change beside devices, its own folder, caches and its project."""
    ours = ("/conf", *rules.DEVICES, PLACES.tmp, *(f"{HOME}/{name}" for name in rules.HOME_CACHES))
    return set(found.write) - {*ours}


def test_a_server_may_read_the_system_and_change_its_own_folders_only() -> None:
    found = granted(Machine("/usr/bin/server"), "server")
    assert {"/usr", "/lib", "/etc", "/usr/bin/server"} <= set(found.read)
    assert writable(found) == set()
    assert {"/tmp/mcp-7", "/home/ann/.cache", "/home/ann/.npm", "/conf"} <= set(found.write)
    assert not {"/", "/proc", "/dev", "/sys", "/home", HOME} & {*found.read, *found.write}


@pytest.mark.parametrize(
    ("argument", "changeable"),
    [
        ("/data/notes", {"/data/notes"}),
        ("--root=/data/notes", {"/data/notes"}),
        ("/data/notes/a.txt", {"/data/notes/a.txt"}),
        ("file:///data/notes/a.txt", {"/data/notes/a.txt"}),
        ("~/papers", {"/home/ann/papers"}),
        ("files", {"/conf/files"}),
        (".", set[str]()),
        ("/data/notes:/data/more", {"/data/notes", "/data/more"}),
        ("/data/notes/new.txt", {"/data/notes"}),
        ("/data/more/x.db", {"/data/more", "/data/more/x.db"}),
        ("sqlite:///data/more/x.db", {"/data/more", "/data/more/x.db"}),
        ("cd /data/notes && run", {"/data/notes"}),
        ("import sys; sys.path.insert(0, '/data/notes')", {"/data/notes"}),
        ("/home/ann/new.txt", set[str]()),
        ("/tmp/new.sock", set[str]()),
        ("/usr/bin/server", set[str]()),
        ("/", set[str]()),
        ("/proc", set[str]()),
        ("https://host/data/notes", set[str]()),
        ("--verbose", set[str]()),
        ("stdio", set[str]()),
    ],
)  # fmt: skip
def test_what_stands_in_the_command_line_may_be_changed(
    argument: str, changeable: set[str]
) -> None:
    look = Machine(
        "/usr/bin/server", "/data/notes/a.txt", "/data/more/x.db", "/conf/files/b",
        "/home/ann/papers/c", "/proc/self/x", "/tmp/x",
    )  # fmt: skip
    assert writable(granted(look, "server", argument)) == changeable


def test_what_stands_in_its_own_variables_may_be_changed_and_paths_of_code_are_read() -> None:
    look = Machine("/usr/bin/server", "/conf/data/old", "/keys/key.json", "/code/x.py")
    env = {
        "MEMORY_FILE_PATH": "data/memory.jsonl", "KEY": "/keys/key.json", "PYTHONPATH": "/code",
        "MODE": "data",
    }  # fmt: skip
    found = granted(look, "server", env=env)
    assert writable(found) == {"/conf/data", "/keys/key.json"}
    assert "/code" in found.read


def test_a_virtual_environment_comes_with_its_base_and_with_folders_of_editable_packages() -> None:
    packages = "/proj/.venv/lib/python3.12/site-packages"
    look = Machine("/usr/bin/x").having({
        "/proj/.venv/bin/server": "#!/proj/.venv/bin/python\n",
        "/proj/.venv/pyvenv.cfg": "home = /home/ann/.pyenv/versions/3.12/bin\n",
        f"{packages}/_mine.pth": "/home/ann/mine/src\n",
        f"{packages}/__editable___other_finder.py": "MAPPING = {'other': '/home/ann/other'}\n",
        "/home/ann/mine/src/a.py": "", "/home/ann/other/b.py": "",
    })  # fmt: skip
    found = granted(look, "/proj/.venv/bin/server")
    assert {"/proj/.venv", "/home/ann/.pyenv", "/home/ann/mine/src", "/home/ann/other"} <= set(
        found.read
    )
    assert writable(found) == set()


def test_a_script_comes_with_its_interpreter_and_its_project() -> None:
    look = Machine("/usr/bin/env").having({
        "/home/ann/.local/bin/node": "", "/home/ann/.local/lib/x": "",
        "/home/ann/work/tool/package.json": "", "/home/ann/work/tool/dist/index.js": "",
        "/srv/run": "#!/usr/bin/env node\n",
    })  # fmt: skip
    found = granted(look, "node", "/home/ann/work/tool/dist/index.js")
    assert {"/home/ann/work/tool", "/home/ann/.local/bin", "/home/ann/.local/lib"} <= set(
        found.read
    )
    assert HOME not in found.read
    assert writable(found) == set()
    assert "/home/ann/.local/bin/node" in granted(look, "/srv/run").read


def test_a_part_of_a_project_comes_with_all_of_it_and_no_more_than_the_repository() -> None:
    parts = ("packages/a/package.json", "packages/a/index.js", "package.json", ".git/HEAD")
    look = Machine("/usr/bin/node", *(f"/work/mono/{part}" for part in parts), "/work/setup.py")
    found = granted(look, "node", "/work/mono/packages/a/index.js")
    assert "/work/mono" in found.read
    assert "/work" not in found.read


def test_a_script_of_a_shell_comes_with_the_programs_that_it_names() -> None:
    look = Machine("/data/x").having({
        "/home/ann/bin/run": "#!/bin/sh\ncd /data && exec /srv/app/bin/it --home /home/ann\n",
        "/srv/app/bin/it": "", "/bin/sh": "",
    })  # fmt: skip
    found = granted(look, "/home/ann/bin/run")
    assert {"/srv/app/bin/it", "/data"} <= set(found.read)
    assert HOME not in found.read
    assert writable(found) == set()


def test_a_package_of_node_comes_with_the_packages_around_it() -> None:
    script = "/proj/node_modules/@x/server/dist/index.js"
    found = granted(Machine("/usr/bin/node", script), "node", script)
    assert "/proj/node_modules" in found.read
    assert "/proj" not in found.read


def test_the_folder_of_the_configuration_is_read_without_what_is_the_gateway_s() -> None:
    look = Machine("/usr/bin/server", "/conf/metamcp.toml", "/conf/work/state/keys", "/conf/work/a",
                   "/conf/b")  # fmt: skip
    found = granted(look, "server", hidden=("/conf/metamcp.toml", "/conf/work/state"))
    assert {"/conf/work/a", "/conf/b"} <= set(found.read)
    assert not {"/conf", "/conf/work", "/conf/metamcp.toml", "/conf/work/state"} & set(found.read)


@pytest.mark.parametrize("cwd", [HOME, "/home", "/tmp", "/", f"{HOME}/.config/gh"])
def test_a_working_directory_that_is_too_wide_or_closed_is_not_granted(cwd: str) -> None:
    found = granted(Machine("/usr/bin/server", f"{cwd.rstrip('/')}/x"), "server", cwd=cwd)
    assert cwd not in {*found.read, *found.write, *found.names}


def test_a_project_may_be_changed_but_for_what_the_gateway_and_other_programs_run() -> None:
    members = ("a.txt", "src/x.py", ".git/HEAD", ".git/hooks/x", ".vscode/tasks.json", ".mcp.json",
               ".claude/settings.json", "metamcp.toml", "link/key")  # fmt: skip
    look = Machine("/usr/bin/server", *(f"/conf/{name}" for name in members))
    look.linking({"/conf/link": "/home/ann/.ssh"})
    found = granted(look, "server", hidden=("/conf/metamcp.toml",))
    assert writable(found) == {"/conf/a.txt", "/conf/src"}
    assert {"/conf/.git", "/conf/.claude", "/conf/src"} <= set(found.read)
    assert not {"/conf", "/conf/.mcp.json", "/conf/metamcp.toml", "/conf/link"} & {*found.read}
    assert found.names == ("/conf",)


def test_a_server_with_a_home_of_its_own_only_reads_its_project_unless_it_is_written() -> None:
    spec, look = ConfinementSpec(profile="strict"), Machine("/usr/bin/server", "/conf/a")
    found = rules.grants(spec, ("server",), {}, "/conf", STRICT, look)
    assert "/conf" in found.read
    assert "/conf" not in found.write
    assert {"/state/git/home", "/state/git/cache", "/tmp/mcp-7"} <= set(found.write)
    assert not [path for path in (*found.read, *found.write) if path.startswith(HOME)]
    spec = ConfinementSpec(profile="strict", cwd_named=True)
    assert "/conf" in rules.grants(spec, ("server",), {}, "/conf", STRICT, look).write


@pytest.mark.parametrize("place", ["~", "/home", "/", *(f"~/{name}" for name in rules.SECRETS)])
def test_no_value_opens_the_home_or_a_place_with_secrets_and_it_is_told(place: str) -> None:
    path = place.replace("~", HOME)
    look = Machine("/usr/bin/server", f"{path.rstrip('/')}/inner/file", "/srv/link", "/conf/x")
    look.linking({"/srv/link": path})
    tries = (path, f"{path}/inner/file", f"{path}/new", f"--x={path}", "/srv/link")
    for number, text in enumerate(tries if path not in (HOME, "/home", "/") else (path,)):
        for name, found in (
            ("its command line", granted(look, "server", text)),
            ("its variable KEY", granted(look, "server", env={"KEY": text.rpartition("=")[2]})),
        ):
            opened = {*found.read, *found.write, *found.names} - {*rules.BASE}
            assert not [one for one in opened if f"{path}/".startswith(f"{one}/")], number
            assert not [one for one in opened if one.startswith((f"{path}/in", f"{path}/new"))]
            assert found.refused
            for sentence in found.refused:
                assert sentence.startswith(f"{name} names ")
                assert "that alone does not open it: write read = [" in sentence


@pytest.mark.parametrize("path", [f"{HOME}/new.db", "/tmp/new.db", f"{HOME}/x.sqlite"])
def test_a_file_to_be_made_in_a_folder_that_holds_more_is_told_with_the_line(path: str) -> None:
    look = Machine("/usr/bin/server", f"{HOME}/x.sqlite", "/tmp/other")
    found = granted(look, "server", path)
    folder = path.rpartition("/")[0]
    assert folder not in writable(found)
    (sentence,) = found.refused
    assert sentence.startswith(f"its command line names {path}, and {folder} stays closed")
    assert f'write write = ["{folder}"]' in sentence


def test_a_variable_of_the_gateway_opens_no_place_of_its_user() -> None:
    look = Machine("/usr/bin/server", f"{HOME}/.config/app/x", f"{HOME}/.ssh/id", "/ca/x.pem")
    known = ConfinementSpec(profile="basic")
    env = {"XDG_CONFIG_HOME": f"{HOME}/.config", "XDG_DATA_HOME": f"{HOME}/.local/share",
           "HOME": HOME, "UV_X": f"{HOME}/.ssh/id", "SSL_CERT_FILE": "/ca/x.pem",
           "XDG_CACHE_HOME": "/big/cache"}  # fmt: skip
    found = rules.grants(known, ("server",), env, "/conf", PLACES, look)
    assert "/ca/x.pem" in found.read
    assert "/big/cache" in found.write
    assert not [path for path in found.read if path.startswith((f"{HOME}/.config/a", f"{HOME}/.s"))]
    assert found.refused == ()


def test_read_and_write_open_exactly_what_they_name() -> None:
    look = Machine("/usr/bin/server", f"{HOME}/.ssh/id", f"{HOME}/.kube/config", f"{HOME}/x")
    found = granted(look, "server", read=("~/.ssh", "~"), write=("~/.kube/config",))
    assert {f"{HOME}/.ssh", HOME} <= set(found.read)
    assert f"{HOME}/.kube/config" in writable(found)
    assert f"{HOME}/.kube" not in writable(found)


def test_a_link_that_a_server_makes_of_a_written_folder_opens_no_place_with_secrets() -> None:
    look = Machine("/usr/bin/server", f"{HOME}/.ssh/id", "/srv/out/x")
    look.linking({"/conf/out": f"{HOME}/.ssh", "/conf/in": "/srv/out"})
    found = granted(look, "server", write=("out", "in"))
    assert writable(found) == {"/conf/in"}
    (sentence,) = found.refused
    assert sentence.startswith(f"write names /conf/out, a link to {HOME}/.ssh, which is a place")


def test_a_folder_around_a_place_with_secrets_is_opened_without_it() -> None:
    look = Machine("/usr/bin/server", f"{HOME}/.config/gh/hosts", f"{HOME}/.config/app/x")
    assert writable(granted(look, "server", f"{HOME}/.config")) == {f"{HOME}/.config/app"}


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("[user]\nname = Ann\n", True),
        ('[url "ssh://git@host/"]\ninsteadOf = https://host/\n', True),
        ('[url "https://ann:x@host/"]\ninsteadOf = https://host/\n', False),
        ('[url "https://ghp_x@host/"]\ninsteadOf = https://host/\n', False),
        ("[http]\nextraHeader = X-Token: x\n", False),
        ("# " + "x" * rules.SETTINGS_BYTES_MAX, False),
    ],
)
def test_settings_are_readable_unless_they_hold_a_secret(text: str, readable: bool) -> None:
    look = Machine("/usr/bin/server").having({f"{HOME}/.gitconfig": text})
    assert (f"{HOME}/.gitconfig" in granted(look, "server").read) == readable


def test_servers_of_root_get_a_part_of_etc() -> None:
    spec, look = ConfinementSpec(profile="basic"), Machine("/usr/bin/server")
    found = rules.grants(spec, ("server",), {}, "/conf", PLACES._replace(root=True), look)
    assert "/etc/resolv.conf" in found.read
    assert not {"/etc", "/etc/shadow", "/etc/ssh"} & set(found.read)


def test_a_confined_server_has_the_home_of_the_operator_and_a_temporary_folder_of_its_own() -> None:
    given = {"HOME": HOME, "XDG_CACHE_HOME": "/home/ann/.cache", "TMPDIR": "/tmp"}
    spec, look = ConfinementSpec(profile="basic"), Machine()
    found = rules.environment(spec, given, ("npx",), PLACES, look)
    assert found == {**given, "TMPDIR": "/tmp/mcp-7"}


def test_uv_keeps_tools_and_interpreters_in_the_cache_and_uses_those_that_are_there() -> None:
    spec = ConfinementSpec(profile="basic")
    cache = {"UV_TOOL_DIR": f"{HOME}/.cache/uv-tools", "TMPDIR": "/tmp/mcp-7"}
    found = rules.environment(spec, {}, ("uvx",), PLACES, Machine())
    assert found == {**cache, "UV_PYTHON_INSTALL_DIR": f"{HOME}/.cache/uv-python"}
    look = Machine(f"{HOME}/.local/share/uv/python/3.13/bin/python")
    assert rules.environment(spec, {}, ("/usr/bin/uvx",), PLACES, look) == cache
    assert f"{HOME}/.local/share/uv" in granted(look, "uvx").read


@pytest.mark.parametrize(
    ("spec", "home", "usable", "own"),
    [
        ({}, HOME, True, False),
        ({"profile": "strict"}, HOME, True, True),
        ({"hidden": ("/var/lib/metamcp",)}, "/var/lib/metamcp", True, True),
        ({"hidden": ("/var/lib/metamcp",)}, "/var/lib/metamcp/home", True, True),
        ({"hidden": (f"{HOME}/.local/state/metamcp",)}, HOME, True, False),
        ({}, "/nonexistent", False, True),
    ],
)
def test_a_server_has_a_home_of_its_own_where_the_operator_has_none(
    spec: dict[str, Any], home: str, usable: bool, own: bool
) -> None:
    made: dict[str, Any] = {"profile": "basic", **spec}
    assert rules.has_own_home(ConfinementSpec(**made), home, usable=usable) == own


def test_a_strict_server_has_a_home_and_caches_of_its_own_unless_it_names_others() -> None:
    given = {"HOME": HOME, "NPM_CONFIG_CACHE": "/home/ann/.npm", "UV_CACHE_DIR": "/c", "LANG": "C"}
    look = Machine().having({f"{HOME}/.gitconfig": "[user]", f"{HOME}/.config/git/config": "[x]"})
    spec = ConfinementSpec(profile="strict")
    found = rules.environment(spec, given, ("/usr/bin/npx",), STRICT, look)
    assert found == {
        "HOME": "/state/git/home", "TMPDIR": "/tmp/mcp-7", "LANG": "C",
        "PYTHONUSERBASE": "/home/ann/.local", "npm_config_cache": "/state/git/cache/npm",
        "GIT_CONFIG_GLOBAL": f"{HOME}/.gitconfig",
    }  # fmt: skip
    own = ConfinementSpec(profile="strict", own=("HOME", "UV_CACHE_DIR"))
    found = rules.environment(own, given, ("server",), STRICT, look)
    assert (found["HOME"], found["UV_CACHE_DIR"]) == (HOME, "/c")


CONNECTIONS = ("unix sockets of others", "open endpoints of the gateway")


@pytest.mark.parametrize(
    ("spec", "landlock", "filters", "asks", "lacking"),
    [
        ({}, 7, True, True, ()),
        ({}, 0, False, False,
         ("files", "signals to other processes", "system calls", *CONNECTIONS)),
        ({}, 5, True, True, ("signals to other processes",)),
        ({}, 7, True, False, CONNECTIONS),
        ({"tcp_ports": (443,)}, 3, True, True, ("TCP ports", "signals to other processes")),
        ({"network": "none"}, 7, False, False, ("system calls", "the network", *CONNECTIONS)),
        ({"profile": "strict"}, 0, True, False, ()),
        ({"profile": "strict", "tcp_ports": (443,)}, 0, True, False, ("TCP ports",)),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_keep_a_server_from_is_known(
    spec: dict[str, Any], landlock: int, filters: bool, asks: bool, lacking: tuple[str, ...]
) -> None:
    made: dict[str, Any] = {"profile": "basic", **spec}
    known = ConfinementSpec(**made)
    assert rules.find_unprotected(known, landlock, filters=filters, asks=asks) == lacking


@pytest.mark.parametrize(
    ("browser", "command", "env", "root", "own"),
    [
        (True, ["npx", "@playwright/mcp"], {}, False, True),
        (True, ["npx", "@playwright/mcp", "--no-sandbox"], {}, False, False),
        (True, ["npx", "chrome-devtools-mcp", "--chromeArg=--no-sandbox"], {}, False, False),
        (True, ["x"], {"LAUNCH_OPTIONS": '{"args":["--no-sandbox"]}'}, False, False),
        (True, ["npx", "@playwright/mcp"], {}, True, False),
        (False, ["x"], {}, False, False),
    ],
)
def test_a_browser_has_a_sandbox_of_its_own_unless_it_is_root_or_told_otherwise(
    browser: bool, command: list[str], env: dict[str, str], root: bool, own: bool
) -> None:
    spec = ConfinementSpec(profile="basic", browser=browser)
    assert rules.has_own_sandbox(spec, command, env, root=root) == own


def test_a_browser_that_could_not_start_confined_is_kept_from_nothing() -> None:
    spec = ConfinementSpec(profile="basic", browser=True)
    (everything,) = rules.find_unprotected(spec, 7, filters=True, browsers=False)
    assert everything == "anything, as its browser would not start"
    assert rules.find_unprotected(spec, 7, filters=True) == ()
