"""Normal forms of the URIs of resources, so that a rule about a URI holds for all its spellings.

Owns: the normal forms of `file:` (RFC 8089) and of `http:` and `https:` (RFC 3986), of URIs and of
the globs that match them. Never: rules, URIs of other schemes, which are compared as they are.

A server may read a URI more freely than these standards. So a URI has no normal form if readers are
known to differ about it.
"""

import ipaddress
import re
from typing import Final

PORTS: Final = {"http": "80", "https": "443"}
"""Ports that a URI of a scheme need not name."""
_SCHEME: Final = re.compile(r"(file|https?):(.*)", re.IGNORECASE | re.DOTALL)
_STRIPPED: Final = re.compile(r"[\x00-\x20\x7f]+")
"""Characters that some readers drop, at the ends or anywhere."""
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff\ufffd]|%(?![0-9A-Fa-f]{2})")
"""Characters that a URI may not have; U+FFFD stands for text that cannot be read."""
_UNFIT_FILE: Final = re.compile(r"[?#]|%(?:00|2[fF]|5[cC])")
"""Characters that a path of `file:` may not have: some readers end the path there, or read a
slash."""
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_LITERAL: Final = re.compile(r"[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%{}]")
_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~{}"
_HOST: Final = re.compile(r"[a-z0-9._-]+")
_HOST_GLOB: Final = re.compile(r"[a-z0-9._*?!\[\]-]+")
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
_WILD: Final = re.compile(r"[*?\[]")
_AUTHORITY_ENDS: Final = re.compile(r"[/?#]|\Z")
_AUTHORITY_ENDS_GLOB: Final = re.compile(r"/|\Z")


def normal_uri(uri: str) -> str | None:
    """Return the normal form of a URI; None if it has none. A URI of another scheme is returned as
    it is."""
    return _normal(uri, glob=False)


def normal_glob(glob: str) -> str:
    """Return a glob for normal forms in place of one for URIs; the glob itself if it is not about
    URIs of one scheme and place."""
    normal = _normal(glob, glob=True)
    return glob if normal is None else normal


def _normal(uri: str, *, glob: bool) -> str | None:
    parts = _SCHEME.fullmatch(uri)
    if parts is None:
        unclear = _SCHEME.match(_STRIPPED.sub("", uri)) or "\ufffd" in uri
        return None if unclear else uri
    if _UNFIT.search(uri):
        return None
    scheme, remainder = parts[1].lower(), parts[2]
    authority = ""
    if remainder.startswith("//"):
        end = (_AUTHORITY_ENDS_GLOB if glob else _AUTHORITY_ENDS).search(remainder, 2)
        at = len(remainder) if end is None else end.start()
        authority, remainder = remainder[2:at], remainder[at:]
    if scheme == "file":
        return _file(authority, remainder, glob=glob)
    return _http(scheme, authority, remainder, glob=glob)


def _file(authority: str, path: str, *, glob: bool) -> str | None:
    local = authority.lower() in ("", "localhost")
    if not local or not path.startswith("/") or (not glob and _UNFIT_FILE.search(path)):
        return None
    path = re.sub("/+", "/", _normalize_escapes(path, "!$&'()*+,;=:@", glob=glob))
    return "file://" + (_without_dots(path).rstrip("/") or "/")


def _http(scheme: str, authority: str, path_and_query: str, *, glob: bool) -> str | None:
    host_port = _place(scheme, authority.rpartition("@")[2], glob=glob)
    if host_port is None:
        return None
    path, mark, query = path_and_query, "", ""
    if not glob:
        path, mark, query = path_and_query.partition("#")[0].partition("?")
    written = _normalize_escapes(path, "", glob=glob)
    path = _without_dots(written)
    hidden = re.sub("%2F|%5C", "/", path)
    # Readers differ about what a segment of dots takes away here.
    differ = _without_dots(hidden) != hidden or (path != written and "//" in written)
    if differ and not glob:
        return None
    if not path and not _WILD.search(host_port):
        path = "/"
    spelled_query = f"{mark}{_normalize_escapes(query, '', glob=glob)}" if query else ""
    return f"{scheme}://{host_port}{path}{spelled_query}"


def _place(scheme: str, text: str, *, glob: bool) -> str | None:
    """Return host and port in their normal form."""
    text = _normalize_escapes(text, "", glob=True).lower()
    literal = re.fullmatch(r"(\[[0-9a-f:.]+\])(?::([0-9]*))?", text)
    host, _, port = text.partition(":")
    if literal is not None:
        try:
            host, port = f"[{ipaddress.IPv6Address(literal[1][1:-1])}]", literal[2] or ""
        except ValueError:
            return None
    else:
        host = host.removesuffix(".")
        if not (_HOST_GLOB if glob else _HOST).fullmatch(host) or _unclear_number(host):
            return None
    if not glob and port and not port.isdecimal():
        return None
    port = port.lstrip("0")
    return host if port in ("", PORTS[scheme]) else f"{host}:{port}"


def _unclear_number(host: str) -> bool:
    """Whether a host is an IPv4 address in another form than four decimal numbers."""
    if not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return False
    try:
        return str(ipaddress.IPv4Address(host)) != host
    except ValueError:
        return True


def _normalize_escapes(text: str, plain: str, *, glob: bool) -> str:
    """Return a text in which a character is an escape exactly if it has to be one. `plain`:
    characters that need not be one, beside the unreserved ones."""
    fit = _UNRESERVED + plain

    def escape(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in fit else f"%{match[1].upper()}"

    def spell(match: re.Match[str]) -> str:
        if glob and match[0] in "[]":
            return match[0]
        return "".join(f"%{byte:02X}" for byte in match[0].encode())

    return _LITERAL.sub(spell, _ESCAPE.sub(escape, text))


def _without_dots(path: str) -> str:
    """Return a path without its segments `.` and `..` (RFC 3986, section 5.2.4)."""
    resolved: list[str] = []
    segments = path.split("/")
    for at, segment in enumerate(segments):
        last = at == len(segments) - 1
        if segment in (".", ".."):
            if segment == ".." and len(resolved) > 1:
                resolved.pop()
            if last:
                resolved.append("")
        else:
            resolved.append(segment)
    return "/".join(resolved)
