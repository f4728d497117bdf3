"""`metamcp connect`: an MCP server on standard input and output that leads to the running gateway.

Owns: the options, the choice of a gateway and its endpoint, starting a gateway in the background,
sentences and exit codes. Never: what crosses the bridge (`metamcp_supervisor.bridge`).
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import click

from metamcp_supervisor import runtime
from metamcp_supervisor.control import client
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus, KeyList
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError

if TYPE_CHECKING:
    from metamcp_supervisor.bridge.http_client import Trust

READY_S = 30.0
"""Seconds to wait for a gateway to start or to end; a client gives its servers about as long."""
AGAIN_S = 0.05
"""Seconds between two checks."""
WORDS_BYTES_MAX = 8 * 1024
"""Maximum bytes kept from the end of stderr of a gateway that cannot start."""


def credential_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a verb that calls a gateway as its clients do."""
    for option in reversed((
        click.option("--key-env", metavar="NAME",
                     help="Variable with an API key; else METAMCP_KEY."),
        click.option("--key-file", metavar="FILE",
                     help="File with an API key, for this user alone."),
        click.option("--ca", metavar="FILE", help="Authority to trust; else METAMCP_CA."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.option("--endpoint", metavar="NAME", help="Which endpoint; without it the default one.")
@click.option("--url", metavar="URL", help="Of an endpoint; no gateway is looked for then.")
@click.option("--start", is_flag=True, help="Start a gateway in the background if none runs.")
@click.option("--keep", is_flag=True, help="With --start: it goes on after its last client.")
@click.option("--exposure", metavar="WORD", help="With --start: how much it shows at first.")
@click.option("--naming", metavar="STYLE", help="With --start: how it calls its tools.")
@click.option("--builtins", metavar="NAME,…", help="With --start: further tools of it.")
@click.option(
    "--config", "path", type=click.Path(path_type=Path), metavar="FILE",
    help="The configuration of the gateway; else the one that `metamcp up` takes here.",
)  # fmt: skip
@click.option("--runtime-dir", metavar="PATH", help="Where the gateway keeps its control socket.")
@credential_options
def connect(
    endpoint: str | None,
    url: str | None,
    start: bool,
    path: Path | None,
    keep: bool,
    exposure: str | None,
    naming: str | None,
    builtins: str | None,
    runtime_dir: str | None,
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
) -> None:
    """Be an MCP server on stdin and stdout: a bridge to the gateway.

    All clients that start this command share the gateway and its servers.
    """
    if url is not None and (endpoint is not None or start):
        raise click.UsageError("--url says it all: it goes with neither --endpoint nor --start.")
    shape = {"exposure": exposure, "naming": naming, "builtins": builtins}
    of_start = {"keep": keep, **shape}
    if not start and (option := next((word for word, it in of_start.items() if it), "")):
        raise click.UsageError(f"--{option} is for the gateway that --start starts.")
    if not _open_streams():
        _say("standard input and output must be open: the client speaks through them")
        raise SystemExit(Exit.USAGE)
    try:
        # Chosen only once, so that this bridge never changes to the gateway of another project.
        if start:
            directory = ensure(path, {"runtime_dir": runtime_dir, **shape}, keep=keep)
        elif url is not None:
            directory = runtime_dir or ""
        elif runtime_dir is None and path is not None:
            directory = client.directory_of(path)
        else:
            directory = runtime_dir or client.find_runtime_dir()
        code = _bridge(endpoint, url, directory, trust_of(key_env, key_file, ca, directory, url))
    except Failed as failed:
        for line in (str(failed), *failed.details):
            _say(line)
        code = failed.exit
    raise SystemExit(code)


def trust_of(
    key_env: str | None,
    key_file: str | None,
    ca: str | None,
    runtime_dir: str,
    url: str | None = None,
) -> "Trust":
    """Return the credential for the gateway and the authority to trust, which is that of a gateway
    on this machine if nothing else is said. `url`: given by the user. Raises Failed and
    click.UsageError."""
    from metamcp_supervisor.bridge.http_client import Trust

    key = _key(key_env, key_file)
    if key and url is not None:
        refuse_unencrypted(url)
    return Trust(key, ca or os.environ.get("METAMCP_CA", "") or _local_authority(runtime_dir, url))


@contextlib.contextmanager
def explained_key(trust: "Trust", runtime_dir: str) -> Iterator[None]:
    """Add what is wrong with the key to a refusal that wants a valid key, as the gateway on this
    machine shows it to its operator. `runtime_dir`: empty for another gateway. Raises Failed."""
    from metamcp_supervisor.calls.endpoint_client import KEY_WANTED

    try:
        yield
    except Failed as failed:
        if not str(failed).endswith(KEY_WANTED) or not runtime_dir:
            raise
        flaw = _key_flaw(trust.key, runtime_dir)
        raise Failed(failed.exit, f"{failed}{flaw and f', and {flaw}'}") from None


def _key_flaw(key: str, runtime_dir: str) -> str:
    """Return what is wrong with a key, and what to type; empty if the gateway does not say."""
    from metamcp_worker.access import api_key

    make = "'metamcp keys create NAME --out FILE' makes one, and --key-file FILE gives it"
    if not key:
        return f"none is given: {make}"
    name = api_key.id_of(key)
    if not name:
        return "what is given is not a whole key of MetaMCP"
    try:
        with client.connect(runtime_dir) as gateway:
            (record,) = codec.decode_as(KeyList, gateway.call("keys", {"names": [name]})).keys
    except Failed as failed:
        unknown = failed.exit == Exit.UNKNOWN_NAME
        return f"the key {name} is revoked, or of another gateway: {make}" if unknown else ""
    label = f"the key {name} ({record.name})"
    if record.state == "active":
        return f"{label} is valid elsewhere: 'metamcp keys show {name}' says where"
    return f"{label} expired at {record.expires}: 'metamcp keys rotate {name}' makes another"


def check_credentials(
    key_env: str | None, key_file: str | None, ca: str | None, url: str | None
) -> None:
    """Check what an entry will give to `connect`, as far as that is known before it runs. Raises
    Failed and click.UsageError."""
    _check_key_options(key_env, key_file)
    if key_file:
        _key(None, key_file)
    if (key_env or key_file) and url is not None:
        refuse_unencrypted(url)
    if ca:
        import ssl

        try:
            ssl.create_default_context(cafile=ca)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise Failed(Exit.USAGE, f"--ca: {ca} has no certificates in PEM: {reason}") from None


def refuse_unencrypted(url: str) -> None:
    """Refuse an http URL to which a key would be sent over a network. Raises click.UsageError."""
    from metamcp_supervisor.config import units

    parts = _parts(url)
    if parts is not None and parts.scheme == "http" and not units.is_loopback(parts.hostname or ""):
        raise click.UsageError(
            f"the key would travel unencrypted to {parts.hostname}; use an https URL (with 'metamcp"
            " serve --tls local' the gateway speaks TLS)."
        )


def _check_key_options(key_env: str | None, key_file: str | None) -> None:
    if key_env and key_file:
        raise click.UsageError("give either --key-env or --key-file, not both.")
    if key_env:
        from metamcp_worker.access.api_key import PREFIX

        if not key_env.isidentifier() or key_env.startswith(PREFIX):
            raise click.UsageError("--key-env takes the name of a variable, not the key itself.")


def _key(key_env: str | None, key_file: str | None) -> str:
    """Return the key from where the user says it is. Raises Failed and click.UsageError."""
    _check_key_options(key_env, key_file)
    key = os.environ.get(key_env or "METAMCP_KEY", "")
    if key_env and not key:
        message = (
            f"the environment variable {key_env} is not set; --key-env names the one with the key"
        )
        raise Failed(Exit.USAGE, message)
    if key_file:
        from metamcp_supervisor.config import files
        from metamcp_supervisor.config.references import Unresolved

        try:
            key = files.secret(Path(key_file)).strip()
        except Unresolved as error:
            raise Failed(Exit.USAGE, f"--key-file: {error}") from None
    if key and not (key.isascii() and key.isprintable()):
        raise Failed(Exit.USAGE, "the key has characters that no key has")
    return key


def _local_authority(runtime_dir: str, url: str | None) -> str:
    """Return the file of the authority of the gateway in `runtime_dir`; without it, of the one for
    this folder if `url` leads to it on loopback. Empty if there is none."""
    with contextlib.suppress(Failed):
        status = _status(runtime_dir or client.find_runtime_dir())
        if not runtime_dir and url is not None:
            from metamcp_supervisor.config import units

            ours, parts = _parts(status.url), _parts(url)
            if parts is None or ours is None or not units.is_loopback(parts.hostname or ""):
                return ""
            if parts.port != ours.port:
                return ""
        local = Path(status.state_dir, "tls", "ca.pem")
        return str(local) if local.is_file() else ""
    return ""


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if it is not one; the use of the URL reports that."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is not a number
    except ValueError:
        return None
    return parts


def _bridge(endpoint: str | None, url: str | None, runtime_dir: str, trust: "Trust") -> int:
    """Run the bridge and return its exit code. Raises Failed if the endpoint cannot be found or its
    URL cannot be used."""
    if url is None:
        await_serving(runtime_dir)
        with contextlib.suppress(OSError, runtime.RuntimeDirUnfit):
            runtime.join(runtime_dir)
        url = locate_endpoint(endpoint, runtime_dir)
        remedy = "Start it with 'metamcp up'; this connection goes on as soon as it runs."

        def locate() -> str:
            return locate_endpoint(endpoint, runtime_dir)
    else:
        fixed_url = url
        remedy = "This connection goes on as soon as it answers."

        def locate() -> str:
            return fixed_url

    from metamcp_supervisor.bridge import run

    try:
        return run.run(url, locate, remedy=remedy, trust=trust)
    except MetaMCPError as unfit:
        raise Failed(Exit.USAGE, str(unfit)) from None


# The gateway that runs


def locate_endpoint(endpoint: str | None, runtime_dir: str) -> str:
    """Return the URL of the endpoint; without a name, of the default endpoint. Raises Failed."""
    status = _status(runtime_dir)
    names = ", ".join(status.endpoints) or "none"
    if endpoint is not None:
        if endpoint not in status.endpoints:
            text = f"no endpoint is named {endpoint!r}; there are: {names}"
            raise Failed(Exit.UNKNOWN_NAME, text)
        return status.endpoints[endpoint]
    if "/" not in status.url.partition("://")[2]:
        text = f"no endpoint is the default one; say --endpoint with one of: {names}"
        raise Failed(Exit.UNKNOWN_NAME, text)
    return status.url


def _status(runtime_dir: str) -> GatewayStatus:
    with client.connect(runtime_dir) as gateway:
        return codec.decode_as(GatewayStatus, gateway.call("status"))


def await_serving(runtime_dir: str) -> None:
    """Wait until the gateway lets clients in. Raises Failed."""
    end = time.monotonic() + READY_S
    while _status(runtime_dir).state == "starting":
        if time.monotonic() > end:
            raise Failed(Exit.TIMEOUT, f"the gateway is still starting after {READY_S:g} s")
        time.sleep(AGAIN_S)


# A gateway in the background


def ensure(path: Path | None, flags: dict[str, str | None], *, keep: bool) -> str:
    """Start a gateway if none runs, and return its runtime directory. Raises Failed, or ends the
    command with the messages of `metamcp serve` if the configuration cannot be used or is not
    confirmed."""
    from metamcp_supervisor.config import places

    expected = flags["runtime_dir"] or str(places.find_place(path).runtime_dir)
    if _is_running(expected):
        _join(expected)
        if _is_running(expected):
            return expected
    from metamcp_supervisor.cli.up import CommandLineConfig

    command_line = CommandLineConfig(path, flags, any_port=True)
    configured = str(command_line.config.gateway.runtime_dir)
    _join(configured)
    if _is_running(configured):
        return configured
    command_line.confirm(yes=False, ask=None)
    arguments = ["--any-port", *([] if keep else ["--while-used"])]
    arguments += ["--config", str(path)] if path is not None else []
    for key, value in flags.items():
        arguments += [f"--{key.replace('_', '-')}", value] if value is not None else []
    _start(arguments, configured)
    return configured


def _join(directory: str) -> None:
    """Count as a client until this process ends, where the directory allows that: the gateway of
    another user does not end with its clients. Wait for a gateway that has just lost its last
    client to end. Raises Failed."""
    end = time.monotonic() + READY_S
    while True:
        try:
            runtime.join(directory)
        except BlockingIOError:
            if time.monotonic() > end:
                text = f"the gateway of {directory} is still ending after {READY_S:g} s"
                raise Failed(Exit.TIMEOUT, text) from None
            time.sleep(AGAIN_S)
            continue
        except (OSError, runtime.RuntimeDirUnfit):
            pass  # a gateway that starts there reports what is wrong
        return


def _is_running(runtime_dir: str) -> bool:
    try:
        client.connect(runtime_dir).close()
    except Failed as failed:
        if failed.exit != Exit.NOT_RUNNING:
            raise
        return False
    return True


def _start(arguments: list[str], runtime_dir: str) -> None:
    """Start gateways until one runs: ours, or that of another `connect` that was faster. Raises
    Failed.

    Our gateway gets a session of its own, so that it does not end with the client or its terminal.
    After its start, its messages are in its journal: no process reads its stderr any more.
    """
    # Without -P a file in this directory could be taken for a module of ours.
    command = [sys.executable, "-P", "-m", "metamcp_supervisor", "serve", *arguments]
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        with process.stderr as words:
            output = _await_running(process, words, runtime_dir, end)
        # This parent may live as long as the gateway, which must not stay a zombie when it ends.
        threading.Thread(target=process.wait, name="reaper", daemon=True).start()
        if output is None:
            return
        if process.poll() not in {None, Exit.ALREADY_RUNNING}:
            raise _unstartable(process.returncode, output)
    raise Failed(Exit.TIMEOUT, f"no gateway answers {READY_S:g} s after it was started")


def _await_running(
    process: subprocess.Popen[bytes], words: IO[bytes], runtime_dir: str, end: float
) -> bytes | None:
    """Wait until a gateway runs, ours has ended, or time is up. Return None if a gateway runs, else
    what ours wrote to stderr."""
    os.set_blocking(words.fileno(), False)
    output = b""
    while time.monotonic() < end:
        ended = process.poll() is not None
        output = (output + (words.read() or b""))[-WORDS_BYTES_MAX:]
        if _is_running(runtime_dir):
            return None
        if ended:
            break
        time.sleep(AGAIN_S)
    return output


def _unstartable(code: int, output: bytes) -> Failed:
    lines = output.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
    codes = {int(member) for member in Exit} - {int(Exit.OK)}
    text = lines[-1].removeprefix("metamcp: ")
    return Failed(Exit(code) if code in codes else Exit.FAILED, f"no gateway was started: {text}")


def _open_streams() -> bool:
    """Whether stdin and stdout, which lead to the client, are open. A closed stderr is replaced by
    the null device, so that the next socket does not get its descriptor."""
    if sys.stdin is None or sys.stdout is None:
        return False
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY)
    return True


def _say(sentence: str) -> None:
    from metamcp_supervisor.cli.show import printable

    click.echo(f"metamcp: {printable(sentence)}", err=True)
