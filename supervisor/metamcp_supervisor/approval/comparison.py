"""The effect of a new definition of a tool on callers and models that know the old one.

Owns: the comparison of two definitions, member by member, their words, and the verdict. Never:
the comparison of schemas (`containment`).

The comparison answers two questions. *Can callers go on?* The verdict says so: values that were
valid for the old input schema must be valid for the new one, and values that the new output schema
allows must have been allowed by the old one. *Does the definition still say the same to people and
models?* `Comparison.drift` says so: other words, hints or icons break no caller, but a server that
was approved can become a different one by them. The verdict is `unknown` where no answer is sure.

Keywords that do not limit values count as words: descriptions, titles, defaults, examples, unknown
keywords. Every text elsewhere that is more than one plain word also counts, whether it is the name
of a member or a value in a list: a model reads all of it. New words count also in members that are
new, because an attacker who wants to tell a model something would put the words there.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec import Raw, Struct

from metamcp_supervisor.approval.containment import UNJUDGED, find_narrowed
from metamcp_supervisor.approval.lock import canonical, read_definition, select_members
from metamcp_supervisor.approval.schema import (
    COUNTING,
    LISTS,
    MAPS,
    ONES,
    SchemaFinding,
    SchemaFindings,
    SchemaVerdict,
    dialect_of,
    is_list,
    is_table,
    list_of,
    step,
    table_of,
    word,
)
from metamcp_worker.ipc.codec import Malformed

_PLAIN = re.compile(r"[\w.:/@+$#-]{0,64}", re.ASCII)
_NO_SPACES = re.compile(r"[!-~]{0,200}")
"""Texts that count as one plain word in a pattern or reference, which need more characters than
_PLAIN allows."""
_NAMES = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor"})
_SEEN_THROUGH = "\n\r\t"

Words = dict[str, set[str]]
"""Words of a definition by their place, a JSON pointer."""


def compare_words(old: object, new: object, pointer: str, findings: SchemaFindings) -> None:
    """Compare the words of two schemas that are at the same place."""
    before, after = Words(), Words()
    there: set[str] = set()
    _collect(old, pointer, before, set())
    _collect(new, pointer, after, there)
    for at in sorted(after):
        if after[at] - before.get(at, set()):
            change = "is another one" if at in before else "is new"
            add_wording_finding(at, change, after[at] - before.get(at, set()), findings)
    for at in sorted(before):
        if at not in after and at.rpartition("/")[0] in there:
            add_wording_finding(at, "is gone", set(), findings)


def add_wording_finding(at: str, change: str, texts: set[str], findings: SchemaFindings) -> None:
    """Add a finding for words that changed. `change`: the end of a sentence about the text at this
    place."""
    hidden = any(not char.isprintable() and char not in _SEEN_THROUGH for t in texts for char in t)
    name = word(at.rpartition("/")[2])
    more = " It has characters in it that nobody sees." if hidden else ""
    findings.add(SchemaVerdict.COMPATIBLE, at, "wording", f"The text at '{name}' {change}.{more}")


def _collect(schema: object, pointer: str, words: Words, there: set[str]) -> None:
    """Collect the words of a schema by place. `there`: gets the place of every schema."""
    there.add(pointer)
    for key, value in table_of(schema).items():
        at = step(pointer, key)
        if key in MAPS or (key == "dependencies" and is_table(value)):
            for name, each in table_of(value).items():
                _note(step(at, name), name, words, wide=key == "patternProperties")
                _collect(each, step(at, name), words, there)
        elif key in LISTS | ONES and is_list(value):
            for number, each in enumerate(list_of(value)):
                _collect(each, step(at, number), words, there)
        elif key in ONES:
            _collect(value, at, words, there)
        elif key in COUNTING | _NAMES:
            for text in _texts(value):
                _note(at, text, words, wide=key in {"pattern", "$ref"})
        else:
            words.setdefault(at, set()).add(format_value(value))


def format_value(value: object) -> str:
    return value if isinstance(value, str) else canonical(value).decode("utf-8", "replace")


def _note(at: str, text: str, words: Words, *, wide: bool) -> None:
    if not (_NO_SPACES if wide else _PLAIN).fullmatch(text):
        words.setdefault(at, set()).add(text)


def _texts(value: object) -> Iterator[str]:
    """Return all texts in a plain value."""
    if isinstance(value, str):
        yield value
    elif is_list(value):
        for each in value:
            yield from _texts(each)
    elif is_table(value):
        for key, each in value.items():
            yield key
            yield from _texts(each)


__all__ = ("DRIFT", "Comparison", "SchemaFinding", "SchemaVerdict", "compare", "compare_read")

DEFINITION_BYTES_MAX = 256 * 1024
"""Maximum bytes of a definition in canonical JSON; larger definitions that differ are not judged.
Definitions of public servers stay below 40 KiB."""
DRIFT = frozenset({"wording", "hint-lost", "hint-gained", "icons"})
"""Kinds of findings that break no caller, but that people should see."""
_HINTS: Mapping[str, tuple[bool, bool, str]] = {
    "readOnlyHint": (False, True, "only reads"),
    "destructiveHint": (True, False, "destroys nothing"),
    "idempotentHint": (False, True, "may be called twice"),
    "openWorldHint": (True, False, "stays within its own data"),
}
"""Default of each hint, the value that promises more, and the words for that promise."""
_TASKS = ("forbidden", "optional", "required")
_ONE_SIDED = frozenset({"member-added", "member-removed", "member-unnamed"})
"""Kinds of findings that the comparison in one direction has reported already."""


class Comparison(Struct, frozen=True):
    """Result of a comparison. `verdict`: for callers; `findings`: the worst first; `more`: number
    of findings that are not listed."""

    verdict: SchemaVerdict
    findings: tuple[SchemaFinding, ...] = ()
    more: int = 0

    @property
    def drift(self) -> bool:
        """Whether the new definition says something else to people and models."""
        return any(each.kind in DRIFT for each in self.findings)

    @property
    def harmless(self) -> bool:
        """Whether the new definition may replace the old one without a question: its changes are
        for callers only and bring no new words."""
        return self.verdict <= SchemaVerdict.ADDITIVE and not self.drift


def compare(old: bytes | Raw, new: bytes | Raw) -> Comparison:
    """Compare two definitions, in bytes as the server sent them. Never raises."""
    if bytes(old) == bytes(new):
        return Comparison(SchemaVerdict.IDENTICAL)
    try:
        return compare_read(read_definition(old), read_definition(new))
    except Malformed as error:
        return _make_unknown("", "malformed", f"One of the definitions {error}.")


def compare_read(old: Mapping[str, object], new: Mapping[str, object]) -> Comparison:
    """Compare two definitions that `lock.read_definition` has read. Raises lock.Ambiguous."""
    before, after = select_members(old), select_members(new)
    old_json, new_json = canonical(before), canonical(after)
    if old_json == new_json:
        return Comparison(SchemaVerdict.IDENTICAL)
    if max(len(old_json), len(new_json)) > DEFINITION_BYTES_MAX:
        return _make_unknown("", "limit", "The definition is too large to be judged.")
    findings = SchemaFindings(inputs=True)
    try:
        _words(before, after, findings)
        _hints(table_of(before.get("annotations")), table_of(after.get("annotations")), findings)
        _execution(before, after, findings)
        _schemas(before, after, findings)
    except RecursionError:
        findings.add(
            SchemaVerdict.UNKNOWN, "", "limit", "The definition is nested too deeply to be judged."
        )
    if not findings.all:
        text = "It is written in another way and says the same."
        findings.add(SchemaVerdict.COMPATIBLE, "", "spelling", text)
    return Comparison(findings.worst, findings.all, findings.more)


def _make_unknown(pointer: str, kind: str, text: str) -> Comparison:
    return Comparison(
        SchemaVerdict.UNKNOWN, (SchemaFinding(pointer, kind, text, SchemaVerdict.UNKNOWN),)
    )


def _words(old: Mapping[str, object], new: Mapping[str, object], findings: SchemaFindings) -> None:
    if old.get("name") != new.get("name"):
        findings.add(SchemaVerdict.BREAKING, "/name", "name", "It has another name.")
    for key in ("title", "description"):
        _text(old, new, key, "", findings)
    if canonical(old.get("icons")) != canonical(new.get("icons")):
        findings.add(SchemaVerdict.COMPATIBLE, "/icons", "icons", "Its icons are others.")
    for key in ("inputSchema", "outputSchema"):
        compare_words(old.get(key), new.get(key), f"/{key}", findings)


def _text(
    old: Mapping[str, object],
    new: Mapping[str, object],
    key: str,
    pointer: str,
    findings: SchemaFindings,
) -> None:
    before, after = format_value(old.get(key)), format_value(new.get(key))
    if (key in old, before) != (key in new, after):
        change = "is gone" if key not in new else "is another one" if key in old else "is new"
        add_wording_finding(step(pointer, key), change, {after}, findings)


def _hints(old: Mapping[str, object], new: Mapping[str, object], findings: SchemaFindings) -> None:
    for key, (default, better, promise) in _HINTS.items():
        before, after = old.get(key, default), new.get(key, default)
        if before is after:
            continue
        pointer = f"/annotations/{key}"
        if not isinstance(after, bool) or after is not better:
            text = f"It does not say any more that it {promise}."
            findings.add(SchemaVerdict.COMPATIBLE, pointer, "hint-lost", text)
        else:
            text = f"It says now that it {promise}."
            findings.add(SchemaVerdict.COMPATIBLE, pointer, "hint-gained", text)
    for key in sorted((old.keys() | new.keys()) - _HINTS.keys()):
        _text(old, new, key, "/annotations", findings)


def _execution(
    old: Mapping[str, object], new: Mapping[str, object], findings: SchemaFindings
) -> None:
    """Compare whether the tool may, or must, be called as a task."""
    pointer = "/execution/taskSupport"
    before, after = (
        table_of(each.get("execution")).get("taskSupport", _TASKS[0]) for each in (old, new)
    )
    if before == after:
        return
    if after not in _TASKS or before not in _TASKS:
        text = "How it may be called as a task is not known here."
        findings.add(SchemaVerdict.UNKNOWN, pointer, "execution", text)
    elif after == "optional":
        text = "It may be called as a task and in the plain way."
        findings.add(SchemaVerdict.ADDITIVE, pointer, "execution", text)
    else:
        text = f"Calls as tasks are {after} now."
        findings.add(SchemaVerdict.BREAKING, pointer, "execution", text)


def _schemas(
    old: Mapping[str, object], new: Mapping[str, object], findings: SchemaFindings
) -> None:
    before, after = old.get("inputSchema", True), new.get("inputSchema", True)
    _compare_schemas(before, after, "/inputSchema", findings, inputs=True)
    key = "outputSchema"
    if key in old and key in new:
        _compare_schemas(new[key], old[key], f"/{key}", findings, inputs=False)
    elif key in new:
        text = "Results have a described structure now."
        findings.add(SchemaVerdict.ADDITIVE, f"/{key}", "output-added", text)
    elif key in old:
        text = "The structure of results is not described any more."
        findings.add(SchemaVerdict.BREAKING, f"/{key}", "output-removed", text)


def _compare_schemas(
    have: object, want: object, pointer: str, findings: SchemaFindings, *, inputs: bool
) -> None:
    """Add findings for values that are valid for `have` and not for `want`."""
    if canonical(have) == canonical(want):
        return
    if not all(isinstance(schema, dict | bool) for schema in (have, want)):
        findings.add(SchemaVerdict.UNKNOWN, pointer, "malformed", "This is not a JSON Schema.")
        return
    if dialect_of(have) is None or dialect_of(want) is None:
        text = "Schemas of this dialect are not known here."
        findings.add(SchemaVerdict.UNKNOWN, f"{pointer}/$schema", "dialect", text)
        return
    forth = find_narrowed(have, want, pointer, inputs=inputs)
    findings.take(forth)
    if forth.worst <= SchemaVerdict.ADDITIVE:
        back = find_narrowed(want, have, pointer, inputs=not inputs)
        _report_eased(back, findings, inputs=inputs)


def _report_eased(back: SchemaFindings, findings: SchemaFindings, *, inputs: bool) -> None:
    """Report what the comparison in the other direction found: values that are newly allowed, or
    no longer."""
    for each in back.all:
        if each.weight < SchemaVerdict.UNKNOWN or each.kind in _ONE_SIDED:
            continue
        text = each.text
        if each.kind in UNJUDGED:
            text = f"{'More' if inputs else 'Less'} may be valid here than before."
        findings.add(SchemaVerdict.COMPATIBLE, each.pointer, "eased", text)
