"""The parts of an installation that some settings need: optional libraries, custom transports, and
the names of loggers that can have a level.

Never: importing an optional library, loading a transport (the worker does).
"""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from msgspec import Struct

from metamcp_worker.ipc.records import ROOMS


class Extra(Struct, frozen=True):
    """Optional part of the installation. `name`: the extra of the package; `what`: words for what
    cannot be done without it; `modules`: names of its modules to import."""

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
MACHINES = Extra("postgres", "runs cannot be kept in PostgreSQL", ("dbos", "psycopg"))
STORE = Extra("postgres", "the state cannot be kept in PostgreSQL", ("psycopg",))
KEYRING = Extra("keyring", "a secret cannot be read from a keyring", ("keyring",))


CODE = Extra("code", "code cannot be run", ("deno",))


def deno() -> str:
    """Return the path of the program that runs code: that of the package `deno`, else that on PATH;
    empty if there is none."""
    try:
        path: str = import_module(CODE.modules[0]).find_deno_bin()
    except (ImportError, OSError):
        import shutil  # half a MiB, which hardly any gateway needs

        return shutil.which("deno") or ""
    return path


def describe_missing(extra: Extra) -> str:
    """Return a sentence on how to install a missing extra; empty if it is installed."""
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


TRANSPORTS = "metamcp.transports"


def list_entry_points(group: str) -> frozenset[str]:
    """Return the names of the entry points in this group."""
    from importlib import metadata  # a MiB and a half, which hardly any gateway needs

    return frozenset(entry.name for entry in metadata.entry_points(group=group))


_OF_PYTHON = frozenset({"asyncio", "concurrent"})
"""Packages of the standard library that write to the gateway's log."""
_OURS = ("metamcp", "metamcp_supervisor", "metamcp_worker")


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Return the names that no room and no installed library has, each with an error text."""
    rooms = ", ".join(sorted(ROOMS))
    message = f"is neither a room of the gateway nor an installed library; the rooms are: {rooms}"
    return {name: message for name in names if name not in ROOMS and not _is_library(name)}


def _is_library(name: str) -> bool:
    """Whether a logger of this name belongs to an installed library: its name is that of the
    package, or begins with the package and a dot."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _OF_PYTHON
    if package in _OURS or package.startswith("_") or not package.isidentifier():
        return False
    try:
        return find_spec(package) is not None
    except ValueError:  # it is there already, and has no file
        return True
