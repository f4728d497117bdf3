"""How much noise a server may make beside the protocol before it is put away.

Owns: the bound, and the count of one copy against it. Never: counting lines (its worker does),
stopping anything (`crew`).

Theory. A line on stdout that is no message is passed over and logged, and a server that prints one
with each call works all the same. Reading a line costs its worker some microseconds, though, and a
server that writes them in a loop takes a processor away from all others for as long as it lives. A
restart does not change what a program writes, so such a server is not started again by itself.
"""

from dataclasses import dataclass

FLOOD_LINES_MAX = 180_000
"""Lines a minute: three times what its log takes in that time, more than several for each of the
calls that a busy server answers, and less than what is read of one that writes all the time (see
`NOISE_LINES_PER_TICK` of the worker's `connection`)."""
FLOOD_S = 60.0


@dataclass(frozen=True, slots=True)
class Noise:
    """`lines` that were no messages since the time `since` of the monotonic clock."""

    since: float = float("-inf")
    lines: int = 0


def heard(noise: Noise, lines: int, now: float) -> Noise:
    """So many more."""
    if now - noise.since >= FLOOD_S:
        return Noise(now, lines)
    return Noise(noise.since, noise.lines + lines)


def flood(noise: Noise) -> str:
    """Is that too much? A sentence that begins with "it", or nothing."""
    if noise.lines <= FLOOD_LINES_MAX:
        return ""
    return (
        f"it flooded its stdout: {noise.lines} lines within {FLOOD_S:.0f} s were no messages, "
        f"at most {FLOOD_LINES_MAX} may be; what it logs belongs on stderr"
    )
