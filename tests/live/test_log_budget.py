"""What a server that writes without end takes of the log of a real gateway."""

import json
import sys

import pytest

from tests.live.gateway import SERVER, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M89")]

BYTES_MAX = 64 * 1024
LINE = "chatter " * 20
LINES = 900
CHATTY = f"""
import os, sys
for number in range({LINES}):
    print(number, "{LINE}", file=sys.stderr)
print("the last word", file=sys.stderr, flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_chatty_server_is_left_out_of_the_log_and_of_nothing_else() -> None:
    chatty = {"command": [sys.executable, "-c", CHATTY, *SERVER]}
    extra = '[log]\nserver_max = "64K"'
    with Gateway({"chatty": chatty, "quiet": fake()}, extra=extra) as gateway:
        until(lambda: "the last word" in gateway.ctl("logs", "chatty"), "all lines are kept")
        gateway.stop()
        said = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    of_server = [line for line in said if line["room"] == "server" and line["server"] == "chatty"]
    *written, count = of_server
    size = sum(len(json.dumps(line)) for line in written)
    assert BYTES_MAX / 2 < size < 2 * BYTES_MAX
    left_out = LINES + 1 - len(written)
    assert left_out > 0
    assert count["message"].startswith(f"… {left_out} more lines (")
    assert count["level"] == "warning"
    assert any(line.get("what") == "warming→ready" and line["who"] == "quiet" for line in said)
