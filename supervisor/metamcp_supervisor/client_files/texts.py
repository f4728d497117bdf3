"""The file of a client as text: its entries, and the text with or without our entry.

Owns: which editor a format has, and the file as a whole: when nothing is left in it, and when it
gets its earlier text back. Never: positions (`json_edit`, `toml_edit`, `yaml_edit`), files.
"""

from collections.abc import Mapping

from metamcp_supervisor.client_files import edits, json_edit, toml_edit, yaml_edit
from metamcp_supervisor.client_files.clients import FileFormat
from metamcp_supervisor.config.document import BrokenSyntax, list_of, table_of

_NEVER_A_SERVER = {"type", "command", "url", "enabled"}


def entries(kept: FileFormat, text: str) -> Mapping[str, object]:
    """Return the values at the place of servers, by name. Raises BrokenSyntax and Unfit."""
    if kept.format in ("yaml-list", "yaml-mapping"):
        return yaml_edit.items(text, kept.place[0])
    values = toml_edit.values(text) if kept.format == "toml" else json_edit.values(text)
    value = edits.at(values, kept.place)
    listed = [table_of(each) for each in list_of(value) or ()]
    if listed and kept.format == "json":  # each says its name
        return {str(each["name"]): each for each in listed if each and "name" in each}
    table = table_of(value)
    if value is not None and table is None:
        raise edits.FileUnfit(f"has no table in '{'.'.join(kept.place)}'")
    return table or {}


def native(kept: FileFormat, text: str) -> FileFormat:
    """Return where this file keeps its servers: OpenCode 2 has them one table deeper, and reads
    both forms. Raises BrokenSyntax and Unfit."""
    if kept.shape != "opencode":
        return kept
    inner = table_of(entries(kept, text).get("servers"))
    if inner is None or _NEVER_A_SERVER & set(inner):
        return kept
    return FileFormat(kept.shape, kept.format, (*kept.place, "servers"), kept.new)


def put(kept: FileFormat, text: str, name: str, entry: Mapping[str, object]) -> str:
    """Return `text` with `entry` under `name`. Raises BrokenSyntax and Unfit."""
    if kept.format == "json":
        return json_edit.put(text, kept.place, name, entry)
    if kept.format == "toml":
        return toml_edit.put(text, kept.place, name, entry)
    kind: yaml_edit.Kind = "list" if kept.format == "yaml-list" else "mapping"
    return yaml_edit.put(text, kept.place[0], kind, name, entry, kept.new)


def drop(
    kept: FileFormat, text: str, name: str, before: str | None, *, restore: bool = False
) -> str | None:
    """Return the text without the entry; None if the file may be removed. `before`: text before the
    first edit, None if the file did not exist; `restore`: an entry of that name in `before` is not
    ours and may come back. Raises BrokenSyntax and Unfit."""
    if before is not None and _undone(kept, text, name, before, restore=restore):
        return before
    if kept.format == "json":
        made = json_edit.drop(text, kept.place, name, before)
    elif kept.format == "toml":
        made = toml_edit.drop(text, kept.place, name, before)
    else:
        made = yaml_edit.drop(text, kept.place[0], name, before)
    if before is None and made.strip() in ("", "{}", kept.new.strip()):
        return None
    if before is not None and not before.strip() and made.strip() in ("", "{}", kept.new.strip()):
        return before
    return made


def _undone(kept: FileFormat, text: str, name: str, before: str, *, restore: bool) -> bool:
    """Whether our entry is the only difference between `before` and `text`."""
    entry = table_of(entries(kept, text).get(name))
    try:
        if entry is None or (name in entries(kept, before) and not restore):
            return False
        return put(kept, before, name, entry) == text
    except (edits.FileUnfit, BrokenSyntax):
        return False
