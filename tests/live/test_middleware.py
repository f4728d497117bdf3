"""Middleware in the true gateway: good and bad, for both eras, for code and workflows."""

import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hooks import PACKAGE, install
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.raw import Raw
from tests.live.test_explain import steps
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M100")]

SERVERS = {"one": fake(), "two": fake()}


def line(name: str, match: str, **members: Any) -> str:
    """One table `[[middleware]]`."""
    options = members.pop("options", {})
    inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
    keys = {"name": name, "match": match, **members}
    rows = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(["[[middleware]]", *rows, f"options = {{ {inner} }}", ""])


@contextmanager
def gateway(
    *lines: str, extra: str = "", servers: Any = None, code: Path | str = PACKAGE, **entries: str
) -> Generator[Gateway]:
    made = Gateway(SERVERS if servers is None else servers, extra="\n".join([extra, *lines]))
    package = install(made.folder / "package", code, **entries)
    path = os.environ.get("PYTHONPATH", "")
    made.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), path]))
    with made:
        yield made


def roles(gateway: Gateway) -> dict[str, dict[str, Any]]:
    return {one["role"]: one for one in gateway.status()["roles"]}


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    """A gateway with middleware of several kinds, each for servers of its own."""
    folder = Path(tempfile.mkdtemp())
    lines = [
        line("shout", "one/echo", options={"prefix": "> "}),
        line("watch", "seen*/*", options={"path": str(folder / "seen")}, timeout="10s"),
        line("redaction", "three/*", timeout="2s"),
        line("cache", "three/pid", options={"read_only": False}),
        line("short", "three/*", uses="filter", options={"text_max": 20}),
    ]
    servers = {
        **SERVERS, "seen": fake("--era", "legacy"), "three": fake(),
        "seen_lists": fake("--prompts", "--resources"),
    }  # fmt: skip
    try:
        with gateway(*lines, servers=servers) as running:
            running.environ["SEEN"] = str(folder / "seen")
            yield running
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_it_changes_calls_of_both_eras_and_leaves_others_alone(shared: Gateway, era: str) -> None:
    def requests() -> int:
        return int(roles(shared)["middleware shout"]["counts"].get("requests", 0))

    before = requests()
    with closing(Client(shared.port, era)) as client:
        assert client.text("one__echo", text="a") == "> A"
        assert client.text("two__echo", text="a") == "a"
        assert "error" not in client.call("one__sleep", ms=1)
        until(lambda: requests() > before, "told")
        assert requests() == before + 1
        assert "middleware shout: ready, process " in shared.ctl("status")
        assert steps(shared, "one__echo")["middleware"] == "shout"


BAD = (
    ("before raise", "raised ValueError, so"),
    ("after raise", "raised ValueError, so"),
    ("before wait", "took more than 0.3 s, so"),
    ("before block", "took more than 0.3 s, so"),
    ("after spin", "took more than 0.3 s, so"),
    ("before leak", "so this request has no result"),
    ("after die", "lost its process, so"),
    ("before exit", "lost its process, so"),
)


def fine(client: Client) -> bool:
    return client.text("one__echo", text="fine") == "fine"


@pytest.mark.parametrize(("era", "failures"), [(MODERN, BAD), (LEGACY, BAD[1:3])])
def test_a_bad_one_ends_the_calls_that_it_sees_as_its_mode_says_and_no_others(
    era: str, failures: tuple[tuple[str, str], ...]
) -> None:
    strict = line("strict", "one/*", uses="bad", timeout="300ms", memory_max="64M")
    loose = line("loose", "two/*", uses="bad", timeout="300ms", mode="permissive")
    with gateway(strict, loose, servers={**SERVERS, "free": fake()}) as running:
        over = threading.Event()
        others: list[str] = []

        def calls() -> None:
            with closing(Client(running.port, era)) as other:
                while not over.is_set():
                    others.append(other.text("free__echo", text="a"))

        thread = threading.Thread(target=calls)
        thread.start()
        try:
            with closing(Client(running.port, era)) as client:
                for what, words in failures:
                    result = client.call("one__echo", text=what)["result"]
                    text = result["content"][0]["text"]
                    assert result["isError"] is True, what
                    assert text.startswith("The middleware 'strict' "), text
                    assert words in text, text
                    assert client.text("two__echo", text=what) == what
                    until(lambda: fine(client), "its process is there again")
        finally:
            over.set()
            thread.join()
        assert set(others) == {"a"}
        assert {one["generation"] for one in running.status()["servers"]} == {1}
        if failures is BAD:
            told = running.journal()
            assert "it ended because it hung" in told
            assert "it ended because its memory was used up" in told
        row = 'metamcp_middleware_requests_total{middleware="strict",outcome="timeout"}'
        until(lambda: row in running.ops("/metrics")[1], "they are counted")


def test_calls_of_code_and_of_workflows_go_through_it() -> None:
    extra = """
[code]
[endpoints.default]
namespace = "default"
exposure = "code"
builtins = ["workflows"]
"""
    flow = {"name": "flow", "steps": [{"id": "a", "call": "one.echo", "with": {"text": "a"}}]}
    with (
        gateway(line("shout", "one/echo"), extra=extra) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        code = "return (await mcp.call('one__echo', { text: 'a' }))"
        result = client.call("run_code", code=code)["result"]
        assert result["structuredContent"].get("value"), result
        assert "A" in json.dumps(result["structuredContent"]["value"])
        result = client.call("run_workflow", definition=flow)["result"]
        assert '"A"' in json.dumps(result), result


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_progress_passes_and_a_client_that_leaves_ends_hook_and_call(
    shared: Gateway, era: str
) -> None:
    seen = Path(shared.environ["SEEN"])
    before = len(seen.read_text()) if seen.exists() else 0

    def told() -> str:
        return seen.read_text()[before:] if seen.exists() else ""

    client = Raw(shared.port, era)
    params = b'{"name":"seen__progress","arguments":{"n":3}}'
    with client.ask("tools/call", params, b"7", b'"progressToken":"p"') as stream:
        steps_before, answer = stream.until(b"7")
    assert len(steps_before) == 3
    assert answer.result
    started = client.start("tools/call", b'{"name":"seen__sleep","arguments":{"ms":60000}}', b"8")
    until(lambda: "sleep" in told(), "the hook has it")
    if era == MODERN:
        started.close()  # which is how a client of this era leaves
    else:
        client.tell("notifications/cancelled", b'{"requestId":8}')
    until(lambda: "cancelled sleep" in told(), "the hook ends")
    assert client.text("seen__echo", text="a") == "a"
    until(lambda: shared.server("seen")["inflight"] == 0, "the call ends")
    started.close()


def test_prompts_and_resources_go_through_their_hooks(shared: Gateway) -> None:
    with closing(Client(shared.port, MODERN)) as client:
        assert "result" in client.request("prompts/get", {"name": "seen_lists__greet"})
        assert "result" in client.request("resources/read", {"uri": "fake://one"})
    lines = Path(shared.environ["SEEN"]).read_text().splitlines()
    assert lines[-2:] == ["prompt greet 1", "resource fake://one 1"]


def test_other_middleware_counts_from_a_reload_on_and_calls_under_way_end_well() -> None:
    with (
        gateway(line("shout", "one/*", options={"prefix": "> "})) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        assert client.text("one__echo", text="a") == "> A"
        first = roles(running)["middleware shout"]["pid"]
        slow = Raw(running.port, MODERN)
        started = slow.start("tools/call", b'{"name":"one__sleep","arguments":{"ms":1500}}', b"8")
        until(lambda: roles(running)["middleware shout"]["counts"]["running"], "it is under way")
        running.extra = line("shout", "one/*", options={"prefix": "< "})
        running.write(SERVERS)
        assert "shout changed" in running.ctl("reload")
        until(lambda: client.text("one__echo", text="a") == "< A", "the next one has it")
        with started.stream() as stream:
            _, answer = stream.until(b"8")
        assert b"SLEPT" in bytes(answer.result)
        until(lambda: not Path(f"/proc/{first}").exists(), "the old one ends")
        running.extra = ""
        running.write(SERVERS)
        running.ctl("reload")
        assert client.text("one__echo", text="a") == "a"
        assert "middleware shout" not in roles(running)


def test_an_upgrade_keeps_calls_going() -> None:
    with (
        gateway(line("shout", "one/*")) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        assert client.text("one__echo", text="a") == "A"
        first = roles(running)["middleware shout"]["pid"]
        running.ctl("upgrade")
        for _ in range(20):
            assert client.text("one__echo", text="a") == "A"
        until(lambda: roles(running)["middleware shout"]["pid"] not in (0, first), "a new one")
        assert client.text("one__echo", text="a") == "A"


def test_one_that_cannot_be_loaded_is_told_and_ends_its_calls() -> None:
    with (
        gateway(line("bad", "one/*", options={"broken": True})) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        said = client.call("one__echo", text="a")["error"]["message"]
        assert "'bad' cannot be loaded: ValueError: it has no such option" in said
        assert client.text("two__echo", text="a") == "a"
        assert not [name for name in client.tools() if name.startswith("one__")]
        until(lambda: "cannot be loaded" in str(running.status()["roles"]), "the operator sees it")


def test_lists_of_tools_go_through_it_once_for_each_change() -> None:
    code = """
class Fewer:
    def __init__(self, options):
        self.keep = options["keep"]

    async def on_list_tools(self, request, call_next):
        tools = await call_next(request)
        kept = [tool for tool in tools if tool["name"] in self.keep]
        return [{**tool, "description": f"of {request.server}"} for tool in kept]
"""
    made = line("fewer", "one/*", options={"keep": ["echo", "pid"]})
    with (
        gateway(made, code=code, fewer="Fewer") as running,
        closing(Client(running.port, MODERN)) as client,
    ):

        def tools() -> list[str]:
            return [name for name in client.tools() if name.startswith("one__")]

        assert until(tools, "the list is there") == ["one__echo", "one__pid"]
        listed = client.request("tools/list")["result"]["tools"]
        assert [one["description"] for one in listed[:2]] == ["of one", "of one"]
        assert len([one for one in listed if one["name"].startswith("two__")]) > 2
        assert client.text("one__echo", text="a") == "a"
        running.extra = ""
        running.write(SERVERS)
        running.ctl("reload")
        until(lambda: len(tools()) > 2, "all are there again")


def test_the_example_of_the_guide_works() -> None:
    guide = (ROOT / "docs" / "middleware.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    lines = [one for one in code.splitlines() if one and not one.startswith("#")]
    assert len(lines) <= 20
    table = guide.partition("the middleware that is installed")[2]
    (written,) = re.findall(r"```toml\n(.*?)```", table, re.DOTALL)
    written = written.replace("mail/send_*", "one/*")
    open_now = written.replace("begin = 8, end = 18", "begin = 0, end = 24")
    closed_now = written.replace("begin = 8, end = 18", "begin = 0, end = 0")
    with (
        gateway(open_now, code=code, **{"office-hours": "OfficeHours"}) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        content = client.call("one__echo", text="a")["result"]["content"]
        assert [one["text"][:9] for one in content] == ["a", "Called at"]
        running.extra = closed_now
        running.write(SERVERS)
        running.ctl("reload")
        until(lambda: client.text("one__echo", text="a") == "echo works from 0 to 0.", "it closes")


def test_a_large_result_that_it_sees_is_not_kept() -> None:
    kept = '[endpoints.default]\nnamespace = "default"\nresults = { max = "8K" }\n'
    long = "ann@example.org " * 1000
    with (
        gateway(line("redaction", "one/*"), extra=kept) as running,
        closing(Client(running.port, MODERN)) as client,
    ):
        seen = client.call("one__echo", text=long)["result"]
        assert "ann@" not in json.dumps(seen)
        assert "io.metamcp/result" not in json.dumps(seen)
        other = client.call("two__echo", text=long)["result"]
        assert "io.metamcp/result" in json.dumps(other)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_redaction_cache_and_filter_do_what_they_say(shared: Gateway, era: str) -> None:
    with closing(Client(shared.port, era)) as client:
        until(
            lambda: "result" in client.call("three__echo", text=""), "the cache has seen the tools"
        )
        assert client.text("three__echo", text="to a@b.example") == "to [email]"
        assert (
            client.text("three__echo", text="a" * 25) == f"{'a' * 20}… (5 more characters were cut)"
        )
        before = client.text("three__pid")
        shared.ctl("restart", "three", "--wait")
        until(lambda: client.text("three__pid") != before, "what was kept goes with its server")
