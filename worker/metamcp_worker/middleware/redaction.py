"""Middleware `redaction`: hides personal data and tokens in results, and in arguments if wanted.

Owns: patterns and check digits of what it finds. Never: secrets of the configuration, which are
masked wherever the gateway writes (`runtime.masking`).

Finds are guesses, with a check where there is one: cards by Luhn, IBANs by their remainder.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from metamcp_worker.middleware.api import (
    HookRequest,
    PromptResult,
    ResourceResult,
    ToolResult,
)
from metamcp_worker.middleware.hook_options import flag, refuse_unknown, words
from metamcp_worker.runtime.masking import SecretMasker

_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_IBAN = re.compile(r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\w.-])[0-9](?:[ -]?[0-9]){12,18}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w+.-])(?:(?:\+|00)[1-9](?:[ ()./-]{0,2}[0-9]){6,14}"
    r"|\(?[2-9][0-9]{2}\)?[ .-][2-9][0-9]{2}[ .-][0-9]{4})(?![\w-])"
)
_MASKS = SecretMasker()


def _is_card(text: str) -> bool:
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and any(digits)


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "")
    moved = plain[4:] + plain[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _make_replacer(
    pattern: re.Pattern[str], kind: str, is_one: Callable[[str], bool]
) -> Callable[[str], str]:
    def replace(match: re.Match[str]) -> str:
        return f"[{kind}]" if is_one(match[0]) else match[0]

    return lambda text: pattern.sub(replace, text)


#: Functions that hide each kind, in the order in which they look at a text.
_HIDE: Mapping[str, Callable[[str], str]] = {
    "email": _make_replacer(_EMAIL, "email", lambda text: True),
    "iban": _make_replacer(_IBAN, "iban", _is_iban),
    "card": _make_replacer(_CARD, "card", _is_card),
    "phone": _make_replacer(_PHONE, "phone", lambda text: True),
    "token": _MASKS.text,
}


class Redaction:
    """Options: `kinds`, a list of `email`, `iban`, `card`, `phone` and `token`, all of them if
    nothing is said; `arguments`: whether arguments of tools lose them too, before the server gets
    them. Raises ValueError."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, {"kinds", "arguments"})
        kinds = words(options, "kinds", tuple(_HIDE), _HIDE)
        self._hide = [hide for kind, hide in _HIDE.items() if kind in kinds]
        self._arguments = flag(options, "arguments", default=False)

    def text(self, text: str) -> str:
        """Return a text without what is to be hidden."""
        for hide in self._hide:
            text = hide(text)
        return text

    async def on_call_tool(
        self, request: HookRequest, call_next: Callable[[HookRequest], Any]
    ) -> ToolResult:
        if self._arguments:
            request = request.map_text(self.text)
        result: ToolResult = await call_next(request)
        return result.map_text(self.text)

    async def on_get_prompt(
        self, request: HookRequest, call_next: Callable[[HookRequest], Any]
    ) -> PromptResult:
        result: PromptResult = await call_next(request)
        return result.map_text(self.text)

    async def on_read_resource(
        self, request: HookRequest, call_next: Callable[[HookRequest], Any]
    ) -> ResourceResult:
        result: ResourceResult = await call_next(request)
        return result.map_text(self.text)
