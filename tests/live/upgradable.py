"""A gateway whose program is replaced by another build while it runs.

Owns: the folder of packages that the gateway searches first. Never: what an upgrade must keep.
"""

import shutil
from pathlib import Path
from typing import Any

import metamcp_supervisor
import metamcp_worker
from tests.live import processes
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

CALLED = ["old", "new"]
SERVERS = {"old": fake("--era", "legacy"), "new": fake("--era", "modern")}
NEXT = "9.9.9"


ANSWERS = 50


def wait_for_answers(*callers: Callers) -> None:
    """Wait until each of them has got some more right answers."""
    before = [each.tally.right for each in callers]
    until(
        lambda: all(
            each.tally.right > right + ANSWERS for each, right in zip(callers, before, strict=True)
        ),
        "calls are answered",
    )


class Upgradable(Gateway):
    """A gateway whose packages can be replaced while it runs: `packages` is searched first."""

    def __init__(self, servers: Any = SERVERS, **settings: Any) -> None:
        super().__init__(servers, **settings)
        self.packages = self.folder / "packages"
        self.packages.mkdir()
        self.environ["PYTHONPATH"] = str(self.packages)

    def install(self, version: str) -> None:
        """Another version, as far as a package says which one it is."""
        package = self.packages / "metamcp_supervisor"
        package.mkdir()
        rest = str(Path(metamcp_supervisor.__file__).parent)
        text = f"VERSION = {version!r}\n__path__ = [{rest!r}]\n"
        (package / "__init__.py").write_text(text)

    def change(self, module: str, before: str, after: str) -> None:
        """A build whose workers, and all that speak with them, have another line in a module."""
        source, copy = Path(metamcp_worker.__file__).parent, self.packages / "metamcp_worker"
        if not copy.exists():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (source / module).read_text()
        assert text.count(before) == 1
        (copy / module).write_text(text.replace(before, after))

    def upgrade(self) -> str:
        """Until the fronts are of the new version, too."""
        before = self.happened("renewed")
        said = self.ctl("upgrade")
        until(lambda: self.happened("renewed") > before, "the fronts are replaced, too")
        return said

    def happened(self, what: str) -> int:
        return sum(event["what"] == what for event in self.events())

    def pids(self) -> dict[str, tuple[int, int]]:
        """Server and worker of each."""
        return {one["name"]: (one["pid"], one["worker_pid"]) for one in self.status()["servers"]}

    def nurseries(self) -> set[int]:
        return {pid for pid, parent in processes.parents().items() if parent == self.pid}
