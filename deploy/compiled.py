"""Build hook of the compiled wheel: mypyc makes machine code of the modules on the way of a call.

Owns: which modules (`MODULES`), the shared objects that mypyc makes of them, their places in the
wheel. Never: the pure wheel, which has no hook; the choice at run time (`metamcp_worker`).

Everything is built in a folder of its own, because an object that stays in the checkout would get
into the next pure wheel.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = {
    "child": "front_pipes frontless_calls jsonrpc_lines run server_calls server_session stdio",
    "front": "http",
    "front_calls": "call_router calls mcp_request server_links stats",
    "front_clients": "client_sessions dialogue exchange header_policy legacy modern",
    "front_steps": "guarded_calls",
    "http": "connection connection_moves requests",
    "ipc": "codec frame_bytes jsonrpc_bytes pipe process_names",
}
"""Compiled modules of `metamcp_worker`, by package. None of them defines a `msgspec.Struct`: mypyc
drops the annotations that a Struct is made of."""
PACKAGE = "metamcp_worker"
INLINED = "-fno-semantic-interposition"
"""Option of gcc that lets it put small functions into their callers, although others could replace
them by their names. Instructions per call in a worker: 39,700 to 38,500."""
RAW = "class Raw(bytes):"
"""Line of msgspec's stub that is not true: `Raw` does not derive from `bytes`, so machine code that
takes it for `bytes` would fail."""
NOT_BYTES = """class Raw(Buffer):
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ..."""


def sources() -> list[str]:
    """Return the paths of the compiled modules, from the folder that has the package."""
    return [
        f"{PACKAGE}/{package}/{name}.py"
        for package, names in MODULES.items()
        for name in names.split()
    ]


class Compiled(BuildHookInterface[Any]):
    """Hook that is off, unless `HATCH_BUILD_HOOK_ENABLE_CUSTOM` is set."""

    def dependencies(self) -> list[str]:
        return ["mypy", "setuptools"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="metamcp-compiled-"))
        checkout = Path(self.root)
        command = [sys.executable, __file__, str(checkout / "pyproject.toml"), str(self._folder)]
        environ = {**os.environ, "MYPYPATH": str(stubs(self._folder / "stubs"))}
        subprocess.run(command, cwd=checkout / "worker", env=environ, check=True)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        made = self._folder / "lib"
        for path in made.rglob(f"*{suffix}"):
            build_data["force_include"][str(path)] = str(path.relative_to(made))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder)


def stubs(folder: Path) -> Path:
    """Write msgspec's stubs, with the truth about `Raw`, and return their folder."""
    spec = find_spec("msgspec")
    assert spec is not None
    assert spec.origin is not None
    source, target = Path(spec.origin).parent, folder / "msgspec"
    target.mkdir(parents=True)
    for path in source.glob("*.py"):
        stub = path.with_suffix(".pyi")
        text = stub.read_text() if stub.exists() else "def __getattr__(name: str) -> object: ...\n"
        (target / stub.name).write_text(text)
    first = target / "__init__.pyi"
    text = first.read_text()
    assert RAW in text, "msgspec's stub has changed: look whether it is true now"
    first.write_text(text.replace(RAW, NOT_BYTES))
    return folder


def build(config: str, folder: Path) -> None:
    """Compile the modules below the current folder; `lib` in `folder` gets the shared objects."""
    from mypyc.build import mypycify

    # The library has no types.
    from setuptools import Distribution  # type: ignore[import-untyped]

    options = [f"--config-file={config}", f"--cache-dir={folder / 'cache'}", *sources()]
    modules = mypycify(
        options, group_name=PACKAGE, target_dir=str(folder / "c"), opt_level="2", debug_level="0"
    )
    for module in modules:
        module.extra_compile_args.append(INLINED)
    command = Distribution({"name": PACKAGE, "ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))
