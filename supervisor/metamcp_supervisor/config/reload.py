"""The effect of a new configuration: the plan of a reload, and the hash that names a configuration.

Owns: which difference needs a restart (by `options`), and the words for it, which never contain a
value. Never: carrying a plan out (`server_io`), reading files (`sources`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

from msgspec import structs
from msgspec.structs import fields, replace

from metamcp_supervisor.config.config import (
    Config,
    Endpoint,
    GatewayConfig,
    MiddlewareConfig,
    Namespace,
    Problem,
    Server,
)
from metamcp_supervisor.config.document import table_of
from metamcp_supervisor.config.options import options_of
from metamcp_supervisor.config.overrides import GATEWAY, TimedOverrides
from metamcp_supervisor.config.references import starts_program
from metamcp_supervisor.config.tables import feature_tables
from metamcp_supervisor.verbs import PlannedChange, ReloadPlan
from metamcp_worker.ipc.spec import IssuerSpec, OAuth, PolicySpec, UseLimits

HASH_CHARACTERS = 12
"""Characters of a hash, 48 bits: enough that two configurations do not get the same hash by
accident."""
_TABLES = (
    "log", "recording", "audit", "code", "consent", "middleware", "workflows", "ai", "notify",
    "hooks", "metrics", "traces", "policies",
)  # fmt: skip
"""Tables of the core that a reload can change at once, by the member of `Config`."""
_NAMED_MAX = 8
"""Maximum number of changed settings that a line of a plan names."""

_EFFECTS = {each.key: each.effect for each in options_of("servers.*")}
_NOT_COMPARED = {
    "source", "mistake", "command_written", "env_written", "url_written", "headers_written",
    "oauth_written", "options_written", "endpoint_written", "key_written", "folder",
    "files", "referred", "secret_written",
}  # fmt: skip
_HIDDEN = {"url", "endpoint", "key", "oauth"}
_BY_NAME = {"env", "headers", "options"}
"""Settings that are tables of strings: a change is reported by the name, without the value."""


def plan(old: Config, new: Config) -> ReloadPlan:
    """Return the plan of a reload from `old` to `new`.

    Each server has one change, under its name; removed servers come last. Then come other changes:
    `gateway` (never applied, because it needs a full restart), `[log]`, `[recording]`, `[audit]`,
    `[code]`, `[consent]`, `[[middleware]]`, `[workflows]`, `[ai]`, `[notify]`, `[hooks]`,
    `[metrics]`, `[traces]`, `[policies]`, tables of features such as `[engine]`, `namespaces.NAME`,
    `endpoints.NAME` and `workspaces.NAME`; servers cannot have such names, because of the brackets
    and the dot. A server that is added or removed does not count as a change of its namespaces.
    """
    return ReloadPlan(
        hash=digest([fingerprint(old), fingerprint(new)]),
        changes=(
            *_servers(old.servers, new.servers),
            *_gateway(old.gateway, new.gateway),
            *chain.from_iterable(
                _FIND.get(name, partial(_table, name))(getattr(old, name), getattr(new, name))
                for name in _TABLES
            ),
            *chain.from_iterable(
                _table(table.name, old.table(table.record), new.table(table.record))
                for table in feature_tables()
            ),
            *_namespaces(old, new),
            *_groups("endpoints", old.endpoints, new.endpoints),
            *_workspaces(old.workspace_limits, new.workspace_limits),
        ),
        applied=False,
    )


def find_stopping_errors(old: Config, new: Config) -> tuple[Problem, ...]:
    """Return the errors of `new`, if one of them would stop a server that has no error in `old`."""
    stopped = [
        name
        for name, server in new.servers.items()
        if server.mistake and name in old.servers and not old.servers[name].mistake
    ]
    return new.problems if stopped else ()


def with_overrides(plan: ReloadPlan, overrides: TimedOverrides) -> ReloadPlan:
    """Add to a plan which settings stay as an operator has set them, and which levels of the log
    are as in the file again."""
    levels = ", ".join(each.key for each in overrides.of(GATEWAY))
    over = f"as in the file again: {levels}"

    def with_reason(change: PlannedChange) -> PlannedChange:
        if levels and change.server == "[log]":
            return structs.replace(change, why=_sentence([change.why, over]))
        keys = ", ".join(each.key for each in overrides.of(change.server))
        if not keys or change.action in {"add", "remove"}:
            return change
        return structs.replace(
            change, why=_sentence([*filter(None, [change.why]), f"stays as set: {keys}"])
        )

    changes = list(map(with_reason, plan.changes))
    if levels and all(change.server != "[log]" for change in changes):
        changes.append(PlannedChange(server="[log]", action="in-place", why=over))
    return structs.replace(plan, changes=tuple(changes))


def fingerprint(config: Config) -> str:
    """Calculate the hash of a configuration: comments, the order of keys and the place of a server
    do not count. Values that may be secret go in as a digest only."""
    return digest(
        [
            _plain(config.gateway),
            [_plain(config.log), _plain(config.recording), _plain(config.metrics)],
            [_plain(config.audit), _plain(config.code), _plain(config.workflows)],
            [_plain(each) for each in config.middleware],
            [_plain(config.traces), _plain(config.ai)],
            [_plain(config.table(table.record)) for table in feature_tables()],
            config.policies,
            [config.notify, _plain(config.hooks)],
            [_plain(config.servers[name]) for name in sorted(config.servers)],
            [_plain(config.namespaces[name]) for name in sorted(config.namespaces)],
            [_plain(config.endpoints[name]) for name in sorted(config.endpoints)],
            sorted(config.workspace_limits.items()),
        ]
    )


def hash_launch(server: Server) -> str:
    """Calculate a hash that stays the same as long as the same program is started in the same way:
    then its tools are expected to be the same. Values that may be secret go in as a digest only."""
    plain = _plain(server)
    counts = [key for key in plain if key != "enabled" and _EFFECTS.get(_key(key)) == "restart"]
    return digest([(key, plain[key]) for key in counts])


def _servers(old: Mapping[str, Server], new: Mapping[str, Server]) -> Iterator[PlannedChange]:
    for name, server in new.items():
        if name in old:
            yield _server(old[name], server)
        else:
            yield PlannedChange(
                server=name, action="add", why="" if server.enabled else "not enabled"
            )
    for name in old:
        if name not in new:
            yield PlannedChange(server=name, action="remove")


def _server(old: Server, new: Server) -> PlannedChange:
    if old.mistake != new.mistake:
        reason = new.mistake or "its mistake is mended"
        return PlannedChange(server=new.name, action="restart", why=reason)
    changed = list(_find_changes(old, new))
    if not changed:
        return PlannedChange(server=new.name, action="unchanged")
    runs = old.enabled or new.enabled
    costly = any(_EFFECTS[key] == "restart" for key, _ in changed)
    return PlannedChange(
        server=new.name,
        action="restart" if costly and runs else "in-place",
        why=_sentence([text for _, text in changed]),
    )


def _find_changes(old: Server, new: Server) -> Iterator[tuple[str, str]]:
    """Return the key of each setting that differs, and the words for the change."""
    for each in fields(Server):
        was, now = getattr(old, each.name), getattr(new, each.name)
        if each.name in _NOT_COMPARED or was == now:
            continue
        if each.name in _BY_NAME:
            yield from ((each.name, text) for text in _changed_names(each.name, was, now))
        elif each.name == "enabled":
            yield "enabled", "enabled" if new.enabled else "no longer enabled"
        else:
            key = _key(each.name)
            later = " (from its next start)" if _EFFECTS[key] == "next start" else ""
            yield key, f"{key} changed{later}"


def _changed_names(key: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield f"{key}.{name} added"
        elif name not in new:
            yield f"{key}.{name} removed"
        elif old[name] != new[name]:
            yield f"{key}.{name} changed"


def _gateway(old: GatewayConfig, new: GatewayConfig) -> Iterator[PlannedChange]:
    changed = [_key(each.name) for each in fields(GatewayConfig) if _differ(old, new, each.name)]
    if changed:
        sentence = _sentence([f"{name} changed" for name in changed])
        yield PlannedChange(
            server="gateway", action="unchanged", why=f"{sentence}: needs a full restart"
        )


def _table(name: str, old: Any, new: Any) -> Iterator[PlannedChange]:
    names = [each.name for each in fields(old) if each.name not in _NOT_COMPARED]
    if changed := [each for each in names if _differ(old, new, each)]:
        reason = _sentence([f"{_key(key)} changed" for key in changed])
        yield PlannedChange(server=f"[{name}]", action="in-place", why=reason)


def _policies(old: Sequence[PolicySpec], new: Sequence[PolicySpec]) -> Iterator[PlannedChange]:
    before, after = ({rule.name: rule for rule in rules} for rules in (old, new))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if old != new:
        reason = f"{_sentence(names)} changed" if names else "their order changed"
        yield PlannedChange(server="[policies]", action="in-place", why=reason)


def _middleware(
    old: Sequence[MiddlewareConfig], new: Sequence[MiddlewareConfig]
) -> Iterator[PlannedChange]:
    was, now = ({each.name: each for each in of} for of in (old, new))
    names = [name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name)]
    if names or [*was] != [*now]:
        reason = _sentence([f"{name} {_fate(name in was, name in now)}" for name in names])
        yield PlannedChange(
            server="[[middleware]]", action="in-place", why=reason or "order changed"
        )


def _fate(was: bool, now: bool) -> str:
    return "changed" if was and now else "added" if now else "removed"


def _notify(old: Sequence[str], new: Sequence[str]) -> Iterator[PlannedChange]:
    if old != new:
        yield PlannedChange(server="[notify]", action="in-place", why="command changed")


_FIND: Mapping[str, Callable[[Any, Any], Iterator[PlannedChange]]] = {
    "middleware": _middleware,
    "notify": _notify,
    "policies": _policies,
}


def _namespaces(old: Config, new: Config) -> Iterator[PlannedChange]:
    def keep_common_servers(namespace: Namespace) -> Namespace:
        stay = (name for name in namespace.servers if name in old.servers and name in new.servers)
        return replace(namespace, servers=tuple(stay))

    return _groups(
        "namespaces",
        {name: keep_common_servers(each) for name, each in old.namespaces.items()},
        {name: keep_common_servers(each) for name, each in new.namespaces.items()},
    )


def _groups(
    section: str,
    old: Mapping[str, Namespace] | Mapping[str, Endpoint],
    new: Mapping[str, Namespace] | Mapping[str, Endpoint],
) -> Iterator[PlannedChange]:
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        label = f"{section}.{name}"
        if was is None or now is None:
            yield PlannedChange(server=label, action="add" if was is None else "remove")
        elif was != now:
            names = [each.name for each in fields(now) if each.name not in _NOT_COMPARED]
            keys = [name for name in names if _differ(was, now, name)]
            reason = _sentence([f"{_key(key)} changed" for key in keys])
            yield PlannedChange(server=label, action="in-place", why=reason)


def _workspaces(
    old: Mapping[str, UseLimits], new: Mapping[str, UseLimits]
) -> Iterator[PlannedChange]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield PlannedChange(
                server=f"workspaces.{name}", action="in-place", why="limits changed"
            )


def _differ(old: object, new: object, name: str) -> bool:
    return bool(getattr(old, name) != getattr(new, name))


def _key(field: str) -> str:
    """Return the name of a setting in the file; only the field's name has the unit."""
    return field.removesuffix("_s")


def _sentence(parts: Sequence[str]) -> str:
    more = len(parts) - _NAMED_MAX
    return ", ".join(parts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _plain(value: Any) -> dict[str, object]:
    """Return every setting as text, secrets as digests. Where a program prints a value, the setting
    counts as written: a token that is new each time does not make another configuration."""
    settings: dict[str, object] = {}
    for each in fields(value):
        if each.name in _NOT_COMPARED:
            continue
        content = _replace_printed_values(
            getattr(value, each.name), getattr(value, f"{each.name}_written", None)
        )
        if isinstance(content, IssuerSpec) and isinstance(value, Endpoint):
            secret = _replace_printed_values(content.client_secret, value.secret_written)
            content = structs.replace(content, client_secret=secret)
        if each.name in _BY_NAME and (values := table_of(content)) is not None:
            settings[each.name] = {name: _digest(str(values[name])) for name in sorted(values)}
        else:
            hidden = each.name in _HIDDEN
            settings[each.name] = _digest(str(content)) if hidden else str(content)
    return settings


def _replace_printed_values(content: object, written: object) -> object:
    """Return a setting, each text in it as written where a program prints a part of it."""
    if isinstance(content, str) and isinstance(written, str):
        return written if starts_program(written) else content
    if isinstance(content, OAuth):
        as_written = structs.astuple(written if isinstance(written, OAuth) else content)
        return tuple(map(_replace_printed_values, structs.astuple(content), as_written))
    values, texts = table_of(content), table_of(written)
    if values is not None and texts is not None:
        return {
            key: _replace_printed_values(value, texts.get(key)) for key, value in values.items()
        }
    words, written_words = _words(content), _words(written)
    if words and len(words) == len(written_words):
        return tuple(map(_replace_printed_values, words, written_words))
    return content


def _words(value: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: object) -> str:
    return hashlib.sha256(ascii(value).encode()).hexdigest()[:HASH_CHARACTERS]
