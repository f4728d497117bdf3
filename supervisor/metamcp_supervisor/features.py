"""The features beside the core of the supervisor, each in a folder of its own.

Owns: their list, and what a feature can add to the gateway. Never: what a feature does.

The package of each folder has the value FEATURE. References have the form `module:name`; a process
imports only those that it uses.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from msgspec import Struct

#: Folders beside this file; their services begin in this order, and end in it.
FEATURES = (
    "results", "consent", "console", "workflows", "embeddings", "code_mode", "audit", "middleware",
)  # fmt: skip


class Feature(Struct, frozen=True, kw_only=True):
    """Contents of a feature. `commands`: verb of `metamcp` -> reference to its command, and its
    sentence in the help; `tables`: references to its tables of the configuration
    (`config.tables`); `verbs`: reference to the verbs of the control socket, name -> `Verb`;
    `page`: reference to its page of the console; `service`: reference to the class of its service
    in a running gateway (`roles.role_process`); `metrics`: reference to its families of
    metrics."""

    commands: Mapping[str, tuple[str, str]] = {}
    tables: tuple[str, ...] = ()
    verbs: str = ""
    page: str = ""
    service: str = ""
    metrics: str = ""


@cache
def all_features() -> tuple[Feature, ...]:
    packages = (import_module(f"metamcp_supervisor.{name}") for name in FEATURES)
    return tuple(package.FEATURE for package in packages)
