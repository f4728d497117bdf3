"""Secrets in every place where one can enter, and everything that the gateway writes or answers:
none of them shows, in none of a dozen spellings."""

import base64
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.oauth.vault import KEY_BYTES, TokenRecord, Vault
from tests import programs
from tests.live import canaries, processes
from tests.live.client import LEGACY, Client
from tests.live.collector import Collector
from tests.live.gateway import ROOT, Gateway
from tests.live.raw import Raw
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M95"), pytest.mark.timeout(180)]

SERVER = str(ROOT / "tests" / "fakes" / "canary_server.py")
PLACES = (
    "variable", "variable of a reference", "file", "credential", "command", "keyring", "inside",
    "header", "another header", "query", "client secret", "access token", "refresh token",
    "header of spans", "argument", "result", "error", "argument of a prompt", "answer of a person",
    "wrong key", "key of tokens",
)  # fmt: skip
"""Beside these: an API key in a header, and one in a URL."""
OWN = {"query", "header", "another header", "access token", "header of spans"}
"""Secrets that belong to a remote server or a collector, and are sent there."""
KEYRING = """
from keyring.backend import KeyringBackend
class Keyring(KeyringBackend):
    priority = 1
    def get_password(self, service, username):
        with open(__file__ + ".secret") as file:
            return file.read()
    def set_password(self, service, username, password):
        raise NotImplementedError
"""
VERBS = (
    ("status",), ("describe", "near"), ("describe", "far"), ("top",), ("tree",),
    ("events",), ("calls",), ("views",), ("logs", "near"), ("logs", "far"), ("logs", "granted"),
    ("reload", "--dry-run"), ("doctor",),
)  # fmt: skip


class Scene:
    """A gateway with all these secrets in it."""

    def __init__(self) -> None:
        self.secrets = {place: canaries.made() for place in PLACES}
        self.remote, self.collector = canaries.Remote(), Collector()
        self.gateway = Gateway({})
        self.folder = self.gateway.folder
        self.outputs: list[tuple[str, bytes]] = []
        """What was answered so far, by its source."""
        self._lay_out()
        self._write()

    def close(self) -> None:
        self.remote.close()
        self.collector.__exit__(None, None, None)

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / "of the user" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    def _lay_out(self) -> None:
        """Put the secrets where the configuration refers to."""
        known = self.secrets
        for name in ("file", "command", "inside", "another header", "client secret"):
            self._file(name.replace(" ", "-"), known[name] + "\n")
        credentials = self._file("token", known["credential"]).parent
        self._file("key", known["query"])
        self._file("words.json", json.dumps({name: known[name] for name in ("result", "error")}))
        self._file("keyring_of_test.py", KEYRING)
        self._file("keyring_of_test.py.secret", known["keyring"])
        tokens = os.urandom(KEY_BYTES)
        known["key of tokens"] = base64.b64encode(tokens).decode()
        self.gateway.environ |= {
            "OF_ENV": known["variable"], "MY_SECRET": known["variable of a reference"],
            "HEADER": known["header"], "SPANS": known["header of spans"],
            "CREDENTIALS_DIRECTORY": str(credentials), "PYTHONPATH": str(credentials),
            "PYTHON_KEYRING_BACKEND": "keyring_of_test.Keyring",
            "METAMCP_OAUTH_KEY": known["key of tokens"],
        }  # fmt: skip
        Vault(str(self.folder / "state" / "oauth"), tokens).put(
            TokenRecord(
                server="granted", issuer="http://127.0.0.1:1", url=self.remote.url,
                access_token=known["access token"], refresh_token=known["refresh token"],
                expires_at=time.time() + 3600, client=json.dumps({"client_id": "me"}), given=True,
            )
        )  # fmt: skip

    def _write(self, tool_timeout: str = "30s") -> None:
        here = self.folder / "of the user"
        self.gateway.extra = f"""
[gateway]
fronts = 2
[log]
level = "debug"
levels = {{ asyncio = "debug", httpx2 = "debug", httpcore2 = "debug", mcp = "debug" }}
[audit]
level = "metadata"
[recording]
calls = "metadata"
[traces]
endpoint = "{self.collector.url}"
sample = 1
headers = {{ Authorization = "Bearer ${{SPANS}}" }}
[endpoints.default]
namespace = "default"
[endpoints.locked]
namespace = "default"
auth = "keys"
url_keys = true
[servers.far]
url = "{self.remote.url}?key=${{cred:key}}"
transport = "http"
headers = {{ Authorization = "Bearer ${{HEADER}}", X-Team = "${{file:{here}/another-header}}" }}
[servers.granted]
url = "{self.remote.url}"
transport = "http"
oauth = {{ client_id = "me", client_secret = "${{file:{here}/client-secret}}" }}
"""
        near = {
            "command": ["python", SERVER, str(here / "words.json")],
            "timeout": tool_timeout,
            "env": {
                "API_TOKEN": "${OF_ENV}",
                "NOTE": "${env:MY_SECRET}",
                "OTHER": f"${{file:{here}/file}}",
                "MORE": "${cred:token}",
                "DATABASE_URL": f"postgres://u:${{file:{here}/inside}}@db",
                "LAST": f"${{cmd:cat '{here}/command'}}",
                "OF_KEYRING": "${keyring:service/me}",
            },
        }
        self.gateway.write({"near": near})

    # --- what happens ------------------------------------------------------------------------

    def reload(self) -> None:
        self._write("31s")
        self._keep("reload", self.gateway.ctl("reload"))
        self.gateway.wait("near", "far", "granted")

    def run(self, *words: str) -> None:
        """Keep the output of a command line, which must not be misunderstood."""
        done = programs.run([*programs.PROGRAM, *words], env={**os.environ, **self.gateway.environ})
        assert done.returncode in {0, 1, 3}, f"{words}: {done.stderr}"
        self._keep(" ".join(words[:3]), done.stdout + done.stderr)

    def _keep(self, source: str, text: str) -> None:
        self.outputs.append((source, text.encode()))

    def make_keys(self) -> dict[str, str]:
        """API keys for a header and for a URL. They are shown once, here."""
        found: dict[str, str] = {}
        for name, flags in (("API key", ()), ("API key in a URL", ("--url",))):
            words = ["--state-dir", str(self.folder / "state"), "create", name, *flags, "--json"]
            done = self.gateway.run("keys", *words)
            found[name] = json.loads(done.stdout)["key"]
            self.secrets[name] = found[name].rpartition("_")[2]
        return found

    def post(
        self, path: str, body: object, headers: dict[str, str] | None = None, *, kept: bool = True
    ) -> int:
        """Status of one request; the answer is kept."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=30)
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **(headers or {}),
        }
        connection.request("POST", path, json.dumps(body), sent)
        answer = connection.getresponse()
        head, content = str(answer.headers), answer.read()
        connection.close()
        if kept:
            self.outputs.append((f"POST {path.partition('?')[0]}", head.encode() + content))
        return answer.status

    def call_everything(self) -> None:
        known = self.secrets
        client = Client(self.gateway.port, LEGACY)
        client.call("near__use", value=known["argument"])
        client.call("near__fail", value=known["argument"])
        client.call("near__tell")
        client.request(
            "prompts/get", {"name": "near__p", "arguments": {"a": known["argument of a prompt"]}}
        )
        for server in ("far", "granted"):
            assert client.text(f"{server}__work", value=known["argument"]) == "done"
            broken = client.call(f"{server}__break", value=known["argument"])
            self._keep(f"answer of {server}", json.dumps(broken))
        client.close()
        asked = Raw(self.gateway.port, LEGACY, capabilities={"elicitation": {}})
        with asked.ask("tools/call", b'{"name":"near__ask","arguments":{}}') as stream:
            question = stream.next()
            answer = {"action": "accept", "content": {"answer": known["answer of a person"]}}
            asked.reply(bytes(question.id), json.dumps(answer).encode())
            assert b"thanks" in b"".join(stream.rest())

    def refuse(self, keys: dict[str, str]) -> None:
        """Requests with credentials, good and bad ones, and the answers to them."""
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        good, in_url = keys["API key"], keys["API key in a URL"]
        bearer = {"Authorization": f"Bearer {good}"}
        wrong = self.secrets["wrong key"]
        assert self.post("/metamcp/locked/mcp", hello, {"Authorization": f"Bearer {wrong}"}) == 401
        assert self.post("/metamcp/locked/mcp", hello, {"X-API-Key": wrong}) == 401
        assert self.post("/metamcp/nothing/mcp", hello, bearer) == 404
        assert self.post(f"/metamcp/locked/mcp?api_key={wrong}", hello) in {400, 401}
        assert self.post("/metamcp/locked/mcp", {"x": wrong, "id": []}, bearer) == 400
        assert self.post(f"/metamcp/locked/mcp?api_key={in_url}", hello, bearer) == 400
        for path, headers in (
            ("/metamcp/locked/mcp", bearer), (f"/metamcp/locked/mcp?api_key={in_url}", {}),
            (f"/metamcp/nothing/mcp?api_key={in_url}", {}),
            (f"/nowhere/{wrong.partition('/')[0]}?api_key={in_url}", {}),
        ):  # fmt: skip
            self.post(path, hello, headers, kept="nowhere" not in path)

    def crash(self) -> None:
        """A child aborts in a call, then each worker and front is aborted."""
        client = Client(self.gateway.port, LEGACY)
        answer = client.call("near__crash", value=self.secrets["argument"])
        self._keep("answer after a crash", json.dumps(answer))
        client.close()
        with ThreadPoolExecutor() as pool:
            busy = pool.submit(self._abandoned)
            for pid in self.workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGABRT)
            busy.result(timeout=60)
        self.gateway.wait_ready()

    def fail_at_start(self) -> None:
        """Remote servers say in the error of the handshake what they were sent."""
        self.remote.spiteful = True
        self.gateway.ctl("restart", "far", "granted", ok=(0, 1))
        for name in ("far", "granted"):
            until(partial(self._refused, name), f"{name} is down")
        self.look()
        self.remote.spiteful = False
        self.gateway.ctl("restart", "far", "granted")
        self.gateway.wait("far", "granted")

    def _refused(self, name: str) -> bool:
        return "no /mcp" in self.gateway.server(name)["message"]

    def _abandoned(self) -> None:
        """A call while processes abort."""
        with suppress(OSError, http.client.HTTPException, AssertionError, KeyError):
            client = Client(self.gateway.port, LEGACY)
            try:
                client.call("near__use", value=self.secrets["argument"])
            finally:
                client.close()

    def workers(self) -> list[int]:
        """Processes of the gateway below the supervisor that run its own code, but no nursery."""
        mine = processes.below(self.gateway.pid)
        return [pid for pid in mine if "metamcp" in title(pid) and SERVER not in title(pid)]

    # --- what there is to see ----------------------------------------------------------------

    def sinks(self) -> Iterator[tuple[str, bytes]]:
        yield from self.outputs
        yield "log", self.gateway.log.read_bytes()
        for folder in ("state", "run"):
            for name, content in canaries.files(self.folder / folder):
                yield f"{folder}/{name}", content
        for name, content in canaries.files(self.folder):
            if name.startswith("backup"):
                yield name, content
        for pid in (self.gateway.pid, *processes.below(self.gateway.pid)):
            with suppress(OSError):
                yield f"command line of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes()
        yield "spans", repr(self.collector.spans).encode()

    def look(self) -> None:
        """Ask for everything that an operator can see."""
        running = ("--runtime-dir", str(self.folder / "run"))
        where = ("--config", str(self.gateway.config))
        state = ("--state-dir", str(self.folder / "state"))
        for flags in ((), ("--json",)):
            for verb in VERBS:
                self.run("ctl", *running, *verb, *flags)
            self.run("config", "show", *where, *flags)
            self.run("config", "check", *where, *flags)
            self.run("audit", "list", *state, *flags)
            self.run("calls", *state, *flags)
            self.run("keys", *running, "list", *flags)
            self.run("tools", *where, *state, *flags)
        self.run("audit", "export", "--json", *state)
        self.run("ctl", *running, "dump-stacks", "near")
        file = self.folder / f"backup-{len(self.outputs)}.db"
        self.run("backup", str(file), "--without-secrets", *running)
        for page in ("/metrics", "/livez?verbose", "/readyz?verbose", "/healthz", "/nothing"):
            status, text = self.gateway.ops(page)
            assert status, page
            self._keep(page, text)


def title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def core_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[4] for line in lines if line.startswith("Max core file size"))


def test_no_secret_shows_in_anything_that_the_gateway_writes_or_answers() -> None:
    scene = Scene()
    try:
        keys = scene.make_keys()
        with scene.gateway as gateway:
            gateway.wait("near", "far", "granted")
            scene.call_everything()
            scene.refuse(keys)
            scene.look()
            scene.crash()
            scene.reload()
            scene.fail_at_start()
            scene.call_everything()
            scene.look()
            until(lambda: scene.collector.spans, "spans have come")
            mine = (gateway.pid, *scene.workers())
            assert {core_limit(pid) for pid in mine} == {"0"}
            assert canaries.seen(scene.secrets, scene.sinks()) == []
            # They were all in use, else nothing is proven.
            heard = "".join(scene.remote.heard) + repr(scene.collector.headers)
            assert [place for place in OWN if scene.secrets[place] not in heard] == []
            lines = gateway.ctl("logs", "near").splitlines()
            told = {line.partition(" is ")[0].rpartition(" ")[2] for line in lines if "***" in line}
            assert {"API_TOKEN", "NOTE", "OTHER", "MORE", "LAST", "OF_KEYRING"} <= told
            assert "password of u:***" in "\n".join(lines)
            gateway.stop()
            assert canaries.seen(scene.secrets, scene.sinks()) == []
    finally:
        scene.close()


def test_a_secret_is_found_in_every_spelling() -> None:
    secret = canaries.made()
    for name, spelling in canaries.forms(secret).items():
        (found,) = canaries.seen({"it": secret}, [("there", b"a" + spelling + b"b")])[:1]
        assert "it" in found, name
    for before in (b"", b"x", b"xy", b"xyz", b"a longer one"):
        whole: dict[str, Any] = {"v": (before + secret.encode() + b"...").decode()}
        sink = base64.b64encode(str(whole["v"]).encode())
        assert any("base64" in one for one in canaries.seen({"it": secret}, [("there", sink)]))
