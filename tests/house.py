"""The project's own files as the tests of the house read them: trees, imports, names.

Owns: which files there are, their syntax trees, read once. Never: what is expected of them.
"""

import ast
import functools
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for room in ("supervisor", "worker")
    for path in (ROOT / room).rglob("*.py")
)  # fmt: skip
TESTS = sorted((ROOT / "tests").rglob("*.py"))
EVERYTHING = sorted(
    path
    for room in ("supervisor", "worker", "tests", "benchmarks", "examples", "deploy")
    for path in (ROOT / room).rglob("*.py")
    if not {"node_modules", ".venv"} & set(path.parts)
)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file. It stays, so the collector need not look at it: it did, for longer than
    the reading takes."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def functions(body: Sequence[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All in there, also those in others. Only statements have some: nothing else is looked at."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner: list[ast.AST] = getattr(node, part, [])
            yield from functions(inner)


def module_name(path: Path) -> str:
    parts = path.with_suffix("").relative_to(ROOT).parts
    return ".".join(part for part in parts[1:] if part != "__init__")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, relative ones resolved, `from x import y` as x.y."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in parsed(path).body if top_level_only else nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def at(path: Path, line: int, message: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {message}"


def none(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)
