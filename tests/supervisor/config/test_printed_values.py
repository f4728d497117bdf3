"""Values that a program prints: `${cmd:…}` and `${keyring:…}`."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from metamcp_supervisor.config import confirmation, printed_values
from metamcp_supervisor.config.config import Config, ConfigInvalid
from metamcp_supervisor.config.reload import fingerprint, hash_launch
from metamcp_supervisor.processes import nursery_process
from metamcp_worker.runtime import orphans
from tests.supervisor.configs import loaded, messages
from tests.waiting import until

pytestmark = pytest.mark.promise("M95")

ENVIRON = {"PATH": os.environ["PATH"], "METAMCP_X": "of the gateway", "T": "of the user"}
ISSUER = """
[gateway]
auth = "oauth"
[endpoints.e]
namespace = "default"
[endpoints.e.oauth]
issuer = "https://i/"
introspection = 'https://x/'
client_id = "a"
client_secret = "{}"
"""
CANARY = "s3cret-canary-of-this-test"


def text(command: str, key: str = "env = {{ T = '{}' }}") -> str:
    return f"[servers.a]\ncommand = ['x']\n{key.format('${cmd:' + command + '}')}\n"


def yes(_config: Config) -> bool:
    return True


def run(folder: Path, command: str) -> Config:
    return loaded(folder, text(command), environ=ENVIRON, may_run=yes)


def script(folder: Path, body: str) -> Path:
    path = folder / "script.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


def test_a_command_gives_what_it_prints_without_the_last_newline(tmp_path: Path) -> None:
    script(tmp_path, r"""printf '%s|%s|%s|%s\n\n' "$1" "$2" "$T" "$METAMCP_X"; cat""")
    found = run(tmp_path, './script.sh "a $b" c')
    assert found.servers["a"].env == {"T": "a $b|c|of the user|\n"}  # no shell, no input
    assert found.servers["a"].env_written == {"T": '${cmd:./script.sh "a $b" c}'}
    assert not found.unrun
    assert "a $b|c" not in repr(found)


def test_a_command_runs_once_for_each_load(tmp_path: Path) -> None:
    script(tmp_path, f"echo x >> {tmp_path}/runs; wc -l < {tmp_path}/runs")
    words = "[servers.{0}]\ncommand = ['x']\nenv = {{ A = '${{cmd:./script.sh}}' }}\n"
    both = words.format("a") + words.format("b")
    for number in ("1", "2"):
        found = loaded(tmp_path, both, environ=ENVIRON, may_run=yes)
        assert {found.servers[name].env["A"].strip() for name in "ab"} == {number}


def test_a_command_runs_only_after_a_yes_to_the_configuration(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    asked: list[Config] = []

    def no(config: Config) -> bool:
        asked.append(config)
        return False

    for may_run in (None, no):
        found = loaded(tmp_path, text(f"touch {ran}"), environ=ENVIRON, may_run=may_run)
        assert found.unrun
        assert found.programs == (f"cmd:touch {ran}",)
    assert asked[0].servers["a"].env == {"T": printed_values.NOT_RUN}
    assert not ran.exists()


def test_no_command_runs_while_the_configuration_has_an_error(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    broken = text(f"touch {ran}") + "[servers.b]\ncommand = 1\n[servers.c]\ncommand = ['x']\n"
    found = loaded(tmp_path, broken, environ=ENVIRON, may_run=yes)
    assert not ran.exists()
    assert "does not run while the configuration has errors" in found.servers["a"].mistake
    assert not found.servers["c"].mistake


def test_no_command_runs_for_a_server_that_is_not_enabled(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    value = f"${{cmd:touch {ran}}}"
    entry = {"command": "x", "disabled": True, "env": {"T": value}}
    foreign = json.dumps({"mcpServers": {"a": entry}})
    for name, written in (
        ("metamcp.toml", text(f"touch {ran}") + "enabled = false\n"),
        (".mcp.json", foreign),
    ):
        found = loaded(tmp_path, written, name=name, environ=ENVIRON, may_run=yes)
        assert not found.servers
        assert not ran.exists()
        assert "only resolved for a server that is enabled" in found.warnings[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"echo {CANARY}; echo {CANARY} >&2; exit 3", "'./script.sh' failed with exit code 3"),
        (r"printf '\377'; exit 3", "'./script.sh' failed with exit code 3"),
        (f"echo {CANARY}; kill -9 $$", "'./script.sh' died by signal 9"),
        ("echo", "'./script.sh' printed nothing"),
        (f"yes {CANARY}", "'./script.sh' printed more than 65536 bytes"),
        (r"printf '\377'", "'./script.sh' printed something that is not UTF-8 text"),
    ],
)
def test_a_failure_names_setting_and_command_and_never_the_output(
    tmp_path: Path, body: str, words: str
) -> None:
    script(tmp_path, body)
    (message,) = messages(tmp_path, text("./script.sh --key=1"), environ=ENVIRON, may_run=yes)
    assert words in message
    assert "servers.a.env.T" in message
    assert CANARY not in message
    assert "--key" not in message


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    fd = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    script(tmp_path, "(echo there; exec sleep 100) > alive & sleep 100")
    with open(fd, "rb", buffering=0) as alive:
        with pytest.raises(ConfigInvalid, match="did not end within 10 s"):
            run(tmp_path, "./script.sh")
        assert alive.read(100) == b"there\n"
        until(lambda: alive.read(100) == b"", "nobody holds the other end")


def test_a_secret_that_is_too_short_to_be_masked_gives_a_warning(tmp_path: Path) -> None:
    for value, warnings in (("1234567", 1), ("12345678", 0)):
        found = loaded(tmp_path, text(f"echo {value}"), environ=ENVIRON, may_run=yes)
        assert found.servers["a"].referred == (value,)
        assert len(found.warnings) == warnings
        assert value not in "".join(found.warnings)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "names no command"),
        ("a 'b", "a quote without its end".replace("'", "")),
        ("/no/such x", "'/no/such' cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_cannot_start_is_told(tmp_path: Path, command: str, words: str) -> None:
    written = text(command, key='env = {{ T = "{}" }}')
    (message,) = messages(tmp_path, written, environ=ENVIRON, may_run=yes)
    assert words in message


def test_a_command_runs_only_from_a_file_that_nobody_else_can_write(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = tmp_path / "metamcp.toml"
    path.write_text(text(f"touch {ran}"))
    path.chmod(0o664)
    (message,) = messages(tmp_path, environ=ENVIRON, may_run=yes)
    assert "this file may be written by others; run 'chmod go-w' on it" in message
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
        (message,) = messages(tmp_path, environ=ENVIRON, may_run=yes)
        assert "belongs to user id 1234" in message
    assert not ran.exists()


@pytest.mark.parametrize(
    "written", ["[gateway]\nstate_dir = '${cmd:true}'", "[embeddings]\nfolder = '${keyring:a/b}'",
                "[servers.a]\ncommand = ['x']\ncwd = '${cmd:true}'"],
)  # fmt: skip
def test_a_path_is_not_printed_by_a_program(tmp_path: Path, written: str) -> None:
    assert "this setting is a path" in " ".join(messages(tmp_path, written, may_run=yes))


def test_an_url_can_come_from_a_command(tmp_path: Path) -> None:
    written = "[servers.a]\nurl = '${cmd:echo https://x.example/mcp?k=1}'\n"
    assert loaded(tmp_path, written).unrun
    found = loaded(tmp_path, written, environ=ENVIRON, may_run=yes)
    assert found.servers["a"].url == "https://x.example/mcp?k=1"


def test_what_a_command_prints_changes_no_hash_and_no_confirmation(tmp_path: Path) -> None:
    script(tmp_path, f"echo x >> {tmp_path}/runs; wc -l < {tmp_path}/runs")
    written = (
        "[servers.a]\ncommand = ['x', '${cmd:./script.sh}']\nenv = { A = '${cmd:./script.sh}' }\n"
        "[servers.b]\nurl = 'https://x/?k=${cmd:./script.sh}'\noauth = { client_id = 'a',"
        " client_secret = '${cmd:./script.sh}' }\n"
    ) + ISSUER.format("${cmd:./script.sh}")
    unrun, first, second = (
        loaded(tmp_path, written, environ=ENVIRON, may_run=may_run) for may_run in (None, yes, yes)
    )
    assert first.servers != second.servers
    hashes = {
        (fingerprint(each), confirmation.digest(each, "f"), hash_launch(each.servers["a"]))
        for each in (unrun, first, second)
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "written",
    [
        "[embeddings]\nurl = 'https://x/'\nmodel = 'm'\nkey = '${cmd:echo 1}'\n",
        "[traces]\nendpoint = 'https://x/'\nheaders = { Authorization = '${env:T}' }\n",
        "[servers.a]\nurl = 'https://x/'\nheaders = { X = '${keyring:a/b}' }\n",
        ISSUER.format("${env:T}"),
    ],
)
def test_a_reference_anywhere_in_a_strangers_file_has_to_be_confirmed(
    tmp_path: Path, written: str
) -> None:
    plain = "[servers.u]\nurl = 'https://x/'\n"
    assert not confirmation.parts(loaded(tmp_path, plain))
    found = loaded(tmp_path, plain + written, environ=ENVIRON)
    assert confirmation.parts(found)
    assert "${" in confirmation.question(found, "f") or "cmd:" in confirmation.question(found, "f")
    other = loaded(
        tmp_path, plain + written.replace("https://x/'\n", "https://y/'\n"), environ=ENVIRON
    )
    assert confirmation.digest(found, "f") != confirmation.digest(other, "f")


BACKEND = """
from keyring.backend import KeyringBackend
class Fake(KeyringBackend):
    priority = 1
    def get_password(self, service, username):
        return {("svc/x", "me"): "k3y"}.get((service, username))
    def set_password(self, service, username, password):
        raise NotImplementedError
"""


def test_a_secret_comes_from_the_keyring(tmp_path: Path) -> None:
    (tmp_path / "vault_of_test.py").write_text(BACKEND)
    environ = ENVIRON | {
        "PYTHONPATH": str(tmp_path), "PYTHON_KEYRING_BACKEND": "vault_of_test.Fake"
    }  # fmt: skip
    written = "[servers.a]\ncommand = ['x']\nenv = {{ T = '${{keyring:{}}}' }}\n"
    found = loaded(tmp_path, written.format("svc/x/me"), environ=environ, may_run=yes)
    assert found.servers["a"].env == {"T": "k3y"}
    for name, words in (
        ("svc/me", "the look-up of 'svc/me' in the keyring failed with exit code 1"),
        ("svc", "must be written '${keyring:SERVICE/USER}'"),
    ):
        (message,) = messages(tmp_path, written.format(name), environ=environ, may_run=yes)
        assert words in message


@pytest.mark.process
def test_a_program_that_runs_is_not_killed_as_an_orphan(tmp_path: Path) -> None:
    """A reload may run it while a nursery ends, and with it everything below this process."""
    script(tmp_path, "echo begun > begun; while [ ! -e go ]; do :; done; echo whole")
    known = orphans.children()

    async def scene() -> Config:
        reload = asyncio.create_task(asyncio.to_thread(run, tmp_path, "./script.sh"))
        await asyncio.to_thread(until, (tmp_path / "begun").exists, "the program runs")
        assert await nursery_process.sweep(lambda: known) == (set(), True)
        (tmp_path / "go").touch()
        return await reload

    assert asyncio.run(scene()).servers["a"].env == {"T": "whole"}
