"""Prices of a shop, and who may ask for them."""

PRICES = {"apple": 3, "pear": 4}
ROUTES = {}


def route(path):
    def register(function):
        ROUTES[path] = function
        return function

    return register


def total(names):
    result = 0
    for name in names:
        result = result + PRICES[name]
    return result


@route("/prices")
def prices():
    return PRICES
