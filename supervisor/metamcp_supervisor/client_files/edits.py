"""Parts that the editors of all formats share: the refusal, and the expected result of an edit.

Never: changing text (`json_edit`, `toml_edit`, `yaml_edit`).
"""

from collections.abc import Mapping, Sequence

from metamcp_supervisor.config.document import table_of


class FileUnfit(Exception):
    """A file that is valid but is not edited. The text follows the file's name in a sentence."""


def changed(
    values: Mapping[str, object],
    place: Sequence[str],
    name: str,
    entry: Mapping[str, object] | None,
) -> dict[str, object]:
    """Return a copy of `values` with `entry` under `name` in the table at `place`, or without
    `name` if `entry` is None."""
    found = dict(values)
    if place:
        inner = table_of(found.get(place[0])) or {}
        found[place[0]] = changed(inner, place[1:], name, entry)
    elif entry is None:
        found.pop(name, None)
    else:
        found[name] = dict(entry)
    return found


def at(values: Mapping[str, object], place: Sequence[str]) -> object:
    """Return the value at `place`; None if there is not one."""
    value: object = values
    for key in place:
        value = (table_of(value) or {}).get(key)
    return value
