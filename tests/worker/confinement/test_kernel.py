"""Numbers of system calls, beside those of the C headers on this machine."""

import re
from pathlib import Path

import pytest

from metamcp_worker.confinement import kernel

HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
"""Headers with the numbers of each machine; aarch64 has the general ones."""
DEFINITION = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)


@pytest.mark.parametrize("machine", HEADERS)
def test_every_system_call_has_the_number_that_the_headers_of_the_kernel_give_it(
    machine: str,
) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("the headers of the kernel are not installed")
    official = {name: int(number) for name, number in DEFINITION.findall(header.read_text())}
    at = kernel.MACHINES.index(machine)
    ours = {name: numbers[at] for name, numbers in kernel.CALLS.items() if name in official}
    assert len(ours) > len(kernel.CALLS) / 2
    assert ours == {name: official[name] for name in ours}
