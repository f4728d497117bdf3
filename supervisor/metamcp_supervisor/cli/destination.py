"""Destination of an entry in a client: the command or the URL that our verbs write.

Owns: finding this installation and the URL of an endpoint. Never: shapes of entries
(`client_files.clients`), files (`install`).
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click
from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.cli import errors
from metamcp_supervisor.cli.connect import check_credentials
from metamcp_supervisor.client_files import clients, disk
from metamcp_supervisor.client_files.clients import (
    CLIENTS,
    ClientProgram,
    FileFormat,
    Scope,
)
from metamcp_supervisor.config import places, sources
from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control import client as control
from metamcp_supervisor.verbs import Exit, GatewayStatus
from metamcp_worker.ipc import codec


class InstallOptions(Struct, frozen=True, kw_only=True):
    """Options of `install` and `snippet`. `key_env`, `key_file`, `ca`: for a protected endpoint.
    `url`: URL from the user; `http`: find the URL of the endpoint; `start`: None if the user did
    not say; `exposure`, `naming`, `builtins`: of a gateway that the command starts."""

    name: str
    scope: Scope
    is_scope_given: bool = False
    http: bool = False
    url: str | None = None
    endpoint: str | None = None
    start: bool | None = None
    config: Path | None = None
    yes: bool = False
    runtime_dir: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    ca: str | None = None
    exposure: str | None = None
    naming: str | None = None
    builtins: str | None = None

    @property
    def shape(self) -> dict[str, str]:
        """Return the keys of an endpoint that the user gave, as options of `metamcp connect`."""
        keys = {"exposure": self.exposure, "naming": self.naming, "builtins": self.builtins}
        return {key: value for key, value in keys.items() if value}

    def with_skill(self) -> "InstallOptions":
        """Return the options for a client with the skill, whose gateway shows what it calls."""
        if self.http or self.url or self.endpoint or self.start is False:
            return self
        if self.exposure not in (None, "servers"):
            return self
        return replace(self, exposure="servers", naming=self.naming or "bare")

    @property
    def trust(self) -> list[str]:
        """Return the options of `metamcp connect` for a key and an authority."""
        options = (("--key-env", self.key_env), ("--key-file", self.key_file), ("--ca", self.ca))
        return [
            word
            for option, value in options
            if value
            for word in (option, value if option == "--key-env" else os.path.abspath(value))
        ]

    def check(self, client: ClientProgram) -> None:
        """Raise click.UsageError if the options contradict each other or do not fit the client, and
        Failed if a file that they name cannot be used."""
        if self.scope == "project" and not client.project:
            raise click.UsageError(f"{client.title} has no file of a project that is documented.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise click.UsageError("--url is not a URL: it begins with http:// or https://.")
        if self.url is not None and self.endpoint is not None:
            raise click.UsageError("--url says it all: it does not go with --endpoint.")
        if (self.http or self.url) and self.start:
            raise click.UsageError("--start is for a command, not for a URL.")
        if self.shape and (self.http or self.url or self.start is False):
            option = next(iter(self.shape))
            raise click.UsageError(f"--{option} is for a gateway that the command starts.")
        if self.url and (self.config or self.runtime_dir):
            raise click.UsageError("--url says it all: nothing is looked for.")
        if self.trust:
            if self.http:
                raise click.UsageError(
                    "--http writes a URL alone, in which --key-env, --key-file and --ca have no"
                    " place: leave out --http."
                )
            check_credentials(self.key_env, self.key_file, self.ca, self.url)
            return
        if (self.http or self.url) and not clients.can_http(client.how(self.scope).shape):
            raise click.UsageError(f"the file of {client.title} can name commands only: no --http.")


def find_client(name: str) -> ClientProgram:
    """Return the client of this name. Raises click.UsageError."""
    if name not in CLIENTS:
        raise click.UsageError(f"no client is named {name!r}; {hint(name, CLIENTS)}")
    return CLIENTS[name]


class TargetGateway(Struct, frozen=True):
    """Gateway that an entry leads to. `config`: its main file; `url`: of the default endpoint;
    `endpoints`: URL of each endpoint by name."""

    config: Path | None
    runtime_dir: str
    url: str
    endpoints: Mapping[str, str]


def goal(wish: InstallOptions) -> TargetGateway | None:
    """Return the gateway that runs for this folder, or else the gateway of its configuration; None
    without both. A configuration that was found and not named is confirmed first, because a client
    will start its commands. Raises Failed for an endpoint that the gateway does not have."""
    if (status := _status(wish.runtime_dir)) is not None and wish.config is None:
        main = Path(status.config_files[0]) if status.config_files else None
        directory = wish.runtime_dir or control.find_runtime_dir()
        gateway = TargetGateway(main, os.path.abspath(directory), status.url, status.endpoints)
    elif (configured := _goal_of_config(wish)) is not None:
        gateway = configured
    elif wish.endpoint is not None:
        text = f"no endpoint is named {wish.endpoint!r} without a configuration"
        raise control.Failed(Exit.UNKNOWN_NAME, f"{text}; 'metamcp init' makes one")
    else:
        return None
    if wish.endpoint is not None and wish.endpoint not in gateway.endpoints:
        text = f"no endpoint is named {wish.endpoint!r}; {hint(wish.endpoint, gateway.endpoints)}"
        raise control.Failed(Exit.UNKNOWN_NAME, text)
    return gateway


def _goal_of_config(wish: InstallOptions) -> TargetGateway | None:
    home = Path.home()
    if places.find(wish.config, environ=os.environ, cwd=Path.cwd(), home=home) is None:
        return None
    from metamcp_supervisor.cli.up import CommandLineConfig, ask
    from metamcp_supervisor.config.config import Address
    from metamcp_supervisor.servers.specs import reachable
    from metamcp_supervisor.servers.status import url, urls

    read = CommandLineConfig(wish.config, {"runtime_dir": wish.runtime_dir}, any_port=True)
    read.confirm(yes=wish.yes, ask=ask if errors.at_terminal() else None)
    config, gateway = read.config, read.config.gateway
    listen = reachable(gateway.listen)
    if port := places.client_port(gateway):
        listen = Address(listen.host, port)
    return TargetGateway(
        config.files[0], str(gateway.runtime_dir), url(config, listen), urls(config, listen)
    )


def entry(file_format: FileFormat, wish: InstallOptions) -> dict[str, object]:
    """Return our entry for a client. Raises Failed for an endpoint that does not exist."""
    if wish.url is not None and wish.trust:
        shared = wish.scope == "project"
        words = [*program(shared=shared), "connect", "--url", wish.url, *wish.trust]
        return clients.entry(file_format.shape, wish.name, words=words)
    if wish.url is not None:
        return clients.entry(file_format.shape, wish.name, url=wish.url)
    gateway = goal(wish)
    if gateway is not None and gateway.config is not None and not wish.trust:
        _warn_of_key(gateway.config, wish.endpoint)
    if wish.http:
        default = f"{clients.DEFAULT_ORIGIN}/mcp" if gateway is None else gateway.url
        url = default if gateway is None or not wish.endpoint else gateway.endpoints[wish.endpoint]
        return clients.entry(file_format.shape, wish.name, url=url)
    shared = wish.scope == "project"
    if gateway is None or shared:  # other users have this file too, and other folders
        config, directory = None, wish.runtime_dir
    else:
        config, directory = gateway.config, gateway.runtime_dir
    words = connect_words(wish, config, directory)
    if gateway is None:
        problem = "the gateway needs a configuration, and none was found"
        click.echo(f"metamcp: warning: {problem}; 'metamcp init' makes one", err=True)
    return clients.entry(file_format.shape, wish.name, words=words)


def _warn_of_key(path: Path, name: str | None) -> None:
    """Say that an endpoint asks for a key which the entry does not have. `name`: None for the
    default one."""
    try:
        config = sources.load(path, environ=os.environ, cwd=Path.cwd(), home=Path.home())
    except ConfigInvalid:
        return
    endpoint = config.endpoints.get(name or "default")
    if endpoint is not None and endpoint.auth:
        text = (
            f"the endpoint '{endpoint.name}' asks for a key: 'metamcp keys create NAME --out FILE'"
        )
        errors.say(f"warning: {text} creates one, and --key-file FILE gives it to this entry")


def connect_words(wish: InstallOptions, config: Path | None, runtime_dir: str | None) -> list[str]:
    """Return the command of an entry that leads to the gateway of this configuration, reached in
    this directory; None for those of the folder in which the client starts it."""
    words = [*program(shared=wish.scope == "project"), "connect"]
    if wish.start is not False:
        words += ["--start", *(["--config", str(config)] if config is not None else [])]
        words += [word for key, value in wish.shape.items() for word in (f"--{key}", value)]
    if wish.endpoint is not None:
        words += ["--endpoint", wish.endpoint]
    if runtime_dir is not None:
        words += ["--runtime-dir", os.path.abspath(runtime_dir)]
    return words + wish.trust


def program(*, shared: bool) -> tuple[str, ...]:
    """Return the command with which a client can start this installation. `shared`: the entry is
    for other machines too."""
    script = Path(sys.executable).parent / "metamcp"
    there = script.is_file() and os.access(script, os.X_OK)
    return clients.command(
        str(script) if there else "",
        platform=disk.PLATFORM,
        shared=shared,
        uvx=shutil.which("uvx"),
        module=(sys.executable, "-P", "-m", "metamcp_supervisor"),
    )


def origins(*urls: str | None, runtime_dir: str | None = None) -> set[str]:
    """Return the origins of this gateway: the usual origin, the origin of the gateway that runs,
    there or for this folder, and those of `urls`."""
    status = _status(runtime_dir)
    candidates = [*urls, status.url if status is not None else None]
    gateway_origins = {clients.DEFAULT_ORIGIN}
    for url in filter(None, candidates):
        parts = urlsplit(url)
        gateway_origins.add(f"{parts.scheme}://{parts.netloc}")
    return gateway_origins


def own_verb(client: ClientProgram, wish: InstallOptions, values: Mapping[str, object]) -> str:
    """Return the command of the client that adds the same entry; empty if the client has none."""
    import json
    import shlex

    words, url = clients.target_of(values)
    verb = client.verb_http if url else client.verb
    document = {"name": wish.name, **values}
    return verb.format(
        scope=wish.scope,
        name=shlex.quote(wish.name),
        command=shlex.join(words),
        url=shlex.quote(url),
        json=shlex.quote(json.dumps(document, ensure_ascii=False)),
    )


def _status(runtime_dir: str | None) -> GatewayStatus | None:
    try:
        with control.connect(runtime_dir) as gateway:
            return codec.decode_as(GatewayStatus, gateway.call("status"))
    except (control.Failed, codec.Malformed):
        return None
