"""Limits from the configuration file down to the processes of a server."""

import os
import resource
from contextlib import closing

import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
MIB = 1024 * 1024


@pytest.mark.promise("M76")
def test_every_server_has_its_own_limits_and_the_gateway_has_none_of_them() -> None:
    limited = {"nofile_max": 64, "memory_max": "256M", "memory_rlimit": True, "cpu_max": "50%"}
    with Gateway({"small": {**fake(), **limited}, "free": fake()}) as gateway:
        small, free = gateway.server("small"), gateway.server("free")
        assert resource.prlimit(small["pid"], resource.RLIMIT_NOFILE) == (64, 64)
        assert resource.prlimit(small["pid"], resource.RLIMIT_DATA) == (256 * MIB, 256 * MIB)
        assert os.getpriority(os.PRIO_PROCESS, small["pid"]) >= 5
        own = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
        for pid in (free["pid"], small["worker_pid"]):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == own
        for pid in (small["pid"], free["pid"]):
            assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


@pytest.mark.promise("M76")
def test_a_call_that_wants_too_much_memory_fails_alone() -> None:
    limited = {"memory_max": "256M", "memory_rlimit": True}
    with (
        Gateway({"small": {**fake(), **limited}, "free": fake()}) as gateway,
        closing(Client(gateway.port)) as client,
    ):
        assert client.call("small__leak", mib=512)["error"]["message"] == "out of memory"
        assert client.text("small__echo", text="still here") == "still here"
        assert client.text("free__leak", mib=64) == "64"
        assert gateway.server("small")["generation"] == 1


@pytest.mark.promise("M76")
def test_a_server_whose_limit_cannot_be_had_does_not_run_and_says_why() -> None:
    most = resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY or most >= 1_048_576 or os.geteuid() == 0:
        pytest.skip("any limit of files can be had here")
    with Gateway({"greedy": {**fake(), "nofile_max": most + 1}}, wait=False) as gateway:
        gateway.ctl("wait", "--timeout", "30s", ok=(1,))
        found = gateway.server("greedy")
        assert found["reason"] == "spawn"
        assert f"nofile_max is {most + 1}" in found["message"]
