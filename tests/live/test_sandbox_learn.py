"""What a sandbox refuses is told, and a trial without it learns what a server needs."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.control.client import Failed
from metamcp_worker.confinement import kernel
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway
from tests.waiting import until

pytestmark = [
    pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M96"),
    pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks"),
]  # fmt: skip

HOSTILE = (sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py"))


class Trial:
    """`metamcp sandbox learn it`, while the server is in its trial."""

    def __init__(self, gateway: Gateway, *words: str) -> None:
        command = [sys.executable, "-m", "metamcp_supervisor", "sandbox", "learn", "it", *words]
        command += ["--runtime-dir", str(gateway.folder / "run")]
        command += ["--state-dir", str(gateway.folder / "state")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def begun(self) -> "Trial":
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "it runs without its sandbox now" in line:
                return self
        raise AssertionError(self.process.communicate())

    def printed(self) -> str:
        return self.process.communicate(timeout=60)[0]


def confined_again(gateway: Gateway) -> bool:
    server: dict[str, Any] = gateway.server("it")
    return server["state"] == "active" and "landlock" in server["achieved"]


def uses(client: Client, at: dict[str, str]) -> list[bool]:
    """Whether calls that use these paths succeed."""
    answers = [client.call(f"it__{tool}", path=path) for tool, path in at.items()]
    return [not answer["result"]["isError"] for answer in answers]


def test_a_trial_proposes_lines_with_which_the_calls_of_a_server_succeed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as web:
        wanted, made = tmp_path / "wanted", tmp_path / "made"
        wanted.write_text("x")
        made.mkdir()
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        web.bind(("127.0.0.1", 0))
        web.listen()
        port = web.getsockname()[1]
        table: dict[str, Any] = {"command": [*HOSTILE], "network": {"tcp_ports": [1]}}
        at = {"read": str(wanted), "write": f"{made}/new", "dial": str(port)}
        at |= {"connect": str(tmp_path / "socket")}
        with Gateway({"it": table}) as gateway, closing(Client(gateway.port)) as client:
            assert uses(client, at) == [False] * 4
            before = gateway.config.read_text()
            trial = Trial(gateway, "--for", "1h").begun()
            assert uses(client, at) == [True] * 4
            until(lambda: gateway.server("it")["achieved"] == "recording", "it says so")
            assert "basic: off for a trial" in gateway.ctl("describe", "it")
            sample = 'confinement{achieved="recording",profile="basic",server="it"} 0.0'
            until(lambda: sample in gateway.ops("/metrics")[1], "the metric says so")
            trial.process.send_signal(signal.SIGINT)
            printed = trial.printed()
            assert trial.process.returncode == 0
            assert printed.startswith("# it used this outside of its rights; add to [servers.it]")
            assert gateway.config.read_text() == before
            until(lambda: confined_again(gateway), "it is confined again")
            assert uses(client, at | {"write": f"{made}/newer"}) == [False] * 4
            lines = [line for line in printed.splitlines() if line and line[0] != "#"]
            assert lines == [
                f'read = ["{wanted}"]',
                f'write = ["{made}"]',
                f'unix_sockets = ["{tmp_path}/socket"]',
                f"network = {{ tcp_ports = [1, {port}] }}",
            ]
            written = "\n".join(line for line in before.splitlines() if "network" not in line)
            gateway.config.write_text(
                written.replace("[servers.it]", "\n".join(["[servers.it]", *lines]))
            )
            gateway.ctl("reload", "--yes")
            until(lambda: confined_again(gateway), "it has the lines")
            assert uses(client, at) == [True] * 4


@pytest.mark.parametrize("user", ["root", "a user without privileges"])
def test_a_trial_whose_command_is_killed_is_over(tmp_path: Path, user: str) -> None:
    if user == "root" and os.geteuid():
        pytest.skip("the tests do not run as root")
    (tmp_path / "wanted").write_text("x")
    at = {"read": str(tmp_path / "wanted")}
    table: dict[str, Any] = {"command": [*HOSTILE]}
    gateway = Gateway({"it": table, "must": {**table, "sandbox_required": True}})
    if user != "root" and os.geteuid() == 0:
        gateway.wrapper = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    with gateway, closing(Client(gateway.port)) as client:
        trial = Trial(gateway, "--for", "1h").begun()
        assert uses(client, at) == [True]
        other = Trial(gateway)
        assert "it is in a trial already" in other.process.communicate(timeout=60)[1]
        trial.process.kill()
        trial.process.communicate(timeout=60)
        until(lambda: confined_again(gateway), "it is confined again")
        assert uses(client, at) == [False]
        assert [one["what"] for one in gateway.events() if "trial" in one["what"]] == [
            "trial",
            "trial over",
        ]
        with pytest.raises(Failed, match="must has nothing to learn: its sandbox stays on"):
            gateway.ask("sandbox-trial", {"name": "must", "for_s": 1.0})


def test_an_upgrade_waits_until_a_trial_is_over() -> None:
    with Gateway({"it": {"command": [*HOSTILE]}}) as gateway:
        trial = Trial(gateway, "--for", "1s").begun()
        gateway.ctl("upgrade")
        assert trial.printed() == "it used nothing outside of its rights\n"
        until(lambda: confined_again(gateway), "it is confined again")


def test_a_trial_makes_recorded_calls_again(tmp_path: Path) -> None:
    (tmp_path / "wanted").write_text("x")
    extra = '[recording]\ncalls = "full"\n'
    with Gateway({"it": {"command": [*HOSTILE]}}, extra=extra) as gateway:
        with closing(Client(gateway.port)) as client:
            client.call("it__read", path=str(tmp_path / "wanted"))

        def learnt() -> str:
            return Trial(gateway, "--replay").printed()

        until(lambda: f'read = ["{tmp_path}/wanted"]' in learnt(), "the call is recorded")


def test_what_the_sandbox_refuses_is_told_to_the_client_and_to_the_operator(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as elsewhere, socket.socket() as web:
        elsewhere.bind(path := str(tmp_path / "socket"))
        elsewhere.listen()
        web.bind(("127.0.0.1", 0))
        web.listen()
        port = str(web.getsockname()[1])
        good: dict[str, Any] = {"command": [*HOSTILE]}
        servers = {"it": {**good, "network": {"tcp_ports": [1]}}, "good": good}
        with Gateway(servers) as gateway, closing(Client(gateway.port)) as client:
            for tool, where, line in (
                ("connect", path, f'unix_sockets = ["{path}"]'),
                ("dial", port, f"network = {{ tcp_ports = [1, {port}] }}"),
            ):
                content = client.call(f"it__{tool}", path=where)["result"]["content"]
                assert content[0]["text"].startswith(f"cannot {tool}: [Errno 13]")
                assert content[1]["text"].startswith("MetaMCP: while server 'it' worked on this")
                assert f"add {line} to its table" in content[1]["text"]
                until(partial(described, gateway, line), "it is described")
            refused = {one["right"]: one for one in gateway.server("it")["refusals"]}
            assert refused["unix_sockets"]["count"] == 1
            assert refused["unix_sockets"]["what"] == path
            assert refused["tcp_ports"]["what"] == port
            assert gateway.server("good")["refusals"] == []
            events = [one for one in gateway.events() if one["what"] == "refused"]
            assert len(events) == 2
            assert f'add unix_sockets = ["{path}"] to its table' in events[0]["cause"]
            sample = 'metamcp_sandbox_refusals_total{right="unix_sockets",server="it"} 1.0'
            assert sample in gateway.ops("/metrics")[1]
            assert line in gateway.ctl("doctor", ok=(0, 1))
            (step,) = (
                one["text"]
                for one in gateway.ask("explain", {"tool": "it__dial"})["steps"]
                if one["step"] == "confinement"
            )
            assert "; refused once: its sandbox 'basic' does not let it connect to port" in step


def described(gateway: Gateway, line: str) -> bool:
    return line in gateway.ctl("describe", "it")


def test_a_call_that_fails_for_its_own_reason_or_succeeds_says_nothing_of_the_sandbox() -> None:
    with (
        Gateway({"it": {"command": [*HOSTILE]}}) as gateway,
        closing(Client(gateway.port)) as client,
    ):
        assert len(client.call("it__connect", path="/nonexistent")["result"]["content"]) == 1
        assert len(client.call("it__share", path="/")["result"]["content"]) == 2
        assert len(client.call("it__read", path="/nonexistent")["result"]["content"]) == 1
        until(lambda: gateway.server("it")["refusals"], "it is counted")
        assert gateway.server("it")["refusals"][0]["what"] == "unshare"
