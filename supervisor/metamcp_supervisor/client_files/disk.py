"""The files of clients on the disk: which there are, with their servers; read unchanged, written
whole or not at all, with a backup.

Owns: which files exist, bytes and modes, links, backups and their number. Never: places of files
(`clients`), what a file means (`config.foreign_files`), changing its text (`texts`).
"""

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.client_files import clients
from metamcp_supervisor.client_files.clients import CLIENTS, ClientProgram, Platform, Scope
from metamcp_supervisor.config import client_shapes, files, foreign_files, formats, places
from metamcp_supervisor.config.assemble import servers_by_name
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.document import (
    BrokenSyntax,
    ConfigDraft,
    ConfigFindings,
    SourceLocation,
)
from metamcp_supervisor.config.references import References

FILE_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of a file; some clients keep much more in it than servers."""
BACKUP = ".metamcp-backup"
BACKUPS_MAX = 3
"""Maximum number of backups; the newest is NAME.metamcp-backup, older ones end with .1, .2 and so
on."""
_BOM = b"\xef\xbb\xbf"
_NEW_MODE = 0o600
"""Mode of a file that we create: only for its user, because many of these files hold secrets sooner
or later."""


class FileChanged(Exception):
    """Another program has written to the file since it was read."""


class Content(Struct, frozen=True):
    """Content of a file. `data`: its bytes, None if the file does not exist; `text`: the decoded
    bytes, without a byte order mark."""

    path: Path
    data: bytes | None
    text: str

    @property
    def exists(self) -> bool:
        return self.data is not None


def read(path: Path) -> Content:
    """Read a file, which may be missing. Raises files.Unreadable."""
    if not path.exists():
        return Content(path, None, "")
    data = files.data(path, FILE_BYTES_MAX)
    try:
        return Content(path, data, data.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise files.FileUnreadable(f"is not UTF-8 text (byte {error.start})") from None


def write(content: Content, text: str | None) -> None:
    """Replace the content of the file by `text`; None removes the file. Links are followed, the
    mode is kept, and readers see either the old file or the new one. Raises OSError and Changed."""
    path = Path(os.path.realpath(content.path))
    if read(content.path).data != content.data:
        raise FileChanged
    if text is None:
        path.unlink()
        return
    data = (_BOM if (content.data or b"").startswith(_BOM) else b"") + text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_file(path, data, path.stat().st_mode & 0o7777 if content.exists else _NEW_MODE)


# The backup


def backup_of(path: Path) -> Path:
    """Return the path of the newest backup: beside the file itself, not beside a link to it."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + BACKUP)


def keep(content: Content) -> Path | None:
    """Write the content that was read to a new backup; older backups get the next number. Return
    the path of the backup, None if the file did not exist. Raises OSError."""
    path = backup_of(content.path)
    for number in range(BACKUPS_MAX - 1, 0, -1):
        older = path if number == 1 else _with_number(path, number - 1)
        if older.exists():
            os.replace(older, _with_number(path, number))
    if content.data is None:
        return None
    mode = os.stat(content.path).st_mode & 0o7777
    files.replace_file(path, content.data, mode)
    return path


def forget(path: Path) -> None:
    """Remove the newest backup, because the file has the same content. Raises OSError."""
    backup_of(path).unlink(missing_ok=True)


def _with_number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


# The servers in it

PLATFORM: Platform = "darwin" if sys.platform == "darwin" else "linux"
_SCOPES: tuple[Scope, ...] = ("user", "project")


class ClientFile(Struct, frozen=True):
    """File of a client, with the servers in it that are not this gateway. `base`: folder in which
    they start, empty for a file of no folder; `why`: why the file cannot be read, else empty;
    `lost`: what is not carried over; `mistakes`: of servers that are left out; `renamed`: servers
    with another name here; all three as sentences."""

    client: ClientProgram
    path: Path
    servers: tuple[Server, ...] = ()
    base: str = ""
    why: str = ""
    lost: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()


def every(origins: Collection[str]) -> list[ClientFile]:
    """Return the files of all clients for this user and this folder. `origins`: of this gateway."""
    return [file for client in CLIENTS.values() for file in of_client(client, origins)]


def of_client(client: ClientProgram, origins: Collection[str]) -> list[ClientFile]:
    """Return all files of a client that exist. `origins`: of this gateway."""
    return [read_servers(client, scope, path, origins) for scope, path in _find_existing(client)]


def user_files() -> set[Path]:
    """Return the files of all clients that belong to no folder, whether they exist or not."""
    return {path for client in CLIENTS.values() for path in candidates(client, "user")}


def candidates(client: ClientProgram, scope: Scope) -> tuple[Path, ...]:
    """Return the possible files of a client for this user and this folder."""
    home, cwd = Path.home(), Path.cwd()
    return clients.candidates(
        client, scope, platform=PLATFORM, environ=os.environ, home=home, cwd=cwd
    )


def _find_existing(client: ClientProgram) -> Iterator[tuple[Scope, Path]]:
    for scope in _SCOPES:
        for path in candidates(client, scope):
            if os.path.exists(path):  # False in a folder that may not be looked at
                yield scope, path


def read_servers(
    client: ClientProgram, scope: Scope, path: Path, origins: Collection[str]
) -> ClientFile:
    """Return a file and its servers, or why it cannot be read. `scope`: "user" for a file that
    belongs to no folder; `origins`: of this gateway."""
    findings = ConfigFindings()
    base = str(places.folder_of(path)) if scope == "project" else ""
    try:
        drafts = servers_by_name([_draft(path, base, findings)], findings).values()
    except files.FileUnreadable as error:
        return ClientFile(client, path, why=str(error))
    except BrokenSyntax as broken:
        line = f" (line {broken.line})" if broken.line else ""
        return ClientFile(client, path, why=f"cannot be read: {broken.message}{line}")
    servers = [
        replace(each.server, url=each.server.url or each.server.url_written)
        for each in drafts
        if each.server is not None and not findings.mistake(each.site)
    ]
    others = (
        each for each in servers if not clients.is_ours(each.command, each.url or "", origins)
    )
    return ClientFile(
        client,
        path,
        tuple(others),
        base,
        lost=tuple(findings.lost),
        mistakes=tuple(map(str, findings.list_errors())),
        renamed=tuple(findings.renamed),
    )


def _draft(path: Path, base: str, findings: ConfigFindings) -> ConfigDraft:
    """Read the servers of a file as the gateway reads them, but leave references as they are.
    Raises files.FileUnreadable and BrokenSyntax."""
    kind, document = formats.document(path, read(path).text, places.folder_of(path))
    values, cwd = document.values, str(Path.cwd())
    shape = client_shapes.places(values, document.label, cwd)
    if shape is None or (kind == "toml" and not foreign_files.is_foreign(path.name, values)):
        return ConfigDraft(site=SourceLocation(document))
    return foreign_files.parse(
        document,
        References(environ={}, secret=str, text_of=files.text_of, later=True),
        Path.home(),
        findings,
        project=cwd,
        folder=base,
        user_home="${HOME}",
    )
