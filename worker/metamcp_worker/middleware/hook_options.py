"""Options of the middleware that are shipped.

Owns: reading values, and sentences about wrong ones. Never: the meaning of an option.

All functions raise ValueError with words that follow the name of the middleware.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def refuse_unknown(options: Mapping[str, Any], allowed: Collection[str]) -> None:
    for name in options:
        if name not in allowed:
            raise ValueError(f"{name!r} is not an option; there are: {', '.join(sorted(allowed))}")


def flag(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name!r} must be true or false")
    return value


def words(
    options: Mapping[str, Any],
    name: str,
    default: Collection[str],
    allowed: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Return a list of strings. `allowed`: the only ones that are allowed; None for any."""
    value = options.get(name, default)
    listed = isinstance(value, list | tuple)
    items = list(cast("Collection[object]", value)) if listed else [None]
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) < len(items):
        raise ValueError(f"{name!r} must be a list of strings")
    for text in texts:
        if allowed is not None and text not in allowed:
            raise ValueError(f"{text!r} in {name!r} is not known; there are: {', '.join(allowed)}")
    return texts


def positive(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or (name in options and value < 1):
        raise ValueError(f"{name!r} must be a whole number above 0")
    return value


def seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return a duration such as "5m", in seconds."""
    if name not in options:
        return default
    value = options[name]
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise ValueError(f'{name!r} must be a duration such as "60s" or "5m"')
    return float(match[1]) * _SECONDS[match[2]]
