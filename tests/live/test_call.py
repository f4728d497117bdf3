"""`metamcp call` and the search of `metamcp tools`, with real servers behind a real gateway."""

import base64
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M108")]

EXTRA = """
[endpoints.default]
namespace = "default"
[endpoints.few]
namespace = "default"
exposure = "search"
[endpoints.bare]
namespace = "default"
naming = { style = "bare" }
"""
TYPED = {"module": "tests.fakes.typed_tools:server", "env": {"PYTHONPATH": str(ROOT)}}
PICTURE = base64.b64encode(b"\x89PNG picture").decode()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"git": fake(), "typed": TYPED}, extra=EXTRA) as running:
        yield running


def metamcp(
    gateway: Gateway, *words: str, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return programs.run(
        gateway.command(*words), stdin=stdin, env={**os.environ, **environ}, cwd=gateway.folder
    )


def test_values_have_the_types_that_the_schema_names(gateway: Gateway) -> None:
    done = metamcp(gateway, "call", "typed__count", "words=a", "words=5", "upper=true")
    assert (json.loads(done.stdout), done.returncode) == ({"A": 1, "5": 1}, 0)
    book = '{"title": "X", "authors": [{"name": "A"}]}'
    done = metamcp(gateway, "call", "typed__keep", f"book={book}", "copies=2", "--json")
    found = json.loads(done.stdout)["structuredContent"]["result"]
    assert [one["title"] for one in found] == ["X", "X"]


@pytest.mark.parametrize("way", ["inline", "file", "stdin"])
def test_arguments_as_json_come_from_the_command_a_file_or_stdin(
    gateway: Gateway, way: str, tmp_path: Path
) -> None:
    given = '{"words": ["one"]}'
    (tmp_path / "args.json").write_text(given)
    word = {"inline": given, "file": f"@{tmp_path / 'args.json'}", "stdin": "-"}[way]
    done = metamcp(gateway, "call", "typed__count", "--args", word, "upper=true", stdin=given)
    assert json.loads(done.stdout) == {"ONE": 3}


def test_wrong_arguments_are_named_before_the_call_is_made(gateway: Gateway) -> None:
    done = metamcp(gateway, "call", "typed__count", "wrods=a", "upper=maybe")
    assert done.returncode == 2
    assert "no argument is named 'wrods'; did you mean 'words'?" in done.stderr
    assert "upper: 'maybe' is not a boolean" in done.stderr
    assert "words is missing (list of string)" in done.stderr
    assert "usage: metamcp call typed__count words=STRING… [upper=BOOLEAN]" in done.stderr
    done = metamcp(gateway, "call", "typed__count", "--args", "[1]")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--args is not a JSON object" in done.stderr
    done = metamcp(gateway, "call", "typed__count", "--args", "@nowhere.json")
    assert "--args: nowhere.json: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["git__fail"], 1, "it did not work"),
        (["git__error"], 1, "error -32050: a failure"),
        (["git__ehco"], 8, "did you mean 'git__echo'?"),
        (["git__echo", "--endpoint", "nope"], 8, "no endpoint is named 'nope'"),
        (["git__sleep", "ms=30000", "--timeout", "500ms"], 6, "gave no answer within 0.5 s"),
        (["git__echo", "--url", "http://127.0.0.1:1/mcp"], 5, "cannot be reached"),
        (["git__echo", "--url", "x", "--endpoint", "few"], 2, "--url says it all"),
        (["git__elicit"], 1, "on a terminal you can answer what the server asks"),
    ],
)
def test_each_failure_has_its_exit_code_and_a_sentence(
    gateway: Gateway, words: list[str], code: int, sentence: str
) -> None:
    done = metamcp(gateway, "call", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_the_raw_result_or_error(gateway: Gateway) -> None:
    done = metamcp(gateway, "call", "git__fail", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["isError"] is True
    done = metamcp(gateway, "call", "git__error", "--json")
    assert json.loads(done.stdout)["data"] == {"reason": "scripted", "n": 1.0}


def test_a_file_in_the_result_is_written_where_the_user_says(
    gateway: Gateway, tmp_path: Path
) -> None:
    content = [
        {"type": "image", "mimeType": "image/png", "data": PICTURE},
        {"type": "text", "text": "a picture"},
    ]
    code = f"import json; print(json.dumps({{'content': {content!r}}}))"
    with Gateway({"art": {"command": [sys.executable, str(_server(tmp_path, code))]}}) as other:
        done = metamcp(other, "call", "art__draw")
        assert done.stdout == "a picture\n"
        assert (
            "image (image/png, 12 bytes) is not shown; -o PATH writes it to a file" in done.stderr
        )
        done = metamcp(other, "call", "art__draw", "-o", str(tmp_path / "it.png"))
        assert (tmp_path / "it.png").read_bytes() == b"\x89PNG picture"
        assert done.stdout == "a picture\n"
        metamcp(other, "call", "art__draw", "-o", str(tmp_path))
        assert (tmp_path / "result-1.png").read_bytes() == b"\x89PNG picture"


def _server(folder: Path, code: str) -> Path:
    """A server with one tool, whose result is what the code prints."""
    path = folder / "server.py"
    path.write_text(f"""
import json, subprocess, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    method = asked["method"]
    if method == "initialize":
        result = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}},
                  "serverInfo": {{"name": "art", "version": "1"}}}}
    elif method == "tools/list":
        result = {{"tools": [{{"name": "draw", "inputSchema": {{"type": "object"}}}}]}}
    elif method == "tools/call":
        result = json.loads(subprocess.check_output([sys.executable, "-c", {code!r}]))
    else:
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"],
                          "error": {{"code": -32601, "message": "no"}}}}), flush=True)
        continue
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
""")
    return path


# On a terminal


class Terminal:
    """A verb on a terminal of its own, and a person who types after certain texts."""

    def __init__(self, gateway: Gateway, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execv(sys.executable, gateway.command(*words))
        os.set_blocking(self.fd, False)
        self.said = ""
        self._read = 0
        self._open = True

    def expect(self, text: str, answer: str | None = None) -> None:
        """Wait for a text after the last one, and type the answer."""
        until(lambda: self._says(text), f"it says {text!r} after {self.said!r}")
        self._read = self.said.index(text, self._read) + len(text)
        if answer is not None:
            os.write(self.fd, f"{answer}\n".encode())

    def end(self) -> int:
        until(lambda: self._says("") and not self._open, "it ends")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

    def _says(self, text: str) -> bool:
        with suppress(BlockingIOError):
            try:
                self.said += os.read(self.fd, 65536).decode(errors="replace")
            except BlockingIOError:
                raise
            except OSError:  # so a terminal says that nobody writes to it any more
                self._open = False
        return text in self.said[self._read :]


def test_a_question_of_the_server_is_answered_on_the_terminal(gateway: Gateway) -> None:
    terminal = Terminal(gateway, "call", "git__elicit", "message=Who are you?")
    terminal.expect("The server asks: Who are you?")
    terminal.expect("Answer it? [Y/n]", "y")
    terminal.expect("name, string:", "Ada")
    assert terminal.end() == 0
    assert '"name": "Ada"' in terminal.said.replace('":"', '": "')


def test_a_person_may_decline_and_visit_pages(gateway: Gateway) -> None:
    terminal = Terminal(gateway, "call", "git__elicit")
    terminal.expect("Answer it? [Y/n]", "n")
    assert terminal.end() == 0
    assert "decline" in terminal.said
    terminal = Terminal(gateway, "call", "git__elicit", "mode=url")
    terminal.expect("It wants you to visit https://")
    terminal.expect("Did you? [y/N]", "y")
    assert terminal.end() == 0
    assert "accept" in terminal.said


def test_several_questions_are_asked_one_after_the_other(gateway: Gateway) -> None:
    terminal = Terminal(gateway, "call", "git__ask_many", "n=2")
    for at, name in enumerate(("Ada", "Bob")):
        terminal.expect(f"Question {at}")
        terminal.expect("Answer it?", "")
        terminal.expect("name, string:", name)
    assert terminal.end() == 0
    assert re.search("Ada.*Bob", terminal.said, re.DOTALL)


def test_progress_is_shown_on_a_terminal(gateway: Gateway) -> None:
    terminal = Terminal(gateway, "call", "git__progress", "n=2", "note=half way")
    assert terminal.end() == 0
    assert "2 of 2: half way" in terminal.said
    assert (
        "half way" not in metamcp(gateway, "call", "git__progress", "n=2", "note=half way").stderr
    )


# Search


def listed(gateway: Gateway, *words: str) -> dict[str, Any]:
    done = metamcp(gateway, "tools", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("endpoint", ["default", "few"])
def test_words_find_tools_at_every_endpoint(gateway: Gateway, endpoint: str) -> None:
    found = listed(gateway, "count", "letters", "--endpoint", endpoint)
    assert found["endpoint"] == endpoint
    first = found["tools"][0]
    assert (first["name"], first["server"]) == ("typed__count", "typed")
    state = {"default": "listed", "few": "callable"}[endpoint]
    assert (first["state"], first["available"]) == (state, True)
    assert listed(gateway, "letters", "--server", "git")["tools"] == []


def test_the_search_of_an_endpoint_finds_the_same_as_search_tools(gateway: Gateway) -> None:
    done = metamcp(
        gateway, "call", "--endpoint", "few", "search_tools", "query=ask rounds", "--json"
    )
    theirs = [one["name"] for one in json.loads(done.stdout)["structuredContent"]["tools"]]
    ours = [one["name"] for one in listed(gateway, "ask", "rounds", "--endpoint", "few")["tools"]]
    assert ours[: len(theirs)] == theirs
    assert theirs[0] == "git__ask_rounds"


def test_a_tool_that_is_in_no_list_can_be_called_with_its_schema(gateway: Gateway) -> None:
    done = metamcp(gateway, "call", "--endpoint", "few", "typed__count", "words=abc")
    assert (json.loads(done.stdout), done.returncode) == ({"abc": 3}, 0)


def test_the_name_of_a_tool_shows_how_it_is_called(gateway: Gateway) -> None:
    said = metamcp(gateway, "tools", "typed__count", "--runtime-dir", "run").stdout
    assert "Count the letters of each word." in said
    assert re.search(r"words +list of string +required", said)
    assert "usage: metamcp call typed__count words=STRING… [upper=BOOLEAN]" in said


@pytest.mark.parametrize("tool", ["typed__count", "typed.count", "typed/count"])
@pytest.mark.parametrize("endpoint", ["default", "few", "bare"])
def test_a_tool_is_called_and_shown_in_three_spellings_at_every_endpoint(
    gateway: Gateway, endpoint: str, tool: str
) -> None:
    done = metamcp(gateway, "call", "--endpoint", endpoint, tool, "words=abc")
    assert (json.loads(done.stdout), done.returncode) == ({"abc": 3}, 0)
    said = metamcp(gateway, "tools", tool, "--endpoint", endpoint).stdout
    assert "Count the letters of each word." in said
    assert re.search(r"words +list of string +required", said)


def test_a_tool_is_called_in_three_spellings_by_the_url_of_an_endpoint(gateway: Gateway) -> None:
    for tool in ("typed__count", "typed.count", "typed/count"):
        done = metamcp(gateway, "call", "--url", gateway.url, tool, "words=abc")
        assert (json.loads(done.stdout), done.returncode) == ({"abc": 3}, 0)
    done = metamcp(gateway, "call", "--url", gateway.url, "typed.cuont")
    assert (done.returncode, "typed__count" in done.stderr) == (8, True)


def test_calls_and_errors_of_a_tool_are_counted(gateway: Gateway) -> None:
    before = listed(gateway, "fail", "--server", "git")["tools"][0]
    metamcp(gateway, "call", "git__fail")

    def after() -> bool:
        now = listed(gateway, "fail", "--server", "git")["tools"][0]
        counts = now["calls"] - before["calls"], now["errors"] - before["errors"]
        return now["name"] == "git__fail" and counts == (1, 1)

    until(after, "the call is counted")


def test_a_server_or_endpoint_that_does_not_exist_gets_a_hint(gateway: Gateway) -> None:
    done = metamcp(gateway, "tools", "x", "--server", "gti")
    assert (done.returncode, done.stdout) == (8, "")
    assert "no server is named 'gti'; did you mean 'git'?" in done.stderr
    done = metamcp(gateway, "tools", "x", "--endpoint", "fwe")
    assert "did you mean 'few'?" in done.stderr


# Completion


def completed(gateway: Gateway, *words: str, cache: Path) -> list[str]:
    main = "import sys; sys.argv[0] = 'metamcp'; from metamcp_supervisor.__main__ import main;"
    done = subprocess.run(
        [sys.executable, "-c", f"{main} main(prog_name='metamcp')"],
        env={
            **os.environ, "_METAMCP_COMPLETE": "bash_complete", "XDG_CACHE_HOME": str(cache),
            "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_tools_arguments_and_values_are_completed(gateway: Gateway, tmp_path: Path) -> None:
    call = ("metamcp", "call", "--runtime-dir", str(gateway.folder / "run"))
    assert completed(gateway, *call, "typed__c", cache=tmp_path) == ["typed__count"]
    assert completed(gateway, *call, "typed__count", "", cache=tmp_path) == ["words=", "upper="]
    assert completed(gateway, *call, "typed__count", "words=a", "u", cache=tmp_path) == ["upper="]
    found = completed(gateway, *call, "typed__count", "upper=t", cache=tmp_path)
    assert found == ["upper=true"]
    few = (*call, "--endpoint", "few", "search_t")
    assert completed(gateway, *few, cache=tmp_path) == ["search_tools"]
