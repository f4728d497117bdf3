"""Which settings are secrets, and what is shown of a configuration instead of them.

Owns: which values of a server must be read nowhere, commands and URLs as they may be shown. Never:
the values (`config` keeps them), the look of a secret name and masking of any text
(`metamcp_worker.runtime.masking`), logs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from metamcp_supervisor.config.config import Embeddings, Server, Traces
from metamcp_worker.runtime.masking import MASK, looks_secret

__all__ = (
    "MASK", "looks_secret", "masked", "masked_url", "secrets_of", "secrets_of_embeddings",
    "secrets_of_traces",
)  # fmt: skip

_ASSIGNED = re.compile(r"(-{0,2}[\w-]{1,64})=(.+)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,63}")
_BEARER = re.compile(r"\b(Bearer|Basic) +(?!\$\{)\S+", re.IGNORECASE)
_USERINFO = re.compile(r"://[^/\s@]{1,256}@")
_PARAMETER = re.compile(r"([^&=]*)(=?)([^&]*)")
_OPAQUE = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_.~=-]{20,}")
"""A part of a path that nobody made up to be read: some services hand out a key as a URL."""
_REFERENCE = re.compile(r"\$\{(?:(file|credential|input):|(?:env:)?([A-Za-z_]\w*))", re.ASCII)


def secrets_of(server: Server) -> tuple[str, ...]:
    """What must not be read anywhere of this server's settings: values whose name or reference says
    that they are secrets, all headers, and what `masked` and `masked_url` hide."""
    found = [
        *_named(server.env, server.env_written),
        *_named(server.options, server.options_written),
        *server.headers.values(),
        *_in_command(server.command, server.command_written),
        *(_in_url(server.url) if server.url is not None else ()),
    ]
    if server.oauth is not None and server.oauth.client_secret is not None:
        found.append(server.oauth.client_secret)
    return tuple(dict.fromkeys(filter(None, found)))


def secrets_of_traces(traces: Traces) -> tuple[str, ...]:
    """The same of where spans go."""
    return tuple(filter(None, [*traces.headers.values(), *_in_url(traces.endpoint)]))


def secrets_of_embeddings(embeddings: Embeddings) -> tuple[str, ...]:
    """The same of where vectors come from."""
    return tuple(filter(None, [embeddings.key, *_in_url(embeddings.url)]))


def _named(values: Mapping[str, str], written: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        if looks_secret(name) or _leads_to_a_secret(written.get(name, "")):
            yield value


def _in_command(command: Sequence[str], written: Sequence[str]) -> Iterator[str]:
    named = False
    for at, argument in enumerate(command):
        if named or (at < len(written) and _leads_to_a_secret(written[at])):
            yield argument
        elif (assigned := _ASSIGNED.fullmatch(argument)) and looks_secret(assigned[1]):
            yield assigned[2]
        named = bool(_FLAG.fullmatch(argument)) and looks_secret(argument)


def _in_url(url: str) -> Iterator[str]:
    place, _, query = url.partition("?")
    yield from filter(_OPAQUE.fullmatch, place.split("/")[3:])
    for each in query.split("&"):
        name, equals, value = each.partition("=")
        yield value if equals else name


def _leads_to_a_secret(written: str) -> bool:
    """Files and credentials are there for secrets; a variable has a name."""
    return any(kind or looks_secret(name) for kind, name in _REFERENCE.findall(written))


def masked(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command as it may be shown: `--api-key x`, `TOKEN=x`, `Bearer x` and `://user:x@` lose
    their x. References stay: they are no secret, they say where it is."""
    shown: list[str] = []
    named = False
    for argument in arguments:
        hidden = named and not _is_reference(argument)
        shown.append(MASK if hidden else _masked_inside(argument))
        named = bool(_FLAG.fullmatch(argument)) and looks_secret(argument)
    return tuple(shown)


def masked_url(url: str) -> str:
    """A URL as it may be shown: values of its query lose what they are, and so do credentials and
    parts of the path that look like keys. References stay."""
    place, mark, query = _USERINFO.sub(f"://{MASK}@", url).partition("?")
    scheme, slashes, rest = place.rpartition("://")
    parts = rest.split("/")
    path = [MASK if _OPAQUE.fullmatch(part) else part for part in parts[1:]]
    return scheme + slashes + "/".join([parts[0], *path]) + mark + _masked_query(query)


def _masked_query(query: str) -> str:
    def hide(found: re.Match[str]) -> str:
        name, equals, value = found.groups()
        if not equals:
            return name if not name or _is_reference(name) else MASK
        return f"{name}={value if not value or _is_reference(value) else MASK}"

    return "&".join(_PARAMETER.sub(hide, each, count=1) for each in query.split("&"))


def _masked_inside(argument: str) -> str:
    assigned = _ASSIGNED.fullmatch(argument)
    if assigned and looks_secret(assigned[1]) and not _is_reference(assigned[2]):
        return f"{assigned[1]}={MASK}"
    return _USERINFO.sub(f"://{MASK}@", _BEARER.sub(rf"\1 {MASK}", argument))


def _is_reference(text: str) -> bool:
    """A default is a value, so a reference with one is not only a reference."""
    return text.startswith("${") and text.endswith("}") and ":-" not in text
