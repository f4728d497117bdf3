"""The limits of a server as they are written, and what is wrong with them."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.show import tables
from tests.supervisor.configs import loaded, messages

COMMAND = 'command = ["x"]'


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((COMMAND, "memory_max = 512"), 'memory_max: a number has no unit; write it like "512M"'),
        (
            (COMMAND, "memory_max = '1M'"),
            'memory_max: is too small; the smallest size here is "16M',
        ),
        ((COMMAND, "memory_high = 'much'"), "memory_high: is not a size; write it like"),
        ((COMMAND, "memory_max = '1G'", "memory_high = '2G'"), "memory_high: is above memory_max"),
        ((COMMAND, "memory_rlimit = true"), "memory_rlimit: needs 'memory_max', which says"),
        ((COMMAND, "cpu_max = '1.5'"), "cpu_max: must be a number of processors, such as 1.5 or"),
        (
            (COMMAND, "message_max = '1K'"),
            'message_max: is too small; the smallest size here is "64K',
        ),
        (
            (COMMAND, "message_max = '1G'"),
            'message_max: is too large; the largest size here is "256M',
        ),
        ((COMMAND, "processes_max = 0"), "processes_max: must be from 1 to 65536"),
        ((COMMAND, "nofile_max = 3"), "nofile_max: must be from 16 to 1048576"),
        (
            ("url = 'https://x/'", "memory_max = '1G'"),
            "memory_max: means nothing for a server with",
        ),
        (("module = 'a:b'", "cpu_max = 1"), "cpu_max: is only for a server with 'command', which"),
    ],
)
def test_a_wrong_limit_is_told(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    (got,) = messages(tmp_path, "\n".join(["[servers.git]", *settings]))
    assert got.startswith(f"metamcp.toml:{len(settings) + 1}: servers.git.{message}")


def test_limits_are_shown_as_they_are_written_and_left_out_where_there_is_none(
    tmp_path: Path,
) -> None:
    text = f'[servers.git]\n{COMMAND}\nmemory_max = "512M"\ncpu_max = "50%"\nnofile_max = 64\n'
    shown = tables(loaded(tmp_path, text))["servers"]
    assert isinstance(shown, dict)
    assert {key: shown["git"][key] for key in ("memory_max", "memory_rlimit", "cpu_max")} == {
        "memory_max": "512M", "memory_rlimit": False, "cpu_max": 0.5,
    }  # fmt: skip
    assert "memory_high" not in shown["git"]
    assert loaded(tmp_path, '[servers.a]\nmodule = "a:b"\nmemory_max = "1G"\n').servers["a"]


def test_a_server_has_no_limits_unless_they_are_written(tmp_path: Path) -> None:
    git = loaded(tmp_path, f"[servers.git]\n{COMMAND}\n").servers["git"]
    assert (git.memory_max, git.memory_high, git.cpu_max) == (None, None, None)
    assert (git.processes_max, git.nofile_max, git.memory_rlimit) == (None, None, False)
