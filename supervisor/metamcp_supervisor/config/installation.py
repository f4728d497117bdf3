"""The parts of an installation that some settings need: optional libraries, custom transports, and
the names of loggers that can have a level.

Never: importing an optional library, loading a transport (the worker does).
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from metamcp_worker.ipc.log_records import ROOMS


@dataclass(frozen=True, slots=True)
class Extra:
    """`name`: as one installs it; `what`: cannot be done without; `modules`: of it, as one would
    import them."""

    name: str
    what: str
    modules: tuple[str, ...]


TRACES = Extra(
    "otel",
    "spans cannot be exported",
    (
        "opentelemetry.sdk.trace",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "requests",
    ),
)
MEANING = Extra(
    "semantic",
    "a model on this machine cannot be run",
    ("numpy", "safetensors.numpy", "tokenizers"),
)


def lacking(extra: Extra) -> str:
    """What to do, because it is not installed; nothing if it is."""
    if all(map(_is_there, extra.modules)):
        return ""
    return (
        f"{extra.what} without packages that are not installed; run"
        f" 'pip install \"metamcp[{extra.name}]\"', or leave this out"
    )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


GROUP = "metamcp.transports"


def installed() -> frozenset[str]:
    from importlib import metadata  # a MiB and a half, which hardly any gateway needs

    return frozenset(entry.name for entry in metadata.entry_points(group=GROUP))


_OF_PYTHON = frozenset({"asyncio", "concurrent"})
"""What of the standard library speaks in the gateway."""
_OURS = ("metamcp", "metamcp_supervisor", "metamcp_worker")


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Those that nobody has, each with what is wrong."""
    rooms = ", ".join(sorted(ROOMS))
    what = f"is neither a room of the gateway nor an installed library; the rooms are: {rooms}"
    return {name: what for name in names if name not in ROOMS and not _is_library(name)}


def _is_library(name: str) -> bool:
    """The logger of one has the name of its package, or begins with it and a dot."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _OF_PYTHON
    if package in _OURS or package.startswith("_") or not package.isidentifier():
        return False
    try:
        return find_spec(package) is not None
    except ValueError:  # it is there already, and has no file
        return True
