"""The console of a real gateway, asked over HTTP as its script asks in a browser, and as programs
ask."""

import http.client
import json
from html.parser import HTMLParser
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from tests.live.gateway import Gateway, fake, free_port


class Markup(HTMLParser):
    """Elements and text of a fragment."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def fields(self) -> dict[str, str | None]:
        """The names of all controls, with their values."""
        return {
            attrs["name"] or "": attrs.get("value")
            for tag, attrs in self.elements
            if tag in ("input", "select", "textarea") and attrs.get("name")
        }

    def links(self) -> list[str]:
        return [attrs.get("href") or "" for tag, attrs in self.elements if tag == "a"]


class ConsoleBrowser:
    """A session at the console of a gateway, in a role."""

    def __init__(self, gateway: Gateway, role: str) -> None:
        done = gateway.run("console", "--role", role, "--json", "--no-open")
        url: str = json.loads(done.stdout)["url"]
        place = urlsplit(url)
        self.http = http.client.HTTPConnection(place.netloc, timeout=60)
        self.token = ""
        link = place.fragment.removeprefix("k=")
        status, body = self.ask("POST", "/login", json.dumps({"link": link}))
        assert status == 200, body
        self.token = json.loads(body)["token"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        headers = {"Sec-Fetch-Site": "same-origin"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self.http.request(method, path, body, headers)
        answer = self.http.getresponse()
        return answer.status, answer.read().decode()

    def get(self, path: str) -> Markup:
        status, body = self.ask("GET", f"/f{path}")
        assert status == 200, body
        return Markup(body)

    def post(self, path: str, **fields: str) -> Markup:
        """Send a form; a dot in a field's name is written as `__`."""
        named = {name.replace("__", "."): value for name, value in fields.items()}
        status, body = self.ask("POST", f"/f{path}", urlencode(named))
        assert status == 200, body
        return Markup(body)


class Steered(Gateway):
    """Gateway whose console listens from the start, on loopback."""

    def __init__(self) -> None:
        self.console_port = free_port()
        listen = f'[gateway]\nconsole_listen = "127.0.0.1:{self.console_port}"\n'
        super().__init__({"git": fake("--garbage"), "db": fake()}, extra=listen)

    @property
    def console_url(self) -> str:
        return f"http://127.0.0.1:{self.console_port}"

    @property
    def streams(self) -> int:
        """How many pages and commands follow the gateway."""
        (console,) = (role for role in self.status()["roles"] if role["role"] == "console")
        found: int = console["counts"].get("streams", 0)
        return found

    def key(self, name: str, scope: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(
            self.run("keys", "create", name, "--scope", f"console:{scope}", "--json").stdout
        )
        return made

    def post(
        self, key: str, body: object, method: str = "POST", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers of the answer of the console to a program."""
        connection = http.client.HTTPConnection("127.0.0.1", self.console_port, timeout=30)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {**({"Authorization": f"Bearer {key}"} if key else {}), **names}
        try:
            connection.request(method, "/control", json.dumps(body), given)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()
