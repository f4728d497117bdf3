"""The console of a real gateway, asked over HTTP as its script asks in a browser."""

import http.client
import json
from html.parser import HTMLParser
from typing import Self
from urllib.parse import urlencode, urlsplit

from tests.live.gateway import Gateway


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
