"""`metamcp explain` and `metamcp policy`: what would happen to a call, without making it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc.figures import KEY_NEEDED
from tests import programs
from tests.live.gateway import Gateway, fake
from tests.live.test_keys import keys
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M108"), pytest.mark.timeout(120)]

EXTRA = """
[endpoints.default]
namespace = "default"
tools."one.echo" = { name = "say", aliases = ["tell"], fixed = { loud = true } }
tools."one.blob" = { hidden = true }
tools."one.slow" = { enabled = false }
[endpoints.closed]
namespace = "default"
auth = "keys"
[endpoints.sets]
namespace = "default"
exposure = "toolset"
call_hidden = false
[[policies]]
name = "short"
match = "one/echo"
when = "size(mcp.tool.arguments.text) > 10"
effect = "deny"
[[policies]]
name = "guests"
match = "*/pid"
when = "principal.name == 'guest'"
effect = "deny"
[[policies]]
name = "careful"
match = "one/fail"
effect = "ask"
[[policies]]
name = "no-error"
match = "one/error"
effect = "deny"
[[policies]]
name = "idle"
match = "one/error"
effect = "log"
[[policies]]
name = "typo"
match = "one/ecko"
effect = "deny"
"""


BROKEN = {"command": ["sh", "-c", "echo no licence >&2; exit 1"], "restart": "never"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    one = fake() | {"limits": {"calls_per_day": 5}}
    servers = {"one": one, "off": fake() | {"start": "lazy"}, "broken": BROKEN}
    with Gateway(servers, extra=EXTRA, wait=False) as found:
        until(found.answers, "the gateway answers")
        found.wait("broken", state="error")
        found.ctl("wait", "one", "off")
        yield found


def run(gateway: Gateway, *words: str, ok: int = 0) -> str:
    """What a command prints."""
    done = programs.run(
        [*gateway.command(words[0])[:3], *words, "--runtime-dir", str(gateway.folder / "run")]
    )
    assert done.returncode == ok, done.stderr + done.stdout
    return done.stdout + done.stderr


def steps(gateway: Gateway, *words: str, ok: int = 0) -> dict[str, str]:
    found: dict[str, Any] = json.loads(run(gateway, "explain", *words, "--json", ok=ok))
    assert found["runs"] is (ok == 0)
    return {one["step"]: one["text"] for one in found["steps"]}


def test_one_screen_walks_the_way_of_a_call(gateway: Gateway) -> None:
    told = steps(gateway, "say", "--args", '{"text": "hi"}')
    assert list(told) == [
        "name", "override", "view", "gate", "limits", "policy", "policies", "consent", "server",
        "confinement",
    ]  # fmt: skip
    assert told["name"] == "say is one.echo"
    assert told["override"].startswith(
        "arguments are fixed or have defaults, another definition: "
        f"tools.echo of [endpoints.default], {gateway.config}:"
    )
    assert told["view"] == "in the list"
    assert told["gate"] == "the user of this machine may call tools"
    assert told["policy"] == "short (deny): false"
    assert told["server"].endswith(": it answers calls")
    assert told["confinement"].startswith("basic: ")
    assert steps(gateway, "tell")["name"] == "tell is an alias of one.echo"
    assert steps(gateway, "one.echo")["policies"] == "depends on the call; give --args"
    assert "in no list, and can be called" in steps(gateway, "one__blob")["view"]
    text = run(gateway, "explain", "say")
    assert "the call would run at the endpoint default" in text
    assert gateway.server("one")["calls"] == 0, "nothing was called"


def test_a_call_that_would_be_refused_ends_with_1_and_says_at_which_step(gateway: Gateway) -> None:
    told = steps(gateway, "say", "--args", json.dumps({"text": "x" * 11}), ok=1)
    assert (told["policy"], told["policies"]) == ("short (deny): true", "deny: short decides")
    assert "in no list" in steps(gateway, "one__error", ok=1)["view"]
    told = steps(gateway, "one__pid", "--endpoint", "sets", ok=1)
    assert told["view"] == "not in view, and only what is in view can"
    told = steps(gateway, "one__pid", "--endpoint", "closed", ok=1)
    assert told == {"gate": KEY_NEEDED}
    assert "the call would run if a person agrees" in run(gateway, "explain", "one__fail")


def test_a_tool_is_explained_in_three_spellings(gateway: Gateway) -> None:
    for tool in ("one__pid", "one.pid", "one/pid"):
        assert steps(gateway, tool)["name"] == "one__pid is one.pid"
        assert "allow; decides: none" in run(gateway, "policy", "explain", tool)


def test_a_key_has_its_own_way(gateway: Gateway) -> None:
    for name, scopes in (("guest", ()), ("boss", ()), ("reader", ("--scope", "mcp:list"))):
        keys(gateway, "create", name, *scopes)
    where = ("--endpoint", "closed", "one__pid")
    assert steps(gateway, *where, "--key", "boss")["gate"] == "boss may call tools"
    told = steps(gateway, *where, "--key", "guest", ok=1)
    assert (told["view"], told["policies"]) == ("in no list, and can be called",
                                                "deny: guests decides")  # fmt: skip
    assert "needs the scope mcp:call" in steps(gateway, *where, "--key", "reader", ok=1)["gate"]
    words = ("policy", "explain", *where, "--key")
    text = run(gateway, *words, "guest", ok=1)
    assert "principal.name == 'guest'" in text
    assert "deny; decides: guests" in text
    assert "allow; decides: none of them" in run(gateway, *words, "boss")
    assert KEY_NEEDED in run(gateway, "policy", "explain", *where, ok=1)


def test_a_call_says_what_is_wrong_with_its_key_and_what_to_type(
    gateway: Gateway, tmp_path: Path
) -> None:
    def told(file: Path | None) -> str:
        given = () if file is None else ("--key-file", str(file))
        return run(gateway, "call", "one__pid", "--endpoint", "closed", *given, ok=4)

    def made(name: str, *words: str) -> Path:
        keys(gateway, "create", name, "--out", str(tmp_path / name), *words)
        return tmp_path / name

    assert "none is given: 'metamcp keys create NAME --out FILE' makes one" in told(None)
    gone, over = made("gone"), made("over")
    keys(gateway, "revoke", "gone")
    assert "is revoked, or of another gateway: 'metamcp keys create NAME" in told(gone)
    number = keys(gateway, "expire", "over")["id"]
    assert f"the key {number} (over) expired at 2" in told(over)
    assert f"'metamcp keys rotate {number}' makes another" in told(over)
    assert "is valid elsewhere" in told(made("other", "--endpoint", "sets"))
    gone.write_text("mmcp_k3Jq9ZxA_cut")
    assert "what is given is not a whole key" in told(gone)


@pytest.mark.parametrize("verb", ["explain", "call"])
def test_a_tool_that_is_not_there_is_explained_by_its_server_or_its_switch(
    gateway: Gateway, verb: str
) -> None:
    said = run(gateway, verb, "broken__any", ok=1)
    assert "the tools of broken are not known now: broken is " in said
    assert "no licence" in said
    assert "one.slow is switched off: tools.slow of [endpoints.default]" in run(
        gateway, verb, "one__slow", ok=1
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("explain", "sya"), "no tool is named 'sya' at the endpoint default; did you mean 'say'?"),
        (("explain", "say", "--endpoint", "defalt"), "no endpoint is named 'defalt'; did you mean"),
        (("explain", "say", "--key", "nobody"), "nobody"),
        (("policy", "explain", "sya"), "no tool is named 'sya'"),
    ],
)
def test_an_unknown_name_ends_with_8_and_a_hint(
    gateway: Gateway, words: tuple[str, ...], why: str
) -> None:
    assert why in run(gateway, *words, ok=8)


def test_arguments_that_are_not_an_object_are_refused(gateway: Gateway) -> None:
    assert "--args is not a JSON object" in run(gateway, "explain", "say", "--args", "[1]", ok=2)


@pytest.mark.promise("M100")
def test_a_check_names_rules_without_effect(gateway: Gateway) -> None:
    words = ("policy", "check", "--config", str(gateway.config))
    command = [*gateway.command("policy")[:3], *words, "--state-dir", str(gateway.folder / "state")]
    done = programs.run(command)
    assert done.returncode == 0, done.stderr
    assert "ok: 6 policies, " in done.stdout
    assert "'typo' concerns nothing that the servers offered last: [\"one/ecko\"]" in done.stderr
    assert "'idle' has no effect: 'no-error' denies all of it" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    strict = programs.run([*command, "--strict"])
    assert strict.returncode == 65
