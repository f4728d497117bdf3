"""Middleware `filter`: makes results of tools smaller and plain.

Owns: JSON Pointers into results, the cut of long texts, escapes of terminals. Never: errors of the
protocol, content that is not text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from metamcp_worker.ipc import codec
from metamcp_worker.middleware.api import HookRequest, ToolResult
from metamcp_worker.middleware.hook_options import flag, positive, refuse_unknown, words

EVERY = "*"
"""Part of a pointer that stands for every member or item."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    r"|[@-Z\\-_]|[ -/]{1,8}[0-~])"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Escape sequences of terminals (ECMA-48), and control characters but tab and line ends."""
_Path = tuple[str, ...]


class Filter:
    """Options: `drop`: JSON Pointers (RFC 6901) of members to leave out; `keep`: pointers of the
    only members to keep; `*` in a pointer stands for every item. Both apply to structured content,
    and to texts that are JSON. `text_max`: characters of a text, the rest is cut; `escapes`:
    whether escapes of terminals stay. Raises ValueError."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, {"drop", "keep", "text_max", "escapes"})
        self._drop = [_path(pointer) for pointer in words(options, "drop", ())]
        self._keep = [_path(pointer) for pointer in words(options, "keep", ())]
        self._text_max = positive(options, "text_max", 0)
        self._escapes = flag(options, "escapes", default=False)

    async def on_call_tool(
        self, request: HookRequest, call_next: Callable[[HookRequest], Any]
    ) -> ToolResult:
        result: ToolResult = await call_next(request)
        plain: object = result.structured
        if (self._drop or self._keep) and plain is not None:
            filtered = self._filter_value(plain)
            if filtered != plain:
                result = result.replace(structuredContent=filtered)
        return result.map_text(self._text)

    def _text(self, text: str) -> str:
        if not self._escapes:
            text = _ESCAPES.sub("", text)
        if (self._drop or self._keep) and text[:1] in ("{", "["):
            text = self._json(text)
        if 0 < self._text_max < len(text):
            excess = len(text) - self._text_max
            text = f"{text[: self._text_max]}… ({excess} more characters were cut)"
        return text

    def _json(self, text: str) -> str:
        try:
            value = codec.value(text.encode())
        except (codec.Malformed, UnicodeEncodeError):
            return text
        filtered = self._filter_value(value)
        return text if filtered == value else codec.dump(filtered).decode()

    def _filter_value(self, value: object) -> object:
        if self._keep:
            value = _keep_paths(value, self._keep)
        for path in self._drop:
            value = _without(value, path)
        return value


def _path(pointer: str) -> _Path:
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON Pointer; it begins with a slash")
    tokens = pointer[1:].split("/")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


def _without(value: object, path: _Path) -> object:
    """Return a value without what this path leads to."""
    token, tail = path[0], path[1:]
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {
            key: _without(member, tail) if _fits(token, key) else member
            for key, member in members.items()
            if tail or not _fits(token, key)
        }
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [
            _without(item, tail) if _fits(token, str(at)) else item
            for at, item in enumerate(items)
            if tail or not _fits(token, str(at))
        ]
    return value


def _keep_paths(value: object, paths: Sequence[_Path]) -> object:
    """Return a value with only what these paths lead to."""
    if () in paths:
        return value
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        rests_by_key = {key: _rests(paths, key) for key in members}
        return {
            key: _keep_paths(members[key], rests) for key, rests in rests_by_key.items() if rests
        }
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        rests_by_item = [(item, _rests(paths, str(at))) for at, item in items]
        return [_keep_paths(item, rests) for item, rests in rests_by_item if rests]
    return value


def _rests(paths: Sequence[_Path], key: str) -> list[_Path]:
    return [path[1:] for path in paths if path and _fits(path[0], key)]


def _fits(token: str, key: str) -> bool:
    return token in (key, EVERY)
