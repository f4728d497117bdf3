"""What is fuzzed, each as a function of any bytes that fails if a promise does not hold.

`envelope` has the invariant against smuggling: what the front saw of a request (the method and
whom it is about) is what every reader of JSON finds in the line that the server gets, be it one
that takes the first of two equal keys or one that takes the last. `arguments` has the one for
judges: what a condition, a middleware or a person reads is what each of these readers finds.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec import Raw

from metamcp_worker.access.door import Denial
from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.jsonrpc_lines import LineCutter
from metamcp_worker.front_calls import mcp_request
from metamcp_worker.front_calls.mcp_request import METHODS
from metamcp_worker.front_calls.request_facts import MCP, McpRequest, Route
from metamcp_worker.front_clients.header_policy import HeaderPolicy
from metamcp_worker.guard import consent
from metamcp_worker.guard.conditions import CallContext, PolicySubject, PolicyTarget
from metamcp_worker.guard.policies import Policies, PolicyRuling
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.spec import PolicySpec, PrincipalFacts
from metamcp_worker.middleware.api import HookRequest, UnclearArguments
from metamcp_worker.runtime.masking import SecretMasker
from tests.supervisor.config.test_parse_any import accepted_or_refused

LINE_BYTES = 256
ORIGINALS = (b"", b'"own"')
"""Names that the server knows: the one that the client said, and another one."""
POLICY = HeaderPolicy(["localhost", "127.0.0.1"], {b"/mcp": Route("default", MCP)})
_PLACE = re.compile(rb"(?:localhost|127\.0\.0\.1)\.?(?::[0-9]{0,5})?", re.IGNORECASE)


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def readers(line: bytes) -> list[dict[str, Any]]:
    """The line as one reader takes it who keeps the first of equal keys, and as one who keeps the
    last; nothing if it is too deep for them."""
    try:
        return [
            json.loads(line, object_pairs_hook=hook, parse_int=str, parse_float=str)
            for hook in (_first, dict)
        ]
    except RecursionError:
        return []


KEYS = {"tool": "name", "prompt": "name", "resource": "uri", "task": "taskId"}
"""The member that says whom a request is about, by the word of its rule."""


def envelope(data: bytes) -> None:
    """A message of a client, to the line for its server."""
    try:
        message = mcp_request.read(data)
        params, meta = mcp_request.parameters(message)
        if message.method is None:
            return
        request = McpRequest(message.method, params, meta, b"", modern=True)
        rule = METHODS.get(message.method) or mcp_request.completion(request)
        subject = mcp_request.subject_of(rule, request) if rule else ""
    except ProtocolError:
        return
    for original in ORIGINALS:
        renamed = rule.rename(params, original) if rule else params
        line = jsonrpc_lines.request(b"7", message.method, codec.dump(renamed), codec.dump(meta))
        assert line.count(b"\n") == 1, line
        for read in readers(line):
            assert (read["id"], read["method"]) == ("7", message.method), line
            if rule is None:
                continue
            completes = message.method == mcp_request.COMPLETE
            got = read["params"]["ref"] if completes else read["params"]
            assert got[KEYS[rule.what]] == (json.loads(original) if original else subject), line
            assert not completes or got["type"] == f"ref/{rule.what}", line


def head(data: bytes) -> None:
    """A head, as lines of method, target and headers, to the decision of the policy."""
    method, target, *lines = [*data.split(b"\n"), b"", b""][: 2 + data.count(b"\n")]
    headers = tuple(
        (name.strip().lower(), value.strip())
        for name, _, value in (one.partition(b":") for one in lines)
    )
    found = POLICY.check(method.decode("latin-1"), target, headers)
    if isinstance(found, Denial):
        assert 400 <= found.status < 500
        assert found.message.endswith(".")
        return
    hosts = [value for name, value in headers if name == b"host"]
    assert len(hosts) == 1
    assert _PLACE.fullmatch(hosts[0]), hosts
    assert sum(name == b"origin" for name, _ in headers) <= 1
    assert found.endpoint == "default"


def lines(data: bytes) -> None:
    """What a server writes, whole and in pieces of any size, to its messages."""
    size = 1 + (data[0] if data else 0)
    whole, cut = LineCutter(LINE_BYTES), LineCutter(LINE_BYTES)
    found = whole.feed(data)
    parts = [one for at in range(0, len(data), size) for one in cut.feed(data[at : at + size])]
    assert found == parts
    assert [one.size_bytes for one in whole.overlong()] == [
        one.size_bytes for one in cut.overlong()
    ]
    for line in found:
        assert len(line) <= LINE_BYTES
        with contextlib.suppress(codec.Malformed):
            codec.envelope(line)


def config(data: bytes) -> None:
    """A file of the first kind or of the second, by its first byte, to a configuration."""
    accepted_or_refused("x.json" if data.lstrip()[:1] == b"{" else "metamcp.toml", data)


def _denies(when: str) -> PolicyRuling:
    """What is known of a tool that a policy denies under a condition."""
    policies = Policies([PolicySpec(name="p", match=("*/*",), when=when)])
    found = policies.find_ruling(PolicyTarget("tools", "s", "t"), PolicySubject(PrincipalFacts()))
    assert found is not None
    return found


CONDITIONS: tuple[tuple[PolicyRuling, Callable[[dict[str, Any]], bool]], ...] = (
    (_denies("mcp.tool.arguments.cmd.contains(';')"), lambda found: ";" in found["cmd"]),
    (
        _denies("!mcp.tool.arguments.all(name, name in ['cmd', 'opt'])"),
        lambda found: not found.keys() <= {"cmd", "opt"},
    ),
    (
        _denies("mcp.tool.arguments.opt.exists(one, one == 'x')"),
        lambda found: "x" in found["opt"],
    ),
    (
        _denies("mcp.tool.arguments.opt.mode == 'x'"),
        lambda found: found["opt"]["mode"] == "x",
    ),
)
"""Policies with conditions, and their values as a reader of JSON computes them."""


def _same(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which each reader of JSON finds the same."""
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


PIECES = (
    b"ls", b"x", b";", rb"\u003b", b"\xef\xb7\x90", rb"\ufdd0", rb"\uFDD1", rb"\ud83d", rb"\uDE00",
    rb"\\", rb"\"", b":", b"{", b",", b"", b"", b"\xff",
)  # fmt: skip
"""Parts of texts: characters as they are and as escapes, and what is not a character."""
KEYWORDS = (b"cmd", b"opt", b"mode", rb"c\u006dd", rb"o\ud83dpt", b"x")


def _spelled(dice: Random, depth: int = 0) -> bytes:
    """A value as some program may write it."""
    gap = dice.choice((b"", b"", b"", b" ", b"\n"))
    kind = dice.randrange(4 if depth > 3 else 8) if depth else 7
    if kind < 3:
        return b'"%b"' % b"".join(dice.choices(PIECES[: dice.choice((3, 17))], k=dice.randrange(5)))
    if kind == 3:
        return dice.choice((b"1", b"-0", b"1.0", b"1e400", b"9" * 30, b"null", b"true"))
    items = [_spelled(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind < 6:
        return b"[%b%b]" % (gap, b",".join(items))
    words = KEYWORDS[: dice.choice((3, 6))]
    pairs = [b'"%b"%b:%b%b' % (dice.choice(words), gap, gap, one) for one in items]
    return b"{%b%b%b}" % (gap, (b"," + gap).join(pairs), gap)


def arguments(data: bytes) -> None:
    """A call, and arguments of which its bytes are the seed, to what a condition, a middleware and
    a person read of them."""
    with contextlib.suppress(codec.Malformed):
        _arguments(codec.level(data).get("arguments", Raw(b"{}")))
    _arguments(Raw(_spelled(Random(data))))


def _arguments(raw: Raw) -> None:
    found = [
        one
        for errors in ("replace", "ignore")
        for one in readers(bytes(raw).decode("utf-8", errors).encode())
    ]
    for ruling, judge in CONDITIONS:
        verdict = ruling.decide(CallContext(bytes(raw)))
        if any(note.outcome == "failed" for note in verdict.notes):
            continue
        assert found, raw
        for one in found:
            assert judge(one or {}) is (verdict.effect == "deny"), (raw, one)
    try:
        read = HookRequest(server="s", name="t", arguments=raw).arguments
        assert consent.shown_arguments(bytes(raw), SecretMasker())
    except (UnclearArguments, codec.Malformed):
        return
    with contextlib.suppress(RecursionError):
        judged = json.loads(bytes(raw), object_pairs_hook=_same)
        json.dumps(judged, ensure_ascii=False).encode()  # fails for half of a surrogate pair
        assert read == (judged if isinstance(judged, dict) else {}), raw


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "envelope": envelope, "head": head, "lines": lines, "config": config, "arguments": arguments,
}  # fmt: skip
