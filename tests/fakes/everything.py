"""A server with every feature of the protocol, under the names that the conformance suite expects.

    python tests/fakes/everything.py --transport stdio --era both
    python tests/fakes/everything.py --transport http --port 0 --era legacy

Over HTTP, the first line of its output is its address. A tool that needs something of its caller
asks in the way of the era that the call came in: with an InputRequiredResult in 2026-07-28, with
requests of its own before. So a server pinned to one era asks in that era's way in every tool,
also in those that the suite has for the other one. With `--push` the tools of the handshake era
ask by requests only, as those of servers do that were written for it: in 2026-07-28 they fail.
"""

import argparse
import logging
import sys
from pathlib import Path

ERAS = ("both", "legacy", "modern")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("stdio", "http"), default="stdio")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--era", choices=ERAS, default="both", help="the revisions it serves")
    parser.add_argument("--push", action="store_true", help="ask by requests only")
    options = parser.parse_args()
    # What clients do wrong is told to them, not to whoever started this.
    logging.basicConfig(level=logging.ERROR)
    # Started by its path, from anywhere.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fakes.everything_serving import run

    run(options.transport, options.port, options.era, push=options.push)


if __name__ == "__main__":
    main()
