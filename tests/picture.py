"""Picture of who imports whom, and the index of features, written from the code by `make imports`.

Owns: the arrows between the packages, and their place in a README. Never: which arrows are allowed
(`test_tidy`).

An arrow that follows from two others is left out, so that a reader sees the layers.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import feature_index
from tests.house import ROOT, SOURCES, imports, module_name
from tests.test_tidy import MAY_IMPORT

BEGIN, END = "```mermaid\n", "```\n"


def main() -> None:
    for side in MAY_IMPORT:
        path = readme(side)
        path.write_text(with_picture(path.read_text(), side))
    feature_index.write()


def readme(side: str) -> Path:
    return ROOT / side.removeprefix("metamcp_") / "README.md"


def with_picture(text: str, side: str) -> str:
    """The text of a README with the picture of today in place of the one that it has."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + picture(side) + END + rest.partition(END)[2]


def picture(side: str) -> str:
    found = drawn(arrows(side))
    return "graph TD\n" + "".join(f"    {one} --> {other}\n" for one, other in sorted(found))


def arrows(side: str) -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        top, _, rest = module_name(path).partition(".")
        if top == side and "." in rest:
            package = rest.partition(".")[0]
            found.setdefault(package, set()).update(_imported(path, side) - {package})
    return {name: others & found.keys() for name, others in found.items()}


def _imported(path: Path, side: str) -> set[str]:
    names = (name.split(".") for _, name in imports(path))
    return {parts[1] for parts in names if parts[0] == side and len(parts) > 1}


def drawn(found: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The arrows that no other arrows imply."""
    for name, others in found.items():
        for other in others:
            if not any(other in _reached(found, between) for between in others - {other}):
                yield name, other


def _reached(found: Mapping[str, set[str]], start: str) -> set[str]:
    reached, left = set[str](), [start]
    while left:
        for other in found[left.pop()] - reached:
            reached.add(other)
            left.append(other)
    return reached


if __name__ == "__main__":
    main()
