"""The page of metrics as a scraper reads it, over one connection that stays open.

Owns: asking for the page, in both of its forms, and how many series and calls are on it. Never: how
long that took, and what a page should say.
"""

import http.client
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tests.live.gateway import Gateway

FORMS = ("text/plain", "application/openmetrics-text;version=1.0.0")
ANSWER_S_MAX = 30.0


class Scraper:
    def __init__(self, gateway: Gateway) -> None:
        self._line = http.client.HTTPConnection(
            "127.0.0.1", gateway.ops_port, timeout=ANSWER_S_MAX
        )  # fmt: skip

    def page(self, form: str = FORMS[0]) -> bytes:
        """`form`: one of `FORMS`."""
        self._line.request("GET", "/metrics", headers={"Accept": form})
        answer = self._line.getresponse()
        page = answer.read()
        assert answer.status == 200, page
        return page

    def close(self) -> None:
        self._line.close()


@contextmanager
def scraped(gateway: Gateway, every_s: float) -> Generator[None]:
    """Somebody asks for the page at once and then again and again."""
    over = threading.Event()

    def ask() -> None:
        scraper = Scraper(gateway)
        scraper.page()
        while not over.wait(every_s):
            scraper.page()
        scraper.close()

    asking = threading.Thread(target=ask, name="scraper")
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def series(page: bytes) -> int:
    """Lines with a number on them."""
    return sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))


def total(page: bytes, name: str) -> float:
    """The sum of all series of this name; 0 if there are none."""
    starts = f"{name}{{".encode(), f"{name} ".encode()
    return sum(
        float(line.partition(b" # ")[0].rpartition(b" ")[2])  # behind that may be an exemplar
        for line in page.splitlines()
        if line.startswith(starts)
    )
