"""Configurations for tests: values made in one line, and files loaded from a folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from metamcp_supervisor.config.config import (
    Config,
    ConfigInvalid,
    Endpoint,
    GatewayConfig,
    Namespace,
    Problem,
    Server,
)
from metamcp_supervisor.config.sources import load


def server(name: str, **settings: Any) -> Server:
    plain = Server(name=name, source=f"x: servers.{name}", command=("run",))
    return replace(plain, **settings)


def config(
    *servers: Server,
    namespaces: Mapping[str, Namespace] | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
    **gateway: Any,
) -> Config:
    names = tuple(each.name for each in servers)
    return Config(
        gateway=replace(GatewayConfig(state_dir=Path("/s"), runtime_dir=Path("/r")), **gateway),
        servers={each.name: each for each in servers},
        namespaces=namespaces or {"default": Namespace(name="default", servers=names)},
        endpoints=endpoints or {"default": Endpoint(name="default", namespace="default")},
    )


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def loaded(
    folder: Path,
    text: str | None = None,
    *,
    name: str = "metamcp.toml",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    may_run: Callable[[Config], bool] | None = None,
) -> Config:
    """What the file comes to. Without `text` the file is there already."""
    path = folder / name if text is None else write(folder, name, text)
    return load(
        path, environ=environ or {}, cwd=folder, home=folder / "home", flags=flags or {},
        may_run=may_run,
    )  # fmt: skip


def problems(folder: Path, text: str | None = None, **how: Any) -> tuple[Problem, ...]:
    """Every error that loading it gives."""
    try:
        found = loaded(folder, text, **how).problems
    except ConfigInvalid as invalid:
        return invalid.problems
    assert found, "the configuration is accepted"
    return found


def messages(folder: Path, text: str | None = None, **how: Any) -> list[str]:
    """The errors as they are shown, without the folder."""
    return [str(each).replace(f"{folder}/", "") for each in problems(folder, text, **how)]
