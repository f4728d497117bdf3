"""`metamcp --context NAME`: another machine's gateway is steered through its console."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from metamcp_supervisor.console.site import OWN_STREAMS_MAX
from metamcp_supervisor.verbs import Exit
from tests import programs
from tests.live.console import Steered
from tests.live.console_abroad import ConsoleAbroad
from tests.live.gateway import Completed, fake, free_port, toml
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M80")]

NOTHING: Mapping[str, str] = {}
PROGRAM = (sys.executable, "-m", "metamcp_supervisor")
SSH = """#!/bin/sh
printf '%s\\n' "$1" > "$SEEN"
shift
exec sh -c "$*"
"""
METAMCP = f"""#!/bin/sh
exec {sys.executable} -m metamcp_supervisor "$@"
"""


class Laptop:
    """A user whose file of contexts names gateways. `home`: folder of the user."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / ".config" / "metamcp" / "contexts.toml"
        self.file.parent.mkdir(parents=True)
        self.file.touch(mode=0o600)
        self.environ = {**os.environ, "HOME": str(home)}

    def add(self, name: str, **members: str) -> None:
        table = "".join(f"{key} = {toml(value)}\n" for key, value in members.items())
        with self.file.open("a") as file:
            file.write(f"[contexts.{name}]\n{table}")

    def run(
        self, *words: str, ok: Sequence[int] = (0,), environ: Mapping[str, str] = NOTHING
    ) -> Completed:
        done = programs.run([*PROGRAM, *words], env={**self.environ, **environ}, cwd=self.home)
        assert done.returncode in ok, f"{words} -> {done.returncode}: {done.stderr}{done.stdout}"
        return done

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self.environ, cwd=self.home,
        )  # fmt: skip


@pytest.fixture(scope="module")
def gateway() -> Iterator[Steered]:
    with Steered() as running:
        yield running


@pytest.fixture(scope="module")
def laptop(gateway: Steered, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    user = Laptop(tmp_path_factory.mktemp("home"))
    for role in ("admin", "operator", "viewer"):
        user.add(role, url=gateway.console_url, key=gateway.key(f"of-{role}", role)["key"])
    user.add("wrong", url=f"{gateway.console_url}/", key="mmcp_k3Jq9ZxA_wrong")
    user.add("nobody", url=f"http://127.0.0.1:{free_port()}", key="${KEY:-x}")
    user.add("other", url=f"http://127.0.0.1:{gateway.ops_port}", key="${KEY:-x}")
    user.add("without", url=gateway.console_url, key="${NO_SUCH_VARIABLE}")
    return user


def test_verbs_look_at_and_steer_the_gateway_of_a_context(gateway: Steered, laptop: Laptop) -> None:
    here, there = gateway.run("status"), laptop.run("--context", "admin", "status")
    assert there.stdout.splitlines()[1].split() == here.stdout.splitlines()[1].split()
    assert (
        json.loads(laptop.run("--context", "admin", "ctl", "status", "--json").stdout)["pid"]
        == gateway.pid
    )
    before = gateway.server("git")["generation"]
    done = laptop.run("ctl", "restart", "git", "--wait", environ={"METAMCP_CONTEXT": "operator"})
    assert (done.stdout, done.stderr) == ("git: ready\n", "")
    assert gateway.server("git")["generation"] == before + 1
    events = gateway.events(type="restart", who="git")
    assert "asked by API key" in events[-1]["cause"]
    assert "(operator)" in events[-1]["cause"]
    assert "git" in laptop.run("--context", "viewer", "ctl", "describe", "git").stdout
    assert "restart" in laptop.run("--context", "viewer", "events", "--type", "restart").stdout
    assert laptop.run("--context", "operator", "wait", "git").stdout == ""
    assert laptop.run("--context", "operator", "toolsets", "list").returncode == 0
    gateway.write({"git": fake("--garbage"), "db": fake(), "more": fake()})
    plan = laptop.run("--context", "admin", "reload", "--dry-run").stdout
    assert "+  more" in plan
    laptop.run("--context", "admin", "ctl", "reload")
    assert gateway.server("more")["name"] == "more"


def test_logs_are_followed_until_the_key_ends(gateway: Steered, laptop: Laptop) -> None:
    made = gateway.key("follows", "viewer")
    laptop.add("follows", url=gateway.console_url, key=made["key"])
    with laptop.begin("--context", "follows", "ctl", "events", "-f", "-n", "1") as follow:
        assert follow.stdout is not None
        assert follow.stdout.readline()
        gateway.ctl("restart", "db", "--wait")
        assert any("restart" in line for line in iter(follow.stdout.readline, ""))
        gateway.run("keys", "revoke", made["id"])
        out, err = follow.communicate(timeout=30)
    assert (follow.returncode, err) == (Exit.DENIED, "metamcp: this API key has ended\n"), out
    assert laptop.run("--context", "follows", "status", ok=(Exit.DENIED,)).stdout == ""


def test_a_follow_ends_with_its_user_and_counts_among_the_streams_of_its_key(
    gateway: Steered, laptop: Laptop
) -> None:
    words = ("--context", "viewer", "logs", "git", "-f", "-n", "0")
    follows = [laptop.begin(*words) for _ in range(OWN_STREAMS_MAX)]
    try:
        until(lambda: gateway.streams == OWN_STREAMS_MAX, "all of them follow")
        refused = laptop.run(*words, ok=(Exit.FAILED,)).stderr
        assert f"{OWN_STREAMS_MAX} pages and commands follow" in refused
        assert laptop.run("--context", "viewer", "ctl", "tree").returncode == 0
    finally:
        for follow in follows:
            follow.send_signal(signal.SIGINT)
            assert follow.wait(timeout=30) == 130
            follow.communicate()
    until(lambda: gateway.streams == 0, "none of them follows")


def test_a_role_that_is_too_low_changes_nothing(gateway: Steered, laptop: Laptop) -> None:
    before = gateway.server("git")["generation"]
    done = laptop.run("--context", "viewer", "restart", "git", ok=(Exit.DENIED,))
    assert "'restart' needs the role operator, and this session is viewer here" in done.stderr
    laptop.run("--context", "operator", "reload", ok=(Exit.DENIED,))
    assert gateway.server("git")["generation"] == before


def test_a_failure_is_a_sentence_with_the_place_to_mend_it(
    gateway: Steered, laptop: Laptop
) -> None:
    def fails(context: str, code: Exit) -> str:
        done = laptop.run("--context", context, "status", ok=(code,))
        assert done.stdout == ""
        return done.stderr.replace(str(laptop.file), "FILE")

    assert fails("wrong", Exit.DENIED) == (
        f"metamcp: {gateway.console_url}: this API key does not open the console; 'key' of"
        " [contexts.wrong] in FILE names it\n"
    )
    assert fails("nobody", Exit.NOT_RUNNING).endswith(
        "cannot be reached: Connection refused; [contexts.nobody] in FILE names it\n"
    )
    assert "is not the console of a gateway of this version: HTTP status" in fails(
        "other", Exit.FAILED
    )
    assert fails("without", Exit.CONFIG) == (
        "metamcp: FILE: contexts.without: 'key': the environment variable NO_SUCH_VARIABLE is not"
        " set; set it, or write '${NO_SUCH_VARIABLE:-default}'\n"
    )
    assert fails("admn", Exit.UNKNOWN_NAME) == (
        "metamcp: no context is named 'admn'; did you mean 'admin'? FILE has them\n"
    )
    done = laptop.run("--context", "admn", "status", "--json", ok=(Exit.UNKNOWN_NAME,))
    assert json.loads(done.stderr)["error"]["code"] == "unknown_name"


def test_contexts_are_listed_with_what_their_gateways_say(gateway: Steered, laptop: Laptop) -> None:
    listed = json.loads(laptop.run("contexts", "--json", environ={"METAMCP_CONTEXT": "x"}).stdout)
    rows = {row["name"]: (row["where"], row["state"]) for row in listed["contexts"]}
    assert rows["viewer"][0] == gateway.console_url
    assert rows["viewer"][1].startswith("active: ")
    assert "Connection refused" in rows["nobody"][1]
    assert "the environment variable NO_SUCH_VARIABLE is not set" in rows["without"][1]
    table = laptop.run("contexts").stdout.splitlines()
    assert table[0].split() == ["NAME", "WHERE", "STATE"]
    assert len(table) == len(rows) + 1
    nobody = {"HOME": str(gateway.folder)}
    assert laptop.run("contexts", environ=nobody).stdout.startswith("no context; tables")


class NewerGateway(BaseHTTPRequestHandler):
    """A console whose answers have another form."""

    def do_POST(self) -> None:
        body = b'{"jsonrpc":"2.0","id":1,"result":{"v":2,"pid":"many"}}\n'
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_gateway_of_another_version_hides_no_other_one(gateway: Steered, tmp_path: Path) -> None:
    user, key = Laptop(tmp_path), gateway.key("listed", "viewer")["key"]
    user.add("here", url=gateway.console_url, key=key)
    with HTTPServer(("127.0.0.1", 0), NewerGateway) as server:
        user.add("newer", url=f"http://127.0.0.1:{server.server_port}", key=key)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        listed = json.loads(user.run("contexts", "--json").stdout)["contexts"]
        server.shutdown()
    states = {row["name"]: row["state"] for row in listed}
    assert states["here"].startswith("active: ")
    assert states["newer"].startswith("its gateway is of another version: ")


def test_what_needs_this_machine_refuses_a_context(laptop: Laptop) -> None:
    for words in (
        ["up"], ["serve"], ["add", "x", "--", "y"], ["install", "cursor"], ["ctl", "upgrade"],
        ["down"], ["ctl", "down"], ["keys", "list"], ["calls"], ["connect"],
    ):  # fmt: skip
        done = laptop.run("--context", "admin", *words, ok=(Exit.USAGE,))
        verb = " ".join(words[:2] if words[0] == "ctl" else words[:1])
        assert done.stderr == (
            f"metamcp: 'metamcp {verb}' is about this machine, and the context 'admin' is another"
            " one: leave out --context, or unset METAMCP_CONTEXT\n"
        )
    for verb in ("doctor", "down"):
        done = laptop.run(
            "--context", "admin", "ctl", "--runtime-dir", "/x", verb, ok=(Exit.USAGE,)
        )
        assert f"'metamcp ctl {verb}' is about this machine" in done.stderr
    done = laptop.run(
        "--context", "admin", "ctl", "--runtime-dir", "/x", "status", ok=(Exit.USAGE,)
    )
    assert "--runtime-dir" in done.stderr
    assert "Usage" in laptop.run("--context", "admin", "up", "--help").stdout
    laptop.run("completion", "bash", environ={"METAMCP_CONTEXT": "admin"})


def test_the_arguments_go_to_another_machine_over_ssh(gateway: Steered, laptop: Laptop) -> None:
    programs, seen = laptop.home / "bin", laptop.home / "seen"
    programs.mkdir()
    for name, text in (("ssh", SSH), ("metamcp", METAMCP)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "SEEN": str(seen)}
    laptop.add("far", ssh="ops@gateway.lan")
    laptop.add("option", ssh="-oProxyCommand=touch x")
    there = {**environ, "METAMCP_RUNTIME_DIR": str(gateway.folder / "run")}
    done = laptop.run(
        "--context", "far", "ctl", "logs", "git", "--grep", "a 'b' $HOME", environ=there
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert seen.read_text() == "ops@gateway.lan\n"
    assert "git" in laptop.run("--context", "far", "status", environ=there).stdout
    done = laptop.run("--context", "far", "status", "gti", ok=(Exit.UNKNOWN_NAME,), environ=there)
    assert "no server is named 'gti'" in done.stderr
    done = laptop.run("--context", "option", "status", ok=(Exit.CONFIG,), environ=environ)
    assert "contexts.option: 'ssh' begins with '-'" in done.stderr
    assert not (laptop.home / "x").exists()


def test_tls_is_checked_against_the_authority_that_a_context_names(tmp_path: Path) -> None:
    with ConsoleAbroad({"git": fake()}) as abroad:
        laptop, key = Laptop(tmp_path), abroad.key("ann", "console:viewer")["key"]
        laptop.add("ok", url=abroad.base, key=key, ca=str(abroad.authority))
        laptop.add("unknown", url=abroad.base, key=key)
        laptop.add("plain", url=abroad.base.replace("https", "http"), key=key)
        assert "git" in laptop.run("--context", "ok", "status").stdout
        done = laptop.run("--context", "unknown", "status", ok=(Exit.FAILED,))
        assert "is not trusted because of its certificate" in done.stderr
        assert "'ca' of [contexts.unknown]" in done.stderr
        done = laptop.run("--context", "plain", "status", ok=(Exit.CONFIG,))
        assert "contexts.plain: the key would travel unencrypted" in done.stderr
