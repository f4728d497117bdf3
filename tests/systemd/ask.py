"""One call through the gateway, as a program: `ask PORT TOOL ARGUMENTS` prints the text.

It runs in the network of the machine that is tested, beside nothing else of the tests.
"""

import json
import sys

from tests.live.client import MODERN, Client


def main() -> None:
    client = Client(int(sys.argv[1]), MODERN)
    answer = client.call(sys.argv[2], **json.loads(sys.argv[3]))
    client.close()
    if "result" not in answer:
        sys.exit(json.dumps(answer))
    sys.stdout.write(answer["result"]["content"][0]["text"])


if __name__ == "__main__":
    main()
