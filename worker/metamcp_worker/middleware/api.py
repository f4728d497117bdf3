"""Classes that a middleware works with: requests on their way, and results.

Owns: reading and changing both. Never: the way of a request (`chain`), calling a hook (`run`).

A middleware is a class with some of the hooks `on_call_tool`, `on_get_prompt`, `on_read_resource`
and `on_list_tools`, each `async def hook(self, request, call_next)`. An entry point names the
class, and an object of it is created with the `options` of its table in the configuration.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from msgspec import Raw

from metamcp_worker.ipc import codec

_NOTHING = Raw(b"null")


class UnclearArguments(Exception):
    """Raised for arguments that readers of JSON take differently, so that the server may get others
    than the middleware reads. The text says why. A hook that lets it pass refuses the request."""


class HookRequest:
    """Request on its way to a server. `server`: name of the server; `name`: the server's own name
    of the tool or prompt, or the URI of the resource; `endpoint`, `workspace`, `principal`: names
    of the endpoint, the workspace and the owner of the credential, `local` without one."""

    def __init__(
        self,
        *,
        server: str,
        name: str,
        arguments: Raw = _NOTHING,
        annotations: Raw = _NOTHING,
        caller: Raw = _NOTHING,
        endpoint: str = "",
        workspace: str = "",
        principal: str = "",
    ) -> None:
        self.server = server
        self.name = name
        self.endpoint = endpoint
        self.workspace = workspace
        self.principal = principal
        self._raw_arguments = arguments
        self._annotations = annotations
        self._caller = caller
        self._arguments: dict[str, Any] | None = None
        self._unclear = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments, as the server gets them; empty if there are none. Raises UnclearArguments."""
        if self._arguments is None:
            try:
                value = codec.exact(self._raw_arguments)
            except codec.Malformed as error:
                self._unclear = str(error)
                raise UnclearArguments(self._unclear) from None
            self._arguments = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        return self._arguments

    @property
    def raw_arguments(self) -> Raw:
        """JSON of the arguments. Raises UnclearArguments if `arguments` has raised it."""
        if self._unclear:
            raise UnclearArguments(self._unclear)
        arguments = self._arguments
        if arguments is None or arguments == _object(self._raw_arguments):
            return self._raw_arguments
        return Raw(codec.dump(arguments))

    @property
    def annotations(self) -> dict[str, Any]:
        """Annotations of the tool, such as `readOnlyHint`; empty if there are none."""
        return _object(self._annotations)

    @property
    def client(self) -> dict[str, Any]:
        """Name and version that the client says of itself; empty if it says nothing."""
        info = _object(self._caller).get("clientInfo")
        return cast("dict[str, Any]", info) if isinstance(info, dict) else {}

    def map_text(self, change: Callable[[str], str]) -> "HookRequest":
        """Return this request with `change(text)` for each string in its arguments; this request
        itself if no string becomes another."""
        changed = cast("dict[str, Any]", _map_texts(self.arguments, change, every=True))
        return self if changed == self.arguments else self.with_arguments(changed)

    def with_arguments(self, arguments: Mapping[str, Any]) -> "HookRequest":
        """Return this request with other arguments, for `call_next`."""
        return HookRequest(
            server=self.server, name=self.name, arguments=Raw(codec.dump(dict(arguments))),
            annotations=self._annotations, caller=self._caller, endpoint=self.endpoint,
            workspace=self.workspace, principal=self.principal,
        )  # fmt: skip


class HookResult:
    """Result of a request."""

    _LISTS: tuple[str, ...] = ()
    """Members whose items have texts."""
    _VALUES: tuple[str, ...] = ()
    """Members in which each string is a text."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._members: dict[str, Any] | None = None

    @property
    def members(self) -> dict[str, Any]:
        """All members of the result, by their names in the protocol."""
        if self._members is None:
            self._members = _object(Raw(self._raw))
        return self._members

    @property
    def raw(self) -> bytes:
        """JSON of the result."""
        members = self._members
        if members is None or members == _object(Raw(self._raw)):
            return self._raw
        return codec.dump(members)

    def replace(self, **members: object) -> Self:
        """Return this result with other members."""
        return type(self)(codec.dump({**self.members, **members}))

    def map_text(self, change: Callable[[str], str]) -> Self:
        """Return this result with `change(text)` for each text in it; this result itself if no text
        becomes another. Data in base64, names and URIs are not texts."""
        changed: dict[str, object] = {}
        for key in self._LISTS:
            if key in self.members:
                changed[key] = _map_texts(self.members[key], change, every=False)
        for key in self._VALUES:
            if key in self.members:
                changed[key] = _map_texts(self.members[key], change, every=True)
        if all(self.members[key] == value for key, value in changed.items()):
            return self
        return self.replace(**changed)


class ToolResult(HookResult):
    """Result of a tool."""

    _LISTS = ("content",)
    _VALUES = ("structuredContent",)

    @classmethod
    def of_text(cls, text: str, *, is_error: bool = False) -> "ToolResult":
        """Return a result that has this text alone."""
        content = [{"type": "text", "text": text}]
        return cls(codec.dump({"content": content, "isError": is_error}))

    @property
    def content(self) -> list[dict[str, Any]]:
        """Blocks of content, as in the protocol."""
        return _items(self.members.get("content"))

    @property
    def structured(self) -> Any:
        """Structured content; None without it."""
        return self.members.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the tool says that it failed."""
        return self.members.get("isError") is True


class PromptResult(HookResult):
    """Result of a prompt."""

    _LISTS = ("messages",)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages of the prompt, as in the protocol."""
        return _items(self.members.get("messages"))


class ResourceResult(HookResult):
    """Contents of a resource."""

    _LISTS = ("contents",)

    @property
    def contents(self) -> list[dict[str, Any]]:
        """Contents, as in the protocol."""
        return _items(self.members.get("contents"))


class CallFailed(Exception):
    """Raised by `call_next` if the request got an error of the protocol. `code`, `message`: of that
    error; `raw`: its JSON. A hook that lets it pass gives the client the same error."""

    def __init__(self, raw: bytes) -> None:
        error = _object(Raw(raw))
        self.raw = raw
        self.code = error.get("code")
        self.message = str(error.get("message", ""))
        super().__init__(self.message)


def _object(raw: Raw) -> dict[str, Any]:
    try:
        value = codec.value(raw)
    except codec.Malformed:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[dict[str, Any]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _map_texts(value: object, change: Callable[[str], str], *, every: bool) -> object:
    """Return a value with other texts. `every`: each string is one, else those named `text`."""
    if isinstance(value, str):
        return change(value) if every else value
    if isinstance(value, list):
        return [_map_texts(item, change, every=every) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            key: _map_texts(member, change, every=every or key == "text")
            for key, member in cast("dict[str, object]", value).items()
        }
    return value
