"""Variables of the gateway's environment that a server gets, and withheld ones that could matter.

Owns: the choice, by names alone, and the sentence about withheld variables. Never: values, the
environment itself (`servers.specs`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

ALWAYS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM")
"""Variables that every server gets: enough to find programs and files."""
DEFAULT = ("*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "UV_*",
           "NPM_CONFIG_*", "XDG_*")  # fmt: skip
"""Further variables that a server gets unless `inherit_env` is set: settings for the network and
for packages, but not the secrets that the environment may hold for other servers."""
NEVER = ("METAMCP_*", "NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "CREDENTIALS_DIRECTORY")
"""Variables of the gateway itself, which a server never gets, even with `*`."""
NAMED_MAX = 5
"""Maximum number of withheld variables that a sentence names."""
_PART_CHARACTERS_MIN = 3
_GENERAL = frozenset({
    "api", "bin", "com", "dir", "home", "http", "https", "index", "key", "local", "main", "mcp",
    "modelcontextprotocol", "module", "node", "npx", "path", "port", "python", "run", "server",
    "src", "stdio", "token", "url", "uvx",
})  # fmt: skip
"""Words that do not say to which program a variable belongs."""


def select_variables(names: Iterable[str], globs: Sequence[str]) -> list[str]:
    """Return the variables that a server gets. `globs`: from the configuration. Upper and lower
    case are the same: `http_proxy`."""
    all_globs = (*ALWAYS, *globs)
    return [name for name in names if _fits(name, all_globs) and not _fits(name, NEVER)]


def withheld(
    names: Iterable[str],
    globs: Sequence[str],
    env: Collection[str],
    words: Iterable[str],
    output: str,
) -> tuple[str, ...]:
    """Return the variables that a server does not get and that could matter to it. `env`: variables
    set in its entry; `words`: its name and command; `output`: what it wrote, and the reason for its
    end.

    Variables that the server names come first, then variables that have a word in common with its
    name or command: `GITHUB_TOKEN` and a server `github`. Folders of a path do not count: they say
    where a program is, not which program.
    """
    everything = list(names)
    present = {*select_variables(everything, globs), *env}
    missing = [name for name in everything if name not in present and not _fits(name, NEVER)]
    spoken = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", output))
    names_of_it = " ".join(word.rpartition("/")[2].lower() for word in words)
    own_words = set(re.findall(r"[a-z0-9]+", names_of_it)) - _GENERAL
    named = [name for name in missing if name in spoken]
    alike = [name for name in missing if name not in spoken and own_words & _parts(name)]
    return tuple([*named, *sorted(alike)][:NAMED_MAX])


def sentence(names: Sequence[str]) -> str:
    """Return a sentence about withheld variables, or an empty string."""
    if not names:
        return ""
    those = "this variable" if len(names) == 1 else "these variables"
    return f"it does not get {those} of the gateway: {', '.join(names)} (see inherit_env)"


def _parts(name: str) -> set[str]:
    parts = name.lower().split("_")
    return {word for word in parts if len(word) >= _PART_CHARACTERS_MIN}


def _fits(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name.upper(), glob.upper()) for glob in globs)
