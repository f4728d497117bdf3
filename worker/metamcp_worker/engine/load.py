"""Workflows and rules of suggestions from files of YAML 1.2, read in a process of its own.

Owns: which files there are, their text as plain data with lines, what is wrong with them all at
once. Never: the keys of a definition (`definition`), where the configuration names the files.

    python -m metamcp_worker.engine.load w:WORKSPACE:PATH… r:PATH…

prints a `LoadedFiles` as JSON. A PATH of a workflow is a file, a folder with such files, or
`metamcp:NAME` for one that is shipped; `r:metamcp:` are the rules that are shipped.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from metamcp_worker.cel.expressions import is_list, is_map
from metamcp_worker.engine import definition
from metamcp_worker.engine.workflow import hint
from metamcp_worker.ipc.engine_runs import (
    SHIPPED,
    DefinitionProblem,
    LoadedFiles,
    Place,
    SuggestionRule,
    shorten,
)

FILE_BYTES_MAX = 256 * 1024
"""Maximum bytes of a file."""
FILES_MAX = 500
"""Maximum number of files of one configuration."""
NODES_MAX = 50_000
"""Maximum number of values of a file; what an alias stands for counts each time."""
DEPTH_MAX = 64
RULES_MAX = 200
"""Maximum number of rules of one file."""
KEYWORDS_MAX = 50
KEYWORD_CHARACTERS_MAX = 100
SUFFIXES: Final = (".yaml", ".yml", ".json")
RULE_KEYS: Final = ("name", "keywords", "match", "template")
RULES_KEYS: Final = ("rules",)
_SHIPPED_FOLDER = Path(__file__).parent / "shipped"
_TAG = "tag:yaml.org,2002:"


class _Text:
    """Plain data of a text of YAML, with the lines of its keys."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.data: object = None
        self.problems: list[DefinitionProblem] = []
        self._lines: dict[Place, int] = {}
        self._left = NODES_MAX

    def problem(self, pointer: Place, message: str, line: int = 0) -> None:
        self.problems.append(
            DefinitionProblem(pointer, message, self.file, line or self.line(pointer))
        )

    def line(self, pointer: Place) -> int:
        """Return the line of a value, or of the nearest one around it that is known."""
        for length in range(len(pointer), -1, -1):
            if line := self._lines.get(pointer[:length]):
                return line
        return 0

    def read(self, text: str) -> None:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        yaml: Any = YAML(typ="safe", pure=True)
        try:
            node = yaml.compose(text)
        except YAMLError as error:
            yaml_error: Any = error
            mark = getattr(yaml_error, "problem_mark", None) or getattr(
                yaml_error, "context_mark", None
            )
            reason = " ".join(str(getattr(yaml_error, "problem", None) or error).split())[:200]
            self.problem((), f"is not YAML: {reason}", mark.line + 1 if mark else 0)
        except (RecursionError, ValueError, AssertionError):
            self.problem((), f"is not YAML, or has maps and lists more than {DEPTH_MAX} deep")
        else:
            data = None if node is None else self._value(node, (), yaml.constructor)
            self.data = data if self._left >= 0 else None
            if data is None and not self.problems:
                self.problem((), "is empty")

    def _value(self, node: Any, pointer: Place, constructor: Any) -> object:
        self._lines.setdefault(pointer, node.start_mark.line + 1)
        self._left -= 1
        if self._left < 0 or len(pointer) > DEPTH_MAX:
            if self._left >= -1:
                most = f"{NODES_MAX} values, those of aliases among them, {DEPTH_MAX} deep"
                self.problem(pointer[:8], f"is too much: a file has at most {most}")
            self._left = -2
            return None
        if node.id == "sequence":
            return [
                self._value(item, (*pointer, at), constructor) for at, item in enumerate(node.value)
            ]
        if node.id == "mapping":
            return self._map(node, pointer, constructor)
        kind = str(node.tag or "")
        if kind.startswith(_TAG) and kind.removeprefix(_TAG) in {"null", "bool", "int", "float"}:
            try:
                return constructor.construct_object(node)
            except (ValueError, TypeError):
                self.problem(pointer, "is not a number")
                return None
        if kind not in {f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value", f"{_TAG}merge"}:
            self.problem(pointer, f"has the tag {shorten(kind)}; leave it out")
        return node.value

    def _map(self, node: Any, pointer: Place, constructor: Any) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                self.problem(pointer, "has a key that is a map or a list", line)
                continue
            name = str(key.value)
            if key.tag == f"{_TAG}merge":
                self.problem((*pointer, name), "is not possible; write the keys themselves", line)
                continue
            if name in members:
                self.problem((*pointer, name), "is there twice", line)
            self._lines.setdefault((*pointer, name), line)
            members[name] = self._value(child, (*pointer, name), constructor)
        return members


class _Files:
    """Reading of files: what is wrong is noted, and reading goes on."""

    def __init__(self) -> None:
        self.loaded = LoadedFiles()
        self._count = 0
        self._seen: dict[tuple[str, str], str] = {}

    def workflows(self, workspace: str, path: str) -> None:
        """Read a file or the files of a folder."""
        for file in self._files(path):
            document = self._read(file)
            if document is None or document.data is None:
                continue
            name = self._check_workflow(document, document.data, ())
            if name:
                self._add(workspace, name, document)

    def _add(self, workspace: str, name: str, document: _Text) -> None:
        if first := self._seen.get((workspace, name)):
            if first != document.file:
                document.problems.clear()
                document.problem(("name",), f"is '{name}', which is also the name in {first}")
                self.loaded.problems += document.problems
            return
        self._seen[workspace, name] = document.file
        data = Raw(msgspec.json.encode(document.data))
        self.loaded.definitions.setdefault(workspace, {})[name] = data

    def rules(self, path: str) -> None:
        """Read a file of rules."""
        file = _SHIPPED_FOLDER / "rules.yaml" if path == SHIPPED else Path(path)
        document = self._read(file)
        if document is None or document.data is None:
            return
        top = document.data if is_map(document.data) else {}
        rules = top.get("rules")
        if not is_list(rules) or not 0 < len(rules) <= RULES_MAX:
            document.problem((), f"must be a map with 'rules', a list of 1 to {RULES_MAX}")
            rules = []
        self._unknown(document, top, (), RULES_KEYS)
        for at, rule in enumerate(rules):
            if is_map(rule):
                self._rule(document, rule, ("rules", at), file.parent)
            else:
                document.problem(("rules", at), f"must be a map with {', '.join(RULE_KEYS)}")
        self.loaded.problems += document.problems

    def _rule(self, document: _Text, rule: dict[str, object], pointer: Place, folder: Path) -> None:
        self._unknown(document, rule, pointer, RULE_KEYS)
        written = rule.get("keywords")
        words = [word.strip().lower() for word in written if isinstance(word, str)] if is_list(
            written
        ) else []  # fmt: skip
        good = is_list(written) and len(words) == len(written) <= KEYWORDS_MAX
        if (
            not good
            or not words
            or not all(0 < len(word) <= KEYWORD_CHARACTERS_MAX for word in words)
        ):
            document.problem(
                (*pointer, "keywords"), f"must be a list of 1 to {KEYWORDS_MAX} words or phrases"
            )
        match: Literal["any", "all"] = "all" if rule.get("match") == "all" else "any"
        if rule.get("match", "any") != match:
            document.problem((*pointer, "match"), "must be 'any' or 'all'")
        template = rule.get("template")
        if isinstance(template, str):
            inner = self._read(folder / template)
            template = inner.data if inner else None
            name = (
                self._check_workflow(inner, template, ())
                if inner and inner.data is not None
                else ""
            )
        else:
            name = self._check_workflow(document, template, (*pointer, "template"))
        label = rule.get("name", name)
        if not isinstance(label, str) or len(label) > KEYWORD_CHARACTERS_MAX:
            document.problem((*pointer, "name"), "must be a short text")
        elif name and is_map(template):  # if something is wrong, nothing of the files is used
            made = SuggestionRule(label, tuple(words), match, template)
            self.loaded.rules.append(Raw(msgspec.json.encode(made)))

    def _check_workflow(self, document: _Text, data: object, pointer: Place) -> str:
        """Return the name of a workflow; empty if it has problems, which are noted."""
        made, problems = definition.parse(data)
        for problem in problems:
            document.problem((*pointer, *problem.place), problem.message)
        if not pointer:
            self.loaded.problems += document.problems
            return made.name if made is not None and not document.problems else ""
        return made.name if made is not None else ""

    def _unknown(
        self, document: _Text, data: dict[str, object], pointer: Place, keys: Sequence[str]
    ) -> None:
        for key in data:
            if key not in keys:
                document.problem((*pointer, key), f"is not a key here; {hint(key, keys)}")

    def _files(self, path: str) -> Iterator[Path]:
        if path.startswith(SHIPPED):
            names = list_shipped_workflows()
            name = path.removeprefix(SHIPPED)
            if name in names:
                yield _SHIPPED_FOLDER / f"{name}.yaml"
            else:
                self._add_problem(path, f"is not shipped; {hint(name, names)}")
            return
        target = Path(path)
        if not target.is_dir():
            yield target
            return
        self.loaded.files.append(path)
        try:
            inside = sorted(target.iterdir())
        except OSError as error:
            self._add_problem(path, f"cannot be read: {error.strerror}")
            return
        for entry in inside:
            if entry.suffix in SUFFIXES and not entry.name.startswith("."):
                yield entry

    def _read(self, path: Path) -> _Text | None:
        """Read a file; None if that is not possible, which is noted."""
        file = str(path)
        self._count += 1
        if self._count > FILES_MAX:
            if self._count == FILES_MAX + 1:
                self._add_problem(file, f"is one file too many; {FILES_MAX} are possible")
            return None
        if file not in self.loaded.files:
            self.loaded.files.append(file)
        try:
            text = _content(path)
        except OSError as error:
            self._add_problem(file, f"cannot be read: {error.strerror or error}")
            return None
        except ValueError as error:
            self._add_problem(file, str(error))
            return None
        document = _Text(file)
        document.read(text)
        if document.data is None:
            self.loaded.problems += document.problems
        return document

    def _add_problem(self, file: str, message: str) -> None:
        self.loaded.problems.append(DefinitionProblem((), message, file))


def list_shipped_workflows() -> tuple[str, ...]:
    """Return the names of the workflows that are shipped."""
    return tuple(
        sorted(path.stem for path in _SHIPPED_FOLDER.glob("*.yaml") if path.stem != "rules")
    )  # fmt: skip


def load(workflows: Sequence[tuple[str, str]], rules: Sequence[str] = ()) -> LoadedFiles:
    """Read workflows, each a workspace and a path, and files of rules."""
    files = _Files()
    for workspace, path in workflows:
        files.workflows(workspace, path)
    for path in rules:
        files.rules(path)
    files.loaded.problems.sort(key=lambda problem: (problem.file, problem.line))
    return files.loaded


def _content(path: Path) -> str:
    """Return the text of a file. Raises OSError, and ValueError with the end of a sentence."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is not a regular file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"is larger than {FILE_BYTES_MAX} bytes, the limit")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from None


def main(arguments: Sequence[str]) -> None:
    workflows = [
        tuple(argument.split(":", 2)[1:]) for argument in arguments if argument.startswith("w:")
    ]
    rules = [argument.removeprefix("r:") for argument in arguments if argument.startswith("r:")]
    loaded = load([(pair[0], pair[1]) for pair in workflows], rules)
    sys.stdout.buffer.write(msgspec.json.encode(loaded))


if __name__ == "__main__":
    main(sys.argv[1:])
