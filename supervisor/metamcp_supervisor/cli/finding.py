"""One line of `metamcp ctl doctor`.

Owns: its shape. Never: looking at anything.
"""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """`check`: what was looked at; `text`: what was found; `advice`: what to do about it."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""
