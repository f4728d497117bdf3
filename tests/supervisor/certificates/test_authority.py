"""The local authority: when its certificates are made anew, and for whom."""

import datetime as dt
from pathlib import Path

import pytest

from metamcp_supervisor.certificates import authority
from tests.worker.http.test_fetch_tls import certificate

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.promise("M6")
@pytest.mark.parametrize(("days", "due"), [(0, False), (59, False), (60, True), (91, True)])
def test_a_certificate_is_made_anew_two_thirds_into_its_life(days: int, due: bool) -> None:
    assert authority.due(START, START + authority.CERT_DAYS * DAY, START + days * DAY) is due


@pytest.mark.parametrize("lost", [authority.CERT, authority.KEY])
def test_a_certificate_in_place_of_a_lost_file_is_for_the_same_names(
    tmp_path: Path, lost: str
) -> None:
    authority.make(tmp_path, ["box.lan", "192.0.2.7"])
    before = authority.read_certificate(tmp_path)
    assert not authority.ensure(tmp_path)
    (tmp_path / lost).unlink()
    assert authority.ensure(tmp_path)
    assert authority.read_certificate(tmp_path).names == before.names
    assert authority.read_certificate(tmp_path).ca_sha256 == before.ca_sha256


def test_files_that_cannot_be_used_are_said_with_what_to_do(tmp_path: Path) -> None:
    authority.make(tmp_path, [])
    (tmp_path / authority.CERT).write_text("nothing")
    advice = "is not a certificate in PEM; restore it, or 'metamcp tls init' makes a new authority"
    with pytest.raises(authority.AuthorityUnfit, match=advice):
        authority.ensure(tmp_path)
    authority.make(tmp_path, [])
    (tmp_path / authority.CA_KEY).chmod(0o644)
    with pytest.raises(
        authority.AuthorityUnfit, match=r"other users can read .*ca\.key \(mode 0644"
    ):
        authority.ensure(tmp_path)
    (tmp_path / authority.CA_KEY).chmod(0o600)
    (tmp_path / authority.CA).write_text("")
    with pytest.raises(authority.AuthorityUnfit, match=advice):
        authority.ensure(tmp_path)


def test_the_end_of_a_file_is_that_of_the_certificate_that_ends_first(tmp_path: Path) -> None:
    longer, shorter = certificate(tmp_path, days=20), certificate(tmp_path, days=10)
    both = tmp_path / "both.pem"
    both.write_bytes(longer.read_bytes() + shorter.read_bytes())
    in_ten_days = (dt.datetime.now(dt.UTC) + 10 * DAY).timestamp()
    assert authority.read_end(both) == pytest.approx(in_ten_days, abs=60)
    both.write_text("nothing")
    assert authority.read_end(both) is None
    assert authority.read_end(tmp_path / "away.pem") is None
