"""What an operator sees of tools in quarantine: status, doctor, and the table of tools."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.doctor import doctor_checks
from metamcp_supervisor.wording import columns
from tests.supervisor.configs import config
from tests.supervisor.locked import approved, lock, tool
from tests.supervisor.small_gateway import SmallGateway, server


@pytest.mark.parametrize(
    ("state", "drift", "said"),
    [
        ("ready", {"quarantined": 1}, "1 tool in quarantine"),
        ("idle", {"quarantined": 2, "harmless": 1}, "2 tools in quarantine"),
        ("idle", {"drifted": 2}, "starts on first call"),
        ("ready", {"harmless": 2}, ""),
    ],
)
def test_the_table_of_servers_says_how_many_tools_are_kept_back(
    state: str, drift: dict[str, int], said: str
) -> None:
    shown = SmallGateway(server("git", state=state, drift=drift)).status()
    (row,) = columns.status_rows(shown)
    assert row[-1] == said


def test_doctor_reads_the_lock_and_tells_what_is_in_quarantine(tmp_path: Path) -> None:
    found = replace(config(), files=(tmp_path / "metamcp.toml",))
    assert list(doctor_checks.lock(found)) == []
    path = tmp_path / lock_io.FILE
    lock_io.save(path, lock(git=approved(tool("a"))))
    (fine,) = doctor_checks.lock(found)
    assert (fine.verdict, fine.text) == ("ok", f"{path} holds the tools of 1 server")
    path.write_text("{")
    (broken,) = doctor_checks.lock(found)
    assert (broken.check, broken.verdict) == ("lock", "fail")
    kept, fine_one = server("git", drift={"quarantined": 2}), server("notes", drift={"harmless": 1})
    (told,) = doctor_checks.quarantine([kept, fine_one])
    assert (told.verdict, told.text) == ("warn", "2 tools of git in quarantine")
    assert told.advice == "'metamcp tools git --diff' shows why"
