"""What one program hands to the next: nothing is lost on the way, and no stranger takes over."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config.config import Address, UnixAddress
from metamcp_supervisor.control.control import ControlSnapshot
from metamcp_supervisor.fronts.front import FrontSnapshot
from metamcp_supervisor.fronts.fronts import FrontsSnapshot
from metamcp_supervisor.fronts.handover import MovingConnection
from metamcp_supervisor.gateway import upgrade_state
from metamcp_supervisor.gateway.upgrade_state import MessageMember
from metamcp_supervisor.processes.nursery import NurserySnapshot
from metamcp_supervisor.servers.entry import CopySnapshot, ServerSnapshot
from metamcp_supervisor.servers.instances import InstanceSnapshot
from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from metamcp_supervisor.telemetry.counters import TallySnapshot
from metamcp_supervisor.telemetry.journal import History
from metamcp_supervisor.telemetry.metrics import FiguresSnapshot
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import ExitRecord, JournalEvent, LogLine
from metamcp_worker.ipc.engine_runs import RunOrder
from metamcp_worker.ipc.messages import CallStats, Figures, FrontStats, HandOver
from metamcp_worker.ipc.packets import ChannelSnapshot
from metamcp_worker.ipc.spec import OAuth
from tests.supervisor.configs import config, server

SHAPES = {1: "7d5f471fd964"}
"""Digests of the members without a default, by `upgrade_state.VERSION`. The digest of a version
that is not released may change."""
SUMMARY = FrontStats(connections=2, streams=1, sessions={"2025-11-25": 2}, refused={})
CALLS = CallStats("git", "tools/call", 3, 0.5, (1, 2), "-32601")
COUNTED = Figures(calls=(CALLS,), inflight={"git": 1})
COPY = CopySnapshot(
    role="serving",
    generation=4,
    instance=InstanceSnapshot(
        pid=41,
        line=ChannelSnapshot(21, ((b"packet", (22, 23)),)),
        server_pid=42,
        protocol="2025-11-25",
        start_s=0.2,
        inflight=1,
        probes_missed=0,
        reported=False,
        told_of=("unroutable_request",),
        condemned=ExitClass.HANG,
    ),
    ready=True,
    stopping=False,
    halted=False,
    lists=b"\x00\xff",
    due=7.5,
)
STATE = upgrade_state.UpgradeState(
    gateway=upgrade_state.GatewayState(
        version="1.0",
        upgrades=2,
        started=1.5,
        hangup_ends=True,
        listen=("127.0.0.1", 6270),
        ops_listen=("127.0.0.1", 6271),
        clients=(3, 4),
        ops=(5,),
        overrides=(("git", "timeout", "5s", 99.0),),
        config=b"config",
    ),
    control=ControlSnapshot(
        directory="/run/metamcp",
        lock=6,
        listener=7,
        token="secret",
    ),
    nurseries=(
        NurserySnapshot(pid=40, line=ChannelSnapshot(8), workers=(41,), stacks=((41, 9, "git#4"),)),
    ),
    fronts=FrontsSnapshot(
        fronts=(
            FrontSnapshot(
                number=5, slot=0, pid=43, since=2.0, line=ChannelSnapshot(10), summary=SUMMARY
            ),
        ),
        last=5,
        crashes=(1.0,),
        sessions=((5, b"{}"), (None, b"{}")),
        moving=(MovingConnection(5, HandOver(name="", maker=0, hops=1), (11, 12), 0),),
    ),
    servers=(
        ServerSnapshot(
            name="git",
            enabled=True,
            launched="abc",
            life=ServerLife(
                phase=ServerPhase.BACKOFF, reason=ExitClass.SIGNAL, window=(1.0,), retry_at=9.0
            ),
            generation=4,
            replacing=False,
            spare_failures=1,
            restarts=2,
            rested=False,
            probe=True,
            removed=False,
            answered={5: 3},
            copies=(COPY,),
            catalogue=b"catalogue",
            from_cache=False,
            listed=True,
        ),
    ),
    events=(JournalEvent(seq=1, time=1.0, who="git", what="ready→error"),),
    last_event=1,
    histories=(
        History(
            name="git",
            since=1.0,
            because="why",
            ready_at=0.0,
            ends=(
                ExitRecord(
                    time=1.0, generation=3, reason="exit", message="", ready_s=1.0, next="x"
                ),
            ),
        ),
    ),
    lines=(LogLine(seq=1, time=1.0, server="git", stream="stderr", text="zß水\x1b"),),
    last_line=1,
    figures=FiguresSnapshot(
        base=TallySnapshot(figures=COUNTED, refused={"host": 1}),
        live=((5, COUNTED, SUMMARY),),
        counts={"metamcp_late_replies_total": {"git": 1}},
        broken={},
        restarts={"git": {"exit": 2}},
        cpu_s=(("server", "git", 0.5),),
        usages=((MeasuredProcess("server", "git"), Usage(pid=42)),),
    ),
)


def test_everything_arrives_as_it_was() -> None:
    assert upgrade_state.unpack(upgrade_state.pack(STATE)) == STATE


def test_every_descriptor_is_kept_open_once() -> None:
    assert sorted(upgrade_state.descriptors(STATE)) == [*range(3, 13), 21, 22, 23]


def test_what_must_be_there_is_other_only_under_another_version() -> None:
    parts = msgspec.json.schema(upgrade_state.UpgradeState)["$defs"]
    needed = {
        name: {key: part["properties"][key] for key in part.get("required", ())}
        for name, part in parts.items()
        if "properties" in part
    }
    found = hashlib.sha256(json.dumps(needed, sort_keys=True).encode()).hexdigest()[:12]
    assert found == SHAPES[upgrade_state.VERSION], (
        "a released program could not read it: raise VERSION"
    )


@pytest.mark.parametrize("data", [b"", b"\xc1", upgrade_state.pack(STATE)[:-1], b"\x92\x01\x80"])
def test_what_is_no_state_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(
        upgrade_state.StateUnreadable, match="the state of the gateway cannot be read"
    ):
        upgrade_state.unpack(data)


def test_a_state_of_another_version_is_not_guessed_at() -> None:
    data = upgrade_state.pack(STATE)
    with pytest.raises(upgrade_state.StateUnreadable, match="has version 9, not 1"):
        upgrade_state.unpack(data[:1] + b"\x09" + data[2:])


def test_what_the_files_said_arrives_with_its_secrets_and_folders() -> None:
    known = config(
        server("git", env={"TOKEN": "t"}, cwd=Path("/srv"), env_written={"TOKEN": "${env:T}"}),
        server("docs", url="https://host/mcp", oauth=OAuth(client_id="x"), command=()),
    )
    state = structs.replace(
        STATE, gateway=structs.replace(STATE.gateway, config=upgrade_state.pack_config(known))
    )
    arrived = upgrade_state.config(upgrade_state.unpack(upgrade_state.pack(state)))
    assert arrived is not None
    assert arrived == known
    assert arrived.servers["git"].env_written == {"TOKEN": "${env:T}"}
    other = replace(known, gateway=replace(known.gateway, fronts=9), servers={})
    assert upgrade_state.in_force(other, state) == replace(known, servers={})
    assert upgrade_state.in_force(other, STATE) is other


def test_a_unix_socket_arrives_as_one() -> None:
    address = UnixAddress(Path("/run/ops.sock"))
    known = config(ops_listen=address)
    port, path = upgrade_state.ops_written(address)
    gateway = structs.replace(
        STATE.gateway, ops_listen=port, ops_path=path, config=upgrade_state.pack_config(known)
    )
    arrived = upgrade_state.unpack(upgrade_state.pack(structs.replace(STATE, gateway=gateway)))
    assert upgrade_state.ops_listen(arrived.gateway) == address
    assert upgrade_state.config(arrived) == known
    assert upgrade_state.ops_listen(STATE.gateway) == Address("127.0.0.1", 6271)
    assert upgrade_state.ops_written(Address("::1", 5)) == (("::1", 5), "")


OURS = upgrade_state.program("1.0")


def changed(name: str, **members: MessageMember | None) -> str:
    """What is said of a program whose message has these members too, or no longer."""
    rest = {key: each for key, each in OURS.messages[name].items() if key not in members}
    added = {key: each for key, each in members.items() if each is not None}
    theirs = structs.replace(OURS, messages={**OURS.messages, name: {**rest, **added}})
    back = upgrade_state.foreign(theirs, OURS)
    said = upgrade_state.foreign(OURS, theirs)
    assert (said == "") == (back == ""), "an upgrade is possible in both directions, or in none"
    return said


def test_a_program_takes_over_only_if_both_mean_the_same() -> None:
    assert upgrade_state.foreign(OURS, structs.replace(OURS, version="1.1")) == ""
    assert "another state" in upgrade_state.foreign(OURS, structs.replace(OURS, state=2))
    assert "does not say" in upgrade_state.foreign(OURS, structs.replace(OURS, messages={}))
    assert "another state" in upgrade_state.foreign(
        OURS, upgrade_state.ProgramContract(version="0.9")
    )
    assert upgrade_state.parse_contract(msgspec.json.encode(OURS)) == OURS


@pytest.mark.promise("M125")
def test_members_with_a_default_come_and_go_and_values_with_them() -> None:
    optional = MessageMember("NewValue | None", required=False)
    assert changed("Stop", news=optional) == ""
    assert changed("Stop", heirs=None) == ""
    assert changed("ServerSpec", news=optional) == ""


@pytest.mark.promise("M125")
@pytest.mark.parametrize(
    ("name", "members", "sentence"),
    [
        ("Stop", {"news": MessageMember("str")}, "only that version has news in Stop"),
        ("Stop", {"grace_s": None}, "only this version has grace_s in Stop"),
        ("Stop", {"grace_s": MessageMember("int")}, "grace_s in Stop is something else there"),
        (
            "the messages to workers",
            {"Pause": MessageMember("message")},
            "only that version has Pause in the messages to workers",
        ),
        (
            "CallFrame",
            {"a member": MessageMember("id: int")},
            "a member in CallFrame is something else there",
        ),
    ],
)
def test_a_message_that_one_of_both_cannot_read_is_named(
    name: str, members: dict[str, MessageMember | None], sentence: str
) -> None:
    assert changed(name, **members).endswith(f"than this version: {sentence}")


def test_a_value_that_refuses_what_it_does_not_know_gets_no_member_more() -> None:
    assert RunOrder.__struct_config__.forbid_unknown_fields
    assert set(OURS.messages["RunOrder"]) == {"a member"}


def test_a_type_is_the_same_wherever_its_parts_are() -> None:
    fronts = OURS.messages["the messages to fronts"]
    assert {"Stop", "Reconfigure"} <= fronts.keys()
    texts = {each.type for members in OURS.messages.values() for each in members.values()}
    assert not [text for text in texts if "metamcp_" in text]


def test_what_says_nothing_of_itself_is_no_program_of_the_gateway() -> None:
    with pytest.raises(upgrade_state.StateUnreadable):
        upgrade_state.parse_contract(b"Hello\n")
    assert upgrade_state.parse_contract(b'{"version":"1.1","more":1}\n').version == "1.1"
