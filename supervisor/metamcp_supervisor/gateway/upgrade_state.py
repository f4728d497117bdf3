"""State that one program hands to the next, which takes over the gateway in the same process.

Owns: the values, their bytes, and whether two programs understand each other. Never: collecting
and restoring (`gateway.upgrade`), exec (`upgrade_exec`).

Descriptors are numbers: the next program finds them open under the same numbers. Times are of the
monotonic clock, which goes on. Members with a default may be added or removed without a new
`VERSION`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from metamcp_supervisor.config.config import Address, AnyAddress, Config, UnixAddress, no_origin
from metamcp_supervisor.config.tables import feature_tables
from metamcp_supervisor.control.control import ControlSnapshot
from metamcp_supervisor.fronts.fronts import FrontsSnapshot
from metamcp_supervisor.processes.nursery import NurserySnapshot
from metamcp_supervisor.servers.entry import ServerSnapshot
from metamcp_supervisor.telemetry.journal import History
from metamcp_supervisor.telemetry.metrics import FiguresSnapshot
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc import (
    code_runs,
    disclosure,
    embedding,
    engine_runs,
    frames,
    messages,
    middleware_calls,
    spec,
)
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.packets import ChannelSnapshot

VERSION = 1
"""Version of the values in `UpgradeState`."""
NO_PORT = ("localhost", 0)
"""Placeholder for the address of an ops port that is a unix socket."""
_MODULES = re.compile(r"(?<!['\"\w.])(?:\w+\.)+(?=\w)")


class StateUnreadable(MetaMCPError):
    """A state, or the description of a program, cannot be used. The text is a sentence."""


class GatewayState(Struct, frozen=True, kw_only=True):
    """State of the gateway itself. `version`: of the program that hands over; `upgrades`: number of
    upgrades so far, with this one; `started`: monotonic time of the first program's start;
    `hangup_ends`: see `signals`; `clients`, `ops`: descriptors of listeners; `roles`: those of
    processes that are started at a connection, by name; `ops_path`: path of a unix socket in place
    of `ops_listen`, `ops_made`: the gateway made its file; `overrides`: server, setting, value and
    end; `decides`: the state directory has what operators decided (`servers.decisions`); `config`:
    configuration of the files, packed by `pack_config`; `lock`: approved definitions, packed by
    `servers.quarantine_io`."""

    version: str
    upgrades: int
    started: float
    hangup_ends: bool
    listen: tuple[str, int]
    ops_listen: tuple[str, int]
    clients: tuple[int, ...]
    ops: tuple[int, ...]
    roles: dict[str, tuple[int, ...]] = {}
    ops_path: str = ""
    ops_made: bool = False
    overrides: tuple[tuple[str, str, str, float], ...] = ()
    decides: bool = False
    config: bytes = b""
    lock: bytes = b""


class UpgradeState(Struct, frozen=True, kw_only=True):
    """The whole state that is handed over. `shared`: name, process and control socket of each
    worker that servers share."""

    gateway: GatewayState
    control: ControlSnapshot
    nurseries: tuple[NurserySnapshot, ...]
    fronts: FrontsSnapshot
    servers: tuple[ServerSnapshot, ...]
    shared: tuple[tuple[str, int, ChannelSnapshot], ...] = ()
    events: tuple[JournalEvent, ...]
    last_event: int
    histories: tuple[History, ...]
    lines: tuple[LogLine, ...]
    last_line: int
    figures: FiguresSnapshot


class MessageMember(Struct, frozen=True):
    """Member of a message or of a value in one. `type`: its type in words; `required`: it has no
    default."""

    type: str
    required: bool = True


Messages = Mapping[str, Mapping[str, MessageMember]]
"""Members by the names of messages and values; a set of messages has its messages as members."""


class ProgramContract(Struct, frozen=True, kw_only=True):
    """Description that a program gives of itself when it is tried. `state`: the `VERSION` that it
    reads; `messages`: those that it speaks with workers and fronts, empty in the description of an
    earlier program."""

    version: str
    state: int = 0
    messages: dict[str, dict[str, MessageMember]] = {}


def pack(state: UpgradeState) -> bytes:
    return msgspec.msgpack.encode((VERSION, state))


def unpack(data: bytes) -> UpgradeState:
    """Unpack a state. Raises StateUnreadable."""
    try:
        version, body = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if version != VERSION:
            raise StateUnreadable(f"the state of the gateway has version {version}, not {VERSION}")
        return msgspec.msgpack.decode(body, type=UpgradeState)
    except msgspec.DecodeError as error:
        raise StateUnreadable(f"the state of the gateway cannot be read: {error}") from None


def pack_config(config: Config) -> bytes:
    return msgspec.msgpack.encode(config, enc_hook=str)


def config(state: UpgradeState) -> Config | None:
    """Return the configuration that the previous program read from the files last; None if this
    program cannot decode it."""
    try:
        before = msgspec.msgpack.decode(state.gateway.config, type=Config, dec_hook=_decode_value)
        tables = {
            table.name: msgspec.convert(values, table.record, dec_hook=_decode_value)
            for table in feature_tables()
            if (values := before.tables.get(table.name)) is not None
        }
    except msgspec.DecodeError:
        return None
    return replace(before, tables=tables)


def _decode_value(kind: Any, value: Any) -> object:
    """Return a value of a type that the format does not have. The files that the previous program
    read are gone, and with them the places of its settings."""
    return kind(value) if isinstance(kind, type) else no_origin


def ops_written(listen: AnyAddress) -> tuple[tuple[str, int], str]:
    """Return `ops_listen` and `ops_path` of GatewayState for this address."""
    if isinstance(listen, UnixAddress):
        return NO_PORT, str(listen.path)
    return (listen.host, listen.port), ""


def ops_listen(gateway: GatewayState) -> AnyAddress:
    path = gateway.ops_path
    return UnixAddress(Path(path)) if path else Address(*gateway.ops_listen)


def in_force(read: Config, state: UpgradeState | None) -> Config:
    """Return the configuration that this program has read, with the settings of [gateway] as they
    were: only a full restart changes them."""
    before = None if state is None else config(state)
    return read if before is None else replace(read, gateway=before.gateway)


def descriptors(state: UpgradeState) -> list[int]:
    """Return all descriptors that must stay open."""
    open_fds = [*state.gateway.clients, *state.gateway.ops]
    open_fds += [state.control.lock, state.control.listener]
    open_fds += [fd for fds in state.gateway.roles.values() for fd in fds]
    open_fds += [state.control.state] if state.control.state >= 0 else []
    lines = [front.line for front in state.fronts.fronts]
    for nursery in state.nurseries:
        lines.append(nursery.line)
        open_fds += [fd for _, fd, _ in nursery.stacks]
    lines += [line for _, _, line in state.shared]
    lines += [copy.instance.line for server in state.servers for copy in server.copies]
    for line in lines:
        open_fds += [line.fd, *(fd for _, fds in line.waiting for fd in fds)]
    open_fds += [fd for moving in state.fronts.moving for fd in moving.fds]
    return open_fds


def program(version: str, *, shared: bool = False) -> ProgramContract:
    """Return the description of this program. `shared`: servers share workers, so the other program
    has to know these."""
    described = describe_messages()
    for kind in get_args(messages.ToShared):
        described[TO_WORKERS][kind.__name__] = MessageMember("message", shared)
    return ProgramContract(version=version, state=VERSION, messages=described)


def parse_contract(data: bytes) -> ProgramContract:
    """Read the description of a program. Raises StateUnreadable."""
    try:
        return msgspec.json.decode(data, type=ProgramContract)
    except msgspec.DecodeError:
        raise StateUnreadable("it does not say what it is") from None


def foreign(ours: ProgramContract, theirs: ProgramContract) -> str:
    """Return why the other program cannot go on where this one ends, as a sentence, or ""."""
    if theirs.state != ours.state:
        return "it reads another state than this version hands over"
    if not theirs.messages:
        return "it does not say how it speaks with workers"
    if difference := find_difference(ours.messages, theirs.messages):
        return f"it speaks with workers in another way than this version: {difference}"
    return ""


def find_difference(ours: Messages, theirs: Messages) -> str:
    """Return the first message that one of two programs could not read from the other, as a
    sentence, or "". A member with a default may be added and removed: who does not know it passes
    over it. A value that only one of them knows is in such a member."""
    for name in sorted(ours.keys() & theirs.keys()):
        here, there = ours[name], theirs[name]
        for key in sorted(here.keys() | there.keys()):
            if key in here and key in there:
                if here[key].type != there[key].type:
                    return f"{key} in {name} is something else there"
            elif {**here, **there}[key].required:
                return f"only {'this' if key in here else 'that'} version has {key} in {name}"
    return ""


TO_WORKERS = "the messages to workers"
_SETS: Mapping[str, Any] = {
    "the messages to the nursery": messages.ToNursery,
    "the messages of the nursery": messages.FromNursery,
    TO_WORKERS: messages.ToChild,
    "the messages of workers": messages.FromChild,
    "the messages to fronts": messages.ToFront,
    "the messages of fronts": messages.FromFront,
}


def describe_messages() -> dict[str, dict[str, MessageMember]]:
    """Return the messages of this program, and all values in them."""
    sets: dict[str, list[type[Struct]]] = {
        name: list(get_args(union)) for name, union in _SETS.items()
    }
    for module in (code_runs, engine_runs, middleware_calls, frames):
        name = f"the messages of {module.__name__.rpartition('.')[2]}"
        sets[name] = [kind for each in vars(module).values() for kind in _structs(each)]
    described = {
        name: {kind.__name__: MessageMember("message") for kind in kinds}
        for name, kinds in sets.items()
    }
    kinds = [kind for each in sets.values() for kind in each]
    kinds += [spec.ServerSpec, spec.FrontSpec, messages.SessionRecord, messages.Figures]
    kinds += [messages.CallsShown, messages.CallUnderWay, messages.Span]
    kinds += [disclosure.ViewOrder, disclosure.DisclosureState, disclosure.OrderOutcome]
    kinds += [disclosure.DisclosureDelta, disclosure.DisclosureApplied, embedding.Vectors]
    while kinds:
        kind = kinds.pop()
        if kind.__name__ not in described:
            described[kind.__name__] = _describe_members(kind)
            kinds += [inner for each in structs.fields(kind) for inner in _structs(each.type)]
    return described


def _describe_members(kind: type[Struct]) -> dict[str, MessageMember]:
    """Return the members of a message or value. All members are one if they have no names where
    they are encoded, or if an unknown one is refused: then none may come or go."""
    fields, settings = structs.fields(kind), kind.__struct_config__
    types = {each.name: _type_text(each.type) for each in fields}
    is_frame = kind.__module__ == frames.__name__
    if settings.array_like or settings.forbid_unknown_fields or is_frame:
        text = ", ".join(f"{name}: {text}" for name, text in types.items())
        return {"a member": MessageMember(text)}
    left_out = " or nothing" if settings.omit_defaults else ""
    return {
        each.name: MessageMember(
            types[each.name] + ("" if each.required else left_out), each.required
        )
        for each in fields
    }


def _type_text(kind: Any) -> str:
    """Return a type without the modules of its parts, which may move."""
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return _MODULES.sub("", str(kind))


def _structs(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)
