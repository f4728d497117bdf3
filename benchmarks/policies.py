"""What policies cost: `python -m benchmarks.policies`.

One front in this process, without HTTP and without a server that answers: the time from a request
to its frame, of a call that no rule concerns, that some of a hundred rules concern, and that all of
them do. Then the time to make the lists of a thousand tools under a hundred rules. Each figure is
the best of several rounds; compare those of one run.
"""

import time
from collections.abc import Callable, Sequence

from metamcp_worker.ipc.spec import FrontSpec, PolicySpec
from tests.worker.front.called import Front, request, with_front
from tests.worker.front.offers import endpoint, offer

ROUNDS, CALLS, TOOLS, RULES = 9, 2000, 1000, 100
CALL = b'{"name":"git__push","arguments":{"to":"main","force":false}}'
ELSEWHERE = [
    PolicySpec(name=f"r{at}", match=(f"s{at}/*",), when="mcp.tool.arguments.to == 'x'")
    for at in range(RULES)
]
FIVE = [
    PolicySpec(name="a", match=("git/push",), when="mcp.tool.arguments.to == 'prod'"),
    PolicySpec(name="b", match=("git/*",), when="source == 'agent'"),
    PolicySpec(name="c", match=("*/push",), when="mcp.tool.arguments.force", effect="ask"),
    PolicySpec(name="d", match=("git/push",), when="client.name == 'x'"),
    PolicySpec(name="e", match=("*/push",), when="has(mcp.tool.arguments.dry)", effect="log"),
]
ALL = [PolicySpec(name=f"r{at}", when=f"mcp.tool.arguments.to == 'x{at}'") for at in range(RULES)]
NAMES = [PolicySpec(name=f"r{at}", when=f"mcp.tool.name == 'x{at}'") for at in range(RULES)]


def main() -> None:
    async def calls(front: Front) -> None:
        for what, rules in (
            ("no rules", []), ("100 rules, none concerns it", ELSEWHERE),
            ("100 rules, 5 concern it", [*ELSEWHERE[5:], *FIVE]),
            ("100 rules, all concern it", ALL),
        ):  # fmt: skip
            configure(front, rules)
            print(f"{what:32} {call_us(front):7.1f} us a call")

    async def lists(front: Front) -> None:
        for what, rules in (
            ("no rules", []), ("100 rules by server", ELSEWHERE), ("100 rules by tool", NAMES),
        ):  # fmt: skip
            took = best(lambda rules=rules: configure(front, rules), 1)
            print(f"{what:32} {took * 1e3:7.1f} ms for the lists of {TOOLS} tools")

    with_front(calls, git=offer("push"))
    with_front(lists, git=offer(*(f"t{at}" for at in range(TOOLS))))


def configure(front: Front, rules: Sequence[PolicySpec]) -> None:
    spec = FrontSpec(version="1", endpoints=(endpoint("git"),), hosts=(), policies=tuple(rules))
    front.steps.configure(FrontSpec(version="0", endpoints=spec.endpoints, hosts=()))
    front.steps.configure(spec)
    front.calls.refresh()


def call_us(front: Front) -> float:
    def begin() -> None:
        for _ in range(CALLS):
            front.calls.start(front.view, request("tools/call", CALL), None)

    return best(begin, CALLS) * 1e6


def best(work: Callable[[], None], times: int) -> float:
    """The seconds of one of so many in the best round."""
    found: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) / times)
    return min(found)


if __name__ == "__main__":
    main()
