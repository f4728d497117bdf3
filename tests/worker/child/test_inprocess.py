"""Server objects of the SDK, hosted in the worker."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.frames import QuestionFrame, ReplyFrame
from metamcp_worker.ipc.messages import Forked, Heartbeat, RunServer, Spawned
from tests.fakes.nursery_hand import Hand
from tests.waiting import until
from tests.worker.child.worker import ChildWorker, alive

pytestmark = [pytest.mark.process, pytest.mark.promise("M13")]

NURSERY = (sys.executable, "-P", "-m", "metamcp_worker", "nursery")
MODULE = """
import gc, json, multiprocessing, os, random, subprocess, sys, tempfile, threading, time, uuid
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

print("importing")
app = MCPServer("hosted", instructions="Add.")

@app.tool()
def add(a: int, b: int) -> int:
    print("adding")
    print("to stderr", file=sys.stderr)
    os.write(1, b"raw print\\n")
    return a + b

@app.tool()
async def block(s: float) -> str:
    time.sleep(s)
    return "blocked"

@app.tool()
def child() -> str:
    return str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)

@app.tool()
def where() -> str:
    return os.getcwd() + " " + os.environ["GIVEN"]

class Name(BaseModel):
    name: str

@app.tool()
async def greet(ctx: Context) -> str:
    found = await ctx.elicit("Your name?", Name)
    return f"Hello {found.data.name}" if found.action == "accept" else found.action

def inherited() -> str:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps([random.random(), threading.active_count()]).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 1000).decode()

@app.tool()
def facts() -> str:
    return json.dumps({
        "own": [
            random.random(), uuid.uuid4().hex, next(tempfile._get_candidate_names()),
            multiprocessing.current_process().authkey.hex(), os.urandom(8).hex(), os.getpid(),
        ],
        "collects_at": gc.get_threshold(),
        "forks": [json.loads(inherited()) for _ in range(2)],
    })

def make():
    return app._lowlevel_server

class Nested:
    app = app

number = 3
def broken():
    raise SystemExit("not today")
"""


def hosted(folder: Path, name: str, **spec: Any) -> ChildWorker:
    (folder / "hosted_server.py").write_text(MODULE)
    env = {"PATH": "/usr/bin:/bin", "GIVEN": "yes"}
    module = f"hosted_server:{name}"
    return ChildWorker(**{"command": (), "module": module, "cwd": str(folder), "env": env, **spec})


class Nursed(ChildWorker):
    """The same, forked by a nursery."""

    nursery: Hand

    def __enter__(self) -> Self:
        self.sock = self.nursery.ask("hosted")
        assert isinstance(self.nursery.heard(), Forked)
        self.tell(RunServer(generation=1, version="0"), packets.blob(codec.dump(self.spec)))
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


@pytest.mark.parametrize("name", ["app", "make", "Nested.app"])
def test_an_object_or_a_factory_is_served(tmp_path: Path, name: str) -> None:
    with hosted(tmp_path, name) as worker:
        assert worker.read(Spawned)[0].pid == 0
        found = worker.ready()
        assert json.loads(bytes(found.serverInfo))["name"] == "hosted"
        assert found.protocol == "2026-07-28"
        front = worker.front()
        assert front.text(front.tool("add", a=1, b=2)) == "3"
        assert front.text(front.tool("where")) == f"{tmp_path} yes"
        assert worker.stop().reason == "clean"


def test_servers_that_were_forked_after_each_other_share_nothing_that_is_to_be_secret_or_random(
    tmp_path: Path,
) -> None:
    found: list[dict[str, Any]] = []
    hosted(tmp_path, "app")
    spec: dict[str, Any] = {"command": (), "module": "hosted_server:app", "cwd": str(tmp_path)}
    with Hand(NURSERY) as nursery:
        nursery.born()
        for _ in range(2):
            worker = Nursed(**spec, env={"GIVEN": "yes"})
            worker.nursery = nursery
            with worker:
                worker.ready()
                front = worker.front()
                found.append(json.loads(front.text(front.tool("facts"))))
    usual = subprocess.check_output([sys.executable, "-c", "import gc; print(gc.get_threshold())"])
    one, other = found
    assert not set(one["own"]) & set(other["own"])
    for each in found:
        assert each["collects_at"] == list(ast.literal_eval(usual.decode()))
        (dice, threads), (again, _) = each["forks"]
        assert dice != again
        assert threads == 1


def test_a_module_is_found_by_the_python_path_of_its_environment(tmp_path: Path) -> None:
    env = {"GIVEN": "yes", "PYTHONPATH": str(tmp_path)}
    with hosted(tmp_path, "app", cwd=None, env=env) as worker:
        worker.ready()
        front = worker.front()
        assert front.text(front.tool("add", a=1, b=2)) == "3"


def test_prints_go_to_the_log_and_break_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path, "app") as worker:
        worker.ready()
        front = worker.front()
        front.text(front.tool("add", a=1, b=2))
        worker.stop()
        assert set(worker.logs["stderr"]) >= {"importing", "adding", "to stderr", "raw print"}
        assert worker.logs["stdout"] == []


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"action":"accept","content":{"name":"Ada"}}', "Hello Ada"),
        (b'{"action":"decline"}', "decline"),
    ],
)
def test_what_a_server_of_the_sdk_asks_is_answered(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    with hosted(tmp_path, "app", era="legacy-first") as worker:
        assert worker.ready().protocol == "2025-11-25"
        front = worker.front()
        number = front.tool("greet")
        question = front.read()
        assert isinstance(question, QuestionFrame)
        assert json.loads(question.params)["message"] == "Your name?"
        front.send(ReplyFrame(question.question, answer))
        assert front.text(number) == said


@pytest.mark.live
def test_a_tool_that_blocks_does_not_stop_the_heart_of_the_worker(tmp_path: Path) -> None:
    with hosted(tmp_path, "app", timeout_s=0.5) as worker:
        worker.ready()
        front = worker.front()
        stuck = front.tool("block", s=2.5)
        assert front.error(stuck)["code"] == -10003
        beats = [worker.read(Heartbeat)[0].lag_ms for _ in range(2)]
        assert max(beats) < 1000


def test_a_server_that_never_returns_does_not_keep_the_worker(tmp_path: Path) -> None:
    with hosted(tmp_path, "app", stop_eof_s=0.1, stop_grace_s=0.1) as worker:
        worker.ready()
        front = worker.front()
        front.tool("block", s=1000)
        assert worker.stop(grace_s=0.1).reason == "clean"


def test_its_processes_go_with_it(tmp_path: Path) -> None:
    with hosted(tmp_path, "app") as worker:
        worker.ready()
        front = worker.front()
        pid = int(front.text(front.tool("child")))
        assert alive(pid)
        worker.stop()
        until(lambda: not alive(pid), "the process of the tool is gone")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "hosted_server:nothing",
            "AttributeError: module 'hosted_server' has no attribute 'nothing'",
        ),
        ("hosted_server:number", "it is a int, not an MCPServer or Server of the mcp SDK"),
        ("hosted_server:broken", "SystemExit: not today"),
        ("no_such_module:app", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("hosted_server", "it is not of the form package.module:object"),
    ],
)
def test_what_cannot_be_hosted_is_told(tmp_path: Path, module: str, message: str) -> None:
    with hosted(tmp_path, "app", module=module) as worker:
        down = worker.down()
        assert down.reason == "spawn"
        assert down.message == f"{module} cannot be hosted: {message}"
