"""Limits from the configuration file down to the processes of a server."""

import os
import resource
from contextlib import closing
from pathlib import Path

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
        fronts = [front["pid"] for front in gateway.status()["fronts"]]
        for pid in (gateway.pid, small["pid"], small["worker_pid"], free["pid"], *fronts):
            assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        for pid in (small["pid"], free["pid"]):
            score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
            assert score > int(Path(f"/proc/{gateway.pid}/oom_score_adj").read_text())


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
