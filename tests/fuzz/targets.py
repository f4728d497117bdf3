"""What is fuzzed, each as a function of any bytes that fails if a promise does not hold.

`envelope` has the invariant against smuggling: what the front saw of a request (the method and
whom it is about) is what every reader of JSON finds in the line that the server gets, be it one
that takes the first of two equal keys or one that takes the last.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.jsonrpc_lines import LineCutter
from metamcp_worker.front import mcp_request
from metamcp_worker.front.header_policy import HeaderPolicy
from metamcp_worker.front.mcp_request import METHODS
from metamcp_worker.front.request_facts import MCP, HeaderRefusal, McpRequest, Route
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError
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
    if isinstance(found, HeaderRefusal):
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


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "envelope": envelope, "head": head, "lines": lines, "config": config,
}  # fmt: skip
