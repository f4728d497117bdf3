"""Fuzz every target for a while: `make fuzz SECONDS=60`.

    python -m tests.fuzz --seconds 60 [--seed 7] [TARGET ...]

Inputs are those of the corpus and mutations of them, the same ones for the same seed. An input that
fails is printed; put it into `corpus/TARGET/`, where every run of the tests tries it again.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 4096
TOKENS = (
    b'"method"', b'"id"', b'"params"', b'"name"', b'"uri"', b'"ref"', b'"type"', b'"_meta"',
    b'"arguments"', b'"cmd"', b'"opt"', b"\\ufdd0", b"\\ud83d", b"\\udc00", b"\xef\xb7\x90", b";",
    b'\\u006eame', b'"m\\u0065thod":', b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"\x00", b"\n",
    b"\r\n",     b"[", b"]", b"{", b"}", b",", b":", b"null", b"NaN", b"1e999", b"-0",
    b"18446744073709551616",
    b"host:localhost", b"host: evil", b"origin:null", b"%2f", b"http://a/mcp", b"[servers.a]",
    b"command", b'"tools/call"', b"${X}", b"\xed\xa0\x80", b"\xc0\x80", "é".encode(),
    "e\u0301".encode(),
)  # fmt: skip


class Broken(AssertionError):
    """An input that breaks a promise."""


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def mutated(dice: Random, seeds: list[bytes]) -> bytes:
    """One of them, changed in up to six places."""
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.randrange(1, 7)):
        at, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
        kind = dice.randrange(6)
        if kind == 0:
            data[at:at] = dice.choice(TOKENS)
        elif kind == 1:
            data[at:end] = dice.choice(TOKENS)
        elif kind == 2:
            del data[at : min(end, at + 8)]
        elif kind == 3:
            data[at:at] = data[at:end]
        elif kind == 4 and at < len(data):
            data[at] = dice.randrange(256)
        else:
            other = dice.choice(seeds)
            data[at:end] = other[dice.randrange(len(other) + 1) :]
    return bytes(data[:INPUT_BYTES_MAX])


def inputs(target: str, seed: int) -> Iterator[bytes]:
    """The corpus, and mutations of it without end."""
    seeds, dice = corpus(target), Random(seed)
    yield from seeds
    while True:
        yield mutated(dice, seeds)


def fuzz(target: str, seed: int, more: Callable[[], bool]) -> int:
    """Try inputs as long as `more()` is true; the number of them. Raises Broken."""
    tried, first = 0, len(corpus(target))
    for data in inputs(target, seed):
        if tried >= first and not more():
            break
        try:
            TARGETS[target](data)
        except Exception as error:
            raise Broken(f"{target}: {data!r}") from error
        tried += 1
    return tried


def _before(end_s: float) -> bool:
    return time.monotonic() < end_s


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every target for a while.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("targets", nargs="*", default=[])
    options = parser.parse_args()
    seed = Random().randrange(2**32) if options.seed is None else options.seed
    for target in options.targets or TARGETS:
        tried = fuzz(target, seed, partial(_before, time.monotonic() + options.seconds))
        sys.stdout.write(f"{target}: {tried} inputs, seed {seed}, none breaks a promise\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
