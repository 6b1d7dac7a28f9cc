"""Failures by their kind: messages that differ in names and numbers alone are one reason."""

from __future__ import annotations

import re
from typing import Final

_MOST: Final = 160
_SAME: Final = (
    (re.compile(r"\bmodel '[^']*'"), "model …"),
    (re.compile(r"'[^']*'"), "'…'"),
    (re.compile(r"0x[0-9a-f]+"), "0x…"),
    (re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?"), "N"),
)


def kind(why: str) -> str:
    """The reason without what tells cases of it apart."""
    text = why
    for pattern, instead in _SAME:
        text = pattern.sub(instead, text)
    return text[:_MOST] or "no message"
