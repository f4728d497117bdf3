"""Names of servers, namespaces and endpoints: the rule for valid names, the known word nearest to a
mistyped one, and what to write in place of keys of other gateways.

Never: names of tools (`metamcp_worker.ipc.exposed_names`).

A server's name becomes part of the names of its tools, `server__tool`, and of URLs and labels.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping

from metamcp_worker.ipc.process_names import WORKSPACE_MARK

NAME_CHARACTERS_MAX = 64
"""Maximum characters of a name: a server's name is part of the names of its tools, and most clients
allow no longer names of tools."""

_GOOD = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)
_FOREIGN = re.compile(r"[^a-z0-9_-]+", re.ASCII)
_UNDERSCORES = re.compile(r"_{2,}")


def flaw(name: str) -> str:
    """Return the error in a name, as the end of a sentence, or an empty string."""
    if len(name) > NAME_CHARACTERS_MAX:
        return f"is longer than {NAME_CHARACTERS_MAX} characters"
    if "__" in name:
        return "has '__' in it, which separates a server from its tool"
    if _GOOD.fullmatch(name):
        return ""
    near = to_valid_name(name)
    advice = f", such as '{near}'" if near else ""
    return f"may have only a-z, 0-9, '-' and '_', and begins with a letter or digit{advice}"


def full_flaw(name: str) -> str:
    """Return the same for the full name of a server, which may begin with its workspace."""
    workspace, mark, label = name.partition(WORKSPACE_MARK)
    return flaw(workspace) or flaw(label) if mark else flaw(name)


def to_valid_name(name: str) -> str:
    """Return the valid name nearest to `name`: `My Server` → `my-server`. Empty when nothing is
    left."""
    plain = unicodedata.normalize("NFKD", name[: NAME_CHARACTERS_MAX * 4]).casefold()
    ascii_only = "".join(char for char in plain if not unicodedata.combining(char))
    joined = _UNDERSCORES.sub("_", _FOREIGN.sub("-", ascii_only))
    return joined.lstrip("-_")[:NAME_CHARACTERS_MAX].rstrip("-_")


_URLS = {"serverUrl", "httpUrl"}
"""Keys of clients for the URL of a server."""
_WORD_CHARACTERS_MAX = 64
"""Maximum characters of a word that is compared with known words: the time grows with the square of
the length, and mistyped words are shorter."""
_LISTED_MAX = 12
"""Maximum number of known words that a hint lists when none is near."""


def nearest(word: str, names: Collection[str]) -> str | None:
    if len(word) > _WORD_CHARACTERS_MAX:
        return None
    if swapped := [name for name in names if sorted(name) == sorted(word.lower())]:
        return swapped[0]
    try:
        from difflib import get_close_matches  # a gateway without mistakes never needs it
    except (ImportError, OSError):  # no descriptor is free: then without a hint
        return None
    matches = get_close_matches(word.lower(), names, n=1)
    return matches[0] if matches else None


def names_a_way(keys: Iterable[str]) -> bool:
    """Whether one of these keys was meant to say how a server is started or reached."""
    return any(nearest(key, ("command", "url", "module")) or key in _URLS for key in keys)


def hint(word: str, names: Collection[str]) -> str:
    """Return the second half of a sentence about an unknown word."""
    if not names:
        return "there are none"
    near = nearest(word, names)
    if near is not None:
        return f"did you mean '{near}'?"
    listed = sorted(names)[:_LISTED_MAX]
    more = len(names) - len(listed)
    return f"there are: {', '.join(listed)}" + (f" and {more} more" if more else "")


_KEYS = "write auth = \"keys\"; a key is made with 'metamcp keys create NAME --endpoint ENDPOINT'"
_LISTEN = 'write listen = "127.0.0.1:PORT"'
_NAMED = "its name stands in the brackets above it"
_OF_NAMESPACES = "a namespace lists its servers: [namespaces.NAME] servers = […]"
#: Keys of other gateways, and the hint that names the key to write here.
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "": {
        "mcpServers": "servers are [servers.NAME] here, or a file that 'include' names",
        "mcp_servers": "servers are [servers.NAME] here, or a file that 'include' names",
        "port": f"{_LISTEN} in [gateway]",
        "host": f"{_LISTEN} in [gateway]",
        "storage_path": "write state_dir in [gateway]",
        "ai_api": "the model of agents is [ai]; that of searches by meaning is [embeddings]",
        "toolsets": "tool sets are made by 'metamcp toolsets create' or 'import'",
        "tool_sets": "tool sets are made by 'metamcp toolsets create' or 'import'",
    },
    "gateway": {
        "port": _LISTEN,
        "host": _LISTEN,
        "storage_path": "write state_dir",
        "exposure": "write it in [endpoints.NAME]",
        "naming": "write it in [endpoints.NAME]",
    },
    "servers.*": {
        "type": "a command or a url says what it is; 'transport' chooses between ways to a url",
        "disabled": "write enabled = false",
        "serverUrl": "write url",
        "httpUrl": "write url",
        "namespace": _OF_NAMESPACES,
        "namespaceId": _OF_NAMESPACES,
        "name": _NAMED,
        "id": _NAMED,
        "autostart": 'write start = "lazy", or enabled = false',
        "autorestart": "write restart",
        "environment": "write env",
        "directory": "write cwd",
    },
    "namespaces.*": {"name": _NAMED, "id": _NAMED},
    "endpoints.*": {
        "namespaceId": "write namespace",
        "apiKeyRequired": _KEYS,
        "allowedApiKeys": 'write keys = ["NAME"]',
        "name": _NAMED,
        "id": _NAMED,
    },
}  # fmt: skip
