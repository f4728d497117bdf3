"""The scripted server with tools that say when they are under way, and then take their time.

python tests/clients/slow_server.py --era legacy
"""

import sys
from pathlib import Path

# It is started as a file, in any directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.stdio_server import Server, flags
from tests.fakes.stdio_wire import Json


class Slow(Server):
    def tool_wait(self, _: object) -> None:
        """No answer, ever; progress, so that the caller knows that it has begun."""
        self.notify("notifications/progress", progressToken=self.token, progress=1)

    def tool_told_blob(self, _: object, kib: int = 1) -> Json:
        """So much text, after progress: a caller over HTTP is answered with a stream."""
        self.notify("notifications/progress", progressToken=self.token, progress=1)
        return self.tool_blob(_, kib)


if __name__ == "__main__":
    Slow(flags()).run()
