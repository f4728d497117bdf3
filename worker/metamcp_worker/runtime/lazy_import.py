"""Libraries without what they load only in case somebody uses it.

Owns: an import that finds some module missing, for as long as it takes; modules that are not read
before something of them is used. Never: which process can do without which module.

asyncio loads `ssl`, which is a MiB, and msgspec loads `typing_extensions`, a quarter of one; both
are made to work where there is none. Others insist on what they load and hardly ever use, such as
TLS without uvloop, or schemas of types. What such a library loads in passing stays in each process
of the gateway for good.
"""

import importlib
import sys
from _thread import RLock  # `threading` is not to be loaded before `fork_hooks` has seen it
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # that module loads more than is spared here

_MISSING = cast(ModuleType, None)
"""What says to an import, by the rules of the language, that there is no such module."""


def import_without(module: str, name: str) -> None:
    """Import `name` as if `module` were not installed; from then on it is again. Nothing is
    pretended where one of them is loaded already."""
    if module in sys.modules or name in sys.modules:
        return
    sys.modules[module] = _MISSING
    try:
        importlib.import_module(name)
    finally:
        del sys.modules[module]


def import_when_used(*names: str) -> None:
    """An import of one of these modules gives it unread from now on; it is read in the moment that
    something of it is asked for. Only for modules that import nothing which is not loaded by then:
    so nothing but its own file can be missing, and no two threads wait for each other. One that is
    loaded stays so."""
    sys.meta_path.insert(0, _Finder({name for name in names if name not in sys.modules}))


class _Finder:
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Reader(spec.loader)
        return spec


class _Reader(Loader):
    """Reads a module once. If that fails, the next one who asks for something tries again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()
        self._reads = self._has_read = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unread(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """The import is over, and nothing is read; unless it is one that was read before."""
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


class _Unread(ModuleType):
    """Becomes a module like any other."""

    def __getattr__(self, name: str) -> object:
        reader = self.__loader__
        if name.startswith("__") or not isinstance(reader, _Reader):  # what debuggers ask of all
            raise AttributeError(name)
        reader.read(self)
        return ModuleType.__getattribute__(self, name)
