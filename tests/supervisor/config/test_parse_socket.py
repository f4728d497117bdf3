"""`ops_listen` as a unix socket: what it comes to, and what it cannot be."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import UnixAddress
from metamcp_supervisor.config.document import table_of
from metamcp_supervisor.config.show import tables
from metamcp_supervisor.runtime import SOCKET_PATH_BYTES_MAX
from tests.supervisor.configs import loaded, messages

LONGEST = f"/{'x' * (SOCKET_PATH_BYTES_MAX - 1)}"


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("unix:/run/m/ops.sock", "/run/m/ops.sock"),
        ("unix:///run/m/ops.sock", "/run/m/ops.sock"),
        ("unix:ops.sock", "{folder}/ops.sock"),
        ("unix:~/ops.sock", "{folder}/home/ops.sock"),
        ("unix:${RUN}/ops.sock", "/r/ops.sock"),
        (f"unix:{LONGEST}", LONGEST),
    ],
)
def test_metrics_and_health_may_be_on_a_unix_socket(
    tmp_path: Path, written: str, path: str
) -> None:
    text = f'[gateway]\nops_listen = "{written}"\n'
    got = loaded(tmp_path, text, environ={"RUN": "/r"})
    address = UnixAddress(Path(path.format(folder=tmp_path)))
    assert got.gateway.ops_listen == address
    gateway = table_of(tables(got)["gateway"]) or {}
    assert gateway["ops_listen"] == str(address)
    assert gateway["listen"] == "127.0.0.1:6270"


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("listen = 'unix:/x'", "listen: cannot be a unix socket, where no client of MCP connects"),
        ("ops_listen = 'unix:'", 'ops_listen: is empty; name a socket, as in "run/ops.sock"'),
        (
            "ops_listen = '/run/x'",
            "ops_listen: '/run/x' is not an address; write it like \"127.0.0.1:6271\", a",
        ),
        (
            "ops_listen = 'UNIX:/x'",
            "ops_listen: 'UNIX:/x' is not an address; write it like \"127.0.0.1:6271\", a",
        ),
        (
            "ops_listen = 'unix:run/control.sock'\nruntime_dir = 'run'",
            "ops_listen: is where 'metamcp ctl' reaches the gateway; choose another path",
        ),
        ("ops_listen = 'unix:${NO}/x'", "ops_listen: the environment variable NO is not set"),
        (
            f"ops_listen = 'unix:{LONGEST}x'",
            f"ops_listen: is a path of {SOCKET_PATH_BYTES_MAX + 1} bytes, and that of a unix",
        ),
    ],
)
def test_what_cannot_be_one_is_told(tmp_path: Path, setting: str, message: str) -> None:
    (got,) = messages(tmp_path, f"[gateway]\n{setting}")
    assert got.startswith(f"metamcp.toml:2: gateway.{message}")


def test_a_socket_may_be_named_from_outside(tmp_path: Path) -> None:
    got = loaded(tmp_path, "", flags={"ops_listen": "unix:run/ops.sock"})
    assert str(got.gateway.ops_listen) == f"unix:{tmp_path}/run/ops.sock"
    for flags in ({}, {"ops_listen": "[::1]:5"}):
        got = loaded(tmp_path, "", environ={"METAMCP_OPS_LISTEN": "unix:/x"}, flags=flags)
        assert str(got.gateway.ops_listen) == flags.get("ops_listen", "unix:/x")
