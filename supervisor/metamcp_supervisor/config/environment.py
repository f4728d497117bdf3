"""Which variables of the gateway's own environment a server gets, and which others could matter.

Owns: that choice, by names alone, and the words about what is withheld. Never: values, the
environment itself (`servers.specs`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

ALWAYS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM")
"""What every server gets: enough to find programs and files."""
DEFAULT = ("*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "UV_*",
           "NPM_CONFIG_*", "XDG_*")  # fmt: skip
"""What a server gets besides, unless the configuration says something else: the way to the network
and to packages, and none of the secrets that may lie there for other servers."""
NEVER = ("METAMCP_*", "NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "CREDENTIALS_DIRECTORY")
"""The gateway's own, also with `*`."""
NAMED_MAX = 5
"""Of withheld variables that one sentence names."""
_PART_CHARACTERS_MIN = 3
_GENERAL = frozenset({
    "api", "bin", "com", "dir", "home", "http", "https", "index", "key", "local", "main", "mcp",
    "modelcontextprotocol", "module", "node", "npx", "path", "port", "python", "run", "server",
    "src", "stdio", "token", "url", "uvx",
})  # fmt: skip
"""Words that say nothing about whose variable one is."""


def passed(names: Iterable[str], globs: Sequence[str]) -> list[str]:
    """`globs`: of the configuration. Upper and lower case are the same: `http_proxy`."""
    wanted = (*ALWAYS, *globs)
    return [name for name in names if _fits(name, wanted) and not _fits(name, NEVER)]


def withheld(
    names: Iterable[str],
    globs: Sequence[str],
    env: Collection[str],
    words: Iterable[str],
    said: str,
) -> tuple[str, ...]:
    """The variables that a server does not get and that could matter to it. `env`: the variables
    of its entry; `words`: its name and command; `said`: what it wrote, and what is said of its end.

    First come those that it names itself, then those that have a word in common with it:
    `GITHUB_TOKEN` and a server `github`. Folders of a path do not count: they say where a program
    lies, not what it is.
    """
    everything = list(names)
    given = {*passed(everything, globs), *env}
    missing = [name for name in everything if name not in given and not _fits(name, NEVER)]
    spoken = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", said))
    names_of_it = " ".join(word.rpartition("/")[2].lower() for word in words)
    known = set(re.findall(r"[a-z0-9]+", names_of_it)) - _GENERAL
    named = [name for name in missing if name in spoken]
    alike = [name for name in missing if name not in spoken and known & _parts(name)]
    return tuple([*named, *sorted(alike)][:NAMED_MAX])


def sentence(names: Sequence[str]) -> str:
    """What is said of them, or nothing."""
    if not names:
        return ""
    those = "this variable" if len(names) == 1 else "these variables"
    return f"it does not get {those} of the gateway: {', '.join(names)} (see inherit_env)"


def _parts(name: str) -> set[str]:
    parts = name.lower().split("_")
    return {part for part in parts if len(part) >= _PART_CHARACTERS_MIN}


def _fits(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name.upper(), glob.upper()) for glob in globs)
