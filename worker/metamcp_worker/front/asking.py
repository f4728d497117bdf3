"""What a client declared with its request, and so whether it may be asked something.

Owns: which declared capability each question needs. Never: asking, and the wording of refusals.
"""

import functools

from msgspec import Raw

from metamcp_worker.ipc import codec

CALLERS_KEPT = 128
"""Clients whose capabilities are remembered; each says the same with every request."""
CALLER_BYTES_MAX = 4096
"""Of what is remembered about one client; a longer one is read anew for each question."""

_NONE = Raw()


def may_be_asked(caller: bytes, method: str, params: bytes) -> bool:
    """Does the client that `caller` describes (see `frames.Call`) declare what this question
    needs? `params`: raw, the server's own."""
    need = _needed(method, params)
    return need is not None and need <= _known(caller)


def may_be_asked_anything(caller: bytes) -> bool:
    """Does this client declare that some question may be put to it?"""
    return bool(_known(caller))


def has_extension(caller: bytes, name: str) -> bool:
    """Does this client declare the extension of that name?"""
    extensions = _object(_capabilities(caller).get("extensions", _NONE))
    return _is_object(extensions.get(name))


def _needed(method: str, params: bytes) -> frozenset[str] | None:
    """What a client must have declared to be asked this; None: it is no question for a client."""
    try:
        members = codec.level(params) if params else {}
    except codec.Malformed:
        return None
    if method == "roots/list":
        return frozenset({"roots"})
    if method == "elicitation/create":
        mode = codec.text(members["mode"]) if "mode" in members else "form"
        return frozenset({f"elicitation.{mode}"})
    if method == "sampling/createMessage":
        needed = {"sampling"}
        if _present(members, "tools") or _present(members, "toolChoice"):
            needed.add("sampling.tools")
        if _present(members, "includeContext") and codec.text(members["includeContext"]) != "none":
            needed.add("sampling.context")
        return frozenset(needed)
    return None


def _known(caller: bytes) -> frozenset[str]:
    return _remembered(caller) if len(caller) <= CALLER_BYTES_MAX else _declared(caller)


def _declared(caller: bytes) -> frozenset[str]:
    capabilities = _capabilities(caller)
    declared: set[str] = set()
    if _is_object(capabilities.get("roots")):
        declared.add("roots")
    if _is_object(capabilities.get("elicitation")):
        modes = _object(capabilities["elicitation"])
        found = {f"elicitation.{mode}" for mode in ("form", "url") if _is_object(modes.get(mode))}
        # Before there were modes, the capability was an object without them and meant forms.
        declared |= found or {"elicitation.form"}
    if _is_object(capabilities.get("sampling")):
        finer = _object(capabilities["sampling"])
        declared.add("sampling")
        declared |= {
            f"sampling.{name}" for name in ("tools", "context") if _is_object(finer.get(name))
        }
        # Before there were finer capabilities, every client that samples could be asked to
        # include context, and was free not to.
        if not finer:
            declared.add("sampling.context")
    return frozenset(declared)


_remembered = functools.lru_cache(CALLERS_KEPT)(_declared)


def _capabilities(caller: bytes) -> dict[str, Raw]:
    return _object(_object(caller).get("clientCapabilities", _NONE))


def _object(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of a raw object; none if it is something else."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}


def _is_object(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw).startswith(b"{")


def _present(members: dict[str, Raw], name: str) -> bool:
    return name in members and bytes(members[name]) != b"null"
