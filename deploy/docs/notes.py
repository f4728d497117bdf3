"""Members of an enum with the notes that stand below them in the source.

Owns: reading these notes, so that a code and its meaning stand in one place. Never: the form of a
page (`man_pages`, `reference`).
"""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise


@dataclass(frozen=True)
class Note:
    """Member of an enum, and what its source says of it."""

    name: str
    value: int
    text: str


def of(codes: type[IntEnum]) -> tuple[Note, ...]:
    """Return all members of `codes`. Raises LookupError for a member without a note."""
    (top,) = ast.parse(textwrap.dedent(inspect.getsource(codes))).body
    assert isinstance(top, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in pairwise(top.body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
            case _:
                pass
    if missing := [each.name for each in codes if each.name not in texts]:
        raise LookupError(f"{codes.__name__}: no note below {', '.join(missing)}")
    return tuple(Note(each.name, each.value, texts[each.name]) for each in codes)
