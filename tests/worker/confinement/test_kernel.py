"""The tables of system calls, beside the kernel of this machine and the headers of C."""

import ctypes
import errno
import os
import re
import struct
from pathlib import Path

import pytest

from metamcp_worker.confinement import kernel

HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
"""Headers with the numbers of each machine; aarch64 has the general ones."""
DEFINITION = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
OTHER_NAMES = {"fstatat": "newfstatat"}
#: Names in the headers that no kernel with Landlock knows on these machines.
NOWHERE = frozenset({
    "_sysctl", "afs_syscall", "arch_specific_syscall", "create_module", "epoll_ctl_old",
    "epoll_wait_old", "get_kernel_syms", "get_thread_area", "getpmsg", "nfsservctl", "putpmsg",
    "query_module", "security", "set_thread_area", "sync_file_range2", "syscalls", "tuxcall",
    "vserver",
})  # fmt: skip
OF_32_BITS = range(403, 424)
NUMBERS = 512
"""Numbers that kernels give to calls of these machines; x86_64 has others for x32 from here on."""
IN_A_TABLE = "put each into ALLOWED or REFUSED of confinement/kernel.py"
HERE = os.uname().machine


@pytest.mark.parametrize("machine", HEADERS)
def test_every_system_call_of_the_headers_is_in_a_table_with_its_number(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("the headers of the kernel are not installed")
    defined: list[tuple[str, str]] = DEFINITION.findall(header.read_text())
    official = {
        OTHER_NAMES.get(name, name): int(number)
        for name, number in defined
        if name not in NOWHERE and int(number) not in OF_32_BITS
    }
    assert len(official) > 300
    assert not official.keys() - kernel.CALLS.keys(), IN_A_TABLE
    at = kernel.MACHINES.index(machine)
    assert {name: kernel.CALLS[name][at] for name in official} == official


@pytest.mark.skipif(HERE not in kernel.MACHINES, reason="a machine without a table")
def test_this_kernel_has_no_system_call_that_is_in_no_table() -> None:
    call = ctypes.CDLL(None, use_errno=True).syscall

    def is_known(number: int) -> bool:
        call(*[ctypes.c_long(one) for one in (number, *[-1] * 6)])
        return ctypes.get_errno() != errno.ENOSYS

    if is_known(NUMBERS - 1):
        pytest.skip("something gives system calls that no kernel has another error")
    ours = {numbers[kernel.MACHINES.index(HERE)] for numbers in kernel.CALLS.values()}
    new = [number for number in range(NUMBERS) if number not in ours and is_known(number)]
    assert not new, IN_A_TABLE


def test_each_system_call_is_in_one_table_and_each_number_stands_for_one() -> None:
    assert not kernel.ALLOWED.keys() & kernel.REFUSED.keys()
    for at, _ in enumerate(kernel.MACHINES):
        numbers = [each[at] for each in kernel.CALLS.values() if each[at] >= 0]
        assert len(set(numbers)) == len(numbers)


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, ASKED = 0x7FFF0000, 0x7FC00000
REFUSED, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
ALL_BITS = 0xFFFFFFFF


def outcome(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the filter returns for this system call, as the kernel computes it."""
    values = {0: number, 4: ARCHITECTURES[machine]}
    values |= {16 + 8 * at: one & ALL_BITS for at, one in enumerate((*arguments, *[0] * 6))}
    steps = list(struct.iter_unpack("=HBBI", program))
    at = loaded = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            loaded = values[value]
        elif code == 0x54:
            loaded &= value
        elif code == 0x05:
            at += value
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: loaded & value}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_a_filter_allows_what_it_is_given_refuses_the_rest_and_knows_no_other_call(
    machine: str,
) -> None:
    allowed = kernel.ALLOWED.keys() - {"mq_open"}
    program = kernel.filter_bytes(machine, allowed)
    at = kernel.MACHINES.index(machine)
    expected = {
        numbers[at]: ALLOWED if name in allowed else REFUSED
        for name, numbers in kernel.CALLS.items()
        if numbers[at] >= 0
    }
    for number in (*range(NUMBERS), 0x40000000, 0x40000000 | kernel.CALLS["read"][at], ALL_BITS):
        assert outcome(program, machine, number) == expected.get(number, UNKNOWN), number
    other = next(one for one in kernel.MACHINES if one != machine)
    assert outcome(program, other, kernel.CALLS["read"][at]) == REFUSED


@pytest.mark.parametrize("machine", kernel.MACHINES)
@pytest.mark.parametrize("asks", [True, False])
def test_a_filter_judges_arguments_flags_and_connections(machine: str, asks: bool) -> None:
    refused = ASKED if asks else REFUSED  # so that somebody knows of it
    arguments: dict[str, kernel.AllowedArguments] = {
        "socket": {0: (kernel.UNIX, kernel.INET), 2: (0, 6)},
        "setpriority": {0: (0,), 1: (0, 77)},
    }
    program = kernel.filter_bytes(
        machine, kernel.ALLOWED, flags=0x10000000, arguments=arguments, asks=asks, datagrams=False
    )

    def of(name: str, *values: int) -> int:
        return outcome(
            program, machine, kernel.CALLS[name][kernel.MACHINES.index(machine)], *values
        )

    assert of("connect", 3) == (ASKED if asks else ALLOWED)
    assert of("ptrace") == refused
    assert of("clone3") == UNKNOWN
    for name in ("clone", "unshare"):
        assert of(name, 17) == ALLOWED
        assert of(name, 17 | 0x10000000) == refused
    assert of("sendto", 3, 0, 1, 0) == ALLOWED
    assert of("sendto", 3, 0, 1, kernel.FAST_OPEN | 1) == (ASKED if asks else ALLOWED)
    assert of("socket", kernel.INET, 2, 6) == ALLOWED
    assert of("socket", kernel.INET, 2, 262) == refused
    assert of("socket", kernel.INET6, 2, 6) == refused
    assert of("socket", kernel.UNIX, 1 | 0o2000000, 0) == ALLOWED
    assert of("socket", kernel.UNIX, 2 | 0o2000000, 0) == refused
    assert of("socketpair", kernel.UNIX, 2, 0) == refused
    assert of("setpriority", 0, 77, 5) == ALLOWED
    assert of("setpriority", 0, 78, 5) == refused
    assert of("setpriority", 2, 0, 5) == refused
    assert of("read") == ALLOWED


@pytest.mark.parametrize("machine", kernel.MACHINES)
@pytest.mark.parametrize("flags", [0, 0x10000000])
def test_a_filter_asks_about_each_new_process_and_about_no_thread(machine: str, flags: int) -> None:
    program = kernel.filter_bytes(machine, kernel.ALLOWED, flags=flags, forks=True)
    numbers = {name: pair[kernel.MACHINES.index(machine)] for name, pair in kernel.CALLS.items()}
    thread = 0x003D0F00  # as the C library makes one
    assert outcome(program, machine, numbers["clone"], thread) == ALLOWED
    assert outcome(program, machine, numbers["clone"], 17) == ASKED
    assert outcome(program, machine, numbers["clone"], 0x4111) == ASKED  # of posix_spawn
    assert outcome(program, machine, numbers["clone3"]) == UNKNOWN
    refused = REFUSED if flags else ASKED
    assert outcome(program, machine, numbers["clone"], 17 | 0x10000000) == refused
    if machine == "x86_64":
        assert outcome(program, machine, numbers["fork"]) == ASKED
        assert outcome(program, machine, numbers["vfork"]) == ASKED
