"""References in values: `${VAR}`, `${env:VAR}`, `${input:NAME}`, `${file:PATH}`, `${cred:NAME}`,
`${cmd:WORDS}`, `${keyring:SERVICE/USER}`, with defaults.

Owns: their grammar, their resolution, and the list of references that cannot be resolved. Never:
reading files, running programs.

A value is expanded once, after its file is parsed, so the content of a variable is never searched
for references or syntax. `$` is an ordinary character except before `{`, where `$$` stands for `$`:
`$${` is the text `${`. Passwords and shell variables such as `$HOME` are not changed.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config.config import PrivateStruct
from metamcp_supervisor.config.document import (
    ConfigFindings,
    SourceLocation,
    flaw,
    shorten,
)
from metamcp_worker.runtime.masking import looks_secret

PROJECT = "${project}"
"""Reference to the folder of the project, for a server with a process for each project. Not
resolved here, because the folder is only known when the process starts."""
_OPENING = re.compile(r"(\$+)\{")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"(?:env:)?({_NAME})(?::-(.*))?", re.ASCII | re.DOTALL)
_PREFIXED = re.compile(r"([A-Za-z]+):(.*)", re.ASCII | re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
_LATER = {"command", "config", "workspaceFolder"}
_CREDENTIALS = ("cred", "credential")
PROGRAMS = ("cmd", "keyring")
"""Kinds of references whose value a program prints."""


class Unresolved(Exception):
    """A reference cannot be resolved. The text is a sentence, without any value."""


class ResolvedLater(Exception):
    """A reference of a known kind that has no value in this process."""


class EditorInput(Struct, frozen=True):
    """Value that an editor would ask its user for (VS Code: `inputs`)."""

    description: str = ""
    default: str | None = None


def no_credentials(name: str) -> str:
    """Refuse a credential where the service manager passes none. Raises Unresolved."""
    raise Unresolved(
        f"the credential '{shorten(name)}' is missing: $CREDENTIALS_DIRECTORY is not set; start the"
        " gateway as a service of systemd with LoadCredential=, or use ${file:PATH}"
    )


def no_files(path: str) -> str:
    """Refuse a file where none is read. Raises Unresolved."""
    raise Unresolved(f"{shorten(path)} is not read here")


def not_here(kind: str, argument: str) -> str:
    """Refuse a reference of PROGRAMS where a value decides about files. Raises Unresolved."""
    raise Unresolved(
        f"'${{{kind}:{shorten(argument)}}}' is for secrets, and this setting is a path"
    )


def not_enabled(kind: str, argument: str) -> str:
    """Refuse a reference of PROGRAMS in a server that is not enabled. Raises Unresolved."""
    raise Unresolved(
        f"'${{{kind}:{shorten(argument)}}}' is only resolved for a server that is enabled"
    )


class References(PrivateStruct, frozen=True):
    """Sources of values for references. `secret`: returns the content of a file by path;
    `credential`: returns a credential from the service manager by name; `printed`: returns what a
    program prints, by kind (PROGRAMS) and text of the reference; `text_of`: returns the text of a
    file of variables by path; all raise Unresolved. `folders`: references to folders, such as
    `project`. `later`: whether another process resolves them, so that here only their kind
    counts."""

    HIDDEN = frozenset({"environ"})

    environ: Mapping[str, str]
    secret: Callable[[str], str]
    credential: Callable[[str], str] = no_credentials
    printed: Callable[[str, str], str] = not_here
    text_of: Callable[[str], str] = no_files
    inputs: Mapping[str, EditorInput] = {}
    folders: Mapping[str, str] = {}
    later: bool = False


def expand(
    text: str, references: References, secret: Callable[[str], object] = lambda value: None
) -> str:
    """Return `text` with every reference replaced by its value. `secret`: gets each value whose
    reference says that it is a secret. Raises Unresolved."""
    expanded: list[str] = []
    for piece, is_reference in pieces(text):
        expanded.append(_value(piece, references) if is_reference else piece)
        if is_reference and _is_secret(piece):
            secret(expanded[-1])
    return "".join(expanded)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text: plain text, or the inside of a reference and True. Raises
    Unresolved."""
    at = 0
    while opening := _OPENING.search(text, at):
        dollars = len(opening[1])
        yield text[at : opening.start()] + "$" * (dollars // 2), False
        at = opening.end()
        if dollars % 2 == 0:
            yield "{", False
            continue
        end = text.find("}", at)
        if end < 0:
            raise Unresolved("'${' has no '}'; write '$${' where it is not a reference")
        yield text[at:end], True
        at = end + 1
    yield text[at:], False


def variable_of(inside: str) -> tuple[str, str | None] | None:
    """Return the variable that a reference names, and its default; None for another kind."""
    match = _VARIABLE.fullmatch(inside)
    return (match[1], match[2]) if match else None


def refers(text: str) -> bool:
    """Whether a text contains a reference."""
    return any(len(match[1]) % 2 for match in _OPENING.finditer(text))


def starts_program(text: str) -> bool:
    """Whether a text contains a reference whose value a program prints."""
    return any(
        len(match[1]) % 2 and text[match.end() :].partition(":")[0] in PROGRAMS
        for match in _OPENING.finditer(text)
    )


def for_server(references: References, *, enabled: bool) -> References:
    """Return the references for a server; programs do not run for one that is not enabled."""
    return references if enabled else replace(references, printed=not_enabled)


def input_variable(name: str) -> str:
    """Return the environment variable for `${input:name}`: upper case, `_` for other characters."""
    return _NOT_IN_NAMES.sub("_", name.upper())


def _is_secret(body: str) -> bool:
    """Whether a reference is to a secret: files, credentials, programs and inputs count as secret,
    variables by their names."""
    if variable := _VARIABLE.fullmatch(body):
        return looks_secret(variable[1])
    return body.partition(":")[0] in {"file", "input", *_CREDENTIALS, *PROGRAMS}


def _value(body: str, references: References) -> str:
    if "${" in body:
        raise Unresolved("references cannot be nested")
    if body in references.folders:
        return references.folders[body]
    if variable := _VARIABLE.fullmatch(body):
        if references.later:
            raise ResolvedLater
        return _variable(variable[1], variable[2], references)
    prefixed = _PREFIXED.fullmatch(body)
    if prefixed is None:
        raise Unresolved(
            f"'${{{shorten(body)}}}' is not a reference; write '$${{' where '${{' is meant as it"
            " stands"
        )
    kind, argument = prefixed[1], prefixed[2]
    if references.later and kind in {"input", "file", *_CREDENTIALS, *PROGRAMS}:
        raise ResolvedLater
    if kind == "input":
        return _input(argument, references)
    if kind == "file":
        return references.secret(argument)
    if kind in _CREDENTIALS:
        return references.credential(argument)
    if kind in PROGRAMS:
        return references.printed(kind, argument)
    if kind in _LATER:
        raise Unresolved(
            f"references of the kind '${{{kind}:…}}' are not available in this version"
        )
    raise Unresolved(
        f"'${{{kind}:…}}' is not a kind of reference; there are ${{VAR}}, ${{env:VAR}},"
        " ${input:NAME}, ${file:PATH}, ${cred:NAME}, ${cmd:WORDS} and ${keyring:SERVICE/USER}"
    )


def _variable(name: str, default: str | None, references: References) -> str:
    value = references.environ.get(name)
    if default is not None:
        return value or default
    if not value:
        state = "not set" if value is None else "empty"
        raise Unresolved(
            f"the environment variable {name} is {state}; set it, or write '${{{name}:-default}}'"
        )
    return value


def _input(name: str, references: References) -> str:
    variable = input_variable(name)
    editor_input = references.inputs.get(name, EditorInput())
    value = references.environ.get(variable) if variable else None
    if not value:
        value = editor_input.default
    if value is None:
        description = f" ({shorten(editor_input.description)})" if editor_input.description else ""
        raise Unresolved(
            f"the input '{shorten(name)}'{description} is missing; set the environment variable"
            f" {shorten(variable)}"
        )
    return value


TEXT_BYTES_MAX = 128 * 1024 - 1
"""Maximum bytes of a value; Linux does not start a program with a longer argument or `NAME=value`
(MAX_ARG_STRLEN)."""


class ReferenceResolver:
    """Expands values and collects errors. `unresolved`: the place of each value that cannot be
    resolved, and a sentence; `secrets`: the values of references to secrets."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.unresolved: list[tuple[SourceLocation, str]] = []
        self.secrets: dict[str, None] = {}

    def value(self, written: str, site: SourceLocation) -> str | None:
        """Return the expanded value of `written`; None if it cannot be resolved, which is noted in
        `unresolved`."""
        try:
            expanded = expand(written, self._references, self.secrets.setdefault)
        except ResolvedLater:
            return None
        except Unresolved as error:
            self.unresolved.append((site, str(error)))
            return None
        if fault := flaw(expanded):
            self.unresolved.append((site, f"after its references are resolved it {fault}"))
            return None
        if len(expanded.encode()) > TEXT_BYTES_MAX:
            self.unresolved.append((site, f"is longer than {TEXT_BYTES_MAX} bytes"))
            return None
        return expanded

    def path(self, written: str, site: SourceLocation) -> str | None:
        """Return the expanded value of a path, as `value` does, but without PROGRAMS."""
        inner = ReferenceResolver(replace(self._references, printed=not_here))
        value = inner.value(written, site)
        self.unresolved += inner.unresolved
        return value

    def text(self, written: str, site: SourceLocation) -> str:
        """Return the expanded value of `written`, or `written` itself if it cannot be resolved."""
        value = self.value(written, site)
        return written if value is None else value

    def report(self, findings: ConfigFindings) -> None:
        """Report what cannot be resolved."""
        for site, message in self.unresolved:
            findings.error(site, message)
