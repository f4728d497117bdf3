"""What was found between two definitions, and how bad it is.

Owns: the verdicts and their order, a finding, and the list of them with its limit. Never: finding
anything (`containment`, `compat`).
"""

from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

FINDINGS_MAX = 100
"""Of one comparison; more are counted, and their weight counts."""
WORD_CHARACTERS_MAX = 64
"""Of a word of the definition that a sentence repeats."""


class Verdict(IntEnum):
    """From harmless to not. UNKNOWN: it cannot be judged, and whoever wants to be safe takes it for
    BREAKING. ADDITIVE: harmless for callers that send what the old definition names."""

    IDENTICAL = 0
    COMPATIBLE = 1
    ADDITIVE = 2
    UNKNOWN = 3
    BREAKING = 4

    def __str__(self) -> str:
        return self.name.lower()


class Finding(Struct, frozen=True):
    """One difference. `pointer`: a JSON pointer into the definition that is the stricter one there,
    of inputs the new one, of outputs the old one; `kind`: a word for programs; `text`: a sentence;
    `weight`: the verdict if this were the only difference."""

    pointer: str
    kind: str
    text: str
    weight: Verdict


class Blocked(Exception):
    """What was only tried is not so."""


class Findings:
    """`strict`: nothing is taken for granted of callers. `trial`: the first finding that is worse
    than ADDITIVE raises Blocked."""

    def __init__(self, *, inputs: bool, strict: bool = False, trial: bool = False) -> None:
        self.inputs = inputs
        self.strict = strict
        self._trial = trial
        self._items: dict[tuple[str, str, str], Finding] = {}
        self.more = 0
        self.worst = Verdict.IDENTICAL

    @property
    def all(self) -> tuple[Finding, ...]:
        """In the order of their places, the worst first."""
        return tuple(sorted(self._items.values(), key=lambda each: (-each.weight, each.pointer)))

    def trial(self, *, strict: bool = False) -> "Findings":
        """Another list, for something that may turn out not to be so."""
        return Findings(inputs=self.inputs, strict=self.strict or strict, trial=True)

    def add(self, weight: Verdict, pointer: str, kind: str, text: str) -> None:
        """Raises Blocked."""
        self.worst = max(self.worst, weight)
        if self._trial and weight > Verdict.ADDITIVE:
            raise Blocked
        key = pointer, kind, text
        if key in self._items:
            return
        if len(self._items) >= FINDINGS_MAX:
            self.more += 1
        else:
            self._items[key] = Finding(pointer, kind, text, weight)

    def suppose(self, pointer: str, kind: str, text: str) -> None:
        """Harmless as long as callers send only what the old definition names. Raises Blocked."""
        self.add(Verdict.BREAKING if self.strict else Verdict.ADDITIVE, pointer, kind, text)

    def take(self, others: "Findings") -> None:
        """What another list has, too."""
        for each in others.all:
            self.add(each.weight, each.pointer, each.kind, each.text)
        self.more += others.more


def word(text: str) -> str:
    """A word of a definition as a sentence may repeat it."""
    cut = text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "…"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)


def words(texts: Iterable[str], most: int = 5) -> str:
    """`'a', 'b' and 3 more`."""
    every = list(texts)
    shown = ", ".join(f"'{word(each)}'" for each in every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def step(pointer: str, *keys: str | int) -> str:
    """The JSON pointer below this one (RFC 6901)."""
    return pointer + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)
