"""What the odd server says: members that nobody knows wherever something can stand, and whatever
other gateways were seen to drop, to repair, or to turn into something else."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.live.gateway import ROOT

SERVER = (sys.executable, str(ROOT / "tests" / "fakes" / "odd_server.py"))

ODD = b'"n":[1.0,1e2,123456789012345678901234567890,null],"e":"\\u00e9\\/"'
TOOLS = (
    b'{"name":"odd","x-tool":{%b},"annotations":{"readOnlyHint":true,"x":1.0},"x-title":null,'
    b'"icons":[{"src":"data:,","x":null}],"_meta":{"example.com/x": {%b}},'
    b'"execution":{"taskSupport":"optional","x":1},"inputSchema":{"type":"object",'
    b'"$schema":"https://json-schema.org/draft/2020-12/schema","x-vendor":[{}],'
    b'"$defs":{"a":{"$anchor":"b","type":"string"}},"additionalProperties":false,'
    b'"properties":{"p":{"$ref":"#/$defs/a"},"q":{"$ref":"https://example.com/never-fetched"}}},'
    b'"outputSchema":{"type":"object","required":["never"]}}' % (ODD, ODD),
    b'{"name":"array","inputSchema":{"type" : "object"},"outputSchema":{"type":"array"}}',
    b'{"description":"", "name":"error" , "inputSchema":{"type":"object"}}',
)
PROMPTS = (b'{"name":"odd","arguments":[{"name":"a","x":1.0}],"x-prompt":{%b}}' % ODD,)
RESOURCES = (
    b'{"uri":"odd://one","name":"odd","size":12345678901234567890,"x-resource":{%b}}' % ODD,
    b'{"name":"bad", "uri":"odd://bad"}',
)
TEMPLATES = (b'{"uriTemplate":"odd://{x}/y","name":"odd","x-template":{%b}}' % ODD,)

Row = tuple[str, dict[str, Any], bytes]
_REF = {"type": "ref/resource", "uri": "odd://{x}/y"}

#: What it is, the request, and the raw result of it.
RESULTS: dict[str, Row] = {
    "unknown members everywhere": (
        "tools/call", {"name": "odd", "arguments": {}},
        b'{"content": [ {"type":"text","text":"t","x-block":{%b},"annotations":{"x":1}} ],'
        b'"_meta":{"x/y":{"z": 1.0}},"isError":false, "x-result":{%b}}' % (ODD, ODD),
    ),
    "a content type that nobody knows": (
        "tools/call", {"name": "hologram"},
        b'{"content":[{"type":"hologram","depth":1.0},{"type":"resource_link","uri":"a:z","x":1}]}',
    ),
    "a failure with all that belongs to it": (
        "tools/call", {"name": "fail"},
        b'{"isError": true,"content":[{"type":"text","text":"no"}],"structuredContent":{"a":[ ]}}',
    ),
    "structure that breaks its schema": (
        "tools/call", {"name": "broken"},
        b'{"content":[],"structuredContent":{"never":7,"n":1.0}}',
    ),
    "structure that is no object": (
        "tools/call", {"name": "structured"},
        b'{"content":[], "structuredContent":[1.0,{"a":null}]}',
    ),
    "nothing at all": ("tools/call", {"name": "empty"}, b"{ }"),
    "a prompt": (
        "prompts/get", {"name": "odd", "arguments": {"a": "1"}},
        b'{"messages":[{"role":"narrator","content":{"type":"?","n":1e0}}],"x-result":{%b}}' % ODD,
    ),
    "a resource": (
        "resources/read", {"uri": "odd://one"},
        b'{"contents":[{"uri":"odd://one","blob":"AA==","x":{%b}}],"ttlMs": 60000,'
        b'"cacheScope":"public","resultType":"complete"}' % ODD,
    ),
    "a resource of a template": (
        "resources/read", {"uri": "odd://t/y"},
        b'{"resultType":"complete","contents":[{"text":"","uri":"odd://t/y"}],"ttlMs":1,"x":1.0}',
    ),
    "a completion": (
        "completion/complete", {"ref": _REF, "argument": {"name": "x", "value": ""}},
        b'{"completion":{"values":["a"],"total":1.0,"x":null},"x-result":{%b}}' % ODD,
    ),
}  # fmt: skip
ERRORS: dict[str, Row] = {
    "an error of its own": (
        "tools/call", {"name": "error"},
        b'{"code":-31999,"message":"own \\u00e9","data":{%b},"x-error":["kept"]}' % ODD,
    ),
    "a tool that it does not know any more": (
        "tools/call", {"name": "gone"},
        b'{"code":-32601,"message":"no such tool","data":null}',
    ),
    "an error of a prompt": (
        "prompts/get", {"name": "bad"}, b'{"message":"first","code":-32050, "data":[1.0]}',
    ),
    "an error of a resource": (
        "resources/read", {"uri": "odd://bad"}, b'{"code":-32603,"message":"","data":{"u":1.0}}',
    ),
}  # fmt: skip
TASK = (
    b'{"resultType":"task","taskId":"odd-1","status":"working","ttlMs": 60000,"x-task":{%b}}' % ODD
)
CUSTOM = b'{"x-custom": {%b},"items":[ ]}' % ODD
CAPABILITIES = (
    b'{"tools":{"listChanged":true,"x":1.0},"prompts":{"listChanged":true},"x-own":{%b},'
    b'"resources":{"listChanged":true,"subscribe": true},"completions":{},'
    b'"extensions":{"example.com/x":{"n": 1.0}}}' % ODD
)


def script(era: str) -> str:
    """What such a server is told to say; `era`: legacy or modern."""
    lists = {
        "tools/list": (b"tools", (*TOOLS, *_named("tools/call"))),
        "prompts/list": (b"prompts", (*PROMPTS, *_named("prompts/get"))),
        "resources/list": (b"resources", RESOURCES),
        "resources/templates/list": (b"resourceTemplates", TEMPLATES),
    }
    answers: dict[str, dict[str, str]] = {}
    for method, (kind, items) in lists.items():
        hints = b'"resultType":"complete","ttlMs":5,"cacheScope":"public"'
        page = b'{"%b":[%b],%b}' % (kind, b",".join(items), hints)
        answers[method] = {"result": page.decode()}
    for outcome, rows in (("result", RESULTS), ("error", ERRORS)):
        for method, params, raw in rows.values():
            subject = params.get("name", params.get("uri"))
            answers[f"{method} {subject}" if subject else method] = {outcome: raw.decode()}
    answers["tools/call task"] = {"result": TASK.decode()}
    answers["tools/call raw"] = answers["example.com/raw"] = {"result": "PARAMS"}
    answers["example.com/custom"] = {"result": CUSTOM.decode()}
    return json.dumps({"era": era, "capabilities": CAPABILITIES.decode(), "answers": answers})


def entry(path: Path, era: str) -> dict[str, Any]:
    """A configuration entry for such a server; its script is put at `path`."""
    path.write_text(script(era))
    return {"command": [*SERVER, str(path)]}


def _named(method: str) -> list[bytes]:
    """Definitions of what is not there in an odd one already."""
    rows = [*RESULTS.values(), *ERRORS.values()]
    names = [params["name"] for called, params, _ in rows if called == method] + ["raw", "task"]
    rest = [name for name in names if name not in {"odd", "array", "error"}]
    return [b'{"name":"%b","inputSchema":{"type":"object"}}' % name.encode() for name in rest]
