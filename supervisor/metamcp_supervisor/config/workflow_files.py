"""Settings `workflows` and `[suggestions]`: which files they name, and what was found in those.

Owns: the paths, what is reported about a file that is wrong. Never: reading the files, which
`metamcp_worker.engine.load` does in a process of its own (`sources`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from metamcp_supervisor.config.config import Problem, WorkflowFiles
from metamcp_supervisor.config.document import (
    ConfigDraft,
    ConfigFindings,
    NamedPath,
    Table,
    printable,
)
from metamcp_supervisor.config.program import directory
from metamcp_worker.ipc.engine_runs import SHIPPED, LoadedFiles
from metamcp_worker.ipc.process_names import DEFAULT

PATHS_MAX = 64
"""Maximum number of paths of one setting."""


def paths(table: Table, key: str, home: Path) -> tuple[NamedPath, ...]:
    """Return the files and folders that a key names."""
    named_paths: list[NamedPath] = []
    names = table.texts(key) or ()
    if len(names) > PATHS_MAX:
        table.error(key, f"has more than {PATHS_MAX} paths; name a folder")
        return ()
    base = table.site.document.base
    for at, name in enumerate(names):
        site = table.site.at(key, at)
        if not name or "\0" in name:
            table.findings.error(site, "is not a path; name a file or a folder")
        elif name.startswith(SHIPPED):
            named_paths.append(NamedPath(name, name, site))
        else:
            path = directory(name, base=base, home=home)
            named_paths.append(NamedPath(name, str(path), site))
    return tuple(named_paths)


def rules(table: Table | None, home: Path) -> tuple[tuple[NamedPath, ...] | None, bool]:
    """Return the files of rules in the table `[suggestions]`, None without it, and whether to use
    the rules that are shipped."""
    if table is None:
        return None, False
    table.refuse_unknown()
    return paths(table, "rules", home), table.flag("shipped", default=True)


def by_workspace(drafts: Sequence[ConfigDraft]) -> dict[str, list[NamedPath]]:
    """Return the paths of workflows by workspace; workspaces without one are left out."""
    named_paths: dict[str, list[NamedPath]] = {}
    for draft in drafts:
        for name, named in (
            (DEFAULT, draft.workflows),
            *((workspace.name, workspace.workflows) for workspace in draft.workspaces),
        ):
            if named:
                named_paths.setdefault(name, []).extend(named)
    return named_paths


def all_rules(drafts: Sequence[ConfigDraft]) -> list[str] | None:
    """Return the paths of rules of all files; None without a table `[suggestions]`."""
    tables = [draft for draft in drafts if draft.rules is not None]
    if not tables:
        return None
    own = [rule.path for draft in tables for rule in draft.rules or ()]
    return own + ([SHIPPED] if all(draft.shipped_rules for draft in tables) else [])


def arguments(
    workflows: Mapping[str, Sequence[NamedPath]], rules: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the arguments of the process that reads the files."""
    named = ((name, named_path.path) for name, each in workflows.items() for named_path in each)
    return (*(f"w:{name}:{path}" for name, path in named), *(f"r:{rule}" for rule in rules or ()))


def report(
    loaded: LoadedFiles | str, drafts: Sequence[ConfigDraft], findings: ConfigFindings
) -> None:
    """Report what is wrong with the files. `loaded`: a sentence, if they could not be read."""
    if isinstance(loaded, str):
        findings.error(drafts[0].site.at("workflows"), loaded)
        return
    for problem in loaded.problems:
        file = printable(problem.file)
        findings.problem(
            Problem(file, problem.path, printable(problem.message), problem.line or None)
        )


def files(
    workflows: Mapping[str, Sequence[NamedPath]],
    drafts: Sequence[ConfigDraft],
    loaded: LoadedFiles | str,
) -> WorkflowFiles:
    """Return the content of the files."""
    content = LoadedFiles() if isinstance(loaded, str) else loaded
    return WorkflowFiles(
        paths={
            name: tuple(named_path.written for named_path in each)
            for name, each in workflows.items()
        },
        rule_paths=tuple(rule.written for draft in drafts for rule in draft.rules or ()),
        rules_shipped=SHIPPED in (all_rules(drafts) or ()),
        definitions={
            workspace: {name: bytes(data) for name, data in each.items()}
            for workspace, each in content.definitions.items()
        },
        rules=tuple(map(bytes, content.rules)),
        files=tuple(map(Path, content.files)),
    )
