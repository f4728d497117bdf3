"""Words of servers that wanted a right, and the advice."""

import pytest

from metamcp_worker.confinement import denials
from metamcp_worker.ipc.spec import ConfinementSpec

BASIC = ConfinementSpec(profile="basic")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "PermissionError: [Errno 13] Permission denied: '/data/x.json'",
            'read = ["/data/x.json"]',
        ),
        ("Error: EACCES: permission denied, open '/data/x.json'", 'read = ["/data/x.json"]'),
        ("Error: EACCES: permission denied, mkdir '/data/new'", 'write = ["/data"]'),
        ("Error: EPERM: operation not permitted, unlink '/data/new'", 'write = ["/data"]'),
        ("open /data/x: permission denied", 'read = ["/data/x"]'),
        ("sh: 1: cannot create /data/x: Permission denied", 'write = ["/data"]'),
        ("cat: /data/x: Permission denied", 'read = ["/data/x"]'),
        ("error: failed to open file `/data/x`: Permission denied (os error 13)", '["/data/x"]'),
        (
            "PermissionError: [Errno 13] Permission denied: '/conf/a/notes.db'",
            'write = ["/conf/a"]',
        ),
        ("sqlite3.OperationalError: unable to open database file", 'write = ["."]'),
        ("SqliteError: attempt to write a readonly database", 'write = ["."]'),
    ],
)
def test_the_path_and_the_line_to_add_are_named(line: str, advice: str) -> None:
    found = denials.advice(["Starting", line], BASIC, granted=["/conf"])
    assert found.startswith("its sandbox 'basic' does not let it ")
    assert advice in found
    assert found.endswith(" to its table")


def test_a_port_is_named_where_the_network_is_restricted() -> None:
    line = "Error: connect EACCES 10.1.2.3:8443 - Local (undefined:undefined)"
    some = ConfinementSpec(profile="basic", tcp_ports=(443,))
    assert "network = { tcp_ports = [443, 8443] }" in denials.advice([line], some)
    assert denials.advice([line], BASIC) == ""


def test_bubblewrap_without_namespaces_is_explained() -> None:
    line = "bwrap: No permissions to create a new namespace, likely because the kernel forbids it"
    strict = ConfinementSpec(profile="strict")
    assert denials.advice([line], strict).startswith("this machine does not let bubblewrap make")


@pytest.mark.parametrize(
    "line",
    ["ready", "KeyError: 'TOKEN'", "Error: ENOENT: no such file, open '/x'", "Permission denied"],
)
def test_other_words_get_no_advice(line: str) -> None:
    assert denials.advice([line], BASIC) == ""


def test_a_server_that_is_not_confined_gets_no_advice() -> None:
    assert denials.advice(["cat: /x: Permission denied"], ConfinementSpec()) == ""
