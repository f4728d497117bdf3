"""Words of servers that wanted a right, and the advice."""

import pytest

from metamcp_worker.confinement import denials
from metamcp_worker.confinement.denials import (
    DeniedRight,
    Right,
    find_needed_right,
    is_granted,
    with_right,
)
from metamcp_worker.confinement.rules import FileRights
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
        ("Error: EACCES: permission denied, mkdir '/data/new'", 'write = ["/data/new/"]'),
        ("Error: EACCES: permission denied, mkdtemp '/data/new'", 'write = ["/data"]'),
        ("error: failed to create directory `/data/new`: Permission denied", '["/data/new/"]'),
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
        ("Error: EACCES: permission denied, uv_resident_set_memory", 'needs = ["processes"]'),
        ("Error, do this: mount -t proc proc /proc", 'needs = ["processes"]'),
        ("what(): Attempted to dereference unique_ptr that is NULL!", 'needs = ["processes"]'),
        ("PermissionError: [Errno 13] Permission denied: '/proc/self/stat'", '["processes"]'),
        ("cat: /proc/77/status: Permission denied", 'needs = ["processes"]'),
        ("SqliteError: attempt to write a readonly database", 'write = ["."]'),
    ],
)
def test_the_path_and_the_line_to_add_are_named(line: str, advice: str) -> None:
    found = denials.advice(["Starting", line], BASIC, granted=["/conf"])
    assert found.startswith("its sandbox 'basic' does not let it ")
    assert advice in found
    assert found.endswith(" to its table")


def test_a_folder_that_a_traceback_says_was_to_be_made_is_named() -> None:
    raised = "PermissionError: [Errno 13] Permission denied: '/home/ann/.papers'"
    shown = ['  File "/usr/lib/python3.13/pathlib.py", line 1116, in mkdir', "    os.mkdir(self)"]
    assert 'add write = ["/home/ann/.papers/"]' in denials.advice([*shown, raised], BASIC)
    assert 'add read = ["/home/ann/.papers"]' in denials.advice([*shown, "Done", raised], BASIC)


def test_a_database_that_stays_closed_is_named_where_the_server_names_none() -> None:
    closed = "its command line names /home/ann/a.db, and /home/ann stays closed"
    line = "sqlite3.OperationalError: unable to open database file"
    assert denials.advice([line], BASIC, refused=[closed]) == closed
    named = "cat: /data/x: Permission denied"
    assert 'read = ["/data/x"]' in denials.advice([named], BASIC, refused=[closed])


def test_a_port_is_named_where_the_network_is_restricted() -> None:
    line = "Error: connect EACCES 10.1.2.3:8443 - Local (undefined:undefined)"
    some = ConfinementSpec(profile="basic", tcp_ports=(443,))
    assert "network = { tcp_ports = [443, 8443] }" in denials.advice([line], some)
    assert denials.advice([line], BASIC) == ""


@pytest.mark.parametrize(
    ("right", "path", "advice"),
    [
        ("unix_sockets", "/run/x", "connect to the unix socket /run/x: add unix_sockets"),
        ("datagrams", "", "make a unix socket for datagrams: add unix_sockets with the path"),
        ("tcp_ports", "443", "connect to port 443: add network = { tcp_ports = [443] } to its"),
        ("abstract_sockets", "x", 'the abstract unix socket x: only sandbox = "none" allows that'),
        ("network", "IPv6", 'make a socket of IPv6: write network = "host" in its table'),
        ("system_calls", "ptrace", 'make the system call ptrace: only sandbox = "none" allows'),
    ],
)
def test_each_kind_of_right_is_counted_by_name_and_says_what_to_write(
    right: denials.Right, path: str, advice: str
) -> None:
    denied = DeniedRight(right, path)
    assert denials.denied_of(denials.counter_of(denied)) == denied
    assert advice in denials.sentence(denied, BASIC)
    assert denials.denied_of("throttled") is None


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


GRANTED = FileRights(read=("/usr", "/project/a.txt"), write=("/project/src",), names=("/project",))


@pytest.mark.parametrize(
    ("right", "path", "folder", "granted"),
    [
        ("read", "/usr/lib/x", False, True),
        ("read", "/usr2/x", False, False),
        ("read", "/project/src/x", False, True),
        ("read", "/project/b.txt", False, False),
        ("read", "/project", True, True),
        ("write", "/usr/lib/x", False, False),
        ("write", "/project/src", False, True),
        ("write", "/project/src/new/", False, True),
        ("write", "/project/new/", False, False),
    ],
)
def test_a_right_is_granted_by_the_folder_around_it(
    right: Right, path: str, folder: bool, granted: bool
) -> None:
    assert is_granted(DeniedRight(right, path), GRANTED, folder=folder) is granted


def test_what_is_told_once_holds_for_all_below_it() -> None:
    more = with_right(GRANTED, DeniedRight("write", "/data/new/"))
    assert is_granted(DeniedRight("write", "/data/new/deep/"), more)
    assert is_granted(DeniedRight("read", "/data/new/x"), more)
    assert not is_granted(DeniedRight("write", "/data/x"), more)


@pytest.mark.parametrize(
    ("exists", "writes", "folder", "right"),
    [
        (True, False, False, ("read", "/a/b")),
        (True, True, False, ("write", "/a/b")),
        (False, True, False, ("write", "/a")),
        (False, True, True, ("write", "/a/b/")),
        (False, False, False, None),
    ],
)
def test_an_open_needs_the_file_if_it_is_there_and_else_its_folder(
    exists: bool, writes: bool, folder: bool, right: tuple[str, str] | None
) -> None:
    assert find_needed_right("/a/b", exists=exists, writes=writes, folder=folder) == right
