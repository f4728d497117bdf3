"""Lines that give a server the rights which it lacked in a trial."""

import pytest

from metamcp_supervisor.cli.sandbox_rights import proposal
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.ipc.spec import ConfinementSpec

HOME = "/home/ann"


@pytest.mark.parametrize(
    ("learnt", "lines"),
    [
        ([], []),
        ([("read", "/data/a"), ("read", "/data/b")], ['read = ["/data/a","/data/b"]']),
        ([("read", f"/data/{one}") for one in range(5)], ['read = ["/data"]']),
        ([("read", f"/data/{a}/{b}") for a in range(5) for b in range(5)], ['read = ["/data"]']),
        ([("read", "/data/a"), ("write", "/data")], ['write = ["/data"]']),
        ([("write", "/data/new/"), ("write", "/data/new/deep")], ['write = ["/data/new/"]']),
        ([("unix_sockets", "/run/x")], ['unix_sockets = ["/run/x"]']),
        ([("tcp_ports", "80"), ("tcp_ports", "22")], ["network = { tcp_ports = [22, 80, 443] }"]),
        ([("network", "IPv4"), ("network", "IPv6")], ['network = "host"']),
        ([("read", "/proc/1/stat")], ['needs = ["processes"]']),
        (
            [("read", f"{HOME}/.ssh/config")],
            [
                f'read = ["{HOME}/.ssh/config"]',
                f"# of programs that keep secrets there: {HOME}/.ssh/config",
            ],
        ),
        (
            [("write", HOME)],
            [f"# it makes or removes something in {HOME}, which no line should open"],
        ),
        (
            [("datagrams", ""), ("system_calls", "ptrace")],
            [
                "# it makes unix sockets for datagrams: unix_sockets = [PATH] with their path",
                '# it makes the system call ptrace, which only sandbox = "none" allows',
            ],
        ),
    ],
)
def test_each_right_has_the_shortest_line_that_gives_it(
    learnt: list[tuple[str, str]], lines: list[str]
) -> None:
    rights = [DeniedRight(right, path) for right, path in learnt]  # type: ignore[arg-type] # kinds by name
    spec = ConfinementSpec(profile="basic", tcp_ports=(443,))
    assert proposal(rights, spec, HOME) == lines


def test_no_number_of_files_makes_the_home_or_a_wide_folder_a_line() -> None:
    home = [DeniedRight("read", f"{HOME}/{one}") for one in range(9)]
    wide = [DeniedRight("write", f"/tmp/{one}") for one in range(9)]
    found = proposal([*home, *wide], ConfinementSpec(profile="basic"), HOME)
    assert [line.count(",") for line in found] == [8, 8]
