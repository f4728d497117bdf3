"""The scripted server over HTTP, whose tool for large results can be seen.

python tests/clients/big_http.py legacy events
"""

import asyncio
import sys
from pathlib import Path

# It is started as a file, in any directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes import http_server


async def main(era: str, answer: str) -> None:
    async with http_server.running(era=era, answer=answer) as (server, url):
        server.tools.append({"name": "big", "inputSchema": {"type": "object"}})
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
