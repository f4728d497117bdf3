"""Configurations with a mistake in one server, without any, and with commands that are new."""

import os
import pty
import select
import subprocess
import sys

import pytest

from tests import programs
from tests.live.client import MODERN, Client
from tests.live.gateway import SERVER, Gateway, fake, toml
from tests.live.test_first_launch import Folder, folder
from tests.live.test_watch import WATCH, names, refusals
from tests.supervisor.cli.test_up import IN_A_WINDOW
from tests.waiting import until

pytestmark = pytest.mark.live

__all__ = ["folder"]

BROKEN = """
[servers.unset]
command = ["x"]
env = { KEY = "${NOT_SET_ANYWHERE}" }
[servers.b__d]
command = ["x"]
[servers.typo]
command = ["x"]
timeuot = "5s"
"""


def run(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return programs.run([*programs.PROGRAM, *words], cwd=gateway.folder)


@pytest.mark.promise("M98")
def test_a_mistake_in_one_server_stops_that_one_and_says_so_until_it_is_mended() -> None:
    gateway = Gateway({"good": fake()}, extra=BROKEN, wait=False)
    with gateway:
        until(gateway.answers, "it runs")
        gateway.wait("good", state="active")
        client = Client(gateway.port, MODERN)
        assert client.text("good__echo", text="a") == "a"
        client.close()
        for name, sentence in (
            ("unset", "the environment variable NOT_SET_ANYWHERE is not set"),
            ("b_d", "the name 'b__d' has '__' in it"),
            ("typo", "unknown key 'timeuot'; did you mean 'timeout'?"),
        ):
            server = gateway.server(name)
            assert (server["state"], server["reason"]) == ("error", "configuration")
            assert sentence in server["message"]
            assert f"metamcp.toml:{server['message'].partition('.toml:')[2]}" in server["message"]
            why = gateway.ctl("describe", name)
            assert "it is not started: its configuration has a mistake" in why
            assert sentence in why
            gateway.ctl("start", name, "--wait", ok=(1,))
        assert "configuration" in gateway.ctl("status", ok=(3,))
        assert "NOT_SET_ANYWHERE" in gateway.log.read_text()
        checked = run(gateway, "config", "check", "--config", str(gateway.config))
        assert checked.returncode == 65
        assert [word in checked.stderr for word in ("NOT_SET", "b__d", "timeuot")] == [True] * 3
        gateway.extra = ""
        gateway.write({"good": fake(), "unset": fake(), "typo": fake()})
        gateway.ctl("reload")
        gateway.wait("good", "unset", "typo", state="active")
        assert names(gateway) == ["good", "unset", "typo"]


@pytest.mark.promise("M78")
def test_a_reload_stops_nothing_that_runs_for_a_mistake_unless_somebody_says_yes() -> None:
    with Gateway({"good": fake(), "other": fake()}) as gateway:
        pid = gateway.server("good")["pid"]
        gateway.write({"good": {**fake(), "foo": 1}, "other": fake(), "new": fake()})
        gateway.ctl("reload", ok=(65,))
        assert gateway.server("good")["pid"] == pid
        gateway.ctl("reload", "--yes", ok=(65,))
        until(lambda: gateway.server("good")["reason"] == "configuration", "it is stopped")
        gateway.wait("other", "new", state="active")
        # A mistake that is there already, and one in a server that is new, hold up nothing.
        gateway.write({"good": {**fake(), "bar": 1}, "other": fake(), "late": {"foo": 1}})
        assert "remove" in gateway.ctl("reload", ok=(65,))
        assert gateway.server("late")["state"] == "error"


@pytest.mark.promise("M78")
def test_a_watched_file_that_lost_every_server_is_refused_and_a_yes_applies_it() -> None:
    with Gateway({"a": fake()}, extra=WATCH) as gateway:
        pid = gateway.server("a")["pid"]
        gateway.config.write_text(WATCH + "\n")
        until(lambda: refusals(gateway), "the refusal is in the journal")
        (refusal,) = refusals(gateway)
        assert "has no server any more" in refusal
        assert "'metamcp reload --yes' applies it" in refusal
        assert gateway.server("a")["pid"] == pid
        gateway.ctl("reload", ok=(1,))
        gateway.ctl("reload", "--yes")
        until(lambda: names(gateway) == [], "nothing is left")


def confirmed(folder: Folder) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(folder.home), "XDG_RUNTIME_DIR": str(folder.path)}
    return programs.run([*programs.PROGRAM, "confirm", "--yes"], cwd=folder.path, env=environ)


@pytest.mark.promise("M105")
def test_new_commands_of_a_file_that_was_found_are_shown_by_confirm_and_applied(
    folder: Folder,
) -> None:
    folder.up("--yes")
    until(folder.answers, "it listens")
    client = Client(folder.port)
    until(lambda: "my-echo__echo" in client.tools(), "the first server is ready")
    folder.add("Other", "--tools", "2")
    done = confirmed(folder)
    assert done.returncode == 0, done
    shown = toml([*SERVER, "--tools", "2"]).replace(" ", "")
    assert f"other: {shown}" in done.stderr
    assert "applied" in done.stdout
    until(lambda: "other__echo" in client.tools(), "the second server is ready")
    client.close()


@pytest.mark.promise("M105")
def test_new_commands_of_a_file_that_was_found_are_asked_about_on_the_terminal_of_up(
    folder: Folder,
) -> None:
    ours, theirs = pty.openpty()
    ports = ("--listen", f"127.0.0.1:{folder.port}", "--ops-listen", "127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_WINDOW, "0", "-m", "metamcp_supervisor", "up", *ports],
        cwd=folder.path,
        env={**os.environ, "HOME": str(folder.home), "XDG_RUNTIME_DIR": str(folder.path)},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    folder.processes.append(process)
    os.close(theirs)
    seen = b""

    def read_to(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            assert select.select([ours], [], [], 30.0)[0], (words, seen)
            seen += os.read(ours, 4096)
        seen = seen.partition(words)[2]

    read_to(b"Start them?")
    os.write(ours, b"y\n")
    read_to(b"claude mcp add")
    for number, answer in enumerate((b"n\n", b"y\n")):
        folder.add("Other", "--tools", str(number))
        read_to(b"other: ")
        read_to(b"Apply it? [y/N]: ")
        os.write(ours, answer)
        read_to(b"nothing is changed" if answer == b"n\n" else b"reloaded")
    client = Client(folder.port)
    until(lambda: "other__echo" in client.tools(), "the second server is ready")
    client.close()
    os.close(ours)
