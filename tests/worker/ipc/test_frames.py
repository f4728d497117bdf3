"""Frames: what goes in comes out, whole or in pieces, and nothing else gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.ipc import frame_bytes, frames
from metamcp_worker.ipc.errors import FrameBroken, TooLarge
from metamcp_worker.ipc.frame_bytes import FrameCutter
from metamcp_worker.ipc.frames import (
    CallFrame,
    Cancel,
    ClientNotice,
    Error,
    Frame,
    KeepCall,
    KeptFrame,
    Notice,
    Progress,
    QuestionFrame,
    RecoverCall,
    ReleaseCalls,
    ReplyFrame,
    Result,
    ServerGone,
    WithdrawQuestion,
)

ids = st.integers(min_value=0, max_value=2**64 - 1)
numbers = st.integers(min_value=0, max_value=frames.NUMBER_MAX)
bodies = st.binary(max_size=300)
methods = st.text(max_size=40)

calls = st.builds(
    CallFrame,
    id=ids,
    method=methods,
    params=bodies,
    meta=bodies,
    caller=bodies,
    deadline_ms=st.integers(min_value=0, max_value=2**30 - 1),
    wants_progress=st.booleans(),
    peer=numbers,
    traced=st.booleans(),
    payer=st.just(0) | ids,
    results=bodies,
)
any_frame = st.one_of(
    calls,
    st.builds(Result, id=ids, body=bodies),
    st.builds(Error, id=ids, body=bodies),
    st.builds(Progress, id=ids, body=bodies),
    st.builds(Cancel, id=ids, reason=bodies),
    st.builds(Notice, method=methods, body=bodies, id=ids),
    st.builds(ServerGone, body=bodies),
    st.builds(QuestionFrame, id=ids, question=numbers, method=methods, params=bodies),
    st.builds(ReplyFrame, question=numbers, body=bodies, failed=st.booleans()),
    st.builds(WithdrawQuestion, question=numbers),
    st.builds(ClientNotice, method=methods, body=bodies),
    st.builds(KeepCall, id=ids, owner=bodies, name=bodies, note=bodies),
    st.builds(RecoverCall, id=ids, owner=bodies, name=bodies, peer=numbers),
    st.builds(KeptFrame, id=ids, note=bodies),
    st.builds(ReleaseCalls, owner=bodies),
)


def payload(frame: Frame) -> bytes:
    return frame_bytes.pack(frame)[4:]


@given(any_frame)
def test_a_frame_comes_back_as_it_went(frame: Frame) -> None:
    assert frame_bytes.unpack(payload(frame)) == frame


@given(st.lists(any_frame, max_size=8), st.data())
def test_frames_are_cut_out_of_any_pieces(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(frame_bytes.pack, sent))
    cutter, got, at = FrameCutter(), list[Frame](), 0
    while at < len(stream):
        size = data.draw(st.integers(min_value=1, max_value=len(stream) - at))
        got += cutter.feed(stream[at : at + size])
        at += size
    assert got == sent


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_anything_else(noise: bytes) -> None:
    FrameCutter().feed(noise)


def test_a_frame_above_the_limit_is_refused_before_it_is_held() -> None:
    announced = (frames.FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    cutter = FrameCutter()
    assert cutter.feed(announced) == []
    assert isinstance(cutter.broken, TooLarge)
    assert "the limit is" in str(cutter.broken)
    with pytest.raises(TooLarge):
        frame_bytes.pack(Result(1, bytes(frames.FRAME_BYTES_MAX)))


def test_a_negative_length_is_refused() -> None:
    cutter = FrameCutter()
    assert cutter.feed(b"\xff\xff\xff\xff") == []
    assert "announces -1" in str(cutter.broken)


@given(st.lists(any_frame, max_size=4), st.binary(max_size=60))
def test_frames_before_a_broken_one_count(sent: list[Frame], behind: bytes) -> None:
    cutter = FrameCutter()
    stream = b"".join(map(frame_bytes.pack, sent))
    assert cutter.feed(stream + b"\0\0\0\x20\x63" + bytes(40) + behind) == sent
    assert isinstance(cutter.broken, FrameBroken)


@pytest.mark.parametrize("spoil", [b"\x02\x01", b"", b"\x01\x09" + bytes(30)])
def test_a_foreign_version_kind_or_length_is_refused(spoil: bytes) -> None:
    with pytest.raises(FrameBroken):
        frame_bytes.unpack(spoil)


def test_lengths_that_exceed_the_frame_are_refused() -> None:
    whole = payload(CallFrame(1, "tools/call", b"{}", meta=b"12345"))
    with pytest.raises(FrameBroken, match="exceed"):
        frame_bytes.unpack(whole[:30])


def test_a_method_name_has_a_limit() -> None:
    with pytest.raises(TooLarge, match="a method name"):
        frame_bytes.pack(CallFrame(1, "m" * 257, b"{}"))


def test_a_payer_is_the_same_in_all_processes_and_of_its_workspace() -> None:
    assert frames.payer("default", "local") == frames.NOBODY
    assert frames.payer("acme", "key:a") == 0x05C4BA3E60046A18
    assert frames.payer("acme", "key:a") >> 32 == frames.payer("acme", "key:b") >> 32
    assert frames.payer("acme", "key:a") >> 32 != frames.payer("other", "key:a") >> 32


def test_a_call_without_room_for_the_place_of_its_result_is_broken() -> None:
    whole = bytearray(payload(CallFrame(1, "tools/call", b"{}", results=b"place")))
    whole[whole.index(b"place") + 5 + 8] = 200  # bytes of the place
    with pytest.raises(FrameBroken, match="no room for the place of its result"):
        frame_bytes.unpack(bytes(whole))


def test_a_paid_call_without_room_for_its_payer_is_broken() -> None:
    whole = bytearray(payload(CallFrame(1, "tools/call", b"{}")))
    whole[1] |= 0x80
    with pytest.raises(FrameBroken, match="no room for its payer"):
        frame_bytes.unpack(bytes(whole))
