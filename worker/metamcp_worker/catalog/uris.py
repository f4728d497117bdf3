"""URIs of one endpoint, and the server that each of them leads to.

Owns: the server of a URI, how a URI is exposed that two servers have, and how the result of a read
names what it contains. Never: names of tools, lists of definitions, reading resources.

A URI stays as it is, because results are full of URIs and pass unread. Only if a server offers a
URI that an earlier server of the endpoint has as well, it is exposed under another one: the name of
the server is put in front of the part behind the scheme, so that `ui://app/a.html` of the server
`git` becomes `ui://git/app/a.html`. A table turns that back; exposed URIs are not parsed.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping

from msgspec import Raw, Struct, structs

from metamcp_worker.catalog.offers import Owner, ServerOffer
from metamcp_worker.guard.guard_rules import GuardRules
from metamcp_worker.ipc import codec, process_names

URI_BYTES_MAX = 2048
"""Maximum bytes of the URI of a resource or template; as long as the URLs that browsers and servers
agree on."""
CONTENTS_MAX = 1000
"""Maximum entries of a result whose URIs are changed: a server may send a million, and a front that
looks at each of them answers nobody during this time."""
TAIL_CHARS = 6
"""Characters, thirty bits in all, that distinguish a URI which is taken even with its server's name
in it."""

_HEAD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://)?")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*:)(?://[^/?#{]*)?")

#: Exposed URIs, by kind and by the server's own URI; a URI that is missing is not exposed.
Exposed = Mapping[str, Mapping[str, str]]


class Template(Struct, frozen=True):
    """Resource template. `pattern`: URIs that it covers; `literal_chars`: how much of it is fixed
    text. A covered URI begins with `exposed` here and with `original` at its server."""

    owner: Owner
    pattern: re.Pattern[str]
    literal_chars: int
    exposed: str = ""
    original: str = ""

    def own(self, uri: str) -> Owner:
        if self.exposed == self.original:
            return self.owner
        original = self.original + uri[len(self.exposed) :]
        return structs.replace(self.owner, original=codec.dump(original))


class Uris(Struct, frozen=True):
    """URIs of an endpoint. `templates`: the most specific first. `origins`: the one server to which
    everything known of a scheme or of an authority belongs."""

    resources: Mapping[str, Owner]
    templates: tuple[Template, ...]
    template_keys: Mapping[str, Owner]
    origins: Mapping[str, Owner]

    def resource(self, uri: str) -> Owner | None:
        """Return the owner of a URI: by the URI itself, else by the most specific template that
        covers it, else by the owner of everything else of its authority or of its scheme."""
        owner = self.resources.get(uri)
        if owner is not None:
            return owner
        for template in self.templates:
            if template.pattern.match(uri):
                return template.own(uri)
        match = _ORIGIN.match(uri)
        if match is None:
            return None
        return self.origins.get(match[0]) or self.origins.get(match["scheme"])

    def resource_or_template(self, uri: str) -> Owner | None:
        """Return the owner of a URI, which may also be a template itself."""
        return self.template_keys.get(uri) or self.resource(uri)


class UrisBuilder:
    """URIs of an endpoint in the making. Call `add` for its servers in their order. `note`: called
    with a sentence about each URI that is left out; `rules`: about calls."""

    def __init__(self, note: Callable[[str], None], rules: GuardRules) -> None:
        self._note = note
        self._rules = rules
        self._tables: dict[str, dict[str, Owner]] = {"resources": {}, "resourceTemplates": {}}
        self._templates: list[Template] = []
        self._origins: dict[str, dict[str, Owner]] = {}

    def add(self, server: str, offer: ServerOffer) -> Exposed:
        """Add the URIs that this server offers, and return how they are exposed."""
        owner = Owner(server, legacy=offer.legacy, guard=self._rules.rest(server))
        resources: dict[str, str] = {}
        templates: dict[str, str] = {}
        for uri in dict.fromkeys((*(item.key for item in offer.items["resources"]), *offer.links)):
            exposed, _ = self._place("resources", owner, uri)
            if exposed is not None:
                resources[uri] = exposed
                self._originate(owner, uri)
        for item in offer.items["resourceTemplates"]:
            exposed, prefix = self._place("resourceTemplates", owner, item.key)
            if exposed is not None:
                templates[item.key] = exposed
                self._templates.append(_template(owner, item.key, exposed, prefix))
                self._originate(owner, item.key)
        return {"resources": resources, "resourceTemplates": templates}

    def uris(self) -> Uris:
        return Uris(
            self._tables["resources"],
            tuple(sorted(self._templates, key=lambda template: -template.literal_chars)),
            self._tables["resourceTemplates"],
            {
                origin: next(iter(owners.values()))
                for origin, owners in self._origins.items()
                if len(owners) == 1
            },
        )

    def _place(self, kind: str, owner: Owner, uri: str) -> tuple[str | None, str]:
        """Put a URI into its table. Returns how it is exposed, if at all, and the text in front of
        its own part then."""
        table = self._tables[kind]
        first = table.get(uri)
        if _bytes(uri) > URI_BYTES_MAX:
            self._note(f"{owner.server} lists a URI of more than {URI_BYTES_MAX} bytes")
        elif first is None:
            table[uri] = owner
            return uri, ""
        else:
            name = process_names.label(owner.server)
            for prefix in (name, f"{name}~{_tail(owner.server, uri)}"):
                exposed = under(prefix, uri)
                if exposed not in table and _bytes(exposed) <= URI_BYTES_MAX:
                    original = codec.dump(uri)
                    table[exposed] = structs.replace(owner, original=original)
                    return exposed, prefix
            self._note(f"{owner.server} also lists {uri!r}; it stays with {first.server}")
        return None, ""

    def _originate(self, owner: Owner, uri: str) -> None:
        match = _ORIGIN.match(uri)
        if match is not None:
            self._origins.setdefault(match["scheme"], {})[owner.server] = owner
            if not uri.startswith("{", match.end()):
                self._origins.setdefault(match[0], {})[owner.server] = owner


def in_contents(
    result: bytes, requested: str, owner: Owner, find: Callable[[str], Owner | None]
) -> bytes:
    """Return the result of `resources/read` with the URIs that its server has, of the resource and
    of others of this server, changed to those that the endpoint exposes. A result with more than
    CONTENTS_MAX entries stays as it is. `requested`: the URI that the client read; `find`: returns
    the owner of an exposed URI."""
    original = codec.text(owner.original) or ""
    head = _head(original)
    prefix = requested[head : head + len(requested) - len(original) - 1]
    try:
        members = codec.level(result)
        entries = codec.items(members.get("contents", b"[]"))
        if len(entries) > CONTENTS_MAX:
            return result
        contents = [codec.level(entry) for entry in entries]
    except codec.Malformed:
        return result  # not an answer of this method; the client sees what its server sent
    for content in contents:
        uri = codec.text(content.get("uri", b"null"))
        exposed = requested if uri == original else under(prefix, uri or "")
        listed = find(exposed)
        if listed and listed.server == owner.server and codec.text(listed.original) == uri:
            content["uri"] = Raw(codec.dump(exposed))
    return codec.dump({**members, "contents": contents})


def under(prefix: str, uri: str) -> str:
    """Return the URI with `prefix` in front of the part behind the scheme."""
    end = _head(uri)
    return f"{uri[:end]}{prefix}/{uri[end:]}"


def _head(uri: str) -> int:
    match = _HEAD.match(uri)
    return match.end() if match else 0


def _bytes(uri: str) -> int:
    return len(uri.encode("utf-8", "replace"))


def _tail(server: str, uri: str) -> str:
    digest = hashlib.sha256(f"{server}\0{uri}".encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode("ascii").lower()[:TAIL_CHARS]


_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_ANYTHING = frozenset("+#./;?&")


def _template(owner: Owner, template: str, exposed: str, prefix: str) -> Template:
    head = template[: _head(template)]
    return Template(
        owner,
        _pattern(exposed),
        len(_EXPRESSION.sub("", exposed)),
        f"{head}{prefix}/" if prefix else "",
        head if prefix else "",
    )


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the URIs that a template (RFC 6570) covers, read generously: the server
    has the last word.

    A plain expression `{x}` covers text without a slash, `{x*}` and expressions with an operator
    cover anything. Every piece but the last is atomic, so that matching takes linear time whatever
    the template.
    """
    pieces = _EXPRESSION.split(template)
    pattern = re.escape(pieces[0])
    for at in range(1, len(pieces), 2):
        expression, literal = pieces[at], re.escape(pieces[at + 1])
        anything = expression[:1] in _ANYTHING or expression.endswith("*")
        gap = r"[\s\S]*?" if anything else r"[^/]*?"
        last = at + 2 == len(pieces)
        pattern += gap + literal + r"\Z" if last else f"(?>{gap}{literal})"
    return re.compile(pattern if len(pieces) > 1 else pattern + r"\Z")
