"""Where an entry in a client leads: the command or the URL that our verbs write.

Owns: finding this installation and the URL of an endpoint. Never: shapes (`clients.entries`),
files (`install`).
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from metamcp_supervisor.clients import entries
from metamcp_supervisor.clients.known import CLIENTS, Client, Kept, Platform, Scope
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_supervisor.wanted.nearest import hint
from metamcp_supervisor.watched import client as control
from metamcp_worker import codec

PLATFORM: Platform = "darwin" if sys.platform == "darwin" else "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The options of `install` and `snippet`. `url`: given, or with `http` looked for."""

    name: str
    scope: Scope
    http: bool = False
    url: str | None = None
    endpoint: str | None = None
    start: bool = False
    runtime_dir: str | None = None

    def check(self, client: Client) -> None:
        """Raises click.UsageError."""
        if self.scope == "project" and not client.project:
            raise click.UsageError(f"{client.title} has no file of a project that is documented.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise click.UsageError("--url is no URL: it begins with http:// or https://.")
        if self.url is not None and self.endpoint is not None:
            raise click.UsageError("--url says it all: it does not go with --endpoint.")
        if (self.http or self.url) and (self.start or self.runtime_dir):
            raise click.UsageError("--start and --runtime-dir are for a command, not for a URL.")
        if (self.http or self.url) and not entries.can_http(client.how(self.scope).shape):
            raise click.UsageError(f"the file of {client.title} can name commands only: no --http.")


def known(name: str) -> Client:
    """Raises click.UsageError."""
    if name not in CLIENTS:
        raise click.UsageError(f"no client is named {name!r}; {hint(name, CLIENTS)}")
    return CLIENTS[name]


def entry(kept: Kept, wish: Wish) -> dict[str, object]:
    """Ours. Raises control.Failed for an endpoint that there is not."""
    if wish.http or wish.url is not None:
        return entries.entry(kept.shape, wish.name, url=wish.url or url_of(wish.endpoint))
    words = [*program(shared=wish.scope == "project"), "connect"]
    if wish.endpoint is not None:
        words += ["--endpoint", wish.endpoint]
    if wish.start:
        words.append("--start")
    if wish.runtime_dir is not None:
        words += ["--runtime-dir", os.path.abspath(wish.runtime_dir)]
    return entries.entry(kept.shape, wish.name, words=words)


def program(*, shared: bool) -> tuple[str, ...]:
    """This installation, as a client can start it."""
    script = Path(sys.executable).parent / "metamcp"
    there = script.is_file() and os.access(script, os.X_OK)
    return entries.command(
        str(script) if there else "",
        platform=PLATFORM,
        shared=shared,
        uvx=shutil.which("uvx"),
        module=(sys.executable, "-P", "-m", "metamcp_supervisor"),
    )


def url_of(endpoint: str | None) -> str:
    """Of the gateway that runs, or of one with the usual address. Raises control.Failed."""
    status = _status()
    if status is None:
        path = "/mcp" if endpoint is None else f"/metamcp/{endpoint}/mcp"
        return f"{entries.DEFAULT_ORIGIN}{path}"
    if endpoint is None:
        return status.url
    if endpoint not in status.endpoints:
        text = f"there is no endpoint {endpoint!r}; {hint(endpoint, status.endpoints)}"
        raise control.Failed(Exit.UNKNOWN_NAME, text)
    return status.endpoints[endpoint]


def origins(*urls: str | None) -> set[str]:
    """Of this gateway: the usual one, that of the one that runs, and those of `urls`."""
    status = _status()
    places = [*urls, status.url if status is not None else None]
    found = {entries.DEFAULT_ORIGIN}
    for place in filter(None, places):
        parts = urlsplit(place)
        found.add(f"{parts.scheme}://{parts.netloc}")
    return found


def own_verb(client: Client, wish: Wish, values: Mapping[str, object]) -> str:
    """The command of the client that does the same; empty if it has none."""
    import json
    import shlex

    server = entries.found(wish.name, values)
    verb = client.verb_http if server.url else client.verb
    whole = {"name": wish.name, **values}
    return verb.format(
        scope=wish.scope,
        name=shlex.quote(wish.name),
        command=shlex.join(server.words),
        url=shlex.quote(server.url),
        json=shlex.quote(json.dumps(whole, ensure_ascii=False)),
    )


def _status() -> GatewayStatus | None:
    try:
        with control.connect(None) as gateway:
            return codec.typed(GatewayStatus, gateway.call("status"))
    except (control.Failed, codec.Malformed):
        return None
