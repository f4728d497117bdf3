"""Exposed names: the names that an endpoint gives to the tools and prompts of its servers.

Owns: the naming rule, and the table from (server, original name) to exposed name. Never: looking
anything up, and taking a name apart again: the identity of a tool is the pair, always.

The rule has four steps. Spell: letters of other scripts become Latin ones where that needs no
dictionary (Cyrillic, Greek, Japanese syllables, Korean, accents); what clients do not accept then
becomes an underscore, and a name with nothing left becomes a number, `tool-4821`. Join: server and
original with the separator of the style. Shorten: a name that is too long ends in a tail, which is
a hash of the pair. Part: if two pairs have the same name, *all* of them get such a tail, and a
longer tail if names are still equal. A tail depends on its pair alone, so no name depends on the
order in which servers came up.
"""

import base64
import functools
import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.spec import NamingSpec

SEPARATORS = {"namespaced": "__", "flat": "_", "dotted": ".", "bare": ""}
LENGTH_MIN = 16
"""Smallest length that counts; a smaller `length_max` counts as this, because a tail would leave
nothing readable."""
TAIL_CHARS = (6, 10, 16, 26, 52)
"""Characters of the tail in each step of parting; five bits each. 52 are all of SHA-256, and by
then no two pairs in the world share a tail. Under a small `length_max` that many do not fit; then
further steps use a salted hash."""
STEPS_MAX = 64
"""Maximum steps of parting. Even the shortest tails of the last steps, 70 new bits each time, do
not clash that often."""

ALIAS_CHARACTERS_MAX = 128
"""Maximum characters of an alias. Lists do not show aliases, so the limits of clients do not apply;
a longer name is not looked up."""

NUMBERS = 10_000
"""Number of numbers for names with nothing left; those with the same one part by tails."""
LETTERS_KEPT = 4096
"""Number of characters whose Latin spelling is remembered."""

#: Latin spelling of small letters that do not consist of a letter and a mark.
_LATIN = {
    **dict(zip("абвгдезийклмнопрстуфхыэіґ", "abvgdeziyklmnoprstufhyeig", strict=True)),
    "ё": "yo", "ж": "zh", "ц": "ts", "ч": "ch", "ш": "sh", "щ": "shch", "ъ": "", "ь": "",
    "ю": "yu", "я": "ya", "є": "ye", "ї": "yi", "ў": "u", "ђ": "dj", "љ": "lj",
    "њ": "nj", "ћ": "c", "џ": "dz",
    **dict(zip("αβγδεζηικλμνοπρσςτυφ", "avgdeziiklmnoprsstyf", strict=True)),
    "θ": "th", "ξ": "x", "χ": "ch", "ψ": "ps", "ω": "o",
    "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th",
    "\u0458": "j", "\u0131": "i", "ー": "",
}  # fmt: skip
_SYLLABLES = ("HIRAGANA LETTER ", "KATAKANA LETTER ", "HANGUL SYLLABLE ")
"""Beginnings of the names of characters whose end is how they are spoken."""

Pair = tuple[str, str]
_NONE: Mapping[Pair, str] = {}


def is_pattern(tool: str) -> bool:
    """Whether a name in a table of tools stands for all tools that it matches."""
    return "*" in tool or "?" in tool


def is_switched_on(layers: Sequence[Mapping[str, bool]], tool: str) -> bool:
    """Whether a tool is enabled. `layers`: names and patterns with their switches; the last layer
    that is about the tool wins. In a layer the name itself wins, then a pattern that switches off,
    then one that switches on; `*` alone counts last."""
    for layer in reversed(layers):
        if tool in layer:
            return layer[tool]
        matching = [on for name, on in layer.items() if name != "*" and fnmatchcase(tool, name)]
        if matching:
            return all(matching)
        if "*" in layer:
            return layer["*"]
    return True


def switched_off(
    switches: Mapping[str, Sequence[Mapping[str, bool]]], pairs: Iterable[Pair]
) -> frozenset[Pair]:
    """Return the pairs that `switches`, the layers of each server, take out."""
    return frozenset(
        (server, tool)
        for server, tool in pairs
        if server in switches and not is_switched_on(switches[server], tool)
    )


def expose(
    pairs: Sequence[Pair],
    naming: NamingSpec,
    reserved: Collection[str] = (),
    fixed_names: Mapping[Pair, str] = _NONE,
) -> list[str]:
    """Return the exposed name of each (server, original), in the order of `pairs`.

    Different pairs get different names, whatever their order; equal pairs get the same name. No
    pair gets a `reserved` name. `fixed_names`: names that pairs have whatever the rule says, all
    different and none reserved; no other pair gets such a name, even while its pair is missing.
    """
    return resolve_clashes(pairs, alone(pairs, naming), naming, reserved, fixed_names)


def alone(pairs: Sequence[Pair], naming: NamingSpec) -> list[str]:
    """Return the name that each pair has if no other pair has the same name."""
    return [_name(pair, 0, naming) for pair in pairs]


def resolve_clashes(
    pairs: Sequence[Pair],
    plain: Sequence[str],
    naming: NamingSpec,
    reserved: Collection[str] = (),
    fixed_names: Mapping[Pair, str] = _NONE,
) -> list[str]:
    """Return the result of `expose`. `plain`: the result of `alone` for these pairs."""
    if not fixed_names:
        distinct = set(plain)
        if len(distinct) == len(plain) and distinct.isdisjoint(reserved):
            return list(plain)
    names = {pair: name for pair, name in zip(pairs, plain, strict=True) if pair not in fixed_names}
    steps = dict.fromkeys(names, 0)
    if fixed_names:
        reserved = {*reserved, *fixed_names.values()}
    clashing = _find_clashes(names, reserved)
    for _ in range(STEPS_MAX):
        if not clashing:
            return [names[pair] if pair in names else fixed_names[pair] for pair in pairs]
        for pair in clashing:
            steps[pair] += 1
            names[pair] = _name(pair, steps[pair], naming)
        clashing = _find_clashes(names, reserved)
    raise AssertionError(f"{STEPS_MAX} hashes of {len(clashing)} pairs are equal")


def flaw(name: str, naming: NamingSpec) -> str:
    """Why the rule could never give this name, as the end of a sentence; empty if it could."""
    length_max = max(naming.length_max, LENGTH_MIN)
    if reason := _flaw(name, length_max, dots=_has_dots(naming)):
        return reason
    if naming.hyphens == "underscore" and "-" in name:
        return "has a '-' in it, and names here have none (hyphens = \"underscore\")"
    return ""


def alias_flaw(name: str) -> str:
    """Why this name cannot be an alias, as the end of a sentence; empty if it can."""
    return _flaw(name, ALIAS_CHARACTERS_MAX, dots=True)


def _flaw(name: str, length_max: int, *, dots: bool) -> str:
    if not name:
        return "is empty"
    if len(name) > length_max:
        return f"has {len(name)} characters, and here a name has at most {length_max}"
    if (_FOREIGN_BUT_DOTS if dots else _FOREIGN).search(name):
        allowed = "letters, digits, '_', '-' and '.'" if dots else "letters, digits, '_' and '-'"
        return f"may have only {allowed} here"
    return ""


def _find_clashes(names: dict[Pair, str], reserved: Collection[str]) -> list[Pair]:
    distinct = set(names.values())
    if len(distinct) == len(names) and distinct.isdisjoint(reserved):
        return []
    first: dict[str, Pair] = {}
    clashing: dict[Pair, None] = {}
    for pair, name in names.items():
        if name in reserved:
            clashing[pair] = None
        other = first.setdefault(name, pair)
        if other != pair:
            clashing[other] = clashing[pair] = None
    return list(clashing)


def _name(pair: Pair, step: int, naming: NamingSpec) -> str:
    """Return the name of `pair` after `step` steps of parting; 0 is the name of `alone`."""
    joined = _join_name(pair, naming)
    length_max = max(naming.length_max, LENGTH_MIN)
    if step == 0 and len(joined) <= length_max:
        return joined
    step = max(step, 1)
    tail = _tail(pair, max(0, step - len(TAIL_CHARS)))
    # Two places stay for one readable character and the underscore.
    tail = tail[: min(TAIL_CHARS[min(step, len(TAIL_CHARS)) - 1], length_max - 2)]
    return f"{joined[: length_max - len(tail) - 1]}_{tail}"


def _join_name(pair: Pair, naming: NamingSpec) -> str:
    server, _ = pair
    foreign = _FOREIGN_BUT_DOTS if _has_dots(naming) else _FOREIGN
    if naming.style == "bare":
        name = _replace_foreign(pair, foreign)
    else:
        separator = naming.separator or SEPARATORS[naming.style]
        label = foreign.sub("_", process_names.label(server) + separator)
        name = label + _replace_foreign(pair, foreign)
    if naming.hyphens == "underscore":
        name = name.replace("-", "_")
    return name or "_"


def _replace_foreign(pair: Pair, foreign: re.Pattern[str]) -> str:
    """Return the original name in characters that clients accept."""
    original = pair[1]
    latin = original if original.isascii() else "".join(map(_latin, original))
    if foreign.search(latin) is None and latin == original:
        return original
    name = _RUN.sub("_", foreign.sub("_", latin)).strip("_")
    if _READABLE.search(name) is None:
        return f"tool-{int.from_bytes(_digest(pair, 0)) % NUMBERS}"
    return name


@functools.lru_cache(LETTERS_KEPT)
def _latin(character: str) -> str:
    """Return the Latin spelling of a character; an underscore if there is none."""
    if character.isascii():
        return character
    small = character.lower()
    spelling = _LATIN.get(small)
    if spelling is not None:
        return spelling if small == character else spelling.capitalize()
    name = unicodedata.name(character, "")
    for beginning in _SYLLABLES:
        if name.startswith(beginning):
            return name.removeprefix(beginning).rpartition(" ")[2].lower()
    parts = unicodedata.normalize("NFKD", character)
    if parts != character:
        return "".join(map(_latin, parts))
    return "" if unicodedata.combining(character) else "_"


def _has_dots(naming: NamingSpec) -> bool:
    return naming.style == "dotted" or "." in naming.separator


_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_FOREIGN_BUT_DOTS = re.compile(r"[^A-Za-z0-9_.-]")
_RUN = re.compile(r"__+")
_READABLE = re.compile(r"[A-Za-z0-9]")


def _tail(pair: Pair, salt: int) -> str:
    return base64.b32encode(_digest(pair, salt)).decode("ascii").lower().rstrip("=")


def _digest(pair: Pair, salt: int) -> bytes:
    text = "\0".join(pair) + (f"\0{salt}" if salt else "")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
