"""What only some settings need, and an installation may lack.

Owns: which modules these are, and what is said when one is not there. Never: importing one, the
packages of custom transports (`transports`).
"""

from dataclasses import dataclass
from importlib.util import find_spec


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
