"""Requests of clients: reading messages, comparing headers, finding the server of a request.

Owns: refusing broken JSON, batches, repeated keys, ids that peers would mangle, parameters that are
not an object, and headers that differ from the body; the rules that find the server of a request
and put its own names in (`METHODS`), and their errors. Never: sending, authorizing.

A message that two readers could understand differently is refused, because the gateway would check
something else than the server does.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Raw

from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.uris import URI_BYTES_MAX
from metamcp_worker.front_calls import task_ids
from metamcp_worker.front_calls.request_facts import NAME_BYTES_MAX, McpRequest
from metamcp_worker.guard.conditions import ThingKind
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import Wishes
from metamcp_worker.http.request_head import BLANKS, Head, Headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope, KnownRequest
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import METHOD_BYTES_MAX
from metamcp_worker.ipc.jsonrpc_bytes import NO_ID, NOT_FOUND_LEGACY, READ
from metamcp_worker.ipc.server_catalog import TASKS_EXTENSION

BESIDE_BYTES_MAX = 64 * 1024
"""Maximum bytes of a message beside its params, if repeated members have to be looked for; nothing
in the protocol is large there, and the search is slow."""

_PARAMS = re.compile(rb'"params"\s*:\s*')
SMALL_BYTES = 512
"""Bytes of a message up to which counting in all of it costs less than leaving its params out."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.DOTALL)


def read(body: bytes) -> Envelope:
    """Return the message in `body`. Raises ProtocolError.

    A request has `method` and `id`, a notification has `method` alone, a response has no `method`.
    """
    if not body.isascii() and not _is_utf8(body):
        raise ProtocolError(Code.PARSE_ERROR, "The body is not UTF-8.")
    try:
        message = codec.envelope(body)
    except codec.Malformed as error:
        raise _unreadable(body, error) from None
    beside = _without_params(body, message) if len(body) > SMALL_BYTES else body
    count = beside.count
    if (
        count(b'"id"') > 1
        or count(b'"method"') > 1
        or count(b'"params"') > 1
        or codec.BACKSLASH in beside
    ):
        _check_keys(_without_params(body, message))
    if message.jsonrpc != "2.0":
        raise ProtocolError(Code.INVALID_REQUEST, 'The member "jsonrpc" must be "2.0".')
    if message.id and not codec.id_ok(bytes(message.id)):
        raise ProtocolError(
            Code.INVALID_REQUEST,
            f"The id must be a string or an integer of at most {codec.ID_BYTES_MAX} bytes.",
        )
    method = message.method
    answered = message.result or message.error
    if method is None:
        if not (answered and message.id):
            raise ProtocolError(
                Code.INVALID_REQUEST, "The message is not a request, notification or answer."
            )
    elif answered:
        raise ProtocolError(Code.INVALID_REQUEST, "The message is a request and an answer at once.")
    elif len(method) > METHOD_BYTES_MAX // 4 and len(method.encode()) > METHOD_BYTES_MAX:
        raise ProtocolError(
            Code.INVALID_REQUEST, f"The method has more than {METHOD_BYTES_MAX} bytes."
        )
    return message


def read_again(body: bytes, head: Head) -> Envelope:
    """Return the message in `body`, as `read` does, without decoding an envelope that came with
    this head before. Raises ProtocolError."""
    envelope = head.envelope
    if isinstance(envelope, codec.KnownEnvelope) and (body.isascii() or _is_utf8(body)):
        again = envelope.request(body)
        if again is not None:
            return again
    message = read(body)
    if message.method == task_ids.CALL:
        head.envelope = codec.known_envelope(body, message)
    return message


def answer_id(message: Envelope | None) -> bytes:
    """Return the raw id of the answer to a message; None: it could not be read."""
    if message is None or message.method is None:
        return NO_ID
    return bytes(message.id) or NO_ID


def members(message: Envelope) -> dict[str, Raw]:
    """Return `params`, one level deep. Raises ProtocolError."""
    if type(message) is KnownRequest:
        return message.members
    raw = message.params
    if not raw or (len(raw) == 4 and bytes(raw) == b"null"):
        return {}
    try:
        return codec.level(raw)
    except codec.Malformed:
        raise ProtocolError(Code.INVALID_PARAMS, "params must be an object.") from None


def parameters(message: Envelope) -> tuple[dict[str, Raw], dict[str, Raw]]:
    """Return `params` without `_meta`, and `_meta`, each one level deep. Raises ProtocolError."""
    params = members(message)
    return params, meta(params.pop("_meta")) if "_meta" in params else {}


def meta(raw: Raw) -> dict[str, Raw]:
    """Return `_meta`, one level deep. Raises ProtocolError."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        raise ProtocolError(Code.INVALID_PARAMS, "params._meta must be an object.") from None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unreadable(body: bytes, error: codec.Malformed) -> ProtocolError:
    """Return the error for a body that is not JSON, or for JSON that is not one message."""
    first = body.lstrip()[:1]
    try:
        codec.check(body)
        if first == b"[":
            return ProtocolError(Code.INVALID_REQUEST, "Batches are not served; send one message.")
        if first == b"{":
            return ProtocolError(Code.INVALID_REQUEST, f"The message is malformed: {error}.")
    except codec.Malformed as broken:
        return ProtocolError(Code.PARSE_ERROR, f"The body is not JSON: {broken}.")
    return ProtocolError(Code.INVALID_REQUEST, "The body must be one JSON-RPC object.")


def _without_params(body: bytes, message: Envelope) -> bytes:
    """Return the message with a number for its params, because names of members are common
    there."""
    params = message.params
    match = _PARAMS.search(body)
    if len(params) <= 2 or match is None:
        return body
    start = match.end()
    if body.startswith(params, start):  # a search for so many bytes takes long
        return b"%b0%b" % (body[:start], body[start + len(params) :])
    return body.replace(params, b"0", 1)


def _check_keys(body: bytes) -> None:
    """Refuse a repeated member of the message itself, in whatever way its name is written."""
    count = body.count
    if (
        codec.BACKSLASH not in body
        and max(count(b'"id"'), count(b'"method"'), count(b'"params"')) <= 1
    ):
        return
    if len(body) > BESIDE_BYTES_MAX:
        raise ProtocolError(
            Code.INVALID_REQUEST, f"There are more than {BESIDE_BYTES_MAX} bytes beside params."
        )
    depth = 0
    last = b""
    seen: set[str] = set()
    for match in _TOKEN.finditer(body):
        token = match[0]
        if token == b":":
            if depth == 1:
                key = codec.text(last) or ""
                if key in seen:
                    raise ProtocolError(
                        Code.INVALID_REQUEST, "A member of the message is repeated."
                    )
                seen.add(key)
        elif token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        else:
            last = token


_PREFIX = "Mcp-Param-"
_MARK = b"x-mcp-header"
_SENTINEL = re.compile(r"=\?base64\?(?P<payload>.*)\?=", re.DOTALL)
_DECIMAL = re.compile(r"(?P<whole>-?[0-9]{1,400})(?:\.0+)?")


def mismatch(message: str) -> ProtocolError:
    return ProtocolError(Code.HEADER_MISMATCH, message)


def header_text(value: bytes) -> str | None:
    """Return the text of a header: as it is, or the decoded content of `=?base64?…?=`; None if the
    content is not valid."""
    text = value.decode("latin-1")
    match = _SENTINEL.fullmatch(text)
    if match is None:
        return text
    try:
        decoded = base64.b64decode(match["payload"], validate=True)
        canonical = base64.b64encode(decoded).decode() == match["payload"]
        return decoded.decode() if canonical else None
    except (binascii.Error, ValueError):
        return None


def same(raw: Raw, header: bytes) -> bool:
    """Whether this raw JSON string and this header have the same text."""
    body = bytes(raw)
    if body == b'"%b"' % header and codec.BACKSLASH not in body and not header.startswith(b"=?"):
        return body.isascii()
    text = codec.text(body)
    return text is not None and text == header_text(header)


def collect_wishes(tools: Iterable[tuple[str, bytes]]) -> dict[str, Wishes]:
    """Return the tools that want arguments repeated, with their wishes. `tools`: name and raw
    definition of each. Clients that send headers do not use a tool whose wishes are not valid, so
    nothing is checked for such a tool."""
    wishes_by_tool: dict[str, Wishes] = {}
    for name, definition in tools:
        if _MARK not in definition and b"\\u" not in definition:
            continue
        try:
            wishes = mcp_headers.find_header_params(
                codec.level(definition).get("inputSchema", Raw(b"{}"))
            )
        except (codec.Malformed, mcp_headers.HeaderRuleUnfit):
            continue
        if wishes:
            wishes_by_tool[name] = wishes
    return wishes_by_tool


def check(wishes: Wishes, arguments: Raw | None, headers: Headers) -> None:
    """Check that each of these arguments has its header and each header its argument, and that both
    say the same. `null` counts as a missing argument. Raises ProtocolError."""
    try:
        values: object = None if arguments is None else codec.value(arguments)
    except codec.Malformed as error:  # a number that is too large is well-formed, but has no value
        message = f"params.arguments cannot be compared with headers: {error}."
        raise ProtocolError(Code.INVALID_PARAMS, message) from None
    for path, name in wishes.items():
        title, key = _PREFIX + name, (_PREFIX + name).lower().encode()
        header_values = [value.strip(BLANKS) for header, value in headers if header == key]
        argument = ".".join(path)
        value = mcp_headers.at(values, path)
        expected = mcp_headers.text_of(value)
        if len(header_values) > 1:
            raise mismatch(f"{title} came more than once.")
        if not header_values:
            if expected is not None:
                raise mismatch(f"{title} is missing; it repeats the argument {argument}.")
        elif expected is None:
            raise mismatch(f"{title} came, but there is no argument {argument} to repeat.")
        elif not _agree(value, expected, header_text(header_values[0])):
            raise mismatch(f"{title} is not the argument {argument}.")


def _agree(value: object, expected: str, text: str | None) -> bool:
    if text is None:
        return False
    number = not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )
    decimal = _DECIMAL.fullmatch(text) if number else None
    if decimal is not None and isinstance(value, int | float):
        return int(decimal["whole"]) == int(value)
    return text == expected


KEPT = b'{"reason":"quarantine"}'
"""Raw data of an error about a tool in quarantine."""
INVALID = b'{"reason":"invalid_definition"}'
"""Raw data of an error about a tool or prompt that lists leave out, because its definition is not
valid."""


class ServerNotReady(ProtocolError):
    """Raised for this request to a server that has not yet sent its lists. `server`: its name;
    `subject`: what the request is about."""

    def __init__(self, server: str, subject: str, request: McpRequest) -> None:
        super().__init__(
            Code.SERVER_DOWN,
            f"server '{server}' is not available: it has not been up yet, so nothing is known of"
            " what it offers; try again later, or see 'metamcp status'",
        )
        self.server = server
        self.subject = subject
        self.request = request


class Rule:
    """Rule by which requests of one method find their server.

    `what`: word for the subject in error messages. `subject`: returns the name or URI in the
    parameters, None if there is none. `find`: returns its owner. `rename`: puts the server's own
    name into the parameters. `bytes_max`: maximum bytes of the subject. `one_era`: only a server of
    the client's era can be the owner. `named`: the subject is a name out of a list.
    """

    def __init__(
        self,
        noun: str,
        subject: Callable[[Mapping[str, Raw]], str | None],
        find: Callable[[MergedCatalog, str], Owner | None],
        rename: Callable[[Mapping[str, Raw], bytes], Mapping[str, Raw]],
        bytes_max: int = NAME_BYTES_MAX,
        *,
        one_era: bool = False,
        named: bool = False,
    ) -> None:
        self.what = noun
        self.subject = subject
        self.find = find
        self.rename = rename
        self.bytes_max = bytes_max
        self.one_era = one_era
        self.named = named


def _name(params: Mapping[str, Raw]) -> str | None:
    return codec.text(params.get("name", b"null"))


def _uri(params: Mapping[str, Raw]) -> str | None:
    return codec.text(params.get("uri", b"null"))


def _tool(merged: MergedCatalog, name: str) -> Owner | None:
    return merged.tools.get(name) or merged.tool(name)


def _with_name(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "name": Raw(original)} if original else params


def _with_uri(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "uri": Raw(original)} if original else params


def _ref(params: Mapping[str, Raw]) -> dict[str, Raw]:
    return codec.members(params.get("ref", b""))


def _ref_renamed(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "ref": Raw(codec.dump(_with_name(_ref(params), original)))}


def _ref_moved(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    # A reference is written again even with the same URI, without members that are repeated.
    return {**params, "ref": Raw(codec.dump(_with_uri(_ref(params), original)))}


def _task(params: Mapping[str, Raw]) -> str | None:
    return codec.text(params.get("taskId", b"null"))


def _task_renamed(params: Mapping[str, Raw], original: bytes) -> Mapping[str, Raw]:
    return {**params, "taskId": Raw(original)} if original else params


def _own_rule(name: str) -> Rule:
    """Return the rule of a method of the gateway's own, which is a built-in tool by another way."""

    def find(merged: MergedCatalog, tool: str) -> Owner | None:
        owner = merged.tools.get(tool)
        if owner is None or owner.server:
            message = f"metamcp/{tool} is not offered by this endpoint, see its key builtins"
            raise ProtocolError(Code.METHOD_NOT_FOUND, message)
        return owner

    return Rule("tool", lambda params: name, find, lambda params, original: params)


def only(merged: MergedCatalog, method: str) -> Owner:
    """Return the only server that may know a method beyond the protocol. Raises ProtocolError."""
    owner = merged.claimant(method)
    if owner is None:
        message = f"Unknown method: {method[:NAME_BYTES_MAX]}"
        raise ProtocolError(Code.METHOD_NOT_FOUND, message)
    return owner


def _lister(merged: MergedCatalog, subject: str) -> Owner:
    """Return who lists tasks: the gateway its runs, else the only server."""
    return task_ids.own(merged) or only(merged, task_ids.LIST)


def _visible(
    kind: ThingKind, find: Callable[[MergedCatalog, str], Owner | None], *, templates: bool = False
) -> Callable[[MergedCatalog, str], Owner | None]:
    """Return a function that finds only things that policies do not deny. `templates`: it may find
    a template, which lists have although its name may have no normal form."""

    def find_visible(merged: MergedCatalog, subject: str) -> Owner | None:
        owner = find(merged, subject)
        if owner is None or owner.guard is None:
            return owner
        guard = owner.guard.find_guard(kind, codec.text(owner.original) or subject)
        closed = guard is not None and (guard.is_hidden if templates else guard.denies)
        return None if closed else owner

    return find_visible


_RESOURCE = Rule("resource", _uri, MergedCatalog.resource, _with_uri, URI_BYTES_MAX)
TASK = Rule(
    "task", _task, lambda merged, subject: None, _task_renamed, task_ids.ID_BYTES_MAX, one_era=True
)
"""Rule of a request about a task, whose server `task_ids.TaskOwner` finds."""
_WATCHED = Rule(
    "resource", _uri, _visible("resources", MergedCatalog.resource), _with_uri, URI_BYTES_MAX
)
METHODS: Mapping[str, Rule] = {
    task_ids.CALL: Rule("tool", _name, _tool, _with_name, named=True),
    "prompts/get": Rule("prompt", _name, MergedCatalog.prompt, _with_name, named=True),
    READ: _RESOURCE,
    "resources/subscribe": _WATCHED,
    "resources/unsubscribe": _WATCHED,
    **dict.fromkeys(sorted(task_ids.METHODS), TASK),
    task_ids.LIST: Rule("list", lambda params: "", _lister, lambda params, original: params),
    "resources/directory/read": Rule(
        "resource", _uri, _visible("resources", MergedCatalog.directory), _with_uri, URI_BYTES_MAX
    ),
    "metamcp/get_catalog": _own_rule("get_catalog"),
    "metamcp/suggest_workflow": _own_rule("suggest_workflow"),
}
#: Notification of a change in a list, by kind.
LIST_CHANGED: Mapping[str, str] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "resourceTemplates": "notifications/resources/list_changed",
}
COMPLETE = "completion/complete"
NO_COMPLETIONS = b'{"completion":{"values":[]}}'
"""Result for a reference of a server that has no completions, where another server has some."""
#: Rules for completions, by the type of the reference.
_REFERENCES: Mapping[str | None, Rule] = {
    "ref/prompt": Rule(
        "prompt", lambda params: _name(_ref(params)), _visible("prompts", MergedCatalog.prompt),
        _ref_renamed,
    ),
    "ref/resource": Rule(
        "resource", lambda params: _uri(_ref(params)),
        _visible("resources", MergedCatalog.resource_or_template, templates=True), _ref_moved,
        URI_BYTES_MAX,
    ),
}  # fmt: skip


def completion(request: McpRequest) -> Rule | None:
    """Return the rule for a completion; None for a request of any other method. Raises
    ProtocolError."""
    if request.method != COMPLETE:
        return None
    rule = _REFERENCES.get(codec.text(_ref(request.params).get("type", b"null")))
    if rule is None:
        raise ProtocolError(
            Code.INVALID_PARAMS,
            f"{COMPLETE} needs params.ref.type to be one of {', '.join(map(str, _REFERENCES))}",
        )
    return rule


def subject_of(rule: Rule, request: McpRequest) -> str:
    """Return the name or URI that the request is about. Raises ProtocolError."""
    subject = rule.subject(request.params)
    if subject is None:
        raise ProtocolError(
            Code.INVALID_PARAMS, f"{request.method} needs the {rule.what} it is about, as a string"
        )
    most = rule.bytes_max
    if len(subject) > most // 4 and len(subject.encode("utf-8", "replace")) > most:
        raise _too_long(rule)
    if "\ufffd" in subject:  # perhaps half a surrogate pair, which the server would read otherwise
        message = f"The {rule.what} has a character in its name that cannot be read"
        raise ProtocolError(Code.INVALID_PARAMS, message)
    return subject


def check_owner(
    merged: MergedCatalog, owner: Owner | None, rule: Rule, subject: str, request: McpRequest
) -> Owner:
    """Return the owner that was found, if it can serve this client. Raises ProtocolError, and
    NotUpYet if the owner may be a server that has not reported yet what it offers."""
    if owner is not None and owner.kept and owner.kept != owner.invalid:
        raise build_quarantine_error(owner.kept)
    if owner is not None and owner.invalid and (owner.kept or not request.modern):
        raise ProtocolError(Code.INVALID_PARAMS, owner.invalid, INVALID)
    if owner is None and rule is TASK:
        raise _unknown_task(merged, subject, request)
    if owner is not None and owner.server in merged.unknown and rule is TASK:
        raise ServerNotReady(owner.server, subject, request)
    if owner is None:
        legacy_read = rule is _RESOURCE and not request.modern
        code = NOT_FOUND_LEGACY if legacy_read else Code.INVALID_PARAMS
        hidden = out_of_view(merged, subject) if rule.what == "tool" else ""
        if not hidden and (server := not_up_yet(merged, subject)):
            raise ServerNotReady(server, subject, request)
        raise ProtocolError(code, hidden or f"Unknown {rule.what}: {subject}")
    if rule.one_era and owner.legacy is request.modern:
        raise ProtocolError(
            Code.METHOD_NOT_FOUND,
            f"{request.method} does not lead to {owner.server}: it has no tasks of this revision",
        )
    return owner


def out_of_view(merged: MergedCatalog, name: str) -> str:
    """Return why an existing tool cannot be called where only tools in view can be, and how to
    bring the tool into view; empty if the reason is a different one."""
    if name in merged.tools or all(entry.key != name for entry in merged.offered):
        return ""
    guide = merged.instructions or ""
    return f"The tool {name} is not in view, and only what is in view may be called here. {guide}"


def not_up_yet(merged: MergedCatalog, name: str) -> str:
    """Return the server that may have this name and has not reported yet what it offers; empty if
    there is none."""
    return next((server for server in merged.unknown if name.startswith(server)), "")


def owner_of_resource(merged: MergedCatalog, uri: str) -> tuple[Owner, str]:
    """Return the server that has the resource, and the URI that the server knows for it. Raises
    ProtocolError with the code of the handshake era: only there clients subscribe to a single
    resource."""
    if len(uri.encode("utf-8", "replace")) > URI_BYTES_MAX:
        raise _too_long(_RESOURCE)
    owner = _WATCHED.find(merged, uri)
    if owner is None:
        raise ProtocolError(NOT_FOUND_LEGACY, f"Unknown resource: {uri}")
    original = codec.text(owner.original) if owner.original else uri
    assert original is not None
    return owner, original


def without_tasks(caller: bytes) -> bytes:
    """Return the caller as a client that cannot take tasks of the other era."""
    members = codec.level(caller)
    try:
        capabilities = codec.level(members["clientCapabilities"])
        extensions = codec.level(capabilities["extensions"])
    except (codec.Malformed, KeyError):
        return caller
    extensions.pop(TASKS_EXTENSION, None)
    capabilities["extensions"] = Raw(codec.dump(extensions))
    return codec.dump({**members, "clientCapabilities": Raw(codec.dump(capabilities))})


def build_quarantine_error(reason: str) -> ProtocolError:
    """Return the error for a call of a tool in quarantine. `reason`: a sentence."""
    return ProtocolError(Code.INVALID_PARAMS, reason, KEPT)


def _unknown_task(merged: MergedCatalog, task: str, request: McpRequest) -> ProtocolError:
    """Return the error for an unknown task; a server with tasks checks in the same order."""
    if not any(
        merged.eras.get(server, request.modern) is not request.modern for server in merged.tasked
    ):
        return ProtocolError(Code.METHOD_NOT_FOUND, f"Unknown method: {request.method}")
    if request.modern and TASKS_EXTENSION not in _extensions(request.caller):
        return ProtocolError(
            Code.MISSING_CAPABILITY,
            f"{request.method} is for clients that declare the extension {TASKS_EXTENSION}",
            codec.dump({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}),
        )
    return ProtocolError(Code.INVALID_PARAMS, f"Unknown task: {task}")


def _extensions(caller: bytes) -> dict[str, Raw]:
    """Return the extensions that a client declares."""
    capabilities = codec.members(codec.members(caller).get("clientCapabilities", b""))
    return codec.members(capabilities.get("extensions", b""))


def _too_long(rule: Rule) -> ProtocolError:
    message = f"No {rule.what} has a name of more than {rule.bytes_max} bytes"
    return ProtocolError(Code.INVALID_PARAMS, message)
