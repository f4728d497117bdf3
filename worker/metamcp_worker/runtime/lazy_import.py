"""Imports of libraries without what they load and rarely use, and without their fork hooks.

Owns: an import during which another module seems to be missing, or packages seem to be empty;
modules that are not read before something of them is used; hooks of the standard library that forks
of the nursery do without, and that a worker registers; what a nursery does without. Never: what
other processes can do without, hooks of other modules.

asyncio loads `ssl`, which takes a MiB, and msgspec loads `typing_extensions`, a quarter of a MiB;
both also work without. Other libraries need modules at import that they hardly ever use, such as
TLS without uvloop, or schemas of types. A module that is loaded stays in each process of the
gateway for good.

After a fork `threading`, `logging` and `concurrent.futures` renew locks that another thread may
have held, and `random` takes a new seed. The nursery has one thread, which holds none of these
locks when it forks, and a worker takes its seed itself. The hooks would only write to memory pages,
which each worker then has for itself: a fifth of a MiB.
"""

import importlib
import os
import sys
from _thread import RLock  # `threading` is not to be loaded before `put_off_hooks`
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # that module loads more than is spared here

HOOKED = ("threading", "logging", "random", "concurrent.futures.thread")
"""Modules with fork hooks. `put_off_hooks` must import them first: a registered hook cannot be
taken back."""
_REGISTER = "register_at_fork"
_hooks: list[dict[str, Callable[[], object]]] = []
_MISSING = cast(ModuleType, None)
"""Entry of `sys.modules` that makes an import fail as if the module did not exist."""


def prepare() -> None:
    """Let what a nursery imports from now on be light for its workers. Call this before all other
    imports."""
    put_off_hooks()
    import_when_used("asyncio.sslproto", "locale", "msgspec.inspect")
    import_without("typing_extensions", "msgspec")


def import_without(module: str, name: str) -> None:
    """Import `name` as if `module` were not installed. Later imports find `module` again. If either
    is loaded already, do nothing."""
    if module in sys.modules or name in sys.modules:
        return
    sys.modules[module] = _MISSING
    try:
        importlib.import_module(name)
    finally:
        del sys.modules[module]


def import_from(packages: Sequence[str], name: str) -> ModuleType:
    """Import `name`, and modules of `packages` for it, as if the packages themselves were empty.
    Later imports of a package run its code. A package that is loaded already stays as it is."""
    from importlib.util import find_spec, module_from_spec  # they may load `threading`

    empty: list[str] = []
    try:
        for package in packages:
            if package not in sys.modules and (spec := find_spec(package)):
                sys.modules[package] = module_from_spec(spec)
                empty.append(package)
        return importlib.import_module(name)
    finally:
        for package in empty:
            sys.modules.pop(package, None)  # two threads may import at the same time


def import_when_used(*names: str) -> None:
    """Make imports of these modules return them unread from now on; the first use of an attribute
    reads the module. Only for modules whose own imports are all loaded by then: so only the
    module's own file can be missing, and two threads cannot wait for each other. A module that is
    loaded already stays as it is."""
    sys.meta_path.insert(0, _Finder({name for name in names if name not in sys.modules}))


class _Finder:
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


class _LazyLoader(Loader):
    """Loader that reads a module once. If reading fails, the next use tries again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()
        self._reads = self._has_read = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module unread at its import; read it if it was read before (a reload)."""
        if type(module) is ModuleType:
            self._loader.exec_module(module)

    def read(self, module: ModuleType) -> None:
        with self._lock:
            if self._reads or self._has_read:
                return  # it asks for something of its own, or another thread has read it
            self._reads = True
            try:
                self._loader.exec_module(module)
                module.__class__ = ModuleType
                self._has_read = True
            finally:
                self._reads = False


class _LazyModule(ModuleType):
    """Module that is not read yet; reading turns it into an ordinary module."""

    def __getattr__(self, name: str) -> object:
        reader = self.__loader__
        if name.startswith("__") or not isinstance(
            reader, _LazyLoader
        ):  # what debuggers ask of all
            raise AttributeError(name)
        reader.read(self)
        return ModuleType.__getattribute__(self, name)


def put_off_hooks() -> None:
    """Import these modules, and keep their fork hooks for `catch_up_hooks`."""

    def keep(**hooks: Callable[[], object]) -> None:
        _hooks.append(hooks)

    register = os.register_at_fork
    setattr(os, _REGISTER, keep)
    try:
        for name in HOOKED:
            importlib.import_module(name)
    finally:
        setattr(os, _REGISTER, register)


def catch_up_hooks() -> int:
    """Register the kept hooks in a worker, which may get threads, and code that forks. Returns the
    number of hooks."""
    for hooks in _hooks:
        os.register_at_fork(**hooks)
    return len(_hooks)
