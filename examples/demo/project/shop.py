"""Prices of a shop, and who may ask for them."""

from collections.abc import Callable

PRICES = {"apple": 3, "pear": 4}
ROUTES: dict[str, Callable[[], object]] = {}


def route(path: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def register(function: Callable[[], object]) -> Callable[[], object]:
        ROUTES[path] = function
        return function

    return register


def total(names: list[str]) -> int:
    result = 0
    for name in names:
        result = result + PRICES[name]
    return result


@route("/prices")
def prices() -> object:
    return PRICES
