"""What large answers of a remote server cost in memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.child.test_streamable_http_sdk import serving

READER = Path(__file__).parent.parent.parent / "fakes" / "far_reader.py"
BODY_BYTES = 16 * 1024 * 1024 - 1024

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with serving() as addresses:
        yield addresses


def growth(url: str, era: str, *, count: int, at_once: int) -> float:
    """Of the peak, in bodies."""
    command = [sys.executable, str(READER), url, era, str(count), str(at_once), str(BODY_BYTES)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=50)
    return int(done.stdout) / BODY_BYTES


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("way", ["json", "stateful"])
def test_a_body_is_held_about_twice_and_many_at_once_wait_for_each_other(
    urls: dict[str, str], way: str, era: str
) -> None:
    assert growth(urls[way], era, count=3, at_once=1) < 4
    assert growth(urls[way], era, count=12, at_once=12) < 9
