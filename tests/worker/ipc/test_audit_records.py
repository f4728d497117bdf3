"""Chain of the audit: whatever is changed in it is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc.audit_records import START, AuditRecord, ChainRow

pytestmark = pytest.mark.promise("M90")

bodies = st.lists(st.binary(max_size=80), min_size=1, max_size=12)


@given(bodies)
def test_a_chain_holds_as_it_was_made(made: list[bytes]) -> None:
    rows = list(audit.iter_chain_rows(START, 0, made))
    assert [row.seq for row in rows] == list(range(1, len(made) + 1))
    assert audit.check(START, 0, rows) is None


@given(bodies, st.data())
def test_a_flipped_bit_anywhere_is_found_at_its_record(
    made: list[bytes], data: st.DataObject
) -> None:
    rows = list(audit.iter_chain_rows(START, 0, made))
    at = data.draw(st.integers(0, len(rows) - 1))
    row = rows[at]
    whole = bytearray(row.seq.to_bytes(8) + row.body + row.hash)
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[place // 8] ^= 1 << place % 8
    size = len(row.body)
    seq = int.from_bytes(whole[:8])
    rows[at] = ChainRow(seq, bytes(whole[8 : 8 + size]), bytes(whole[8 + size :]))
    broken = audit.check(START, 0, rows)
    assert broken is not None
    assert broken.seq == at + 1


@given(bodies, st.data())
def test_a_record_that_was_taken_out_or_moved_is_found(
    made: list[bytes], data: st.DataObject
) -> None:
    rows = list(audit.iter_chain_rows(START, 0, [*made, b"last"]))
    at = data.draw(st.integers(0, len(rows) - 2))
    without = rows[:at] + rows[at + 1 :]
    assert audit.check(START, 0, without) is not None
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    assert audit.check(START, 0, rows) is not None


def test_a_record_is_one_line_and_empty_members_are_left_out() -> None:
    body = audit.encoded(AuditRecord(ts=5, n=1, origin="a", event="call", exposed="x\ny"))
    assert b"\n" not in body
    assert body == b'{"ts":5,"n":1,"origin":"a","event":"call","exposed":"x\\ny"}'
    assert audit.read(body).exposed == "x\ny"


def test_a_pseudonym_depends_on_the_salt_and_does_not_show_its_text() -> None:
    assert audit.pseudonym(b"a", "me") == audit.pseudonym(b"a", b"me")
    assert audit.pseudonym(b"a", "me") != audit.pseudonym(b"b", "me")
    assert len(audit.pseudonym(b"a", "me" * 99)) == 16
