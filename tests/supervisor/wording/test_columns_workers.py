"""The column with the worker that servers share."""

import pytest

from metamcp_supervisor.wording import columns
from tests.supervisor.small_gateway import SmallGateway, server


@pytest.mark.promise("M124")
def test_the_table_of_servers_has_a_column_for_workers_if_some_are_shared() -> None:
    alone = SmallGateway(server("git"), server("web")).status()
    shared = SmallGateway(server("git", worker="default:shared"), server("web")).status()
    assert columns.status_head_row(alone) == columns.STATUS
    head = columns.status_head_row(shared)
    assert head[3:5] == ("PID", columns.WORKER)
    assert [row[4] for row in columns.status_rows(shared)] == ["default:shared", "-"]
    assert {len(row) for row in columns.status_rows(shared)} == {len(head)}
